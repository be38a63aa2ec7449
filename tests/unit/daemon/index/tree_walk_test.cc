#include "daemon/index/tree_walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace terrace {
namespace {

BlockKey Key(uint64_t low) { return {.low = low, .high = 5}; }

// A random forest in group 0.
struct Forest {
  Forest(uint64_t seed, uint32_t block_count) : random(seed), index({.blocks_max = block_count}) {
    std::vector<BlockId> ids;
    for (uint32_t i = 0; i < block_count; ++i) {
      const BlockId parent = i == 0 || random() % 10 == 0 ? kBlockNone : ids[random() % i];
      const uint32_t position = parent == kBlockNone ? 0 : index.node(parent).position + 1;
      ids.push_back(index.Insert(0, Key(i), position));
      if (parent != kBlockNone) index.Link(ids.back(), parent);
    }
  }
  std::mt19937_64 random;
  RadixIndex index;
};

// With the block itself.
std::set<BlockId> BelowOf(const RadixIndex& index, BlockId top) {
  std::set<BlockId> below{top};
  for (BlockId id = index.node(top).first_child; id != kBlockNone;
       id = index.node(id).next_sibling) {
    below.merge(BelowOf(index, id));
  }
  return below;
}

TEST(TreeWalks, EveryBlockComesOnceInOrderHoweverSmallTheTurns) {
  for (const WalkOrder order : {WalkOrder::kParentsFirst, WalkOrder::kChildrenFirst}) {
    for (const uint32_t turn : {1u, 3u, 1000u}) {
      Forest f(turn, 200);
      TreeWalks walks(f.index);
      const uint64_t cursor = walks.Open({.order = order, .group_end = 1});
      std::set<BlockId> seen;
      bool is_done = false;
      while (!is_done) {
        uint32_t budget = turn;
        const BlockId id = walks.Next(cursor, &budget, &is_done);
        if (id == kBlockNone) continue;
        EXPECT_TRUE(seen.insert(id).second);
        const BlockId parent = f.index.node(id).parent;
        if (parent != kBlockNone) {
          EXPECT_EQ(seen.contains(parent), order == WalkOrder::kParentsFirst);
        }
      }
      EXPECT_EQ(seen.size(), 200u);
    }
  }
}

TEST(TreeWalks, ErasuresUnderItNeitherRepeatNorLoseWhatStaysLinked) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Forest f(seed, 60);
    TreeWalks walks(f.index);
    const WalkOrder order = seed % 2 ? WalkOrder::kParentsFirst : WalkOrder::kChildrenFirst;
    const uint64_t cursor = walks.Open({.order = order, .group_end = 1});
    std::set<BlockId> seen, erased;
    bool is_done = false;
    while (!is_done) {
      uint32_t budget = 2;
      const BlockId id = walks.Next(cursor, &budget, &is_done);
      if (id != kBlockNone) {
        EXPECT_TRUE(seen.insert(id).second);
        EXPECT_FALSE(erased.contains(id));
      }
      // A leaf goes, as evictions do.
      const BlockId leaf = static_cast<BlockId>(f.random() % 60);
      if (f.index.node(leaf).is_live && f.index.node(leaf).child_count == 0) {
        walks.OnErase(leaf);
        f.index.Erase(leaf);
        erased.insert(leaf);
      }
    }
    for (BlockId id = 0; id < 60; ++id) {
      EXPECT_TRUE(seen.contains(id) || erased.contains(id)) << "seed " << seed << " block " << id;
    }
  }
}

TEST(TreeWalks, OfTheGroupsOnlyTreesThatBeginDeepEnoughAreWalked) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Forest f(seed, 100);
    for (uint64_t i = 0; i < 100; i += 7) f.index.Erase(f.index.Find(0, Key(i)));
    for (const uint32_t deeper_than : {0u, 2u, 1000u}) {
      std::set<BlockId> wanted;
      for (BlockId root = f.index.first_root(0); root != kBlockNone;
           root = f.index.node(root).next_sibling) {
        if (f.index.node(root).position > deeper_than) wanted.merge(BelowOf(f.index, root));
      }
      TreeWalks walks(f.index);
      WalkScope scope{.order = WalkOrder::kChildrenFirst, .group_end = 1, .below = {deeper_than}};
      const uint64_t cursor = walks.Open(std::move(scope));
      std::set<BlockId> seen;
      for (bool is_done = false; !is_done;) {
        uint32_t budget = 3;
        const BlockId id = walks.Next(cursor, &budget, &is_done);
        const bool is_new = id == kBlockNone || seen.insert(id).second;
        EXPECT_TRUE(is_new);
      }
      EXPECT_EQ(seen, wanted) << "seed " << seed << " deeper than " << deeper_than;
    }
  }
}

TEST(TreeWalks, WhatIsPastIsPassedOverWithAllBelowIt) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Forest f(seed, 100);
    const BlockId past = f.index.Find(0, Key(seed));
    const auto is_past = [past](BlockId id) { return id == past; };
    TreeWalks walks(f.index);
    WalkScope scope{.order = WalkOrder::kChildrenFirst};
    for (uint64_t i = 0; i < 100; ++i) scope.roots.push_back({.group_index = 0, .key = Key(i)});
    const std::set<BlockId> below = BelowOf(f.index, past);
    scope.roots.erase(std::remove_if(scope.roots.begin(), scope.roots.end(),
                                     [&](const WalkScope::Root& root) {
                                       const BlockId id = f.index.Find(0, root.key);
                                       return id != past && below.contains(id);
                                     }),
                      scope.roots.end());
    const uint64_t cursor = walks.Open(std::move(scope));
    std::set<BlockId> seen;
    for (bool is_done = false; !is_done;) {
      uint32_t budget = 3;
      const BlockId id = walks.Next(cursor, &budget, &is_done, is_past);
      if (id != kBlockNone) seen.insert(id);
    }
    EXPECT_EQ(seen.size(), 100 - below.size());
    for (const BlockId id : below) EXPECT_FALSE(seen.contains(id));
  }
}

// As when beginnings of prompts expire while all are evicted, or are stored again.
TEST(TreeWalks, AWalkThatGoesAgainLeavesNothingOutHoweverTheTreesChange) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Forest f(seed, 200);
    TreeWalks walks(f.index);
    const uint64_t cursor =
        walks.Open({.order = WalkOrder::kChildrenFirst, .group_end = 1, .goes_again = true},
                   WalkUse::kOperation);
    uint32_t steps = 0;
    for (bool is_done = false; !is_done; ++steps) {
      uint32_t budget = 5;
      const BlockId id = walks.Next(cursor, &budget, &is_done);
      if (id != kBlockNone && f.index.node(id).child_count == 0) {  // it is evicted
        walks.OnErase(id);
        f.index.Erase(id);
      }
      if (steps % 3 != 0 || steps > 300) continue;
      const BlockId other = f.index.Find(0, Key(f.random() % 200));
      if (other == kBlockNone) continue;
      if (f.index.node(other).parent == kBlockNone) {  // it expires
        walks.OnErase(other);
        f.index.Erase(other);
      } else if (f.index.node(other).position > 0) {
        const BlockId root = f.index.first_root(0);
        if (root != other && f.index.Link(root, other)) walks.OnLink();
      }
    }
    EXPECT_FALSE(walks.has_left_out(cursor)) << seed;
    EXPECT_EQ(f.index.first_root(0), kBlockNone) << "seed " << seed;
  }
}

// Whoever lists and leaves off takes none of them away.
TEST(TreeWalks, AWalkOfAnOperationGivesWayToNobody) {
  Forest f(1, 10);
  TreeWalks walks(f.index);
  const uint64_t evicts = walks.Open({.group_end = 1}, WalkUse::kOperation);
  const uint64_t resets = walks.Open({.group_end = 1}, WalkUse::kOperation);
  for (uint32_t i = 0; i < 3 * TreeWalks::kWalksMax; ++i) walks.Open({.group_end = 1});
  EXPECT_TRUE(walks.IsOpen(evicts));
  walks.Close(evicts);
  const uint64_t next = walks.Open({.group_end = 1}, WalkUse::kOperation);
  EXPECT_FALSE(walks.IsOpen(evicts));
  EXPECT_TRUE(walks.IsOpen(resets));
  std::set<BlockId> seen;
  for (bool is_done = false; !is_done;) {
    uint32_t budget = 1;
    const BlockId id = walks.Next(next, &budget, &is_done);
    if (id != kBlockNone) seen.insert(id);
  }
  EXPECT_EQ(seen.size(), 10u);
}

TEST(TreeWalks, TheLongestUnusedWalkGivesWay) {
  Forest f(1, 10);
  TreeWalks walks(f.index);
  const uint64_t first = walks.Open({.group_end = 1});
  const uint64_t second = walks.Open({.group_end = 1});
  uint32_t budget = 1;
  bool is_done = false;
  walks.Next(first, &budget, &is_done);
  for (uint32_t i = 2; i < TreeWalks::kWalksMax + 1; ++i) walks.Open({.group_end = 1});
  EXPECT_TRUE(walks.IsOpen(first));
  EXPECT_FALSE(walks.IsOpen(second));
  EXPECT_FALSE(walks.IsOpen(0));
}

}  // namespace
}  // namespace terrace

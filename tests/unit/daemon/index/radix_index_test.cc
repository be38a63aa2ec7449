#include "daemon/index/radix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

namespace terrace {
namespace {

BlockKey Key(uint64_t low) { return {.low = low, .high = 5}; }

TEST(RadixIndex, FindsWhatWasInsertedInItsGroupOnly) {
  RadixIndex index({.blocks_max = 8});
  const BlockId id = index.Insert(2, Key(1), 0);
  EXPECT_EQ(index.Find(2, Key(1)), id);
  EXPECT_EQ(index.Find(1, Key(1)), kBlockNone);
  EXPECT_EQ(index.Find(2, Key(2)), kBlockNone);
}

// A chain of `count` blocks behind `parent`, keys counting from `first_key`.
BlockId InsertChain(RadixIndex* index, uint64_t first_key, uint32_t count,
                    BlockId parent = kBlockNone) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t position = parent == kBlockNone ? 0 : index->node(parent).position + 1;
    parent = index->Insert(0, Key(first_key + i), position, parent);
  }
  return parent;
}

std::vector<BlockKey> Keys(uint64_t first_key, uint32_t count) {
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < count; ++i) keys.push_back(Key(first_key + i));
  return keys;
}

TEST(RadixIndex, APathIsOneRangeARunWhicheverWayItIsProven) {
  RadixIndex index({.blocks_max = 1000});
  const BlockId trunk = InsertChain(&index, 100, 100);
  InsertChain(&index, 500, 60, trunk - 40);
  EXPECT_EQ(index.runs().run_count(), 3u);
  std::vector<BlockKey> keys = Keys(100, 60);
  for (const BlockKey& key : Keys(500, 60)) keys.push_back(key);
  for (const auto proof : {RadixIndex::Proof::kEveryKey, RadixIndex::Proof::kChain}) {
    std::vector<BlockRange> path;
    EXPECT_EQ(index.Match(0, keys, proof, &path), 120u);
    EXPECT_EQ(path, (std::vector<BlockRange>{{0, 60}, {100, 60}}));
    EXPECT_EQ(index.Match(0, std::span(keys).first(70), proof, &path), 70u);
    EXPECT_EQ(path, (std::vector<BlockRange>{{0, 60}, {100, 10}}));
    EXPECT_EQ(index.Match(0, Keys(100, 150), proof, &path), 100u);
    EXPECT_EQ(path, (std::vector<BlockRange>{{0, 60}, {60, 40}}));
    EXPECT_EQ(index.Match(0, Keys(101, 20), proof, &path), 20u);
    EXPECT_EQ(index.Match(1, keys, proof, &path), 0u);
    EXPECT_EQ(index.Match(0, Keys(9000, 20), proof, &path), 0u);
    EXPECT_TRUE(path.empty());
  }
}

// A table that hashed keys alone would look at all of them for each.
TEST(KeyTable, GroupsOfTheSameKeyHaveHashesOfTheirOwn) {
  const KeyTable table({.blocks_max = 8, .hash_seed = 77});
  std::set<uint32_t> hashes;
  for (uint32_t group = 0; group < 256; ++group) hashes.insert(table.HashOf(group, Key(1)));
  EXPECT_GE(hashes.size(), 255u);
}

TEST(RadixIndex, FindsAKeyInAllGroupsThatHaveIt) {
  RadixIndex index({.blocks_max = 300});
  for (uint32_t group = 0; group < 256; group += 2) index.Insert(group, Key(1), 0);
  std::vector<BlockId> ids;
  index.FindAll(Key(1), &ids);
  EXPECT_EQ(ids.size(), 128u);
}

// Nobody tells each of them: they share what is left of the run they followed.
TEST(RadixIndex, ChildrenOfAnErasedBlockBecomeRootsTogether) {
  constexpr uint32_t kChildren = 1000;
  RadixIndex index({.blocks_max = 4096});
  const BlockId trunk = InsertChain(&index, 1, 3);
  std::vector<BlockId> children;
  for (uint32_t i = 0; i < kChildren; ++i) {
    children.push_back(index.Insert(0, Key(100 + i), 3, trunk));
  }
  const BlockId other = index.Insert(0, Key(9000), 0);
  index.Erase(trunk);
  // The trunk's head, its erased block, the children and what they share, and the other root.
  EXPECT_EQ(index.runs().run_count(), 1 + 1 + kChildren + 1 + 1);
  index.CheckInvariants();
  index.Recycle(trunk);
  std::set<BlockId> roots;
  for (BlockId root = index.first_root(0); root != kBlockNone;
       root = index.node(root).next_sibling) {
    EXPECT_EQ(index.node(root).parent, kBlockNone);
    EXPECT_TRUE(roots.insert(root).second);
  }
  EXPECT_EQ(roots.size(), kChildren + 2);
  // An orphan has another parent, children of its own, and an end, like any root.
  const BlockId above = index.Insert(0, Key(3), 2, trunk - 1);
  EXPECT_TRUE(index.Link(children[500], above));
  EXPECT_EQ(index.node(children[500]).parent, above);
  index.Insert(0, Key(5000), 4, children[0]);
  for (const BlockId child : children) {
    index.Erase(child);
    index.Recycle(child);
  }
  index.Erase(other);
  index.Recycle(other);
  index.CheckInvariants();
}

TEST(RadixIndex, WithEveryKeyComparedNoOtherBlockIsServedForAKeyThatIsNotThere) {
  RadixIndex index({.blocks_max = 1000});
  InsertChain(&index, 100, 100);
  std::vector<BlockRange> path;
  for (uint32_t wrong = 0; wrong < 100; ++wrong) {
    std::vector<BlockKey> keys = Keys(100, 100);
    keys[wrong] = Key(7);
    EXPECT_EQ(index.Match(0, keys, RadixIndex::Proof::kEveryKey, &path), wrong);
    keys[wrong] = {.low = 100 + wrong, .high = 6};  // equal in one half only
    EXPECT_EQ(index.Match(0, keys, RadixIndex::Proof::kEveryKey, &path), wrong);
  }
}

TEST(RadixIndex, FlatKeysAreNeverTakenForAChain) {
  RadixIndex index({.blocks_max = 1000});
  for (uint32_t i = 0; i < 50; ++i) index.Insert(0, Key(i), 0);
  EXPECT_EQ(index.runs().run_count(), 50u);
  std::vector<BlockKey> keys = Keys(0, 50);
  keys[20] = Key(999);
  std::vector<BlockRange> path;
  for (const auto proof : {RadixIndex::Proof::kEveryKey, RadixIndex::Proof::kChain}) {
    EXPECT_EQ(index.Match(0, keys, proof, &path), 20u);
  }
}

TEST(RadixIndex, AHoleEndsAPathAndClosesWhenItsBlockComesAgain) {
  RadixIndex index({.blocks_max = 1000});
  InsertChain(&index, 100, 100);
  index.Erase(40);
  std::vector<BlockRange> path;
  for (const auto proof : {RadixIndex::Proof::kEveryKey, RadixIndex::Proof::kChain}) {
    EXPECT_EQ(index.Match(0, Keys(100, 100), proof, &path), 40u);
    EXPECT_EQ(index.Match(0, Keys(141, 59), proof, &path), 59u);
  }
  EXPECT_EQ(index.node(41).parent, kBlockNone);
  EXPECT_EQ(index.node(39).child_count, 0u);
  index.CheckInvariants();
  index.Recycle(40);
  EXPECT_EQ(index.Insert(0, Key(140), 40, 39), 40u);
  EXPECT_TRUE(index.Link(41, 40));
  EXPECT_EQ(index.runs().run_count(), 1u);
  EXPECT_EQ(index.Match(0, Keys(100, 100), RadixIndex::Proof::kChain, &path), 100u);
  index.CheckInvariants();
}

TEST(RadixIndex, ABranchThatLeavesLeavesTheRunWhole) {
  RadixIndex index({.blocks_max = 1000});
  const BlockId trunk = InsertChain(&index, 100, 100);
  const BlockId branch = InsertChain(&index, 500, 1, trunk - 40);
  EXPECT_EQ(index.runs().run_count(), 3u);
  index.Erase(branch);
  index.Recycle(branch);
  EXPECT_EQ(index.runs().run_count(), 1u);
  index.CheckInvariants();
}

TEST(RadixIndex, APinOfAPartCutsTheRunUntilItIsTakenBack) {
  RadixIndex index({.blocks_max = 1000});
  InsertChain(&index, 100, 100);
  index.Pin({0, 60});
  EXPECT_EQ(index.runs().run_count(), 2u);
  EXPECT_EQ(index.pin_count(59), 1u);
  EXPECT_EQ(index.pin_count(60), 0u);
  index.Pin({30, 70});
  EXPECT_EQ(index.pin_count(30), 2u);
  EXPECT_EQ(index.runs().pinned_count(), 100u);
  std::vector<BlockRange> path;
  EXPECT_EQ(index.Match(0, Keys(100, 100), RadixIndex::Proof::kChain, &path), 100u);
  index.Erase(45);  // its holders still have it
  EXPECT_EQ(index.pin_count(45), 2u);
  index.Unpin({0, 60});
  index.Unpin({30, 70});
  EXPECT_EQ(index.runs().pinned_count(), 0u);
  EXPECT_EQ(index.runs().run_count(),
            3u);  // what is before and behind the hole, and what is erased
  index.CheckInvariants();
}

TEST(RadixIndex, AUseOfAPathIsNoUseOfWhatComesBehindIt) {
  RadixIndex index({.blocks_max = 1000});
  InsertChain(&index, 100, 100);
  index.Touch({0, 100}, 10);
  index.Touch({0, 60}, 10 + 2 * RadixIndex::kTouchSlackUs);
  EXPECT_EQ(index.touched_us(59), 10 + 2 * RadixIndex::kTouchSlackUs);
  EXPECT_EQ(index.touched_us(60), 10u);
  EXPECT_EQ(index.runs().run_count(), 2u);
  index.Touch({0, 100}, 10 + 3 * RadixIndex::kTouchSlackUs);
  index.Pin({0, 100});  // as whoever uses a path does
  EXPECT_EQ(index.runs().run_count(), 1u);
  index.CheckInvariants();
}

TEST(RadixIndex, LongChainsAreCutIntoRunsOfBoundedLength) {
  constexpr uint32_t kBlocks = 3 * RadixIndex::kRunBlocksMax + 5;
  RadixIndex index({.blocks_max = kBlocks});
  InsertChain(&index, 0, kBlocks);
  EXPECT_EQ(index.runs().run_count(), 4u);
  index.CheckInvariants();
  std::vector<BlockRange> path;
  const std::vector<BlockKey> keys = Keys(0, kBlocks);
  EXPECT_EQ(index.Match(0, keys, RadixIndex::Proof::kChain, &path), kBlocks);
  EXPECT_EQ(index.Match(0, keys, RadixIndex::Proof::kEveryKey, &path), kBlocks);
  for (BlockId id = kBlocks; id-- > 0;) {
    index.Erase(id);
    index.Recycle(id);
  }
  EXPECT_EQ(index.runs().run_count(), 0u);
}

TEST(RadixIndex, FreedIdsAreGivenAsChains) {
  RadixIndex index({.blocks_max = 400});
  const BlockId a = InsertChain(&index, 0, 200);
  InsertChain(&index, 1000, 200);
  for (uint32_t i = 0; i < 100; ++i) {
    index.Erase(a - i);
    index.Recycle(a - i);
  }
  InsertChain(&index, 5000, 100);
  std::vector<BlockRange> path;
  EXPECT_EQ(index.Match(0, Keys(5000, 100), RadixIndex::Proof::kEveryKey, &path), 100u);
  EXPECT_EQ(path, (std::vector<BlockRange>{{100, 100}}));
  index.CheckInvariants();
}

TEST(RadixIndex, AnErasedIdIsNotGivenAgainBeforeItIsRecycled) {
  RadixIndex index({.blocks_max = 1});
  const BlockId id = index.Insert(0, Key(1), 0);
  EXPECT_EQ(index.Insert(0, Key(2), 0), kBlockNone);
  index.Erase(id);
  EXPECT_EQ(index.Find(0, Key(1)), kBlockNone);
  EXPECT_EQ(index.Insert(0, Key(2), 0), kBlockNone);
  index.Recycle(id);
  EXPECT_EQ(index.Insert(0, Key(2), 0), id);
}

TEST(RadixIndex, ChildrenOfAnErasedBlockAreRootsAndCanBeLinkedAgain) {
  RadixIndex index({.blocks_max = 8});
  const BlockId a = index.Insert(0, Key(1), 0);
  const BlockId b = index.Insert(0, Key(2), 1);
  const BlockId c = index.Insert(0, Key(3), 1);
  EXPECT_TRUE(index.Link(b, a));
  EXPECT_TRUE(index.Link(c, a));
  EXPECT_EQ(index.node(a).child_count, 2u);
  index.Erase(a);
  index.CheckInvariants();
  EXPECT_EQ(index.node(b).parent, kBlockNone);
  const BlockId again = index.Insert(0, Key(1), 0);
  EXPECT_TRUE(index.Link(b, again));
  EXPECT_FALSE(index.Link(b, again));
  EXPECT_EQ(index.node(again).child_count, 1u);
  index.CheckInvariants();
}

TEST(RadixIndex, NoClaimOfClientsClosesACycle) {
  RadixIndex index({.blocks_max = 8});
  const BlockId a = index.Insert(0, Key(1), 0);
  const BlockId b = index.Insert(0, Key(2), 1);
  EXPECT_TRUE(index.Link(b, a));
  EXPECT_FALSE(index.Link(a, b));
  EXPECT_FALSE(index.Link(a, a));
  const BlockId other = index.Insert(1, Key(3), 1);
  EXPECT_FALSE(index.Link(other, a));
}

// Few buckets and many erasures: what probing leaves behind must stay reachable.
TEST(RadixIndex, AgreesWithAMapWhateverTheOrder) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    RadixIndex index({.blocks_max = 64, .hash_seed = seed});
    std::map<std::pair<uint32_t, uint64_t>, BlockId> model;
    for (int step = 0; step < 4000; ++step) {
      const uint32_t group = random() % 3;
      const uint64_t key = random() % 60;
      const auto found = model.find({group, key});
      EXPECT_EQ(index.Find(group, Key(key)), found == model.end() ? kBlockNone : found->second);
      if (found != model.end()) {
        index.Erase(found->second);
        index.Recycle(found->second);
        model.erase(found);
      } else if (const BlockId id = index.Insert(group, Key(key), key % 4); id != kBlockNone) {
        model[{group, key}] = id;
        const auto parent = model.find({group, random() % 60});
        if (parent != model.end() && parent->second != id) index.Link(id, parent->second);
      } else {
        EXPECT_EQ(model.size(), 64u);
      }
      if (step % 100 == 0) index.CheckInvariants();
    }
    EXPECT_EQ(index.runs().live_count(), model.size());
    for (const auto& [where, id] : model) EXPECT_EQ(index.Find(where.first, Key(where.second)), id);
  }
}

}  // namespace
}  // namespace terrace

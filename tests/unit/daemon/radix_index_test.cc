#include "daemon/radix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

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

TEST(RadixIndex, FindNextFindsWhatFindDoesWhateverCameBefore) {
  RadixIndex index({.blocks_max = 64});
  std::vector<BlockId> ids = {kBlockNone};
  for (uint32_t i = 0; i < 32; ++i) ids.push_back(index.Insert(i % 2, Key(i / 2), 0));
  for (uint32_t i = 1; i < ids.size(); i += 5) index.Erase(ids[i]);
  for (const BlockId before : ids) {
    for (uint32_t group = 0; group < 3; ++group) {
      for (uint64_t key = 0; key < 17; ++key) {
        EXPECT_EQ(index.FindNext(group, Key(key), before), index.Find(group, Key(key)));
      }
    }
  }
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
    EXPECT_EQ(index.live_count(), model.size());
    for (const auto& [where, id] : model) EXPECT_EQ(index.Find(where.first, Key(where.second)), id);
  }
}

}  // namespace
}  // namespace terrace

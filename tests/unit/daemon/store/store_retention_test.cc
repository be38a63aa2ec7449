// How long what a request asked for holds: priorities that end, and times to live that hits renew.
// The cases of eviction are those of TensorRT-LLM's own tests (kvCacheManagerTest.cpp and
// evictionPolicyTest.cpp: timed eviction, timed eviction of decoded blocks, block priority).
#include <gmock/gmock.h>

#include "store_fixture.h"
#include "terrace/protocol_retention.h"

namespace terrace {
namespace {

using protocol::Hints;
using World = StoreWorld;

constexpr uint64_t kSecondUs = kUsPerSecond;

Hints PriorityFor(uint8_t priority, uint32_t seconds) {
  return {.ttl_s = seconds, .priority = priority, .flags = protocol::kHintTtlOfPriority};
}

class StoreRetention : public testing::Test {
 protected:
  void Put(uint64_t chain, uint32_t block_count, const Hints& hints = {}) {
    ASSERT_EQ(w.Put(s, group, World::Keys(block_count, chain), hints), block_count);
  }
  uint32_t Left(uint64_t chain, uint32_t block_count = 4) {
    return w.MatchCount(s, group, World::Keys(block_count, chain));
  }
  uint32_t PriorityOf(uint64_t chain, uint32_t block = 0) {
    const std::vector<BlockKey> keys = World::Keys(block + 1, chain);
    std::vector<protocol::QueriedBlock> blocks;
    EXPECT_TRUE(w.store->operators().Query(w.Query(s, group, keys), &blocks).ok());
    return blocks[block].priority;
  }
  void Hit(uint64_t chain, uint32_t block_count = 4) {
    const AcquireResult found = w.Acquire(s, group, World::Keys(block_count, chain));
    if (!found.reply.token.is_zero()) w.Release(s, found.reply.token);
  }

  void Touch(uint64_t chain, const Hints& hints) {
    const std::vector<BlockKey> keys = World::Keys(4, chain);
    KeysQuery touch = w.Query(s, group, keys);
    touch.hints = hints;
    ASSERT_TRUE(w.store->leases().Touch(touch).ok());
  }

  World w{{.eviction_policy = "lru"}};
  SessionId s = w.Open();
  uint32_t group = w.OpenSimple(s);
};

TEST_F(StoreRetention, APriorityThatEndsIsTheDefaultAgainAndTheBlockStays) {
  Put(1, 4, PriorityFor(80, 1));
  w.Advance(kSecondUs * 9 / 10);
  EXPECT_EQ(PriorityOf(1), 80u);
  w.Advance(kSecondUs / 5);
  EXPECT_EQ(PriorityOf(1), protocol::kPriorityDefault);
  EXPECT_EQ(Left(1), 4u);
  w.Advance(kSecondUs * 100);
  EXPECT_EQ(Left(1), 4u);
}

TEST_F(StoreRetention, TimedEviction) {
  Put(1, 4, PriorityFor(80, 1));
  Put(2, 4, {.priority = 50});
  w.Advance(2 * kSecondUs);
  Put(3, 4);
  EXPECT_EQ(Left(1), 0u);
  EXPECT_EQ(Left(2), 4u);
}

TEST_F(StoreRetention, UntilItsEndATimedPriorityHolds) {
  Put(1, 4, PriorityFor(80, 10));
  Put(2, 4, {.priority = 50});
  w.Advance(2 * kSecondUs);
  Put(3, 4, {.priority = 60});
  EXPECT_EQ(Left(1), 4u);
  EXPECT_EQ(Left(2), 0u);
}

TEST_F(StoreRetention, WhoseTimeIsOverFirstGoesFirst) {
  Put(1, 4, PriorityFor(80, 3));
  Put(2, 4, PriorityFor(50, 8));
  w.Advance(5 * kSecondUs);
  Put(3, 2, {.priority = 90});
  EXPECT_EQ(Left(1), 2u);
  EXPECT_EQ(Left(2), 4u);
  w.Advance(4 * kSecondUs);
  EXPECT_EQ(PriorityOf(2), protocol::kPriorityDefault);
}

TEST_F(StoreRetention, TimedEvictionOfDecodedBlocks) {
  Put(1, 4, {.priority = 50});
  Put(2, 2);
  const std::vector<BlockKey> all = World::Keys(4, 2);
  KeysQuery decoded = w.Query(s, group, all);
  decoded.hints = PriorityFor(100, 1);
  w.CommitAll(s, group, all, w.Reserve(decoded), World::Checksums::kClient,
              protocol::kCommitRelease);
  EXPECT_EQ(PriorityOf(2, 3), 100u);
  w.Advance(2 * kSecondUs);
  Put(3, 2, {.priority = 60});
  EXPECT_EQ(Left(1), 4u);
  EXPECT_EQ(Left(2), 2u);
}

TEST_F(StoreRetention, BlockPriority) {
  Put(1, 1, {.priority = 90});
  const std::vector<BlockKey> both = World::Keys(2, 1);
  KeysQuery tail = w.Query(s, group, both);
  tail.hints.priority = 10;
  w.CommitAll(s, group, both, w.Reserve(tail), World::Checksums::kClient, protocol::kCommitRelease);
  Put(2, 2);
  Put(3, 4, {.priority = 20});  // room for all eight
  Put(4, 4, {.priority = 60});
  EXPECT_EQ(Left(1, 2), 1u);  // its tail was of the lowest priority
  EXPECT_EQ(Left(2, 2), 2u);
  EXPECT_EQ(Left(3), 1u);
}

TEST_F(StoreRetention, ALaterRequestSaysAnew) {
  Put(1, 4, PriorityFor(80, 1));
  Touch(1, {.priority = 70});
  w.Advance(2 * kSecondUs);
  EXPECT_EQ(PriorityOf(1), 70u);
}

TEST_F(StoreRetention, HitsRenewATimeToLiveThatCountsFromThem) {
  Put(1, 4, {.ttl_s = 10, .flags = protocol::kHintTtlFromHits});
  Put(2, 4, {.ttl_s = 10});
  for (int i = 0; i < 6; ++i) {
    w.Advance(8 * kSecondUs);
    Hit(1);
    Hit(2);
  }
  EXPECT_EQ(Left(1), 4u);
  EXPECT_EQ(Left(2), 0u);
  w.Advance(9 * kSecondUs);
  EXPECT_EQ(Left(1), 4u);
  w.Advance(3 * kSecondUs);
  EXPECT_EQ(Left(1), 0u);
}

TEST_F(StoreRetention, APriorityAndABlockEndEachInItsTime) {
  Put(1, 4, PriorityFor(80, 2));
  Touch(1, {.ttl_s = 5});
  w.Advance(3 * kSecondUs);
  EXPECT_EQ(PriorityOf(1), protocol::kPriorityDefault);
  EXPECT_EQ(Left(1), 4u);
  w.Advance(3 * kSecondUs);
  EXPECT_EQ(Left(1), 0u);
}

TEST(StoreRetentionBelow, WhatExpiresOnItsWayBelowStaysForItsReaders) {
  World w{{.lower_tier_count = 1, .eviction_policy = "lru"}};
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const std::vector<BlockKey> keys = World::Keys(1, 1);
  w.faults[0]->SwitchOff();
  EXPECT_EQ(w.Put(s, group, keys, {.ttl_s = 1}), 1u);
  for (uint64_t chain = 2; chain <= kSlotsPerSegment; ++chain) {
    EXPECT_EQ(w.Put(s, group, World::Keys(1, chain)), 1u);
    w.Run();
  }
  w.faults[0]->SwitchOn();
  w.holds_transfers = true;
  w.Put(s, group, World::Keys(1, 100));
  const AcquireResult got = w.Acquire(s, group, keys);
  ASSERT_EQ(got.reply.block_count, 1u);
  w.Advance(2 * kSecondUs);
  EXPECT_EQ(w.MatchCount(s, group, keys), 0u);
  w.holds_transfers = false;
  w.Advance(kSecondUs);
  EXPECT_TRUE(w.Holds(s, group, keys[0], 0, got.slots[0]));
  EXPECT_EQ(w.Release(s, got.reply.token), StatusCode::kOk);
  w.Check();
}

}  // namespace
}  // namespace terrace

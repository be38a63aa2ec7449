// What holds whatever policy decides who goes first.
#include <gmock/gmock.h>

#include "daemon/policy/recent_total.h"
#include "store_fixture.h"

namespace terrace {
namespace {

class EveryPolicy : public testing::TestWithParam<const char*> {
 protected:
  StoreWorld MakeWorld(uint32_t lower_tier_count = 0) {
    return StoreWorld(
        {.lower_tier_count = lower_tier_count, .eviction_policy = std::string(GetParam())});
  }
};

TEST_P(EveryPolicy, LowerPriorityLeavesFirstHoweverOftenItWasUsed) {
  StoreWorld world(MakeWorld());
  const SessionId session = world.Open();
  const uint32_t group = world.OpenSimple(session);
  const auto put = [&](uint64_t chain, uint8_t priority) {
    const std::vector<BlockKey> keys = StoreWorld::Keys(4, chain);
    KeysQuery query = world.Query(session, group, keys);
    query.hints.priority = priority;
    const ReserveResult reserved = world.Reserve(query);
    world.CommitAll(session, group, keys, reserved, StoreWorld::Checksums::kClient,
                    protocol::kCommitRelease);
    world.Advance(1'000'000);
  };
  put(1, 90);
  put(2, 10);
  for (int i = 0; i < 5; ++i) {
    const AcquireResult used = world.Acquire(session, group, StoreWorld::Keys(4, 2));
    world.Release(session, used.reply.token);
    world.Advance(1'000'000);
  }
  put(3, 50);
  EXPECT_EQ(world.MatchCount(session, group, StoreWorld::Keys(4, 1)), 4u);
  EXPECT_EQ(world.MatchCount(session, group, StoreWorld::Keys(4, 2)), 0u);
  EXPECT_EQ(world.MatchCount(session, group, StoreWorld::Keys(4, 3)), 4u);
}

TEST_P(EveryPolicy, PinnedAndLeasedBlocksStayAndPrefixesLoseTheirTails) {
  StoreWorld world(MakeWorld());
  const SessionId session = world.Open();
  const uint32_t group = world.OpenSimple(session);
  ASSERT_EQ(world.Put(session, group, StoreWorld::Keys(2, 1)), 2u);
  ASSERT_EQ(world.Put(session, group, StoreWorld::Keys(2, 2)), 2u);
  ASSERT_EQ(world.Put(session, group, StoreWorld::Keys(4, 3)), 4u);
  const std::vector<BlockKey> pinned = StoreWorld::Keys(2, 1);
  protocol::PinReply pin;
  ASSERT_TRUE(world.store->operators().Pin(world.Query(session, group, pinned), &pin).ok());
  const AcquireResult leased = world.Acquire(session, group, StoreWorld::Keys(2, 2));
  ASSERT_EQ(leased.reply.block_count, 2u);
  for (uint64_t chain = 4; chain < 12; ++chain) {
    world.Advance(1'000'000);
    EXPECT_EQ(world.Put(session, group, StoreWorld::Keys(3, chain)), 3u);
    EXPECT_EQ(world.MatchCount(session, group, StoreWorld::Keys(3, chain)), 3u);
  }
  EXPECT_EQ(world.MatchCount(session, group, StoreWorld::Keys(2, 1)), 2u);
  EXPECT_EQ(world.MatchCount(session, group, StoreWorld::Keys(2, 2)), 2u);
  world.Release(session, leased.reply.token);
}

TEST_P(EveryPolicy, BothTiersFillAndEmptyOnTheWay) {
  StoreWorld world({.lower_tier_count = 1,
                    .lower_capacity_bytes = 16 * kSlotBytes,
                    .eviction_policy = std::string(GetParam())});
  const SessionId session = world.Open();
  const uint32_t group = world.OpenSimple(session);
  for (uint64_t chain = 1; chain < 40; ++chain) {
    EXPECT_EQ(world.Put(session, group, StoreWorld::Keys(1 + chain % 4, chain)), 1 + chain % 4);
    world.Advance(200'000);
    const uint64_t again = 1 + chain / 2;
    const AcquireResult found = world.Acquire(session, group, StoreWorld::Keys(4, again));
    world.Advance(200'000);
    if (!found.reply.token.is_zero()) world.Release(session, found.reply.token);
  }
  const DomainStats stats = world.Stats();
  EXPECT_EQ(stats.eviction_policy, GetParam());
  EXPECT_GT(stats.blocks_evicted, 0u);
  EXPECT_GT(stats.promotions, 0u);
  EXPECT_GT(stats.lower_tiers[0].written_bytes_of_day, 0u);
}

TEST_P(EveryPolicy, HintsOfACommitCountAsThoseOfTheReserve) {
  StoreWorld world(MakeWorld());
  const SessionId session = world.Open();
  const uint32_t group = world.OpenSimple(session);
  ASSERT_EQ(world.Put(session, group, StoreWorld::Keys(4, 1), {.priority = 90}), 4u);
  ASSERT_EQ(world.Put(session, group, StoreWorld::Keys(2, 2), {.ttl_s = 1}), 2u);
  for (uint64_t chain = 3; chain < 12; ++chain) {
    world.Put(session, group, StoreWorld::Keys(4, chain));
    world.Advance(500'000);
  }
  EXPECT_EQ(world.MatchCount(session, group, StoreWorld::Keys(4, 1)), 4u);
  EXPECT_EQ(world.MatchCount(session, group, StoreWorld::Keys(2, 2)), 0u);
}

// Spread over all bits, as real keys are: policies tell them apart by a few.
std::vector<BlockKey> SpreadKeys(uint64_t chain) {
  std::vector<BlockKey> keys = StoreWorld::Keys(4, chain);
  for (uint64_t i = 0; i < keys.size(); ++i) keys[i].low = (chain * 4 + i) * 0x9E3779B97F4A7C15u;
  return keys;
}

// How many of four blocks are there after ten prompts that came once, if the engine said that it
// would ask for them in `expected_reuse_ms`.
uint32_t CountKept(uint32_t expected_reuse_ms, bool is_said_by_reserve) {
  StoreWorld world({.eviction_policy = "hazard"});
  const SessionId session = world.Open();
  const uint32_t group = world.OpenSimple(session);
  const std::vector<BlockKey> keys = SpreadKeys(1);
  const protocol::Hints said{.expected_reuse_ms = expected_reuse_ms};
  KeysQuery query = world.Query(session, group, keys);
  if (is_said_by_reserve) query.hints = said;
  const ReserveResult reserved = world.Reserve(query);
  world.CommitAll(session, group, keys, reserved, StoreWorld::Checksums::kClient,
                  protocol::kCommitRelease, is_said_by_reserve ? protocol::Hints() : said);
  for (uint64_t chain = 2; chain < 12; ++chain) {
    world.Advance(200'000);
    world.Put(session, group, SpreadKeys(chain));
  }
  return world.MatchCount(session, group, keys);
}

TEST(StoreEviction, WhatAnEngineExpectsSoonWaitsForIt) {
  EXPECT_EQ(CountKept(0, true), 0u);
  EXPECT_EQ(CountKept(2000, true), 4u);
  EXPECT_EQ(CountKept(2000, false), 4u);
  EXPECT_EQ(CountKept(100, true), 0u) << "its time is over";
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy, testing::Values("arc", "hazard", "lru", "s3fifo"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(RecentTotal, ForgetsWhatCameADayAgo) {
  constexpr uint64_t kHourUs = 3600 * uint64_t{1'000'000};
  RecentTotal window(24 * kHourUs);
  window.Note(100, 5 * kHourUs);
  window.Note(130, 10 * kHourUs);
  window.Note(130, 28 * kHourUs);
  EXPECT_EQ(window.Sum(), 130u);
  window.Note(135, 29 * kHourUs + kHourUs / 3);
  EXPECT_EQ(window.Sum(), 35u);
  window.Note(136, 100 * kHourUs);
  EXPECT_EQ(window.Sum(), 1u);
}

}  // namespace
}  // namespace terrace

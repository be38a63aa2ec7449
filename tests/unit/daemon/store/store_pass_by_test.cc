// Newcomers that rank below all that is there pass by, where DRAM is all that there is.
#include <gmock/gmock.h>

#include "store_fixture.h"

namespace terrace {
namespace {

constexpr uint32_t kHot = 4, kScan = 6;
static_assert(kHot < kSlotsPerSegment && kScan < kSlotsPerSegment &&
              kHot + kScan > kSlotsPerSegment);

struct PassBy : testing::Test {
  explicit PassBy(uint32_t lower_tier_count = 0, const char* policy = "hazard")
      : world({.lower_tier_count = lower_tier_count, .eviction_policy = policy}),
        session(world.Open()),
        group(world.OpenSimple(session)) {}

  // One prompt is asked for all the time, among others that never come back.
  void Learn() {
    world.Put(session, group, hot);
    for (uint64_t round = 0; round < 300; ++round) {
      world.Advance(1'000'000);
      const AcquireResult used = world.Acquire(session, group, hot);
      if (!used.reply.token.is_zero()) world.Release(session, used.reply.token);
      if (used.reply.block_count < kHot) world.Put(session, group, hot);
      world.Advance(1'000'000);
      Scan({}, true);
    }
    world.Advance(1'000'000);
    const AcquireResult used = world.Acquire(session, group, hot);
    if (!used.reply.token.is_zero()) world.Release(session, used.reply.token);
    world.Advance(1'000'000);
  }

  // A prompt that nobody has asked for before.
  ReserveResult Scan(const protocol::Hints& hints, bool is_committed = false, BlockKey parent = {},
                     uint32_t flags = 0) {
    const std::vector<BlockKey> keys = StoreWorld::Keys(kScan, next_chain++);
    KeysQuery query = world.Query(session, group, keys, flags);
    query.hints = hints;
    query.parent = parent;
    ReserveResult reserved = world.Reserve(query);
    if (is_committed && !reserved.reply.token.is_zero()) {
      world.CommitAll(session, group, keys, reserved, StoreWorld::Checksums::kClient,
                      protocol::kCommitRelease);
    }
    return reserved;
  }
  static size_t CountGiven(const ReserveResult& reserved) {
    return static_cast<size_t>(std::ranges::count(
        reserved.keys, static_cast<uint8_t>(StatusCode::kOk), &protocol::ReservedKey::status));
  }
  static size_t CountPassed(const ReserveResult& reserved) {
    return static_cast<size_t>(
        std::ranges::count(reserved.keys, 1, &protocol::ReservedKey::is_passed_by));
  }

  StoreWorld world;
  const SessionId session;
  const uint32_t group;
  const std::vector<BlockKey> hot = StoreWorld::Keys(kHot, 1);
  uint64_t next_chain = 1000;
};

TEST_F(PassBy, WhatIsLikelierToBeAskedForStays) {
  Learn();
  const DomainStats before = world.Stats();
  const ReserveResult reserved = Scan({});
  EXPECT_LE(CountGiven(reserved), kSlotsPerSegment - kHot);
  EXPECT_EQ(CountPassed(reserved), kScan - CountGiven(reserved));
  for (const protocol::ReservedKey& key : reserved.keys) {
    EXPECT_EQ(key.status == static_cast<uint8_t>(StatusCode::kNoSpace), key.is_passed_by == 1);
  }
  EXPECT_EQ(world.MatchCount(session, group, hot), kHot);
  const DomainStats after = world.Stats();
  EXPECT_EQ(after.reserve_passed_by - before.reserve_passed_by, CountPassed(reserved));
  EXPECT_EQ(after.reserve_no_space, before.reserve_no_space);
}

TEST_F(PassBy, WhatIsAwaitedComes) {
  Learn();
  const ReserveResult reserved = Scan({.expected_reuse_ms = 1000});
  EXPECT_EQ(CountGiven(reserved), kScan);
  EXPECT_EQ(CountPassed(reserved), 0u);
}

TEST_F(PassBy, WhatAnEngineWantsKeptComes) {
  Learn();
  EXPECT_EQ(CountGiven(Scan({.flags = protocol::kHintPin})), kScan);
}

TEST_F(PassBy, WhatIsToGoFirstNeverEvictsWhatIsToStayLonger) {
  Learn();
  const ReserveResult reserved = Scan({.priority = protocol::kPriorityDefault - 1});
  EXPECT_EQ(CountPassed(reserved), kScan - CountGiven(reserved));
  EXPECT_LE(CountGiven(reserved), kSlotsPerSegment - kHot);
  EXPECT_EQ(world.MatchCount(session, group, hot), kHot);
  EXPECT_EQ(CountGiven(Scan({.priority = protocol::kPriorityDefault + 1})), kScan);
}

TEST_F(PassBy, WhatHangsOnABlockThatPassedByDoesSoForAWhile) {
  Learn();
  const ReserveResult reserved = Scan({});
  ASSERT_EQ(reserved.keys.back().is_passed_by, 1u);
  const BlockKey last = StoreWorld::Keys(kScan, next_chain - 1).back();
  world.Reset(session, group);  // there is room
  EXPECT_EQ(CountPassed(Scan({}, false, last)), kScan);
  world.Advance(60'000'000);
  EXPECT_EQ(CountGiven(Scan({}, true, last)), kScan);
}

TEST_F(PassBy, WhatHangsOnAnUnknownBlockComesAndFlatKeysHangOnNone) {
  EXPECT_EQ(CountGiven(Scan({}, true, BlockKey{77, 77})), kScan);
  Learn();
  EXPECT_EQ(CountPassed(Scan({}, false, {}, protocol::kKeysFlat)), 0u);
}

struct PassByAboveATier : PassBy {
  PassByAboveATier() : PassBy(1) {}
};

TEST_F(PassByAboveATier, AllCome) {
  Learn();
  EXPECT_EQ(CountPassed(Scan({})), 0u);
  EXPECT_EQ(world.Stats().reserve_passed_by, 0u);
}

struct PassByOfLru : PassBy {
  PassByOfLru() : PassBy(0, "lru") {}
};

TEST_F(PassByOfLru, AllCome) {
  Learn();
  EXPECT_EQ(CountGiven(Scan({})), kScan);
  EXPECT_EQ(world.Stats().reserve_passed_by, 0u);
}

}  // namespace
}  // namespace terrace

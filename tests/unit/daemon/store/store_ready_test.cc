// Holding a long run the short way: what is ready is held run by run, the rest follows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store_fixture.h"

namespace terrace {
namespace {

using World = StoreWorld;

// A scheduler and the worker that stores and reads for it.
struct Engine {
  explicit Engine(World& w)
      : scheduler(w.Open()), worker(w.Open()), group(w.OpenSimple(scheduler)) {
    w.OpenSimple(worker);
  }

  SessionId scheduler, worker;
  uint32_t group;
};

uint32_t HitCount(World& w, SessionId session, uint32_t group, const BlockKey& key) {
  ListResult listed;
  const protocol::ListRequest request{.group_handle = group, .entry_count_max = 1, .root = key};
  EXPECT_TRUE(w.store->operators().List(session, request, &listed).Step().ok());
  return listed.entries.empty() ? 0 : listed.entries[0].hit_count;
}

TEST(AcquireReady, HoldsWithoutSlotsWhatAJoinerReads) {
  World w;
  const Engine e(w);
  const auto keys = World::Keys(6);
  w.Put(e.worker, e.group, keys);
  const AcquireResult held = w.AcquireUnread(e.scheduler, e.group, keys);
  EXPECT_EQ(held.reply.block_count, 6u);
  EXPECT_EQ(held.spans.size(), 1u);
  EXPECT_TRUE(held.slots.empty());
  const AcquireResult joined = w.JoinRead(e.worker, e.group, held.reply.token);
  ASSERT_EQ(joined.slots.size(), 6u);
  for (uint32_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(w.Holds(e.worker, e.group, keys[i], 0, joined.slots[i]));
  }
}

TEST(AcquireReady, WhatIsHeldIsNotEvicted) {
  World w;
  const Engine e(w);
  const auto keys = World::Keys(6);
  w.Put(e.worker, e.group, keys);
  const AcquireResult held =
      w.AcquireUnread(e.scheduler, e.group, {keys.begin(), keys.begin() + 4});
  const KeysQuery query = w.Query(e.worker, e.group, keys);
  const protocol::EvictReply evicted = w.Evict(query);
  EXPECT_EQ(evicted.block_count, 2u);
  EXPECT_EQ(evicted.skipped_count, 4u);
  EXPECT_EQ(w.Release(e.scheduler, held.reply.token), StatusCode::kOk);
  w.Run();
  EXPECT_EQ(w.Stats().lease_count, 0u);
  EXPECT_EQ(w.Evict(query).block_count, 4u);
}

TEST(AcquireReady, WhatIsNotThereEndsIt) {
  World w;
  const Engine e(w);
  w.Put(e.worker, e.group, World::Keys(3));
  EXPECT_EQ(w.AcquireUnread(e.scheduler, e.group, World::Keys(5)).reply.block_count, 3u);
  EXPECT_EQ(w.AcquireUnread(e.scheduler, e.group, World::Keys(5, 7)).reply.block_count, 0u);
}

TEST(AcquireReady, WhatExpiresIsJudgedBlockByBlock) {
  World w;
  const Engine e(w);
  const auto keys = World::Keys(4);
  w.Put(e.worker, e.group, keys);
  const std::vector<BlockKey> third = {keys[2]};
  KeysQuery query = w.Query(e.worker, e.group, third);
  query.hints.ttl_s = 5;
  ASSERT_TRUE(w.store->leases().Touch(query).ok());
  query = w.Query(e.scheduler, e.group, keys);
  query.member_mask = 0;
  AcquireResult held;
  EXPECT_EQ(*w.store->prefixes().Acquire(&held).StepReady(query), Progress::kGoesOn);
  EXPECT_EQ(held.walk.walked_count, 2u);
  EXPECT_EQ(w.AcquireUnread(e.scheduler, e.group, keys).reply.block_count, 4u);
  w.clock.AdvanceTo(w.clock.NowUs() + 5'000'000);  // due, but nobody has looked yet
  EXPECT_EQ(w.AcquireUnread(e.scheduler, e.group, keys).reply.block_count, 2u);
}

TEST(AcquireReady, UsesAreNotedOnceTheAnswerIsOut) {
  World w;
  const Engine e(w);
  const auto keys = World::Keys(4);
  w.Put(e.worker, e.group, keys);
  const AcquireResult held = w.AcquireUnread(e.scheduler, e.group, keys);
  // Released before it is noted: nothing is lost.
  EXPECT_EQ(w.Release(e.scheduler, held.reply.token), StatusCode::kOk);
  EXPECT_EQ(HitCount(w, e.worker, e.group, keys[3]), 0u);
  w.Run();
  EXPECT_EQ(HitCount(w, e.worker, e.group, keys[3]), 1u);
  EXPECT_EQ(w.Stats().lease_count, 0u);
}

TEST(AcquireReady, WhatIsStoredComesBehindWhatWasFoundBefore) {
  World w;
  const Engine e(w);
  const auto keys = World::Keys(4), more = World::Keys(2, 7);
  w.Put(e.worker, e.group, keys);
  w.Run();
  const AcquireResult held = w.AcquireUnread(e.scheduler, e.group, keys);
  ASSERT_EQ(held.reply.block_count, 4u);
  ReserveResult reserved;
  ReserveOperation reserve = w.store->storing().Reserve(&reserved);
  const KeysQuery query = w.Query(e.worker, e.group, more);
  ASSERT_EQ(*reserve.Step(query), Progress::kStays);
  EXPECT_TRUE(reserved.keys.empty());
  // What is found later does not hold it up.
  const AcquireResult later = w.AcquireUnread(e.scheduler, e.group, keys);
  w.store->events().OnTimer();
  EXPECT_EQ(HitCount(w, e.worker, e.group, keys[3]), 2u);
  const AcquireResult last = w.AcquireUnread(e.scheduler, e.group, keys);
  ASSERT_EQ(*reserve.Step(query), Progress::kDone);
  EXPECT_EQ(HitCount(w, e.worker, e.group, keys[3]), 2u);
  EXPECT_EQ(reserved.keys.size(), 2u);
  for (const AcquireResult& result : {held, later, last}) {
    EXPECT_EQ(w.Release(e.scheduler, result.reply.token), StatusCode::kOk);
  }
  w.Run();
}

// Figures of other requests never keep a lease from ending.
TEST(AcquireReady, WhatIsReleasedIsFreeHoweverMuchIsAsked) {
  World w;
  const Engine e(w);
  const auto keys = World::Keys(4, 1), other = World::Keys(1, 2);
  w.Put(e.worker, e.group, keys);
  w.Put(e.worker, e.group, other);
  w.Run();
  const AcquireResult held = w.AcquireUnread(e.scheduler, e.group, keys);
  ASSERT_EQ(held.reply.block_count, 4u);
  EXPECT_EQ(w.Release(e.scheduler, held.reply.token), StatusCode::kOk);
  for (int turn = 0; turn < 10; ++turn) {
    for (int i = 0; i < 2; ++i) {
      const AcquireResult found = w.Acquire(e.worker, e.group, other);
      w.Release(e.worker, found.reply.token);
    }
    w.store->events().OnTimer();
  }
  EXPECT_EQ(w.Stats().lease_count, 0u);
  w.Run();
}

TEST(AcquireReady, BeyondWhatMayWaitHitsGoTheLongWay) {
  World w({.lease_blocks_per_session_max = 1 << 17});
  const Engine e(w);
  constexpr uint32_t kBlocks = kSlotsPerSegment;
  const auto keys = World::Keys(kBlocks);
  w.Put(e.worker, e.group, keys);
  const KeysQuery asked = w.Query(e.scheduler, e.group, keys);
  uint32_t short_count = 0;
  constexpr uint32_t kHitsMax = 1024;  // DeferredHits'
  for (uint32_t i = 0; i <= kHitsMax; ++i) {
    KeysQuery query = asked;
    query.request_id += i;
    query.member_mask = 0;
    AcquireResult result;
    AcquireOperation acquire = w.store->prefixes().Acquire(&result);
    ASSERT_TRUE(acquire.StepReady(query).ok());
    const bool is_short = result.walk.walked_count > 0;
    short_count += is_short ? 1 : 0;
    if (!is_short) {
      ASSERT_TRUE(acquire.Step(query).ok());
    }
    ASSERT_EQ(result.reply.block_count, kBlocks);
    ASSERT_EQ(w.Release(e.scheduler, result.reply.token), StatusCode::kOk);
  }
  EXPECT_EQ(short_count, kHitsMax);
  w.Run();
  EXPECT_EQ(w.Stats().lease_count, 0u);
}

}  // namespace
}  // namespace terrace

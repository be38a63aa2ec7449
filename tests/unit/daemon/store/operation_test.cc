// Operations that are dropped before they are done undo what they began.
#include "daemon/store/operation.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "unit/daemon/store/store_fixture.h"

namespace terrace {
namespace {

using World = StoreWorld;

// The first two of a request's keys; more are said to follow.
KeysQuery FirstOf(World& w, SessionId session, uint32_t group, const std::vector<BlockKey>& keys) {
  KeysQuery query = w.Query(session, group, keys);
  query.keys = query.keys.first(2);
  query.key_count_of_request = static_cast<uint32_t>(keys.size());
  return query;
}

TEST(Operation, AnAcquireThatIsDroppedLetsItsBlocksGo) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = World::Keys(4);
  w.Put(s, group, keys);
  AcquireResult result;
  {
    AcquireOperation acquire = w.store->prefixes().Acquire(&result);
    ASSERT_EQ(*acquire.Step(FirstOf(w, s, group, keys)), Progress::kGoesOn);
    EXPECT_EQ(w.Stats().pinned_count, 2u);
  }
  w.Run();
  EXPECT_EQ(w.Stats().lease_count, 0u);
  EXPECT_EQ(w.Stats().pinned_count, 0u);
}

TEST(Operation, AReserveThatIsDroppedGivesItsSlotsBack) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = World::Keys(4);
  ReserveResult result;
  {
    ReserveOperation reserve = w.store->storing().Reserve(&result);
    ASSERT_EQ(*reserve.Step(FirstOf(w, s, group, keys)), Progress::kGoesOn);
    EXPECT_EQ(w.Stats().reserved_count, 2u);
  }
  w.Run();
  EXPECT_EQ(w.Stats().reserved_count, 0u);
  EXPECT_EQ(w.Stats().slot_bytes_used, 0u);
  EXPECT_EQ(w.Stats().fenced_bytes, 0u) << "its client was never told of them";
}

TEST(Operation, APrefetchThatIsDroppedCanBeAskedForAgain) {
  World w({.lower_tier_count = 1});
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = World::Keys(4);
  w.Put(s, group, keys);
  const KeysQuery query = FirstOf(w, s, group, keys);
  PrefixMatch result;
  {
    PrefetchOperation prefetch = w.store->prefixes().Prefetch(&result);
    ASSERT_EQ(*prefetch.Step(query), Progress::kGoesOn);
  }
  w.Run();
  EXPECT_EQ(w.Stats().lease_count, 0u);
  PrefixMatch again;
  PrefetchOperation prefetch = w.store->prefixes().Prefetch(&again);
  EXPECT_TRUE(prefetch.Step(query).ok()) << "no request of that id is pending";
}

TEST(Operation, AFailedStepUndoesWhatCameBefore) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = World::Keys(4);
  w.Put(s, group, keys);
  AcquireResult result;
  AcquireOperation acquire = w.store->prefixes().Acquire(&result);
  KeysQuery query = FirstOf(w, s, group, keys);
  ASSERT_EQ(*acquire.Step(query), Progress::kGoesOn);
  query.group_index = 99;
  EXPECT_EQ(acquire.Step(query).code(), StatusCode::kInvalid);
  w.Run();
  EXPECT_EQ(w.Stats().lease_count, 0u);
}

TEST(Operation, OneThatWasMovedIsUndoneOnce) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = World::Keys(4);
  w.Put(s, group, keys);
  AcquireResult result;
  std::optional<AcquireOperation> first(w.store->prefixes().Acquire(&result));
  ASSERT_EQ(*first->Step(FirstOf(w, s, group, keys)), Progress::kGoesOn);
  std::optional<AcquireOperation> second(std::move(*first));
  first.reset();
  w.Run();
  EXPECT_EQ(w.Stats().pinned_count, 2u) << "it goes on where it was moved to";
  second.reset();
  w.Run();
  EXPECT_EQ(w.Stats().pinned_count, 0u);
}

TEST(Operation, OneOfASessionThatHungUpLeavesItsFencesToTheProofOfDeath) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  w.Reserve(s, group, World::Keys(1, 7));  // so that it has been told of a slot
  const auto keys = World::Keys(4);
  ReserveResult result;
  std::optional<ReserveOperation> reserve(w.store->storing().Reserve(&result));
  ASSERT_EQ(*reserve->Step(FirstOf(w, s, group, keys)), Progress::kGoesOn);
  EXPECT_TRUE(w.store->sessions().HangUp(s));
  reserve.reset();
  w.Run();
  EXPECT_EQ(w.Stats().fenced_bytes, 3 * kSlotBytes);
  w.store->sessions().ProofOfDeath(s);
  w.Run();
  EXPECT_EQ(w.Stats().fenced_bytes, 0u);
}

TEST(Operation, OneThatOutlivesItsStoreDoesNothing) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = World::Keys(4);
  w.Put(s, group, keys);
  AcquireResult result;
  std::optional<AcquireOperation> acquire(w.store->prefixes().Acquire(&result));
  std::optional<AcquireOperation> other(w.store->prefixes().Acquire(&result));
  ASSERT_EQ(*acquire->Step(FirstOf(w, s, group, keys)), Progress::kGoesOn);
  w.Kill();
  acquire.reset();
  other.reset();
  w.MakeStore();
  w.Run();
}

}  // namespace
}  // namespace terrace

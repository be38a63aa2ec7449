// Operations that are dropped before they are done undo what they began.
#include "daemon/store/operation.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "unit/daemon/store/store_fixture.h"

namespace terrace {
namespace {

using World = StoreWorld;

class Operation : public testing::Test {
 protected:
  // The first two of a request's keys; more are said to follow.
  KeysQuery FirstOf(const std::vector<BlockKey>& all) {
    KeysQuery query = w.Query(s, group, all);
    query.keys = query.keys.first(2);
    query.key_count_of_request = static_cast<uint32_t>(all.size());
    return query;
  }

  World w{{.lower_tier_count = 1}};
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const std::vector<BlockKey> keys = World::Keys(4);
};

TEST_F(Operation, AnAcquireThatIsDroppedLetsItsBlocksGo) {
  w.Put(s, group, keys);
  AcquireResult result;
  {
    AcquireOperation acquire = w.store->prefixes().Acquire(&result);
    ASSERT_EQ(*acquire.Step(FirstOf(keys)), Progress::kGoesOn);
    EXPECT_EQ(w.Stats().pinned_count, 2u);
  }
  w.Run();
  EXPECT_EQ(w.Stats().lease_count, 0u);
  EXPECT_EQ(w.Stats().pinned_count, 0u);
}

TEST_F(Operation, AReserveThatIsDroppedGivesItsSlotsBack) {
  ReserveResult result;
  {
    ReserveOperation reserve = w.store->storing().Reserve(&result);
    ASSERT_EQ(*reserve.Step(FirstOf(keys)), Progress::kGoesOn);
    EXPECT_EQ(w.Stats().reserved_count, 2u);
  }
  w.Run();
  EXPECT_EQ(w.Stats().reserved_count, 0u);
  EXPECT_EQ(w.Stats().slot_bytes_used, 0u);
  EXPECT_EQ(w.Stats().fenced_bytes, 0u) << "its client was never told of them";
}

TEST_F(Operation, APrefetchThatIsDroppedCanBeAskedForAgain) {
  w.Put(s, group, keys);
  const KeysQuery query = FirstOf(keys);
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

TEST_F(Operation, AFailedStepUndoesWhatCameBefore) {
  w.Put(s, group, keys);
  AcquireResult result;
  AcquireOperation acquire = w.store->prefixes().Acquire(&result);
  KeysQuery query = FirstOf(keys);
  ASSERT_EQ(*acquire.Step(query), Progress::kGoesOn);
  query.group_index = 99;
  EXPECT_EQ(acquire.Step(query).code(), StatusCode::kInvalid);
  w.Run();
  EXPECT_EQ(w.Stats().lease_count, 0u);
}

TEST_F(Operation, OneThatWasMovedIsUndoneOnce) {
  w.Put(s, group, keys);
  AcquireResult result;
  std::optional<AcquireOperation> first(w.store->prefixes().Acquire(&result));
  ASSERT_EQ(*first->Step(FirstOf(keys)), Progress::kGoesOn);
  std::optional<AcquireOperation> second(std::move(*first));
  first.reset();
  w.Run();
  EXPECT_EQ(w.Stats().pinned_count, 2u) << "it goes on where it was moved to";
  second.reset();
  w.Run();
  EXPECT_EQ(w.Stats().pinned_count, 0u);
}

TEST_F(Operation, OneOfASessionThatHungUpLeavesItsFencesToTheProofOfDeath) {
  w.Reserve(s, group, World::Keys(1, 7));  // so that it has been told of a slot
  ReserveResult result;
  std::optional<ReserveOperation> reserve(w.store->storing().Reserve(&result));
  ASSERT_EQ(*reserve->Step(FirstOf(keys)), Progress::kGoesOn);
  EXPECT_TRUE(w.store->sessions().HangUp(s));
  reserve.reset();
  w.Run();
  EXPECT_EQ(w.Stats().fenced_bytes, 3 * kSlotBytes);
  w.store->sessions().ProofOfDeath(s);
  w.Run();
  EXPECT_EQ(w.Stats().fenced_bytes, 0u);
}

TEST_F(Operation, OneThatOutlivesItsStoreDoesNothing) {
  w.Put(s, group, keys);
  AcquireResult result;
  std::optional<AcquireOperation> acquire(w.store->prefixes().Acquire(&result));
  std::optional<AcquireOperation> other(w.store->prefixes().Acquire(&result));
  ASSERT_EQ(*acquire->Step(FirstOf(keys)), Progress::kGoesOn);
  w.Kill();
  acquire.reset();
  other.reset();
  w.MakeStore();
  w.Run();
}

// Its lease is so long that joining takes two steps; few of its keys have room.
TEST_F(Operation, AJoinThatIsDroppedHasNotJoined) {
  const SessionId b = w.Open();
  EXPECT_EQ(w.OpenSimple(b), group);
  const auto many = World::Keys(protocol::kBlocksPerTurnMax + 1);
  KeysQuery query = w.Query(s, group, many, protocol::kKeysFlat);
  query.key_count_of_request = static_cast<uint32_t>(many.size());
  ReserveResult reserved;
  ReserveOperation reserve = w.store->storing().Reserve(&reserved);
  query.keys = std::span(many).first(protocol::kBlocksPerTurnMax);
  ASSERT_EQ(*reserve.Step(query), Progress::kGoesOn);
  query.keys = std::span(many).subspan(protocol::kBlocksPerTurnMax);
  ASSERT_EQ(*reserve.Step(query), Progress::kDone);
  const LeaseToken token = reserved.reply.token;
  const protocol::JoinRequest request{.token = token, .member_mask = 1, .group_handle = group};
  {
    JoinResult joined;
    Result<JoinOperation> join = w.store->leases().Join({b, 1, request}, &joined);
    ASSERT_EQ(*join->Step(), Progress::kGoesOn);
  }
  EXPECT_EQ(w.Release(b, token), StatusCode::kGone);
  JoinResult again;
  EXPECT_TRUE(w.Join({b, 2, request}, &again).ok());
  EXPECT_EQ(again.write.keys.size(), many.size());
  EXPECT_EQ(w.Release(b, token), StatusCode::kOk);
}

// At most 32 walks are kept; a cursor that its client was told is one of them.
TEST_F(Operation, AListingThatIsDroppedGivesItsWalkBack) {
  World large({.segments_max = 40});
  const SessionId lister = large.Open();
  EXPECT_EQ(large.OpenSimple(lister), group);
  for (uint64_t chain = 1; chain <= 40; ++chain) {
    large.Put(lister, group, World::Keys(8, chain));
    large.Run();  // the next segment is populated
  }
  ASSERT_GT(large.Stats().block_count, kListBlocksMax);
  protocol::ListRequest request{.group_handle = group, .entry_count_max = 1};
  ListResult page;
  ASSERT_EQ(*large.store->operators().List(lister, request, &page).Step(), Progress::kDone);
  ASSERT_NE(page.reply.cursor, 0u);
  for (uint32_t i = 0; i <= TreeWalks::kWalksMax; ++i) {
    ListResult dropped;
    request.entry_count_max = 1000;
    ASSERT_EQ(*large.store->operators().List(lister, request, &dropped).Step(), Progress::kGoesOn);
  }
  request.cursor = page.reply.cursor;
  EXPECT_TRUE(large.store->operators().List(lister, request, &page).Step().ok());
}

}  // namespace
}  // namespace terrace

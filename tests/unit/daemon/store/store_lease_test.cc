// How leases end, and what stays fenced until when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store_fixture.h"
#include "terrace/protocol_join.h"

namespace terrace {
namespace {

using World = StoreWorld;

// Two sessions that write one group together, and one reserved block.
struct JoinedPair {
  explicit JoinedPair(World& w)
      : a(w.Open()), b(w.Open()), group(w.OpenSimple(a)), keys(World::Keys(1)) {
    reserved = w.Reserve(a, group, keys);
    const ReserveResult joined =
        w.Join(b, {.token = token(), .member_mask = 1, .group_handle = group}).write;
    EXPECT_EQ(joined.slots, reserved.slots);
    EXPECT_EQ(joined.keys[0].commit_id, reserved.keys[0].commit_id);
  }
  LeaseToken token() const { return reserved.reply.token; }
  StatusCode CommitBy(World& w, SessionId session) {
    const auto written =
        w.Write(session, group, keys[0], 0, 0, reserved.keys[0].commit_id, reserved.slots[0]);
    return w.Commit(session, {.token = token()}, {written.entry}).entries[0];
  }

  SessionId a, b;
  uint32_t group;
  std::vector<BlockKey> keys;
  ReserveResult reserved;
};

// PROMISE: T21 the fence
TEST(Lease, HangUpRevokesAndFencesUntilProofOfDeath) {
  World w;
  const SessionId dying = w.Open(), other = w.Open();
  const uint32_t group = w.OpenSimple(dying);
  w.OpenSimple(other);
  const auto keys = World::Keys(3);
  const ReserveResult reserved = w.Reserve(dying, group, keys);
  w.store->sessions().HangUp(dying);
  w.Check();
  EXPECT_EQ(w.Stats().fenced_bytes, 3 * kSlotBytes);
  EXPECT_EQ(w.Stats().reserved_count, 0u);
  w.Advance(3'600'000'000);  // no slot is reused on a timer
  EXPECT_EQ(w.Stats().fenced_bytes, 3 * kSlotBytes);

  // The keys are free, their slots are not.
  const ReserveResult again = w.Reserve(other, group, World::Keys(kSlotsPerSegment));
  EXPECT_EQ(again.slots.size(), kSlotsPerSegment - 3);
  for (const SlotRef& slot : again.slots) {
    for (const SlotRef& fenced : reserved.slots) EXPECT_NE(slot.address, fenced.address);
  }
  w.store->sessions().ProofOfDeath(dying);
  w.Check();
  EXPECT_EQ(w.Stats().fenced_bytes, 0u);
  EXPECT_EQ(w.Stats().lease_count, 1u);
}

TEST(Lease, ADeadReaderFreesWhatItHeld) {
  World w;
  const SessionId reader = w.Open(), writer = w.Open();
  const uint32_t group = w.OpenSimple(writer);
  w.Put(writer, group, World::Keys(kSlotsPerSegment));
  const AcquireResult got = w.Acquire(reader, group, World::Keys(kSlotsPerSegment));
  w.Run();
  w.store->sessions().HangUp(reader);
  EXPECT_EQ(w.Put(writer, group, World::Keys(1, 2)), 0u);
  EXPECT_EQ(w.MatchCount(writer, group, World::Keys(kSlotsPerSegment)), kSlotsPerSegment);
  EXPECT_EQ(w.Stats().fenced_bytes, kSlotsPerSegment * kSlotBytes);
  w.store->sessions().ProofOfDeath(reader);
  EXPECT_EQ(w.Stats().fenced_bytes, 0u);
  EXPECT_EQ(w.Put(writer, group, World::Keys(1, 2)), 1u);
}

TEST(Lease, AHungUpJoinerVoidsAWriteLeaseForAll) {
  World w;
  JoinedPair p(w);
  w.store->sessions().HangUp(p.b);
  ASSERT_EQ(w.listener.revoked.size(), 1u);
  EXPECT_EQ(w.listener.revoked[0], std::make_pair(p.a, p.token()));
  EXPECT_EQ(p.CommitBy(w, p.a), StatusCode::kGone);
  EXPECT_EQ(w.Release(p.a, p.token()), StatusCode::kOk);
  EXPECT_EQ(w.Stats().fenced_bytes, kSlotBytes);  // b may still be writing
  w.store->sessions().ProofOfDeath(p.b);
  EXPECT_EQ(w.Stats().fenced_bytes, 0u);
  EXPECT_EQ(w.Stats().lease_count, 0u);
}

TEST(Lease, AHungUpJoinerVoidsItEvenBeforeItsTurnComes) {
  World w;
  const SessionId a = w.Open(), b = w.Open();
  const uint32_t group = w.OpenSimple(a);
  w.Put(a, group, World::Keys(1, 7));
  w.Run();
  const auto one = World::Keys(1, 7);
  for (uint32_t i = 0; i < protocol::kBlocksPerTurnMax; ++i) {
    const KeysQuery query = w.Query(b, group, one);
    AcquireResult result;
    ASSERT_TRUE(w.store->prefixes().Acquire(&result).Step(query).ok());
  }
  const auto keys = World::Keys(1);
  const ReserveResult reserved = w.Reserve(a, group, keys);
  w.Join(b, {.token = reserved.reply.token, .member_mask = 1, .group_handle = group});
  w.store->sessions().HangUp(b);
  EXPECT_TRUE(w.listener.revoked.empty());  // more leases than one turn gets through
  EXPECT_EQ(w.CommitAll(a, group, keys, reserved).entries[0], StatusCode::kGone);
  w.Run();
  EXPECT_EQ(w.listener.revoked.size(), 1u);
}

// Two ranks store a block of two members together; the second member is windowed.
class JoinedWrite : public testing::Test {
 protected:
  void SetUp() override {
    group_ = OpenHybrid(a_);
    OpenHybrid(b_);
    reserved_ = w_.Reserve(a_, group_, keys_);
    ASSERT_EQ(reserved_.slots.size(), 2u);
    w_.Join(b_, {.token = token(), .member_mask = 3, .group_handle = group_});
  }
  uint32_t OpenHybrid(SessionId session) {
    return w_.OpenGroup(session, TestGroup("hybrid", {TestSpace(0), TestSpace(1, 2)}));
  }
  LeaseToken token() const { return reserved_.reply.token; }
  protocol::CommitEntry Entry(SessionId session, uint32_t member, bool is_absent = false) {
    auto entry = w_.Write(session, group_, keys_[0], 0, member, reserved_.keys[0].commit_id,
                          reserved_.slots[member])
                     .entry;
    if (is_absent) {
      entry.flags = protocol::kCommitAbsent;
      entry.part_count = 0;
    }
    return entry;
  }
  // Somebody stores all that there is room for: the slots that he gets.
  std::vector<SlotRef> FillAll() {
    const SessionId other = w_.Open();
    const uint32_t group = OpenHybrid(other);
    std::vector<SlotRef> slots;
    for (uint64_t chain = 50; chain < 50 + 2 * kSlotsPerSegment; ++chain) {
      const std::vector<BlockKey> key = World::Keys(1, chain);
      const ReserveResult got = w_.Reserve(other, group, key);
      slots.insert(slots.end(), got.slots.begin(), got.slots.end());
      if (!got.slots.empty()) w_.CommitAll(other, group, key, got);
      w_.Release(other, got.reply.token);
      w_.Advance(100'000);
    }
    return slots;
  }
  static bool IsAmong(const SlotRef& slot, const std::vector<SlotRef>& got) {
    return std::ranges::any_of(
        got, [&slot](const SlotRef& other) { return other.address == slot.address; });
  }
  static void ExpectNobodyGot(const SlotRef& slot, const std::vector<SlotRef>& got) {
    EXPECT_FALSE(got.empty());
    EXPECT_FALSE(IsAmong(slot, got));
  }

  World w_{{.segments_max = 2}};
  const SessionId a_ = w_.Open(), b_ = w_.Open();
  uint32_t group_ = 0;
  const std::vector<BlockKey> keys_ = World::Keys(1);
  ReserveResult reserved_;
};

// PROMISE: T21 joiners of a write lease
TEST_F(JoinedWrite, ASlotThatOneCallsAbsentIsNobodyElsesWhileTheOtherMayWriteIt) {
  EXPECT_EQ(
      w_.Commit(a_, {.token = token()}, {Entry(a_, 0), Entry(a_, 1, true)}).reply.sealed_count, 1u);
  w_.Check();
  EXPECT_EQ(w_.Release(a_, token()), StatusCode::kOk);
  ExpectNobodyGot(reserved_.slots[1], FillAll());
  // The end of the lease lets it go.
  EXPECT_EQ(w_.Release(b_, token()), StatusCode::kOk);
  w_.Run();
  w_.Check();
  EXPECT_TRUE(IsAmong(reserved_.slots[1], FillAll()));
  EXPECT_EQ(w_.Stats().lease_count, 0u);
}

TEST_F(JoinedWrite, WhatOneCommitsForTheOtherIsNotEvictedWhileTheOtherMayWriteIt) {
  EXPECT_EQ(w_.Commit(a_, {.token = token()}, {Entry(a_, 0), Entry(a_, 1)}).reply.sealed_count, 1u);
  // It is sealed, for everybody and also for the other, who comes too late.
  EXPECT_EQ(w_.MatchCount(a_, group_, keys_), 1u);
  EXPECT_THAT(w_.Commit(b_, {.token = token()}, {Entry(b_, 1)}).entries,
              testing::ElementsAre(StatusCode::kExists));
  EXPECT_EQ(w_.Release(a_, token()), StatusCode::kOk);
  const std::vector<SlotRef> got = FillAll();
  ExpectNobodyGot(reserved_.slots[0], got);
  ExpectNobodyGot(reserved_.slots[1], got);
  w_.Check();
  EXPECT_EQ(w_.Release(b_, token()), StatusCode::kOk);
  w_.Run();
  EXPECT_EQ(w_.Stats().pinned_count, 0u);
  FillAll();
  EXPECT_EQ(w_.MatchCount(a_, group_, keys_), 0u) << "it leaves like any other";
}

// The erasure hides the block at once; its slots wait for whoever may write them.
TEST_F(JoinedWrite, WhatIsErasedMeanwhileKeepsItsSlotsToTheEndOfTheLease) {
  w_.Commit(a_, {.token = token()}, {Entry(a_, 0), Entry(a_, 1, true)});
  w_.Reset(a_, group_);
  w_.Run();
  EXPECT_EQ(w_.MatchCount(a_, group_, keys_), 0u);
  EXPECT_EQ(w_.Release(a_, token()), StatusCode::kOk);
  const std::vector<SlotRef> got = FillAll();
  ExpectNobodyGot(reserved_.slots[0], got);
  ExpectNobodyGot(reserved_.slots[1], got);
  EXPECT_EQ(w_.Release(b_, token()), StatusCode::kOk);
  w_.Run();
  w_.Check();
}

// Likewise a joiner whose connection ended: nothing falls before the proof that it is dead.
TEST_F(JoinedWrite, AHungUpJoinerKeepsAllOfThemFenced) {
  w_.Commit(a_, {.token = token()}, {Entry(a_, 0), Entry(a_, 1, true)});
  w_.store->sessions().HangUp(b_);
  w_.Run();
  w_.Check();
  EXPECT_EQ(w_.Stats().fenced_bytes, 2 * kSlotBytes) << "the block's, with the slot it lacks";
  EXPECT_EQ(w_.Release(a_, token()), StatusCode::kOk);
  ExpectNobodyGot(reserved_.slots[1], FillAll());
  w_.store->sessions().ProofOfDeath(b_);
  w_.Run();
  w_.Check();
  EXPECT_EQ(w_.Stats().fenced_bytes, 0u);
  EXPECT_EQ(w_.Stats().lease_count, 0u);
}

// Who is alone has synchronised: nothing waits.
TEST_F(JoinedWrite, OnceTheOthersHaveLeftASealLetsGoAtOnce) {
  EXPECT_EQ(w_.Release(b_, token()), StatusCode::kOk);
  w_.Commit(a_, {.token = token()}, {Entry(a_, 0), Entry(a_, 1, true)});
  w_.Check();
  EXPECT_EQ(w_.Stats().pinned_count, 0u);
  EXPECT_TRUE(IsAmong(reserved_.slots[1], FillAll()));
}

TEST(Lease, AReadLeaseGoesOnWhileAJoinerLives) {
  World w;
  const SessionId a = w.Open(), b = w.Open();
  const uint32_t group = w.OpenSimple(a);
  w.Put(a, group, World::Keys(2));
  const AcquireResult got = w.Acquire(a, group, World::Keys(2));
  const JoinResult joined =
      w.Join(b, {.token = got.reply.token, .member_mask = 1, .group_handle = group});
  EXPECT_EQ(joined.read.slots, got.slots);
  w.store->sessions().HangUp(a);
  EXPECT_TRUE(w.listener.revoked.empty());
  EXPECT_TRUE(w.store->leases().Renew(b, got.reply.token).ok());
  w.store->sessions().ProofOfDeath(a);
  EXPECT_EQ(w.Stats().pinned_count, 2u);
  EXPECT_EQ(w.Release(b, got.reply.token), StatusCode::kOk);
  EXPECT_EQ(w.Stats().pinned_count, 0u);
}

// A Join tells of slots, too: who has read them may read on after its connection ended.
TEST(Lease, AHungUpJoinerOfAReadFencesUntilProofOfDeath) {
  World w;
  const SessionId a = w.Open(), b = w.Open();
  const uint32_t group = w.OpenSimple(a);
  w.Put(a, group, World::Keys(2));
  const AcquireResult got = w.Acquire(a, group, World::Keys(2));
  EXPECT_EQ(w.JoinRead(b, group, got.reply.token).slots.size(), 2u);
  w.Release(a, got.reply.token);
  EXPECT_TRUE(w.store->sessions().HangUp(b)) << "its end has to be proven";
  w.Run();
  EXPECT_EQ(w.Stats().fenced_bytes, 2 * kSlotBytes);
  w.store->sessions().ProofOfDeath(b);
  EXPECT_EQ(w.Stats().fenced_bytes, 0u);
}

TEST(Lease, AJoinerCommitsAfterTheOpenerHasLeft) {
  World w;
  JoinedPair p(w);
  EXPECT_EQ(w.Release(p.a, p.token()), StatusCode::kOk);
  EXPECT_EQ(p.CommitBy(w, p.b), StatusCode::kOk);
  EXPECT_EQ(w.MatchCount(p.a, p.group, p.keys), 1u);
  EXPECT_EQ(w.Release(p.b, p.token()), StatusCode::kOk);
  EXPECT_EQ(w.Stats().lease_count, 0u);
}

TEST(Lease, AbortOfOneJoinerFencesForTheOther) {
  World w;
  JoinedPair p(w);
  const std::vector<uint32_t> indexes = {0};
  EXPECT_TRUE(w.store->storing().Abort(p.a, p.token(), indexes).ok());
  w.Check();
  EXPECT_EQ(w.Stats().fenced_bytes, kSlotBytes);
  EXPECT_EQ(p.CommitBy(w, p.b), StatusCode::kGone);
  EXPECT_EQ(w.Release(p.a, p.token()), StatusCode::kOk);
  EXPECT_EQ(w.Stats().fenced_bytes, kSlotBytes);
  EXPECT_EQ(w.Release(p.b, p.token()), StatusCode::kOk);
  EXPECT_EQ(w.Stats().fenced_bytes, 0u);
  EXPECT_EQ(w.Stats().slot_bytes_used, 0u);
}

TEST(Lease, AbortOfTheWholeLeaseTellsTheOthers) {
  World w;
  JoinedPair p(w);
  EXPECT_TRUE(w.store->storing().Abort(p.a, p.token(), {}).ok());
  w.Check();
  EXPECT_THAT(w.listener.revoked, ::testing::ElementsAre(std::make_pair(p.b, p.token())));
  EXPECT_EQ(p.CommitBy(w, p.b), StatusCode::kGone);
  EXPECT_EQ(w.Stats().fenced_bytes, kSlotBytes);
  EXPECT_TRUE(w.store->storing().Abort(p.b, p.token(), {}).ok());  // an acknowledgement, too
  EXPECT_EQ(w.Stats().slot_bytes_used, 0u);
}

TEST(Lease, AbortByTheOnlyJoinerFreesAtOnce) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const ReserveResult reserved = w.Reserve(s, group, World::Keys(3));
  const std::vector<uint32_t> indexes = {2, 1};
  EXPECT_TRUE(w.store->storing().Abort(s, reserved.reply.token, indexes).ok());
  w.Check();
  EXPECT_EQ(w.Stats().slot_bytes_used, kSlotBytes);
  EXPECT_EQ(w.Stats().fenced_bytes, 0u);
  EXPECT_TRUE(w.store->storing().Abort(s, reserved.reply.token, {}).ok());
  EXPECT_EQ(w.Stats().slot_bytes_used, 0u);
}

// PROMISE: T22 silence
TEST(Lease, SilenceRevokesAndAReleaseIsTheAcknowledgement) {
  World w;
  const SessionId s = w.Open(), other = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const ReserveResult reserved = w.Reserve(s, group, World::Keys(1));
  w.Advance(29'900'000);
  EXPECT_TRUE(w.listener.revoked.empty());
  w.store->sessions().SignOfLife(s);
  w.Advance(29'900'000);
  EXPECT_TRUE(w.listener.revoked.empty());
  w.Advance(200'000);
  EXPECT_THAT(w.listener.revoked, ::testing::ElementsAre(std::make_pair(s, reserved.reply.token)));
  EXPECT_EQ(w.Stats().fenced_bytes, kSlotBytes);
  EXPECT_EQ(w.store->sessions().RevokedLeasesOf(s), 1u);
  EXPECT_EQ(World::CodeOf(w.Reserve(other, w.OpenSimple(other), World::Keys(1)).keys[0]),
            StatusCode::kOk);
  const auto written =
      w.Write(s, group, World::Keys(1)[0], 0, 0, reserved.keys[0].commit_id, reserved.slots[0]);
  EXPECT_EQ(w.Commit(s, {.token = reserved.reply.token}, {written.entry}).entries[0],
            StatusCode::kGone);
  EXPECT_EQ(w.Release(s, reserved.reply.token), StatusCode::kOk);
  EXPECT_EQ(w.Stats().fenced_bytes, 0u);
  EXPECT_EQ(w.store->sessions().RevokedLeasesOf(s), 0u);
}

TEST(Lease, OneTalkativeJoinerKeepsItAlive) {
  World w;
  JoinedPair p(w);
  for (int i = 0; i < 5; ++i) {
    w.Advance(20'000'000);
    w.store->sessions().SignOfLife(p.b);
  }
  EXPECT_TRUE(w.listener.revoked.empty());
  EXPECT_EQ(p.CommitBy(w, p.a), StatusCode::kOk);
}

// Its first page told slots that the session may be writing: only the session knows when it is
// done.
TEST(Lease, ALaterPageOfARevokedLeaseIsNoAcknowledgement) {
  World w;
  JoinedPair p(w);
  EXPECT_TRUE(w.store->storing().Abort(p.a, p.token(), {}).ok());
  ASSERT_EQ(w.Stats().fenced_bytes, kSlotBytes);
  const JoinQuery later{.session = p.b,
                        .request_id = 1'000,
                        .request = {.token = p.token(), .member_mask = 1, .group_handle = p.group},
                        .first_block = 1};
  JoinResult answer;
  EXPECT_EQ(w.Join(later, &answer).code(), StatusCode::kGone);
  EXPECT_EQ(w.Stats().fenced_bytes, kSlotBytes);
  EXPECT_EQ(w.Release(p.b, p.token()), StatusCode::kOk);
  EXPECT_EQ(w.Stats().fenced_bytes, 0u);
}

TEST(Lease, ALaterPageWithoutRoomForARequestLeavesTheSessionJoined) {
  World w;
  JoinedPair p(w);
  const AcquireResult followed = w.Acquire(p.a, p.group, p.keys, protocol::kAcquireFollow);
  ASSERT_EQ(followed.reply.block_count, 1u);
  JoinQuery query{.session = p.b,
                  .request_id = 1'000,
                  .request = {.token = followed.reply.token,
                              .member_mask = 1,
                              .group_handle = p.group,
                              .flags = protocol::kJoinPaged}};
  JoinResult first, later;
  ASSERT_TRUE(w.Join(query, &first).ok());
  query.first_block = 1;  // under the id of a request that is pending still
  EXPECT_EQ(w.Join(query, &later).code(), StatusCode::kBusy);
  EXPECT_EQ(w.Release(p.b, followed.reply.token), StatusCode::kOk);
}

// One Release ends it, so a second Join would be ended with the first.
TEST(Lease, ASessionJoinsOnceUntilItReleases) {
  World w;
  JoinedPair p(w);
  const LeaseToken token = w.Acquire(p.a, p.group, p.keys, protocol::kAcquireFollow).reply.token;
  JoinQuery query{.session = p.b,
                  .request_id = 1'000,
                  .request = {.token = token, .member_mask = 1, .group_handle = p.group}};
  JoinResult first, again, later;
  ASSERT_TRUE(w.Join(query, &first).ok());
  query.request_id = 1'001;
  EXPECT_EQ(w.Join(query, &again).code(), StatusCode::kInvalid);
  EXPECT_EQ(w.Release(p.b, token), StatusCode::kOk) << "still joined";
  query.request_id = 1'002;
  EXPECT_TRUE(w.Join(query, &later).ok());
}

TEST(Lease, TooManyFencedBytesStopReservesOnly) {
  World w({.fenced_bytes_max = 2 * kSlotBytes});
  const SessionId dying = w.Open(), other = w.Open();
  const uint32_t group = w.OpenSimple(dying);
  w.Put(other, w.OpenSimple(other), World::Keys(1, 5));
  w.Reserve(dying, group, World::Keys(2));
  w.store->sessions().HangUp(dying);
  EXPECT_EQ(World::CodeOf(w.Reserve(other, group, World::Keys(1, 2)).keys[0]),
            StatusCode::kNoSpace);
  EXPECT_EQ(w.Acquire(other, group, World::Keys(1, 5)).reply.block_count, 1u);
  w.store->sessions().ProofOfDeath(dying);
  EXPECT_EQ(World::CodeOf(w.Reserve(other, group, World::Keys(1, 2)).keys[0]), StatusCode::kOk);
}

TEST(Lease, ALongLeaseIsLetGoSomeBlocksATurn) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  // One block, over and over: the lease has an entry for each.
  w.Put(s, group, World::Keys(1));
  const std::vector<BlockKey> keys(protocol::kBlocksPerTurnMax, World::Keys(1)[0]);
  KeysQuery query = w.Query(s, group, keys, protocol::kKeysFlat);
  query.key_count_of_request = 3 * protocol::kBlocksPerTurnMax;
  AcquireResult result;
  AcquireOperation acquire = w.store->prefixes().Acquire(&result);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(*acquire.Step(query), Progress::kGoesOn);
  ASSERT_EQ(*acquire.Step(query), Progress::kDone);
  EXPECT_EQ(result.reply.block_count, 3u * protocol::kBlocksPerTurnMax);
  EXPECT_TRUE(w.store->leases().Release(s, {.token = result.reply.token}).ok());
  w.Check();
  EXPECT_EQ(w.store->events().NextTimerUs(), 0u);
  EXPECT_EQ(w.Stats().lease_count, 1u);
  w.Run();
  EXPECT_EQ(w.Stats().lease_count, 0u);
  EXPECT_EQ(w.Stats().pinned_count, 0u);
}

TEST(Lease, LimitsAreLimits) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  w.Put(s, group, World::Keys(1));
  for (int i = 0; i < 4096; ++i) {
    AcquireResult result;
    const auto keys = World::Keys(1);
    const KeysQuery query = w.Query(s, group, keys);
    ASSERT_TRUE(w.store->prefixes().Acquire(&result).Step(query).ok());
  }
  AcquireResult result;
  const auto keys = World::Keys(1);
  EXPECT_EQ(w.store->prefixes().Acquire(&result).Step(w.Query(s, group, keys)).code(),
            StatusCode::kNoSpace);
  w.store->sessions().ProofOfDeath(s);
  w.Run();
  EXPECT_EQ(w.Stats().lease_count, 0u);
  EXPECT_EQ(w.Stats().pinned_count, 0u);
}

}  // namespace
}  // namespace terrace

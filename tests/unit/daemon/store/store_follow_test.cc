// Reading a block while it is written: follow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store_fixture.h"
#include "unit/daemon/store/completion_line.h"

namespace terrace {
namespace {

using protocol::SpanState;
using World = StoreWorld;

class Follow : public ::testing::Test {
 protected:
  Follow() {
    w.Put(writer, group, World::Keys(2));
    reserved = w.Reserve(writer, group, keys);
  }
  AcquireResult Start() {
    const KeysQuery query = w.Query(follower, group, keys, protocol::kAcquireFollow);
    request_id = query.request_id;
    return w.Acquire(query);
  }
  // Commits parts [first, first + count) of key `index`.
  void CommitParts(uint32_t index, uint16_t first, uint16_t count) {
    auto entry = w.Write(writer, group, keys[index], index, 0, reserved.keys[index].commit_id,
                         reserved.slots[index - 2])
                     .entry;
    entry.part_first = first;
    entry.part_count = count;
    EXPECT_EQ(w.Commit(writer, {.token = reserved.reply.token}, {entry}).entries[0],
              StatusCode::kOk);
  }
  std::vector<Line> TakeLines() {
    std::vector<Line> lines;
    for (const auto& told : w.listener.completions) {
      EXPECT_EQ(told.request_id, request_id);
      lines.push_back(LineOf(told));
    }
    w.listener.completions.clear();
    return lines;
  }

  World w{{.segments_max = 2}};
  SessionId writer = w.Open(), follower = w.Open();
  uint32_t group = w.OpenGroup(writer, TestGroup("parts", {TestSpace(0, 0, 4)}));
  std::vector<BlockKey> keys = World::Keys(4);
  ReserveResult reserved;
  uint64_t request_id = 0;
};

TEST_F(Follow, WithoutTheFlagReservedBlocksEndThePrefix) {
  EXPECT_EQ(w.Acquire(follower, group, keys).reply.block_count, 2u);
}

TEST_F(Follow, PartsComeAsTheyAreCommittedAndReadyInOrder) {
  CommitParts(2, 0, 1);
  const AcquireResult got = Start();
  EXPECT_EQ(got.reply.block_count, 4u);
  ASSERT_EQ(got.spans.size(), 2u);
  EXPECT_EQ(got.spans[1].state, SpanState::kFollowing);
  EXPECT_EQ(got.slots[2], reserved.slots[0].address);
  EXPECT_TRUE(w.listener.completions.empty());  // never before the reply
  w.Run();
  EXPECT_THAT(TakeLines(), ::testing::ElementsAre(Line{StatusCode::kOk, 2, 1, 0, 1, false}));
  CommitParts(3, 0, 4);  // sealed, but not in order yet
  EXPECT_THAT(TakeLines(), ::testing::ElementsAre(Line{StatusCode::kOk, 3, 1, 0, 4, false}));
  CommitParts(2, 1, 3);
  EXPECT_THAT(TakeLines(), ::testing::ElementsAre(Line{StatusCode::kOk, 2, 1, 1, 3, false},
                                                  Line{StatusCode::kOk, 2, 2, 0, 0, true}));
  w.Run();
  EXPECT_TRUE(TakeLines().empty());
}

TEST_F(Follow, AWritersDeathIsGoneForTheRest) {
  const AcquireResult got = Start();
  w.Run();
  CommitParts(2, 0, 4);
  TakeLines();
  w.store->sessions().ProofOfDeath(writer);
  w.Check();
  EXPECT_THAT(TakeLines(), ::testing::ElementsAre(Line{StatusCode::kGone, 3, 0, 0, 0, true}));
  // The follower may be looking at parts of block 3 still.
  EXPECT_EQ(w.Stats().slot_bytes_used, 4 * kSlotBytes);
  EXPECT_EQ(w.Release(follower, got.reply.token), StatusCode::kOk);
  EXPECT_EQ(w.Stats().slot_bytes_used, 3 * kSlotBytes);
}

TEST_F(Follow, AnAbortIsGoneForTheRest) {
  Start();
  w.Run();
  const std::vector<uint32_t> indexes = {2};
  EXPECT_TRUE(w.store->storing().Abort(writer, reserved.reply.token, indexes).ok());
  EXPECT_THAT(TakeLines(), ::testing::ElementsAre(Line{StatusCode::kGone, 2, 0, 0, 0, true}));
}

TEST_F(Follow, AtTheDeadlineTheRestLeavesTheLease) {
  const AcquireResult got = Start();
  w.Advance(500'000);
  CommitParts(2, 0, 4);
  TakeLines();
  w.Advance(600'000);
  EXPECT_THAT(TakeLines(), ::testing::ElementsAre(Line{StatusCode::kBusy, 3, 0, 0, 0, true}));
  w.store->sessions().SignOfLife(follower);
  CommitParts(3, 0, 4);
  EXPECT_TRUE(TakeLines().empty());
  EXPECT_EQ(w.Stats().pinned_count, 4u);  // block 3 stays held to the end of the lease
  w.Release(follower, got.reply.token);
  EXPECT_EQ(w.Stats().pinned_count, 0u);
}

TEST_F(Follow, CancelEndsARequestWithBusy) {
  Start();
  w.Run();
  EXPECT_TRUE(w.store->leases().Cancel(follower, request_id).ok());
  EXPECT_THAT(TakeLines(), ::testing::ElementsAre(Line{StatusCode::kBusy, 2, 0, 0, 0, true}));
  EXPECT_EQ(w.store->leases().Cancel(follower, request_id).code(), StatusCode::kNotFound);
}

TEST_F(Follow, AnotherUidDoesNotFollow) {
  const SessionId stranger = w.Open(0, 99);
  EXPECT_EQ(w.Acquire(stranger, group, keys, protocol::kAcquireFollow).reply.block_count, 2u);
}

TEST_F(Follow, AReleasedFollowerHearsNothingMore) {
  const AcquireResult got = Start();
  w.Run();
  w.Release(follower, got.reply.token);
  CommitParts(2, 0, 4);
  EXPECT_TRUE(TakeLines().empty());
}

TEST_F(Follow, AJoinerIsToldUnderItsOwnRequest) {
  const AcquireResult got = Start();
  const SessionId joiner = w.Open();
  JoinResult joined;
  const protocol::JoinRequest join{
      .token = got.reply.token, .member_mask = 1, .group_handle = group};
  ASSERT_TRUE(w.Join({joiner, 900, join}, &joined).ok());
  EXPECT_EQ(joined.read.reply.block_count, 4u);
  EXPECT_EQ(joined.read.spans[1].state, SpanState::kFollowing);
  w.Run();
  CommitParts(2, 0, 4);
  CommitParts(3, 0, 4);
  uint32_t joiners_last = 0;
  for (const auto& told : w.listener.completions) {
    if (told.request_id == 900 && told.is_last()) ++joiners_last;
    EXPECT_EQ(told.session, told.request_id == 900 ? joiner : follower);
  }
  EXPECT_EQ(joiners_last, 1u);
}

// The lease lives on with a joiner of another uid, who does not follow: nobody in it hears that the
// blocks are lost, and so they stay in it.
TEST_F(Follow, AJoinersPrefixEndsBeforeWhatNobodyWritesAnyMore) {
  const LeaseToken token = Start().reply.token;
  const SessionId stranger = w.Open(0, 99);
  EXPECT_EQ(w.JoinRead(stranger, group, token).reply.block_count, 2u);
  w.Run();
  w.store->sessions().ProofOfDeath(follower);
  w.store->sessions().ProofOfDeath(writer);
  w.Run();
  const AcquireResult joined = w.JoinRead(w.Open(), group, token);
  EXPECT_EQ(joined.reply.block_count, 2u);
  EXPECT_EQ(joined.slots.size(), 2u);
  ASSERT_EQ(joined.spans.size(), 1u);
  EXPECT_EQ(joined.spans[0].state, SpanState::kReady);
}

}  // namespace
}  // namespace terrace

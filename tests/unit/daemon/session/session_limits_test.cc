// What one client may take from others: connections, sessions, replies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "daemon/session/session.h"
#include "terrace/protocol_join.h"
#include "unit/daemon/session/session_harness.h"

namespace terrace::test {
namespace {

using protocol::Verb;
using ::testing::HasSubstr;

protocol::HelloRequest Hello() { return {}; }

TEST(SessionHello, WhoeverHasTheMostConnectionsWithoutItLosesTheOldest) {
  SessionHarness world({.strangers_max = 8});
  const auto is_closed = [&](SessionId id) { return world.transport.lines[id].closed.has_value(); };
  world.sessions->OnAccept(1, {.uid = 7});
  for (SessionId id = 10; id < 17; ++id) world.sessions->OnAccept(id, {.uid = 8});
  EXPECT_FALSE(is_closed(10)) << "there is room for all of them";
  for (SessionId id = 17; id < 200; ++id) world.sessions->OnAccept(id, {.uid = 8});
  EXPECT_FALSE(is_closed(1)) << "another user's came first and stays";
  for (SessionId id = 10; id < 193; ++id) EXPECT_TRUE(is_closed(id)) << id;
  for (SessionId id = 193; id < 200; ++id) EXPECT_FALSE(is_closed(id)) << id;
  const std::vector<FakeMessage> told = world.transport.Take(10);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].status(), StatusCode::kNoSpace);
  EXPECT_THAT(told[0].text(), HasSubstr("without Hello"));
  world.Deliver(1, world.Frames(Verb::kHello, BytesOf(Hello()), 1));
  EXPECT_EQ(world.Stats().session_count, 1u);
  EXPECT_EQ(world.transport.Take(1).at(0).status(), StatusCode::kOk);
  world.sessions->OnAccept(300, {.uid = 9});
  EXPECT_FALSE(is_closed(193)) << "who has said it makes room";
}

// A connection that ended without having been told of a slot can do no harm any more.
TEST(SessionHangUp, OneThatNeverHadASlotCostsNothing) {
  SessionHarness world({.sessions_max = 4});
  for (int i = 0; i < 100; ++i) {
    const SessionId session = world.Attach();
    world.Open(session, "m");
    world.Call(session, Verb::kStats, BytesOf(protocol::StatsRequest{}));
    world.sessions->OnHangUp(session);
    EXPECT_TRUE(world.transport.lines[session].is_forgotten);
    EXPECT_TRUE(world.sessions->Summaries(0, 10).empty());
  }
}

TEST(SessionHangUp, OneThatHadASlotCountsUntilItsProcessIsDead) {
  SessionHarness world({.sessions_max = 2});
  const auto keys = MakeKeys(2, 1);
  std::vector<SessionId> left;
  for (int i = 0; i < 2; ++i) {
    left.push_back(world.Attach());
    const uint32_t group = world.Open(left[i], "m");
    EXPECT_EQ(world.StoreBlocks(left[i], group, std::span(keys).subspan(i, 1)), 1u);
    world.sessions->OnHangUp(left[i]);
    EXPECT_FALSE(world.transport.lines[left[i]].is_forgotten);
  }
  EXPECT_EQ(world.sessions->Summaries(0, 10).size(), 2u);
  const FakeMessage refused = world.Call(world.Connect(), Verb::kHello, BytesOf(Hello()));
  EXPECT_EQ(refused.status(), StatusCode::kNoSpace);
  EXPECT_THAT(refused.text(), HasSubstr("daemon.sessions_max is 2"));
  world.sessions->OnProofOfDeath(left[0]);
  world.Attach();
}

// A lease of more slots than one message holds: 25,000 blocks of 63 members.
class SessionJoin : public testing::Test {
 protected:
  static constexpr uint32_t kMembers = 63;
  static constexpr uint32_t kBlocks = 25'000;
  static constexpr uint64_t kAll = (uint64_t{1} << kMembers) - 1;

  SessionJoin() {
    EXPECT_LT(protocol::JoinPageBlocks(kMembers), kBlocks);
    scheduler_ = world_.Attach();
    group_ = world_.Open(scheduler_, "tp", kMembers, 0);
    world_.Settle();
    const FakeMessage reserved = world_.CallKeys(scheduler_, Verb::kReserve, group_, keys_);
    written_ = reserved.At<protocol::ReserveReply>().token;
    EXPECT_FALSE(written_.is_zero());
    worker_ = world_.Attach();
    EXPECT_EQ(world_.Open(worker_, "tp", kMembers), group_);
  }

  std::vector<std::byte> JoinBody(const LeaseToken& token, uint32_t flags, uint32_t first_block) {
    const protocol::JoinRequest request{.token = token, .group_handle = group_, .flags = flags};
    std::vector<std::byte> body(sizeof(request));
    std::memcpy(body.data(), &request, sizeof(request));
    if (first_block > 0) {
      const protocol::JoinPage page{.first_block = first_block};
      body.resize(sizeof(request) + sizeof(page));
      std::memcpy(body.data() + sizeof(request), &page, sizeof(page));
    }
    return body;
  }
  FakeMessage Join(const LeaseToken& token, uint32_t flags, uint32_t first_block = 0) {
    const FakeMessage reply =
        world_.Call(worker_, Verb::kJoin, JoinBody(token, flags, first_block));
    EXPECT_EQ(reply.status(), StatusCode::kOk) << reply.text();
    EXPECT_LE(reply.body.size() + sizeof(protocol::ReplyPrefix), protocol::kMessageBytesMax);
    return reply;
  }
  void Leave(const LeaseToken& token) {
    const FakeMessage left =
        world_.Call(worker_, Verb::kRelease, BytesOf(protocol::ReleaseRequest{.token = token}));
    EXPECT_EQ(left.status(), StatusCode::kOk);
  }
  // A reader's lease of all that is being written.
  LeaseToken Follow() {
    const FakeMessage followed =
        world_.CallKeys(scheduler_, Verb::kAcquire, group_, keys_, protocol::kAcquireFollow);
    EXPECT_EQ(followed.At<protocol::AcquireReply>().block_count, blocks_left_);
    return followed.At<protocol::AcquireReply>().token;
  }

  void AskForAPageOfAnothersLease();
  void JoinWithoutPages();
  void WriteInPages();
  void LoseBlocksOfTheLastPage();
  void ReadInPages();

  // Of 4 KiB slots: virtual memory that nobody touches.
  SessionHarness world_{{.segments = 3'300, .segments_spare = 3'300}};
  const std::vector<BlockKey> keys_ = MakeKeys(kBlocks, 1);
  SessionId scheduler_ = 0, worker_ = 0;
  uint32_t group_ = 0;
  uint32_t blocks_left_ = kBlocks;  // of those that are written
  LeaseToken written_;
};

void SessionJoin::JoinWithoutPages() {
  const LeaseToken token = Follow();
  const auto read = Join(token, 0).At<protocol::AcquireReply>();
  EXPECT_EQ(read.block_count, protocol::JoinPageBlocks(kMembers));
  EXPECT_EQ(read.slot_count, read.block_count * kMembers);
  EXPECT_EQ(read.flags, 0u);
  Leave(token);
  const auto write = Join(written_, 0).At<protocol::ReserveReply>();
  EXPECT_EQ(write.key_count, protocol::JoinPageKeys(kMembers));
  EXPECT_EQ(write.slot_count, write.key_count * kMembers);
  Leave(written_);
}

// They leave when the slots of the page are listed already, and the spans are walked.
void SessionJoin::LoseBlocksOfTheLastPage() {
  constexpr uint32_t kLost = 50, kTurns = kBlocks / protocol::kBlocksPerTurnMax;
  const LeaseToken token = Follow();
  const auto head = Join(token, protocol::kJoinPaged).At<protocol::AcquireReply>();
  constexpr uint64_t kRequest = 1 << 20;
  world_.sessions->OnBytes(
      worker_, world_.Frames(Verb::kJoin, JoinBody(token, protocol::kJoinPaged, head.block_count),
                             kRequest));
  for (uint32_t turn = 0; turn < kTurns; ++turn) world_.sessions->OnTurn();
  ASSERT_TRUE(world_.transport.Take(worker_).empty()) << "it is not over yet";
  blocks_left_ -= kLost;
  const protocol::AbortRequest abort{.token = written_, .key_count = kLost};
  std::vector<std::byte> body(sizeof(abort) + kLost * sizeof(uint32_t));
  std::memcpy(body.data(), &abort, sizeof(abort));
  for (uint32_t i = 0; i < kLost; ++i) {
    const uint32_t index = blocks_left_ + i;
    std::memcpy(body.data() + sizeof(abort) + i * sizeof(index), &index, sizeof(index));
  }
  EXPECT_EQ(world_.Call(scheduler_, Verb::kAbort, body).status(), StatusCode::kOk);
  const std::vector<FakeMessage> replies = world_.transport.Take(worker_);
  ASSERT_FALSE(replies.empty());
  ASSERT_EQ(replies[0].header.request_id, kRequest);
  const auto last = replies[0].At<protocol::AcquireReply>();
  EXPECT_EQ(last.block_count, blocks_left_);
  EXPECT_EQ(last.slot_count, (blocks_left_ - head.block_count) * kMembers);
  Leave(token);
}

void SessionJoin::ReadInPages() {
  const LeaseToken token = Follow();
  const FakeMessage first = Join(token, protocol::kJoinPaged);
  const auto head = first.At<protocol::AcquireReply>();
  EXPECT_EQ(head.flags, protocol::kJoinHasMore);
  EXPECT_EQ(head.span_count, 0u);
  EXPECT_EQ(head.block_count, protocol::JoinPageBlocks(kMembers));
  const FakeMessage second = Join(token, protocol::kJoinPaged, head.block_count);
  const auto last = second.At<protocol::AcquireReply>();
  EXPECT_EQ(last.flags, 0u);
  EXPECT_EQ(last.block_count, blocks_left_);
  EXPECT_EQ(last.slot_count, (blocks_left_ - head.block_count) * kMembers);
  ASSERT_EQ(last.span_count, 1u);
  const auto span = second.At<protocol::BlockSpan>(sizeof(last));
  EXPECT_EQ(span.block_count, blocks_left_);
  EXPECT_EQ(span.state, protocol::SpanState::kFollowing);
  // The writer gives up: who reads is told of all of it, under the last page's request.
  world_.Call(scheduler_, Verb::kAbort, BytesOf(protocol::AbortRequest{.token = written_}));
  bool is_told = false;
  for (const FakeMessage& news : world_.transport.Take(worker_)) {
    if (news.header.verb != Verb::kCompletion) continue;
    EXPECT_EQ(news.header.request_id, second.header.request_id);
    EXPECT_EQ(news.status(), StatusCode::kGone);
    is_told |= news.At<protocol::Completion>().first_block == 0;
  }
  EXPECT_TRUE(is_told);
}

void SessionJoin::WriteInPages() {
  std::vector<uint64_t> commit_ids;
  uint32_t page_count = 0;
  for (bool has_more = true; has_more; ++page_count) {
    const FakeMessage page =
        Join(written_, protocol::kJoinPaged, static_cast<uint32_t>(commit_ids.size()));
    const auto head = page.At<protocol::ReserveReply>();
    EXPECT_EQ(head.slot_count, head.key_count * kMembers);
    for (uint32_t i = 0; i < head.key_count; ++i) {
      const auto key =
          page.At<protocol::ReservedKey>(sizeof(head) + i * sizeof(protocol::ReservedKey));
      EXPECT_EQ(key.status, 0u);
      commit_ids.push_back(key.commit_id);
    }
    has_more = head.reserved == protocol::kJoinHasMore;
    ASSERT_GT(head.key_count, 0u);
  }
  EXPECT_EQ(commit_ids.size(), kBlocks);
  EXPECT_EQ(page_count, 3u);
  std::ranges::sort(commit_ids);
  EXPECT_EQ(std::ranges::adjacent_find(commit_ids), commit_ids.end()) << "no key came twice";
  Leave(written_);
}

void SessionJoin::AskForAPageOfAnothersLease() {
  const protocol::JoinRequest request{.token = written_, .group_handle = group_};
  std::vector<std::byte> body(sizeof(request) + sizeof(protocol::JoinPage));
  std::memcpy(body.data(), &request, sizeof(request));
  const protocol::JoinPage page{.first_block = 7};
  std::memcpy(body.data() + sizeof(request), &page, sizeof(page));
  EXPECT_EQ(world_.Call(worker_, Verb::kJoin, body).status(), StatusCode::kInvalid);
  const protocol::JoinPage beyond{.first_block = 0xFFFFFFFF};
  std::memcpy(body.data() + sizeof(request), &beyond, sizeof(beyond));
  const FakeMessage refused = world_.Call(worker_, Verb::kJoin, body);
  EXPECT_EQ(refused.status(), StatusCode::kInvalid);
  EXPECT_THAT(refused.text(), HasSubstr("262144"));
}

// One lease for all of them: it takes long to make.
TEST_F(SessionJoin, OfMoreSlotsThanAMessageHoldsIsAnsweredInPages) {
  AskForAPageOfAnothersLease();
  JoinWithoutPages();
  WriteInPages();
  LoseBlocksOfTheLastPage();
  ReadInPages();  // at the end the writer gives up
}

}  // namespace
}  // namespace terrace::test

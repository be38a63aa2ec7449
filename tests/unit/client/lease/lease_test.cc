// Leases against a scripted daemon: progress, revocation, ends.
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "unit/client/client_fixture.h"

namespace terrace {
namespace {

using protocol::Verb;

class Leases : public ClientFixture {
 protected:
  // Acquires answer 2 ready blocks of `count`; the rest is coming, or followed.
  void AnswerWithComing(protocol::SpanState rest) {
    daemon_.set_handler([this, rest](ScriptedDaemon& daemon, const PeerMessage& message) {
      if (message.verb != Verb::kAcquire) return false;
      acquire_id_ = message.request_id;
      const uint32_t count = message.Head<protocol::KeysRequest>().key_count;
      daemon.Answer(message, StatusCode::kOk, daemon.AcquireBody(count, 2, rest));
      return true;
    });
  }
  void Complete(StatusCode status, protocol::Completion completion) {
    completion.token = daemon_.last_token();
    BodyBuilder body;
    body.Add(completion);
    daemon_.Tell(Verb::kCompletion, acquire_id_, status, body.bytes());
  }
  size_t EndCount() {
    return daemon_.Received(Verb::kRelease).size() + daemon_.Received(Verb::kAbort).size();
  }

  std::atomic<uint64_t> acquire_id_{0};
};

TEST_F(Leases, ReadsTheBytesOfItsSlot) {
  const std::vector<std::byte> bytes(8192, std::byte{7});
  std::copy(bytes.begin(), bytes.end(), daemon_.arena() + 4 * 4096 + 8192);
  const ReadLease lease = Acquire(2);
  std::vector<std::byte> read(8192);
  EXPECT_TRUE(lease.CopyPart(1, 0, 1, read).ok());
  EXPECT_EQ(read, bytes);
  EXPECT_EQ(lease.slot(1, 0).size(), 16384u);
  EXPECT_EQ(lease.slot(1, 0)[8192], std::byte{7});
  EXPECT_TRUE(lease.slot(2, 0).empty());
  EXPECT_TRUE(lease.slot(0, 1).empty());
  EXPECT_EQ(lease.CopyPart(1, 0, 2, read).code(), StatusCode::kInvalid);
  EXPECT_EQ(lease.CopyPart(1, 0, 0, std::span(read).first(100)).code(), StatusCode::kInvalid);
}

TEST_F(Leases, ReleaseIsSentOnce) {
  ReadLease lease = Acquire(2);
  const LeaseToken token = lease.token();
  lease.Release(protocol::EndReason::kToolCall);
  lease.Release();
  EXPECT_FALSE(lease.is_valid());
  lease = ReadLease();
  ASSERT_TRUE(client_->Reset(group_).ok());
  const std::vector<PeerMessage> releases = daemon_.Received(Verb::kRelease);
  ASSERT_EQ(releases.size(), 1u);
  const auto release = releases[0].Head<protocol::ReleaseRequest>();
  EXPECT_EQ(release.token, token);
  EXPECT_EQ(release.hints.end_reason, protocol::EndReason::kToolCall);
}

TEST_F(Leases, AMissHasNothingToRelease) {
  daemon_.set_handler([](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != Verb::kAcquire) return false;
    daemon.Answer(message, StatusCode::kOk, daemon.AcquireBody(0, 0));
    return true;
  });
  EXPECT_EQ(Acquire(4).block_count(), 0u);
  ASSERT_TRUE(client_->Reset(group_).ok());
  EXPECT_EQ(EndCount(), 0u);
}

TEST_F(Leases, BlocksBecomeReadyInPrefixOrder) {
  AnswerWithComing(protocol::SpanState::kComing);
  const ReadLease lease = Acquire(10);
  EXPECT_EQ(lease.ready_count(), 2u);
  EXPECT_EQ(client_->WaitReady(lease, 4, 1'000).code(), StatusCode::kBusy);
  Complete(StatusCode::kOk, {.first_block = 4, .block_count = 2});
  Complete(StatusCode::kOk, {.first_block = 2, .block_count = 2});
  EXPECT_TRUE(client_->WaitReady(lease, 6, kLongUs).ok());
  EXPECT_EQ(lease.ready_count(), 6u);
  EXPECT_TRUE(lease.CopyPart(5, 0, 0, buffer_).ok());
  EXPECT_EQ(lease.CopyPart(6, 0, 0, buffer_).code(), StatusCode::kBusy);
  // The rest leaves the lease; what is before it may still come.
  Complete(StatusCode::kNotFound, {.first_block = 8});
  EXPECT_EQ(client_->WaitReady(lease, 9, kLongUs).code(), StatusCode::kNotFound);
  EXPECT_EQ(client_->WaitReady(lease, 8, 1'000).code(), StatusCode::kBusy);
  Complete(StatusCode::kOk, {.first_block = 6, .block_count = 4});
  EXPECT_TRUE(client_->WaitReady(lease, 8, kLongUs).ok());
  EXPECT_EQ(lease.ready_count(), 8u);
  EXPECT_TRUE(lease.is_valid());
}

TEST_F(Leases, AfterTheLastCompletionNothingIsWaitedFor) {
  AnswerWithComing(protocol::SpanState::kComing);
  const ReadLease lease = Acquire(4);
  Complete(StatusCode::kOk,
           {.first_block = 2, .block_count = 1, .flags = protocol::kCompletionLast});
  EXPECT_EQ(client_->WaitReady(lease, 4, kLongUs).code(), StatusCode::kNotFound);
  EXPECT_EQ(lease.ready_count(), 3u);
}

TEST_F(Leases, ProgressIsSeenWithoutACall) {
  AnswerWithComing(protocol::SpanState::kComing);
  const ReadLease lease = Acquire(4);
  Complete(StatusCode::kOk,
           {.first_block = 2, .block_count = 2, .flags = protocol::kCompletionLast});
  EXPECT_TRUE(Eventually([&] { return lease.ready_count() == 4; }));
}

TEST_F(Leases, FollowedBlocksAreReadPartByPartAndReadyOnceSealed) {
  AnswerWithComing(protocol::SpanState::kFollowing);
  const ReadLease lease = Acquire(4);
  EXPECT_TRUE(lease.is_part_ready(1, 0, 1));
  EXPECT_FALSE(lease.is_part_ready(2, 0, 0));
  Complete(StatusCode::kOk, {.first_block = 2, .block_count = 1, .part_first = 1, .part_count = 1});
  EXPECT_TRUE(Eventually([&] { return lease.is_part_ready(2, 0, 1); }));
  EXPECT_FALSE(lease.is_part_ready(2, 0, 0));
  EXPECT_FALSE(lease.is_part_ready(3, 0, 1));
  std::vector<std::byte> bytes(8192);
  EXPECT_TRUE(lease.CopyPart(2, 0, 1, bytes).ok());
  EXPECT_EQ(lease.CopyPart(2, 0, 0, bytes).code(), StatusCode::kBusy);
  Complete(StatusCode::kOk, {.first_block = 2, .block_count = 1, .part_count = 1});
  EXPECT_TRUE(Eventually([&] { return lease.is_part_ready(2, 0, 0); }));
  EXPECT_EQ(lease.ready_count(), 2u);
  Complete(StatusCode::kOk, {.first_block = 2, .block_count = 1});
  EXPECT_TRUE(client_->WaitReady(lease, 3, kLongUs).ok());
}

TEST_F(Leases, CompletionsOfReleasedOrForeignLeasesAreNothing) {
  AnswerWithComing(protocol::SpanState::kComing);
  ReadLease lease = Acquire(4);
  lease.Release();
  Complete(StatusCode::kOk, {.first_block = 2, .block_count = 0xFFFFFFFF});
  Complete(StatusCode::kOk, {.first_block = 0xFFFFFFFF, .block_count = 0xFFFFFFFF});
  ASSERT_TRUE(client_->Reset(group_).ok());
  EXPECT_TRUE(client_->is_connected());
}

TEST_F(Leases, ARevokedReadLeaseIsAcknowledgedByItsUser) {
  ReadLease lease = Acquire(2);
  Revoke(lease.token());
  ASSERT_TRUE(Eventually([&] { return !lease.is_valid(); }));
  EXPECT_EQ(client_->WaitReady(lease, 2, kLongUs).code(), StatusCode::kGone);
  EXPECT_EQ(lease.CopyPart(0, 0, 0, buffer_).code(), StatusCode::kGone);
  EXPECT_FALSE(lease.slot(0, 0).empty());  // it stays mapped
  ASSERT_TRUE(client_->Reset(group_).ok());
  EXPECT_EQ(EndCount(), 0u);
  lease.Release();
  EXPECT_TRUE(daemon_.WaitFor(Verb::kRelease, 1));
}

TEST_F(Leases, ARevokedWriteLeaseIsAcknowledgedAtOnceUnlessItsSlotsWereHandedOut) {
  WriteLease copied = Reserve(2);
  ASSERT_TRUE(copied.WritePart(0, 0, 0, part_).ok());
  Revoke(copied.token());
  ASSERT_TRUE(daemon_.WaitFor(Verb::kRelease, 1));
  EXPECT_EQ(copied.WritePart(0, 0, 1, part_).code(), StatusCode::kGone);
  EXPECT_TRUE(copied.slot(0, 0).empty());
  EXPECT_EQ(client_->Commit(copied).code(), StatusCode::kGone);
  copied.Abort();

  WriteLease raw = Reserve(2);
  EXPECT_FALSE(raw.slot(0, 0).empty());
  Revoke(raw.token());
  ASSERT_TRUE(Eventually([&] { return !raw.is_valid(); }));
  ASSERT_TRUE(client_->Reset(group_).ok());
  EXPECT_EQ(EndCount(), 1u);
  raw.Abort();
  EXPECT_TRUE(daemon_.WaitFor(Verb::kRelease, 2));
  ASSERT_TRUE(client_->Reset(group_).ok());
  EXPECT_EQ(EndCount(), 2u);
}

// The daemon's side of the fence: from the moment it has read the acknowledgement it owns the slot.
TEST_F(Leases, NoByteIsWrittenAfterTheAcknowledgement) {
  for (int round = 0; round < 50; ++round) {
    WriteLease lease = Reserve(1);
    const std::vector<std::byte> part(8192, std::byte{1});
    std::thread writer([&] {
      while (lease.WritePart(0, 0, 0, part).ok()) {
      }
    });
    Revoke(lease.token());
    ASSERT_TRUE(daemon_.WaitFor(Verb::kRelease, static_cast<size_t>(round) + 1));
    std::byte* slot = daemon_.arena() + kSegmentBytesMin;
    std::fill_n(slot, part.size(), std::byte{2});
    writer.join();
    EXPECT_EQ(std::count(slot, slot + part.size(), std::byte{1}), 0);
  }
}

// A page that cannot be written yet stops a copy in its middle, until the lease has ended.
std::atomic<bool> g_is_in_copy{false};
const ReadLease* g_copied_lease = nullptr;
std::byte* g_blocked_page = nullptr;
constexpr size_t kBlockedPageBytes = 4096;

void UnblockOnceInvalid(int, siginfo_t*, void*) {
  g_is_in_copy = true;
  while (g_copied_lease->is_valid()) {
  }
  mprotect(g_blocked_page, kBlockedPageBytes, PROT_READ | PROT_WRITE);
}

TEST_F(Leases, ACopyDuringWhichTheLeaseEndedIsNotBelieved) {
  ReadLease lease = Acquire(2);
  std::byte* to = static_cast<std::byte*>(mmap(
      nullptr, 2 * kBlockedPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(to, MAP_FAILED);
  g_copied_lease = &lease;
  g_blocked_page = to + kBlockedPageBytes;
  mprotect(g_blocked_page, kBlockedPageBytes, PROT_NONE);
  struct sigaction act = {}, before = {};
  act.sa_sigaction = UnblockOnceInvalid;
  act.sa_flags = SA_SIGINFO;
  ASSERT_EQ(sigaction(SIGSEGV, &act, &before), 0);
  std::thread revoker([&] {
    while (!g_is_in_copy) std::this_thread::yield();
    Revoke(lease.token());
  });
  EXPECT_EQ(lease.CopyPart(0, 0, 0, {to, 2 * kBlockedPageBytes}).code(), StatusCode::kGone);
  revoker.join();
  sigaction(SIGSEGV, &before, nullptr);
  munmap(to, 2 * kBlockedPageBytes);
}

TEST_F(Leases, AbortNamesWhatWasNotCommitted) {
  WriteLease lease = Reserve(3);
  for (uint32_t part = 0; part < 2; ++part) {
    ASSERT_TRUE(lease.WritePart(1, 0, part, part_).ok());
  }
  ASSERT_TRUE(lease.WritePart(2, 0, 0, part_).ok());
  ASSERT_TRUE(client_->Commit(lease).ok());
  lease.Abort();
  ASSERT_TRUE(daemon_.WaitFor(Verb::kRelease, 1));
  const std::vector<PeerMessage> aborts = daemon_.Received(Verb::kAbort);
  ASSERT_EQ(aborts.size(), 1u);
  ASSERT_EQ(aborts[0].Head<protocol::AbortRequest>().key_count, 2u);
  uint32_t indexes[2];
  std::memcpy(indexes, aborts[0].body.data() + sizeof(protocol::AbortRequest), sizeof(indexes));
  EXPECT_EQ(indexes[0], 0u);
  EXPECT_EQ(indexes[1], 2u);
}

TEST_F(Leases, AWhollyCommittedLeaseIsReleasedAndAnUntouchedOneAborted) {
  {
    WriteLease lease = Reserve(1);
    for (uint32_t part = 0; part < 2; ++part) {
      ASSERT_TRUE(lease.WritePart(0, 0, part, part_).ok());
    }
    ASSERT_TRUE(client_->Commit(lease).ok());
  }
  ASSERT_TRUE(daemon_.WaitFor(Verb::kRelease, 1));
  EXPECT_TRUE(daemon_.Received(Verb::kAbort).empty());
  Reserve(1);
  ASSERT_TRUE(daemon_.WaitFor(Verb::kAbort, 1));
  EXPECT_EQ(daemon_.Received(Verb::kAbort)[0].Head<protocol::AbortRequest>().key_count, 0u);
  ASSERT_TRUE(client_->Reset(group_).ok());
  EXPECT_EQ(EndCount(), 2u);  // which is an end as well
}

TEST_F(Leases, AnAbsentMembersSlotIsNoSlotAnyMore) {
  AnswerWithComing(protocol::SpanState::kFollowing);
  const ReadLease lease = Acquire(4);
  EXPECT_FALSE(lease.slot(2, 0).empty());
  Complete(
      StatusCode::kOk,
      {.first_block = 2, .block_count = 1, .part_count = 1, .flags = protocol::kCompletionAbsent});
  EXPECT_TRUE(Eventually([&] { return lease.slot(2, 0).empty(); }));
  EXPECT_FALSE(lease.slot(3, 0).empty());
  EXPECT_EQ(lease.ready_count(), 2u);
}

TEST_F(Leases, CommitWithReleaseEndsTheLease) {
  {
    WriteLease lease = Reserve(1);
    ASSERT_TRUE(lease.MarkWrittenPart(0, 0, 0).ok());
    ASSERT_TRUE(lease.MarkWrittenPart(0, 0, 1).ok());
    ASSERT_TRUE(client_->Commit(lease, {.flags = protocol::kCommitRelease}).ok());
    EXPECT_FALSE(lease.is_valid());
  }
  ASSERT_TRUE(client_->Reset(group_).ok());
  EXPECT_EQ(EndCount(), 0u);
  const PeerMessage commit = daemon_.Received(Verb::kCommit)[0];
  EXPECT_EQ(commit.Head<protocol::CommitRequest>().flags, protocol::kCommitRelease);
  // Unchecked parts carry no checksums and share one entry.
  EXPECT_EQ(commit.body.size(), sizeof(protocol::CommitRequest) + sizeof(protocol::CommitEntry));
}

TEST_F(Leases, PartsOfAnUnsentOrRefusedCommitAreTriedAgain) {
  WriteLease lease = Reserve(1);
  ASSERT_TRUE(lease.WritePart(0, 0, 1, part_).ok());
  daemon_.set_handler([](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != Verb::kCommit) return false;
    daemon.Answer(message, StatusCode::kBusy, {});
    return true;
  });
  EXPECT_EQ(client_->Commit(lease).code(), StatusCode::kBusy);
  daemon_.set_handler(nullptr);
  ASSERT_TRUE(lease.WritePart(0, 0, 0, part_).ok());
  ASSERT_TRUE(client_->Commit(lease).ok());
  EXPECT_EQ(*client_->Commit(lease), 0u);  // nothing is left
  const std::vector<PeerMessage> commits = daemon_.Received(Verb::kCommit);
  ASSERT_EQ(commits.size(), 2u);
  protocol::CommitEntry entry;
  std::memcpy(&entry, commits[1].body.data() + sizeof(protocol::CommitRequest), sizeof(entry));
  EXPECT_EQ(entry.part_first, 0u);
  EXPECT_EQ(entry.part_count, 2u);
}

TEST_F(Leases, OfAPartWrittenTwiceTheLaterChecksumIsCommitted) {
  WriteLease lease = Reserve(1);
  const std::vector<std::byte> other(8192, std::byte{3});
  ASSERT_TRUE(lease.WritePart(0, 0, 0, part_).ok());
  ASSERT_TRUE(lease.WritePart(0, 0, 0, other).ok());
  ASSERT_TRUE(client_->Commit(lease).ok());
  const PeerMessage commit = daemon_.Received(Verb::kCommit)[0];
  ASSERT_EQ(commit.Head<protocol::CommitRequest>().entry_count, 1u);
  Checksum sent;
  std::memcpy(&sent, commit.body.data() + commit.body.size() - sizeof(sent), sizeof(sent));
  EXPECT_EQ(sent, ChecksumPart(other, ChecksumSeed({}, {.space = TestGroup().members[0].spec.Id(),
                                                        .key = TestKeys(1)[0],
                                                        .commit_id = 1000,
                                                        .part_index = 0})));
}

TEST_F(Leases, OfOneTokenTheLastUserSendsEveryEnd) {
  ReadLease first = Acquire(2);
  const LeaseToken token = first.token();
  daemon_.set_handler([&](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != Verb::kJoin) return false;
    std::vector<std::byte> body = daemon.AcquireBody(2, 2);
    std::memcpy(body.data(), &token, sizeof(token));
    daemon.Answer(message, StatusCode::kOk, body);
    return true;
  });
  Result<ReadLease> joined = client_->JoinRead(group_, token, 1);
  ASSERT_TRUE(joined.ok());
  first.Release();
  ASSERT_TRUE(client_->Reset(group_).ok());
  EXPECT_EQ(EndCount(), 0u);
  EXPECT_TRUE(joined->is_valid());
  joined->Release();
  EXPECT_TRUE(daemon_.WaitFor(Verb::kRelease, 2));
}

TEST_F(Leases, ASegmentIsUnmappedOnceNoLeaseUsesIt) {
  ReadLease lease = Acquire(2);
  const auto revoke = [&](uint32_t segment) {
    BodyBuilder body;
    body.Add(protocol::SegmentRevoke{.segment = segment});
    daemon_.Tell(Verb::kSegmentRevoke, 0, StatusCode::kOk, body.bytes());
  };
  revoke(3);
  ASSERT_TRUE(daemon_.WaitFor(Verb::kUnmapped, 1));
  revoke(0);
  ASSERT_TRUE(client_->Reset(group_).ok());
  EXPECT_EQ(daemon_.Received(Verb::kUnmapped).size(), 1u);
  EXPECT_EQ(lease.slot(0, 0)[0], std::byte{0});
  lease = ReadLease();
  ASSERT_TRUE(daemon_.WaitFor(Verb::kUnmapped, 2));
  EXPECT_EQ(daemon_.Received(Verb::kUnmapped)[1].Head<protocol::UnmappedRequest>().segment, 0u);
  // It may come back.
  EXPECT_EQ(Acquire(2).slot(1, 0).size(), 16384u);
}

TEST_F(Leases, OutliveTheirClient) {
  daemon_.arena()[0] = std::byte{9};
  ReadLease read = Acquire(2);
  WriteLease write = Reserve(2);
  client_.reset();
  EXPECT_FALSE(read.is_valid());
  EXPECT_EQ(read.slot(0, 0)[0], std::byte{9});
  EXPECT_EQ(write.WritePart(0, 0, 0, part_).code(), StatusCode::kGone);
  EXPECT_FALSE(daemon_.IsLifeOver(0));
  read.Release();
  write.Abort();
  EXPECT_FALSE(daemon_.IsLifeOver(0));
  read = ReadLease();
  write = WriteLease();
  EXPECT_TRUE(daemon_.WaitLifeEnds(0));
}

TEST(LeaseLife, FramesShowLifeWhileLeasesAreHeld) {
  ScriptedDaemon daemon({.lease_ttl_ms = 30});
  Result<std::unique_ptr<Client>> client = Client::Create(TestOptions(daemon));
  ASSERT_TRUE(client.ok());
  const Result<GroupRef> group = (*client)->Open(TestGroup(), 1);
  ASSERT_TRUE(group.ok());
  const Result<ReadLease> lease = (*client)->Acquire(*group, TestKeys(1));
  ASSERT_TRUE(lease.ok());
  EXPECT_TRUE(daemon.WaitFor(Verb::kTouch, 3));
  EXPECT_EQ(daemon.Received(Verb::kTouch)[0].Head<protocol::TouchRequest>().token, lease->token());
}

}  // namespace
}  // namespace terrace

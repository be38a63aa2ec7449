// Parts of a write lease: until when they may be written, and which of their bytes are committed.
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "terrace/checksum.h"
#include "terrace/codec.h"
#include "unit/client/client_fixture.h"

namespace terrace {
namespace {

using protocol::Verb;

// Bytes of which the later half cannot be read until Go: who copies them stops in the middle.
class StuckBytes {
 public:
  StuckBytes() {
    bytes_ = static_cast<std::byte*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::fill_n(bytes_, kBytes, std::byte{3});
    mprotect(bytes_ + kBytes / 2, kBytes / 2, PROT_NONE);
    g_later_half = bytes_ + kBytes / 2;
    g_is_stuck = g_may_go = false;
    struct sigaction act = {};
    act.sa_sigaction = Wait;
    act.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &act, &before_);
  }
  ~StuckBytes() {
    sigaction(SIGSEGV, &before_, nullptr);
    munmap(bytes_, kBytes);
  }
  std::span<const std::byte> bytes() const { return {bytes_, kBytes}; }
  void WaitStuck() const {
    while (!g_is_stuck) std::this_thread::yield();
  }
  void Go() { g_may_go = true; }

 private:
  static constexpr size_t kBytes = 8192;
  static void Wait(int, siginfo_t*, void*) {
    g_is_stuck = true;
    while (!g_may_go) {
    }
    mprotect(g_later_half, kBytes / 2, PROT_READ);
  }
  static inline std::atomic<bool> g_is_stuck{false};
  static inline std::atomic<bool> g_may_go{false};
  static inline std::byte* g_later_half = nullptr;

  std::byte* bytes_ = nullptr;
  struct sigaction before_ = {};
};

class WrittenParts : public ClientFixture {
 protected:
  // Commits are taken, and answered by the test alone.
  void HoldCommits() {
    daemon_.set_handler(
        [](ScriptedDaemon&, const PeerMessage& message) { return message.verb == Verb::kCommit; });
  }
  // Ends with kBusy, after the daemon has it.
  void CommitInVain(WriteLease& lease, uint32_t flags = 0) {
    const size_t before = daemon_.Received(Verb::kCommit).size();
    RequestOptions options;
    options.flags = flags;
    options.deadline_us = 1'000;
    EXPECT_EQ(client_->Commit(lease, options).code(), StatusCode::kBusy);
    ASSERT_TRUE(daemon_.WaitFor(Verb::kCommit, before + 1));
    held_ = daemon_.Received(Verb::kCommit).back();
  }
  // Of the key's slot in the arena.
  std::byte FirstByte(uint32_t part) const { return arena_[part * part_.size()]; }
  void ExpectRefused(WriteLease& lease, uint32_t part, StatusCode code) {
    const std::byte before = FirstByte(part);
    EXPECT_EQ(lease.WritePart(0, member_, part, other_).code(), code);
    EXPECT_EQ(FirstByte(part), before) << "bytes were written before the part was refused";
    EXPECT_EQ(lease.ChecksumWrittenPart(0, member_, part).code(), code);
    EXPECT_EQ(lease.MarkWrittenPart(0, member_, part).code(), code);
  }
  // Entries of the last Commit.
  uint32_t EntryCount() {
    return daemon_.Received(Verb::kCommit).back().Head<protocol::CommitRequest>().entry_count;
  }
  GroupRef OpenWith(const SpaceGroupSpec& spec) {
    const Result<GroupRef> group = client_->Open(spec, (uint64_t{1} << spec.members.size()) - 1);
    EXPECT_TRUE(group.ok()) << client_->last_error();
    return group.ok() ? *group : GroupRef();
  }

  const std::byte* const arena_ = daemon_.arena() + kSegmentBytesMin;
  const std::vector<std::byte> other_ = std::vector<std::byte>(8192, std::byte{3});
  uint32_t member_ = 0;
  PeerMessage held_;
};

TEST_F(WrittenParts, KeepTheirBytesOnceTheyAreCommitted) {
  WriteLease lease = Reserve(1);
  ASSERT_TRUE(lease.WritePart(0, 0, 0, part_).ok());
  ASSERT_TRUE(client_->Commit(lease).ok());
  ExpectRefused(lease, 0, StatusCode::kExists);
  EXPECT_EQ(*client_->Commit(lease), 0u) << "there is nothing new";
  ASSERT_TRUE(lease.WritePart(0, 0, 1, part_).ok()) << "a part is committed, not its block";
  ASSERT_TRUE(client_->Commit(lease).ok());
  ExpectRefused(lease, 1, StatusCode::kExists);
}

TEST_F(WrittenParts, KeepTheirBytesAfterACommitThatEndedWithBusy) {
  HoldCommits();
  WriteLease lease = Reserve(1);
  ASSERT_TRUE(lease.WritePart(0, 0, 0, part_).ok());
  CommitInVain(lease);
  ExpectRefused(lease, 0, StatusCode::kExists);
  EXPECT_TRUE(lease.is_valid());
  // The daemon has not taken it after all.
  daemon_.Answer(held_, StatusCode::kBusy, {});
  EXPECT_TRUE(Eventually([&] { return lease.WritePart(0, 0, 0, other_).ok(); }));
  EXPECT_EQ(FirstByte(0), std::byte{3});
}

TEST_F(WrittenParts, MayBeWrittenAgainUntilACommitHasThem) {
  WriteLease lease = Reserve(1);
  ASSERT_TRUE(lease.WritePart(0, 0, 0, part_).ok());
  ASSERT_TRUE(lease.WritePart(0, 0, 0, other_).ok());
  ASSERT_TRUE(lease.ChecksumWrittenPart(0, 0, 0).ok());
  ASSERT_TRUE(client_->Commit(lease).ok());
  EXPECT_EQ(EntryCount(), 1u);
  EXPECT_EQ(FirstByte(0), std::byte{3});
}

TEST_F(WrittenParts, AreNotCommittedWhileAThreadWritesThemAgain) {
  WriteLease lease = Reserve(1);
  ASSERT_TRUE(lease.WritePart(0, 0, 0, part_).ok());
  StuckBytes stuck;
  Status written;
  std::thread writer([&] { written = lease.WritePart(0, 0, 0, stuck.bytes()); });
  stuck.WaitStuck();
  ExpectRefused(lease, 0, StatusCode::kBusy);
  ASSERT_TRUE(client_->Commit(lease).ok());
  EXPECT_EQ(EntryCount(), 0u) << "half of a part was committed";
  stuck.Go();
  writer.join();
  EXPECT_TRUE(written.ok());
  ASSERT_TRUE(client_->Commit(lease).ok());
  EXPECT_EQ(EntryCount(), 1u);
  const PeerMessage commit = daemon_.Received(Verb::kCommit).back();
  Checksum sent;
  std::memcpy(&sent, commit.body.data() + commit.body.size() - sizeof(sent), sizeof(sent));
  EXPECT_EQ(sent, ChecksumPart(other_, ChecksumSeed({}, {.space = TestGroup().members[0].spec.Id(),
                                                         .key = TestKeys(1)[0],
                                                         .commit_id = 1000,
                                                         .part_index = 0})));
}

TEST_F(WrittenParts, OfAnAbsentMemberAreNone) {
  SpaceGroupSpec group = TestGroup();
  group.name = "windowed";
  SpaceSpec& windowed = group.members.emplace_back(group.members[0]).spec;
  windowed.attention = AttentionKind::kSliding;
  windowed.window_tokens = 32;
  windowed.attention_group = 1;
  group_ = OpenWith(group);
  member_ = 1;
  daemon_.set_handler([this](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != Verb::kReserve) return false;
    std::vector<std::byte> body = daemon.ReserveBody(1);
    protocol::ReserveReply head;
    std::memcpy(&head, body.data(), sizeof(head));
    head.member_mask = uint64_t{1} << member_;
    std::memcpy(body.data(), &head, sizeof(head));
    daemon.Answer(message, StatusCode::kOk, body);
    return true;
  });
  WriteLease lease = Reserve(1);
  ASSERT_TRUE(lease.WritePart(0, member_, 1, part_).ok());
  ASSERT_TRUE(lease.MarkAbsent(0, member_).ok());
  ASSERT_TRUE(client_->Commit(lease).ok());
  EXPECT_EQ(EntryCount(), 1u) << "an absent member has no parts";
  ExpectRefused(lease, 0, StatusCode::kExists);
  ExpectRefused(lease, 1, StatusCode::kExists);
  WriteLease started = Reserve(1);
  ASSERT_TRUE(started.WritePart(0, member_, 1, part_).ok());
  ASSERT_TRUE(client_->Commit(started).ok());
  EXPECT_EQ(started.MarkAbsent(0, member_).code(), StatusCode::kExists) << "it has a part";
}

TEST_F(WrittenParts, ThatTheCodecRefusedAreNotCommittedAsTheyWere) {
  SpaceGroupSpec coded = TestGroup();
  coded.name = "coded";
  std::string why;
  ASSERT_TRUE(ApplyCodec(Codec::kInt8, 2, &coded.members[0].spec, &why).ok()) << why;
  group_ = OpenWith(coded);
  WriteLease lease = Reserve(1);
  std::vector<std::byte> engines(lease.part_bytes(0)[0]);
  ASSERT_TRUE(lease.WritePart(0, 0, 0, engines).ok());
  std::fill_n(engines.end() - 2, 2, std::byte{0xFF});  // a NaN at the end
  EXPECT_EQ(lease.WritePart(0, 0, 0, engines).code(), StatusCode::kUnsupported);
  ASSERT_TRUE(client_->Commit(lease).ok());
  EXPECT_TRUE(daemon_.Received(Verb::kCommit).empty()) << "half of a part was committed";
  std::fill_n(engines.end() - 2, 2, std::byte{0});
  ASSERT_TRUE(lease.WritePart(0, 0, 0, engines).ok()) << "it may be written still";
  ASSERT_TRUE(client_->Commit(lease).ok());
  EXPECT_EQ(EntryCount(), 1u);
}

// A lease of two blocks: a part of one was refused, and a part of the other waits for a Commit.
class RefusedParts : public WrittenParts {
 protected:
  void SetUp() override {
    ClientOptions options = TestOptions(daemon_);
    options.send_buffer_bytes_max = 1 << 20;
    options.pending_requests_max = 128;
    Connect(options);
    SpaceGroupSpec coded = TestGroup();
    coded.name = "coded";
    std::string why;
    ASSERT_TRUE(ApplyCodec(Codec::kInt8, 2, &coded.members[0].spec, &why).ok()) << why;
    group_ = OpenWith(coded);
    lease_ = Reserve(2);
    std::vector<std::byte> engines(lease_.part_bytes(0)[0]);
    ASSERT_TRUE(lease_.WritePart(1, 0, 0, engines).ok());
    std::fill_n(engines.end() - 2, 2, std::byte{0xFF});  // a NaN
    ASSERT_EQ(lease_.WritePart(0, 0, 0, engines).code(), StatusCode::kUnsupported);
  }
  uint8_t ToldByTheLastCommit() {
    return daemon_.Received(Verb::kCommit).back().Head<protocol::CommitRequest>().hints.by_verb;
  }

  WriteLease lease_;
};

TEST_F(RefusedParts, AreToldOnce) {
  ASSERT_TRUE(client_->Commit(lease_).ok());
  EXPECT_EQ(ToldByTheLastCommit(), 1u);
  lease_.Abort();
  ASSERT_TRUE(daemon_.WaitFor(Verb::kAbort, 1));
  const PeerMessage abort = daemon_.Received(Verb::kAbort)[0];
  EXPECT_EQ(abort.Head<protocol::AbortRequest>().parts_refused, 0u);
}

TEST_F(RefusedParts, AreToldByTheNextCommitIfOneCouldNotBeSent) {
  daemon_.StopReading([&] {
    const std::vector<BlockKey> keys = TestKeys(50'000);
    // To the last bytes of what the socket and the buffer hold.
    for (size_t count = keys.size(); count > 0; count /= 2) {
      const auto some = std::span(keys).first(count);
      while (client_->PrefetchAsync(group_, some, {.deadline_us = kLongUs}, 0).ok()) {
      }
    }
    EXPECT_EQ(client_->Commit(lease_).code(), StatusCode::kBusy);
  });
  ASSERT_TRUE(Eventually([&] { return client_->Match(group_, TestKeys(1)).ok(); }));
  ASSERT_TRUE(daemon_.Received(Verb::kCommit).empty());
  ASSERT_TRUE(client_->Commit(lease_).ok());
  EXPECT_EQ(ToldByTheLastCommit(), 1u);
}

TEST_F(RefusedParts, AreToldByTheNextCommitIfTheDaemonTookNone) {
  daemon_.set_handler([](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != Verb::kCommit) return false;
    daemon.Answer(message, StatusCode::kBusy, {});
    return true;
  });
  EXPECT_EQ(client_->Commit(lease_).code(), StatusCode::kBusy);
  daemon_.set_handler(nullptr);
  ASSERT_TRUE(client_->Commit(lease_).ok());
  EXPECT_EQ(ToldByTheLastCommit(), 1u);
}

TEST_F(RefusedParts, AreToldByTheNextCommitIfOneFoundNoRoomAmongOthers) {
  daemon_.set_handler(
      [](ScriptedDaemon&, const PeerMessage& message) { return message.verb == Verb::kPrefetch; });
  uint64_t pending_count = 0;
  const std::vector<BlockKey> keys = TestKeys(1);
  while (client_->PrefetchAsync(group_, keys, {.deadline_us = kLongUs}, 0).ok()) ++pending_count;
  ASSERT_EQ(pending_count, 128u);
  EXPECT_EQ(client_->Commit(lease_).code(), StatusCode::kBusy);
  ASSERT_TRUE(daemon_.WaitFor(Verb::kPrefetch, pending_count));
  for (const PeerMessage& late : daemon_.Received(Verb::kPrefetch)) daemon_.AnswerAsUsual(late);
  ASSERT_TRUE(Eventually([&] { return client_->Match(group_, TestKeys(1)).ok(); }));
  ASSERT_TRUE(client_->Commit(lease_).ok());
  EXPECT_EQ(ToldByTheLastCommit(), 1u);
}

TEST_F(WrittenParts, AreOverWithACommitThatReleases) {
  HoldCommits();
  {
    WriteLease lease = Reserve(1);
    ASSERT_TRUE(lease.WritePart(0, 0, 0, part_).ok());
    CommitInVain(lease, protocol::kCommitRelease);
    EXPECT_FALSE(lease.is_valid());
    EXPECT_TRUE(lease.slot(0, 0).empty()) << "it may be another block's";
    EXPECT_EQ(lease.WritePart(0, 0, 1, other_).code(), StatusCode::kGone);
    EXPECT_EQ(FirstByte(1), std::byte{0});
    EXPECT_EQ(client_->Commit(lease).code(), StatusCode::kGone);
    EXPECT_TRUE(daemon_.Received(Verb::kAbort).empty());
  }
  EXPECT_TRUE(daemon_.WaitFor(Verb::kAbort, 1)) << "nobody knows whether the daemon took it";
}

TEST_F(WrittenParts, GoOnIfTheDaemonDidNotTakeTheCommitThatReleases) {
  HoldCommits();
  WriteLease lease = Reserve(1);
  ASSERT_TRUE(lease.WritePart(0, 0, 0, part_).ok());
  CommitInVain(lease, protocol::kCommitRelease);
  WriteLease ended = Reserve(1);
  ASSERT_TRUE(ended.WritePart(0, 0, 0, part_).ok());
  const PeerMessage first = held_;
  CommitInVain(ended, protocol::kCommitRelease);
  ended.Abort();
  daemon_.Answer(first, StatusCode::kBusy, {});
  daemon_.Answer(held_, StatusCode::kBusy, {});
  ASSERT_TRUE(Eventually([&] { return lease.is_valid(); }));
  EXPECT_FALSE(ended.is_valid()) << "its user has ended it";
  ASSERT_TRUE(lease.WritePart(0, 0, 1, part_).ok());
  daemon_.set_handler(nullptr);
  ASSERT_TRUE(client_->Commit(lease, {.flags = protocol::kCommitRelease}).ok());
  EXPECT_EQ(EntryCount(), 1u) << "both parts, which lie side by side";
  EXPECT_FALSE(lease.is_valid());
}

TEST_F(WrittenParts, AreGoneIfTheLeaseWasRevokedUnderACommitThatReleases) {
  HoldCommits();
  WriteLease lease = Reserve(1);
  ASSERT_TRUE(lease.WritePart(0, 0, 0, part_).ok());
  ASSERT_FALSE(lease.slot(0, 0).empty());
  CommitInVain(lease, protocol::kCommitRelease);
  Revoke(lease.token());
  daemon_.Answer(held_, StatusCode::kBusy, {});
  ASSERT_TRUE(client_->Reset(group_).ok());
  EXPECT_FALSE(lease.is_valid());
}

}  // namespace
}  // namespace terrace

// The blocking verbs against a scripted daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cstring>

#include "terrace/chunk.h"
#include "terrace/codec.h"
#include "unit/client/client_fixture.h"

namespace terrace {
namespace {

using protocol::Verb;
using testing::MatchesRegex;

using ClientCalls = ClientFixture;

// What a thread does that is cancelled while it waits in a call.
struct CancelledThread {
  Client* client = nullptr;
  GroupRef group;
  std::atomic<bool> has_returned{false};

  static void* Run(void* self) {
    auto& thread = *static_cast<CancelledThread*>(self);
    const Result<ReadLease> lease = thread.client->Acquire(thread.group, TestKeys(2));
    thread.has_returned = lease.ok();
    pthread_testcancel();
    return nullptr;
  }
};

TEST_F(ClientCalls, ACancelledThreadReturnsFromItsCallFirst) {
  daemon_.set_handler(
      [](ScriptedDaemon&, const PeerMessage& message) { return message.verb == Verb::kAcquire; });
  CancelledThread thread{.client = client_.get(), .group = group_};
  pthread_t handle;
  ASSERT_EQ(pthread_create(&handle, nullptr, CancelledThread::Run, &thread), 0);
  ASSERT_TRUE(daemon_.WaitFor(Verb::kAcquire, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it reads, and sleeps
  pthread_cancel(handle);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  daemon_.set_handler(nullptr);
  daemon_.AnswerAsUsual(daemon_.Received(Verb::kAcquire)[0]);
  void* result = nullptr;
  ASSERT_EQ(pthread_join(handle, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_TRUE(thread.has_returned);
  EXPECT_TRUE(daemon_.WaitFor(Verb::kRelease, 1)) << "its lease went with it";
  EXPECT_EQ(Acquire(2).block_count(), 2u) << "what it held is free";
}

TEST_F(ClientCalls, EveryVerbIsAnswered) {
  const std::vector<BlockKey> keys = TestKeys(128);
  EXPECT_TRUE(client_->is_connected());
  EXPECT_EQ(client_->boot_id(), 1u);
  EXPECT_EQ(client_->Match(group_, keys)->block_count, 128u);
  Result<ReadLease> read = client_->Acquire(group_, keys);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->block_count(), 128u);
  EXPECT_EQ(read->ready_count(), 128u);
  EXPECT_EQ(read->token_count(), 2048u);
  EXPECT_EQ(*client_->Prefetch(group_, keys), 128u);
  EXPECT_TRUE(client_->Touch(group_, keys).ok());
  std::vector<protocol::QueriedBlock> blocks;
  EXPECT_TRUE(client_->Query(group_, keys, &blocks).ok());
  ASSERT_EQ(blocks.size(), 128u);
  EXPECT_EQ(blocks[127].commit_id, 127u);
  EXPECT_TRUE(client_->WaitPersisted(group_, keys).ok());
  EXPECT_EQ(client_->Evict(GroupRef(), keys)->block_count, 128u);
  EXPECT_EQ(*client_->Pin(group_, keys), 128u);
  EXPECT_TRUE(client_->Reset(group_).ok());
  EXPECT_EQ(*client_->Stats(), "{}");
  uint64_t cursor = 1;
  EXPECT_EQ(client_->List({.entry_count_max = 10}, &cursor)->size(), 1u);
  EXPECT_EQ(cursor, 0u);
  EXPECT_TRUE(client_->Hasher(group_).ok());
}

TEST_F(ClientCalls, AGroupOfChunksHasKeysOfChunks) {
  SpaceGroupSpec spec = TestGroup();
  spec.name = "chunks";
  std::string why;
  ASSERT_TRUE(ApplyChunks(&spec.members[0].spec, &why).ok()) << why;
  const Result<GroupRef> group = client_->Open(spec, 1);
  ASSERT_TRUE(group.ok()) << client_->last_error();
  const PrefixHasher::Options options{.group = spec.Id(), .block_tokens = spec.block_tokens()};
  const std::vector<uint32_t> tokens(spec.block_tokens(), 7);
  const auto first = [&](const PrefixHasher& hasher) { return hasher.Next(hasher.Root(), tokens); };
  const BlockKey key = first(client_->Hasher(*group).value());
  EXPECT_EQ(key, first(ChunkHasher(options, DomainSecret{})));
  EXPECT_NE(key, first(PrefixHasher(options, DomainSecret{})));
}

TEST_F(ClientCalls, WrittenBytesAreInTheArenaAndCommittedWithTheirChecksums) {
  const std::vector<BlockKey> keys = TestKeys(2);
  Result<WriteLease> lease = client_->Reserve(group_, keys);
  ASSERT_TRUE(lease.ok());
  const std::vector<std::byte> bytes(8192, std::byte{0x5a});
  for (uint32_t key = 0; key < 2; ++key) {
    ASSERT_TRUE(lease->WritePart(key, 0, 0, bytes).ok());
    ASSERT_TRUE(lease->WritePart(key, 0, 1, bytes).ok());
  }
  EXPECT_EQ(*client_->Commit(*lease), 2u);
  EXPECT_EQ(daemon_.arena()[kSegmentBytesMin + 8191], std::byte{0x5a});
  const std::vector<PeerMessage> commits = daemon_.Received(Verb::kCommit);
  ASSERT_EQ(commits.size(), 1u);
  const auto request = commits[0].Head<protocol::CommitRequest>();
  EXPECT_EQ(request.token, lease->token());
  ASSERT_EQ(request.entry_count, 2u);
  protocol::CommitEntry entries[2];
  ASSERT_EQ(commits[0].body.size(), sizeof(request) + sizeof(entries) + 4 * sizeof(Checksum));
  std::memcpy(entries, commits[0].body.data() + sizeof(request), sizeof(entries));
  EXPECT_EQ(entries[1].key_index, 1u);
  EXPECT_EQ(entries[1].part_count, 2u);
  EXPECT_EQ(entries[1].flags, protocol::kCommitHasChecksums);
  EXPECT_EQ(entries[1].row, 1u);
  EXPECT_EQ(entries[1].segment, 1u);
  EXPECT_EQ(entries[1].generation, 9u);
  Checksum last;
  std::memcpy(&last, commits[0].body.data() + commits[0].body.size() - sizeof(last), sizeof(last));
  const uint64_t seed = ChecksumSeed({}, {.space = TestGroup().members[0].spec.Id(),
                                          .key = keys[1],
                                          .commit_id = 1001,
                                          .part_index = 1});
  EXPECT_EQ(last, ChecksumPart(bytes, seed));
}

// PROMISE: T23 a daemon that is silent
TEST_F(ClientCalls, ASilentDaemonCostsTheDeadlineAndNoMore) {
  daemon_.set_handler([](ScriptedDaemon&, const PeerMessage&) { return true; });
  const Result<MatchResult> match = client_->Match(group_, TestKeys(4), {.deadline_us = 20'000});
  EXPECT_EQ(match.code(), StatusCode::kBusy);
  EXPECT_THAT(client_->last_error(),
              MatchesRegex("the daemon has not answered by the deadline .request [0-9]+ of .*"));
  EXPECT_TRUE(client_->is_connected());
}

// A client that takes longer to read what is told than the daemon to tell it: it looks through many
// leases for a token that none of them has.
class ToldMore : public ClientFixture {
 protected:
  static constexpr LeaseToken kNobodys{.low = 1024, .high = 1};  // of the bucket of all the others

  void ConnectSpinning(uint32_t reply_spin_us) {
    ClientOptions options = TestOptions(daemon_);
    options.reply_spin_us = reply_spin_us;
    leases_.clear();
    client_.reset();
    Connect(options);
    uint64_t lease_count = 0;
    daemon_.set_handler([&](ScriptedDaemon& daemon, const PeerMessage& message) {
      if (message.verb != Verb::kAcquire) return false;
      std::vector<std::byte> body = daemon.AcquireBody(1, 1);
      const LeaseToken token{.low = 1024 * ++lease_count, .high = 2};
      std::memcpy(body.data(), &token, sizeof(token));
      daemon.Answer(message, StatusCode::kOk, body);
      return true;
    });
    for (int i = 0; i < 1'000; ++i) leases_.push_back(Acquire(1));
    daemon_.set_handler(nullptr);
  }
  static std::vector<std::byte> ManyRevocations(const ScriptedDaemon& daemon) {
    BodyBuilder body;
    body.Add(protocol::LeaseRevoked{.token = kNobodys});
    const std::vector<std::byte> one =
        daemon.Frames(Verb::kLeaseRevoked, 0, StatusCode::kOk, body.bytes());
    std::vector<std::byte> many;
    while (many.size() < 1'000'000) many.insert(many.end(), one.begin(), one.end());
    return many;
  }

  std::vector<ReadLease> leases_;
};

// PROMISE: T23 a daemon that always says more
TEST_F(ToldMore, ACallEndsByItsDeadlineThoughThereIsAlwaysMoreToRead) {
  constexpr int kTellsMax = 100;
  for (const uint32_t spin_us : {0, 50}) {
    ConnectSpinning(spin_us);
    std::atomic<bool> has_returned = false;
    std::atomic<bool> has_ended = false;
    std::atomic<int> tell_count = 0;
    daemon_.set_handler([&](ScriptedDaemon& daemon, const PeerMessage& message) {
      if (message.verb != Verb::kMatch) return false;
      const std::vector<std::byte> many = ManyRevocations(daemon);
      for (; !has_returned && tell_count < kTellsMax; ++tell_count) daemon.SendBytes(many);
      return has_ended = true;
    });
    EXPECT_EQ(client_->Match(group_, TestKeys(1), {.deadline_us = 20'000}).code(),
              StatusCode::kBusy);
    EXPECT_LT(tell_count, kTellsMax) << "the daemon ended first; reply_spin_us " << spin_us;
    has_returned = true;
    daemon_.Disconnect();  // what is told goes nowhere
    ASSERT_TRUE(Eventually([&] { return has_ended.load(); }));
    daemon_.set_handler(nullptr);
  }
}

TEST_F(ClientCalls, TheDeadlineTravelsWithTheRequestUnlessItNamesAnother) {
  ASSERT_TRUE(client_->Match(group_, TestKeys(1), {.deadline_us = 1'234'567}).ok());
  RequestOptions options{.deadline_us = 1'234'567};
  options.hints.deadline_us = 99;
  ASSERT_TRUE(client_->Match(group_, TestKeys(1), options).ok());
  const std::vector<PeerMessage> matches = daemon_.Received(Verb::kMatch);
  EXPECT_EQ(matches[0].Head<protocol::KeysRequest>().hints.deadline_us, 1'234'567u);
  EXPECT_EQ(matches[1].Head<protocol::KeysRequest>().hints.deadline_us, 99u);
}

TEST_F(ClientCalls, TheAnswerAndTheBytesHaveDeadlinesOfTheirOwn) {
  const auto keys = TestKeys(1);
  ASSERT_TRUE(client_->Acquire(group_, keys, {.deadline_us = 200'000}).ok());
  ASSERT_TRUE(
      client_->Acquire(group_, keys, {.deadline_us = 200'000, .load_deadline_us = 3'000'000}).ok());
  ASSERT_TRUE(client_->Acquire(group_, keys, {.deadline_us = 20'000'000}).ok());
  ASSERT_TRUE(client_->Prefetch(group_, keys, {.deadline_us = 200'000}).ok());
  ASSERT_TRUE(client_->Reserve(group_, keys, {.deadline_us = 64'000}).ok());
  const auto hints = [&](Verb verb, size_t index) {
    return daemon_.Received(verb)[index].Head<protocol::KeysRequest>().hints;
  };
  EXPECT_EQ(hints(Verb::kAcquire, 0).deadline_us, kLoadDeadlineUsDefault);
  EXPECT_EQ(hints(Verb::kAcquire, 0).by_verb, 200u);  // ms
  EXPECT_EQ(hints(Verb::kAcquire, 1).deadline_us, 3'000'000u);
  EXPECT_EQ(hints(Verb::kAcquire, 2).deadline_us, 20'000'000u);
  EXPECT_EQ(hints(Verb::kAcquire, 2).by_verb, 255u);
  EXPECT_EQ(hints(Verb::kPrefetch, 0).deadline_us, kLoadDeadlineUsDefault);
  EXPECT_EQ(hints(Verb::kReserve, 0).deadline_us, 64'000u);
  EXPECT_EQ(hints(Verb::kReserve, 0).by_verb, 3u);  // of 16 ms: three quarters
}

TEST_F(ClientCalls, ALateAnswersLeaseIsReleased) {
  daemon_.set_handler(
      [](ScriptedDaemon&, const PeerMessage& message) { return message.verb == Verb::kAcquire; });
  EXPECT_EQ(client_->Acquire(group_, TestKeys(4), {.deadline_us = 10'000}).code(),
            StatusCode::kBusy);
  ASSERT_TRUE(daemon_.WaitFor(Verb::kAcquire, 1));
  daemon_.AnswerAsUsual(daemon_.Received(Verb::kAcquire)[0]);
  const LeaseToken token = daemon_.last_token();
  ASSERT_TRUE(daemon_.WaitFor(Verb::kRelease, 1));
  EXPECT_EQ(daemon_.Received(Verb::kRelease)[0].Head<protocol::ReleaseRequest>().token, token);
}

TEST_F(ClientCalls, ALateAnswersSlotIsUsedAgain) {
  ClientOptions options = TestOptions(daemon_);
  options.pending_requests_max = 2;
  client_.reset();
  Connect(options);
  daemon_.set_handler(
      [](ScriptedDaemon&, const PeerMessage& message) { return message.verb == Verb::kReserve; });
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(client_->Reserve(group_, TestKeys(4), {.deadline_us = 10'000}).code(),
              StatusCode::kBusy);
  }
  // Both slots wait for their late answers.
  const Result<MatchResult> refused = client_->Match(group_, TestKeys(1));
  EXPECT_EQ(refused.code(), StatusCode::kBusy);
  EXPECT_TRUE(daemon_.Received(Verb::kMatch).empty());
  ASSERT_TRUE(daemon_.WaitFor(Verb::kReserve, 2));
  for (const PeerMessage& late : daemon_.Received(Verb::kReserve)) daemon_.AnswerAsUsual(late);
  ASSERT_TRUE(daemon_.WaitFor(Verb::kRelease, 2));
  EXPECT_TRUE(client_->Match(group_, TestKeys(1)).ok());
}

TEST_F(ClientCalls, AFullSendBufferIsBusyAtOnce) {
  ClientOptions options = TestOptions(daemon_);
  options.send_buffer_bytes_max = 1 << 20;
  client_.reset();
  Connect(options);
  daemon_.StopReading([&] {
    const std::vector<BlockKey> keys = TestKeys(50'000);
    StatusCode last = StatusCode::kOk;
    int sent = 0;
    // Far more than the socket and the buffer hold: 100 × 800 kB.
    for (; sent < 100; ++sent) {
      const Status status = client_->PrefetchAsync(group_, keys, {.deadline_us = kLongUs}, 0);
      last = status.code();
      if (!status.ok()) break;
    }
    EXPECT_EQ(last, StatusCode::kBusy);
    EXPECT_GT(sent, 0);
    // A blocking call of another verb is refused too, though its deadline is far away.
    EXPECT_EQ(client_->Match(group_, keys, {.deadline_us = kLongUs}).code(), StatusCode::kBusy);
  });
  // What was kept is sent once the daemon reads again.
  EXPECT_TRUE(Eventually([&] { return client_->Match(group_, TestKeys(1)).ok(); }));
}

TEST_F(ClientCalls, LongMessagesArePagedInBothDirections) {
  const std::vector<BlockKey> keys = TestKeys(200'000);  // 3.2 MB
  daemon_.set_handler([](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != Verb::kQuery) return false;
    daemon.SendBytes(daemon.Frames(message.verb, message.request_id, StatusCode::kOk,
                                   daemon.UsualBody(message), 4096));
    return true;
  });
  std::vector<protocol::QueriedBlock> blocks;
  ASSERT_TRUE(client_->Query(group_, keys, &blocks).ok()) << client_->last_error();
  ASSERT_EQ(blocks.size(), keys.size());
  EXPECT_EQ(blocks[199'999].commit_id, 199'999u);
  const std::vector<PeerMessage> queries = daemon_.Received(Verb::kQuery);
  BlockKey last;
  std::memcpy(&last, queries[0].body.data() + queries[0].body.size() - sizeof(last), sizeof(last));
  EXPECT_EQ(last, keys.back());
}

TEST_F(ClientCalls, AnswersMayDripOrComeTogether) {
  daemon_.set_handler([](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != Verb::kAcquire) return false;
    const std::vector<std::byte> frames =
        daemon.Frames(message.verb, message.request_id, StatusCode::kOk, daemon.UsualBody(message));
    for (const std::byte& byte : frames) daemon.SendBytes(std::span(&byte, 1));
    return true;
  });
  EXPECT_EQ(Acquire(32).block_count(), 32u);
  const auto together = std::make_shared<std::vector<std::byte>>();
  daemon_.set_handler([together](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != Verb::kPrefetch) return false;
    const std::vector<std::byte> frames =
        daemon.Frames(message.verb, message.request_id, StatusCode::kOk, daemon.UsualBody(message));
    together->insert(together->end(), frames.begin(), frames.end());
    if (daemon.Received(Verb::kPrefetch).size() == 3) daemon.SendBytes(*together);
    return true;
  });
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(client_->PrefetchAsync(group_, TestKeys(1), {}, i).ok());
  }
  uint64_t seen = 0;
  ClientCompletion completion;
  EXPECT_TRUE(Eventually([&] {
    while (client_->Poll(&completion)) seen |= uint64_t{1} << completion.user_data;
    return seen == 7;
  }));
}

TEST_F(ClientCalls, TheDaemonsRefusalIsTheCallersStatusAndSentence) {
  daemon_.set_handler([](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != Verb::kReset) return false;
    BodyBuilder text;
    text.AddText("group 3 is leased; release it");
    daemon.Answer(message, StatusCode::kInvalid, text.bytes());
    return true;
  });
  EXPECT_EQ(client_->Reset(group_).code(), StatusCode::kInvalid);
  EXPECT_THAT(client_->last_error(),
              MatchesRegex("group 3 is leased; release it .request [0-9]+ of session [0-9a-f]+."));
  EXPECT_TRUE(client_->is_connected());
}

TEST_F(ClientCalls, WhatCannotBeAskedIsRefusedBeforeItIsSent) {
  EXPECT_EQ(client_->Match(GroupRef{7}, TestKeys(1)).code(), StatusCode::kInvalid);
  EXPECT_EQ(client_->Match(group_, TestKeys(1), {.member_mask = 2}).code(), StatusCode::kInvalid);
  EXPECT_EQ(client_->Match(group_, TestKeys(protocol::kKeysPerRequestMax + 1)).code(),
            StatusCode::kInvalid);
  const uint64_t hash = 1;
  EXPECT_EQ(client_->Reserve(group_, TestKeys(2), {.event_hashes = {&hash, 1}}).code(),
            StatusCode::kInvalid);
  EXPECT_TRUE(daemon_.Received(Verb::kMatch).empty());
  EXPECT_TRUE(daemon_.Received(Verb::kReserve).empty());
}

TEST_F(ClientCalls, AJoinOfTheOtherKindIsTheCallersMistake) {
  daemon_.set_handler([](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb != Verb::kJoin) return false;
    daemon.Answer(message, StatusCode::kOk, daemon.ReserveBody(3));
    return true;
  });
  EXPECT_EQ(client_->JoinRead(group_, {.low = 5, .high = 5}, 0).code(), StatusCode::kInvalid);
  EXPECT_TRUE(daemon_.WaitFor(Verb::kRelease, 1));
  Result<WriteLease> lease = client_->JoinWrite(group_, {.low = 5, .high = 5}, 0);
  ASSERT_TRUE(lease.ok());
  // Its keys are not known here, so the daemon makes the checksums.
  EXPECT_TRUE(lease->WritePart(2, 0, 1, part_).ok());
  ASSERT_TRUE(client_->Commit(*lease).ok());
  EXPECT_EQ(daemon_.Received(Verb::kCommit)[0].body.size(),
            sizeof(protocol::CommitRequest) + sizeof(protocol::CommitEntry));
}

}  // namespace
}  // namespace terrace

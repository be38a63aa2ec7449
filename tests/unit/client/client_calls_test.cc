// The blocking verbs against a scripted daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "unit/client/scripted_daemon.h"

namespace terrace {
namespace {

using protocol::Verb;

constexpr uint64_t kLongUs = 10'000'000;

class ClientCalls : public testing::Test {
 protected:
  void SetUp() override { Connect(TestOptions(daemon_)); }

  void Connect(const ClientOptions& options) {
    Result<std::unique_ptr<Client>> client = Client::Create(options);
    ASSERT_TRUE(client.ok());
    client_ = std::move(client).value();
    ASSERT_TRUE(client_->WaitConnected(kLongUs).ok()) << client_->last_error();
    Result<GroupRef> group = client_->Open(TestGroup(), 1);
    ASSERT_TRUE(group.ok()) << client_->last_error();
    group_ = *group;
  }

  ScriptedDaemon daemon_;
  std::unique_ptr<Client> client_;
  GroupRef group_;
};

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

TEST_F(ClientCalls, ASilentDaemonCostsTheDeadlineAndNoMore) {
  daemon_.set_handler([](ScriptedDaemon&, const PeerMessage&) { return true; });
  const Result<MatchResult> match = client_->Match(group_, TestKeys(4), {.deadline_us = 20'000});
  EXPECT_EQ(match.code(), StatusCode::kBusy);
  EXPECT_TRUE(client_->is_connected());
}

}  // namespace
}  // namespace terrace

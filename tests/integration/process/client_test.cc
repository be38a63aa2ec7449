// The library against a real terraced: what it stores, loads, survives.
#include "terrace/client.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "integration/process/daemon_process.h"

namespace terrace::test {
namespace {

constexpr uint64_t kLongUs = 30'000'000;
constexpr uint32_t kSegments = 10;  // of 2 MiB, populated before they are needed
constexpr uint32_t kParts = 3;
constexpr uint64_t kPartBytes = 5000;

// Polls for what happens on another thread or process. False after 30 s.
template <typename Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 6'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

SpaceSpec Rank(uint32_t rank, uint32_t rank_count) {
  SpaceSpec spec;
  spec.model = "tiny";
  spec.revision = "r1";
  spec.dtype = "bf16";
  spec.layers = kParts;
  spec.kv_heads = 1;
  spec.head_size = 64;
  spec.layout = "nhd";
  spec.block_tokens = 16;
  spec.tp_rank = rank;
  spec.tp_size = rank_count;
  spec.part_bytes.assign(kParts, kPartBytes);
  return spec;
}

SpaceGroupSpec Model(const std::string& name, uint32_t rank_count) {
  SpaceGroupSpec group;
  group.name = name;
  for (uint32_t rank = 0; rank < rank_count; ++rank) {
    group.members.push_back({.spec = Rank(rank, rank_count)});
  }
  return group;
}

std::vector<BlockKey> Keys(uint32_t count, uint64_t prompt = 7) {
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < count; ++i) keys.push_back({.low = i + 1, .high = prompt});
  return keys;
}

std::vector<std::byte> Bytes(uint32_t block, uint32_t member, uint32_t part) {
  std::vector<std::byte> bytes(kPartBytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = std::byte((i * 31 + block * 7 + member * 5 + part * 3) & 255);
  }
  return bytes;
}

class ClientProcess : public testing::Test {
 protected:
  void SetUp() override { StartDaemon(); }

  void StartDaemon() {
    const std::string config = daemon_.WriteFile(
        "t.toml",
        "[daemon]\nlog_level = \"debug\"\ndram_bytes = \"64MiB\"\nsegment_bytes = \"2MiB\"\n"
        "segments_spare = " +
            std::to_string(kSegments) + "\nlease_ttl_ms = 3000\n");
    daemon_.Start({"--config", config, "--socket", daemon_.socket_path()});
    ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
  }
  std::unique_ptr<Client> Connect() {
    ClientOptions options;
    options.socket_path = daemon_.socket_path();
    options.default_deadline_us = kLongUs;
    options.reconnect_backoff_ms_max = 20;
    Result<std::unique_ptr<Client>> client = Client::Create(options);
    if (!client.ok()) return nullptr;
    EXPECT_TRUE((*client)->WaitConnected(kLongUs).ok()) << (*client)->last_error();
    return std::move(client).value();
  }
  static GroupRef Open(Client& client, const SpaceGroupSpec& spec, uint64_t self_mask) {
    const Result<GroupRef> group = client.Open(spec, self_mask);
    EXPECT_TRUE(group.ok()) << client.last_error();
    return group.ok() ? *group : GroupRef();
  }
  // Writes every part of the members `mask` of the reserved keys and commits them.
  static Result<uint32_t> WriteAll(Client& client, WriteLease& lease, uint64_t mask) {
    for (uint32_t key = 0; key < lease.keys().size(); ++key) {
      if (!lease.is_reserved(key)) continue;
      for (uint32_t member = 0; member < 64; ++member) {
        if ((mask >> member & 1) == 0) continue;
        for (uint32_t part = 0; part < kParts; ++part) {
          EXPECT_TRUE(lease.WritePart(key, member, part, Bytes(key, member, part)).ok());
        }
      }
    }
    return client.Commit(lease);
  }
  static void Store(Client& client, GroupRef group, const std::vector<BlockKey>& keys) {
    Result<WriteLease> lease = client.Reserve(group, keys);
    ASSERT_TRUE(lease.ok()) << client.last_error();
    const Result<uint32_t> sealed = WriteAll(client, *lease, 1);
    ASSERT_TRUE(sealed.ok()) << client.last_error();
    ASSERT_EQ(*sealed, keys.size());
  }
  static void ExpectBytes(const ReadLease& lease, uint32_t member) {
    std::vector<std::byte> read(kPartBytes);
    for (uint32_t block = 0; block < lease.ready_count(); ++block) {
      for (uint32_t part = 0; part < kParts; ++part) {
        ASSERT_TRUE(lease.CopyPart(block, member, part, read).ok());
        ASSERT_EQ(read, Bytes(block, member, part)) << block << ' ' << part;
      }
    }
  }
  // Of the domain; ~0 without an answer.
  static uint64_t Stat(Client& client, const char* name) {
    const Result<std::string> stats = client.Stats();
    if (!stats.ok()) return ~uint64_t{0};
    return nlohmann::json::parse(*stats)["domain"][name];
  }
  static uint64_t LeaseCount(Client& client) { return Stat(client, "lease_count"); }

  DaemonProcess daemon_;
};

TEST_F(ClientProcess, SmokeWhatOneProcessStoresAnotherLoads) {
  const std::unique_ptr<Client> writer = Connect();
  const GroupRef written = Open(*writer, Model("m", 1), 1);
  const std::vector<BlockKey> keys = Keys(40);
  Store(*writer, written, keys);
  EXPECT_EQ(writer->Match(written, keys)->token_count, 640u);
  std::vector<protocol::QueriedBlock> blocks;
  ASSERT_TRUE(writer->Query(written, keys, &blocks).ok());
  EXPECT_EQ(blocks[39].state, protocol::BlockState::kSealed);

  const std::unique_ptr<Client> reader = Connect();
  const GroupRef read = Open(*reader, Model("m", 1), 1);
  std::vector<BlockKey> longer = keys;
  longer.push_back({.low = 999, .high = 999});
  Result<ReadLease> lease = reader->Acquire(read, longer);
  ASSERT_TRUE(lease.ok()) << reader->last_error();
  EXPECT_EQ(lease->block_count(), 40u);
  EXPECT_EQ(lease->ready_count(), 40u);
  ExpectBytes(*lease, 0);
  lease->Release(protocol::EndReason::kEndOfTurn);
  EXPECT_TRUE(Eventually([&] { return LeaseCount(*reader) == 0; }));

  // Reserved again it is there already; evicted it is not.
  const Result<WriteLease> again = writer->Reserve(written, keys);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->keys()[0].status, static_cast<uint8_t>(StatusCode::kExists));
  EXPECT_EQ(writer->Evict(written, keys)->block_count, 40u);
  EXPECT_EQ(writer->Match(written, keys)->block_count, 0u);
}

TEST_F(ClientProcess, AConflictingSpecIsRefusedWithTheFieldAndBothValues) {
  const std::unique_ptr<Client> client = Connect();
  Open(*client, Model("m", 1), 1);
  SpaceGroupSpec other = Model("m", 1);
  other.members[0].spec.dtype = "fp8";
  EXPECT_EQ(client->Open(other, 1).code(), StatusCode::kInvalid);
  EXPECT_NE(client->last_error().find("dtype"), std::string::npos) << client->last_error();
  EXPECT_NE(client->last_error().find("fp8"), std::string::npos);
  EXPECT_NE(client->last_error().find("bf16"), std::string::npos);
}

TEST_F(ClientProcess, ManyKeysArePagedBothWays) {
  const std::unique_ptr<Client> client = Connect();
  const GroupRef group = Open(*client, Model("m", 1), 1);
  std::vector<protocol::QueriedBlock> blocks;
  ASSERT_TRUE(client->Query(group, Keys(200'000), &blocks).ok()) << client->last_error();
  EXPECT_EQ(blocks.size(), 200'000u);
}

// A scheduler reserves, two ranks join, write and commit their own; the last commit seals.
TEST_F(ClientProcess, RanksJoinAWriteLeaseAndSealTogether) {
  const SpaceGroupSpec model = Model("tp2", 2);
  const std::unique_ptr<Client> scheduler = Connect();
  const std::unique_ptr<Client> ranks[2] = {Connect(), Connect()};
  const GroupRef scheduled = Open(*scheduler, model, 0);
  const GroupRef ranked[2] = {Open(*ranks[0], model, 1), Open(*ranks[1], model, 2)};
  const std::vector<BlockKey> keys = Keys(4);
  // Each rank has a segment of its own, and a young arena grows as it is asked.
  Result<WriteLease> reserved = scheduler->Reserve(scheduled, keys);
  ASSERT_TRUE(Eventually([&] {
    if (!reserved.ok() || !reserved->is_reserved(3)) reserved = scheduler->Reserve(scheduled, keys);
    return reserved.ok() && reserved->is_reserved(3);
  })) << scheduler->last_error();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Result<WriteLease> lease =
        ranks[rank]->JoinWrite(ranked[rank], reserved->token(), uint64_t{1} << rank);
    ASSERT_TRUE(lease.ok()) << ranks[rank]->last_error();
    const Result<uint32_t> sealed = WriteAll(*ranks[rank], *lease, uint64_t{1} << rank);
    ASSERT_TRUE(sealed.ok()) << ranks[rank]->last_error();
    EXPECT_EQ(*sealed, rank == 0 ? 0u : 4u);
    // Rank 0's lease ends here, wholly committed: the others' blocks are not aborted by it.
  }
  Result<ReadLease> held = scheduler->Acquire(scheduled, keys);
  ASSERT_TRUE(held.ok());
  ASSERT_EQ(held->block_count(), 4u);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const Result<ReadLease> lease = ranks[rank]->JoinRead(ranked[rank], held->token(), 0);
    ASSERT_TRUE(lease.ok()) << ranks[rank]->last_error();
    ASSERT_EQ(lease->ready_count(), 4u);
    ExpectBytes(*lease, rank);
  }
  reserved->Abort();
  held->Release();
  EXPECT_TRUE(Eventually([&] { return LeaseCount(*scheduler) == 0; }));
}

TEST_F(ClientProcess, AFollowerReadsPartsAsTheyAreCommitted) {
  const std::unique_ptr<Client> writer = Connect();
  const std::unique_ptr<Client> follower = Connect();
  const GroupRef written = Open(*writer, Model("m", 1), 1);
  const GroupRef followed = Open(*follower, Model("m", 1), 1);
  const std::vector<BlockKey> keys = Keys(2);
  Result<WriteLease> lease = writer->Reserve(written, keys);
  ASSERT_TRUE(lease.ok());
  const Result<ReadLease> read =
      follower->Acquire(followed, keys, {.flags = protocol::kAcquireFollow});
  ASSERT_TRUE(read.ok()) << follower->last_error();
  ASSERT_EQ(read->block_count(), 2u);
  EXPECT_EQ(read->ready_count(), 0u);
  std::vector<std::byte> bytes(kPartBytes);
  for (uint32_t part = 0; part < kParts; ++part) {
    for (uint32_t block = 0; block < 2; ++block) {
      EXPECT_FALSE(read->is_part_ready(block, 0, part));
      ASSERT_TRUE(lease->WritePart(block, 0, part, Bytes(block, 0, part)).ok());
    }
    ASSERT_TRUE(writer->Commit(*lease).ok()) << writer->last_error();
    for (uint32_t block = 0; block < 2; ++block) {
      ASSERT_TRUE(Eventually([&] { return read->is_part_ready(block, 0, part); }));
      ASSERT_TRUE(read->CopyPart(block, 0, part, bytes).ok());
      EXPECT_EQ(bytes, Bytes(block, 0, part));
    }
  }
  EXPECT_TRUE(follower->WaitReady(*read, 2, kLongUs).ok());
}

TEST_F(ClientProcess, FollowersOfAWriterThatGivesUpLearnIt) {
  const std::unique_ptr<Client> writer = Connect();
  const std::unique_ptr<Client> follower = Connect();
  const GroupRef written = Open(*writer, Model("m", 1), 1);
  const GroupRef followed = Open(*follower, Model("m", 1), 1);
  Result<WriteLease> lease = writer->Reserve(written, Keys(2));
  ASSERT_TRUE(lease.ok());
  const Result<ReadLease> read =
      follower->Acquire(followed, Keys(2), {.flags = protocol::kAcquireFollow});
  ASSERT_TRUE(read.ok());
  std::thread giving_up([&] { lease->Abort(); });
  EXPECT_EQ(follower->WaitReady(*read, 1, kLongUs).code(), StatusCode::kNotFound);
  giving_up.join();
  EXPECT_EQ(read->ready_count(), 0u);
}

TEST_F(ClientProcess, UncheckedPartsAreHashedByTheDaemon) {
  const std::unique_ptr<Client> writer = Connect();
  const GroupRef group = Open(*writer, Model("m", 1), 1);
  Result<WriteLease> lease = writer->Reserve(group, Keys(1));
  ASSERT_TRUE(lease.ok());
  for (uint32_t part = 0; part < kParts; ++part) {
    const std::vector<std::byte> bytes = Bytes(0, 0, part);
    std::copy(bytes.begin(), bytes.end(), lease->slot(0, 0).begin() + part * 8192);
  }
  ASSERT_TRUE(lease->MarkWrittenPart(0, 0, 0).ok());
  ASSERT_TRUE(lease->ChecksumWrittenPart(0, 0, 1).ok());
  ASSERT_TRUE(lease->MarkWrittenPart(0, 0, 2).ok());
  EXPECT_EQ(*writer->Commit(*lease), 1u) << writer->last_error();
  const std::unique_ptr<Client> reader = Connect();
  const Result<ReadLease> read = reader->Acquire(Open(*reader, Model("m", 1), 1), Keys(1));
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->ready_count(), 1u);
  ExpectBytes(*read, 0);
}

TEST_F(ClientProcess, LeasesOutliveTheirTimeToLiveWhileTheProcessLives) {
  const std::unique_ptr<Client> client = Connect();
  const GroupRef group = Open(*client, Model("m", 1), 1);
  Store(*client, group, Keys(2));
  const Result<ReadLease> lease = client->Acquire(group, Keys(2));
  ASSERT_TRUE(lease.ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(4'500));  // of 3,000
  EXPECT_TRUE(lease->is_valid());
  EXPECT_EQ(LeaseCount(*client), 1u);
}

// PROMISE: T23 a daemon that is stopped
TEST_F(ClientProcess, AStoppedDaemonCostsDeadlinesAndLeavesNoLeaseBehind) {
  const std::unique_ptr<Client> client = Connect();
  const GroupRef group = Open(*client, Model("m", 1), 1);
  Store(*client, group, Keys(4));
  daemon_.Signal(SIGSTOP);
  for (int i = 0; i < 3; ++i) {
    const Result<ReadLease> lease = client->Acquire(group, Keys(4), {.deadline_us = 20'000});
    EXPECT_EQ(lease.code(), StatusCode::kBusy);
  }
  std::atomic<int> completions{0};
  ASSERT_TRUE(client
                  ->AcquireAsync(group, Keys(4), {.deadline_us = 20'000}, 0,
                                 [&](ClientCompletion&& completion) {
                                   EXPECT_EQ(completion.status.code(), StatusCode::kBusy);
                                   ++completions;
                                 })
                  .ok());
  EXPECT_TRUE(Eventually([&] { return completions == 1; }));
  daemon_.Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return LeaseCount(*client) == 0; }));
  EXPECT_EQ(client->Acquire(group, Keys(4))->block_count(), 4u);
}

TEST_F(ClientProcess, AKilledDaemonIsReplacedUnderARunningClient) {
  const std::unique_ptr<Client> client = Connect();
  const GroupRef group = Open(*client, Model("m", 1), 1);
  Store(*client, group, Keys(4));
  Result<ReadLease> lease = client->Acquire(group, Keys(4));
  ASSERT_TRUE(lease.ok());
  Result<WriteLease> writing = client->Reserve(group, Keys(2, 8));
  ASSERT_TRUE(writing.ok());
  const uint64_t boot_id = client->boot_id();
  daemon_.Signal(SIGKILL);
  EXPECT_EQ(daemon_.Wait(), 128 + SIGKILL);
  ASSERT_TRUE(Eventually([&] { return !lease->is_valid(); }));
  // The memory is still there; what is not is the daemon's word for it.
  EXPECT_EQ(lease->slot(3, 0)[17], Bytes(3, 0, 0)[17]);
  EXPECT_EQ(client->Match(group, Keys(4)).code(), StatusCode::kGone);
  EXPECT_EQ(writing->WritePart(0, 0, 0, Bytes(0, 0, 0)).code(), StatusCode::kGone);
  StartDaemon();
  ASSERT_TRUE(client->WaitConnected(kLongUs).ok());
  EXPECT_NE(client->boot_id(), boot_id);
  EXPECT_EQ(client->Match(group, Keys(4))->block_count, 0u);
  Store(*client, group, Keys(4));
  const Result<ReadLease> fresh = client->Acquire(group, Keys(4));
  ASSERT_TRUE(fresh.ok());
  ExpectBytes(*fresh, 0);
}

TEST_F(ClientProcess, AClientsDeathFreesWhatItHeld) {
  const pid_t pid = fork();
  if (pid == 0) {
    const std::unique_ptr<Client> client = Connect();
    const GroupRef group = Open(*client, Model("m", 1), 1);
    Result<WriteLease> lease = client->Reserve(group, Keys(4));
    _exit(lease.ok() && lease->is_reserved(3) ? 0 : 1);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  ASSERT_EQ(status, 0);
  const std::unique_ptr<Client> client = Connect();
  const GroupRef group = Open(*client, Model("m", 1), 1);
  EXPECT_TRUE(Eventually([&] {
    const Result<WriteLease> lease = client->Reserve(group, Keys(4));
    return lease.ok() && lease->is_reserved(3);
  }));
  EXPECT_TRUE(Eventually([&] { return LeaseCount(*client) == 0; }));
}

TEST_F(ClientProcess, ThreadsOfOneClientStoreAndLoad) {
  const std::unique_ptr<Client> client = Connect();
  const GroupRef group = Open(*client, Model("m", 1), 1);
  // Room for all of it: nothing has to go before it is read.
  ASSERT_TRUE(Eventually([&] { return Stat(*client, "segments_populated") == kSegments; }));
  std::vector<std::thread> users;
  for (uint32_t user = 0; user < 6; ++user) {
    users.emplace_back([&, user] {
      for (uint32_t round = 0; round < 20; ++round) {
        const std::vector<BlockKey> keys = Keys(1 + (user + round) % 16, 100 + user * 100 + round);
        Store(*client, group, keys);
        const Result<ReadLease> lease = client->Acquire(group, keys);
        ASSERT_TRUE(lease.ok()) << client->last_error();
        ASSERT_EQ(lease->ready_count(), keys.size());
        ExpectBytes(*lease, 0);
      }
    });
  }
  for (std::thread& user : users) user.join();
  EXPECT_TRUE(Eventually([&] { return LeaseCount(*client) == 0; }));
}

// As of a long prompt of a model of many layers, whose checksums are more than a message holds.
TEST(ClientCommits, OfMoreThanAMessageHoldsGoInPieces) {
  constexpr uint32_t kManyParts = 128, kBlocks = 270;  // 24 + 128 * 16 bytes to say, each
  DaemonProcess daemon;
  const std::string config =
      daemon.WriteFile("t.toml", "[daemon]\ndram_bytes = \"192MiB\"\nsegment_bytes = \"64MiB\"\n");
  daemon.Start({"--config", config, "--socket", daemon.socket_path()});
  ASSERT_TRUE(daemon.WaitReady()) << daemon.Errors();
  const auto client = std::move(Client::Create({.socket_path = daemon.socket_path(),
                                                .default_deadline_us = kLongUs,
                                                .send_buffer_bytes_max = 1 << 20}))
                          .value();
  ASSERT_TRUE(client->WaitConnected(kLongUs).ok()) << client->last_error();
  SpaceGroupSpec model = Model("many", 1);
  model.members[0].spec.part_bytes.assign(kManyParts, 32);
  const GroupRef group = client->Open(model, 1).value();
  std::optional<WriteLease> lease;
  // Memory is populated in the background.
  ASSERT_TRUE(Eventually([&] {
    lease = client->Reserve(group, Keys(kBlocks)).value();
    uint32_t reserved = 0;
    for (uint32_t key = 0; key < kBlocks; ++key) reserved += lease->is_reserved(key) ? 1 : 0;
    return reserved == kBlocks;
  }));
  for (uint32_t key = 0; key < kBlocks; ++key) {
    const std::vector<std::byte> part(32, std::byte(key));
    for (uint32_t i = 0; i < kManyParts; ++i) {
      ASSERT_TRUE(lease->WritePart(key, 0, i, part).ok()) << client->last_error();
    }
  }
  EXPECT_EQ(client->CommitAsync(*lease, {}, 7).code(), StatusCode::kInvalid);
  EXPECT_NE(client->last_error().find("by the Commit that waits"), std::string::npos);
  RequestOptions refused;  // as a whole: nothing of it is tried again
  refused.hints.min_tokens = 5;
  EXPECT_EQ(client->Commit(*lease, refused).status().code(), StatusCode::kInvalid)
      << client->last_error();
  const Result<uint32_t> sealed = client->Commit(*lease, {.flags = protocol::kCommitRelease});
  ASSERT_TRUE(sealed.ok()) << client->last_error();
  EXPECT_EQ(*sealed, kBlocks);
  EXPECT_FALSE(lease->is_valid()) << "by the last piece";
  const Result<ReadLease> read = client->Acquire(group, Keys(kBlocks));
  ASSERT_TRUE(read.ok()) << client->last_error();
  ASSERT_EQ(read->ready_count(), kBlocks);
  std::vector<std::byte> last(32);
  ASSERT_TRUE(read->CopyPart(kBlocks - 1, 0, kManyParts - 1, last).ok());
  EXPECT_EQ(last, std::vector<std::byte>(32, std::byte(kBlocks - 1)));
}

}  // namespace
}  // namespace terrace::test

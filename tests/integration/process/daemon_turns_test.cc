// A real terraced, while somebody hands over a long prompt: everybody else is answered.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "integration/process/daemon_process.h"
#include "terrace/client.h"

namespace terrace::test {
namespace {

constexpr uint64_t kLongUs = 30'000'000;
constexpr uint64_t kBystanderUs = 2'000'000;  // generous: it waits for some turns
constexpr uint32_t kMembers = 8;
constexpr uint32_t kBlocks = 4'000;

SpaceGroupSpec Model() {
  SpaceGroupSpec group;
  group.name = std::string("prompt");
  for (uint32_t rank = 0; rank < kMembers; ++rank) {
    SpaceSpec spec;
    spec.model = std::string("prompt");
    spec.revision = std::string("r1");
    spec.dtype = std::string("bf16");
    spec.layers = 1;
    spec.kv_heads = kMembers;
    spec.head_size = 64;
    spec.layout = std::string("nhd");
    spec.block_tokens = 16;
    spec.tp_rank = rank;
    spec.tp_size = kMembers;
    spec.part_bytes.assign(1, 4096);
    group.members.push_back({.spec = spec});
  }
  return group;
}

template <typename Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 30'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

class DaemonTurns : public testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t i = 0; i < kBlocks; ++i) keys_.push_back({.low = i + 1, .high = 7});
    const std::string config =
        daemon_.WriteFile("t.toml",
                          "[daemon]\ndram_bytes = \"256MiB\"\nsegment_bytes = \"2MiB\"\n"
                          "segments_spare = 128\n");
    daemon_.Start({"--config", config, "--socket", daemon_.socket_path()},
                  {.watchdog_us = 1'000'000});
    ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
    writer_ = Connect(&writer_group_);
    reader_ = Connect(&reader_group_);
    bystander_ = Connect(nullptr);
    ASSERT_TRUE(Eventually([&] { return Stats()["domain"]["segments_populated"] == 128; }));
  }
  std::unique_ptr<Client> Connect(GroupRef* group) {
    ClientOptions options;
    options.socket_path = daemon_.socket_path();
    options.default_deadline_us = kLongUs;
    std::unique_ptr<Client> client = std::move(Client::Create(options)).value();
    EXPECT_TRUE(client->WaitConnected(kLongUs).ok()) << client->last_error();
    if (group != nullptr) *group = client->Open(Model(), (1 << kMembers) - 1).value();
    return client;
  }
  nlohmann::json Stats() { return nlohmann::json::parse(bystander_->Stats(kLongUs).value()); }
  void Write(WriteLease& lease, uint32_t member_first, uint32_t member_end) {
    const std::vector<std::byte> bytes(4096, std::byte(7));
    for (uint32_t k = 0; k < kBlocks; ++k) {
      for (uint32_t member = member_first; member < member_end; ++member) {
        ASSERT_TRUE(lease.WritePart(k, member, 0, bytes).ok());
      }
    }
  }

  DaemonProcess daemon_;
  std::unique_ptr<Client> writer_, reader_, bystander_;
  GroupRef writer_group_, reader_group_;
  std::vector<BlockKey> keys_;
};

TEST_F(DaemonTurns, ABystanderIsAnsweredWhileALongPromptIsFollowed) {
  WriteLease written = writer_->Reserve(writer_group_, keys_).value();
  ASSERT_TRUE(written.is_reserved(kBlocks - 1));
  Write(written, 0, kMembers - 1);
  ASSERT_EQ(writer_->Commit(written).value(), 0u) << "a member is missing";

  std::atomic<bool> is_over{false};
  std::atomic<uint32_t> answered_count{0};
  Status refused;
  std::thread asking([&] {
    while (!is_over.load() && refused.ok()) {
      const auto answer = bystander_->Stats(kBystanderUs);
      if (answer.ok()) ++answered_count;
      if (!answer.ok()) refused = answer.status();
    }
  });
  {
    const ReadLease read =
        reader_->Acquire(reader_group_, keys_, {.flags = protocol::kAcquireFollow}).value();
    EXPECT_EQ(read.block_count(), kBlocks);
    // Told of what was there when it came, and of the rest as it comes.
    EXPECT_TRUE(Eventually([&] { return read.is_part_ready(kBlocks - 1, kMembers - 2, 0); }));
    EXPECT_FALSE(read.is_part_ready(0, kMembers - 1, 0));
    Write(written, kMembers - 1, kMembers);
    EXPECT_EQ(writer_->Commit(written).value(), kBlocks);
    EXPECT_TRUE(reader_->WaitReady(read, kBlocks, kLongUs).ok()) << reader_->last_error();
  }
  is_over = true;
  asking.join();
  EXPECT_TRUE(refused.ok()) << refused.what() << " after " << answered_count << " answers";
  EXPECT_GT(answered_count.load(), 0u);
  EXPECT_TRUE(daemon_.WaitNotified("WATCHDOG=1"));
  // A second is the watchdog's patience here; a turn takes less than a millisecond of a processor.
  EXPECT_LT(Stats()["turn_us_max"].get<uint64_t>(), 1'000'000u);
}

}  // namespace
}  // namespace terrace::test

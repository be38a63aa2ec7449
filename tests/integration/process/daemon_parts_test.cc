// A real terraced with an NVMe tier, asked for blocks part by part.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "integration/process/daemon_process.h"
#include "integration/process/raw_client.h"
#include "terrace/client.h"

namespace terrace::test {
namespace {

constexpr uint64_t kLongUs = 30'000'000;
constexpr uint32_t kParts = 4;
constexpr uint64_t kPartBytes = 256 * kKiB;  // read one by one
constexpr uint32_t kBlocks = 4;

SpaceGroupSpec Model() {
  SpaceSpec spec;
  spec.model = std::string("layers");
  spec.revision = std::string("r1");
  spec.dtype = std::string("bf16");
  spec.layers = kParts;
  spec.kv_heads = 1;
  spec.head_size = 64;
  spec.layout = std::string("nhd");
  spec.block_tokens = 16;
  spec.part_bytes.assign(kParts, kPartBytes);
  SpaceGroupSpec group;
  group.name = std::string("layers");
  group.members.push_back({.spec = spec});
  return group;
}

std::vector<std::byte> Bytes(uint32_t block, uint32_t part) {
  std::vector<std::byte> bytes(kPartBytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = std::byte((i * 31 + block * 7 + part * 3) & 255);
  }
  return bytes;
}

template <typename Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 30'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

template <typename T>
void Append(const T& value, std::vector<std::byte>* body) {
  const auto bytes = BytesOf(value);
  body->insert(body->end(), bytes.begin(), bytes.end());
}

// The run lies on the drive alone: the daemon that wrote it has ended.
class DaemonParts : public testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t i = 0; i < kBlocks; ++i) keys_.push_back({.low = i + 1, .high = 7});
    Start();
    WriteLease lease;
    ASSERT_TRUE(Eventually([&] {
      lease = {};
      lease = client_->Reserve(group_, keys_).value();
      return lease.is_reserved(kBlocks - 1);
    }));
    for (uint32_t k = 0; k < kBlocks; ++k) {
      for (uint32_t part = 0; part < kParts; ++part) {
        ASSERT_TRUE(lease.WritePart(k, 0, part, Bytes(k, part)).ok());
      }
    }
    ASSERT_EQ(client_->Commit(lease).value(), kBlocks);
    ASSERT_TRUE(client_->WaitPersisted(group_, keys_).ok()) << client_->last_error();
    lease = {};
    client_.reset();
    daemon_.Signal(SIGTERM);
    ASSERT_EQ(daemon_.Wait(), 0) << daemon_.Errors();
    Start();
  }
  void Start() {
    const std::string config = daemon_.WriteFile(
        "t.toml",
        "[daemon]\ndram_bytes = \"16MiB\"\nsegment_bytes = \"2MiB\"\nsegments_spare = 8\n"
        "[nvme]\npaths = [\"" +
            daemon_.directory() + "/nvme\"]\ncapacity_bytes = \"64MiB\"\nslab_bytes = \"16MiB\"\n");
    daemon_.Start({"--config", config, "--socket", daemon_.socket_path()});
    ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
    ClientOptions options;
    options.socket_path = daemon_.socket_path();
    options.default_deadline_us = kLongUs;
    client_ = std::move(Client::Create(options)).value();
    ASSERT_TRUE(client_->WaitConnected(kLongUs).ok()) << client_->last_error();
    group_ = client_->Open(Model(), 1).value();
    // A retry would find the run half there.
    ASSERT_TRUE(Eventually([&] {
      const auto stats = nlohmann::json::parse(client_->Stats(kLongUs).value());
      return stats["domain"]["segments_populated"] == 8;
    }));
  }
  // Room for the run is populated in the background.
  ReadLease AcquireAll(uint32_t flags) {
    ReadLease lease;
    EXPECT_TRUE(Eventually([&] {
      lease = client_->Acquire(group_, keys_, {.flags = flags}).value();
      return lease.block_count() == kBlocks;
    }));
    return lease;
  }

  DaemonProcess daemon_;
  std::unique_ptr<Client> client_;
  GroupRef group_;
  std::vector<BlockKey> keys_;
};

TEST_F(DaemonParts, TheFirstLayersOfTheRunCanBeReadBeforeTheLastOnes) {
  const ReadLease lease = AcquireAll(protocol::kAcquireByParts);
  EXPECT_EQ(lease.spans()[0].state, protocol::SpanState::kComing);
  std::vector<std::byte> bytes(kPartBytes);
  for (uint32_t part = 0; part < kParts; ++part) {
    for (uint32_t block = 0; block < kBlocks; ++block) {
      ASSERT_TRUE(Eventually([&] { return lease.is_part_ready(block, 0, part); }));
      ASSERT_TRUE(lease.CopyPart(block, 0, part, bytes).ok());
      EXPECT_TRUE(bytes == Bytes(block, part)) << "block " << block << " part " << part;
    }
  }
  EXPECT_TRUE(client_->WaitReady(lease, kBlocks, kLongUs).ok());
}

// By hand, for the order in which it is told.
TEST_F(DaemonParts, AreToldInTheOrderOfLayers) {
  RawClient raw;
  ASSERT_TRUE(raw.Attach(daemon_.socket_path())) << raw.last_text();
  const SpaceGroupSpec model = Model();
  const std::string text = model.members[0].spec.CanonicalText();
  std::vector<std::byte> open;
  Append(protocol::OpenRequest{.name_bytes = static_cast<uint32_t>(model.name.size()),
                               .member_count = 1,
                               .self_mask = 1},
         &open);
  for (const char c : model.name) open.push_back(std::byte(c));
  Append(protocol::OpenMember{.text_bytes = static_cast<uint32_t>(text.size())}, &open);
  for (const char c : text) open.push_back(std::byte(c));
  const auto opened = raw.Call(protocol::Verb::kOpen, open).At<protocol::OpenReply>();
  ASSERT_NE(opened.group_handle, 0u);
  std::vector<std::byte> acquire;
  protocol::KeysRequest request;
  request.group_handle = opened.group_handle;
  request.key_count = kBlocks;
  request.flags = protocol::kAcquireByParts;
  request.hints.deadline_us = kLongUs;
  Append(request, &acquire);
  for (const BlockKey& key : keys_) Append(key, &acquire);
  const RawReply reply = raw.Call(protocol::Verb::kAcquire, acquire);
  ASSERT_EQ(reply.At<protocol::AcquireReply>().block_count, kBlocks);
  // told[part]: blocks of which it was told, the last part with the whole block.
  uint32_t told[kParts] = {};
  for (bool is_last = false; !is_last;) {
    const std::optional<RawReply> next = raw.Receive();
    ASSERT_TRUE(next.has_value());
    ASSERT_EQ(next->header.verb, protocol::Verb::kCompletion);
    ASSERT_EQ(next->status(), StatusCode::kOk);
    const auto completion = next->At<protocol::Completion>();
    const uint32_t part = completion.part_count == 0 ? kParts - 1 : completion.part_first;
    EXPECT_LE(completion.part_count, 1u);
    EXPECT_EQ(completion.first_block, told[part]);
    told[part] += completion.block_count;
    for (uint32_t before = 0; before < part; ++before) EXPECT_EQ(told[before], kBlocks);
    is_last = (completion.flags & protocol::kCompletionLast) != 0;
  }
  for (const uint32_t count : told) EXPECT_EQ(count, kBlocks);
}

}  // namespace
}  // namespace terrace::test

// A terraced with memory of a device, and processes with clients of it, for tests of both.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/abi/paged_layout.h"
#include "cuda/host/host_device.h"
#include "cuda/host/stream.h"
#include "integration/process/daemon_process.h"
#include "integration/process/tiny_blocks.h"
#include "terrace/client.h"
#include "terrace/protocol_device.h"

namespace terrace::test {

using protocol::TierKind;

inline constexpr uint32_t kBlocks = 4;
inline constexpr uint64_t kPrompt = 7;

inline std::shared_ptr<const Device> HostMemory() {
  return std::make_shared<Device>(std::move(Device::Open(HostDeviceOps())).value());
}

inline std::unique_ptr<Client> MakeClient(const std::string& socket_path,
                                          std::shared_ptr<const Device> device = nullptr) {
  ClientOptions options;
  options.socket_path = socket_path;
  options.device = std::move(device);
  options.default_deadline_us = kLongUs;
  return std::move(Client::Create(options)).value();
}

// Pages of the test's blocks, a layer behind the other.
inline PagedLayout LayoutOfBlocks(std::vector<std::byte>& bytes) {
  bytes.resize(2 * kBlocks * kPartBytes);
  PagedLayout layout;
  layout.layer_count = 2;
  layout.plane_count = layout.head_count = 1;
  layout.page_tokens = layout.block_tokens = 16;
  layout.page_count = kBlocks;
  layout.head_bytes = layout.head_stride_bytes = layout.token_stride_bytes = kPartBytes / 16;
  layout.plane_stride_bytes = layout.block_stride_bytes = kPartBytes;
  for (uint32_t layer = 0; layer < 2; ++layer) {
    layout.bases.push_back(reinterpret_cast<uint64_t>(&bytes[layer * kBlocks * kPartBytes]));
  }
  return layout;
}

inline uint32_t Store(Client& client, GroupRef group, const std::vector<BlockKey>& keys) {
  auto reserved = client.Reserve(group, keys);
  if (!reserved.ok()) return 0;
  WriteLease lease = std::move(reserved).value();
  for (uint32_t k = 0; k < keys.size(); ++k) {
    for (uint32_t part = 0; part < 2 && lease.is_reserved(k); ++part) {
      if (!lease.WritePart(k, 0, part, Bytes(keys[k], part)).ok()) return 0;
    }
  }
  const auto sealed = client.Commit(lease);
  return sealed.ok() ? *sealed : 0;
}

// Blocks at the front that can be read now and are right, and where the first of them was.
struct Loaded {
  uint32_t right_count = 0;
  TierKind tier = TierKind::kRedis;
};
inline Loaded Read(Client& client, const ReadLease& lease, const std::vector<BlockKey>& keys) {
  Loaded loaded;
  if (lease.block_count() == 0) return loaded;
  (void)client.WaitReady(lease, lease.block_count(), kLongUs);
  loaded.tier = lease.spans()[0].tier;
  std::vector<std::byte> bytes(kPartBytes);
  for (; loaded.right_count < lease.ready_count(); ++loaded.right_count) {
    for (uint32_t part = 0; part < 2; ++part) {
      if (!lease.CopyPart(loaded.right_count, 0, part, bytes).ok() ||
          bytes != Bytes(keys[loaded.right_count], part)) {
        return loaded;
      }
    }
  }
  return loaded;
}
inline Loaded Load(Client& client, GroupRef group, const std::vector<BlockKey>& keys,
                   uint32_t flags) {
  auto lease = client.Acquire(group, keys, {.flags = flags});
  return lease.ok() ? Read(client, *lease, keys) : Loaded();
}

// Another process with a client of the device: does what single bytes say, and answers with one.
class Engine {
 public:
  static constexpr char kStore = 's', kLoad = 'l';

  explicit Engine(const std::string& socket_path,
                  const std::function<std::shared_ptr<const Device>()>& device = HostMemory) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      Serve(ends[1], socket_path, device());
      _exit(0);
    }
    close(ends[1]);
    fd_ = ends[0];
  }
  ~Engine() {
    if (fd_ >= 0) close(fd_);
    Kill();
  }
  // How many blocks.
  uint32_t Do(char command) {
    char answer = 0;
    EXPECT_EQ(write(fd_, &command, 1), 1);
    EXPECT_EQ(read(fd_, &answer, 1), 1) << "the engine has died";
    return static_cast<uint32_t>(answer);
  }
  void Stop() {
    int status = 0;
    kill(pid_, SIGSTOP);
    EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  static void Serve(int fd, const std::string& socket_path, std::shared_ptr<const Device> device) {
    const auto client = MakeClient(socket_path, std::move(device));
    if (!client->WaitConnected(kLongUs).ok()) return;
    char command = 0;
    while (read(fd, &command, 1) == 1) {
      if (!client->WaitConnected(kLongUs).ok()) return;
      const auto group = client->Open(Model(), 1);
      if (!group.ok()) return;
      const auto keys = Keys(kBlocks, kPrompt);
      const uint32_t count =
          command == kStore ? Store(*client, *group, keys)
                            : Load(*client, *group, keys, protocol::kAcquireDevice).right_count;
      const char answer = static_cast<char>(count);
      if (write(fd, &answer, 1) != 1) return;
    }
  }

  int fd_ = -1;
  pid_t pid_ = -1;
};

class DaemonDevice : public testing::Test {
 protected:
  void Start(const std::string& hbm = "") {
    Launch(hbm);
    ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
  }
  void Launch(const std::string& hbm) {
    const std::string config = daemon_.WriteFile(
        "t.toml",
        "[daemon]\ndram_bytes = \"8MiB\"\nsegment_bytes = \"2MiB\"\nsegments_spare = 4\n"
        "[hbm]\ncapacity_bytes = \"8MiB\"\nslab_bytes = \"4MiB\"\norder_timeout_ms = 120000\n" +
            hbm);
    daemon_.Start({"--config", config, "--socket", daemon_.socket_path()});
  }
  // A client of this process, without the device.
  void Connect() {
    plain_ = MakeClient(daemon_.socket_path());
    ASSERT_TRUE(plain_->WaitConnected(kLongUs).ok()) << plain_->last_error();
    group_ = plain_->Open(Model(), 1).value();
  }
  nlohmann::json Stats() { return nlohmann::json::parse(plain_->Stats(kLongUs).value()); }
  // False after half a minute without it.
  bool Eventually(const std::function<bool(const nlohmann::json&)>& is_so) {
    for (int i = 0; i < 6000; ++i) {
      if (is_so(Stats())) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  static uint64_t OnDevice(const nlohmann::json& stats) {
    return stats["lower_tiers"][0]["block_count"];
  }
  // The engine stores, and asks until the blocks lie on the device.
  void PutOnDevice(Engine& engine) {
    ASSERT_EQ(engine.Do(Engine::kStore), kBlocks);
    ASSERT_TRUE(Eventually([&](const nlohmann::json& stats) {
      return engine.Do(Engine::kLoad) == kBlocks && OnDevice(stats) == kBlocks;
    })) << Stats().dump(1);
  }
  // Nothing of the prompt is left in DRAM.
  void Flood() {
    for (uint64_t prompt = 100; prompt < 130; ++prompt) Store(*plain_, group_, Keys(4, prompt));
    std::vector<protocol::QueriedBlock> blocks;
    ASSERT_TRUE(plain_->Query(group_, keys_, &blocks).ok());
    for (const auto& block : blocks) ASSERT_EQ(block.tier_mask, 1) << "only on the device";
  }

  const std::vector<BlockKey> keys_ = Keys(kBlocks, kPrompt);
  DaemonProcess daemon_;
  std::unique_ptr<Client> plain_;
  GroupRef group_;
};

}  // namespace terrace::test

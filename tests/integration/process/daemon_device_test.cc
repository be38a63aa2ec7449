// A real terraced with memory of the device "host", and real processes that copy for it and die.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>

#include "cuda/host_device.h"
#include "cuda/paged_copier.h"
#include "integration/process/daemon_process.h"
#include "integration/process/tiny_blocks.h"
#include "terrace/client.h"
#include "terrace/protocol_device.h"

namespace terrace::test {
namespace {

using protocol::TierKind;

constexpr uint32_t kBlocks = 4;
constexpr uint64_t kPrompt = 7;

std::unique_ptr<Client> MakeClient(const std::string& socket_path, const std::string& device) {
  ClientOptions options;
  options.socket_path = socket_path;
  options.device = device;
  options.default_deadline_us = kLongUs;
  return std::move(Client::Create(options)).value();
}

uint32_t Store(Client& client, GroupRef group, const std::vector<BlockKey>& keys) {
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
Loaded Read(Client& client, const ReadLease& lease, const std::vector<BlockKey>& keys) {
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
Loaded Load(Client& client, GroupRef group, const std::vector<BlockKey>& keys, uint32_t flags) {
  auto lease = client.Acquire(group, keys, {.flags = flags});
  return lease.ok() ? Read(client, *lease, keys) : Loaded();
}

// Another process with a client of the device: does what single bytes say, and answers with one.
class Engine {
 public:
  static constexpr char kStore = 's', kLoad = 'l';

  explicit Engine(const std::string& socket_path) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      Serve(ends[1], socket_path);
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
  static void Serve(int fd, const std::string& socket_path) {
    const auto client = MakeClient(socket_path, "host");
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
  void Start() {
    const std::string config = daemon_.WriteFile(
        "t.toml",
        "[daemon]\ndram_bytes = \"8MiB\"\nsegment_bytes = \"2MiB\"\nsegments_spare = 4\n"
        "[hbm]\ncapacity_bytes = \"8MiB\"\nslab_bytes = \"4MiB\"\norder_timeout_ms = 120000\n");
    daemon_.Start({"--config", config, "--socket", daemon_.socket_path()});
    ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
  }
  // A client of this process, without the device.
  void Connect() {
    plain_ = MakeClient(daemon_.socket_path(), "");
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

TEST_F(DaemonDevice, TwoProcessesReadOneCopyThere) {
  Start();
  Engine engine(daemon_.socket_path());
  Connect();
  PutOnDevice(engine);
  const auto other = MakeClient(daemon_.socket_path(), "host");
  ASSERT_TRUE(other->WaitConnected(kLongUs).ok());
  const GroupRef group = other->Open(Model(), 1).value();
  const Loaded there = Load(*other, group, keys_, protocol::kAcquireDevice);
  EXPECT_EQ(there.right_count, kBlocks);
  EXPECT_EQ(there.tier, TierKind::kHbm);
  const Loaded here = Load(*plain_, group_, keys_, protocol::kAcquireDevice);
  EXPECT_EQ(here.right_count, kBlocks);
  EXPECT_EQ(here.tier, TierKind::kDram) << "it has not mapped the device";
  EXPECT_GE(Stats()["hbm"]["blocks_served"], kBlocks);
}

TEST_F(DaemonDevice, AnEngineThatComesAfterTheLastDiedHitsWhatItLeft) {
  Start();
  Engine engine(daemon_.socket_path());
  Connect();
  PutOnDevice(engine);
  engine.Kill();
  Flood();
  ASSERT_TRUE(Eventually([](const auto& stats) { return stats["hbm"]["clients"] == 0; }));
  EXPECT_EQ(Load(*plain_, group_, keys_, 0).right_count, 0u) << "nobody can copy it";
  const auto next = MakeClient(daemon_.socket_path(), "host");
  ASSERT_TRUE(next->WaitConnected(kLongUs).ok());
  const GroupRef group = next->Open(Model(), 1).value();
  const Loaded loaded = Load(*next, group, keys_, protocol::kAcquireDevice);
  EXPECT_EQ(loaded.right_count, kBlocks);
  EXPECT_EQ(loaded.tier, TierKind::kHbm);
}

TEST_F(DaemonDevice, AnOrderOfAClientThatIsKilledGoesToAnother) {
  Start();
  Engine engine(daemon_.socket_path());
  Connect();
  PutOnDevice(engine);
  Flood();
  engine.Stop();  // so that it has orders and does not get to them
  const uint64_t issued_before = Stats()["hbm"]["orders_issued"];
  const ReadLease lease = plain_->Acquire(group_, keys_).value();
  ASSERT_EQ(lease.block_count(), kBlocks);
  EXPECT_EQ(lease.spans()[0].tier, TierKind::kHbm);
  ASSERT_TRUE(Eventually(
      [&](const auto& stats) { return stats["hbm"]["orders_issued"] == issued_before + kBlocks; }));
  const auto other = MakeClient(daemon_.socket_path(), "host");
  ASSERT_TRUE(other->WaitConnected(kLongUs).ok());
  ASSERT_TRUE(Eventually([](const auto& stats) { return stats["hbm"]["clients"] == 2; }));
  EXPECT_EQ(lease.ready_count(), 0u);
  EXPECT_EQ(Stats()["hbm"]["orders_reissued"], 0);
  engine.Kill();
  EXPECT_EQ(Read(*plain_, lease, keys_).right_count, kBlocks);
  EXPECT_EQ(Stats()["hbm"]["orders_reissued"], kBlocks);
}

TEST_F(DaemonDevice, WithTheDaemonDiesWhatLiesThereButNoReaderOfIt) {
  Start();
  Engine engine(daemon_.socket_path());
  Connect();
  PutOnDevice(engine);
  const auto reader = MakeClient(daemon_.socket_path(), "host");
  ASSERT_TRUE(reader->WaitConnected(kLongUs).ok());
  const GroupRef group = reader->Open(Model(), 1).value();
  const ReadLease lease =
      reader->Acquire(group, keys_, {.flags = protocol::kAcquireDevice}).value();
  ASSERT_EQ(lease.spans()[0].tier, TierKind::kHbm);
  const std::span<const std::byte> slot = lease.slot(0, 0);
  const uint64_t boot_id = reader->boot_id();
  daemon_.Signal(SIGKILL);
  ASSERT_EQ(daemon_.Wait(), 128 + SIGKILL);
  const std::vector<std::byte> expected = Bytes(keys_[0], 0);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), slot.begin())) << "still mapped";
  Start();
  for (int i = 0; i < 6000 && reader->boot_id() == boot_id; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_FALSE(lease.is_valid());
  ASSERT_TRUE(plain_->WaitConnected(kLongUs).ok());
  EXPECT_EQ(OnDevice(Stats()), 0u);
  PutOnDevice(engine);  // it has mapped the new daemon's slabs
}

TEST_F(DaemonDevice, AClientOfAnotherDeviceIsServedFromDram) {
  Start();
  Connect();
  ASSERT_EQ(Store(*plain_, group_, keys_), kBlocks);
  const auto other = MakeClient(daemon_.socket_path(), "GPU-0");
  ASSERT_TRUE(other->WaitConnected(kLongUs).ok()) << other->last_error();
  EXPECT_THAT(other->last_error(), testing::HasSubstr("device 'GPU-0'"));
  const GroupRef group = other->Open(Model(), 1).value();
  EXPECT_EQ(Load(*other, group, keys_, protocol::kAcquireDevice).tier, TierKind::kDram);
}

// ---- the arena registered with a device ----

// What registering does in this process and its children: the host's device needs none.
struct Registering {
  std::atomic<bool> is_failing{false};
  std::atomic<uint32_t> inside_count{0};   // processes that are registering
  std::atomic<uint32_t> done_count{0};     // segments
  std::atomic<uint32_t> wait_ms{0};        // for somebody else to be registering, too
  std::atomic<uint32_t> overlap_count{0};  // how often that was so
};
Registering* g_registering = nullptr;

std::shared_ptr<const Device> MakeDevice() {
  static DeviceOps ops = HostDeviceOps();
  ops.register_host = [](DeviceHandle*, void* address, uint64_t, void** reached) -> DeviceStatus {
    Registering& shared = *g_registering;
    if (shared.is_failing) return {static_cast<int32_t>(StatusCode::kNoSpace), 0, "no memory"};
    ++shared.inside_count;
    for (uint32_t i = 0; i < shared.wait_ms && shared.inside_count == 1; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (shared.inside_count > 1) ++shared.overlap_count;
    --shared.inside_count;
    ++shared.done_count;
    *reached = address;
    return {};
  };
  return std::make_shared<Device>(std::move(Device::Open(ops)).value());
}

class DaemonPins : public DaemonDevice {
 protected:
  DaemonPins() {
    void* shared = mmap(nullptr, sizeof(Registering), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    g_registering = new (shared) Registering;
  }
  ~DaemonPins() override { munmap(g_registering, sizeof(Registering)); }

  // An engine's pages of the test's blocks, a layer behind the other, and a copier for them.
  struct Pages {
    std::vector<std::byte> bytes = std::vector<std::byte>(2 * kBlocks * kPartBytes);
    std::unique_ptr<PagedCopier> copier;

    std::span<std::byte> Part(uint32_t block, uint32_t layer) {
      return std::span(bytes).subspan((layer * kBlocks + block) * kPartBytes, kPartBytes);
    }
    Pages(const Device& device, std::shared_ptr<HostPins> pins) {
      PagedLayout layout;
      layout.layer_count = 2;
      layout.plane_count = layout.head_count = 1;
      layout.page_tokens = layout.block_tokens = 16;
      layout.page_count = kBlocks;
      layout.head_bytes = layout.head_stride_bytes = layout.token_stride_bytes = kPartBytes / 16;
      layout.plane_stride_bytes = layout.block_stride_bytes = kPartBytes;
      for (uint32_t layer = 0; layer < 2; ++layer) {
        layout.bases.push_back(reinterpret_cast<uint64_t>(Part(0, layer).data()));
      }
      std::string why;
      Result<PagedNest> nest = CompileNest(layout, {}, &why);
      EXPECT_TRUE(nest.ok()) << why;
      copier = std::move(PagedCopier::Create(device, std::move(nest).value(),
                                             {.pins = std::move(pins)}, &why))
                   .value();
    }
  };
};

TEST_F(DaemonPins, BytesAreRightStraightAndThroughTheBounce) {
  Start();
  Connect();
  const std::shared_ptr<const Device> device = MakeDevice();
  g_registering->is_failing = true;
  const auto writer = MakeClient(daemon_.socket_path(), "");
  ASSERT_TRUE(writer->WaitConnected(kLongUs).ok());
  const auto bouncing = writer->PinArena(device, "the test says so").value();
  {
    Pages pages(*device, bouncing);
    const GroupRef group = writer->Open(Model(), 1).value();
    WriteLease lease = writer->Reserve(group, keys_).value();
    std::vector<PageSlot> slots;
    for (uint32_t k = 0; k < kBlocks; ++k) {
      for (uint32_t layer = 0; layer < 2; ++layer) {
        std::ranges::copy(Bytes(keys_[k], layer), pages.Part(k, layer).begin());
        ASSERT_TRUE(lease.MarkWrittenPart(k, 0, layer).ok());
      }
      slots.push_back({k, lease.slot(k, 0).data(), nullptr});
    }
    Result<StoreTicket> stored = pages.copier->Store(slots, KvWritten::Already());
    ASSERT_TRUE(stored.ok()) << stored.status().what();
    ASSERT_TRUE(stored->page_reuse.AwaitOnHost().ok());
    ASSERT_TRUE(stored->slots_written.AwaitOnHost().ok());
    ASSERT_EQ(writer->Commit(lease).value(), kBlocks);
  }
  EXPECT_EQ(bouncing->counts().bounced_bytes, 2 * kBlocks * kPartBytes);
  EXPECT_EQ(Load(*plain_, group_, keys_, 0).right_count, kBlocks);

  g_registering->is_failing = false;
  const auto reader = MakeClient(daemon_.socket_path(), "");
  ASSERT_TRUE(reader->WaitConnected(kLongUs).ok());
  const auto pins = reader->PinArena(device).value();
  Pages pages(*device, pins);
  const GroupRef group = reader->Open(Model(), 1).value();
  const ReadLease lease = reader->Acquire(group, keys_).value();
  ASSERT_TRUE(reader->WaitReady(lease, kBlocks, kLongUs).ok());
  std::vector<PageSlot> slots;
  for (uint32_t k = 0; k < kBlocks; ++k) {
    auto* slot = const_cast<std::byte*>(lease.slot(k, 0).data());
    ASSERT_TRUE(Eventually([&](const auto&) { return pins->DeviceAddress(slot, 1) == slot; }));
    slots.push_back({k, slot, nullptr});
  }
  Result<LoadTicket> loaded = pages.copier->Load(slots, DestinationFree::Already());
  ASSERT_TRUE(loaded.ok()) << loaded.status().what();
  ASSERT_TRUE(loaded->layer_ready.AwaitOnHost(1).ok());
  ASSERT_TRUE(loaded->slots_read.AwaitOnHost().ok());
  for (uint32_t k = 0; k < kBlocks; ++k) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      EXPECT_TRUE(std::ranges::equal(pages.Part(k, layer), Bytes(keys_[k], layer)));
    }
  }
  EXPECT_EQ(pins->counts().straight_bytes, 2 * kBlocks * kPartBytes);
  ASSERT_TRUE(Eventually([&](const auto& stats) {
    const auto& copies = stats["copies"];
    return copies["client_count"] == 2 && copies["registrations_failed"] > 0 &&
           copies["bounced_bytes"] == 2 * kBlocks * kPartBytes &&
           copies["straight_bytes"] == 2 * kBlocks * kPartBytes && copies["pinned_bytes"] > 0;
  })) << Stats()["copies"].dump(1);
  EXPECT_EQ(Stats()["copies"]["clients"].size(), 2u);
}

TEST_F(DaemonPins, ProcessesRegisterOneAtATime) {
  Start();
  Connect();
  ASSERT_EQ(Store(*plain_, group_, keys_), kBlocks);
  g_registering->wait_ms = 300;
  constexpr uint32_t kProcesses = 3;
  std::vector<pid_t> children;
  for (uint32_t i = 0; i < kProcesses; ++i) {
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    const auto client = MakeClient(daemon_.socket_path(), "");
    if (!client->WaitConnected(kLongUs).ok() || !client->PinArena(MakeDevice()).ok()) _exit(1);
    const auto group = client->Open(Model(), 1);
    if (!group.ok()) _exit(2);
    const auto lease = client->Acquire(*group, keys_);
    if (!lease.ok() || lease->block_count() != kBlocks) _exit(3);
    pause();
    _exit(0);
  }
  for (int i = 0; i < 6000 && g_registering->done_count < kProcesses; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(g_registering->done_count, kProcesses);
  EXPECT_EQ(g_registering->overlap_count, 0u);
  for (const pid_t child : children) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
}

}  // namespace
}  // namespace terrace::test

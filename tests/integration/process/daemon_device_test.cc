// A real terraced with memory of the device "host", and real processes that copy for it and die.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <thread>

#include "cuda/copy/paged_copier.h"
#include "cuda/host/host_device.h"
#include "integration/process/device_fixture.h"
#include "terrace/terrace.h"

namespace terrace::test {
namespace {

TEST_F(DaemonDevice, TwoProcessesReadOneCopyThere) {
  Start();
  Engine engine(daemon_.socket_path());
  Connect();
  PutOnDevice(engine);
  const auto other = MakeClient(daemon_.socket_path(), HostMemory());
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
  const auto next = MakeClient(daemon_.socket_path(), HostMemory());
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
  const auto other = MakeClient(daemon_.socket_path(), HostMemory());
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
  const auto reader = MakeClient(daemon_.socket_path(), HostMemory());
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

TEST_F(DaemonDevice, AClientOfTheCAbiIsOneOfTheDevice) {
  Start();
  Connect();
  char why[512];
  terrace_device_options device_options = TERRACE_DEVICE_OPTIONS_INIT;
  device_options.backend = "host";
  terrace_device* device = nullptr;
  ASSERT_EQ(terrace_device_create(&device_options, &device, why, sizeof(why)), TERRACE_OK) << why;
  const std::string socket_path = daemon_.socket_path();
  terrace_client_options options = TERRACE_CLIENT_OPTIONS_INIT;
  options.socket_path = socket_path.c_str();
  options.device = device;
  terrace_client* client = nullptr;
  ASSERT_EQ(terrace_client_create(&options, &client, why, sizeof(why)), TERRACE_OK) << why;
  terrace_device_destroy(device);  // the client keeps it
  ASSERT_EQ(terrace_client_wait_connected(client, kLongUs), TERRACE_OK);
  EXPECT_EQ(Stats()["hbm"]["clients"], 1);
  terrace_client_destroy(client);
  static_assert(TERRACE_ACQUIRE_DEVICE == protocol::kAcquireDevice);
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
    std::vector<std::byte> bytes;
    std::unique_ptr<PagedCopier> copier;

    std::span<std::byte> Part(uint32_t block, uint32_t layer) {
      return std::span(bytes).subspan((layer * kBlocks + block) * kPartBytes, kPartBytes);
    }
    Pages(const Device& device, std::shared_ptr<HostPins> pins) {
      std::string why;
      Result<PagedNest> nest = CompileNest(LayoutOfBlocks(bytes), {}, &why);
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
  const auto writer = MakeClient(daemon_.socket_path());
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
  const auto reader = MakeClient(daemon_.socket_path());
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
    const auto client = MakeClient(daemon_.socket_path());
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

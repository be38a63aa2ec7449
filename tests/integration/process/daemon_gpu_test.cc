// A real terraced with memory of a GPU, which is simulated where clients touch it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/paged/paged_cache.h"
#include "cuda/host/host_device.h"
#include "cuda/host/host_pins.h"
#include "integration/process/device_fixture.h"
#include "sim/sim_device.h"
#include "test_paths.h"
#include "tests/sim/slab_plugin.h"

namespace terrace::test {
namespace {

using protocol::TierKind;

// Several threads use a simulated GPU: its calls come one at a time.
std::mutex g_sim_lock;

template <auto kCall, typename Answer, typename... Arguments>
Answer CallLocked(Arguments... arguments) {
  const std::lock_guard lock(g_sim_lock);
  return (SimDeviceOps().*kCall)(arguments...);
}
template <auto kCall, typename Answer, typename... Arguments>
void LockCall(DeviceOps* ops, Answer (*DeviceOps::*)(Arguments...)) {
  ops->*kCall = &CallLocked<kCall, Answer, Arguments...>;
}
template <auto... kCalls>
DeviceOps LockedSimOps() {
  DeviceOps ops = SimDeviceOps();
  (LockCall<kCalls>(&ops, kCalls), ...);
  ops.backend = "cuda";
  return ops;
}

// Gets on while clients look, unless it hangs; who waits for it moves it himself.
class SimGpu {
 public:
  explicit SimGpu(uint32_t index = 1, uint32_t failures_per_million = 0)
      : sim_({.steps_per_call_max = 0,
              .copy_failures_per_million = failures_per_million,
              .needs_registration = true,
              .uuid = SlabPluginUuid(index)}) {
    static const DeviceOps ops = [] {
      using Ops = DeviceOps;
      DeviceOps locked =
          LockedSimOps<&Ops::describe_device, &Ops::allocate, &Ops::deallocate, &Ops::register_host,
                       &Ops::unregister_host, &Ops::map_slab, &Ops::unmap_slab, &Ops::create_stream,
                       &Ops::destroy_stream, &Ops::create_event, &Ops::destroy_event,
                       &Ops::record_event, &Ops::wait_event, &Ops::await_event, &Ops::copy_paged>();
      locked.copy_batch = [](StreamHandle* stream, CopyDirection direction, const CopyPiece* pieces,
                             uint32_t piece_count) {
        const std::lock_guard lock(g_sim_lock);
        ++(direction == CopyDirection::kWithinHost ? bounce_count_ : copy_count_);
        return SimDeviceOps().copy_batch(stream, direction, pieces, piece_count);
      };
      locked.query_event = [](EventHandle* event) {
        const std::lock_guard lock(g_sim_lock);
        for (SimGpu* gpu : all_) {
          for (int i = 0; i < 3 && !gpu->is_hanging_; ++i) gpu->sim_.Step();
        }
        return SimDeviceOps().query_event(event);
      };
      return locked;
    }();
    device_ = std::make_shared<Device>(ops, sim_.handle());
    const std::lock_guard lock(g_sim_lock);
    all_.push_back(this);
  }
  ~SimGpu() {
    const std::lock_guard lock(g_sim_lock);
    std::erase(all_, this);
  }

  const std::shared_ptr<const Device>& device() const { return device_; }
  void Hang(bool is_hanging) {
    const std::lock_guard lock(g_sim_lock);
    is_hanging_ = is_hanging;
  }
  // Batches that a CPU copied between memory of the host, of all GPUs.
  static uint64_t bounce_count() {
    const std::lock_guard lock(g_sim_lock);
    return bounce_count_;
  }
  // Batches that a device was given, of all GPUs.
  static uint64_t copy_count() {
    const std::lock_guard lock(g_sim_lock);
    return copy_count_;
  }
  // Copies that touched memory the device does not reach.
  uint64_t stray_count() const {
    const std::lock_guard lock(g_sim_lock);
    return sim_.stray_count();
  }

 private:
  static inline std::vector<SimGpu*> all_;
  static inline uint64_t bounce_count_ = 0;
  static inline uint64_t copy_count_ = 0;
  SimDevice sim_;
  bool is_hanging_ = false;
  std::shared_ptr<const Device> device_;
};

class DaemonGpu : public DaemonDevice {
 protected:
  std::string Plugin() {
    const std::string path = daemon_.directory() + "/plugin.so";
    std::filesystem::copy_file(TERRACE_SLAB_PLUGIN_PATH, path,
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::permissions(path, std::filesystem::perms(0755));
    return path;
  }
  std::string Gpu(const std::string& device) {
    return "device = \"" + device + "\"\nplugin_path = \"" + Plugin() + "\"\n";
  }
  // Refused before it was ready: what it said.
  std::string Refusal(const std::string& hbm) {
    Launch(hbm);
    EXPECT_EQ(daemon_.Wait(), 1);
    return daemon_.Errors();
  }
  // Latent attention: one plane, of which kernels and the test's blocks think alike.
  static SpaceGroupSpec Latent() {
    SpaceGroupSpec spec = Model();
    spec.name = "latent";
    spec.members[0].spec.attention = AttentionKind::kMla;
    return spec;
  }
  void ConnectPlain() {
    Connect();
    group_ = plain_->Open(Latent(), 1).value();
  }
  struct Rank {
    std::unique_ptr<Client> client;
    GroupRef group;
  };
  Rank Join(const SimGpu& gpu) {
    Rank rank{.client = MakeClient(daemon_.socket_path(), gpu.device())};
    EXPECT_TRUE(rank.client->WaitConnected(kLongUs).ok()) << rank.client->last_error();
    rank.group = rank.client->Open(Latent(), 1).value();
    return rank;
  }
  static ReadLease AcquireThere(Rank& rank, const std::vector<BlockKey>& keys) {
    auto lease = rank.client->Acquire(rank.group, keys, {.flags = protocol::kAcquireDevice});
    return lease.ok() ? std::move(lease).value() : ReadLease();
  }
  // Asked for until all of it lies there. False after half a minute.
  bool PutThere(Rank& rank) {
    return Eventually([&](const auto& stats) {
      (void)AcquireThere(rank, keys_);
      return OnDevice(stats) == kBlocks;
    });
  }
  // Blocks of the lease that are right in pages of that device, from the front.
  uint32_t LoadIntoPages(const Device& device, const ReadLease& lease, const SpaceSpec& space,
                         std::string* why) {
    std::vector<std::byte> bytes;
    const PagedLayout layout = LayoutOfBlocks(bytes);
    auto cache = client::PagedCache::Create(device, {.layout = layout, .space = space}, why);
    if (!cache.ok()) return 0;
    const std::vector<uint64_t> pages = {2, 0, 3, 1};
    auto copy = (*cache)->Load(lease, {.page_indexes = pages}, DestinationFree::Already(), why);
    if (!copy.ok() || !(*copy)->Wait(kLongUs).ok()) return 0;
    const auto is_right = [&](uint32_t block) {
      for (uint32_t layer = 0; layer < 2; ++layer) {
        const std::vector<std::byte> expected = Bytes(keys_[block], layer);
        if (!std::equal(expected.begin(), expected.end(),
                        bytes.begin() + static_cast<ptrdiff_t>((layer * kBlocks + pages[block]) *
                                                               kPartBytes))) {
          return false;
        }
      }
      return true;
    };
    uint32_t right_count = 0;
    while (right_count < kBlocks && is_right(right_count)) ++right_count;
    return right_count;
  }
  // Of this process.
  static size_t MappedSlabs() {
    std::ifstream maps("/proc/self/maps");
    size_t count = 0;
    for (std::string line; std::getline(maps, line);) {
      count += line.find("memfd:terrace-slab") != line.npos ? 1 : 0;
    }
    return count;
  }
  // Up, read there, and down again, by a device that reaches what is registered alone.
  void GoThereAndBack(bool has_pins) {
    Start(Gpu("cuda:1"));
    ConnectPlain();
    const SimGpu gpu;
    Rank rank = Join(gpu);
    ASSERT_EQ(Store(*rank.client, rank.group, keys_), kBlocks);
    if (has_pins) {
      const std::shared_ptr<HostPins> pins = rank.client->PinArena(gpu.device()).value();
      (void)AcquireThere(rank, keys_);
      ASSERT_TRUE(Eventually([&](const auto&) { return pins->counts().pinned_bytes > 0; }));
    }
    const uint64_t bounce_count = SimGpu::bounce_count();
    ASSERT_TRUE(PutThere(rank)) << Stats().dump(1);
    EXPECT_EQ(SimGpu::bounce_count() == bounce_count, has_pins);
    {
      const ReadLease lease = AcquireThere(rank, keys_);
      ASSERT_EQ(lease.ready_count(), kBlocks);
      ASSERT_EQ(lease.spans()[0].tier, TierKind::kHbm);
      const uint64_t before_load = SimGpu::bounce_count();
      std::string why;
      EXPECT_EQ(LoadIntoPages(*gpu.device(), lease, Latent().members[0].spec, &why), kBlocks)
          << why;
      EXPECT_EQ(SimGpu::bounce_count(), before_load) << "nothing of it passes the host";
      std::vector<std::byte> part(kPartBytes);
      EXPECT_EQ(lease.CopyPart(0, 0, 0, part).code(), StatusCode::kUnsupported);
      const std::shared_ptr<const Device> host = HostMemory();
      EXPECT_EQ(LoadIntoPages(*host, lease, Latent().members[0].spec, &why), 0u);
      EXPECT_THAT(why, testing::HasSubstr("'cuda:GPU-5e5e5e5e-5e5e-5e5e-5e5e-5e5e5e5e5e01'"));
    }
    Flood();
    EXPECT_EQ(Load(*plain_, group_, keys_, 0).right_count, kBlocks);
    EXPECT_EQ(gpu.stray_count(), 0u);
    const nlohmann::json hbm = Stats()["hbm"];
    EXPECT_EQ(hbm["device"], "cuda:GPU-5e5e5e5e-5e5e-5e5e-5e5e-5e5e5e5e5e01");
    EXPECT_EQ(hbm["backend"], "cuda");
    EXPECT_EQ(hbm["orders_wrong"], 0);
    EXPECT_EQ(hbm["orders_refused"], 0);
  }
};

TEST_F(DaemonGpu, BlocksGoThereAreReadThereAndComeBack) { GoThereAndBack(/*has_pins=*/false); }

TEST_F(DaemonGpu, BlocksGoThereAndComeBackStraightFromTheRegisteredArena) {
  GoThereAndBack(/*has_pins=*/true);
}

TEST_F(DaemonGpu, WhatAFailingCopyLeftThereIsNeverPublished) {
  Start(Gpu("cuda:GPU-5e5e5e5e-5e5e-5e5e-5e5e-5e5e5e5e5e01"));
  ConnectPlain();
  const SimGpu gpu(1, /*failures_per_million=*/1'000'000);
  Rank rank = Join(gpu);
  ASSERT_EQ(Store(*rank.client, rank.group, keys_), kBlocks);
  ASSERT_TRUE(Eventually([&](const auto& stats) {
    (void)AcquireThere(rank, keys_);
    return stats["hbm"]["orders_refused"] >= 8;
  })) << Stats()["hbm"].dump(1);
  EXPECT_EQ(OnDevice(Stats()), 0u);
  EXPECT_EQ(Stats()["hbm"]["orders_wrong"], 0) << "it is said, not found out";
  const ReadLease lease = AcquireThere(rank, keys_);
  EXPECT_EQ(lease.spans()[0].tier, TierKind::kDram);
  EXPECT_EQ(Read(*rank.client, lease, keys_).right_count, kBlocks);
}

TEST_F(DaemonGpu, AnOrderThatItsClientDiesInGoesToAnother) {
  Start(Gpu("cuda:1"));
  const auto hanging = [] {
    static SimGpu* const gpu = new SimGpu;
    gpu->Hang(true);
    return gpu->device();
  };
  Engine engine(daemon_.socket_path(), hanging);
  Connect();
  ASSERT_EQ(engine.Do(Engine::kStore), kBlocks);
  ASSERT_TRUE(Eventually([&](const auto& stats) {
    return engine.Do(Engine::kLoad) == kBlocks && stats["hbm"]["orders_issued"] > 0;
  }));
  const SimGpu gpu;
  const auto other = MakeClient(daemon_.socket_path(), gpu.device());
  ASSERT_TRUE(other->WaitConnected(kLongUs).ok());
  ASSERT_TRUE(Eventually([](const auto& stats) { return stats["hbm"]["clients"] == 2; }));
  EXPECT_EQ(OnDevice(Stats()), 0u) << "nothing is published of a copy that is under way";
  EXPECT_EQ(Stats()["hbm"]["orders_reissued"], 0);
  engine.Kill();
  ASSERT_TRUE(Eventually([&](const auto& stats) { return OnDevice(stats) > 0; }));
  EXPECT_GT(Stats()["hbm"]["orders_reissued"], 0);
}

TEST_F(DaemonGpu, ACopyUnderWayKeepsItsMemoryAfterTheDaemonDied) {
  const uint64_t copies_before = SimGpu::copy_count();
  Start(Gpu("cuda:1"));
  ConnectPlain();
  SimGpu gpu;
  gpu.Hang(true);
  Rank rank = Join(gpu);
  ASSERT_EQ(Store(*rank.client, rank.group, keys_), kBlocks);
  ASSERT_TRUE(Eventually([&](const auto& stats) {
    (void)AcquireThere(rank, keys_);
    return stats["hbm"]["orders_issued"] > 0;
  }));
  // An order that no copy has begun for is let go with the daemon.
  ASSERT_TRUE(Eventually([&](const auto&) { return SimGpu::copy_count() > copies_before; }));
  const uint64_t boot_id = rank.client->boot_id();
  daemon_.Signal(SIGKILL);
  ASSERT_EQ(daemon_.Wait(), 128 + SIGKILL);
  Start(Gpu("cuda:1"));
  for (int i = 0; i < 6000 && (rank.client->boot_id() == boot_id || !rank.client->is_connected());
       ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_TRUE(plain_->WaitConnected(kLongUs).ok());
  ASSERT_EQ(Store(*rank.client, rank.group, keys_), kBlocks) << "DRAM serves as ever";
  EXPECT_EQ(MappedSlabs(), 4u) << "the new daemon's, and those that the copy writes to";
  gpu.Hang(false);
  EXPECT_TRUE(Eventually([](const auto&) { return MappedSlabs() == 2; }));
  EXPECT_TRUE(Eventually([&](const auto& stats) {
    (void)AcquireThere(rank, keys_);
    return OnDevice(stats) == kBlocks;
  })) << Stats()["hbm"].dump(1);
}

TEST_F(DaemonGpu, AClientOfAnotherDeviceIsToldSoAndServedFromDram) {
  Start(Gpu("cuda:1"));
  ConnectPlain();
  ASSERT_EQ(Store(*plain_, group_, keys_), kBlocks);
  const SimGpu gpu(0);
  Rank other = Join(gpu);
  EXPECT_THAT(
      other.client->last_error(),
      testing::AllOf(testing::HasSubstr("'cuda:GPU-5e5e5e5e-5e5e-5e5e-5e5e-5e5e5e5e5e00'"),
                     testing::HasSubstr("'cuda:GPU-5e5e5e5e-5e5e-5e5e-5e5e-5e5e5e5e5e01'")));
  EXPECT_EQ(AcquireThere(other, keys_).spans()[0].tier, TierKind::kDram);
  const auto host = MakeClient(daemon_.socket_path(), HostMemory());
  ASSERT_TRUE(host->WaitConnected(kLongUs).ok());
  EXPECT_THAT(host->last_error(), testing::HasSubstr("device 'host'"));
  EXPECT_EQ(Stats()["hbm"]["clients"], 0);
}

TEST_F(DaemonGpu, WhereThePluginOrTheDeviceIsMissingTheStartIsRefused) {
  using testing::AllOf;
  using testing::HasSubstr;
  EXPECT_THAT(Refusal("device = \"cuda:0\"\nplugin_path = \"/nonexistent/libterrace_cuda.so\"\n"),
              AllOf(HasSubstr("hbm.device is 'cuda:0'"),
                    HasSubstr("/nonexistent/libterrace_cuda.so: No such file"),
                    HasSubstr("set hbm.plugin_path"), HasSubstr("\"host\"")));
  EXPECT_THAT(Refusal(Gpu("cuda:7")),
              AllOf(HasSubstr("hbm.device is 'cuda:7'"),
                    HasSubstr("this process sees 2: 0 is GPU-"), HasSubstr("nvidia-smi -L")));
  EXPECT_THAT(Refusal(Gpu("cuda:GPU-00000000-0000-0000-0000-000000000000")),
              HasSubstr("no such device"));
}

}  // namespace
}  // namespace terrace::test

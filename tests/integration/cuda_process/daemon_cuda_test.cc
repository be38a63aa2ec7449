// A real terraced that gives out memory of a GPU through the CUDA plugin, and engines whose pages
// lie there. The GPUs are emulated, the plugin's code is its own: kernels, copies, slabs,
// registration.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/paged/paged_cache.h"
#include "cuda/host/device_loader.h"
#include "cuda/host/host_pins.h"
#include "integration/process/device_fixture.h"
#include "tests/cuda_emulator/emulator.h"

namespace terrace::test {
namespace {

class DaemonCuda : public DaemonDevice {
 protected:
  // The daemon's own GPU is the second; what it makes contexts of is told in a file.
  void SetUp() override {
    contexts_ = daemon_.directory() + "/contexts";
    plugin_ = daemon_.directory() + "/plugin.so";
    std::filesystem::copy_file(TERRACE_CUDA_PLUGIN_PATH, plugin_);
    std::filesystem::permissions(plugin_, std::filesystem::perms(0755));
    setenv("TERRACE_EMULATOR_CONTEXTS", contexts_.c_str(), 1);
    Start("device = \"cuda:1\"\nplugin_path = \"" + plugin_ + "\"\n");
    unsetenv("TERRACE_EMULATOR_CONTEXTS");
    plain_ = MakeClient(daemon_.socket_path());
    ASSERT_TRUE(plain_->WaitConnected(kLongUs).ok()) << plain_->last_error();
    group_ = plain_->Open(Latent(), 1).value();
  }
  void TearDown() override {
    EXPECT_EQ(emulator::Count().pageable_copies, 0u);
    EXPECT_FALSE(emulator::HasContext(0)) << "nobody here uses the first GPU";
    std::string contexts;
    std::getline(std::ifstream(contexts_), contexts);
    EXPECT_EQ(contexts, "") << "the daemon has made a context";
  }
  static SpaceGroupSpec Latent() {
    SpaceGroupSpec spec = Model();
    spec.name = "latent";
    spec.members[0].spec.attention = AttentionKind::kMla;
    return spec;
  }
  std::shared_ptr<const Device> Gpu() {
    std::string why;
    const Result<const DeviceOps*> ops = LoadDevicePlugin(plugin_, &why);
    EXPECT_TRUE(ops.ok()) << why;
    return std::make_shared<Device>(std::move(Device::Open(**ops, {.device_index = 1})).value());
  }

  std::string plugin_;
  std::string contexts_;
};

// Pages of the test's blocks in the memory of a GPU.
class GpuPages {
 public:
  explicit GpuPages(const Device& device)
      : memory_(Allocate(device, DeviceMemory::kDevice)),
        pinned_(Allocate(device, DeviceMemory::kPinned)),
        stream_(std::move(Stream::Create(device, StreamPriority::kLoad)).value()),
        done_(std::move(Event::Create(device)).value()) {}

  PagedLayout layout() {
    std::vector<std::byte> host;
    PagedLayout layout = LayoutOfBlocks(host);
    for (uint32_t layer = 0; layer < 2; ++layer) {
      layout.bases[layer] = reinterpret_cast<uint64_t>(memory_.address()) + OffsetOf(layer, 0);
    }
    return layout;
  }
  static uint64_t OffsetOf(uint32_t layer, uint64_t page) {
    return (layer * kBlocks + page) * kPartBytes;
  }
  std::byte* host() { return pinned_.address(); }
  void Copy(CopyDirection direction) {
    const bool is_up = direction == CopyDirection::kToHost;
    const CopyPiece piece{is_up ? pinned_.address() : memory_.address(),
                          is_up ? memory_.address() : pinned_.address(), pinned_.byte_count()};
    ASSERT_TRUE(stream_.Copy(direction, {&piece, 1}).ok());
    ASSERT_TRUE(done_.Record(stream_).ok());
    ASSERT_TRUE(done_.Await().ok());
  }

 private:
  static DeviceBuffer Allocate(const Device& device, DeviceMemory kind) {
    return std::move(DeviceBuffer::Allocate(device, kind, 2 * kBlocks * kPartBytes)).value();
  }

  DeviceBuffer memory_;
  DeviceBuffer pinned_;
  Stream stream_;
  Event done_;
};

// An engine's client, its pages on the GPU and the copies between these and its leases.
class CudaEngine {
 public:
  CudaEngine(const std::string& socket_path, std::shared_ptr<const Device> device,
             const SpaceGroupSpec& spec, bool has_pins)
      : device_(std::move(device)), client_(MakeClient(socket_path, device_)), pages_(*device_) {
    EXPECT_TRUE(client_->WaitConnected(kLongUs).ok()) << client_->last_error();
    group_ = client_->Open(spec, 1).value();
    if (has_pins) pins_ = client_->PinArena(device_).value();
    std::string why;
    auto cache = client::PagedCache::Create(
        *device_, {.layout = pages_.layout(), .space = spec.members[0].spec, .pins = pins_}, &why);
    EXPECT_TRUE(cache.ok()) << why;
    cache_ = std::move(cache).value();
  }

  const std::shared_ptr<HostPins>& pins() const { return pins_; }

  // Blocks sealed, of bytes that have only ever been in the GPU's pages. `meanwhile` runs when the
  // copy has been queued.
  uint32_t Store(const std::vector<BlockKey>& keys, const std::function<void()>& meanwhile = {}) {
    for (uint32_t i = 0; i < kBlocks; ++i) {
      for (uint32_t layer = 0; layer < 2; ++layer) {
        const auto bytes = Bytes(keys[i], layer);
        std::memcpy(pages_.host() + GpuPages::OffsetOf(layer, kPages[i]), bytes.data(),
                    bytes.size());
      }
    }
    pages_.Copy(CopyDirection::kToDevice);
    auto lease = client_->Reserve(group_, keys);
    if (!lease.ok()) return 0;
    std::string why;
    auto copy = cache_->Store(*lease, {.page_indexes = kPages}, KvWritten::Already(), &why);
    EXPECT_TRUE(copy.ok()) << why;
    if (!copy.ok()) return 0;
    if (meanwhile) meanwhile();
    is_copied_ = (*copy)->Wait(kLongUs).ok();
    const auto sealed = client_->Commit(*lease);
    return sealed.ok() ? *sealed : 0;
  }
  bool is_copied() const { return is_copied_; }  // by the last Store
  ReadLease Acquire(const std::vector<BlockKey>& keys) {
    auto lease = client_->Acquire(group_, keys, {.flags = protocol::kAcquireDevice});
    return lease.ok() ? std::move(lease).value() : ReadLease();
  }
  // Blocks that are right in the GPU's pages, from the front.
  uint32_t Load(const ReadLease& lease, const std::vector<BlockKey>& keys) {
    std::memset(pages_.host(), 0xEE, 2 * kBlocks * kPartBytes);
    pages_.Copy(CopyDirection::kToDevice);
    (void)client_->WaitReady(lease, lease.block_count(), kLongUs);
    std::string why;
    auto copy = cache_->Load(lease, {.page_indexes = kPages}, DestinationFree::Already(), &why);
    EXPECT_TRUE(copy.ok()) << why;
    if (!copy.ok() || !(*copy)->Wait(kLongUs).ok()) return 0;
    pages_.Copy(CopyDirection::kToHost);
    uint32_t right_count = 0;
    while (right_count < kBlocks && IsRight(keys[right_count], kPages[right_count])) ++right_count;
    return right_count;
  }

 private:
  static inline const std::vector<uint64_t> kPages = {2, 0, 3, 1};

  bool IsRight(const BlockKey& key, uint64_t page) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const auto bytes = Bytes(key, layer);
      if (std::memcmp(pages_.host() + GpuPages::OffsetOf(layer, page), bytes.data(),
                      bytes.size()) != 0) {
        return false;
      }
    }
    return true;
  }

  const std::shared_ptr<const Device> device_;
  const std::unique_ptr<Client> client_;
  GpuPages pages_;
  GroupRef group_;
  std::shared_ptr<HostPins> pins_;
  std::unique_ptr<client::PagedCache> cache_;
  bool is_copied_ = false;
};

class DaemonCudaPins : public DaemonCuda, public testing::WithParamInterface<bool> {};

// Out of a GPU's pages into DRAM, up into the GPU's slots, from there into pages; and when DRAM has
// forgotten them, down again.
TEST_P(DaemonCudaPins, BlocksGoFromPagesToTheGpusSlotsAndBack) {
  const bool has_pins = GetParam();
  CudaEngine engine(daemon_.socket_path(), Gpu(), Latent(), has_pins);
  ASSERT_EQ(engine.Store(keys_), kBlocks);
  if (has_pins) {
    ASSERT_TRUE(Eventually([&](const auto&) {
      (void)engine.Acquire(keys_);
      return engine.pins()->counts().pinned_bytes > 0;
    }));
    EXPECT_GT(emulator::Count().registrations, 0u);
  }
  ASSERT_TRUE(Eventually([&](const auto& stats) {
    const ReadLease lease = engine.Acquire(keys_);
    return lease.block_count() == kBlocks && engine.Load(lease, keys_) == kBlocks &&
           OnDevice(stats) == kBlocks;
  })) << Stats().dump(1);
  {
    const ReadLease lease = engine.Acquire(keys_);
    ASSERT_EQ(lease.ready_count(), kBlocks);
    ASSERT_EQ(lease.spans()[0].tier, TierKind::kHbm);
    EXPECT_EQ(engine.Load(lease, keys_), kBlocks);
  }
  Flood();
  EXPECT_EQ(test::Load(*plain_, group_, keys_, 0).right_count, kBlocks);
  const nlohmann::json hbm = Stats()["hbm"];
  EXPECT_EQ(hbm["device"], "cuda:GPU-e1e1e1e1-e1e1-e1e1-e1e1-e1e1e1e1e1e1");
  EXPECT_EQ(hbm["backend"], "cuda");
  EXPECT_EQ(hbm["orders_wrong"], 0);
  EXPECT_EQ(hbm["orders_refused"], 0);
}

INSTANTIATE_TEST_SUITE_P(Pins, DaemonCudaPins, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "straight" : "through_the_bounce");
});

// PROMISE: T47 a GPU that fails, emulated
TEST_F(DaemonCuda, WhatWasUnderWayWhenTheGpuFailedIsNotSealed) {
  const std::vector<BlockKey> lost = Keys(kBlocks, kPrompt + 1);
  {
    CudaEngine engine(daemon_.socket_path(), Gpu(), Latent(), /*has_pins=*/false);
    ASSERT_EQ(engine.Store(keys_), kBlocks);
    const auto fail = [] { emulator::FailDevice(1, cudaErrorIllegalAddress); };
    EXPECT_EQ(engine.Store(lost, fail), 0u);
    EXPECT_FALSE(engine.is_copied());
  }
  emulator::MendDevices();
  EXPECT_EQ(test::Load(*plain_, group_, lost, 0).right_count, 0u);
  EXPECT_EQ(test::Load(*plain_, group_, keys_, 0).right_count, kBlocks);
  CudaEngine next(daemon_.socket_path(), Gpu(), Latent(), /*has_pins=*/false);
  EXPECT_EQ(next.Store(lost), kBlocks);
  EXPECT_EQ(next.Load(next.Acquire(lost), lost), kBlocks);
}

}  // namespace
}  // namespace terrace::test

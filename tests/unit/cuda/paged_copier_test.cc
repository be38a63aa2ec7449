// The copier on the host backend, whose streams are threads: what an engine on the CPU runs.
#include "cuda/copy/paged_copier.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "cuda/host/host_device.h"
#include "short_device.h"
#include "sim/sim_device.h"
#include "tests/sim/paged_world.h"

namespace terrace {
namespace {

constexpr CacheShape kShape{
    .layer_count = 5, .page_tokens = 32, .head_count = 4, .head_bytes = 128, .page_count = 300};

class PagedCopierTest : public testing::TestWithParam<TransferPath> {
 protected:
  PagedNest Compile(const TestCache& cache, SlotOrder order) {
    Result<PagedNest> nest = CompileNest(cache.layout, {.order = order}, &why_);
    EXPECT_TRUE(nest.ok()) << why_;
    return std::move(nest).value();
  }
  std::unique_ptr<PagedCopier> Make(const PagedNest& nest, const CopierOptions& options) {
    Result<std::unique_ptr<PagedCopier>> copier =
        PagedCopier::Create(device_, nest, options, &why_);
    EXPECT_TRUE(copier.ok()) << why_;
    return std::move(copier).value();
  }

  Device device_ = std::move(Device::Open(HostDeviceOps(), {.worker_count = 3})).value();
  std::string why_;
};

struct SlotMemory {
  explicit SlotMemory(const PagedNest& nest, size_t count)
      : slot_bytes(nest.slot_bytes), bytes(count * nest.slot_bytes) {}
  std::vector<PageSlot> For(const std::vector<uint64_t>& pages) {
    std::vector<PageSlot> slots;
    for (size_t i = 0; i < pages.size(); ++i) {
      slots.push_back({pages[i], bytes.data() + i * slot_bytes, bytes.data() + i * slot_bytes});
    }
    return slots;
  }
  uint64_t slot_bytes;
  std::vector<std::byte> bytes;
};

// More pages than a launch, a stage and a batch hold.
TEST_P(PagedCopierTest, StoresAndLoadsEveryByteOfManyPages) {
  TestCache cache = MakeCache("nhd_planes_outer", kShape);
  const PagedNest nest = Compile(cache, SlotOrder::kHnd);
  const std::unique_ptr<PagedCopier> copier = Make(nest, {.store_path = GetParam(),
                                                          .load_path = GetParam(),
                                                          .stage_bytes = 4 * kMiB,
                                                          .stage_count = 2});
  std::vector<uint64_t> pages(260);
  std::iota(pages.rbegin(), pages.rend(), 7);
  SlotMemory slots(nest, pages.size());
  SlotMemory expected(nest, pages.size());
  for (size_t i = 0; i < pages.size(); ++i) {
    NaiveGather(cache.layout, nest, SlotOrder::kHnd, pages[i],
                expected.bytes.data() + i * nest.slot_bytes);
  }
  Result<StoreTicket> store = copier->Store(slots.For(pages), KvWritten::Already());
  ASSERT_TRUE(store.ok()) << store.status().what();
  ASSERT_TRUE(store->page_reuse.AwaitOnHost().ok());
  ASSERT_TRUE(store->slots_written.AwaitOnHost().ok());
  ASSERT_TRUE(slots.bytes == expected.bytes) << "padding between parts must be zero too";

  for (std::byte& byte : cache.memory) byte ^= std::byte{0xFF};
  const std::vector<std::byte> before = cache.memory;
  for (size_t i = 0; i < pages.size(); ++i) {
    NaiveScatter(cache.layout, nest, SlotOrder::kHnd, pages[i],
                 expected.bytes.data() + i * nest.slot_bytes);
  }
  const std::vector<std::byte> scattered = cache.memory;
  std::ranges::copy(before, cache.memory.begin());
  Result<LoadTicket> load = copier->Load(slots.For(pages), DestinationFree::Already());
  ASSERT_TRUE(load.ok()) << load.status().what();
  for (uint32_t layer = 0; layer < nest.layer_count(); ++layer) {
    ASSERT_TRUE(load->layer_ready.AwaitOnHost(layer).ok());
  }
  EXPECT_EQ(load->layer_ready.AwaitOnHost(1000).code(), StatusCode::kInvalid);
  ASSERT_TRUE(load->slots_read.AwaitOnHost().ok());
  EXPECT_TRUE(cache.memory == scattered);
}

// Of four slots one lies in a slab, one in registered memory, one in neither, one in a slab again.
// The slabs are others' as soon as the slots are said to be read.
TEST_P(PagedCopierTest, SlotsInTheDevicesOwnMemoryAreReadThereByKernels) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimDevice sim({.seed = seed, .steps_per_call_max = 0, .needs_registration = true});
    const auto device = std::make_shared<Device>(SimDeviceOps(), sim.handle());
    TestCache cache = MakeCache("nhd_packed", {.page_count = 8});
    const PagedNest nest = Compile(cache, SlotOrder::kNhd);
    const auto pins = std::make_shared<HostPins>(device, kGiB);
    auto copier = PagedCopier::Create(*device, nest,
                                      {.load_path = GetParam(),
                                       .stage_bytes = 16 * kKiB,
                                       .stage_count = 2,
                                       .load_chunk_bytes_min = 1,
                                       .load_step_bytes_min = 1,
                                       .pins = pins,
                                       .bounce_bytes = 16 * kKiB},
                                      &why_);
    ASSERT_TRUE(copier.ok()) << why_;
    constexpr uint64_t kSlabBytes = 2 * kMiB;
    int32_t fd = -1;
    void* slab = nullptr;
    ASSERT_EQ(device->ops().create_slab(device->handle(), kSlabBytes, &fd).code, 0);
    ASSERT_EQ(device->ops()
                  .map_slab(device->handle(), fd, kSlabBytes, SlabAccess::kReadWrite, &slab)
                  .code,
              0);
    const std::vector<uint64_t> pages = {6, 1, 4, 3};
    SlotMemory slots(nest, pages.size());
    std::vector<PageSlot> loaded = slots.For(pages);
    ASSERT_TRUE(pins->Register(loaded[1].slot, nest.slot_bytes).ok());
    for (const size_t i : {0, 3}) {
      loaded[i].slot = static_cast<std::byte*>(slab) + i * RoundUp(nest.slot_bytes, 4096);
      loaded[i].is_in_device = true;
    }
    for (size_t i = 0; i < pages.size(); ++i) {
      NaiveGather(cache.layout, nest, SlotOrder::kNhd, pages[i], loaded[i].slot);
    }
    const std::vector<std::byte> expected = cache.memory;
    for (const uint64_t page : pages) {
      const std::vector<std::byte> zeros(nest.slot_bytes);
      NaiveScatter(cache.layout, nest, SlotOrder::kNhd, page, zeros.data());
    }
    Result<LoadTicket> load = (*copier)->Load(loaded, DestinationFree::Already());
    ASSERT_TRUE(load.ok()) << load.status().what();
    while (load->slots_read.Query().code() == StatusCode::kBusy) ASSERT_TRUE(sim.Step());
    std::memset(slab, 0xEE, kSlabBytes);
    sim.Settle();
    ASSERT_TRUE(load->layer_ready.Query().ok());
    EXPECT_TRUE(cache.memory == expected) << "seed " << seed;
    EXPECT_EQ(sim.stray_count(), 0u);
    pins->Unregister(loaded[1].slot);
    close(fd);
    EXPECT_EQ(device->ops().unmap_slab(device->handle(), slab, kSlabBytes).code, 0);
  }
}

// Every other slot is registered, the last only in part; the bounce holds a layer of two slots.
TEST_P(PagedCopierTest, SlotsThatAreNotPinnedGoThroughTheBounce) {
  TestCache cache = MakeCache("hnd_packed", kShape);
  const PagedNest nest = Compile(cache, SlotOrder::kNhd);
  const auto pins = std::make_shared<HostPins>(
      std::make_shared<Device>(std::move(Device::Open(HostDeviceOps())).value()), kGiB);
  const std::unique_ptr<PagedCopier> copier =
      Make(nest, {.store_path = GetParam(),
                  .load_path = GetParam(),
                  .pins = pins,
                  .bounce_bytes = 2 * nest.layer_offset_bytes[1]});
  std::vector<uint64_t> pages(33);
  std::iota(pages.begin(), pages.end(), 11);
  SlotMemory slots(nest, pages.size());
  SlotMemory expected(nest, pages.size());
  std::ranges::fill(slots.bytes, std::byte{0x5A});
  std::ranges::fill(expected.bytes, std::byte{0x5A});
  for (size_t i = 0; i < pages.size(); ++i) {
    NaiveGather(cache.layout, nest, SlotOrder::kNhd, pages[i],
                expected.bytes.data() + i * nest.slot_bytes);
    if (i % 2 == 1) continue;
    const uint64_t pinned_bytes = nest.slot_bytes - (i + 1 == pages.size() ? 1 : 0);
    ASSERT_TRUE(pins->Register(slots.bytes.data() + i * nest.slot_bytes, pinned_bytes).ok());
  }
  std::vector<PageSlot> asked = slots.For(pages);
  for (PageSlot& page : asked) page.device_slot = nullptr;
  Result<StoreTicket> store = copier->Store(asked, KvWritten::Already());
  ASSERT_TRUE(store.ok()) << store.status().what();
  ASSERT_TRUE(store->page_reuse.AwaitOnHost().ok());
  ASSERT_TRUE(store->slots_written.AwaitOnHost().ok());
  for (size_t i = 0; i < pages.size(); ++i) {
    for (uint32_t layer = 0; layer < nest.layer_count(); ++layer) {
      const uint64_t at = i * nest.slot_bytes + nest.layer_offset_bytes[layer];
      ASSERT_TRUE(std::ranges::equal(std::span(slots.bytes).subspan(at, nest.layer_bytes),
                                     std::span(expected.bytes).subspan(at, nest.layer_bytes)))
          << "slot " << i << " layer " << layer;
    }
  }
  const uint64_t page_bytes = nest.layer_bytes * nest.layer_count();
  EXPECT_EQ(pins->counts().straight_bytes, 16 * page_bytes);
  EXPECT_EQ(pins->counts().bounced_bytes, 17 * page_bytes);

  const std::vector<std::byte> stored = cache.memory;
  for (const uint64_t page : pages) {
    std::vector<std::byte> blank(nest.slot_bytes, std::byte{0xEE});
    NaiveScatter(cache.layout, nest, SlotOrder::kNhd, page, blank.data());
  }
  ASSERT_FALSE(cache.memory == stored);
  Result<LoadTicket> load = copier->Load(asked, DestinationFree::Already());
  ASSERT_TRUE(load.ok()) << load.status().what();
  ASSERT_TRUE(load->layer_ready.AwaitOnHost(nest.layer_count() - 1).ok());
  ASSERT_TRUE(load->slots_read.AwaitOnHost().ok());
  EXPECT_TRUE(cache.memory == stored);
}

TEST_P(PagedCopierTest, TicketsThatAreDroppedHaveWaited) {
  TestCache cache = MakeCache("hnd_packed", kShape);
  const PagedNest nest = Compile(cache, SlotOrder::kAsEngine);
  const std::unique_ptr<PagedCopier> copier =
      Make(nest, {.store_path = GetParam(), .load_path = GetParam()});
  std::vector<uint64_t> pages(200);
  std::iota(pages.begin(), pages.end(), 0);
  SlotMemory slots(nest, pages.size());
  SlotMemory expected(nest, pages.size());
  for (size_t i = 0; i < pages.size(); ++i) {
    NaiveGather(cache.layout, nest, SlotOrder::kAsEngine, pages[i],
                expected.bytes.data() + i * nest.slot_bytes);
  }
  {
    const Result<StoreTicket> dropped = copier->Store(slots.For(pages), KvWritten::Already());
    ASSERT_TRUE(dropped.ok());
  }
  EXPECT_TRUE(slots.bytes == expected.bytes);
  EXPECT_EQ(copier->events().taken_count(), 0u);
}

TEST_P(PagedCopierTest, PagesThatCannotBeCopiedAreRefused) {
  TestCache cache = MakeCache("nhd_packed", {});
  const PagedNest nest = Compile(cache, SlotOrder::kAsEngine);
  const std::unique_ptr<PagedCopier> copier =
      Make(nest, {.store_path = GetParam(), .load_path = GetParam()});
  SlotMemory slots(nest, 1);
  const auto refuses = [&](std::span<const PageSlot> pages) {
    EXPECT_EQ(copier->Store(pages, KvWritten::Already()).code(), StatusCode::kInvalid);
    EXPECT_EQ(copier->Load(pages, DestinationFree::Already()).code(), StatusCode::kInvalid);
  };
  refuses({});
  refuses(slots.For({nest.page_count}));
  const PageSlot without_slot[] = {{0, nullptr, nullptr}};
  refuses(without_slot);
  refuses(std::vector<PageSlot>(kPagesPerCallMax + 1, slots.For({0})[0]));
}

// Who is told so gives the slots up, and others write to them.
// PROMISE: T26 a copy whose end finds no memory
TEST_P(PagedCopierTest, AStoreThatFailsHalfWayHasEndedThoughItsEndIsHardToRecord) {
  ShortDevice device;
  const TestCache cache = MakeCache("nhd_packed", {.page_count = 8});
  const PagedNest nest = Compile(cache, SlotOrder::kNhd);
  auto copier = PagedCopier::Create(*device.device(), nest,
                                    {.store_path = GetParam(), .load_path = GetParam()}, &why_);
  ASSERT_TRUE(copier.ok()) << why_;
  SlotMemory slots(nest, 2);
  device.RefuseRecordings(3);  // its own, and two of those that are to say that all is over
  EXPECT_EQ((*copier)->Store(slots.For({3, 5}), KvWritten::Already()).code(), StatusCode::kNoSpace);
  EXPECT_EQ(device.under_way_count(), 0);
  device.RefuseRecordings(3);
  EXPECT_EQ((*copier)->Load(slots.For({3, 5}), DestinationFree::Already()).code(),
            StatusCode::kNoSpace);
  EXPECT_EQ(device.under_way_count(), 0);
}

TEST(PagedCopierMemory, IsNotFreedUnderACopyThatNoEventStandsBehind) {
  ShortDevice device;
  const TestCache cache = MakeCache("nhd_packed", {.page_count = 8});
  std::string why;
  Result<PagedNest> nest = CompileNest(cache.layout, {.order = SlotOrder::kNhd}, &why);
  ASSERT_TRUE(nest.ok()) << why;
  device.RefuseRecordings(2);
  const auto copier = PagedCopier::Create(*device.device(), std::move(nest).value(), {}, &why);
  EXPECT_TRUE(copier.ok()) << why;
  EXPECT_EQ(device.freed_under_way_count(), 0);
}

INSTANTIATE_TEST_SUITE_P(Paths, PagedCopierTest,
                         testing::Values(TransferPath::kDirect, TransferPath::kStaged,
                                         TransferPath::kZeroCopy),
                         [](const auto& path) {
                           return std::string(TransferPathName(path.param));
                         });

TEST_F(PagedCopierTest, OptionsPastTheirLimitsAreRefusedByName) {
  TestCache cache = MakeCache("nhd_packed", {});
  const PagedNest nest = Compile(cache, SlotOrder::kAsEngine);
  const auto refuses = [&](const CopierOptions& options, const char* field) {
    EXPECT_EQ(PagedCopier::Create(device_, nest, options, &why_).code(), StatusCode::kInvalid);
    EXPECT_NE(why_.find(field), std::string::npos) << why_;
  };
  refuses({.stage_bytes = 0}, "stage_bytes");
  refuses({.stage_bytes = 100}, "stage_bytes");
  refuses({.stage_count = 0}, "stage_count");
  refuses({.stage_count = kStageCountMax + 1}, "stage_count");
  refuses({.staged_thread_blocks_max = 0}, "staged_thread_blocks_max");
  refuses({.zero_copy_thread_blocks_max = 0}, "zero_copy_thread_blocks_max");
  refuses({.load_chunk_bytes_min = 0}, "load_chunk_bytes_min");
  refuses({.load_step_bytes_min = 0}, "load_step_bytes_min");
  refuses({.bounce_bytes = 0}, "bounce_bytes");
  const std::shared_ptr<const Device> unowned(&device_, [](const Device*) {});
  refuses({.pins = std::make_shared<HostPins>(unowned, kGiB), .bounce_bytes = 100}, "bounce_bytes");
}

// A step costs as many calls of the driver whatever it moves: so few layers are no step.
TEST_F(PagedCopierTest, ALoadTakesNoMoreStepsThanItsBytesAreWorth) {
  static uint32_t launch_count = 0;
  static DeviceOps ops = SimDeviceOps();
  ops.copy_paged = [](StreamHandle* stream, const PagedLaunch* launch) {
    ++launch_count;
    return SimDeviceOps().copy_paged(stream, launch);
  };
  SimDevice sim({.seed = 1, .steps_per_call_max = 0});
  const Device device(ops, sim.handle());
  TestCache cache = MakeCache("nhd_packed", {.page_count = 8});
  const PagedNest nest = Compile(cache, SlotOrder::kNhd);
  const uint64_t layers = nest.layer_count();
  ASSERT_GE(layers, 2u);
  const auto launches = [&](uint64_t step_bytes, const std::vector<uint64_t>& pages) {
    CopierOptions options{.load_chunk_bytes_min = 1, .load_step_bytes_min = step_bytes};
    auto copier = PagedCopier::Create(device, nest, options, &why_);
    SlotMemory slots(nest, pages.size());
    launch_count = 0;
    Result<LoadTicket> load = (*copier)->Load(slots.For(pages), DestinationFree::Already());
    EXPECT_TRUE(load.ok() && load->layer_ready.AwaitOnHost(layers - 1).ok());
    EXPECT_TRUE(load->slots_read.AwaitOnHost().ok());
    return launch_count;
  };
  EXPECT_EQ(launches(CopierOptions().load_step_bytes_min, {1}), 1u);
  EXPECT_EQ(launches(1, {1}), layers);
  EXPECT_EQ(launches(2 * nest.layer_bytes, {1}), (layers + 1) / 2);
  EXPECT_EQ(launches(2 * nest.layer_bytes, {1, 3}), layers) << "of all slots together";
}

TEST_F(PagedCopierTest, PinsKnowWhatIsRegisteredAndHowMuchMayBe) {
  const std::shared_ptr<const Device> unowned(&device_, [](const Device*) {});
  HostPins pins(unowned, 8192);
  std::vector<std::byte> memory(16384);
  std::byte* const first = memory.data();
  EXPECT_EQ(pins.DeviceAddress(first, 1), nullptr);
  ASSERT_TRUE(pins.Register(first + 4096, 4096).ok());
  EXPECT_EQ(pins.DeviceAddress(first + 4096, 4096), first + 4096);
  EXPECT_EQ(pins.DeviceAddress(first + 8191, 1), first + 8191);
  EXPECT_EQ(pins.DeviceAddress(first + 4095, 2), nullptr);
  EXPECT_EQ(pins.DeviceAddress(first + 8191, 2), nullptr);
  EXPECT_EQ(pins.DeviceAddress(first + 12288, 1), nullptr);
  // One more is over the limit, and no failure of the device's.
  EXPECT_EQ(pins.Register(first + 8192, 4097).code(), StatusCode::kNoSpace);
  EXPECT_EQ(pins.counts().failed_count, 0u);
  ASSERT_TRUE(pins.Register(first + 8192, 4096).ok());
  EXPECT_EQ(pins.DeviceAddress(first + 4096, 8192), nullptr) << "a copy spans one registration";
  EXPECT_EQ(pins.counts().pinned_bytes, 8192u);
  pins.Unregister(first + 4096);
  EXPECT_EQ(pins.DeviceAddress(first + 4096, 1), nullptr);
  EXPECT_EQ(pins.counts().pinned_bytes, 4096u);
}

// A device that runs out of events in mid call: what was queued has ended all the same.
TEST_F(PagedCopierTest, ACallThatFailsHalfWayHasEnded) {
  static bool has_events = true;
  static DeviceOps ops = SimDeviceOps();
  ops.create_event = [](DeviceHandle* device, EventHandle** event) {
    if (has_events) return SimDeviceOps().create_event(device, event);
    return DeviceStatus{.code = static_cast<int32_t>(StatusCode::kNoSpace)};
  };
  SimDevice sim({.seed = 1, .steps_per_call_max = 0});
  const Device device(ops, sim.handle());
  constexpr CacheShape kSmall{
      .layer_count = 2, .page_tokens = 16, .head_count = 1, .head_bytes = 64, .page_count = 4};
  TestCache cache = MakeCache("nhd_packed", kSmall);
  const PagedNest nest = Compile(cache, SlotOrder::kNhd);
  const auto copier =
      std::move(
          PagedCopier::Create(device, nest, {.stage_bytes = 16 * kKiB, .stage_count = 2}, &why_))
          .value();
  SlotMemory slots(nest, 3);
  has_events = false;
  EXPECT_FALSE(copier->Load(slots.For({0, 1, 2}), DestinationFree::Already()).ok());
  EXPECT_FALSE(sim.Step()) << "copies are still under way";
  EXPECT_FALSE(copier->Store(slots.For({0, 1, 2}), KvWritten::Already()).ok());
  EXPECT_FALSE(sim.Step()) << "copies are still under way";
  has_events = true;
}

TEST_F(PagedCopierTest, EventsAreBounded) {
  EventPool pool(device_, 2);
  Stream stream = std::move(Stream::Create(device_, StreamPriority::kStore)).value();
  {
    const Result<KvWritten> first = KvWritten::After(pool, stream);
    const Result<KvWritten> second = KvWritten::After(pool, stream);
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(KvWritten::After(pool, stream).code(), StatusCode::kBusy);
  }
  EXPECT_TRUE(KvWritten::After(pool, stream).ok());
  EXPECT_EQ(pool.taken_count(), 0u);
}

}  // namespace
}  // namespace terrace

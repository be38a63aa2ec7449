// The copier on the host backend, whose streams are threads: what an engine on the CPU runs.
#include "cuda/paged_copier.h"

#include <gtest/gtest.h>

#include <numeric>

#include "cuda/host_device.h"
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

// Paged copies under a codec, on the host's threads and on the simulated device: slots hold
// what the host's codec makes of each page, pages what it makes of each slot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "cuda/copy/paged_copier.h"
#include "cuda/host/host_device.h"
#include "sim/sim_device.h"
#include "unit/cuda/codec_pieces.h"
#include "unit/cuda/coded_pages.h"

namespace terrace {
namespace {

constexpr CacheShape kShape{
    .layer_count = 5, .page_tokens = 16, .head_count = 2, .head_bytes = 32, .page_count = 12};
constexpr std::byte kUntouched{0xE1};

std::unique_ptr<PagedCopier> MakeCopier(const Device& device, const TestCache& cache,
                                        const CopierOptions& options) {
  std::string why;
  auto copier = PagedCopier::Create(device, CompileForCodec(cache.layout), options, &why);
  EXPECT_TRUE(copier.ok()) << why;
  return std::move(copier).value();
}

// Slots of some pages, each with bytes behind it that no copy may touch.
struct Slots {
  Slots(const SlotLayers& layers, std::vector<uint64_t> page_indexes)
      : stride_bytes(layers.slot_bytes + 4096),
        memory(page_indexes.size() * stride_bytes + 4096, kUntouched) {
    auto* first =
        reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<uint64_t>(memory.data()), 4096));
    for (size_t i = 0; i < page_indexes.size(); ++i) {
      std::byte* const slot = first + i * stride_bytes;
      pages.push_back({page_indexes[i], slot, slot});
    }
  }
  void SetDeltas(const std::vector<int32_t>& deltas) {
    for (size_t i = 0; i < pages.size(); ++i) pages[i].key_delta = deltas[i];
  }
  bool HasKeptToItself(const SlotLayers& layers) const {
    return std::ranges::all_of(
        pages, [&](const PageSlot& page) { return page.slot[layers.slot_bytes] == kUntouched; });
  }

  uint64_t stride_bytes;
  std::vector<std::byte> memory;
  std::vector<PageSlot> pages;
};

void StoreAndLoad(const Device& device, TestCache& cache, const SpaceCodec& codec,
                  const CopierOptions& options) {
  const auto copier = MakeCopier(device, cache, options);
  const NaiveCoded naive(cache.layout, codec);
  Slots slots(naive.layers(), {7, 0, 11, 3, 2});
  {
    Result<StoreTicket> store = copier->Store(slots.pages, KvWritten::Already());
    ASSERT_TRUE(store.ok()) << store.status().what();
    ASSERT_TRUE(store->page_reuse.AwaitOnHost().ok());
    ASSERT_TRUE(store->slots_written.AwaitOnHost().ok());
    EXPECT_THAT(store->codes->Refused(), testing::IsEmpty());
  }
  for (const PageSlot& page : slots.pages) {
    ASSERT_TRUE(naive.IsEncoded(page.page_index, page.slot)) << "page " << page.page_index;
  }
  EXPECT_TRUE(slots.HasKeptToItself(naive.layers()));
  const std::byte* const header = slots.pages[0].slot;
  EXPECT_TRUE(!codec.has_chunk_header || std::all_of(header, header + 64, [](std::byte b) {
    return b == kUntouched;
  })) << "copies do not write it";
  if (options.rope) slots.SetDeltas({40, 0, -7, -7, 40});
  for (std::byte& byte : cache.memory) byte = kUntouched;
  {
    Result<LoadTicket> load = copier->Load(slots.pages, DestinationFree::Already());
    ASSERT_TRUE(load.ok()) << load.status().what();
    for (uint32_t layer = 0; layer < kShape.layer_count; ++layer) {
      ASSERT_TRUE(load->layer_ready.AwaitOnHost(layer).ok());
    }
    ASSERT_TRUE(load->slots_read.AwaitOnHost().ok());
  }
  const std::vector<std::byte> loaded = cache.memory;
  for (std::byte& byte : cache.memory) byte = kUntouched;
  const RopeSpec rope = options.rope.value_or(RopeSpec());
  for (const PageSlot& page : slots.pages) naive.Decode(page, rope);
  ASSERT_TRUE(loaded == cache.memory);
}

CopierOptions SmallOptions(TransferPath path, const SpaceCodec& codec) {
  return {.store_path = path,
          .load_path = path,
          .stage_bytes = 20 * kKiB,  // two layers of two pages, or so
          .stage_count = 2,
          .load_chunk_bytes_min = 1,
          .load_step_bytes_min = 1,
          .bounce_bytes = 8 * kKiB,
          .codec = codec};
}

constexpr TransferPath kPaths[] = {TransferPath::kStaged, TransferPath::kZeroCopy};

TEST(CodedCopier, EncodesAndDecodesPagesOfEveryLayoutOnTheHost) {
  const Device device = std::move(Device::Open(HostDeviceOps(), {.worker_count = 3})).value();
  for (const std::string& kind : CodedKinds()) {
    for (const Codec codec : kLossyCodecs) {
      for (const ElementType element : kElementTypes) {
        for (const TransferPath path : kPaths) {
          SCOPED_TRACE(kind + ", " + std::string(CodecName(codec)) + ", " +
                       std::string(TransferPathName(path)));
          TestCache cache = MakeFiniteCache(kind, kShape, 1);
          const SpaceCodec space = CodecOf(codec, element, kShape, /*part_count=*/2);
          StoreAndLoad(device, cache, space, SmallOptions(path, space));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// PROMISE: T07 values stay, keys turn
TEST(CodedCopier, TurnsKeysOfEveryLayoutOnTheHost) {
  const Device device = std::move(Device::Open(HostDeviceOps(), {.worker_count = 3})).value();
  uint32_t number = 0;
  for (const std::string& kind : ChunkKinds()) {
    for (const Codec codec : {Codec::kRaw, Codec::kInt8, Codec::kFp8, Codec::kInt4}) {
      for (const TransferPath path : kPaths) {
        SCOPED_TRACE(kind + ", " + std::string(CodecName(codec)) + ", " +
                     std::string(TransferPathName(path)));
        TestCache cache = MakeFiniteCache(kind, kShape, 1);
        const SpaceCodec space = ChunkCodecOf(kind, codec, kElementTypes[number % 3], kShape, 2);
        CopierOptions options = SmallOptions(path, space);
        options.rope = RopeOf(space.keys.head_dim, static_cast<RopePairing>(number++ % 2));
        StoreAndLoad(device, cache, space, options);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Slots in a slab, in registered memory and in neither, in a device that is late and reaches only
// what is registered.
TEST(CodedCopier, TakesEverySlotOnALateDevice) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimDevice sim({.seed = seed, .steps_per_call_max = 2, .needs_registration = true});
    const auto device = std::make_shared<Device>(SimDeviceOps(), sim.handle());
    const auto pins = std::make_shared<HostPins>(device, kGiB);
    const std::string kind = ChunkKinds()[seed % ChunkKinds().size()];
    TestCache cache = MakeFiniteCache(kind, kShape, 1);
    const SpaceCodec codec =
        ChunkCodecOf(kind, static_cast<Codec>(seed % 4), kElementTypes[seed % 2], kShape,
                     static_cast<uint32_t>(1 + seed % 5));
    const NaiveCoded naive(cache.layout, codec);
    CopierOptions options = SmallOptions(kPaths[seed / 2 % 2], codec);
    options.rope = RopeOf(codec.keys.head_dim, RopePairing::kNeox);
    options.pins = pins;
    const auto copier = MakeCopier(*device, cache, options);
    Slots slots(naive.layers(), {2, 9, 4, 5, 1, 0});
    int32_t fd = -1;
    void* slab = nullptr;
    constexpr uint64_t kSlabBytes = 2 * kMiB;
    ASSERT_EQ(device->ops().create_slab(device->handle(), kSlabBytes, &fd).code, 0);
    ASSERT_EQ(device->ops()
                  .map_slab(device->handle(), fd, kSlabBytes, SlabAccess::kReadWrite, &slab)
                  .code,
              0);
    close(fd);
    for (const size_t i : {1, 4}) {
      slots.pages[i].slot = static_cast<std::byte*>(slab) + i * slots.stride_bytes;
      slots.pages[i].is_in_device = true;
    }
    for (const size_t i : {0, 3}) {
      ASSERT_TRUE(pins->Register(slots.pages[i].slot, naive.layers().slot_bytes).ok());
    }
    {
      Result<StoreTicket> store = copier->Store(slots.pages, KvWritten::Already());
      ASSERT_TRUE(store.ok()) << store.status().what();
      ASSERT_TRUE(store->slots_written.AwaitOnHost().ok());
      ASSERT_TRUE(store->page_reuse.AwaitOnHost().ok());
    }
    for (const PageSlot& page : slots.pages) {
      ASSERT_TRUE(naive.IsEncoded(page.page_index, page.slot)) << "page " << page.page_index;
    }
    for (std::byte& byte : cache.memory) byte = kUntouched;
    slots.SetDeltas({3, 3, -90, 0, 3, -90});
    {
      Result<LoadTicket> load = copier->Load(slots.pages, DestinationFree::Already());
      ASSERT_TRUE(load.ok()) << load.status().what();
      while (load->slots_read.Query().code() == StatusCode::kBusy) ASSERT_TRUE(sim.Step());
      ASSERT_TRUE(load->slots_read.Query().ok());
    }
    sim.Settle();
    const std::vector<std::byte> loaded = cache.memory;
    for (std::byte& byte : cache.memory) byte = kUntouched;
    for (const PageSlot& page : slots.pages) naive.Decode(page, *options.rope);
    ASSERT_TRUE(loaded == cache.memory);
    EXPECT_EQ(sim.stray_count(), 0u);
    const uint64_t page_bytes = codec.layer_count * codec.EncodedLayerBytes();
    EXPECT_EQ(pins->counts().straight_bytes, 2 * 2 * page_bytes) << "what is registered";
    EXPECT_EQ(pins->counts().bounced_bytes, 2 * 2 * page_bytes);
    for (const size_t i : {0, 3}) pins->Unregister(slots.pages[i].slot);
    EXPECT_EQ(device->ops().unmap_slab(device->handle(), slab, kSlabBytes).code, 0);
  }
}

TEST(CodedCopier, SaysWhichLayersOfWhichPagesItRefused) {
  const Device device = std::move(Device::Open(HostDeviceOps(), {})).value();
  TestCache cache = MakeFiniteCache("hnd_packed", kShape, 1);
  const SpaceCodec codec = CodecOf(Codec::kInt8, ElementType::kBf16, kShape, 2);
  const NaiveCoded naive(cache.layout, codec);
  const auto copier = MakeCopier(device, cache, SmallOptions(TransferPath::kStaged, codec));
  const uint16_t nan = 0x7FC0;
  std::memcpy(VectorInPage(cache.layout, 4, 1, 11, 3, 1), &nan, sizeof(nan));
  std::memcpy(VectorInPage(cache.layout, 0, 0, 0, 15, 0) + 30, &nan, sizeof(nan));
  for (int call = 0; call < 2; ++call) {  // the second one's tables are the first one's
    Slots slots(naive.layers(), {7, 0, 11, 3});
    Result<StoreTicket> store = copier->Store(slots.pages, KvWritten::Already());
    ASSERT_TRUE(store.ok());
    ASSERT_TRUE(store->slots_written.AwaitOnHost().ok());
    ASSERT_TRUE(store->page_reuse.AwaitOnHost().ok());
    std::vector<std::pair<uint64_t, uint32_t>> refused;
    for (const RefusedLayer& layer : store->codes->Refused()) {
      refused.emplace_back(layer.page_index, layer.layer);
    }
    EXPECT_THAT(refused, testing::UnorderedElementsAre(std::pair(0u, 0u), std::pair(11u, 4u)));
    EXPECT_TRUE(naive.IsEncoded(7, slots.pages[0].slot));
    EXPECT_TRUE(naive.IsEncoded(3, slots.pages[3].slot));
  }
  const TestCache finite = MakeFiniteCache("hnd_packed", kShape, 1);
  std::ranges::copy(finite.memory, cache.memory.begin());
  Slots slots(naive.layers(), {0, 11});
  Result<StoreTicket> store = copier->Store(slots.pages, KvWritten::Already());
  ASSERT_TRUE(store.ok() && store->slots_written.AwaitOnHost().ok());
  ASSERT_TRUE(store->page_reuse.AwaitOnHost().ok());
  EXPECT_THAT(store->codes->Refused(), testing::IsEmpty()) << "nothing is left of the last call";
}

// A load that is let go when its engine's stream waits for it: its kernels still read the tables.
TEST(CodedCopier, ALoadLetGoKeepsItsTablesUntilItsKernelsHaveRun) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimDevice sim({.seed = seed, .steps_per_call_max = 0});
    const Device device(SimDeviceOps(), sim.handle());
    TestCache cache = MakeFiniteCache("hnd_packed", kShape, 1);
    const SpaceCodec codec = CodecOf(Codec::kInt8, ElementType::kBf16, kShape, /*part_count=*/2);
    const NaiveCoded naive(cache.layout, codec);
    CopierOptions options = SmallOptions(kPaths[seed % 2], codec);
    options.rope = RopeOf(codec.keys.head_dim, RopePairing::kNeox);
    // A stage a load: none waits for the kernels of the one before it.
    options.stage_bytes = options.load_chunk_bytes_min = 256 * kKiB;
    options.load_step_bytes_min = 1;
    options.stage_count = 4;
    const auto copier = MakeCopier(device, cache, options);
    Stream engine = std::move(Stream::Create(device, StreamPriority::kLoad)).value();
    Slots first(naive.layers(), {7, 0, 11, 3}), second(naive.layers(), {2, 9, 4});
    Slots third(naive.layers(), {1, 5, 10});  // two tables are there from the start
    for (const Slots* slots : {&first, &second, &third}) {
      Result<StoreTicket> store = copier->Store(slots->pages, KvWritten::Already());
      ASSERT_TRUE(store.ok()) << store.status().what();
    }
    first.SetDeltas({40, 40, -7, 0});
    second.SetDeltas({0, 300, 300});
    third.SetDeltas({-90, 0, 2});
    for (std::byte& byte : cache.memory) byte = kUntouched;
    for (const Slots* slots : {&first, &second, &third}) {
      Result<LoadTicket> load = copier->Load(slots->pages, DestinationFree::Already());
      ASSERT_TRUE(load.ok()) << load.status().what();
      for (uint32_t layer = 0; layer < kShape.layer_count; ++layer) {
        ASSERT_TRUE(load->layer_ready.Gate(layer, engine).ok());
      }
    }
    sim.Settle();
    const std::vector<std::byte> loaded = cache.memory;
    for (std::byte& byte : cache.memory) byte = kUntouched;
    for (const Slots* slots : {&first, &second, &third}) {
      for (const PageSlot& page : slots->pages) naive.Decode(page, *options.rope);
    }
    ASSERT_TRUE(loaded == cache.memory);
  }
}

// More ways to turn than tables have room for from the start, and pages that a call turns and the
// next one with the same tables does not.
TEST(CodedCopier, NothingIsTurnedAsAnEarlierCallDidIt) {
  const Device device = std::move(Device::Open(HostDeviceOps(), {})).value();
  TestCache cache = MakeFiniteCache("nhd_packed", kShape, 1);
  const SpaceCodec codec =
      ChunkCodecOf("nhd_packed", Codec::kRaw, ElementType::kFp32, kShape, /*layer_parts=*/2);
  const NaiveCoded naive(cache.layout, codec);
  CopierOptions options = SmallOptions(TransferPath::kStaged, codec);
  options.rope = RopeOf(codec.keys.head_dim, RopePairing::kNeox);
  const auto copier = MakeCopier(device, cache, options);
  std::vector<uint64_t> pages(kShape.page_count);
  std::iota(pages.begin(), pages.end(), 0);
  Slots slots(naive.layers(), pages);
  Result<StoreTicket> store = copier->Store(slots.pages, KvWritten::Already());
  ASSERT_TRUE(store.ok() && store->slots_written.AwaitOnHost().ok());
  ASSERT_TRUE(store->page_reuse.AwaitOnHost().ok());
  for (int call = 0; call < 12; ++call) {
    SCOPED_TRACE("call " + std::to_string(call));
    for (size_t i = 0; i < slots.pages.size(); ++i) {
      const int32_t own = 100 * (static_cast<int32_t>(i) + 1) + call;
      slots.pages[i].key_delta = call % 6 < 3 ? own : 0;  // of both tables, then of none
    }
    for (std::byte& byte : cache.memory) byte = kUntouched;
    Result<LoadTicket> load = copier->Load(slots.pages, DestinationFree::Already());
    ASSERT_TRUE(load.ok()) << load.status().what();
    ASSERT_TRUE(load->slots_read.AwaitOnHost().ok());
    ASSERT_TRUE(load->layer_ready.AwaitOnHost(kShape.layer_count - 1).ok());
    const std::vector<std::byte> loaded = cache.memory;
    for (std::byte& byte : cache.memory) byte = kUntouched;
    for (const PageSlot& page : slots.pages) naive.Decode(page, *options.rope);
    ASSERT_TRUE(loaded == cache.memory);
  }
}

// More pages than a launch takes, and more pieces than the smallest tables hold.
TEST(CodedCopier, CodesManyPagesInOneCall) {
  const Device device = std::move(Device::Open(HostDeviceOps(), {})).value();
  CacheShape shape = kShape;
  shape.page_count = 260;
  TestCache cache = MakeFiniteCache("nhd_packed", shape, 1);
  const SpaceCodec codec = CodecOf(Codec::kInt4, ElementType::kBf16, shape, 1);
  const NaiveCoded naive(cache.layout, codec);
  std::vector<uint64_t> pages(shape.page_count);
  std::iota(pages.begin(), pages.end(), 0);
  for (const TransferPath path : kPaths) {
    const auto copier =
        MakeCopier(device, cache, {.store_path = path, .load_path = path, .codec = codec});
    Slots slots(naive.layers(), pages);
    Result<StoreTicket> store = copier->Store(slots.pages, KvWritten::Already());
    ASSERT_TRUE(store.ok()) << store.status().what();
    ASSERT_TRUE(store->page_reuse.AwaitOnHost().ok());
    ASSERT_TRUE(store->slots_written.AwaitOnHost().ok());
    for (const PageSlot& page : slots.pages) {
      ASSERT_TRUE(naive.IsEncoded(page.page_index, page.slot)) << "page " << page.page_index;
    }
  }
}

TEST(CodedCopier, PagesThatAreRowsOfTokensAreCodedWhereTheyLie) {
  const SpaceCodec codec = CodecOf(Codec::kFp8, ElementType::kBf16, kShape, 1);
  const auto is_in_place = [&](const char* kind, bool takes_gaps) {
    const TestCache cache = MakeFiniteCache(kind, kShape, 1);
    return PiecesInPlace::Of(CompileForCodec(cache.layout), codec, takes_gaps).has_value();
  };
  for (const char* kind : {"nhd_packed", "nhd_planes_outer", "split_tensors", "slab_pages",
                           "slab_layers", "padded_pages"}) {
    EXPECT_TRUE(is_in_place(kind, false)) << kind;
  }
  EXPECT_TRUE(is_in_place("kv_by_token", true));
  EXPECT_FALSE(is_in_place("kv_by_token", false));
  for (const char* kind : {"hnd_packed", "hnd_planes_outer", "small_blocks", "small_blocks_hnd"}) {
    EXPECT_FALSE(is_in_place(kind, true)) << kind;
  }
}

TEST(CodedCopier, RefusesPathsAndPagesThatDoNotEncode) {
  const Device device = std::move(Device::Open(HostDeviceOps(), {})).value();
  const TestCache cache = MakeFiniteCache("nhd_packed", kShape, 1);
  const SpaceCodec codec = CodecOf(Codec::kFp8, ElementType::kBf16, kShape, 1);
  const auto refusal = [&](const Device& on, const CopierOptions& options) {
    std::string why;
    EXPECT_FALSE(PagedCopier::Create(on, CompileForCodec(cache.layout), options, &why).ok());
    return why;
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal(device, SmallOptions(TransferPath::kDirect, codec)), HasSubstr("direct"));
  SpaceCodec other = codec;
  other.keys.tokens = other.values.tokens = 32;
  EXPECT_THAT(refusal(device, SmallOptions(TransferPath::kStaged, other)),
              HasSubstr("layers of 4096 bytes, the nest of 5 of 2048"));
  CopierOptions small = SmallOptions(TransferPath::kZeroCopy, codec);
  small.stage_bytes = 2047;  // heads apart, which are gathered first
  const TestCache heads_apart = MakeFiniteCache("hnd_packed", kShape, 1);
  std::string why;
  EXPECT_FALSE(PagedCopier::Create(device, CompileForCodec(heads_apart.layout), small, &why).ok());
  EXPECT_THAT(why, HasSubstr("stage_bytes is 2047, less than a layer"));
  // With the slot's padding behind it, which the copy engine moves, too, the last layer takes most.
  CopierOptions unpadded = SmallOptions(TransferPath::kStaged, codec);
  unpadded.stage_bytes = 3583;
  EXPECT_THAT(refusal(device, unpadded), HasSubstr("stage_bytes is 3583, less than a layer of a "
                                                   "slot takes: 3584"));
  CopierOptions turning = SmallOptions(TransferPath::kStaged, codec);
  turning.rope = RopeOf(/*head_dim=*/64, RopePairing::kNeox);
  EXPECT_THAT(refusal(device, turning), HasSubstr("rot_dim 32 at rot_offset 2 is no window of "
                                                  "heads of 16"));
  turning.codec.reset();
  EXPECT_THAT(refusal(device, turning), HasSubstr("rope is set, and codec is not"));
  static DeviceOps without = HostDeviceOps();
  without.codecs = nullptr;
  const Device plain = std::move(Device::Open(without, {})).value();
  EXPECT_THAT(refusal(plain, SmallOptions(TransferPath::kStaged, codec)),
              HasSubstr("codec is fp8, and the device's backend, host, has none"));
}

}  // namespace
}  // namespace terrace

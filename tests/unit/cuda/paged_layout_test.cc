#include "cuda/abi/paged_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cuda/abi/paged_index.h"
#include "cuda/host/paged_host.h"
#include "tests/sim/paged_world.h"
#include "tests/stride.h"

namespace terrace {
namespace {

constexpr std::byte kUntouched{0xA5};
const std::vector<uint64_t> kPages = {3, 0, 4};

PagedLaunch LaunchAll(const PagedNest& nest, PagedDirection direction,
                      const std::vector<PagedPage>& pages) {
  PagedLaunch launch = nest.Launch(0, nest.layer_count());
  launch.direction = direction;
  launch.rows = nest.rows.data();
  launch.pages = pages.data();
  launch.page_count = static_cast<uint32_t>(pages.size());
  launch.thread_blocks_max = 1;
  return launch;
}

// What the kernels do, by their own arithmetic, vector after vector, the last first.
void CopyAsKernel(const PagedLaunch& launch) {
  const uint32_t vector_bytes = PagedVectorBytes(launch, launch.rows_alignment_bits);
  PagedIndex index;
  ASSERT_TRUE(MakePagedIndex(launch, vector_bytes, &index));
  for (uint32_t n = index.vector_count; n-- > 0;) {
    const PagedIndex::Place place = index.At(n, vector_bytes);
    const PagedRow& row = launch.rows[launch.row_first + place.row];
    const PagedPage& page = launch.pages[place.page];
    const uint64_t in_page =
        row.page0_address + page.page_index * launch.page_stride_bytes + place.page_offset_bytes;
    const uint64_t in_slot = page.slot_address + row.slot_offset_bytes - launch.slot_origin_bytes +
                             place.slot_offset_bytes;
    ASSERT_EQ((in_page | in_slot) % vector_bytes, 0u);
    const bool gathers = launch.direction == PagedDirection::kGather;
    std::memcpy(reinterpret_cast<void*>(gathers ? in_slot : in_page),
                reinterpret_cast<void*>(gathers ? in_page : in_slot), vector_bytes);
  }
}

void CopyAsHost(const PagedLaunch& launch) {
  ASSERT_TRUE(ValidateLaunch(launch).ok());
  CopyParts(launch, 0, PartCount(launch));
}

struct MatrixCase {
  std::string kind;
  CacheShape shape;
  SlotShape slot;
};

class Slots {
 public:
  explicit Slots(uint64_t slot_bytes)
      : slot_bytes_(slot_bytes), memory_(kPages.size() * slot_bytes) {
    std::ranges::fill(memory_, kUntouched);
  }
  std::byte* at(size_t index) { return memory_.data() + index * slot_bytes_; }
  std::vector<std::byte>& memory() { return memory_; }
  std::vector<PagedPage> pages() {
    std::vector<PagedPage> pages;
    for (size_t i = 0; i < kPages.size(); ++i) {
      pages.push_back({reinterpret_cast<uint64_t>(at(i)), kPages[i]});
    }
    return pages;
  }

 private:
  uint64_t slot_bytes_;
  std::vector<std::byte> memory_;
};

// Gathers and scatters as `copy` does, and compares every byte of all slots and of the whole cache.
template <typename Copy>
void CheckCase(const MatrixCase& c, Copy&& copy) {
  TestCache cache = MakeCache(c.kind, c.shape);
  std::string why;
  const Result<PagedNest> nest = CompileNest(cache.layout, c.slot, &why);
  ASSERT_TRUE(nest.ok()) << why;
  const PagedNest& n = *nest;
  Slots expected(n.slot_bytes);
  Slots actual(n.slot_bytes);
  for (size_t i = 0; i < kPages.size(); ++i) {
    NaiveGather(cache.layout, n, c.slot.order, kPages[i], expected.at(i));
  }
  copy(LaunchAll(n, PagedDirection::kGather, actual.pages()));
  ASSERT_TRUE(actual.memory() == expected.memory()) << "gather";

  // Back into a cache of other bytes: pages not asked for, gaps and padding must keep theirs.
  for (std::byte& byte : cache.memory) byte ^= std::byte{0xFF};
  const std::vector<std::byte> before = cache.memory;
  for (size_t i = 0; i < kPages.size(); ++i) {
    NaiveScatter(cache.layout, n, c.slot.order, kPages[i], expected.at(i));
  }
  const std::vector<std::byte> wanted = cache.memory;
  std::ranges::copy(before, cache.memory.begin());
  copy(LaunchAll(n, PagedDirection::kScatter, actual.pages()));
  ASSERT_TRUE(cache.memory == wanted) << "scatter";
}

template <typename Copy>
void CheckMatrix(Copy&& copy) {
  uint32_t case_count = 0;
  for (const std::string& kind : CacheKinds()) {
    for (const uint32_t page_tokens : {16, 32, 64, 128, 256}) {
      for (const uint32_t head_count : {1, 2, 8}) {
        for (const uint64_t item_bytes : {1, 2, 4}) {
          for (const SlotOrder order : {SlotOrder::kAsEngine, SlotOrder::kNhd, SlotOrder::kHnd}) {
            const uint64_t head_size = item_bytes == 1 ? 12 : 16;  // 12: no 8-byte vectors
            MatrixCase c{kind,
                         {.layer_count = 2,
                          .page_tokens = page_tokens,
                          .head_count = head_count,
                          .head_bytes = head_size * item_bytes},
                         {.order = order, .layers_per_part = 1 + case_count++ % 2}};
            if (case_count % test::Stride() != 0) continue;
            SCOPED_TRACE(kind + ", page of " + std::to_string(page_tokens) + ", heads " +
                         std::to_string(head_count) + ", item bytes " + std::to_string(item_bytes) +
                         ", " + std::string(SlotOrderName(order)));
            CheckCase(c, copy);
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// What rank `rank` has of a slot of all heads, plane by plane of each layer; heads outermost.
std::vector<std::byte> PieceOf(const std::vector<std::byte>& slot, const PagedNest& whole,
                               const PagedNest& piece, uint32_t plane_count, uint32_t rank) {
  std::vector<std::byte> bytes(piece.slot_bytes, kUntouched);
  const uint64_t plane_bytes = piece.layer_bytes / plane_count;
  for (uint32_t layer = 0; layer < whole.layer_count(); ++layer) {
    for (uint32_t plane = 0; plane < plane_count; ++plane) {
      const uint64_t from = whole.layer_offset_bytes[layer] +
                            plane * (whole.layer_bytes / plane_count) + rank * plane_bytes;
      std::copy_n(slot.begin() + static_cast<ptrdiff_t>(from), plane_bytes,
                  bytes.begin() + static_cast<ptrdiff_t>(piece.layer_offset_bytes[layer] +
                                                         plane * plane_bytes));
    }
  }
  return bytes;
}

// Of every token of a slot with tokens outermost, what rank `rank` of `tp_size` has.
std::vector<std::byte> HeadsOf(const std::vector<std::byte>& slot, const PagedNest& whole,
                               const PagedNest& piece, const CacheShape& share, uint32_t tp_size,
                               uint32_t rank) {
  std::vector<std::byte> bytes(piece.slot_bytes, kUntouched);
  const uint64_t token_bytes = share.head_count * share.head_bytes;
  for (uint32_t layer = 0; layer < whole.layer_count(); ++layer) {
    for (uint64_t at = 0; at < piece.layer_bytes; at += token_bytes) {
      std::memcpy(&bytes[piece.layer_offset_bytes[layer] + at],
                  &slot[whole.layer_offset_bytes[layer] + at * tp_size + rank * token_bytes],
                  token_bytes);
    }
  }
  return bytes;
}

std::vector<std::byte> Gathered(const TestCache& cache, const PagedNest& nest, SlotOrder order,
                                uint64_t page) {
  std::vector<std::byte> slot(nest.slot_bytes, kUntouched);
  NaiveGather(cache.layout, nest, order, page, slot.data());
  return slot;
}

// A cache of all heads and those of `tp_size` ranks with their share of them: pages of a rank that
// are filled from its piece of the slot have its heads of every token, and give the piece again.
template <typename Copy>
void CheckRanks(const MatrixCase& c, uint32_t tp_size, Copy&& copy) {
  const TestCache all = MakeCache(c.kind, c.shape);
  MatrixCase share = c;
  share.shape.head_count /= tp_size;
  share.shape.head_bytes = all.layout.head_bytes;
  std::string why;
  const PagedNest whole = CompileNest(all.layout, c.slot, &why).value();
  std::vector<std::vector<std::byte>> by_head, by_token;
  for (const uint64_t page : kPages) {
    by_head.push_back(Gathered(all, whole, SlotOrder::kHnd, page));
    by_token.push_back(Gathered(all, whole, SlotOrder::kNhd, page));
  }
  MatrixCase made = c;
  made.shape.head_count = share.shape.head_count;
  for (uint32_t rank = 0; rank < tp_size; ++rank) {
    TestCache cache = MakeCache(c.kind, made.shape, 2 + rank);
    const PagedNest piece = CompileNest(cache.layout, c.slot, &why).value();
    Slots given(piece.slot_bytes), taken(piece.slot_bytes);
    for (size_t i = 0; i < kPages.size(); ++i) {
      std::ranges::copy(PieceOf(by_head[i], whole, piece, all.layout.plane_count, rank),
                        given.at(i));
    }
    copy(LaunchAll(piece, PagedDirection::kScatter, given.pages()));
    for (size_t i = 0; i < kPages.size(); ++i) {
      ASSERT_TRUE(Gathered(cache, piece, SlotOrder::kNhd, kPages[i]) ==
                  HeadsOf(by_token[i], whole, piece, share.shape, tp_size, rank))
          << "rank " << rank << ", page " << kPages[i];
    }
    copy(LaunchAll(piece, PagedDirection::kGather, taken.pages()));
    ASSERT_TRUE(taken.memory() == given.memory()) << "rank " << rank;
  }
}

// `is_each_size`: every number of ranks, or as many as there are heads.
template <typename Copy>
void CheckRanksOfMatrix(bool is_each_size, Copy&& copy) {
  uint32_t case_count = 0;
  for (const std::string& kind : CacheKinds()) {
    if (kind == "mla") continue;  // whose one vector all ranks have whole
    for (const uint32_t page_tokens : {16, 32, 64, 128, 256}) {
      for (const uint32_t head_count : {2, 8}) {
        for (const uint64_t item_bytes : {1, 2, 4}) {
          for (uint32_t tp_size = is_each_size ? 2 : head_count; tp_size <= head_count;
               tp_size *= 2) {
            const MatrixCase c{kind,
                               {.layer_count = 2,
                                .page_tokens = page_tokens,
                                .head_count = head_count,
                                .head_bytes = (item_bytes == 1 ? 12 : 16) * item_bytes},
                               {.order = SlotOrder::kHnd, .layers_per_part = 1 + case_count++ % 2}};
            SCOPED_TRACE(kind + ", page of " + std::to_string(page_tokens) + ", heads " +
                         std::to_string(head_count) + ", item bytes " + std::to_string(item_bytes) +
                         ", ranks " + std::to_string(tp_size));
            CheckRanks(c, tp_size, copy);
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// PROMISE: T05 tensor parallel sizes
TEST(PagedLayout, RanksOfEverySizeHaveTheirHeadsOfEveryLayout) {
  CheckRanksOfMatrix(true, CopyAsHost);
  CheckRanksOfMatrix(false, CopyAsKernel);
}

// PROMISE: T05 the matrix of layouts, on the host
TEST(PagedLayout, TheHostCopiesEveryLayoutAsTheNaiveLoopDoes) { CheckMatrix(CopyAsHost); }

// PROMISE: T05 the matrix of layouts, as kernels index it
TEST(PagedLayout, TheKernelsArithmeticCopiesEveryLayoutAsTheNaiveLoopDoes) {
  CheckMatrix(CopyAsKernel);
}

TEST(PagedLayout, LayersAreCopiedAloneFromTheirOwnOrigin) {
  TestCache cache = MakeCache("nhd_packed", {.layer_count = 5});
  std::string why;
  const PagedNest nest = *CompileNest(cache.layout, {.layers_per_part = 2}, &why);
  std::vector<std::byte> slot(nest.slot_bytes, kUntouched);
  std::vector<std::byte> whole(nest.slot_bytes, kUntouched);
  NaiveGather(cache.layout, nest, SlotOrder::kAsEngine, 2, whole.data());
  for (const uint32_t layer : {4u, 1u, 0u, 3u, 2u}) {
    const PagedPage page{reinterpret_cast<uint64_t>(slot.data()) + nest.layer_offset_bytes[layer],
                         2};
    PagedLaunch launch = nest.Launch(layer, 1);
    launch.rows = nest.rows.data();
    launch.pages = &page;
    launch.page_count = 1;
    launch.thread_blocks_max = 1;
    CopyAsHost(launch);
  }
  EXPECT_EQ(slot, whole);
}

TEST(PagedLayout, RunsAreAsLongAsBothSidesAllow) {
  const CacheShape shape{.page_tokens = 64, .head_count = 8, .head_bytes = 256};
  const auto run_bytes = [&](const char* kind, SlotOrder order) {
    std::string why;
    return CompileNest(MakeCache(kind, shape).layout, {.order = order}, &why).value().run_bytes;
  };
  const uint64_t plane_bytes = 64 * 8 * 256;
  EXPECT_EQ(run_bytes("nhd_packed", SlotOrder::kAsEngine), 2 * plane_bytes);
  EXPECT_EQ(run_bytes("hnd_packed", SlotOrder::kAsEngine), 2 * plane_bytes);
  EXPECT_EQ(run_bytes("nhd_planes_outer", SlotOrder::kAsEngine), plane_bytes);
  EXPECT_EQ(run_bytes("small_blocks", SlotOrder::kAsEngine), 2 * plane_bytes);
  EXPECT_EQ(run_bytes("small_blocks_hnd", SlotOrder::kNhd), 256u);
  EXPECT_EQ(run_bytes("split_tensors", SlotOrder::kNhd), plane_bytes);
  EXPECT_EQ(run_bytes("kv_by_token", SlotOrder::kNhd), 8 * 256u);
}

CacheFacts Facts(uint32_t head_count) {
  return {.page_count = 100,
          .page_tokens = 16,
          .block_tokens = 16,
          .head_count = head_count,
          .head_size = 64};
}

TensorView Dense(std::vector<uint64_t> shape, std::string axes = "") {
  TensorView tensor{.address = 4096, .shape = std::move(shape), .item_bytes = 2, .axes = axes};
  tensor.stride_bytes.resize(tensor.shape.size());
  uint64_t stride = tensor.item_bytes;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    tensor.stride_bytes[i] = stride;
    stride *= tensor.shape[i];
  }
  return tensor;
}

const std::vector<uint64_t> kBases = {4096, 1 << 30};

// PROMISE: T05 shapes of two readings
TEST(PagedLayout, TwoHeadsBesideTwoPlanesAreRefusedUnlessTheAxesAreNamed) {
  const std::vector<uint64_t> shape = {2, 100, 16, 2, 64};
  std::string why;
  EXPECT_EQ(LayoutOfTensor(Dense(shape), kBases, Facts(2), &why).code(), StatusCode::kInvalid);
  EXPECT_NE(why.find("axes"), std::string::npos) << why;
  EXPECT_NE(why.find("PBTHD"), std::string::npos) << why;
  const Result<PagedLayout> named = LayoutOfTensor(Dense(shape, "PBTHD"), kBases, Facts(2), &why);
  ASSERT_TRUE(named.ok()) << why;
  EXPECT_EQ(named.value().plane_stride_bytes, 100u * 16 * 2 * 64 * 2);
  EXPECT_EQ(named.value().head_stride_bytes, 64u * 2);
}

TEST(PagedLayout, AShapeWithOneReadingNeedsNoNames) {
  std::string why;
  const Result<PagedLayout> nhd =
      LayoutOfTensor(Dense({100, 2, 16, 8, 64}), kBases, Facts(8), &why);
  ASSERT_TRUE(nhd.ok()) << why;
  EXPECT_EQ(nhd.value().head_stride_bytes, 64u * 2);
  const Result<PagedLayout> hnd =
      LayoutOfTensor(Dense({100, 2, 8, 16, 64}), kBases, Facts(8), &why);
  ASSERT_TRUE(hnd.ok()) << why;
  EXPECT_EQ(hnd.value().token_stride_bytes, 64u * 2);
  // One head: where its dimension lies makes no difference.
  EXPECT_TRUE(LayoutOfTensor(Dense({100, 2, 16, 1, 64}), kBases, Facts(1), &why).ok()) << why;
  EXPECT_TRUE(LayoutOfTensor(Dense({100, 2, 16, 64}), kBases, Facts(1), &why).ok()) << why;
  CacheFacts mla = Facts(1);
  mla.plane_count = 1;
  mla.head_size = 576;
  EXPECT_TRUE(LayoutOfTensor(Dense({100, 16, 576}), kBases, mla, &why).ok()) << why;
}

TEST(PagedLayout, OtherEqualSizesAreAmbiguousToo) {
  std::string why;
  CacheFacts facts = Facts(16);  // as many heads as tokens
  EXPECT_EQ(LayoutOfTensor(Dense({100, 2, 16, 16, 64}), kBases, facts, &why).code(),
            StatusCode::kInvalid);
  EXPECT_TRUE(LayoutOfTensor(Dense({100, 2, 16, 16, 64}, "BPHTD"), kBases, facts, &why).ok());
  facts = Facts(8);
  facts.page_count = 2;
  EXPECT_EQ(LayoutOfTensor(Dense({2, 2, 16, 8, 64}), kBases, facts, &why).code(),
            StatusCode::kInvalid);
}

TEST(PagedLayout, ShapesOfOtherCachesAreRefused) {
  std::string why;
  EXPECT_EQ(LayoutOfTensor(Dense({100, 2, 16, 8, 32}), kBases, Facts(8), &why).code(),
            StatusCode::kInvalid);
  EXPECT_EQ(LayoutOfTensor(Dense({100, 16, 8, 64}), kBases, Facts(8), &why).code(),
            StatusCode::kInvalid)
      << "no dimension for K and V";
  EXPECT_EQ(LayoutOfTensor(Dense({100, 2, 16, 8, 64}, "BPTH"), kBases, Facts(8), &why).code(),
            StatusCode::kInvalid);
  TensorView strided = Dense({100, 2, 16, 8, 64});
  for (uint64_t& stride : strided.stride_bytes) stride *= 2;
  EXPECT_EQ(LayoutOfTensor(strided, kBases, Facts(8), &why).code(), StatusCode::kInvalid);
  EXPECT_NE(why.find("contiguous"), std::string::npos) << why;
}

// What is wrong is named by its field.
TEST(PagedLayout, ValidateNamesTheField) {
  const auto refused = [](auto&& change, const char* field) {
    PagedLayout layout = MakeCache("nhd_packed", {}).layout;
    change(layout);
    std::string why;
    EXPECT_EQ(layout.Validate(&why).code(), StatusCode::kInvalid) << field;
    EXPECT_NE(why.find(field), std::string::npos) << why;
  };
  using Layout = PagedLayout&;
  refused([](Layout l) { l.layer_count = 0; }, "layer_count");
  refused([](Layout l) { l.plane_count = 3; }, "plane_count");
  refused([](Layout l) { l.page_tokens = 0; }, "page_tokens");
  refused([](Layout l) { l.block_tokens = 5; }, "block_tokens");
  refused([](Layout l) { l.page_count = 0; }, "page_count");
  refused([](Layout l) { l.head_bytes = 0; }, "head_bytes");
  refused([](Layout l) { l.bases.pop_back(); }, "bases");
  refused([](Layout l) { l.bases[1] = l.bases[0]; }, "bases");
  refused([](Layout l) { l.bases[2] = 0; }, "bases");
  refused([](Layout l) { l.head_stride_bytes -= 1; }, "head_stride_bytes");
  refused([](Layout l) { l.token_stride_bytes = l.head_stride_bytes; }, "stride_bytes");
  refused([](Layout l) { l.block_stride_bytes -= 16; }, "block_stride_bytes");
  refused([](Layout l) { l.block_stride_bytes = uint64_t{1} << 62; }, "block_stride_bytes");
}

TEST(PagedLayout, LayersThatEndPastTheAddressesAreRefused) {
  PagedLayout layout = MakeCache("nhd_packed", {}).layout;
  std::string why;
  ASSERT_TRUE(layout.Validate(&why).ok()) << why;
  const uint64_t layer_bytes = layout.page_count * layout.block_stride_bytes;
  for (const uint64_t beyond_bytes : {uint64_t{1}, layer_bytes - 1}) {
    layout.bases.back() = beyond_bytes - layer_bytes;
    EXPECT_EQ(layout.Validate(&why).code(), StatusCode::kInvalid) << beyond_bytes;
    for (const uint64_t value : {layout.bases.back(), layer_bytes}) {
      EXPECT_NE(why.find(std::to_string(value)), std::string::npos) << why;
    }
    EXPECT_NE(why.find("bases"), std::string::npos) << why;
    EXPECT_NE(why.find("2^64"), std::string::npos) << why;
  }
  layout.bases.back() = -layer_bytes;
  EXPECT_TRUE(layout.Validate(&why).ok()) << why;
}

// Their distances are what a layer_stride_bytes near 2^64 makes.
TEST(PagedLayout, LayersThatLieBackwardsAreRefusedWhereTheyOverlap) {
  PagedLayout layout = MakeCache("nhd_packed", {.layer_count = 3}).layout;
  const uint64_t layer_bytes = layout.page_count * layout.block_stride_bytes;
  const auto place = [&](uint64_t stride_bytes) {
    for (size_t i = 1; i < 3; ++i) layout.bases[i] = layout.bases[i - 1] - stride_bytes;
  };
  std::string why;
  place(layer_bytes);
  EXPECT_TRUE(layout.Validate(&why).ok()) << why;
  for (const uint64_t stride_bytes : {uint64_t{1}, uint64_t{64}, layer_bytes - 1}) {
    place(stride_bytes);
    EXPECT_EQ(layout.Validate(&why).code(), StatusCode::kInvalid) << stride_bytes;
    EXPECT_NE(why.find("the distance between bases is " + std::to_string(stride_bytes)),
              std::string::npos)
        << why;
    EXPECT_NE(why.find(std::to_string(layer_bytes)), std::string::npos) << why;
  }
}

// Byte by byte: what no two vectors of any layers share is accepted, and nothing else.
TEST(PagedLayout, LayersWhereverTheyLieAreRefusedJustWhereTheyShareAByte) {
  std::mt19937 random(1);
  const auto below = [&](uint32_t end) { return static_cast<uint64_t>(random() % end); };
  uint32_t accepted_count = 0;
  uint32_t shared_count = 0;
  for (int round = 0; round < 20000; ++round) {
    PagedLayout layout{.layer_count = static_cast<uint32_t>(2 + below(2)),
                       .plane_count = static_cast<uint32_t>(1 + below(2)),
                       .page_tokens = 2,
                       .block_tokens = 2,
                       .page_count = 1 + below(3),
                       .head_count = 1,
                       .head_bytes = 1 + below(2)};
    layout.token_stride_bytes = layout.head_bytes + below(4);
    layout.plane_stride_bytes = 2 * layout.token_stride_bytes + below(12);
    layout.block_stride_bytes = layout.plane_count * layout.plane_stride_bytes + below(30);
    const bool is_split = layout.plane_count == 2 && below(2) == 0;
    if (is_split) layout.plane_stride_bytes = 0;
    const uint64_t base_count = uint64_t{layout.layer_count} * (is_split ? 2 : 1);
    while (layout.bases.size() < base_count) layout.bases.push_back(1 + below(60));
    std::vector<uint32_t> taken(1000);
    for (uint32_t layer = 0; layer < layout.layer_count; ++layer) {
      for (uint64_t page = 0; page < layout.page_count; ++page) {
        VisitVectors(layout, SlotOrder::kNhd, layer, page, [&](std::byte* vector, uint64_t) {
          for (uint64_t i = 0; i < layout.head_bytes; ++i) {
            ++taken[reinterpret_cast<uint64_t>(vector) + i];
          }
        });
      }
    }
    const bool is_shared = std::ranges::max(taken) > 1;
    std::string why;
    ASSERT_EQ(layout.Validate(&why).ok(), !is_shared) << round << ": " << why;
    ++(is_shared ? shared_count : accepted_count);
  }
  EXPECT_GT(accepted_count, 1000u);
  EXPECT_GT(shared_count, 1000u);
}

TEST(FastDivider, DividesAsTheProcessorDoes) {
  std::mt19937 random(1);
  for (int round = 0; round < 200000; ++round) {
    const uint32_t divisor = 1 + (random() >> (1 + random() % 31)) % ((1u << 31) - 1);
    const uint32_t n = random() >> (1 + random() % 31);
    ASSERT_EQ(FastDivider(divisor).Divide(n), n / divisor) << n << " / " << divisor;
  }
  for (const uint32_t divisor : {1u, 2u, 3u, 0x7FFFFFFFu}) {
    for (const uint32_t n : {0u, 1u, divisor - 1, divisor, 0x7FFFFFFEu, 0x7FFFFFFFu}) {
      ASSERT_EQ(FastDivider(divisor).Divide(n), n / divisor) << n << " / " << divisor;
    }
  }
}

TEST(PagedIndex, ALaunchTooLargeToIndexIsRefused) {
  PagedLaunch launch;
  launch.run_bytes = uint64_t{16} << 20;
  launch.row_count = 1 << 12;
  launch.page_count = 1;
  PagedIndex index;
  EXPECT_FALSE(MakePagedIndex(launch, 16, &index));
  EXPECT_TRUE([&] {
    launch.row_count = 1 << 10;
    return MakePagedIndex(launch, 16, &index);
  }());
}

}  // namespace
}  // namespace terrace

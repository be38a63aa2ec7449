// Paged copies under a codec on the host, beside what they are made of: memcpy of the pages' bytes,
// and the codec alone, piece by piece where pages lie. All kinds take turns within a round. Loads
// that turn keys do so for half of the bytes, as keys are.
//
//   taskset -c 1 coded_copy_bench [working set in MiB, default 256] [rounds, default 9]
//
// Pages are of 16 tokens, 8 heads of 128 in bf16, [plane][token][head], which are coded where they
// lie, or [plane][head][token], which are gathered first; a slot is of 16 layers.
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cuda/copy/paged_copier.h"
#include "cuda/host/host_device.h"
#include "cuda/kernels/codec.h"
#include "cuda/kernels/rope.h"
#include "terrace/units.h"

namespace terrace {
namespace {

constexpr uint32_t kLayerCount = 16;
constexpr PieceShape kKeys{ElementType::kBf16, PieceRole::kKeys, 16, 8, 128};
constexpr PieceShape kValues{ElementType::kBf16, PieceRole::kValues, 16, 8, 128};
constexpr uint64_t kRawBytes = kMiB;  // as libterrace has it on the host

using Bytes = std::span<std::byte>;

Bytes Map(size_t size) {
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (address == MAP_FAILED) std::exit(1);
  return Bytes(static_cast<std::byte*>(address), size);
}

struct World {
  World(uint64_t byte_count, Codec codec, bool has_heads_apart)
      : space{codec, kKeys, kValues, kLayerCount, kLayerCount},
        cache(Map(byte_count)),
        slots(Map(byte_count)) {
    std::mt19937_64 random(1);
    for (size_t i = 0; i < cache.size(); i += 2) {  // magnitudes from 0.5 to 2
      const auto bits = static_cast<uint16_t>((random() & 0x80FF) | 0x3F00);
      std::memcpy(&cache[i], &bits, sizeof(bits));
    }
    page_count = byte_count / kLayerCount / space.RawLayerBytes();
    PagedLayout layout;
    layout.layer_count = kLayerCount;
    layout.plane_count = 2;
    layout.page_tokens = layout.block_tokens = kKeys.tokens;
    layout.page_count = page_count;
    layout.head_count = kKeys.heads;
    layout.head_bytes = layout.head_stride_bytes = 2 * kKeys.head_dim;
    layout.token_stride_bytes = layout.head_bytes * (has_heads_apart ? 1 : kKeys.heads);
    if (has_heads_apart) layout.head_stride_bytes *= kKeys.tokens;
    layout.plane_stride_bytes = kKeys.raw_bytes();
    layout.block_stride_bytes = space.RawLayerBytes();
    for (uint32_t layer = 0; layer < kLayerCount; ++layer) {
      layout.bases.push_back(reinterpret_cast<uint64_t>(cache.data()) +
                             layer * page_count * space.RawLayerBytes());
    }
    std::string why;
    nest = std::move(CompileNest(layout, {.order = SlotOrder::kNhd, .layers_per_part = kLayerCount},
                                 &why))
               .value();
    std::vector<uint64_t> order(page_count);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    const SlotLayers layers = SlotLayers::Of(space);
    for (uint64_t i = 0; i < page_count; ++i) {
      std::byte* const slot = slots.data() + i * layers.slot_bytes;
      pages.push_back({order[i], slot, slot});
    }
  }
  ~World() {
    munmap(cache.data(), cache.size());
    munmap(slots.data(), slots.size());
  }

  // Calls code(piece, in the page, in the slot) for every piece.
  template <typename Code>
  void VisitPieces(Code&& code) const {
    const SlotLayers layers = SlotLayers::Of(space);
    for (const PageSlot& page : pages) {
      for (uint32_t layer = 0; layer < kLayerCount; ++layer) {
        std::byte* raw =
            cache.data() + (layer * page_count + page.page_index) * space.RawLayerBytes();
        std::byte* coded = page.slot + layers.offset_bytes[layer];
        for (const PieceShape& shape : {kKeys, kValues}) {
          const uint64_t coded_bytes = LayoutOf(space.codec, shape).encoded_bytes;
          code(shape, Bytes(raw, shape.raw_bytes()), Bytes(coded, coded_bytes));
          raw += shape.raw_bytes();
          coded += coded_bytes;
        }
      }
    }
  }

  const SpaceCodec space;
  const Bytes cache, slots;
  uint64_t page_count = 0;
  PagedNest nest;
  std::vector<PageSlot> pages;
};

struct Kind {
  std::string name;
  std::function<void()> run;
  std::vector<double> bytes_per_second = {};
};

RopeSpec Rope() {
  RopeSpec rope{.rot_dim = kKeys.head_dim};
  for (uint32_t i = 0; i < rope.rot_dim / 2; ++i) {
    rope.inv_freq.push_back(std::pow(500000.0, -2.0 * i / rope.rot_dim));
  }
  return rope;
}

void CopyByCopier(PagedCopier& copier, std::span<const PageSlot> left, bool stores) {
  while (!left.empty()) {
    const std::span<const PageSlot> call = left.first(std::min<size_t>(left.size(), 64));
    if (stores) {
      (void)copier.Store(call, KvWritten::Already());  // a dropped ticket has waited
    } else {
      (void)copier.Load(call, DestinationFree::Already());
    }
    left = left.subspan(call.size());
  }
}

void Measure(Codec codec, uint64_t byte_count, size_t round_count) {
  const World world(byte_count, codec, /*has_heads_apart=*/false);
  const World apart(byte_count, codec, /*has_heads_apart=*/true);
  std::vector<PageSlot> turned = world.pages;
  for (PageSlot& page : turned) page.key_delta = 1000;
  const Device device = std::move(Device::Open(HostDeviceOps())).value();
  const auto copier_of = [&](const World& its) {
    std::string why;
    return std::move(PagedCopier::Create(device, its.nest,
                                         {.store_path = TransferPath::kZeroCopy,
                                          .load_path = TransferPath::kZeroCopy,
                                          .stage_bytes = kRawBytes,
                                          .codec = its.space,
                                          .rope = Rope()},
                                         &why))
        .value();
  };
  const auto copier = copier_of(world), copier_apart = copier_of(apart);
  std::vector<Kind> kinds = {
      {"memcpy", [&] { std::memcpy(world.slots.data(), world.cache.data(), byte_count); }},
      {"encode",
       [&] {
         world.VisitPieces([&](const PieceShape& shape, Bytes raw, Bytes coded) {
           (void)EncodePiece(codec, shape, raw, coded);
         });
       }},
      {"decode",
       [&] {
         world.VisitPieces([&](const PieceShape& shape, Bytes raw, Bytes coded) {
           DecodePiece(codec, shape, coded, raw);
         });
       }},
      {"store", [&] { CopyByCopier(*copier, world.pages, true); }},
      {"load", [&] { CopyByCopier(*copier, world.pages, false); }},
      {"store, heads apart", [&] { CopyByCopier(*copier_apart, apart.pages, true); }},
      {"load, heads apart", [&] { CopyByCopier(*copier_apart, apart.pages, false); }},
      {"load, keys turned", [&] { CopyByCopier(*copier, turned, false); }},
  };
  for (size_t round = 0; round <= round_count; ++round) {  // the first one warms up
    for (Kind& kind : kinds) {
      const auto start = std::chrono::steady_clock::now();
      kind.run();
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      if (round > 0) kind.bytes_per_second.push_back(byte_count / elapsed.count());
    }
  }
  const auto median = [](std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
  };
  for (const Kind& kind : kinds) {
    std::vector<double> shares;
    for (size_t i = 0; i < round_count; ++i) {
      shares.push_back(kind.bytes_per_second[i] / kinds[0].bytes_per_second[i]);
    }
    std::printf("%-5s %-20s %6.2f GB/s, %.2f of memcpy\n", std::string(CodecName(codec)).c_str(),
                kind.name.c_str(), median(kind.bytes_per_second) / 1e9, median(shares));
  }
}

size_t Number(const char* text, size_t otherwise) {
  size_t number = otherwise;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), number);
  return number;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  using namespace terrace;
  const size_t byte_count = Number(argc > 1 ? argv[1] : nullptr, 256) * kMiB;
  const size_t round_count = std::max<size_t>(1, Number(argc > 2 ? argv[2] : nullptr, 9));
  for (const Codec codec : {Codec::kRaw, Codec::kInt8, Codec::kFp8, Codec::kInt4}) {
    Measure(codec, byte_count, round_count);
  }
  return 0;
}

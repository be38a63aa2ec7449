// Gather and scatter of scattered pages on the host, beside memcpy of the same bytes. Both
// references move as many bytes over the same two working sets, far larger than the caches:
// `memcpy` in one piece after the other where they lie in order, `memcpy pieces` at the addresses
// that gather reads and writes. The kinds take turns within a round, so a slow second of the
// machine hits all of them.
//
//   taskset -c 1 paged_copy_bench [working set in MiB, default 256] [rounds, default 9]
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/copy/paged_copier.h"
#include "cuda/host/host_device.h"
#include "cuda/host/paged_host.h"
#include "terrace/units.h"

namespace terrace {
namespace {

constexpr uint32_t kLayerCount = 16;

using Bytes = std::span<std::byte>;

Bytes Map(size_t size) {
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (address == MAP_FAILED) return {};
  std::memset(address, 1, size);
  return Bytes(static_cast<std::byte*>(address), size);
}

// A cache of kLayerCount tensors whose pages are one piece each, and its slots, in random order.
struct World {
  World(Bytes cache, Bytes slots, uint64_t piece_bytes) : piece_bytes(piece_bytes) {
    page_count = cache.size() / kLayerCount / piece_bytes;
    PagedLayout layout;
    layout.layer_count = kLayerCount;
    layout.plane_count = 1;
    layout.page_tokens = layout.block_tokens = 16;
    layout.page_count = page_count;
    layout.head_count = 1;
    layout.head_bytes = piece_bytes / 16;
    layout.token_stride_bytes = layout.head_stride_bytes = layout.head_bytes;
    layout.block_stride_bytes = piece_bytes;
    for (uint32_t layer = 0; layer < kLayerCount; ++layer) {
      layout.bases.push_back(reinterpret_cast<uint64_t>(cache.data()) +
                             layer * page_count * piece_bytes);
    }
    std::string why;
    nest = std::move(CompileNest(layout, {}, &why)).value();
    std::vector<uint64_t> order(page_count);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, std::mt19937_64(1));
    for (uint64_t i = 0; i < page_count; ++i) {
      std::byte* slot = slots.data() + i * nest.slot_bytes;
      pages.push_back({reinterpret_cast<uint64_t>(slot), order[i]});
      page_slots.push_back({order[i], slot, slot});
    }
  }

  template <typename Visit>
  void VisitLaunches(PagedDirection direction, Visit&& visit) const {
    for (size_t at = 0; at < pages.size(); at += kPagedPagesMax) {
      PagedLaunch launch = nest.Launch(0, kLayerCount);
      launch.direction = direction;
      launch.rows = nest.rows.data();
      launch.pages = pages.data() + at;
      launch.page_count =
          static_cast<uint32_t>(std::min<size_t>(kPagedPagesMax, pages.size() - at));
      launch.thread_blocks_max = 1;
      visit(launch);
    }
  }

  uint64_t byte_count() const { return page_count * kLayerCount * piece_bytes; }

  uint64_t piece_bytes;
  uint64_t page_count = 0;
  PagedNest nest;
  std::vector<PagedPage> pages;
  std::vector<PageSlot> page_slots;
};

struct Kind {
  std::string name;
  std::function<void()> copy;
  std::vector<double> bytes_per_second = {};
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void CopyInOrder(Bytes to, Bytes from, uint64_t byte_count) {
  for (uint64_t at = 0; at < byte_count; at += kMiB) {
    const uint64_t piece_bytes = std::min(kMiB, byte_count - at);
    std::memcpy(to.data() + at, from.data() + at, piece_bytes);
  }
}

void CopyPieces(const World& world) {
  for (const PagedPage& page : world.pages) {
    for (const PagedRow& row : world.nest.rows) {
      std::memcpy(reinterpret_cast<void*>(page.slot_address + row.slot_offset_bytes),
                  reinterpret_cast<void*>(row.page0_address +
                                          page.page_index * world.nest.page_stride_bytes),
                  world.piece_bytes);
    }
  }
}

void CopyByCopier(PagedCopier& copier, const World& world, PagedDirection direction) {
  std::span<const PageSlot> left = world.page_slots;
  while (!left.empty()) {
    const std::span<const PageSlot> call = left.first(std::min<size_t>(left.size(), 1024));
    if (direction == PagedDirection::kGather) {
      (void)copier.Store(call, KvWritten::Already());  // a dropped ticket has waited
    } else {
      (void)copier.Load(call, DestinationFree::Already());
    }
    left = left.subspan(call.size());
  }
}

std::vector<Kind> Kinds(const World& world, PagedCopier& copier, Bytes cache, Bytes slots) {
  const auto by_parts = [&world](PagedDirection direction) {
    world.VisitLaunches(direction,
                        [](const PagedLaunch& launch) { CopyParts(launch, 0, PartCount(launch)); });
  };
  return {
      {"memcpy", [&world, cache, slots] { CopyInOrder(slots, cache, world.byte_count()); }},
      {"memcpy pieces", [&world] { CopyPieces(world); }},
      {"gather", [by_parts] { by_parts(PagedDirection::kGather); }},
      {"scatter", [by_parts] { by_parts(PagedDirection::kScatter); }},
      {"copier store", [&] { CopyByCopier(copier, world, PagedDirection::kGather); }},
      {"copier load", [&] { CopyByCopier(copier, world, PagedDirection::kScatter); }},
  };
}

void Measure(Bytes cache, Bytes slots, uint64_t piece_bytes, size_t round_count) {
  const World world(cache, slots, piece_bytes);
  const Device device = std::move(Device::Open(HostDeviceOps())).value();
  std::string why;
  const std::unique_ptr<PagedCopier> copier =
      std::move(PagedCopier::Create(
                    device, world.nest,
                    {.store_path = TransferPath::kZeroCopy, .load_path = TransferPath::kZeroCopy},
                    &why))
          .value();
  std::vector<Kind> kinds = Kinds(world, *copier, cache, slots);
  for (size_t round = 0; round < round_count; ++round) {
    for (Kind& kind : kinds) {
      const auto start = std::chrono::steady_clock::now();
      kind.copy();
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      kind.bytes_per_second.push_back(static_cast<double>(world.byte_count()) / elapsed.count());
    }
  }
  const double reference = Median(kinds[0].bytes_per_second);
  for (const Kind& kind : kinds) {
    const double median = Median(kind.bytes_per_second);
    std::printf("%3llu KiB pieces  %-14s %6.2f GB/s  %.3f of memcpy\n",
                static_cast<unsigned long long>(piece_bytes / kKiB), kind.name.c_str(),
                median / 1e9, median / reference);
  }
}

// 0 unless `text` is a number.
size_t ReadNumber(std::string_view text) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : 0;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  const size_t working_set_mib = argc > 1 ? terrace::ReadNumber(argv[1]) : 256;
  const size_t round_count = argc > 2 ? terrace::ReadNumber(argv[2]) : 9;
  if (working_set_mib == 0 || round_count == 0) {
    std::fprintf(stderr, "usage: %s [working set in MiB] [rounds], both at least 1\n", argv[0]);
    return 2;
  }
  const auto cache = terrace::Map(working_set_mib * terrace::kMiB);
  const auto slots = terrace::Map(working_set_mib * terrace::kMiB);
  if (cache.empty() || slots.empty()) {
    std::perror("mmap: use a smaller working set");
    return 1;
  }
  for (const uint64_t piece_kib : {4, 16, 64}) {
    terrace::Measure(cache, slots, piece_kib * terrace::kKiB, round_count);
  }
  return 0;
}

// Histogram: how often a value was in which range. Bounds are fixed and grow by a power of two, so
// that counting is a shift, an addition and no search, and histograms of several daemons add up.
//
// THREADING: one thread.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>

namespace terrace {

// Of any Histogram, for whoever shows it. Bucket i counts values up to bound_of(i) and above the
// bound before; the last one, which has no bound, what is above all.
struct HistogramView {
  std::span<const uint64_t> counts;
  uint64_t sum = 0;
  uint32_t first_bits = 0;  // the first bound is 1 << first_bits
  uint32_t step_bits = 1;

  size_t bound_count() const { return counts.size() - 1; }
  uint64_t bound_of(size_t bucket) const {
    return uint64_t{1} << (first_bits + bucket * step_bits);
  }
};

// Bounds are 2^first_bits, 2^(first_bits + step_bits), …: bound_count of them.
template <uint32_t first_bits, uint32_t step_bits, uint32_t bound_count>
class Histogram {
 public:
  // `weight` values of this size.
  void Add(uint64_t value, uint64_t weight = 1) {
    counts_[BucketOf(value)] += weight;
    sum_ += value * weight;
  }
  // Beyond all bounds, by how much nobody knows: not part of the sum.
  void AddBeyond(uint64_t weight) { counts_[bound_count] += weight; }

  HistogramView view() const {
    return {.counts = counts_, .sum = sum_, .first_bits = first_bits, .step_bits = step_bits};
  }

 private:
  static_assert(first_bits + uint64_t{step_bits} * (bound_count - 1) < 64);

  static uint32_t BucketOf(uint64_t value) {
    if (value <= uint64_t{1} << first_bits) return 0;
    const auto bits = static_cast<uint32_t>(std::bit_width(value - 1));
    const uint32_t bucket = (bits - first_bits + step_bits - 1) / step_bits;
    return bucket < bound_count ? bucket : bound_count;
  }

  std::array<uint64_t, bound_count + 1> counts_{};
  uint64_t sum_ = 0;
};

using RequestTimes = Histogram<2, 1, 22>;     // 4 µs to 8 s
using PromotionTimes = Histogram<6, 1, 18>;   // 64 µs to 8 s
using TurnTimes = Histogram<0, 1, 16>;        // 1 µs to 33 ms
using AgesOfBlocks = Histogram<10, 2, 16>;    // microseconds: 1 ms to 12 days
using ReuseDistances = Histogram<20, 2, 12>;  // bytes: 1 MiB to 4 TiB

}  // namespace terrace

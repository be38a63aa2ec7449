#include "tools/replay/eviction/frequency_sketch.h"

#include <algorithm>
#include <bit>

#include "terrace/check.h"

namespace terrace::tools {
namespace {

constexpr uint64_t kUsesPerBlock = 10;

}  // namespace

FrequencySketch::FrequencySketch(uint32_t capacity_blocks)
    : uses_between_halvings_(kUsesPerBlock * capacity_blocks),
      counters_(kRows * std::bit_ceil(size_t{capacity_blocks})) {
  TERRACE_CHECK(capacity_blocks > 0, "a tier of no blocks has no uses to count");
}

size_t FrequencySketch::PlaceOf(const BlockKey& key, uint32_t row) const {
  const size_t row_count = counters_.size() / kRows;
  const uint64_t hash = key.low + row * (key.high | 1);  // double hashing
  return row * row_count + (hash * 0x9E3779B97F4A7C15u >> 20) % row_count;
}

void FrequencySketch::Count(const BlockKey& key) {
  for (uint32_t row = 0; row < kRows; ++row) {
    uint8_t& counter = counters_[PlaceOf(key, row)];
    counter = std::min<uint8_t>(counter + 1, kFrequencyMax);
  }
  if (++uses_since_halving_ == uses_between_halvings_) Halve();
}

uint8_t FrequencySketch::FrequencyOf(const BlockKey& key) const {
  uint8_t least = kFrequencyMax;
  for (uint32_t row = 0; row < kRows; ++row) least = std::min(least, counters_[PlaceOf(key, row)]);
  return least;
}

void FrequencySketch::Halve() {
  for (uint8_t& counter : counters_) counter /= 2;
  uses_since_halving_ = 0;
}

}  // namespace terrace::tools

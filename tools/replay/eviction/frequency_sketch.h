// FrequencySketch: about how often keys were used of late: the smallest of
// four counters a key shares with others, all halved after ten uses a block of the tier.
// Source: Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy"
// (2017).
#pragma once

#include <cstdint>
#include <vector>

#include "terrace/block_key.h"

namespace terrace::tools {

class FrequencySketch {
 public:
  static constexpr uint8_t kFrequencyMax = 15;

  // REQUIRES: capacity_blocks > 0.
  explicit FrequencySketch(uint32_t capacity_blocks);

  void Count(const BlockKey& key);
  // 0 to kFrequencyMax; never below the true count since the last halving.
  uint8_t FrequencyOf(const BlockKey& key) const;

 private:
  static constexpr uint32_t kRows = 4;

  size_t PlaceOf(const BlockKey& key, uint32_t row) const;
  void Halve();

  // Constant after construction.
  const uint64_t uses_between_halvings_;

  std::vector<uint8_t> counters_;  // kRows of a power of two
  uint64_t uses_since_halving_ = 0;
};

}  // namespace terrace::tools

// Hits of LRU at every capacity, from one pass over a trace.
//
// LRU of any capacity holds the blocks used most recently, so a block hits exactly in tiers of at
// least as many blocks as were used since, itself included: its *stack distance* (Mattson, 1970). A
// request uses its blocks tail first; so distances never fall along a path and what hits leads it.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/replay/dense_trace.h"

namespace terrace::tools {

class LruCurve {
 public:
  explicit LruCurve(const DenseTrace& trace);
  // REQUIRES: capacity_blocks > 0.
  uint64_t HitsAt(uint32_t capacity_blocks) const;

 private:
  std::vector<uint64_t> hits_up_to_;  // by distance, summed
};

}  // namespace terrace::tools

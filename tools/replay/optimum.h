// The offline optimum: Belady's rule, evict what is used again furthest in the future. No policy
// that fetches on demand keeps more.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/replay/dense_trace.h"
#include "tools/replay/replay_cache.h"

namespace terrace::tools {

// For each touch of a trace, the request that touches the block next; kNoNextUse if none does.
inline constexpr uint32_t kNoNextUse = 0xFFFFFFFF;

class NextUses {
 public:
  explicit NextUses(const DenseTrace& trace);
  std::span<const uint32_t> of(const TraceRequest& request) const {
    return std::span(next_).subspan(request.first_id, request.id_count);
  }

 private:
  std::vector<uint32_t> next_;
};

// Blocks that hit, over the whole trace. Of blocks with the same next use the deeper goes first:
// then the choice among all blocks is always a leaf, and both orders agree.
// REQUIRES: capacity_blocks > 0.
uint64_t CountOptimumHits(const DenseTrace& trace, const NextUses& next_uses,
                          uint32_t capacity_blocks, EvictionOrder order);

}  // namespace terrace::tools

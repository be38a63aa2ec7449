#include "daemon/arenas/memory_yield.h"

#include <algorithm>

#include "terrace/check.h"
#include "terrace/units.h"

namespace terrace {

uint64_t MemoryYield::Look(const HostMemory& host, const Use& use, uint64_t reserve_bytes,
                           uint64_t most_bytes) {
  TERRACE_CHECK(use.leaving_bytes <= use.held_bytes, "what leaves is held until it has left");
  if (reserve_bytes == 0 || host.total_bytes == 0) {
    limit_bytes_ = UINT64_MAX;
    return most_bytes;
  }
  const uint64_t available_bytes = host.available_bytes + use.leaving_bytes;
  if (available_bytes < reserve_bytes) {
    calm_looks_ = 0;
    const uint64_t stays_bytes = use.held_bytes - use.leaving_bytes;
    const uint64_t short_bytes = RoundUp(reserve_bytes - available_bytes, use.segment_bytes);
    limit_bytes_ = std::min(most_bytes, stays_bytes - std::min(stays_bytes, short_bytes));
  } else if (available_bytes < reserve_bytes + kMarginSegments * use.segment_bytes) {
    calm_looks_ = 0;
  } else if (limit_bytes_ < most_bytes && ++calm_looks_ >= kCalmLooks) {
    limit_bytes_ += use.segment_bytes;
  }
  if (limit_bytes_ >= most_bytes) limit_bytes_ = UINT64_MAX;
  return std::min(limit_bytes_, most_bytes);
}

}  // namespace terrace

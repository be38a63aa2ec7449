#include "daemon/arenas/memory_yield.h"

#include <algorithm>

#include "terrace/check.h"
#include "terrace/units.h"

namespace terrace {

bool MemoryYield::IsStalled(const HostMemory& host, uint64_t now_us) {
  const uint64_t passed_us = now_us - window_begin_us_;
  if (has_window_ && passed_us < kStallWindowUs) return false;
  // It counts from anew where another cgroup limits.
  const bool is_known = has_window_ && host.stalled_us >= window_stalled_us_;
  const uint64_t stalled_us = host.stalled_us - window_stalled_us_;
  has_window_ = true;
  window_begin_us_ = now_us;
  window_stalled_us_ = host.stalled_us;
  // A window that was long over says little of now.
  return is_known && passed_us < 4 * kStallWindowUs &&
         stalled_us * 100 >= passed_us * kStallPercent;
}

uint64_t MemoryYield::Look(const HostMemory& host, const Use& use, uint64_t reserve_bytes,
                           uint64_t most_bytes) {
  TERRACE_CHECK(use.leaving_bytes <= use.held_bytes, "what leaves is held until it has left");
  if (reserve_bytes == 0 || host.total_bytes == 0) {
    limit_bytes_ = UINT64_MAX;
    has_window_ = false;
    return most_bytes;
  }
  const uint64_t available_bytes = host.available_bytes + use.leaving_bytes;
  const uint64_t stays_bytes = use.held_bytes - use.leaving_bytes;
  uint64_t short_bytes = reserve_bytes - std::min(reserve_bytes, available_bytes);
  if (IsStalled(host, use.now_us) && host.free_bytes < reserve_bytes) {
    short_bytes = std::max({short_bytes, stays_bytes / kStallDivisor, uint64_t{1}});
  }
  if (short_bytes > 0) {
    calm_looks_ = 0;
    short_bytes = RoundUp(short_bytes, use.segment_bytes);
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

// MemoryYield: how much DRAM to hold while others need memory, too: less while less than a reserve
// is available to them, or while tasks stand for want of it whatever is called available (PSI: a
// file cache that is in use is), and more again, slowly, once neither is so. Tasks that stand while
// as much lies free lack what no one here can give: a limit of their own keeps it from them.
//
// THREADING: one thread.
#pragma once

#include <cstdint>

#include "daemon/arenas/host_memory.h"

namespace terrace {

class MemoryYield {
 public:
  // Looks since there was last too little, until more is taken again, a segment a look.
  static constexpr uint32_t kCalmLooks = 20;
  // Beyond the reserve, so that what is taken again is not given back at once.
  static constexpr uint64_t kMarginSegments = 2;
  // A second in which tasks stood for so much of it costs a sixteenth of what is held.
  static constexpr uint64_t kStallWindowUs = 1'000'000;
  static constexpr uint64_t kStallPercent = 10;
  static constexpr uint64_t kStallDivisor = 16;

  struct Use {
    uint64_t held_bytes = 0;     // populated, with what is on its way out
    uint64_t leaving_bytes = 0;  // of that, on its way out
    uint64_t segment_bytes = 1;
    uint64_t now_us = 0;
  };

  // One look: what DRAM may hold from now on, of `most_bytes`. `reserve_bytes` of 0: all.
  uint64_t Look(const HostMemory& host, const Use& use, uint64_t reserve_bytes,
                uint64_t most_bytes);
  // As the last look has it; UINT64_MAX: all that the configuration says.
  uint64_t limit_bytes() const { return limit_bytes_; }

 private:
  // True at the end of a window with so much standing.
  bool IsStalled(const HostMemory& host, uint64_t now_us);

  uint64_t limit_bytes_ = UINT64_MAX;
  uint32_t calm_looks_ = 0;
  bool has_window_ = false;
  uint64_t window_begin_us_ = 0, window_stalled_us_ = 0;
};

}  // namespace terrace

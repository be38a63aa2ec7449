// What came of what a predecessor left: on drives, and in memory.
#pragma once

#include <cstdint>

namespace terrace {

// The outcome of restoring a domain.
struct RestoreSummary {
  uint64_t blocks = 0;          // found again
  uint64_t copies_dropped = 0;  // of no known group, not whole, or of an older commit
};

// What came of the slots that a predecessor left in use.
struct AdoptSummary {
  uint64_t blocks = 0;         // found again; each is verified before it is handed out
  uint64_t slots_parked = 0;   // of groups not opened yet
  uint64_t slots_dropped = 0;  // without a checksum, not whole, expired, or of another commit
  uint64_t slots_fenced = 0;   // of no block, until the predecessor's sessions have ended
  uint64_t torn_slots = 0;     // of those: rows not whole
};

}  // namespace terrace

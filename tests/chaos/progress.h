// What a chaos process has done so far, in a file mapped shared: it survives the process, however
// it ended, and the script that drives it reads it at any time. tests/long/rig.py knows this
// layout.
//
// OWNERSHIP: the mapping lives until the process ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "terrace/status.h"

namespace terrace::chaos {

// What the process is inside of right now; the last one of a killed process is where it died.
enum class Phase : uint64_t {
  kStart = 0,
  kIdle,
  kAcquire,
  kVerify,
  kRelease,
  kReserve,
  kWrite,
  kCommit,
  kAbort,
};

struct Progress {
  std::atomic<uint64_t> phase;
  std::atomic<uint64_t> ops;
  std::atomic<uint64_t> blocks_verified;
  std::atomic<uint64_t> bytes_verified;
  std::atomic<uint64_t> blocks_wrong;
  std::atomic<uint64_t> blocks_committed;
  std::atomic<uint64_t> boot_id;            // of the daemon last seen
  std::atomic<uint64_t> boots_seen;         // daemons so far
  std::atomic<uint64_t> blocks_since_boot;  // verified under this boot id
  std::atomic<uint64_t> call_us_max;        // longest call
  std::atomic<uint64_t> calls_late;         // longer than deadline + kLateUs
  std::atomic<uint64_t> statuses[16];       // answers by StatusCode
};
static_assert(sizeof(Progress) == 27 * sizeof(uint64_t));

// A call may overstay its deadline by this much on a loaded two-core machine before it is counted.
inline constexpr uint64_t kLateUs = 500'000;

// The page at `path`, created zeroed; in private memory when `path` is empty. Null with a message
// on stderr if the system refuses.
Progress* MapProgress(const std::string& path);

inline void Count(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace terrace::chaos

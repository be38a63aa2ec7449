// HugePageClaims: ranges of files of huge pages that are claimed and not used yet. Without a claim
// pages are only free: another process may take them between the look at the pool and the first
// byte, or hours later, before the memory is grown into. A claim is the file's: page faults through
// whatever mapping take what was claimed, until the range is punched or the file goes.
//
// Giving up takes as long as the kernel takes to clear the pages: it lets go of a claim with the
// page alone.
//
// THREADING: any. OWNERSHIP: files are their owners', who say Forget before they close them.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "terrace/status.h"

namespace terrace {

inline constexpr uint64_t kHugePageBytes = 2 << 20;
// Of a memfd of such pages: MFD_HUGE_2MB, which some systems' headers lack.
inline constexpr unsigned kHugePageFlags = MFD_HUGETLB | (21U << 26);

class HugePageClaims {
 public:
  struct Range {
    int fd = -1;
    uint64_t offset_bytes = 0;
    uint64_t length_bytes = 0;  // whole huge pages, as the offset
  };

  HugePageClaims() = default;
  HugePageClaims(const HugePageClaims&) = delete;
  HugePageClaims& operator=(const HugePageClaims&) = delete;

  // Claims all of them or none. kIo with the errno: ENOMEM if they are not free.
  Status ClaimAll(const std::vector<Range>& ranges);
  // The range comes into use. If it was not claimed and nothing is free, other claims are given up
  // for it, the latest first. kIo with the errno: it lacks pages.
  Status Use(const Range& range);
  // What there is above that is given up by the next Trim, the latest first. Costs nothing.
  void KeepAtMost(uint64_t bytes) { keep_bytes_.store(bytes, std::memory_order_relaxed); }
  void Trim();
  // The file is about to go.
  void Forget(int fd);
  uint64_t held_bytes() const;

 private:
  void GiveUpLast();

  mutable std::mutex mutex_;
  std::vector<Range> held_;
  uint64_t held_bytes_ = 0;
  std::atomic<uint64_t> keep_bytes_ = UINT64_MAX;
};

}  // namespace terrace

// A paged copy on the CPU: what the copy kernels do, in loops over runs. The `host` backend's
// product and the `sim` backend's device.
#pragma once

#include <cstdint>

#include "cuda/abi/device.h"
#include "terrace/status.h"

namespace terrace {

// kInvalid, with the reason, for a launch past the limits that device.h sets.
Status ValidateLaunch(const PagedLaunch& launch);

// One row's share of one page is a part. Here pages count outermost: a slot is written in its
// order.
inline uint32_t PartCount(const PagedLaunch& launch) {
  return launch.row_count * launch.page_count;
}
uint64_t PartBytes(const PagedLaunch& launch);

// Copies parts [part_first, part_first + part_count). Long runs bypass the caches; all is globally
// ordered before the call returns. REQUIRES: ValidateLaunch.
void CopyParts(const PagedLaunch& launch, uint32_t part_first, uint32_t part_count);

}  // namespace terrace

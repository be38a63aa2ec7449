// The memory calls of a device whose memory is the host's: lines of memory, and slabs that are
// memfds.
#pragma once

#include <cstdint>

#include "cuda/abi/device.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr uint64_t kHostSlabUnitBytes = uint64_t{2} << 20;  // as a GPU's

Status AllocateHostMemory(uint64_t byte_count, void** address);
void FreeHostMemory(void* address);

Status CreateHostSlab(uint64_t byte_count, int32_t* fd);
Status MapHostSlab(int32_t fd, uint64_t byte_count, SlabAccess access, void** address);
Status UnmapHostSlab(void* address, uint64_t byte_count);

}  // namespace terrace

// The `host` backend: engines that infer on the CPU. Pages, slots and slabs are ordinary memory;
// streams are queues that a few threads work off, each operation cut so that several threads share
// a large one.
//
// THREADING: any thread, streams too. LIMITS: kHostWorkersMax threads a device.
#pragma once

#include <cstdint>

#include "cuda/abi/device.h"

namespace terrace {

inline constexpr uint32_t kHostWorkersMax = 64;

const DeviceOps& HostDeviceOps();

}  // namespace terrace

// Runs the threads of one warp on the calling thread. A lane that waits for the others leaves its
// stack, and is taken up again when all have come.
#pragma once

#include <cstdint>
#include <functional>

namespace terrace::emulator {

inline constexpr uint32_t kWarpLanes = 32;

// Calls `run` once for each of `lane_count` lanes, with `enter(lane)` before each stretch of one.
// Aborts, with a reason, where lanes wait for one that never comes.
void RunWarp(uint32_t lane_count, const std::function<void(uint32_t)>& enter,
             const std::function<void()>& run);

}  // namespace terrace::emulator

// Kernels on a CPU: what a .cu file needs to be compiled by a C++ compiler and run by the emulator.
// Included before every line of such a file (-include).
//
// A block's threads run one after another, each until it waits for the others of its warp; blocks
// run in the order of their numbers, or in reverse, as the stream's seed says. So arithmetic,
// indices and bounds are those of a GPU. What is not: memory order between threads and blocks,
// caches, alignment of vector accesses, and time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <functional>

#include "tests/cuda_emulator/fibers.h"

#undef __device__
#undef __global__
#undef __grid_constant__
#undef __launch_bounds__
#undef __shared__
#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
// One block runs at a time on a thread of the emulator's, and its threads share that thread.
#define __shared__ static thread_local

extern thread_local uint3 threadIdx;
extern thread_local uint3 blockIdx;
extern thread_local dim3 gridDim;

namespace terrace::emulator {

// Waits for the lanes of `mask`, all of which must come; then gives what lane `lane ^ distance` of
// the calling thread's warp brought.
uint32_t ExchangeXor(uint32_t mask, uint32_t value, uint32_t distance);

// Queues a kernel of which `run` runs the current thread.
cudaError_t QueueKernel(dim3 grid, dim3 block, uint64_t parameter_bytes, cudaStream_t stream,
                        std::function<void()> run);

}  // namespace terrace::emulator

template <typename Value>
Value __shfl_xor_sync(uint32_t mask, Value value, uint32_t distance) {
  static_assert(sizeof(Value) == sizeof(uint32_t));
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = terrace::emulator::ExchangeXor(mask, bits, distance);
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}

// What `lane` of the calling thread's warp brought.
template <typename Value>
Value __shfl_sync(uint32_t mask, Value value, uint32_t lane) {
  return __shfl_xor_sync(mask, value, lane ^ threadIdx.x % terrace::emulator::kWarpLanes);
}

template <typename Value>
Value min(Value a, Value b) {
  return b < a ? b : a;
}
template <typename Value>
Value max(Value a, Value b) {
  return a < b ? b : a;
}

// More special than the runtime's template, so it is taken: only here is the kernel's type known.
template <typename Argument>
cudaError_t cudaLaunchKernel(void (*kernel)(Argument), dim3 grid, dim3 block, void** arguments,
                             size_t /*shared_bytes*/, cudaStream_t stream) {
  const Argument argument = *static_cast<const Argument*>(arguments[0]);
  return terrace::emulator::QueueKernel(grid, block, sizeof(Argument), stream,
                                        [kernel, argument] { kernel(argument); });
}

// One way to launch a kernel, in plain C++, so that tests can compile the files that do.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace terrace::cuda {

// Queues a kernel that takes one argument, which is copied. The error is this launch's own: what
// cudaGetLastError would say may be of a call before it.
template <typename Arguments>
cudaError_t LaunchKernel(void (*kernel)(Arguments), dim3 grid, uint32_t threads_per_block,
                         cudaStream_t stream, const Arguments& arguments) {
  void* parameters[] = {const_cast<Arguments*>(&arguments)};
  return cudaLaunchKernel(kernel, grid, dim3(threads_per_block), parameters, 0, stream);
}

}  // namespace terrace::cuda

// A CUDA runtime and driver on CPUs, for tests: two GPUs whose streams are threads. The plugin's
// own sources are compiled against it, kernels too (kernels.h), so that what is tested without a
// GPU is the code that runs on one.
//
// It takes what a GPU may take, and takes it out on who relies on more: streams are late by seed, a
// batch's pieces are copied in any order and its sources read early where that was allowed; device
// memory is out of the host's reach where the CPU has protection keys, and ends at a page that
// nobody reaches; calls without a context make one on device 0, as the runtime does; a thread that
// does not say it is relaxed spoils another thread's capture; an error of a device stays.
//
// Environment: TERRACE_EMULATOR_SEED (default 1), TERRACE_EMULATOR_DRIVER (the CUDA version the
// driver is of, default that of the headers), TERRACE_EMULATOR_CONTEXTS (a file that gets a line
// for every context that the process makes).
//
// THREADING: as CUDA's calls.
#pragma once

#include <cstdint>

namespace terrace::emulator {

inline constexpr int kDeviceCount = 2;

// Whether something has made the device's primary context.
bool HasContext(int device);
// From now on all calls to the device answer `cuda_error`, and nothing that is queued begins.
void FailDevice(int device, int cuda_error);
// As new: no device has failed. REQUIRES: nothing is queued.
void MendDevices();

// Whether the driver refuses to map memory as read-only.
void RefuseReadOnlyMappings(bool does_refuse);

struct Counts {
  uint64_t pageable_copies = 0;  // copies from or to host memory that is not pinned: they block
  uint64_t captured_calls = 0;   // that became nodes of a graph
  uint64_t kernels = 0;
  uint64_t batches = 0;
  uint64_t allocations = 0;  // now
  uint64_t registrations = 0;
  bool guards_memory = false;
};
Counts Count();

}  // namespace terrace::emulator

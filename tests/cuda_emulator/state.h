// What the emulator's parts share: memory, streams, contexts of threads, and what has gone wrong.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "tests/cuda_emulator/emulator.h"

// The handles that CUDA's headers leave open.
struct CUctx_st {
  int device = 0;
  bool is_active = false;
};

struct CUevent_st {
  struct State {
    uint64_t recorded = 0;  // records so far, and how far they have got
    uint64_t reached = 0;
  };
  std::shared_ptr<State> state = std::make_shared<State>();
};

struct CUstream_st {
  struct Work {
    std::function<bool()> is_ready;  // under the lock; empty: always
    std::function<void()> run;       // without it
    bool is_host_function = false;
  };

  int device = 0;
  bool is_blocking = true;  // towards the default stream
  std::deque<Work> queue;
  bool is_running = false;
  bool is_destroyed = false;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  std::mt19937_64 random;
};

namespace terrace::emulator {

enum class RegionKind { kDevice, kPinned, kRegistered, kReserved };

struct Region {
  RegionKind kind = RegionKind::kDevice;
  int device = -1;
  uint64_t byte_count = 0;
  uint64_t mapped_bytes = 0;  // the whole mapping with its guard, and where it begins
  std::byte* mapping = nullptr;
};

struct State {
  State();

  std::mutex mutex;
  std::condition_variable changed;
  CUctx_st contexts[kDeviceCount];
  cudaError_t failures[kDeviceCount] = {};
  CUstream_st* default_streams[kDeviceCount] = {};
  std::vector<CUstream_st*> streams;
  std::map<uintptr_t, Region> regions;
  std::map<CUmemGenericAllocationHandle, int> slabs;  // descriptors
  CUmemGenericAllocationHandle next_slab = 1;
  Counts counts;
  uint64_t seed = 1;
  uint64_t stream_count = 0;
  int driver_version = CUDA_VERSION;
  bool refuses_read_only = false;
  int protection_key = -1;  // of device memory; -1: the CPU has none
};

// Lives until the process ends: streams run that long.
State& TheState();

struct ThreadState {
  std::vector<CUctx_st*> contexts;
  int device = 0;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  cudaError_t last_error = cudaSuccess;
};
extern thread_local ThreadState t_thread;

// What a call begins with: a context, that its device has not failed, and that no capture forbids
// it. Gives the device. REQUIRES: the lock is held.
enum class DuringCapture { kAllowed, kUnsafe };
cudaError_t Enter(DuringCapture during_capture, int* device);
cudaError_t Leave(cudaError_t error);  // remembers it as the thread's last

// Makes it current nowhere. REQUIRES: the lock is held.
void MakeContext(CUctx_st* context);

// The stream of a handle, on the current device. REQUIRES: the lock is held.
CUstream_st* StreamOf(cudaStream_t handle, int device);
// REQUIRES: the lock is held. Work on a stream under capture is dropped, and counted.
void Queue(CUstream_st* stream, CUstream_st::Work work);
CUstream_st* NewStream(int device, bool is_blocking);
// REQUIRES: the lock is held; lets go of it while it waits.
void AwaitIdle(int device, std::unique_lock<std::mutex>* lock);

// The region that holds all of these bytes; nullptr: ordinary memory of the host.
const Region* Find(const void* address, uint64_t byte_count);
bool IsDevice(const Region* region);
cudaError_t Allocate(RegionKind kind, int device, uint64_t byte_count, void** address);
cudaError_t Free(RegionKind kind, void* address);
void ProtectDeviceMemory(void* address, uint64_t byte_count, int protection);
// Whether the calling thread reaches device memory.
void ReachDeviceMemory(bool is_allowed);

}  // namespace terrace::emulator

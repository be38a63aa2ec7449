// Streams of the emulated GPUs: each is a queue and a thread of its own, late by the seed.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "tests/cuda_emulator/fibers.h"
#include "tests/cuda_emulator/kernels.h"
#include "tests/cuda_emulator/state.h"

thread_local uint3 threadIdx;
thread_local uint3 blockIdx;
thread_local dim3 gridDim;

namespace terrace::emulator {

thread_local ThreadState t_thread;

namespace {

constexpr uint64_t kKernelParameterBytesMax = 4096;
constexpr uint32_t kThreadsPerBlockMax = 1024;
constexpr uint32_t kGridExtentMax = 65535;  // of y and z
constexpr uint32_t kLatenessUsMax = 100;
constexpr uint32_t kLateOneIn = 32;  // of what a stream does

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

void RunStream(CUstream_st* stream) {
  State& state = TheState();
  ReachDeviceMemory(true);
  std::unique_lock lock(state.mutex);
  for (;;) {
    state.changed.wait(lock, [&] {
      if (stream->queue.empty()) return stream->is_destroyed;
      const auto& is_ready = stream->queue.front().is_ready;
      return state.failures[stream->device] != cudaSuccess || !is_ready || is_ready();
    });
    if (stream->queue.empty()) break;
    const CUstream_st::Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (state.failures[stream->device] != cudaSuccess) {
      state.changed.notify_all();
      continue;
    }
    const uint64_t lateness = stream->random() % (kLateOneIn * kLatenessUsMax);
    stream->is_running = true;
    lock.unlock();
    if (lateness < kLatenessUsMax) {
      std::this_thread::sleep_for(std::chrono::microseconds(lateness));
    }
    ReachDeviceMemory(!work.is_host_function);
    work.run();
    ReachDeviceMemory(true);
    lock.lock();
    stream->is_running = false;
    state.changed.notify_all();
  }
  std::erase(state.streams, stream);
  delete stream;
}

bool IsUnsafeNow() {
  if (t_thread.capture_mode == cudaStreamCaptureModeRelaxed) return false;
  for (CUstream_st* stream : TheState().streams) {
    if (stream->capture == cudaStreamCaptureStatusActive &&
        stream->capture_mode == cudaStreamCaptureModeGlobal) {
      return true;
    }
  }
  return false;
}

}  // namespace

State::State()
    : seed(FromEnvironment("TERRACE_EMULATOR_SEED", 1)),
      driver_version(static_cast<int>(FromEnvironment("TERRACE_EMULATOR_DRIVER", CUDA_VERSION))),
      protection_key(pkey_alloc(0, PKEY_DISABLE_ACCESS)) {
  counts.guards_memory = protection_key >= 0;
  for (int device = 0; device < kDeviceCount; ++device) contexts[device].device = device;
}

State& TheState() {
  static State& state = *new State;
  return state;
}

cudaError_t Leave(cudaError_t error) {
  if (error != cudaSuccess) t_thread.last_error = error;
  return error;
}

void MakeContext(CUctx_st* context) {
  if (context->is_active) return;
  context->is_active = true;
  const char* const path = std::getenv("TERRACE_EMULATOR_CONTEXTS");
  std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "a");
  if (file == nullptr) return;
  std::fprintf(file, "a context on device %d\n", context->device);
  std::fclose(file);
}

cudaError_t Enter(DuringCapture during_capture, int* device) {
  State& state = TheState();
  if (t_thread.contexts.empty()) t_thread.contexts.push_back(&state.contexts[t_thread.device]);
  CUctx_st* const context = t_thread.contexts.back();
  MakeContext(context);
  *device = context->device;
  if (state.failures[*device] != cudaSuccess) return state.failures[*device];
  if (during_capture == DuringCapture::kUnsafe && IsUnsafeNow()) {
    for (CUstream_st* stream : state.streams) {
      if (stream->capture == cudaStreamCaptureStatusActive) {
        stream->capture = cudaStreamCaptureStatusInvalidated;
      }
    }
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

CUstream_st* NewStream(int device, bool is_blocking) {
  State& state = TheState();
  auto* stream = new CUstream_st{.device = device, .is_blocking = is_blocking};
  stream->random.seed(state.seed * 1000 + state.stream_count++);
  state.streams.push_back(stream);
  std::thread(RunStream, stream).detach();
  return stream;
}

CUstream_st* StreamOf(cudaStream_t handle, int device) {
  if (handle != nullptr) return handle;
  CUstream_st*& stream = TheState().default_streams[device];
  if (stream == nullptr) stream = NewStream(device, /*is_blocking=*/true);
  return stream;
}

void Queue(CUstream_st* stream, CUstream_st::Work work) {
  State& state = TheState();
  if (stream->capture != cudaStreamCaptureStatusNone) {
    ++state.counts.captured_calls;
    return;
  }
  stream->queue.push_back(std::move(work));
  state.changed.notify_all();
}

void AwaitIdle(int device, std::unique_lock<std::mutex>* lock) {
  State& state = TheState();
  state.changed.wait(*lock, [&] {
    return std::all_of(state.streams.begin(), state.streams.end(), [&](CUstream_st* stream) {
      return stream->device != device || (stream->queue.empty() && !stream->is_running);
    });
  });
}

bool HasContext(int device) {
  const std::lock_guard lock(TheState().mutex);
  return TheState().contexts[device].is_active;
}

void FailDevice(int device, int cuda_error) {
  const std::lock_guard lock(TheState().mutex);
  TheState().failures[device] = static_cast<cudaError_t>(cuda_error);
  TheState().changed.notify_all();
}

void MendDevices() {
  const std::lock_guard lock(TheState().mutex);
  for (cudaError_t& failure : TheState().failures) failure = cudaSuccess;
}

void RefuseReadOnlyMappings(bool does_refuse) {
  const std::lock_guard lock(TheState().mutex);
  TheState().refuses_read_only = does_refuse;
}

Counts Count() {
  const std::lock_guard lock(TheState().mutex);
  return TheState().counts;
}

cudaError_t QueueKernel(dim3 grid, dim3 block, uint64_t parameter_bytes, cudaStream_t handle,
                        std::function<void()> run) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kAllowed, &device);
  if (error != cudaSuccess) return Leave(error);
  const bool is_valid = grid.x > 0 && grid.x <= INT32_MAX && grid.y > 0 &&
                        grid.y <= kGridExtentMax && grid.z > 0 && grid.z <= kGridExtentMax &&
                        block.x > 0 && block.x <= kThreadsPerBlockMax && block.y == 1 &&
                        block.z == 1;
  if (!is_valid) return Leave(cudaErrorInvalidConfiguration);
  if (parameter_bytes > kKernelParameterBytesMax) return Leave(cudaErrorInvalidValue);
  CUstream_st* const stream = StreamOf(handle, device);
  if (stream->device != device) return Leave(cudaErrorInvalidResourceHandle);
  ++state.counts.kernels;
  const bool is_backwards = stream->random() % 2 == 0;
  const auto run_all = [grid, block, is_backwards, run = std::move(run)] {
    gridDim = grid;
    const uint64_t block_count = uint64_t{grid.x} * grid.y * grid.z;
    for (uint64_t i = 0; i < block_count; ++i) {
      const uint64_t n = is_backwards ? block_count - 1 - i : i;
      blockIdx = {static_cast<uint32_t>(n % grid.x), static_cast<uint32_t>(n / grid.x % grid.y),
                  static_cast<uint32_t>(n / grid.x / grid.y)};
      for (uint32_t first = 0; first < block.x; first += kWarpLanes) {
        RunWarp(
            std::min(kWarpLanes, block.x - first),
            [first](uint32_t lane) {
              threadIdx = {first + lane, 0, 0};
            },
            run);
      }
    }
  };
  Queue(stream, {.is_ready = {}, .run = run_all});
  return Leave(cudaSuccess);
}

}  // namespace terrace::emulator

using namespace terrace::emulator;  // NOLINT: what follows is CUDA's names

// --- errors and devices

cudaError_t cudaGetLastError() { return std::exchange(t_thread.last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return t_thread.last_error; }

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorNotReady ? "device not ready" : "an emulated CUDA error";
}

// The driver's first call names the thread that it begins: where that is refused, there is no GPU.
static bool CanNameThreads() {
  bool can_name = false;
  std::thread([&can_name] {
    const std::string path = "/proc/self/task/" + std::to_string(gettid()) + "/comm";
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    can_name = fd >= 0;
    if (fd >= 0) close(fd);
  }).join();
  return can_name;
}

cudaError_t cudaGetDeviceCount(int* count) {
  static const bool can_name_threads = CanNameThreads();
  if (!can_name_threads) return Leave(cudaErrorOperatingSystem);
  *count = kDeviceCount;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= kDeviceCount) return Leave(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "Emulated GPU %d", device);
  std::memset(properties->uuid.bytes, 0xE0 + device, sizeof(properties->uuid.bytes));
  properties->totalGlobalMem = uint64_t{8} << 30;
  properties->multiProcessorCount = 4;
  properties->canMapHostMemory = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device < 0 || device >= kDeviceCount) return Leave(cudaErrorInvalidDevice);
  if (attribute != cudaDevAttrHostNumaId) return Leave(cudaErrorNotSupported);
  *value = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDeviceCount) return Leave(cudaErrorInvalidDevice);
  const std::lock_guard lock(TheState().mutex);
  CUctx_st* const context = &TheState().contexts[device];
  MakeContext(context);
  t_thread.device = device;
  if (t_thread.contexts.empty()) t_thread.contexts.push_back(context);
  t_thread.contexts.back() = context;
  return Leave(TheState().failures[device]);
}

cudaError_t cudaGetDevice(int* device) {
  const std::lock_guard lock(TheState().mutex);
  *device = t_thread.contexts.empty() ? t_thread.device : t_thread.contexts.back()->device;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  const std::lock_guard lock(TheState().mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kAllowed, &device);
  if (error != cudaSuccess) return Leave(error);
  std::swap(*mode, t_thread.capture_mode);
  return Leave(cudaSuccess);
}

// --- streams

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  const std::lock_guard lock(TheState().mutex);
  int device = 0;
  *lowest = 0;
  *highest = -5;
  return Leave(Enter(DuringCapture::kAllowed, &device));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  const std::lock_guard lock(TheState().mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kAllowed, &device);
  if (error != cudaSuccess) return Leave(error);
  if (priority > 0 || priority < -5) return Leave(cudaErrorInvalidValue);
  *stream = NewStream(device, (flags & cudaStreamNonBlocking) == 0);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(TheState().mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kAllowed, &device);
  stream->is_destroyed = true;  // what is queued still runs
  TheState().changed.notify_all();
  return Leave(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  State& state = TheState();
  std::unique_lock lock(state.mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kUnsafe, &device);
  if (error != cudaSuccess) return Leave(error);
  CUstream_st* const stream = StreamOf(handle, device);
  state.changed.wait(lock, [&] { return stream->queue.empty() && !stream->is_running; });
  return Leave(state.failures[device]);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const std::lock_guard lock(TheState().mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kAllowed, &device);
  if (error != cudaSuccess) return Leave(error);
  if (stream == nullptr) return Leave(cudaErrorStreamCaptureUnsupported);
  stream->capture = cudaStreamCaptureStatusActive;
  stream->capture_mode = mode;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(TheState().mutex);
  *graph = nullptr;
  const bool is_spoilt = stream->capture == cudaStreamCaptureStatusInvalidated;
  stream->capture = cudaStreamCaptureStatusNone;
  return Leave(is_spoilt ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kAllowed, &device);
  if (error != cudaSuccess) return Leave(error);
  if (handle != nullptr) {
    *status = handle->capture;
    return cudaSuccess;
  }
  // The default stream waits for those that block it: under the capture of one it can say nothing.
  for (CUstream_st* stream : state.streams) {
    if (stream->is_blocking && stream->capture == cudaStreamCaptureStatusActive) {
      return Leave(cudaErrorStreamCaptureImplicit);
    }
  }
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
  const std::lock_guard lock(TheState().mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kAllowed, &device);
  if (error != cudaSuccess) return Leave(error);
  Queue(StreamOf(handle, device), {.is_ready = {},
                                   .run = [function, argument] { function(argument); },
                                   .is_host_function = true});
  return cudaSuccess;
}

// --- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  const std::lock_guard lock(TheState().mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kAllowed, &device);
  if (error != cudaSuccess) return Leave(error);
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(TheState().mutex);
  delete event;
  int device = 0;
  return Leave(Enter(DuringCapture::kAllowed, &device));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kAllowed, &device);
  if (error != cudaSuccess) return Leave(error);
  CUstream_st* const stream = StreamOf(handle, device);
  if (stream->device != device) return Leave(cudaErrorInvalidResourceHandle);
  const auto reach = [events = event->state, n = ++event->state->recorded] {
    const std::lock_guard inner(TheState().mutex);
    events->reached = std::max(events->reached, n);
  };
  Queue(stream, {.is_ready = {}, .run = reach});
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned /*flags*/) {
  const std::lock_guard lock(TheState().mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kAllowed, &device);
  if (error != cudaSuccess) return Leave(error);
  const auto is_ready = [events = event->state, n = event->state->recorded] {
    return events->reached >= n;
  };
  Queue(StreamOf(handle, device), {.is_ready = is_ready, .run = [] {}});
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(TheState().mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kUnsafe, &device);
  if (error != cudaSuccess) return Leave(error);
  const CUevent_st::State& events = *event->state;
  return Leave(events.reached >= events.recorded ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  State& state = TheState();
  std::unique_lock lock(state.mutex);
  int device = 0;
  const cudaError_t error = Enter(DuringCapture::kUnsafe, &device);
  if (error != cudaSuccess) return Leave(error);
  const auto events = event->state;
  state.changed.wait(lock, [&] {
    return events->reached >= events->recorded || state.failures[device] != cudaSuccess;
  });
  return Leave(state.failures[device]);
}

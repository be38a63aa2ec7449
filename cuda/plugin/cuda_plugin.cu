// The `cuda` backend's table: devices, memory, streams and events. It is a shared object of its own
// with the runtime linked in, so that Terrace neither needs CUDA nor disturbs an engine's.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>

#include "cuda/abi/cuda_backend.h"
#include "terrace/status.h"

namespace terrace::cuda {

DeviceStatus Refuse(int32_t status_code, const char* what) { return {status_code, 0, what}; }

namespace {

StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return StatusCode::kOk;
    case cudaErrorNotReady:
      return StatusCode::kBusy;
    case cudaErrorMemoryAllocation:
    case cudaErrorLaunchOutOfResources:
      return StatusCode::kNoSpace;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNotSupported:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return StatusCode::kUnsupported;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorHostMemoryNotRegistered:
      return StatusCode::kInvalid;
    default:
      return StatusCode::kIo;
  }
}

}  // namespace

DeviceStatus FromRuntime(int cuda_error) {
  const auto error = static_cast<cudaError_t>(cuda_error);
  if (error == cudaSuccess) return kCudaOk;
  cudaGetLastError();
  return {static_cast<int32_t>(CodeOf(error)), cuda_error, cudaGetErrorString(error)};
}

void* DriverFunction(const char* name, uint32_t cuda_version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, cuda_version, cudaEnableDefault, &found);
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : nullptr;
}

namespace {

struct Contexts {
  PFN_cuDevicePrimaryCtxRetain_v7000 retain = reinterpret_cast<PFN_cuDevicePrimaryCtxRetain_v7000>(
      DriverFunction("cuDevicePrimaryCtxRetain", 7000));
  PFN_cuCtxPushCurrent_v4000 push =
      reinterpret_cast<PFN_cuCtxPushCurrent_v4000>(DriverFunction("cuCtxPushCurrent", 4000));
  PFN_cuCtxPopCurrent_v4000 pop =
      reinterpret_cast<PFN_cuCtxPopCurrent_v4000>(DriverFunction("cuCtxPopCurrent", 4000));

  bool is_whole() const { return retain && push && pop; }
};

const Contexts& ContextCalls() {
  static const Contexts calls;
  return calls;
}

DeviceStatus PushContext(const CudaDevice& device) {
  const Contexts& calls = ContextCalls();
  if (!calls.is_whole()) {
    return Refuse(static_cast<int32_t>(StatusCode::kUnsupported), "this CUDA driver is too old");
  }
  CUcontext context = device.context.load();
  if (context == nullptr) {
    const DeviceStatus status = FromDriver(calls.retain(&context, device.ordinal));
    if (status.code != 0) return status;
    device.context.store(context);  // another thread has the same
  }
  return FromDriver(calls.push(context));
}

}  // namespace

DeviceScope::DeviceScope(const CudaDevice& device) {
  status_ = PushContext(device);
  if (status_.code != 0) return;
  is_pushed_ = true;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  status_ = FromRuntime(cudaThreadExchangeStreamCaptureMode(&mode));
  has_capture_mode_ = status_.code == 0;
  previous_capture_mode_ = mode;
}

DeviceScope::~DeviceScope() {
  if (has_capture_mode_) {
    auto mode = static_cast<cudaStreamCaptureMode>(previous_capture_mode_);
    cudaThreadExchangeStreamCaptureMode(&mode);
  }
  CUcontext popped = nullptr;
  if (is_pushed_) ContextCalls().pop(&popped);
}

namespace {

DeviceStatus CountDevices(uint32_t* device_count) {
  int count = 0;
  const DeviceStatus status = FromRuntime(cudaGetDeviceCount(&count));
  *device_count = status.code == 0 ? static_cast<uint32_t>(count) : 0;
  return status;
}

DeviceStatus OpenDevice(const DeviceOpenOptions* options, DeviceHandle** handle) {
  uint32_t device_count = 0;
  const DeviceStatus status = CountDevices(&device_count);
  if (status.code != 0) return status;
  if (options->device_index >= device_count) {
    return Refuse(static_cast<int32_t>(StatusCode::kNotFound), "no CUDA device of this index");
  }
  auto* device = new (std::nothrow) CudaDevice{.ordinal = static_cast<int>(options->device_index)};
  if (device == nullptr) return Refuse(static_cast<int32_t>(StatusCode::kNoSpace), "no memory");
  device->host_copies = std::make_shared<HostCopyGate>();
  *handle = reinterpret_cast<DeviceHandle*>(device);
  return kCudaOk;
}

void CloseDevice(DeviceHandle* handle) { delete AsCuda(handle); }

// The driver knows a share of a GPU (MIG) by a UUID of its own; the runtime says only the GPU's.
CUuuid UuidOf(int ordinal, const cudaDeviceProp& properties) {
  static const auto get =
      reinterpret_cast<PFN_cuDeviceGetUuid_v11040>(DriverFunction("cuDeviceGetUuid", 11040));
  CUuuid uuid;
  return get != nullptr && get(&uuid, ordinal) == CUDA_SUCCESS ? uuid : properties.uuid;
}

DeviceStatus DescribeDevice(DeviceHandle* handle, DeviceTraits* traits) {
  const int ordinal = AsCuda(handle)->ordinal;
  cudaDeviceProp properties;
  const DeviceStatus status = FromRuntime(cudaGetDeviceProperties(&properties, ordinal));
  if (status.code != 0) return status;
  const CUuuid uuid = UuidOf(ordinal, properties);
  static_assert(sizeof(uuid.bytes) == kDeviceUuidBytes);
  std::memcpy(traits->uuid, uuid.bytes, kDeviceUuidBytes);
  std::snprintf(traits->name, kDeviceNameBytes, "%.*s", static_cast<int>(kDeviceNameBytes - 1),
                properties.name);
  traits->memory_bytes = properties.totalGlobalMem;
  traits->compute_units = static_cast<uint32_t>(properties.multiProcessorCount);
  int numa_node = -1;
  if (cudaDeviceGetAttribute(&numa_node, cudaDevAttrHostNumaId, ordinal) != cudaSuccess) {
    cudaGetLastError();
    numa_node = -1;
  }
  traits->numa_node = numa_node;
  traits->capabilities = static_cast<uint32_t>(DeviceCapability::kSlabs);
  if (properties.canMapHostMemory) {
    traits->capabilities |= static_cast<uint32_t>(DeviceCapability::kKernelsReachHost);
  }
  return kCudaOk;
}

DeviceStatus Allocate(DeviceHandle* handle, DeviceMemory kind, uint64_t byte_count,
                      void** address) {
  const DeviceScope scope(*AsCuda(handle));
  if (scope.status().code != 0) return scope.status();
  if (kind == DeviceMemory::kDevice) return FromRuntime(cudaMalloc(address, byte_count));
  return FromRuntime(
      cudaHostAlloc(address, byte_count, cudaHostAllocPortable | cudaHostAllocMapped));
}

DeviceStatus Deallocate(DeviceHandle* handle, DeviceMemory kind, void* address) {
  const DeviceScope scope(*AsCuda(handle));
  if (scope.status().code != 0) return scope.status();
  return FromRuntime(kind == DeviceMemory::kDevice ? cudaFree(address) : cudaFreeHost(address));
}

DeviceStatus RegisterHost(DeviceHandle* handle, void* address, uint64_t byte_count,
                          void** device_address) {
  const DeviceScope scope(*AsCuda(handle));
  if (scope.status().code != 0) return scope.status();
  const DeviceStatus status = FromRuntime(
      cudaHostRegister(address, byte_count, cudaHostRegisterPortable | cudaHostRegisterMapped));
  if (status.code != 0) return status;
  const DeviceStatus found = FromRuntime(cudaHostGetDevicePointer(device_address, address, 0));
  if (found.code != 0) FromRuntime(cudaHostUnregister(address));
  return found;
}

DeviceStatus UnregisterHost(DeviceHandle* handle, void* address) {
  const DeviceScope scope(*AsCuda(handle));
  if (scope.status().code != 0) return scope.status();
  return FromRuntime(cudaHostUnregister(address));
}

DeviceStatus CreateStream(DeviceHandle* handle, StreamPriority priority, StreamHandle** stream) {
  const DeviceScope scope(*AsCuda(handle));
  if (scope.status().code != 0) return scope.status();
  int lowest = 0;
  int highest = 0;
  DeviceStatus status = FromRuntime(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  if (status.code != 0) return status;
  auto* created = new (std::nothrow) CudaStream{AsCuda(handle)};
  if (created == nullptr) return Refuse(static_cast<int32_t>(StatusCode::kNoSpace), "no memory");
  status = FromRuntime(
      cudaStreamCreateWithPriority(&created->stream, cudaStreamNonBlocking,
                                   priority == StreamPriority::kLoad ? highest : lowest));
  if (status.code != 0) {
    delete created;
    return status;
  }
  *stream = reinterpret_cast<StreamHandle*>(created);
  return kCudaOk;
}

DeviceStatus AdoptStream(DeviceHandle* handle, void* native, StreamHandle** stream) {
  auto* adopted = new (std::nothrow)
      CudaStream{AsCuda(handle), static_cast<cudaStream_t>(native), /*is_adopted=*/true};
  if (adopted == nullptr) return Refuse(static_cast<int32_t>(StatusCode::kNoSpace), "no memory");
  *stream = reinterpret_cast<StreamHandle*>(adopted);
  return kCudaOk;
}

void DestroyStream(StreamHandle* handle) {
  CudaStream* stream = AsCuda(handle);
  if (!stream->is_adopted) {
    const DeviceScope scope(*stream->device);
    FromRuntime(cudaStreamDestroy(stream->stream));
  }
  delete stream;
}

constexpr useconds_t kHostCopyPauseUs = 50;
constexpr DeviceStatus kStillCopying{static_cast<int32_t>(StatusCode::kBusy), 0,
                                     "a CPU is still copying for a device that has failed"};
constexpr DeviceStatus kGivenUp{static_cast<int32_t>(StatusCode::kIo), 0,
                                "the device failed with copies queued: open it anew"};

// The status as whoever may now free what copies read and write is to hear it: no copy is being
// made behind a failure, nor will be, and no event that is behind a copy that was given up is over.
DeviceStatus Judged(const CudaDevice& device, const DeviceStatus& status) {
  HostCopyGate& copies = *device.host_copies;
  if (status.code == static_cast<int32_t>(StatusCode::kIo)) copies.GiveUp();  // else it lives
  if (!copies.is_given_up()) return status;
  if (copies.is_copying()) return kStillCopying;
  return status.code != 0 ? status : kGivenUp;
}

// The same, when what was begun on a device that has failed is over.
DeviceStatus Settled(const CudaDevice& device, const DeviceStatus& status) {
  DeviceStatus judged = Judged(device, status);
  while (judged.what == kStillCopying.what) {
    usleep(kHostCopyPauseUs);
    judged = Judged(device, status);
  }
  return judged;
}

DeviceStatus CreateEvent(DeviceHandle* handle, EventHandle** event) {
  const DeviceScope scope(*AsCuda(handle));
  if (scope.status().code != 0) return Settled(*AsCuda(handle), scope.status());
  auto* created = new (std::nothrow) CudaEvent{AsCuda(handle)};
  if (created == nullptr) return Refuse(static_cast<int32_t>(StatusCode::kNoSpace), "no memory");
  // Who awaits one sleeps: it would otherwise spin.
  const DeviceStatus status = FromRuntime(
      cudaEventCreateWithFlags(&created->event, cudaEventDisableTiming | cudaEventBlockingSync));
  if (status.code != 0) {
    delete created;
    return Settled(*AsCuda(handle), status);
  }
  *event = reinterpret_cast<EventHandle*>(created);
  return kCudaOk;
}

void DestroyEvent(EventHandle* handle) {
  CudaEvent* event = AsCuda(handle);
  {
    const DeviceScope scope(*event->device);
    FromRuntime(cudaEventDestroy(event->event));
  }
  delete event;
}

// Copies that wait for a stream under capture would become nodes of its graph, and run at every
// launch instead of now.
DeviceStatus RefuseCaptured(const CudaStream& stream) {
  if (!stream.is_adopted) return kCudaOk;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream.stream, &capture);
  if (error != cudaErrorStreamCaptureImplicit) {
    const DeviceStatus status = FromRuntime(error);
    if (status.code != 0 || capture == cudaStreamCaptureStatusNone) return status;
  } else {
    cudaGetLastError();
  }
  return Refuse(static_cast<int32_t>(StatusCode::kBusy),
                "the engine's stream is being captured into a graph: copy outside of captures");
}

DeviceStatus RecordEvent(EventHandle* event, StreamHandle* stream) {
  const CudaDevice& device = *AsCuda(event)->device;
  const DeviceScope scope(device);
  if (scope.status().code != 0) return Settled(device, scope.status());
  const DeviceStatus refused = RefuseCaptured(*AsCuda(stream));
  if (refused.code != 0) return Settled(device, refused);
  const DeviceStatus recorded =
      FromRuntime(cudaEventRecord(AsCuda(event)->event, AsCuda(stream)->stream));
  const DeviceStatus status = Settled(device, recorded);
  // Nobody awaits an event that was refused: what is before it has to be over.
  if (recorded.code == 0 && status.code != 0) cudaEventSynchronize(AsCuda(event)->event);
  return status;
}

DeviceStatus WaitEvent(StreamHandle* stream, EventHandle* event, StreamEdge /*edge*/) {
  const DeviceScope scope(*AsCuda(event)->device);
  if (scope.status().code != 0) return scope.status();
  const DeviceStatus refused = RefuseCaptured(*AsCuda(stream));
  if (refused.code != 0) return refused;
  return FromRuntime(cudaStreamWaitEvent(AsCuda(stream)->stream, AsCuda(event)->event, 0));
}

DeviceStatus QueryEvent(EventHandle* event) {
  const CudaDevice& device = *AsCuda(event)->device;
  const DeviceScope scope(device);
  return Judged(device, scope.status().code != 0
                            ? scope.status()
                            : FromRuntime(cudaEventQuery(AsCuda(event)->event)));
}

DeviceStatus AwaitEvent(EventHandle* event) {
  const CudaDevice& device = *AsCuda(event)->device;
  const DeviceScope scope(device);
  if (scope.status().code != 0) return Settled(device, scope.status());
  return Settled(device, FromRuntime(cudaEventSynchronize(AsCuda(event)->event)));
}

constexpr DeviceOps kOps = {
    sizeof(DeviceOps), kDeviceAbiVersion, "cuda",       CountDevices, OpenDevice,     CloseDevice,
    DescribeDevice,    Allocate,          Deallocate,   RegisterHost, UnregisterHost, CreateSlab,
    MapSlab,           UnmapSlab,         CreateStream, AdoptStream,  DestroyStream,  CreateEvent,
    DestroyEvent,      RecordEvent,       WaitEvent,    QueryEvent,   AwaitEvent,     CopyBatch,
    CopyPaged,         &kCodecOps,
};

}  // namespace
}  // namespace terrace::cuda

extern "C" __attribute__((visibility("default"))) const terrace::DeviceOps* terrace_device_plugin(
    uint32_t abi_version) {
  return abi_version == terrace::kDeviceAbiVersion ? &terrace::cuda::kOps : nullptr;
}

// What the parts of the CUDA plugin share. Needs no CUDA header, so that any compiler can read it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "cuda/abi/device.h"

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;

namespace terrace::cuda {

// Of a device's copies within the host, which CPUs make for its streams. A device that fails says
// so at once, while some are queued, and one perhaps inside memcpy: whoever hears of it may then
// free what they read and write. So the queued ones are given up, and the device's handle with
// them: an event behind a copy that was not made must not say that it was.
class HostCopyGate {
 public:
  // Of a copy, in order. Enter: whether it may be made; if so, Leave follows.
  void Queue() { queued_.fetch_add(1); }
  void Dequeue() { queued_.fetch_sub(1); }
  bool Enter() {
    if ((word_.fetch_add(1) & kGivenUp) == 0) return true;
    Leave();
    return false;
  }
  void Leave() { word_.fetch_sub(1); }

  // Gives up what is queued, if there is any. No copy begins any more after that.
  void GiveUp() {
    if (queued_.load() > 0) word_.fetch_or(kGivenUp);
  }
  bool is_given_up() const { return (word_.load() & kGivenUp) != 0; }
  bool is_copying() const { return (word_.load() & ~kGivenUp) != 0; }

 private:
  static constexpr uint32_t kGivenUp = 1u << 31;
  std::atomic<uint32_t> word_{0};    // copies that are being made, and whether all else is given up
  std::atomic<uint32_t> queued_{0};  // from before the stream has them until they are over
};

struct CudaDevice {
  int ordinal = 0;
  // Shared with each copy: a stream may come to it when the handle is closed.
  std::shared_ptr<HostCopyGate> host_copies;
  // Its primary context, from the first DeviceScope on: the daemon has none. Never released.
  mutable std::atomic<CUctx_st*> context{nullptr};
};

struct CudaStream {
  CudaDevice* device = nullptr;
  CUstream_st* stream = nullptr;
  bool is_adopted = false;  // the engine's: not ours to destroy
};

struct CudaEvent {
  CudaDevice* device = nullptr;
  CUevent_st* event = nullptr;
};

inline CudaDevice* AsCuda(DeviceHandle* handle) { return reinterpret_cast<CudaDevice*>(handle); }
inline CudaStream* AsCuda(StreamHandle* handle) { return reinterpret_cast<CudaStream*>(handle); }
inline CudaEvent* AsCuda(EventHandle* handle) { return reinterpret_cast<CudaEvent*>(handle); }

// A cudaError_t as a status; takes the error off the thread, so that it does not come up again in a
// call of the engine.
DeviceStatus FromRuntime(int cuda_error);
// A CUresult.
DeviceStatus FromDriver(int driver_error);

extern const CodecOps kCodecOps;

inline constexpr DeviceStatus kCudaOk{};
DeviceStatus Refuse(int32_t status_code, const char* what);

// The calling thread works on this device until the end of the scope, and may do so while another
// thread of the engine captures a graph; what was before is put back. By the driver's stack of
// contexts, not by cudaSetDevice: a new thread's device is 0, and both cudaSetDevice, to put that
// back, and cudaThreadExchangeStreamCaptureMode make a context there, of half a GiB.
class DeviceScope {
 public:
  explicit DeviceScope(const CudaDevice& device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  const DeviceStatus& status() const { return status_; }

 private:
  int previous_capture_mode_ = 0;
  bool is_pushed_ = false;
  bool has_capture_mode_ = false;
  DeviceStatus status_;
};

// A function of the driver, as it was at `cuda_version`; nullptr where the driver has none.
void* DriverFunction(const char* name, uint32_t cuda_version);

DeviceStatus CreateSlab(DeviceHandle* device, uint64_t byte_count, int32_t* fd);
DeviceStatus MapSlab(DeviceHandle* device, int32_t fd, uint64_t byte_count, SlabAccess access,
                     void** address);
DeviceStatus UnmapSlab(DeviceHandle* device, void* address, uint64_t byte_count);
DeviceStatus CopyBatch(StreamHandle* stream, CopyDirection direction, const CopyPiece* pieces,
                       uint32_t piece_count);
DeviceStatus CopyPaged(StreamHandle* stream, const PagedLaunch* launch);

}  // namespace terrace::cuda

// A device that is open, and what can be held of it: streams, events, memory. Each is given back
// when its owner goes; none outlives its Device.
//
// THREADING: as device.h says. Nothing here throws.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "cuda/abi/device.h"
#include "cuda/abi/device_status.h"
#include "cuda/kernels/codec_device.h"
#include "terrace/status.h"

namespace terrace {

class Device {
 public:
  static Result<Device> Open(const DeviceOps& ops, const DeviceOpenOptions& options = {});
  // Takes an open device, as tests make them.
  Device(const DeviceOps& ops, DeviceHandle* handle) : ops_(&ops), handle_(handle) {}
  Device(Device&& other) noexcept
      : ops_(other.ops_), handle_(std::exchange(other.handle_, nullptr)) {}
  Device& operator=(Device&&) = delete;
  ~Device();

  const DeviceOps& ops() const { return *ops_; }
  DeviceHandle* handle() const { return handle_; }
  Result<DeviceTraits> Describe() const;

 private:
  const DeviceOps* ops_;
  DeviceHandle* handle_;
};

class Event;

class Stream {
 public:
  static Result<Stream> Create(const Device& device, StreamPriority priority);
  // The engine's own; stays the engine's.
  static Result<Stream> Adopt(const Device& device, void* native);
  Stream(Stream&& other) noexcept
      : ops_(other.ops_), handle_(std::exchange(other.handle_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;
  ~Stream();

  StreamHandle* handle() const { return handle_; }
  Status Wait(const Event& event, StreamEdge edge);
  Status Copy(CopyDirection direction, std::span<const CopyPiece> pieces);
  Status Copy(const PagedLaunch& launch);
  // kUnsupported where the device has no codecs.
  Status Encode(const CodecLaunch& launch);
  Status Decode(const CodecLaunch& launch);

 private:
  Stream(const DeviceOps& ops, StreamHandle* handle) : ops_(&ops), handle_(handle) {}

  const DeviceOps* ops_;
  StreamHandle* handle_;
};

class Event {
 public:
  static Result<Event> Create(const Device& device);
  Event(Event&& other) noexcept
      : ops_(other.ops_), handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event();

  EventHandle* handle() const { return handle_; }
  Status Record(Stream& stream);
  // kOk: reached; kBusy: not yet; else what went wrong before it.
  Status Query() const;
  Status Await() const;
  // Waits until nothing that is queued on `stream` is under way: where memory is short for that, it
  // is recorded again. A device that refuses otherwise runs nothing any more, and says why.
  Status AwaitAll(Stream& stream);

 private:
  Event(const DeviceOps& ops, EventHandle* handle) : ops_(&ops), handle_(handle) {}

  const DeviceOps* ops_;
  EventHandle* handle_;
};

// Memory of the device, or pinned memory of the host.
class DeviceBuffer {
 public:
  static Result<DeviceBuffer> Allocate(const Device& device, DeviceMemory kind,
                                       uint64_t byte_count);
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : device_(other.device_),
        kind_(other.kind_),
        address_(std::exchange(other.address_, nullptr)),
        byte_count_(other.byte_count_) {}
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  // REQUIRES: no stream uses it any more.
  ~DeviceBuffer();

  std::byte* address() const { return static_cast<std::byte*>(address_); }
  uint64_t byte_count() const { return byte_count_; }

 private:
  DeviceBuffer(const Device& device, DeviceMemory kind, void* address, uint64_t byte_count)
      : device_(&device), kind_(kind), address_(address), byte_count_(byte_count) {}

  const Device* device_;
  DeviceMemory kind_;
  void* address_;
  uint64_t byte_count_;
};

}  // namespace terrace

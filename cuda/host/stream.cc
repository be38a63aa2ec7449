#include "cuda/host/stream.h"

#include <chrono>
#include <thread>

namespace terrace {

Result<Device> Device::Open(const DeviceOps& ops, const DeviceOpenOptions& options) {
  DeviceHandle* handle = nullptr;
  TERRACE_RETURN_IF_ERROR(FromDeviceStatus(ops.open_device(&options, &handle)));
  return Device(ops, handle);
}

Device::~Device() {
  if (handle_ != nullptr) ops_->close_device(handle_);
}

Result<DeviceTraits> Device::Describe() const {
  DeviceTraits traits;
  TERRACE_RETURN_IF_ERROR(FromDeviceStatus(ops_->describe_device(handle_, &traits)));
  return traits;
}

Result<Stream> Stream::Create(const Device& device, StreamPriority priority) {
  StreamHandle* handle = nullptr;
  TERRACE_RETURN_IF_ERROR(
      FromDeviceStatus(device.ops().create_stream(device.handle(), priority, &handle)));
  return Stream(device.ops(), handle);
}

Result<Stream> Stream::Adopt(const Device& device, void* native) {
  StreamHandle* handle = nullptr;
  TERRACE_RETURN_IF_ERROR(
      FromDeviceStatus(device.ops().adopt_stream(device.handle(), native, &handle)));
  return Stream(device.ops(), handle);
}

Stream::~Stream() {
  if (handle_ != nullptr) ops_->destroy_stream(handle_);
}

Status Stream::Wait(const Event& event, StreamEdge edge) {
  return FromDeviceStatus(ops_->wait_event(handle_, event.handle(), edge));
}

Status Stream::Copy(CopyDirection direction, std::span<const CopyPiece> pieces) {
  return FromDeviceStatus(
      ops_->copy_batch(handle_, direction, pieces.data(), static_cast<uint32_t>(pieces.size())));
}

Status Stream::Copy(const PagedLaunch& launch) {
  return FromDeviceStatus(ops_->copy_paged(handle_, &launch));
}

namespace {

constexpr Status kNoCodecs(StatusCode::kUnsupported, "this device has no codecs");

}  // namespace

Status Stream::Encode(const CodecLaunch& launch) {
  if (ops_->codecs == nullptr) return kNoCodecs;
  return FromDeviceStatus(ops_->codecs->encode(handle_, &launch));
}

Status Stream::Decode(const CodecLaunch& launch) {
  if (ops_->codecs == nullptr) return kNoCodecs;
  return FromDeviceStatus(ops_->codecs->decode(handle_, &launch));
}

Result<Event> Event::Create(const Device& device) {
  EventHandle* handle = nullptr;
  TERRACE_RETURN_IF_ERROR(FromDeviceStatus(device.ops().create_event(device.handle(), &handle)));
  return Event(device.ops(), handle);
}

Event::~Event() {
  if (handle_ != nullptr) ops_->destroy_event(handle_);
}

Status Event::Record(Stream& stream) {
  return FromDeviceStatus(ops_->record_event(handle_, stream.handle()));
}

Status Event::Query() const { return FromDeviceStatus(ops_->query_event(handle_)); }

Status Event::Await() const { return FromDeviceStatus(ops_->await_event(handle_)); }

Status Event::AwaitAll(Stream& stream) {
  constexpr std::chrono::milliseconds kRecordPause{1};
  Status recorded = Record(stream);
  while (recorded.code() == StatusCode::kNoSpace) {
    std::this_thread::sleep_for(kRecordPause);
    recorded = Record(stream);
  }
  return recorded.ok() ? Await() : recorded;
}

Result<DeviceBuffer> DeviceBuffer::Allocate(const Device& device, DeviceMemory kind,
                                            uint64_t byte_count) {
  void* address = nullptr;
  TERRACE_RETURN_IF_ERROR(
      FromDeviceStatus(device.ops().allocate(device.handle(), kind, byte_count, &address)));
  return DeviceBuffer(device, kind, address, byte_count);
}

DeviceBuffer::~DeviceBuffer() {
  if (address_ != nullptr) (void)device_->ops().deallocate(device_->handle(), kind_, address_);
}

}  // namespace terrace

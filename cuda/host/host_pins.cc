#include "cuda/host/host_pins.h"

#include <mutex>
#include <new>

#include "cuda/abi/device_status.h"

namespace terrace {

HostPins::~HostPins() {
  while (!ranges_.empty()) Unregister(const_cast<std::byte*>(ranges_.begin()->first));
}

Status HostPins::Register(std::byte* address, uint64_t byte_count) {
  if (pinned_bytes_.fetch_add(byte_count) + byte_count > pinned_bytes_max_) {
    pinned_bytes_.fetch_sub(byte_count);
    return Status(StatusCode::kNoSpace, "pinned_bytes_max is registered");
  }
  void* device_address = nullptr;
  Status status = FromDeviceStatus(
      device_->ops().register_host(device_->handle(), address, byte_count, &device_address));
  if (status.ok()) {
    try {
      const std::unique_lock lock(mutex_);
      ranges_[address] = {byte_count, static_cast<std::byte*>(device_address)};
      return status;
    } catch (const std::bad_alloc&) {
      (void)device_->ops().unregister_host(device_->handle(), address);
      status = Status(StatusCode::kNoSpace, "no memory to remember a registered range");
    }
  }
  pinned_bytes_.fetch_sub(byte_count);
  failed_count_.fetch_add(1);
  return status;
}

void HostPins::Unregister(std::byte* address) {
  uint64_t byte_count = 0;
  {
    const std::unique_lock lock(mutex_);
    const auto found = ranges_.find(address);
    if (found == ranges_.end()) return;
    byte_count = found->second.byte_count;
    ranges_.erase(found);
  }
  // Where the device refuses there is nothing left to try: what is unmapped next it cannot use.
  (void)device_->ops().unregister_host(device_->handle(), address);
  pinned_bytes_.fetch_sub(byte_count);
}

std::byte* HostPins::DeviceAddress(const std::byte* address, uint64_t byte_count) const {
  const std::shared_lock lock(mutex_);
  auto range = ranges_.upper_bound(address);
  if (range == ranges_.begin()) return nullptr;
  --range;
  const auto offset_bytes = static_cast<uint64_t>(address - range->first);
  const uint64_t range_bytes = range->second.byte_count;
  if (offset_bytes > range_bytes || byte_count > range_bytes - offset_bytes) return nullptr;
  return range->second.device_address + offset_bytes;
}

void HostPins::CountCopied(uint64_t straight_bytes, uint64_t bounced_bytes) {
  straight_bytes_.fetch_add(straight_bytes, std::memory_order_relaxed);
  bounced_bytes_.fetch_add(bounced_bytes, std::memory_order_relaxed);
}

HostPins::Counts HostPins::counts() const {
  return {.pinned_bytes = pinned_bytes_.load(),
          .pinned_bytes_max = pinned_bytes_max_,
          .straight_bytes = straight_bytes_.load(),
          .bounced_bytes = bounced_bytes_.load(),
          .failed_count = failed_count_.load()};
}

}  // namespace terrace

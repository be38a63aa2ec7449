// HostPins: which of the host's memory a device reaches by itself, because it is registered
// ("pinned"). Whoever maps memory registers it here and takes it out before it is unmapped; who
// copies asks here, and takes what is not registered through pinned memory of its own.
//
// A range that was answered stays registered as long as its user holds it: a slot's lease keeps its
// segment mapped, and nobody takes a segment out that is leased.
//
// THREADING: any thread; Register and Unregister of one range by one thread at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>

#include "cuda/host/stream.h"
#include "terrace/status.h"

namespace terrace {

class HostPins {
 public:
  // At most `pinned_bytes_max` at a time; 0: nothing is ever registered.
  HostPins(std::shared_ptr<const Device> device, uint64_t pinned_bytes_max)
      : device_(std::move(device)), pinned_bytes_max_(pinned_bytes_max) {}
  ~HostPins();
  HostPins(const HostPins&) = delete;
  HostPins& operator=(const HostPins&) = delete;

  // May take long. kNoSpace above pinned_bytes_max; else what the device says, which is counted.
  Status Register(std::byte* address, uint64_t byte_count);
  // REQUIRES: no copy of the device's touches it any more. Nothing if it is not registered.
  void Unregister(std::byte* address);

  // Where kernels reach these bytes; nullptr if they do not lie in one registered range.
  std::byte* DeviceAddress(const std::byte* address, uint64_t byte_count) const;

  void CountCopied(uint64_t straight_bytes, uint64_t bounced_bytes);

  struct Counts {
    uint64_t pinned_bytes = 0;
    uint64_t pinned_bytes_max = 0;
    uint64_t straight_bytes = 0;  // that copies moved from and to registered memory
    uint64_t bounced_bytes = 0;   // and through pinned memory of their own
    uint32_t failed_count = 0;    // of Register, by the device
  };
  Counts counts() const;
  const Device& device() const { return *device_; }

 private:
  struct Range {
    uint64_t byte_count = 0;
    std::byte* device_address = nullptr;
  };

  const std::shared_ptr<const Device> device_;
  const uint64_t pinned_bytes_max_;
  mutable std::shared_mutex mutex_;
  std::map<const std::byte*, Range> ranges_;  // by address
  std::atomic<uint64_t> pinned_bytes_{0};     // with what is being registered
  std::atomic<uint64_t> straight_bytes_{0};
  std::atomic<uint64_t> bounced_bytes_{0};
  std::atomic<uint32_t> failed_count_{0};
};

}  // namespace terrace

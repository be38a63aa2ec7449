// The `sim` backend of tests: a device whose streams run when a seed says so.
//
// Nothing runs by itself. At every call of the host, and while the host waits, the seed picks a few
// streams and runs one shard of the head of each, shards in any order: copies are late, interleaved
// and half done in ways that a GPU shows only under load. Memory is poisoned when it is given out
// and when it comes back, copies and registrations fail when asked to, one kind of edge can be left
// out, and a copy to host memory that is not registered when it runs, as a GPU would do it, is
// seen.
//
// THREADING: one thread. One seed gives one schedule.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "cuda/abi/device.h"
#include "cuda/host/stream_queues.h"

namespace terrace {

inline constexpr std::byte kSimPoison{0xDB};

struct SimDeviceOptions {
  uint64_t seed = 1;
  uint32_t steps_per_call_max = 3;         // how far the device may get during one call
  uint32_t copy_failures_per_million = 0;  // shards of copies that fail and copy nothing
  uint32_t store_slowness = 1;             // one in so many of the stores' turns is taken
  std::optional<StreamEdge> dropped_edge;  // waits of this kind are left out
  uint32_t registration_failures_per_million = 0;
  uint32_t failing_registration = 0;  // the so many-th that is tried fails; 0: none does
  // Copies between device and host touch no memory of the host but pinned and registered.
  bool needs_registration = false;
  std::array<uint8_t, kDeviceUuidBytes> uuid = {};
};

class SimDevice {
 public:
  explicit SimDevice(const SimDeviceOptions& options);
  SimDevice(const SimDevice&) = delete;
  SimDevice& operator=(const SimDevice&) = delete;

  // For `Device(SimDeviceOps(), sim.handle())`; closing it does nothing, the test owns the device.
  DeviceHandle* handle() { return reinterpret_cast<DeviceHandle*>(this); }

  // A kernel of the engine's: `shard` is called for each index below shard_count, in any order.
  void Launch(StreamHandle* stream, uint32_t shard_count, std::function<void(uint32_t)> shard);
  // Runs one shard; false where nothing can run.
  bool Step();
  // Runs all that can run.
  void Settle();

  uint64_t step_count() const { return step_count_; }
  uint64_t failure_count() const { return failure_count_; }
  uint32_t allocation_count() const { return static_cast<uint32_t>(allocations_.size()); }
  uint32_t registrations_tried() const { return registrations_tried_; }
  uint32_t registration_count() const { return static_cast<uint32_t>(registrations_.size()); }
  // Pieces that touched memory which the device does not reach so. With needs_registration.
  uint64_t stray_count() const { return stray_count_; }

 private:
  friend struct SimCalls;

  using Ranges = std::map<const void*, uint64_t>;
  struct Running {
    StreamQueues::Stream* stream;
    const StreamWork* work;
    std::vector<uint32_t> shards;  // not run yet
    Status status;
  };

  uint64_t Random(uint64_t bound) { return random_() % bound; }
  void Drift();  // what happens on the device during a call of the host
  bool LetsOthersPass(const StreamQueues::Stream* stream, size_t choice_count);
  bool FailsNow();
  bool FailsToRegister();
  bool IsWithin(const Ranges& ranges, const void* address, uint64_t byte_count) const;
  // Of a copy's end in the host; what a kernel touches may lie in a slab, too.
  void CheckCopyReach(const void* host, uint64_t byte_count);
  void CheckKernelReach(const void* address, uint64_t byte_count);

  const SimDeviceOptions options_;
  std::mt19937_64 random_;
  StreamQueues queues_;
  std::vector<Running> running_;
  std::set<const StreamQueues::Stream*> store_streams_;
  Ranges allocations_;
  Ranges registrations_;
  Ranges slabs_;  // mapped
  uint32_t registrations_tried_ = 0;
  uint64_t stray_count_ = 0;
  uint64_t step_count_ = 0;
  uint64_t failure_count_ = 0;
};

const DeviceOps& SimDeviceOps();

}  // namespace terrace

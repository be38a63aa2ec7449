// OrderLane: the stream of a device on which work orders are carried out, one slice at a time, and
// pinned memory for what passes the host: the arena's bytes where the device does not reach them,
// and the device's when they are read back. Nothing here waits but the destructor.
//
// A slice ends once: when Poll has answered something else than kBusy, nothing of it touches memory
// any more. After an error the lane is of no more use.
//
// THREADING: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cuda/host/stream.h"
#include "terrace/status.h"

namespace terrace::client {

inline constexpr uint64_t kOrderSliceBytes = 1 << 20;  // some 100 µs to copy or hash

// A piece of both slots of an order.
struct OrderSlice {
  std::byte* in_device = nullptr;
  std::byte* in_arena = nullptr;
  uint64_t byte_count = 0;        // at most kOrderSliceBytes
  bool is_arena_reached = false;  // by the device, for as long as the slice is under way
};

class OrderLane {
 public:
  static Result<std::unique_ptr<OrderLane>> Create(std::shared_ptr<const Device> device);
  // Waits for the slice under way.
  ~OrderLane();
  OrderLane(const OrderLane&) = delete;
  OrderLane& operator=(const OrderLane&) = delete;

  // Queues a slice: what cannot be queued is what Poll will say. REQUIRES: none is under way.
  // Arena to device, and from there to memory of the lane's.
  void Promote(const OrderSlice& slice);
  // Device to arena.
  void Demote(const OrderSlice& slice);
  // kBusy: under way. Else how it ended.
  Status Poll();

  // What the device held of the slice promoted last, until the slice after the next is queued.
  std::span<const std::byte> read_back() const {
    return {read_back_[turn_].address(), read_back_bytes_};
  }

 private:
  OrderLane(std::shared_ptr<const Device> device, Stream stream, Event event, DeviceBuffer bounce,
            DeviceBuffer even, DeviceBuffer odd);
  void Queue(CopyDirection direction, std::byte* to, const std::byte* from, uint64_t byte_count);
  void Record();

  const std::shared_ptr<const Device> device_;
  Stream stream_;
  Event event_;
  DeviceBuffer bounce_;
  DeviceBuffer read_back_[2];
  uint32_t turn_ = 0;
  uint64_t read_back_bytes_ = 0;
  Status queued_;            // the first refusal of the slice under way
  bool is_recorded_ = true;  // its end, by event_
};

}  // namespace terrace::client

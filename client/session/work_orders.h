// WorkOrders: the copies between a device's memory and the arena that the daemon has this process
// make. A stream of the device makes them, a slice at a time; the background thread queues slices,
// looks for their ends and hashes what was read back between its other duties, so that no caller
// waits for an order and answers are read meanwhile. Each ends with exactly one OrderDone, after
// the last byte was touched, unless its connection has ended: then the daemon waits for the end of
// the Attachment, which an order holds as long as it touches memory.
//
// THREADING: Push by the reader of the connection; the rest by the background thread.
// LIMITS: kOrdersMax; what comes beyond is answered at once that it cannot be.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/arena/attachment.h"
#include "client/arena/order_lane.h"
#include "client/link/timed_lock.h"
#include "client/session/arena_pins.h"
#include "client/session/connection.h"
#include "terrace/checksum.h"
#include "terrace/protocol_device.h"
#include "terrace/space.h"

namespace terrace::client {

inline constexpr uint32_t kOrdersMax = 64;
inline constexpr uint64_t kOrderPollUs = 50;  // between two looks for a slice's end

class WorkOrders {
 public:
  WorkOrders(Connection& connection, const ArenaPins& pins)
      : connection_(connection), pins_(pins) {}

  // Null, or what is wrong with the message. May throw std::bad_alloc.
  const char* Push(std::span<const std::byte> body, uint32_t connection,
                   const std::shared_ptr<Attachment>& attachment);
  // Goes on as far as it can without waiting. When it wants to be called again: at once for 0,
  // kNever if there is nothing to do before the next Push.
  uint64_t Step();
  // The connection they came on is gone: nothing of them is begun any more, and Step sees the end
  // of what is under way.
  void Drop();
  // The same, and waits for what is under way. Nothing may follow.
  void Close();

 private:
  struct Order {
    protocol::WorkOrder told;
    std::vector<uint64_t> part_bytes;
    std::vector<Checksum> checksums;  // of the parts that were read back
    std::shared_ptr<Attachment> attachment;
    std::vector<uint32_t> segments;  // retained
    uint32_t connection = 0;
    uint64_t deadline_us = 0;
    uint64_t copied_bytes = 0;
    uint64_t slice_bytes = 0;        // under way
    uint64_t part_offset_bytes = 0;  // of the part that is hashed next, or now
  };

  std::optional<Order> Next();
  Status Begin(Order& order);
  Status MakeLane(std::shared_ptr<const Device> device);
  void CopySlice(Order& order);
  void HashSlice(Order& order, std::span<const std::byte> slice, uint64_t offset_bytes);
  uint64_t End(Status status);
  void Answer(Order& order, Status status);
  void LetGo(Order& order);

  Connection& connection_;
  const ArenaPins& pins_;
  std::unique_ptr<OrderLane> lane_;  // while there is none, or it has failed: the next order's
  std::optional<Order> current_;
  std::optional<ChecksumStream> checksum_;  // of the part that is hashed
  TimedLock lock_;
  std::deque<Order> waiting_;  // guarded by lock_
};

}  // namespace terrace::client

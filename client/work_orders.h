// WorkOrders: the copies between a device's memory and the arena that the daemon has this process
// make. They are made on the background thread, a slice at a time between its other duties, so that
// no caller waits for one and answers are read meanwhile. Each ends with exactly one OrderDone,
// after the last byte was touched, unless its connection has ended: then the daemon waits for the
// end of the Attachment, which an order holds as long as it touches memory.
//
// THREADING: Push by the reader of the connection; the rest by the background thread.
// LIMITS: kOrdersMax; what comes beyond is answered at once that it cannot be.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "client/attachment.h"
#include "client/timed_lock.h"
#include "terrace/checksum.h"
#include "terrace/protocol_device.h"
#include "terrace/space.h"

namespace terrace::client {

class Core;

inline constexpr uint32_t kOrdersMax = 64;
inline constexpr uint64_t kOrderSliceBytes = 1 << 20;  // some 100 µs

class WorkOrders {
 public:
  explicit WorkOrders(Core& core) : core_(core) {}

  // Null, or what is wrong with the message. May throw std::bad_alloc.
  const char* Push(std::span<const std::byte> body, uint32_t connection,
                   const std::shared_ptr<Attachment>& attachment);
  // Does one slice. True if there is more to do.
  bool Step();
  // The connection they came on is gone: nothing of them is touched any more.
  void Drop();

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
    // Of the part that is read back: where it begins, and how far it is hashed.
    uint64_t part_offset_bytes = 0;
    uint64_t hashed_bytes = 0;
    std::unique_ptr<ChecksumStream> checksum;
  };

  std::optional<Order> Next();
  static Status Begin(Order& order);
  // True once the order has nothing left to do.
  static bool Work(Order& order);
  static void HashSlice(Order& order);
  void Answer(Order& order, Status status);
  void LetGo(Order& order);

  Core& core_;
  std::optional<Order> current_;
  TimedLock lock_;
  std::deque<Order> waiting_;  // guarded by lock_
};

}  // namespace terrace::client

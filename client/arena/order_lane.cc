#include "client/arena/order_lane.h"

#include <utility>

namespace terrace::client {

Result<std::unique_ptr<OrderLane>> OrderLane::Create(std::shared_ptr<const Device> device) {
  // Orders give way to the engine's loads.
  Result<Stream> stream = Stream::Create(*device, StreamPriority::kStore);
  if (!stream.ok()) return stream.status();
  Result<Event> event = Event::Create(*device);
  if (!event.ok()) return event.status();
  const auto pinned = [&device] {
    return DeviceBuffer::Allocate(*device, DeviceMemory::kPinned, kOrderSliceBytes);
  };
  Result<DeviceBuffer> bounce = pinned();
  if (!bounce.ok()) return bounce.status();
  Result<DeviceBuffer> even = pinned();
  if (!even.ok()) return even.status();
  Result<DeviceBuffer> odd = pinned();
  if (!odd.ok()) return odd.status();
  return std::unique_ptr<OrderLane>(
      new OrderLane(std::move(device), std::move(stream).value(), std::move(event).value(),
                    std::move(bounce).value(), std::move(even).value(), std::move(odd).value()));
}

OrderLane::OrderLane(std::shared_ptr<const Device> device, Stream stream, Event event,
                     DeviceBuffer bounce, DeviceBuffer even, DeviceBuffer odd)
    : device_(std::move(device)),
      stream_(std::move(stream)),
      event_(std::move(event)),
      bounce_(std::move(bounce)),
      read_back_{std::move(even), std::move(odd)} {}

OrderLane::~OrderLane() {
  // What the event does not stand behind is not known to have ended.
  (void)(is_recorded_ ? event_.Await() : event_.AwaitAll(stream_));
}

void OrderLane::Promote(const OrderSlice& slice) {
  queued_ = Status::Ok();
  const std::byte* from = slice.in_arena;
  if (!slice.is_arena_reached) {
    Queue(CopyDirection::kWithinHost, bounce_.address(), from, slice.byte_count);
    from = bounce_.address();
  }
  turn_ ^= 1;
  read_back_bytes_ = slice.byte_count;
  Queue(CopyDirection::kToDevice, slice.in_device, from, slice.byte_count);
  Queue(CopyDirection::kToHost, read_back_[turn_].address(), slice.in_device, slice.byte_count);
  Record();
}

void OrderLane::Demote(const OrderSlice& slice) {
  queued_ = Status::Ok();
  std::byte* const to = slice.is_arena_reached ? slice.in_arena : bounce_.address();
  Queue(CopyDirection::kToHost, to, slice.in_device, slice.byte_count);
  if (!slice.is_arena_reached) {
    Queue(CopyDirection::kWithinHost, slice.in_arena, to, slice.byte_count);
  }
  Record();
}

Status OrderLane::Poll() {
  if (!is_recorded_) {
    Record();
    return Status(StatusCode::kBusy, "its end is not recorded yet");
  }
  const Status ended = event_.Query();
  if (ended.code() == StatusCode::kBusy || queued_.ok()) return ended;
  return queued_;
}

void OrderLane::Queue(CopyDirection direction, std::byte* to, const std::byte* from,
                      uint64_t byte_count) {
  if (!queued_.ok()) return;
  const CopyPiece piece{to, from, byte_count};
  queued_ = stream_.Copy(direction, {&piece, 1});
}

// Where memory is short for it, it is tried again: what was queued is under way until its end has
// been seen. A device that refuses otherwise runs nothing any more.
void OrderLane::Record() {
  const Status recorded = event_.Record(stream_);
  is_recorded_ = recorded.code() != StatusCode::kNoSpace;
  if (queued_.ok() && is_recorded_) queued_ = recorded;
}

}  // namespace terrace::client

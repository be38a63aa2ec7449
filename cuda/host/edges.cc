#include "cuda/host/edges.h"

#include <algorithm>

namespace terrace {

Result<Event*> EventPool::Take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    if (events_.size() >= event_count_max_) {
      return Status(StatusCode::kBusy, "too many copies under way: all events are in use");
    }
    // So that Give takes no memory.
    if (free_.capacity() <= events_.size()) free_.reserve(2 * events_.size() + 1);
    Result<Event> created = Event::Create(device_);
    if (!created.ok()) return created.status();
    events_.push_back(std::make_unique<Event>(std::move(created).value()));
    return events_.back().get();
  }
  Event* event = free_.back();
  free_.pop_back();
  return event;
}

void EventPool::Give(Event* event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

uint32_t EventPool::taken_count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(events_.size() - free_.size());
}

Result<PooledEvent> PooledEvent::After(EventPool& pool, Stream& stream) {
  const Result<Event*> event = pool.Take();
  if (!event.ok()) return event.status();
  PooledEvent pooled(&pool, event.value());
  TERRACE_RETURN_IF_ERROR(event.value()->Record(stream));
  return pooled;
}

Result<KvWritten> KvWritten::After(EventPool& pool, Stream& engine_stream) {
  Result<PooledEvent> event = PooledEvent::After(pool, engine_stream);
  if (!event.ok()) return event.status();
  return KvWritten(std::move(event).value());
}

Status KvWritten::Gate(Stream& copies) const {
  return event_ ? copies.Wait(event_->event(), StreamEdge::kKvWritten) : Status::Ok();
}

Result<DestinationFree> DestinationFree::After(EventPool& pool, Stream& engine_stream) {
  Result<PooledEvent> event = PooledEvent::After(pool, engine_stream);
  if (!event.ok()) return event.status();
  return DestinationFree(std::move(event).value());
}

Status DestinationFree::Gate(Stream& copies) const {
  return event_ ? copies.Wait(event_->event(), StreamEdge::kDestinationFree) : Status::Ok();
}

PageReuse::~PageReuse() {
  if (event_.is_held() && !is_taken_) (void)event_.event().Await();
}

Status PageReuse::Gate(Stream& engine_stream) {
  TERRACE_RETURN_IF_ERROR(engine_stream.Wait(event_.event(), StreamEdge::kPageReuse));
  is_taken_ = true;
  return Status::Ok();
}

Status PageReuse::AwaitOnHost() {
  is_taken_ = true;
  return event_.event().Await();
}

LayerReady::~LayerReady() {
  // Events are of one stream: the last one's being reached is all of them being reached.
  const bool is_owed = taken_count_ < events_.size() || is_end_awaited_;
  if (is_owed && !events_.empty()) (void)events_.back().event().Await();
}

Status LayerReady::Gate(uint32_t layer, Stream& engine_stream) {
  const uint32_t index = layer / layers_per_event_;
  if (index >= events_.size()) return Status(StatusCode::kInvalid, "layer: past the last one");
  TERRACE_RETURN_IF_ERROR(engine_stream.Wait(events_[index].event(), StreamEdge::kLayerReady));
  taken_count_ = std::max(taken_count_, index + 1);
  return Status::Ok();
}

Status LayerReady::AwaitOnHost(uint32_t layer) {
  const uint32_t index = layer / layers_per_event_;
  if (index >= events_.size()) return Status(StatusCode::kInvalid, "layer: past the last one");
  taken_count_ = std::max(taken_count_, index + 1);
  return events_[index].event().Await();
}

Status LayerReady::Query() {
  const Status status = events_.back().event().Query();
  if (status.code() == StatusCode::kBusy) return status;
  taken_count_ = static_cast<uint32_t>(events_.size());
  is_end_awaited_ = false;
  return status;
}

SlotsDone::~SlotsDone() {
  if (event_.is_held() && !is_seen_) (void)event_.event().Await();
}

Status SlotsDone::Query() {
  const Status status = event_.event().Query();
  if (status.code() != StatusCode::kBusy) is_seen_ = true;
  return status;
}

Status SlotsDone::AwaitOnHost() {
  is_seen_ = true;
  return event_.event().Await();
}

}  // namespace terrace

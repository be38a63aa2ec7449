// The four orderings between an engine's kernels and our copies, as types. A copy takes two and
// gives two, so none can be left out; docs/DEVICE.md says what each prevents.
//
// What a copy gives must be taken: dropped, it waits for the copy on the host. Forgetting an edge
// is slow, never wrong.
//
// OWNERSHIP: events come from a pool that outlives all edges made from it.
// THREADING: an edge is one thread's at a time; the pool is any thread's.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/host/stream.h"
#include "terrace/status.h"

namespace terrace {

// Events to be used again and again, as making one costs a call of the driver.
class EventPool {
 public:
  // LIMITS: event_count_max at a time; a further one is kBusy.
  EventPool(const Device& device, uint32_t event_count_max)
      : device_(device), event_count_max_(event_count_max) {}
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  Result<Event*> Take();
  void Give(Event* event);
  uint32_t taken_count() const;

 private:
  const Device& device_;
  const uint32_t event_count_max_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<Event*> free_;
};

// An event of a pool, given back at the end.
class PooledEvent {
 public:
  // Recorded on `stream` as it is now.
  static Result<PooledEvent> After(EventPool& pool, Stream& stream);
  PooledEvent(PooledEvent&& other) noexcept
      : pool_(other.pool_), event_(std::exchange(other.event_, nullptr)) {}
  PooledEvent& operator=(PooledEvent&&) = delete;
  ~PooledEvent() {
    if (event_ != nullptr) pool_->Give(event_);
  }

  bool is_held() const { return event_ != nullptr; }  // false once moved from
  Event& event() const { return *event_; }

 private:
  PooledEvent(EventPool* pool, Event* event) : pool_(pool), event_(event) {}

  EventPool* pool_;
  Event* event_;
};

// Edge 1: the kernels that wrote these pages, all queued on the engine's stream before this was
// made.
class KvWritten {
 public:
  static Result<KvWritten> After(EventPool& pool, Stream& engine_stream);
  // For engines whose writes are over when a function returns.
  static KvWritten Already() { return KvWritten(std::nullopt); }

  Status Gate(Stream& copies) const;

 private:
  explicit KvWritten(std::optional<PooledEvent> event) : event_(std::move(event)) {}

  std::optional<PooledEvent> event_;
};

// Edge 3: the kernels that still read the pages about to be filled, all queued before this was
// made.
class DestinationFree {
 public:
  static Result<DestinationFree> After(EventPool& pool, Stream& engine_stream);
  static DestinationFree Already() { return DestinationFree(std::nullopt); }

  Status Gate(Stream& copies) const;

 private:
  explicit DestinationFree(std::optional<PooledEvent> event) : event_(std::move(event)) {}

  std::optional<PooledEvent> event_;
};

// Edge 2: the stored pages have been read. The engine may write to them again after either call.
class [[nodiscard]] PageReuse {
 public:
  explicit PageReuse(PooledEvent event) : event_(std::move(event)) {}
  PageReuse(PageReuse&&) noexcept = default;
  ~PageReuse();

  // The engine's stream waits, the host does not. May be called for several streams.
  Status Gate(Stream& engine_stream);
  Status AwaitOnHost();

 private:
  PooledEvent event_;
  bool is_taken_ = false;
};

// Edge 4: a layer's pages have been filled, layer by layer.
class [[nodiscard]] LayerReady {
 public:
  // Layer l is ready after events[l / layers_per_event]. `is_end_awaited`: dropped, it waits for
  // the copies even if all layers have been taken, because they use what is dropped with it.
  LayerReady(std::vector<PooledEvent> events, uint32_t layers_per_event,
             bool is_end_awaited = false)
      : events_(std::move(events)),
        layers_per_event_(layers_per_event),
        is_end_awaited_(is_end_awaited) {}
  LayerReady(LayerReady&&) noexcept = default;
  ~LayerReady();

  Status Gate(uint32_t layer, Stream& engine_stream);
  Status AwaitOnHost(uint32_t layer);
  // Of all layers. kBusy: still under way.
  Status Query();

 private:
  std::vector<PooledEvent> events_;
  uint32_t layers_per_event_;
  bool is_end_awaited_;       // until the end has been seen
  uint32_t taken_count_ = 0;  // events that somebody has waited for, the first ones
};

// The slots of a copy: written, so that they may be committed, or read, so that their lease may be
// released. A slot whose copy failed must not be committed. Dropped early, it waits.
class [[nodiscard]] SlotsDone {
 public:
  explicit SlotsDone(PooledEvent event) : event_(std::move(event)) {}
  SlotsDone(SlotsDone&&) noexcept = default;
  ~SlotsDone();

  // kBusy: still under way.
  Status Query();
  Status AwaitOnHost();

 private:
  PooledEvent event_;
  bool is_seen_ = false;
};

}  // namespace terrace

#include "cuda/host/stream_queues.h"

#include <algorithm>
#include <utility>

#include "terrace/check.h"

namespace terrace {

struct StreamQueues::Item {
  enum class Kind { kWork, kRecord, kWait };
  Kind kind = Kind::kWork;
  StreamWork work;
  std::shared_ptr<EventRecord> record;  // to be reached, or to be waited for
};

struct StreamQueues::Stream {
  StreamPriority priority = StreamPriority::kStore;
  std::deque<Item> items;
  bool is_running = false;  // the head, which is an operation
  bool is_destroyed = false;
  Status failure;
};

StreamQueues::StreamQueues() = default;
StreamQueues::~StreamQueues() = default;

StreamQueues::Stream* StreamQueues::CreateStream(StreamPriority priority) {
  ready_.reserve(streams_.size() + 1);  // so that only what queues takes memory
  streams_.push_back(std::make_unique<Stream>());
  streams_.back()->priority = priority;
  return streams_.back().get();
}

void StreamQueues::DestroyStream(Stream* stream) {
  stream->is_destroyed = true;
  Advance();
}

QueuedEvent* StreamQueues::CreateEvent() {
  events_.push_back(std::make_unique<QueuedEvent>());
  return events_.back().get();
}

void StreamQueues::DestroyEvent(QueuedEvent* event) {
  std::erase_if(events_, [event](const auto& owned) { return owned.get() == event; });
}

void StreamQueues::Push(Stream* stream, StreamWork work) {
  TERRACE_CHECK(work.shard_count > 0, "an operation without shards would never finish");
  stream->items.push_back({Item::Kind::kWork, std::move(work)});
  Advance();
}

void StreamQueues::Record(QueuedEvent* event, Stream* stream) {
  auto record = std::make_shared<EventRecord>();
  stream->items.push_back({Item::Kind::kRecord, {}, record});
  event->latest = std::move(record);  // last: one that is in no stream is never reached
  Advance();
}

void StreamQueues::Wait(Stream* stream, QueuedEvent* event) {
  if (event->latest == nullptr) return;
  stream->items.push_back({Item::Kind::kWait, {}, event->latest});
  Advance();
}

const StreamWork& StreamQueues::Begin(Stream* stream) {
  TERRACE_CHECK(!stream->is_running && !stream->items.empty(), "only a ready stream begins");
  stream->is_running = true;
  ListReady();
  return stream->items.front().work;
}

void StreamQueues::Finish(Stream* stream, Status status) {
  TERRACE_CHECK(stream->is_running, "what finishes has begun");
  if (stream->failure.ok()) stream->failure = status;
  stream->is_running = false;
  stream->items.pop_front();
  Advance();
}

bool StreamQueues::is_idle() const {
  return std::ranges::all_of(streams_, [](const auto& stream) { return stream->items.empty(); });
}

// True if a record or wait at the head is done with.
bool StreamQueues::AdvanceHead(Stream* stream) {
  if (stream->is_running || stream->items.empty()) return false;
  Item& head = stream->items.front();
  if (head.kind == Item::Kind::kWork) return false;
  if (head.kind == Item::Kind::kRecord) {
    head.record->failure = stream->failure;
    head.record->is_reached = true;
  } else if (!head.record->is_reached) {
    return false;
  } else if (stream->failure.ok()) {
    stream->failure = head.record->failure;  // what builds on a failed copy has failed
  }
  stream->items.pop_front();
  return true;
}

void StreamQueues::Advance() {
  for (bool has_moved = true; has_moved;) {
    has_moved = false;
    for (const auto& stream : streams_) {
      while (AdvanceHead(stream.get())) has_moved = true;
    }
  }
  std::erase_if(streams_,
                [](const auto& stream) { return stream->is_destroyed && stream->items.empty(); });
  ListReady();
}

void StreamQueues::ListReady() {
  ready_.clear();
  for (const StreamPriority priority : {StreamPriority::kLoad, StreamPriority::kStore}) {
    for (const auto& stream : streams_) {
      if (stream->priority != priority || stream->is_running || stream->items.empty()) continue;
      if (stream->items.front().kind == Item::Kind::kWork) ready_.push_back(stream.get());
    }
  }
}

}  // namespace terrace

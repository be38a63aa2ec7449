// Streams and events of a backend whose device is the CPU: what is queued where, what may run now.
// Whoever owns the queues decides who runs an operation and when: threads in the `host` backend, a
// seed in `sim`.
//
// An operation is cut in shards that may run in any order and at once. Records and waits run by
// themselves as soon as they are at the head of their stream, so only operations are ever ready.
//
// THREADING: none of its own; one caller at a time. OWNERSHIP: streams and events belong to the
// queues; a destroyed one lives on until nothing queued needs it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "cuda/device.h"
#include "terrace/status.h"

namespace terrace {

struct StreamWork {
  std::function<Status(uint32_t shard_index)> run;
  uint32_t shard_count = 1;
};

struct QueuedEvent {
  uint64_t recorded_count = 0;
  uint64_t reached_count = 0;  // of the records, how many their streams have come to
  uint32_t use_count = 0;      // in queued records and waits
  bool is_destroyed = false;
  Status failure;  // of the stream at the last record reached

  bool is_reached() const { return reached_count >= recorded_count; }
};

class StreamQueues {
 public:
  struct Stream;

  StreamQueues();
  ~StreamQueues();
  StreamQueues(const StreamQueues&) = delete;
  StreamQueues& operator=(const StreamQueues&) = delete;

  Stream* CreateStream(StreamPriority priority);
  void DestroyStream(Stream* stream);
  QueuedEvent* CreateEvent();
  void DestroyEvent(QueuedEvent* event);

  void Push(Stream* stream, StreamWork work);
  void Record(QueuedEvent* event, Stream* stream);
  void Wait(Stream* stream, QueuedEvent* event);

  // Streams whose head is an operation that has not begun; loads before stores, else the oldest
  // stream first. The answer holds until the next call.
  const std::vector<Stream*>& ready() const { return ready_; }
  // The head of a ready stream, which is then not ready. It stays where it is until Finish.
  const StreamWork& Begin(Stream* stream);
  // The head has run, all its shards. The first failure stays with the stream.
  void Finish(Stream* stream, Status status);
  // Whether anything is queued or running.
  bool is_idle() const;

 private:
  struct Item;

  void Advance();
  bool AdvanceHead(Stream* stream);
  void Release(QueuedEvent* event);
  void ListReady();

  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<QueuedEvent>> events_;
  std::vector<Stream*> ready_;
};

}  // namespace terrace

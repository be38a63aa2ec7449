// Streams and events of a backend whose device is the CPU: what is queued where, what may run now.
// Whoever owns the queues decides who runs an operation and when: threads in the `host` backend, a
// seed in `sim`.
//
// An operation is cut in shards that may run in any order and at once. Records and waits run by
// themselves as soon as they are at the head of their stream, so only operations are ever ready.
//
// MEMORY: only what makes or queues something takes any, and changes nothing where there is none.
// THREADING: none of its own; one caller at a time. OWNERSHIP: streams and events belong to the
// queues; what is queued on a destroyed stream still runs.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "cuda/abi/device.h"
#include "terrace/status.h"

namespace terrace {

struct StreamWork {
  std::function<Status(uint32_t shard_index)> run;
  uint32_t shard_count = 1;
};

// One recording of an event. Who waits for it keeps it: the event may be recorded again meanwhile,
// on another stream that gets there sooner.
struct EventRecord {
  bool is_reached = false;
  Status failure;  // of its stream, when it was reached
};

struct QueuedEvent {
  std::shared_ptr<EventRecord> latest;  // none: never recorded

  bool is_reached() const { return latest == nullptr || latest->is_reached; }
  Status failure() const { return latest == nullptr ? Status::Ok() : latest->failure; }
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
  void ListReady();

  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<QueuedEvent>> events_;
  std::vector<Stream*> ready_;
};

}  // namespace terrace

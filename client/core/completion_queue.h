// Finished asynchronous requests that had no callback, until Poll takes them. Room is reserved when
// a request is accepted, so that finishing it cannot fail.
//
// THREADING: any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/link/fork_guard.h"
#include "client/link/timed_lock.h"
#include "terrace/client.h"

namespace terrace::client {

class CompletionQueue {
 public:
  explicit CompletionQueue(size_t completions_max) : ring_(completions_max) {}

  // Makes the event descriptor. kIo if the system gives none.
  Status Open();
  // False if completions_max are queued or on their way.
  bool Reserve();
  void Unreserve();
  // REQUIRES: reserved.
  void Push(ClientCompletion completion);
  bool Pop(ClientCompletion* completion);
  // Nobody asks any more. Leases among them end.
  void Clear();
  bool is_empty() const { return queued_count_.load() == 0; }
  // Something is queued, or will be.
  bool is_awaited() const { return reserved_count_.load() != 0; }
  int event_fd() const { return event_fd_.get(); }

  // For one thread at a time, which looks at is_empty() and is_awaited() once it has made this, and
  // sleeps on the descriptor: it is readable after something has come, or is awaited no more.
  // Nobody else reads it, as those who sleep on event_fd() do that.
  class Waiting {
   public:
    explicit Waiting(CompletionQueue* queue);
    ~Waiting() { queue_->is_waited_for_ = false; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    int fd() const { return queue_->waiter_fd_.get(); }

   private:
    CompletionQueue* const queue_;
  };

 private:
  void TakeSignalBack();
  void WakeWaiting();

  TimedLock lock_;
  GuardedFd event_fd_;
  GuardedFd waiter_fd_;
  std::vector<ClientCompletion> ring_;
  size_t first_ = 0;
  std::atomic<size_t> queued_count_{0};      // changed under lock_
  std::atomic<size_t> reserved_count_{0};    // likewise; queued ones included
  std::atomic<size_t> signals_due_{0};       // of those who have pushed and not signalled yet
  std::atomic<bool> is_signal_late_{false};  // one was due when nothing was queued any more
  std::atomic<bool> is_waited_for_{false};
};

}  // namespace terrace::client

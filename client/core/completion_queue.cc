#include "client/core/completion_queue.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "client/link/cancel_deferred.h"

namespace terrace::client {

Status CompletionQueue::Open() {
  FdCreation creation;
  event_fd_ = GuardedFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (event_fd_.is_open()) waiter_fd_ = GuardedFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (waiter_fd_.is_open()) return Status::Ok();
  return Status(StatusCode::kIo, "no descriptor for completions", errno);
}

bool CompletionQueue::Reserve() {
  LockGuard guard(lock_);
  if (reserved_count_ == ring_.size()) return false;
  ++reserved_count_;
  return true;
}

void CompletionQueue::Unreserve() {
  const CancelDeferred deferred;
  bool is_end = false;
  {
    LockGuard guard(lock_);
    is_end = --reserved_count_ == 0;
  }
  if (is_end) WakeWaiting();
}

CompletionQueue::Waiting::Waiting(CompletionQueue* queue) : queue_(queue) {
  const CancelDeferred deferred;
  queue_->is_waited_for_ = true;
  eventfd_t ignored;
  eventfd_read(queue_->waiter_fd_.get(), &ignored);  // of what it will see for itself
}

void CompletionQueue::WakeWaiting() {
  if (is_waited_for_) eventfd_write(waiter_fd_.get(), 1);
}

void CompletionQueue::Push(ClientCompletion completion) {
  const CancelDeferred deferred;
  bool is_first = false;
  {
    LockGuard guard(lock_);
    ring_[(first_ + queued_count_) % ring_.size()] = std::move(completion);
    is_first = ++queued_count_ == 1;
    if (is_first) ++signals_due_;
  }
  WakeWaiting();
  if (!is_first) return;
  // The engine may run at once, in this thread's place, and asks for the lock.
  eventfd_write(event_fd_.get(), 1);
  --signals_due_;
}

// A signal that is due comes too late for what it tells of: it is taken back when nothing is found
// once more. One of what has come meanwhile is given back.
void CompletionQueue::TakeSignalBack() {
  is_signal_late_ = false;  // first: another thread may be here, too
  if (signals_due_ != 0) is_signal_late_ = true;
  ++signals_due_;
  eventfd_t ignored;
  eventfd_read(event_fd_.get(), &ignored);
  if (queued_count_ != 0) eventfd_write(event_fd_.get(), 1);
  --signals_due_;
}

bool CompletionQueue::Pop(ClientCompletion* completion) {
  ClientCompletion popped;
  bool is_found = false;
  {
    const CancelDeferred deferred;
    bool is_last = false;
    {
      LockGuard guard(lock_);
      is_found = queued_count_ != 0;
      if (is_found) {
        std::swap(popped, ring_[first_]);
        first_ = (first_ + 1) % ring_.size();
        --reserved_count_;
        is_last = --queued_count_ == 0;
      }
    }
    if (is_last || (!is_found && is_signal_late_)) TakeSignalBack();
  }
  // What *completion held may be a lease, whose end is sent here, outside of the lock.
  if (is_found) *completion = std::move(popped);
  return is_found;
}

void CompletionQueue::Clear() {
  ClientCompletion completion;
  while (Pop(&completion)) {
  }
}

}  // namespace terrace::client

#include "client/core/completion_queue.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "client/link/cancel_deferred.h"

namespace terrace::client {

Status CompletionQueue::Open() {
  FdCreation creation;
  event_fd_ = GuardedFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (event_fd_.is_open()) return Status::Ok();
  return Status(StatusCode::kIo, "no descriptor for completions", errno);
}

bool CompletionQueue::Reserve() {
  LockGuard guard(lock_);
  if (reserved_count_ == ring_.size()) return false;
  ++reserved_count_;
  return true;
}

void CompletionQueue::Unreserve() {
  LockGuard guard(lock_);
  --reserved_count_;
}

void CompletionQueue::Push(ClientCompletion completion) {
  const CancelDeferred deferred;
  LockGuard guard(lock_);
  ring_[(first_ + queued_count_) % ring_.size()] = std::move(completion);
  if (++queued_count_ == 1) eventfd_write(event_fd_.get(), 1);
}

bool CompletionQueue::Pop(ClientCompletion* completion) {
  ClientCompletion popped;
  {
    const CancelDeferred deferred;
    LockGuard guard(lock_);
    if (queued_count_ == 0) return false;
    std::swap(popped, ring_[first_]);
    first_ = (first_ + 1) % ring_.size();
    --reserved_count_;
    if (--queued_count_ == 0) {
      eventfd_t ignored;
      eventfd_read(event_fd_.get(), &ignored);
    }
  }
  // What *completion held may be a lease, whose end is sent here, outside of the lock.
  *completion = std::move(popped);
  return true;
}

void CompletionQueue::Clear() {
  ClientCompletion completion;
  while (Pop(&completion)) {
  }
}

}  // namespace terrace::client

#include "tiers/loop_inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <asio/buffer.hpp>
#include <asio/error_code.hpp>
#include <cerrno>
#include <system_error>
#include <utility>

namespace terrace {
namespace {

int NewEventFd() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return fd;
}

}  // namespace

std::shared_ptr<LoopInbox> LoopInbox::Open(asio::io_context& loop) {
  std::shared_ptr<LoopInbox> inbox(new LoopInbox());
  inbox->event_.emplace(loop, inbox->event_fd_);
  inbox->Await();
  return inbox;
}

LoopInbox::LoopInbox() : event_fd_(NewEventFd()) {}

// Without a Close the descriptor would be closed a second time, when it may be another's.
LoopInbox::~LoopInbox() {
  Close();
  ::close(event_fd_);
}

void LoopInbox::Post(Work work) {
  waiting_.Put(std::move(work), [this] {
    const uint64_t one = 1;
    (void)!::write(event_fd_, &one, sizeof(one));
  });
}

// It counts down before anything is taken, as MpscQueue asks.
void LoopInbox::Await() {
  event_->async_read_some(asio::buffer(&event_count_, sizeof(event_count_)),
                          [inbox = weak_from_this()](const asio::error_code& error, size_t) {
                            const std::shared_ptr<LoopInbox> self = inbox.lock();
                            if (error || self == nullptr) return;
                            self->RunAll();
                            if (self->event_) self->Await();
                          });
}

void LoopInbox::RunAll() {
  waiting_.TakeAll(&running_);
  for (Work& work : running_) {
    if (!event_) break;
    std::exchange(work, nullptr)();
  }
  running_.clear();
}

// Others may be writing to it: it stays until the last of them is gone.
void LoopInbox::Close() {
  waiting_.Close();
  if (!event_) return;
  (void)event_->release();
  event_.reset();
}

}  // namespace terrace

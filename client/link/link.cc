#include "client/link/link.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>

#include "client/link/cancel_deferred.h"

namespace terrace::client {
namespace {

constexpr uint64_t kSocketTag = 1;
constexpr uint64_t kWakeTag = 2;

uint64_t UsUntil(uint64_t until_us) {
  const uint64_t now_us = MonotonicUs();
  return until_us > now_us ? until_us - now_us : 0;
}

timespec ToTimespec(uint64_t us) {
  return {static_cast<time_t>(us / 1'000'000), static_cast<long>(us % 1'000'000 * 1'000)};
}

// epoll_pwait2 where the kernel and its seccomp filter know it, else rounded up to milliseconds.
int EpollWait(int epoll_fd, std::span<epoll_event> events, uint64_t until_us) {
  static std::atomic<bool> has_pwait2{true};
  const uint64_t us = std::min<uint64_t>(UsUntil(until_us), 3'600'000'000);
  if (has_pwait2.load(std::memory_order_relaxed)) {
    const timespec timeout = ToTimespec(us);
    const int count =
        epoll_pwait2(epoll_fd, events.data(), static_cast<int>(events.size()), &timeout, nullptr);
    if (count >= 0 || errno == EINTR) return count;
    has_pwait2.store(false, std::memory_order_relaxed);
  }
  return epoll_wait(epoll_fd, events.data(), static_cast<int>(events.size()),
                    static_cast<int>((us + 999) / 1'000));
}

}  // namespace

Status Link::Open() {
  FdCreation creation;
  epoll_fd_ = GuardedFd(epoll_create1(EPOLL_CLOEXEC));
  wake_fd_ = GuardedFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeTag;
  if (!epoll_fd_.is_open() || !wake_fd_.is_open() ||
      epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, wake_fd_.get(), &event) != 0) {
    return Status(StatusCode::kIo, "no descriptors for the background thread", errno);
  }
  return Status::Ok();
}

Status Link::Attach(GuardedFd socket, uint32_t connection, uint32_t frame_bytes_max) {
  LockGuard sending(send_lock_);
  socket_ = std::move(socket);
  sender_ = FrameSender(frame_bytes_max);
  LockGuard guard(interest_lock_);
  interest_fd_ = socket_.get();
  interest_ = kInput;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kSocketTag;
  if (epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, interest_fd_, &event) != 0) {
    return Status(StatusCode::kNoSpace, "the background thread cannot listen to the socket", errno);
  }
  connection_.store(connection);
  return Status::Ok();
}

void Link::Detach() {
  LockGuard sending(send_lock_);
  connection_.store(0);
  LockGuard guard(interest_lock_);
  // A child's copy would keep a closed socket in the set: it is taken out first.
  if (interest_fd_ >= 0) epoll_ctl(epoll_fd_.get(), EPOLL_CTL_DEL, interest_fd_, nullptr);
  interest_fd_ = -1;
  interest_ = 0;
  socket_.ShutdownAndClose();
  sender_ = FrameSender(protocol::kFrameBytesMax);
}

Status Link::Send(uint32_t connection, const Outgoing& message, const SendLimits& limits) {
  if (!send_lock_.LockUntil(limits.deadline_us)) {
    return Status(StatusCode::kBusy, "the deadline passed while others were sending");
  }
  Status status(StatusCode::kGone, "not connected to the daemon");
  bool has_unsent = false;
  if (connection != 0 && connection == connection_.load()) {
    status = sender_.Send(socket_.get(), message, limits.unsent_bytes_max);
    if (status.code() == StatusCode::kGone) shutdown(socket_.get(), SHUT_RDWR);
    has_unsent = sender_.unsent_bytes() > 0;
    sent_count_.fetch_add(1, std::memory_order_relaxed);
  }
  send_lock_.Unlock();
  if (has_unsent && (interest_.load() & kOutput) == 0) SetInterest(kOutput, 0);
  return status;
}

void Link::Shutdown() {
  LockGuard sending(send_lock_);
  if (socket_.is_open()) shutdown(socket_.get(), SHUT_RDWR);
}

bool Link::WaitReadable(uint64_t deadline_us, int other_fd) const {
  const CancelDeferred deferred;
  pollfd entries[] = {{socket_.get(), POLLIN, 0}, {other_fd, POLLIN, 0}};
  const timespec timeout = ToTimespec(UsUntil(deadline_us));
  return ppoll(entries, other_fd < 0 ? 1 : 2, &timeout, nullptr) > 0;
}

ssize_t Link::Receive(std::span<std::byte> space) const {
  const CancelDeferred deferred;
  return recv(socket_.get(), space.data(), space.size(), MSG_DONTWAIT);
}

void Link::ListenInBackground() {
  if (!is_listening()) SetInterest(kInput, 0);
}

void Link::ListenInCaller() {
  if (is_listening()) SetInterest(0, kInput);
}

void Link::SetInterest(uint32_t bits_on, uint32_t bits_off) {
  LockGuard guard(interest_lock_);
  if (interest_fd_ < 0) return;
  const uint32_t interest = (interest_.load() | bits_on) & ~bits_off;
  interest_ = interest;
  epoll_event event{};
  event.events = (interest & kInput ? EPOLLIN : 0u) | (interest & kOutput ? EPOLLOUT : 0u);
  event.data.u64 = kSocketTag;
  epoll_ctl(epoll_fd_.get(), EPOLL_CTL_MOD, interest_fd_, &event);
}

Link::Event Link::WaitInBackground(uint64_t until_us) {
  epoll_event events[2];
  const int count = EpollWait(epoll_fd_.get(), events, until_us);
  Event seen = Event::kNone;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWakeTag) {
      eventfd_t ignored;
      eventfd_read(wake_fd_.get(), &ignored);
      continue;
    }
    if ((events[i].events & EPOLLOUT) != 0) FlushInBackground();
    if ((events[i].events & (EPOLLHUP | EPOLLERR)) != 0) {
      seen = Event::kHungUp;
    } else if ((events[i].events & EPOLLIN) != 0) {
      seen = Event::kReadable;
    }
  }
  return seen;
}

void Link::FlushInBackground() {
  LockGuard sending(send_lock_);
  if (!socket_.is_open()) return;
  const Status flushed = sender_.Flush(socket_.get());
  if (flushed.code() == StatusCode::kGone) shutdown(socket_.get(), SHUT_RDWR);
  // Under send_lock_, so that a sender that leaves bytes behind next asks for output again.
  if (flushed.code() != StatusCode::kBusy) SetInterest(0, kOutput);
}

void Link::WakeBackground() {
  const CancelDeferred deferred;
  eventfd_write(wake_fd_.get(), 1);
}

}  // namespace terrace::client

// Link: the control socket as callers and the background thread share it.
//
// Any thread sends. Input is read by one thread at a time, the *reader*: a blocking caller while it
// waits for its answer, else the background thread. The background thread listens to the socket
// only when told to (ListenInBackground), so that an answer wakes the caller that waits for it and
// nobody else; a hang-up always wakes it.
//
// THREADING: Attach, Detach, WaitReadable and Receive belong to the reader; the rest to any thread,
// WaitInBackground to the background thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "client/link/fork_guard.h"
#include "client/link/frames.h"
#include "client/link/timed_lock.h"
#include "terrace/status.h"

namespace terrace::client {

class Link {
 public:
  // Makes the descriptors. kIo if the system gives none.
  Status Open();
  // kNoSpace if the system lets this user listen to no more: Detach is to follow.
  Status Attach(GuardedFd socket, uint32_t connection, uint32_t frame_bytes_max);
  void Detach();
  // Number of the present connection; 0 while there is none.
  uint32_t connection() const { return connection_.load(); }

  struct SendLimits {
    uint64_t deadline_us = kNever;  // for the lock; the socket is never waited for
    uint64_t unsent_bytes_max = 0;
  };
  // kGone if `connection` is not the present one, or breaks; kBusy if the limits do not allow it.
  Status Send(uint32_t connection, const Outgoing& message, const SendLimits& limits);
  // Breaks the present connection: its reader meets the end of the stream.
  void Shutdown();

  // The socket, or the other descriptor. False at the deadline.
  bool WaitReadable(uint64_t deadline_us, int other_fd = -1) const;
  // As recv: 0 at the end of the stream, −1 with errno.
  ssize_t Receive(std::span<std::byte> space) const;

  void ListenInBackground();
  void ListenInCaller();
  bool is_listening() const { return (interest_.load() & kInput) != 0; }

  enum class Event { kNone, kReadable, kHungUp };
  // Until input is there and listened for, a hang-up, WakeBackground, or the time. Sends unsent
  // bytes on the way.
  Event WaitInBackground(uint64_t until_us);
  void WakeBackground();
  int wake_fd() const { return wake_fd_.get(); }
  // Changes with every message sent.
  uint32_t sent_count() const { return sent_count_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kInput = 1;
  static constexpr uint32_t kOutput = 2;

  void SetInterest(uint32_t bits_on, uint32_t bits_off);
  void FlushInBackground();

  GuardedFd epoll_fd_;
  GuardedFd wake_fd_;
  std::atomic<uint32_t> connection_{0};
  std::atomic<uint32_t> sent_count_{0};

  TimedLock interest_lock_;
  std::atomic<uint32_t> interest_{0};
  int interest_fd_ = -1;

  TimedLock send_lock_;
  FrameSender sender_{protocol::kFrameBytesMax};
  GuardedFd socket_;  // changed by the reader under send_lock_
};

}  // namespace terrace::client

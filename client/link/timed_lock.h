// Locks and sleeps that end at a deadline. Built on futexes so that the deadline is absolute and
// monotonic, and so that a sleeper is woken by whoever made progress for it, by nobody else.
#pragma once

#include <atomic>
#include <cstdint>

namespace terrace::client {

inline constexpr uint64_t kNever = UINT64_MAX;

// CLOCK_MONOTONIC in microseconds.
uint64_t MonotonicUs();

// A mutex whose acquisition can time out. What it guards is touched for nanoseconds, or around a
// system call that does not block: Lock() is for the former, LockUntil() for the latter.
class TimedLock {
 public:
  TimedLock() = default;
  TimedLock(const TimedLock&) = delete;
  TimedLock& operator=(const TimedLock&) = delete;

  bool TryLock();
  // False if the deadline passed first.
  bool LockUntil(uint64_t deadline_us);
  void Lock() { static_cast<void>(LockUntil(kNever)); }
  void Unlock();
  bool is_locked() const { return word_.load() != kFree; }

 private:
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kHeld = 1;
  static constexpr uint32_t kContended = 2;  // held, and somebody may sleep on word_
  std::atomic<uint32_t> word_{kFree};
};

class LockGuard {
 public:
  explicit LockGuard(TimedLock& lock) : lock_(lock) { lock_.Lock(); }
  ~LockGuard() { lock_.Unlock(); }
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;

 private:
  TimedLock& lock_;
};

// Threads that wait for progress made by others. Enter, check once more that there is still
// something to wait for, then Sleep: a wake between Enter and Sleep is not lost.
class Sleepers {
 public:
  uint32_t Enter();
  // Until a wake after Enter, or the deadline. `lane` (0 … 31) is what WakeLane names.
  void Sleep(uint32_t entered, uint32_t lane, uint64_t deadline_us);
  void Leave();

  bool is_empty() const { return count_.load() == 0; }
  void WakeOne();
  void WakeLane(uint32_t lane);
  void WakeAll();

 private:
  void Wake(int count_max, uint32_t lanes);

  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> word_{0};
};

}  // namespace terrace::client

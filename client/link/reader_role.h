// ReaderRole: which thread reads the connection, and where the callers sleep that wait for what it
// reads. A blocking caller takes the role for as long as it waits and serves everybody's answers;
// the others sleep, and one of them takes over when it leaves.
//
// THREADING: any thread. What belongs to "the reader" is touched by the holder of the role alone,
// so that the role is its lock.
#pragma once

#include <cstdint>

#include "client/link/timed_lock.h"

namespace terrace::client {

// The lane of sleepers that wait for blocks or completions; those below are for answers.
inline constexpr uint32_t kLeaseLane = 31;

class ReaderRole {
 public:
  bool TryTake() { return lock_.TryLock(); }
  void Take() { lock_.Lock(); }
  // Gives the role back, and wakes one sleeper that may take over.
  void Leave() {
    lock_.Unlock();
    sleepers_.WakeOne();
  }
  bool is_taken() const { return lock_.is_locked(); }

  // Sleeps while somebody reads and `is_over` is false: until a wake in `lane` (0 … 31), or the
  // deadline (CLOCK_MONOTONIC, µs). May return early.
  template <typename IsOver>
  void SleepUnless(const IsOver& is_over, uint32_t lane, uint64_t deadline_us) {
    const uint32_t entered = sleepers_.Enter();
    if (!is_over() && is_taken()) sleepers_.Sleep(entered, lane, deadline_us);
    sleepers_.Leave();
  }
  // Whoever was woken to take over has no need to any more: somebody else is.
  void PassOn() {
    if (!is_taken()) sleepers_.WakeOne();
  }
  void WakeLane(uint32_t lane) { sleepers_.WakeLane(lane); }
  void WakeAll() { sleepers_.WakeAll(); }

 private:
  TimedLock lock_;
  Sleepers sleepers_;
};

}  // namespace terrace::client

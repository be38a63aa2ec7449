#include "client/link/timed_lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace terrace::client {
namespace {

constexpr uint32_t kAnyLane = FUTEX_BITSET_MATCH_ANY;
constexpr int kSpinsMax = 64;  // what a lock's holder usually needs

// Sleeps while `word` holds `expected`; may return early.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, uint32_t lanes,
               uint64_t deadline_us) {
  timespec until;
  timespec* until_or_never = nullptr;
  if (deadline_us != kNever) {
    until.tv_sec = static_cast<time_t>(deadline_us / 1'000'000);
    until.tv_nsec = static_cast<long>(deadline_us % 1'000'000 * 1'000);
    until_or_never = &until;
  }
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG,
          expected, until_or_never, nullptr, lanes);
}

void FutexWake(std::atomic<uint32_t>& word, int count_max, uint32_t lanes) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG,
          count_max, nullptr, nullptr, lanes);
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

uint64_t MonotonicUs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1'000;
}

bool TimedLock::TryLock() {
  uint32_t expected = kFree;
  return word_.compare_exchange_strong(expected, kHeld);
}

bool TimedLock::LockUntil(uint64_t deadline_us) {
  for (int spins = 0; spins < kSpinsMax; ++spins) {
    if (TryLock()) return true;
    Pause();
  }
  // From here on the word says kContended whoever holds it, so that its Unlock wakes the next.
  while (word_.exchange(kContended) != kFree) {
    if (deadline_us != kNever && MonotonicUs() >= deadline_us) return false;
    FutexWait(word_, kContended, kAnyLane, deadline_us);
  }
  return true;
}

void TimedLock::Unlock() {
  if (word_.exchange(kFree) == kContended) FutexWake(word_, 1, kAnyLane);
}

uint32_t Sleepers::Enter() {
  count_.fetch_add(1);
  return word_.load();
}

void Sleepers::Sleep(uint32_t entered, uint32_t lane, uint64_t deadline_us) {
  FutexWait(word_, entered, uint32_t{1} << (lane % 32), deadline_us);
}

void Sleepers::Leave() { count_.fetch_sub(1); }

void Sleepers::WakeOne() { Wake(1, kAnyLane); }
void Sleepers::WakeLane(uint32_t lane) { Wake(INT_MAX, uint32_t{1} << (lane % 32)); }
void Sleepers::WakeAll() { Wake(INT_MAX, kAnyLane); }

void Sleepers::Wake(int count_max, uint32_t lanes) {
  if (is_empty()) return;
  word_.fetch_add(1);
  FutexWake(word_, count_max, lanes);
}

}  // namespace terrace::client

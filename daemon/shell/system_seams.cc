#include "daemon/shell/system_seams.h"

#include <sys/random.h>
#include <time.h>

#include "terrace/check.h"
#include "terrace/units.h"

namespace terrace {

namespace {

uint64_t MicrosecondsOf(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * kUsPerSecond +
         static_cast<uint64_t>(now.tv_nsec) / 1000;
}

}  // namespace

uint64_t SystemClock::NowUs() const { return MicrosecondsOf(CLOCK_MONOTONIC); }

uint64_t SystemClock::UnixSeconds() const { return UnixUs() / kUsPerSecond; }

uint64_t SystemClock::UnixUs() const { return MicrosecondsOf(CLOCK_REALTIME); }

uint64_t ThreadProcessorUs() { return MicrosecondsOf(CLOCK_THREAD_CPUTIME_ID); }

SystemRandom::SystemRandom() { Refill(); }

uint64_t SystemRandom::Next() {
  if (next_ == words_.size()) Refill();
  const uint64_t word = words_[next_];
  words_[next_++] = 0;  // a token once given is not kept here
  return word;
}

void SystemRandom::Refill() {
  auto* bytes = reinterpret_cast<std::byte*>(words_.data());
  for (size_t have_bytes = 0; have_bytes < sizeof(words_);) {
    const ssize_t got = getrandom(bytes + have_bytes, sizeof(words_) - have_bytes, 0);
    TERRACE_CHECK(got > 0, "lease tokens must not be predictable");
    have_bytes += static_cast<size_t>(got);
  }
  next_ = 0;
}

}  // namespace terrace

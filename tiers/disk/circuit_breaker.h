// CircuitBreaker: whether it is worth asking a server that may be gone. Closed: ask. Open: do not,
// at no cost, until a moment that comes later after every failed attempt. Half open: one attempt is
// on its way, and its outcome decides.
//
// Pure: the time and the random bits are arguments.
// THREADING: one thread.
#pragma once

#include <cstdint>

#include "terrace/units.h"

namespace terrace {

class CircuitBreaker {
 public:
  struct Options {
    uint32_t failures_max = 5;               // in a row, then it opens
    uint64_t failing_us_max = kUsPerSecond;  // since the first of a row, then it opens
    uint64_t probe_first_us = kUsPerSecond / 2;
    uint64_t probe_max_us = 4 * kUsPerSecond;  // twice as long after each failed attempt, up to it
  };
  enum class State : uint8_t { kClosed, kOpen, kHalfOpen };
  // A hard failure will not go away by asking again soon: it opens the breaker alone.
  enum class Failure : uint8_t { kSoft, kHard };

  explicit CircuitBreaker(const Options& options) : options_(options) {}

  void OnSuccess();
  // `random`: 64 bits, for a quarter of jitter, so that hosts do not come back in step.
  void OnFailure(uint64_t now_us, Failure failure, uint64_t random);

  // Open, and the moment has come: the caller may attempt once, and reports how it went.
  bool TakeProbe(uint64_t now_us);

  State state() const { return state_; }
  bool is_closed() const { return state_ == State::kClosed; }
  uint64_t opened_count() const { return opened_count_; }
  // Of the next attempt. REQUIRES: open.
  uint64_t probe_at_us() const { return probe_at_us_; }

 private:
  void Open(uint64_t now_us, uint64_t random);

  const Options options_;
  State state_ = State::kClosed;
  uint32_t failures_ = 0;          // in a row
  uint64_t failing_since_us_ = 0;  // of the first of them
  uint64_t probe_interval_us_ = 0;
  uint64_t probe_at_us_ = 0;
  uint64_t opened_count_ = 0;
};

}  // namespace terrace

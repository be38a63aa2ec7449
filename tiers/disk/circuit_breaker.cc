#include "tiers/disk/circuit_breaker.h"

#include <algorithm>

namespace terrace {

void CircuitBreaker::OnSuccess() {
  state_ = State::kClosed;
  failures_ = 0;
  probe_interval_us_ = 0;
}

void CircuitBreaker::OnFailure(uint64_t now_us, Failure failure, uint64_t random) {
  switch (state_) {
    case State::kOpen:
      return;  // asked before it opened, answered after
    case State::kHalfOpen:
      Open(now_us, random);
      return;
    case State::kClosed:
      if (failures_++ == 0) failing_since_us_ = now_us;
      if (failure == Failure::kHard || failures_ >= options_.failures_max ||
          now_us - failing_since_us_ >= options_.failing_us_max) {
        ++opened_count_;
        Open(now_us, random);
      }
      return;
  }
}

bool CircuitBreaker::TakeProbe(uint64_t now_us) {
  if (state_ != State::kOpen || now_us < probe_at_us_) return false;
  state_ = State::kHalfOpen;
  return true;
}

void CircuitBreaker::Open(uint64_t now_us, uint64_t random) {
  state_ = State::kOpen;
  failures_ = 0;
  probe_interval_us_ = probe_interval_us_ == 0
                           ? options_.probe_first_us
                           : std::min(2 * probe_interval_us_, options_.probe_max_us);
  const uint64_t jitter_us = random % (probe_interval_us_ / 4 + 1);
  probe_at_us_ = now_us + probe_interval_us_ - jitter_us;
}

}  // namespace terrace

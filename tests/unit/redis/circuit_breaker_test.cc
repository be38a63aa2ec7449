#include "tiers/disk/circuit_breaker.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

using Failure = CircuitBreaker::Failure;
using State = CircuitBreaker::State;

constexpr CircuitBreaker::Options kOptions{.failures_max = 5,
                                           .failing_us_max = 1'000'000,
                                           .probe_first_us = 500'000,
                                           .probe_max_us = 4'000'000};

// PROMISE: T40 the breaker's rule
TEST(CircuitBreaker, FiveFailuresInARowOpenIt) {
  CircuitBreaker breaker(kOptions);
  for (int i = 0; i < 4; ++i) breaker.OnFailure(10, Failure::kSoft, 0);
  breaker.OnSuccess();
  for (int i = 0; i < 4; ++i) breaker.OnFailure(10, Failure::kSoft, 0);
  EXPECT_TRUE(breaker.is_closed());
  breaker.OnFailure(10, Failure::kSoft, 0);
  EXPECT_EQ(breaker.state(), State::kOpen);
  EXPECT_EQ(breaker.opened_count(), 1u);
}

TEST(CircuitBreaker, ASecondOfFailuresOpensIt) {
  CircuitBreaker breaker(kOptions);
  breaker.OnFailure(10, Failure::kSoft, 0);
  breaker.OnFailure(1'000'009, Failure::kSoft, 0);
  EXPECT_TRUE(breaker.is_closed());
  breaker.OnFailure(1'000'010, Failure::kSoft, 0);
  EXPECT_EQ(breaker.state(), State::kOpen);
}

TEST(CircuitBreaker, OneHardFailureOpensIt) {
  CircuitBreaker breaker(kOptions);
  breaker.OnFailure(10, Failure::kHard, 0);
  EXPECT_EQ(breaker.state(), State::kOpen);
}

TEST(CircuitBreaker, OneProbeAtATimeAndLaterAfterEachFailure) {
  CircuitBreaker breaker(kOptions);
  breaker.OnFailure(0, Failure::kHard, 0);
  uint64_t now_us = 0;
  for (const uint64_t wait_us : {500'000, 1'000'000, 2'000'000, 4'000'000, 4'000'000}) {
    EXPECT_FALSE(breaker.TakeProbe(now_us + wait_us - 1));
    now_us += wait_us;
    EXPECT_TRUE(breaker.TakeProbe(now_us));
    EXPECT_FALSE(breaker.TakeProbe(now_us)) << "one is on its way";
    breaker.OnFailure(now_us, Failure::kSoft, 0);
  }
  EXPECT_TRUE(breaker.TakeProbe(now_us + 4'000'000));
  breaker.OnSuccess();
  EXPECT_TRUE(breaker.is_closed());
}

TEST(CircuitBreaker, JitterIsAQuarterAtMostAndNeverLater) {
  for (uint64_t random = 0; random < 1'000'000; random += 7'919) {
    CircuitBreaker breaker(kOptions);
    breaker.OnFailure(0, Failure::kHard, random);
    EXPECT_GE(breaker.probe_at_us(), 375'000u);
    EXPECT_LE(breaker.probe_at_us(), 500'000u);
  }
}

TEST(CircuitBreaker, LateAnswersDoNotPutOffTheProbe) {
  CircuitBreaker breaker(kOptions);
  breaker.OnFailure(0, Failure::kHard, 0);
  breaker.OnFailure(400'000, Failure::kHard, 0);
  EXPECT_TRUE(breaker.TakeProbe(500'000));
}

}  // namespace
}  // namespace terrace

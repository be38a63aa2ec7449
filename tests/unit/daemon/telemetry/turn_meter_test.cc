#include "daemon/telemetry/turn_meter.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "daemon/telemetry/metrics.h"

namespace terrace {
namespace {

constexpr uint64_t kSlowUs = 200;

class TurnMeterTest : public ::testing::Test {
 protected:
  // A turn that takes `took_us`, in `ran_us` of which the thread has a processor.
  TurnCost Turn(uint64_t took_us, uint64_t ran_us) {
    const uint64_t began_us = now_us_;
    meter_.Begin(began_us);
    now_us_ += took_us;
    processor_us_ += ran_us;
    return meter_.End(began_us, now_us_);
  }

  uint64_t now_us_ = 1'000'000;
  uint64_t processor_us_ = 77;
  uint64_t asked_count_ = 0;
  TurnMeter meter_{[this] {
                     ++asked_count_;
                     return processor_us_;
                   },
                   kSlowUs};
};

TEST_F(TurnMeterTest, ASlowTurnThatHadNoProcessorWaited) {
  const TurnCost turn = Turn(248'000, 150);
  EXPECT_EQ(turn.took_us, 248'000u);
  EXPECT_EQ(turn.waited_us, 247'850u);
}

TEST_F(TurnMeterTest, ASlowTurnThatRanDidNotWait) {
  EXPECT_EQ(Turn(9'000, 9'000).waited_us, 0u);
  EXPECT_EQ(Turn(201, 201).waited_us, 0u);
}

TEST_F(TurnMeterTest, WhatRanBeforeATurnMakesItsWaitSmallerNeverLarger) {
  for (int i = 0; i < 9; ++i) Turn(100, 100);
  // The last sample is 900 us old, in which the thread ran.
  EXPECT_EQ(Turn(5'000, 1'000).waited_us, 3'100u);
  EXPECT_EQ(Turn(600, 200).waited_us, 400u) << "a slow turn ends with a sample";
}

TEST_F(TurnMeterTest, TheKernelIsAskedOnceAMillisecondAtMost) {
  for (int i = 0; i < 10'000; ++i) Turn(10, 10);
  EXPECT_EQ(asked_count_, 100u);
}

TEST_F(TurnMeterTest, ATurnOfWhichTooLittleIsKnownIsNotStarved) {
  ProcessMetrics metrics;
  metrics.CountTurn(Turn(150, 10));       // not slow
  metrics.CountTurn(Turn(5'000, 4'000));  // slow by itself
  metrics.CountTurn(Turn(5'000, 190));    // slow for want of a processor
  EXPECT_EQ(metrics.turn_count, 3u);
  EXPECT_EQ(metrics.turns_over_limit, 2u);
  EXPECT_EQ(metrics.turns_starved, 1u);
  EXPECT_EQ(metrics.longest_turn.took_us, 5'000u);
}

}  // namespace
}  // namespace terrace

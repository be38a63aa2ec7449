#include "daemon/arenas/memory_yield.h"

#include <gtest/gtest.h>

#include "terrace/units.h"

namespace terrace {
namespace {

constexpr uint64_t kSegment = 64 * kMiB;
constexpr uint64_t kReserve = 1 * kGiB;
constexpr uint64_t kMost = 8 * kGiB;

HostMemory Available(uint64_t bytes) {
  return {.total_bytes = 64 * kGiB, .available_bytes = bytes};
}

class MemoryYieldTest : public testing::Test {
 protected:
  uint64_t Look(uint64_t available_bytes, uint64_t held_bytes, uint64_t leaving_bytes = 0) {
    return yield_.Look(
        Available(available_bytes),
        {.held_bytes = held_bytes, .leaving_bytes = leaving_bytes, .segment_bytes = kSegment},
        kReserve, kMost);
  }
  // A quarter of a second later, in which tasks stood so long; enough is available.
  uint64_t LookAgain(uint64_t held_bytes, uint64_t stood_us) {
    now_us_ += 250'000;
    host_.stalled_us += stood_us;
    return yield_.Look(host_,
                       {.held_bytes = held_bytes, .segment_bytes = kSegment, .now_us = now_us_},
                       kReserve, kMost);
  }
  MemoryYield yield_;
  HostMemory host_{
      .total_bytes = 64 * kGiB, .available_bytes = 32 * kGiB, .stalled_us = 77'000'000};
  uint64_t now_us_ = 5'000'000;
};

TEST_F(MemoryYieldTest, TasksThatStandForWantOfMemoryGetASixteenthASecond) {
  EXPECT_EQ(LookAgain(4 * kGiB, 0), kMost);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(LookAgain(4 * kGiB, 24'000), kMost) << "9.6 % of the time";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(LookAgain(4 * kGiB, 25'000), kMost);
  EXPECT_EQ(LookAgain(4 * kGiB, 25'000), 4 * kGiB - 256 * kMiB);
  for (int i = 0; i < 3; ++i) LookAgain(4 * kGiB - 256 * kMiB, 250'000);
  EXPECT_EQ(LookAgain(4 * kGiB - 256 * kMiB, 0), 4 * kGiB - 512 * kMiB) << "a segment at least";
  for (uint32_t i = 1; i < MemoryYield::kCalmLooks; ++i) {
    EXPECT_EQ(LookAgain(4 * kGiB - 512 * kMiB, 0), 4 * kGiB - 512 * kMiB);
  }
  EXPECT_EQ(LookAgain(4 * kGiB - 512 * kMiB, 0), 4 * kGiB - 512 * kMiB + kSegment);
}

TEST_F(MemoryYieldTest, TasksThatStandBesideFreeMemoryLackALimitsOwn) {
  host_.free_bytes = kReserve;
  for (int i = 0; i < 12; ++i) EXPECT_EQ(LookAgain(4 * kGiB, 250'000), kMost);
  host_.free_bytes = kReserve - 1;
  for (int i = 0; i < 4; ++i) LookAgain(4 * kGiB, 250'000);
  EXPECT_LT(yield_.limit_bytes(), 4 * kGiB);
}

TEST_F(MemoryYieldTest, LittleThatIsHeldGoesBySegmentsAndThenNothingGoes) {
  LookAgain(kSegment, 0);
  for (int i = 0; i < 3; ++i) LookAgain(kSegment, 250'000);
  EXPECT_EQ(LookAgain(kSegment, 250'000), 0u);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(LookAgain(0, 250'000), 0u);
}

TEST_F(MemoryYieldTest, WhatWasStoodBeforeTheFirstLookOrElsewhereDoesNotCount) {
  EXPECT_EQ(LookAgain(4 * kGiB, 0), kMost);
  host_.stalled_us = 5;  // another cgroup
  for (int i = 0; i < 4; ++i) EXPECT_EQ(LookAgain(4 * kGiB, 0), kMost);
  now_us_ += 60'000'000;  // nobody looked
  EXPECT_EQ(LookAgain(4 * kGiB, 40'000'000), kMost);
}

TEST_F(MemoryYieldTest, WhatLeavesAlreadyIsBesideWhatIsLacking) {
  EXPECT_EQ(Look(kReserve - 2 * kSegment, 4 * kGiB, kSegment), 4 * kGiB - 2 * kSegment);
}

TEST_F(MemoryYieldTest, AllIsHeldWhileThereIsEnough) {
  EXPECT_EQ(Look(kReserve, 4 * kGiB), kMost);
  EXPECT_EQ(Look(32 * kGiB, kMost), kMost);
}

TEST_F(MemoryYieldTest, WhatLacksIsGivenBackInWholeSegmentsAndOnce) {
  EXPECT_EQ(Look(kReserve - 100 * kMiB, 4 * kGiB), 4 * kGiB - 2 * kSegment);
  EXPECT_EQ(Look(kReserve - 100 * kMiB, 4 * kGiB, 2 * kSegment), 4 * kGiB - 2 * kSegment)
      << "which is on its way already";
  EXPECT_EQ(Look(kReserve + 28 * kMiB, 4 * kGiB - 2 * kSegment), 4 * kGiB - 2 * kSegment);
}

TEST_F(MemoryYieldTest, NoMoreIsGivenBackThanThereIs) { EXPECT_EQ(Look(0, kSegment), 0u); }

TEST_F(MemoryYieldTest, ComesAgainSlowlyAndNotIntoTheMargin) {
  const uint64_t less = 4 * kGiB - kSegment;
  EXPECT_EQ(Look(kReserve - 1, 4 * kGiB), less);
  for (uint32_t i = 0; i < 3 * MemoryYield::kCalmLooks; ++i) {
    EXPECT_EQ(Look(kReserve + kSegment, less), less);
  }
  for (uint32_t i = 1; i < MemoryYield::kCalmLooks; ++i) EXPECT_EQ(Look(2 * kReserve, less), less);
  EXPECT_EQ(Look(2 * kReserve, less), less + kSegment);
  EXPECT_EQ(Look(2 * kReserve, less + kSegment), less + 2 * kSegment);
  for (uint32_t i = 0; i < 100; ++i) Look(2 * kReserve, less + 2 * kSegment);
  EXPECT_EQ(Look(2 * kReserve, kMost), kMost);
}

TEST_F(MemoryYieldTest, WithoutAReserveOrWithoutKnowledgeAllIsHeld) {
  EXPECT_LT(Look(0, 4 * kGiB), kMost);
  const MemoryYield::Use use{.held_bytes = 4 * kGiB, .segment_bytes = kSegment};
  EXPECT_EQ(yield_.Look(Available(0), use, 0, kMost), kMost);
  EXPECT_EQ(yield_.Look({}, use, kReserve, kMost), kMost);
}

}  // namespace
}  // namespace terrace

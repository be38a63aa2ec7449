#include "tiers/redis/wire/write_refusal.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

constexpr uint64_t kS = kUsPerSecond;

TEST(WriteRefusal, EndsWithTheFirstWriteThatIsTaken) {
  WriteRefusal refusal;
  for (const uint64_t begin_us : {100 * kS, 200 * kS}) {
    refusal.OnRefused(RedisError::kOutOfMemory, 7, begin_us);
    EXPECT_EQ(refusal.error(), RedisError::kOutOfMemory);
    EXPECT_TRUE(refusal.IsPaused(begin_us + kS - 1));
    EXPECT_FALSE(refusal.IsPaused(begin_us + kS));
    EXPECT_FALSE(refusal.TakeLook(begin_us + 5 * kS - 1));
    EXPECT_TRUE(refusal.TakeLook(begin_us + 5 * kS));
    refusal.OnTaken(begin_us + 5 * kS);
    EXPECT_EQ(refusal.error(), RedisError::kNone);
  }
}

// What is small it takes, and what is not it does not: one line of a log, and not one a second.
TEST(WriteRefusal, OfAServerThatTakesOnlySomeOfThemEndsOnceItRefusedNoneForAWhile) {
  WriteRefusal refusal;
  uint64_t now_us = 100 * kS;
  uint32_t ends = 0;
  for (int i = 0; i < 50; ++i) {
    refusal.OnRefused(RedisError::kOutOfMemory, 7, now_us);
    now_us += kS / 2;
    refusal.OnTaken(now_us);
    ends += refusal.error() == RedisError::kNone ? 1 : 0;
    EXPECT_TRUE(i == 0 || refusal.IsPaused(now_us)) << "what it takes says nothing of the rest";
    now_us += kS;
  }
  EXPECT_EQ(ends, 1u);
  const uint64_t last_us = now_us - 3 * kS / 2;
  EXPECT_TRUE(refusal.TakeLook(last_us + 5 * kS));
  refusal.OnTaken(last_us + 5 * kS);
  EXPECT_NE(refusal.error(), RedisError::kNone);
  EXPECT_TRUE(refusal.TakeLook(last_us + 10 * kS));
  refusal.OnTaken(last_us + 10 * kS);
  EXPECT_EQ(refusal.error(), RedisError::kNone);
}

// Many are owed: each second one finds out for all.
TEST(WriteRefusal, OfRisesThatWereRefusedOneIsTriedEachSecond) {
  WriteRefusal refusal;
  EXPECT_TRUE(refusal.TakeRise(100 * kS));
  EXPECT_TRUE(refusal.TakeRise(100 * kS));
  refusal.OnRiseRefused(100 * kS);
  EXPECT_FALSE(refusal.TakeRise(101 * kS - 1));
  EXPECT_TRUE(refusal.TakeRise(101 * kS));
  EXPECT_FALSE(refusal.TakeRise(101 * kS));
  refusal.OnRiseTaken();
  EXPECT_TRUE(refusal.TakeRise(101 * kS));
  EXPECT_TRUE(refusal.TakeRise(101 * kS));
}

}  // namespace
}  // namespace terrace

#include "daemon/telemetry/slow_turns.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "terrace/units.h"

namespace terrace {
namespace {

constexpr uint64_t kMinuteUs = 60 * kUsPerSecond;

TEST(SlowTurns, AMinuteOfThemIsOneSummary) {
  SlowTurns turns;
  EXPECT_FALSE(turns.Take(kMinuteUs));
  for (uint64_t i = 0; i < 388; ++i) turns.Note("request", {.took_us = 300 + i}, 7 + i);
  turns.Note("timer", {.took_us = 9'000, .waited_us = 8'500}, 1'000);
  turns.Note("timer", {.took_us = 250}, 2'000);
  EXPECT_FALSE(turns.Take(kMinuteUs));
  const auto told = turns.Take(kMinuteUs + 7);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->turn_count, 390u);
  EXPECT_EQ(told->longest_cost.took_us, 9'000u);
  EXPECT_EQ(told->longest_cost.waited_us, 8'500u);
  EXPECT_EQ(told->longest, "timer");
  EXPECT_EQ(told->count_by_turn, "request 388, timer 2");
  EXPECT_EQ(told->seconds, 60u);
  EXPECT_FALSE(turns.Take(10 * kMinuteUs));
}

TEST(SlowTurns, TheNextSummaryBeginsWithTheNextOfThem) {
  SlowTurns turns;
  turns.Note("accept", {.took_us = 500}, 7);
  ASSERT_TRUE(turns.Take(kMinuteUs + 7));
  turns.Note("request", {.took_us = 201}, 5 * kMinuteUs);
  EXPECT_FALSE(turns.Take(5 * kMinuteUs + 1));
  const auto told = turns.Take(6 * kMinuteUs);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->turn_count, 1u);
  EXPECT_EQ(told->longest_cost.took_us, 201u);
  EXPECT_EQ(told->longest_cost.waited_us, 0u);
  EXPECT_EQ(told->longest, "request");
}

TEST(SlowTurns, KindsBeyondTheLimitCountTogether) {
  SlowTurns turns;
  std::vector<std::string> names;
  for (uint32_t i = 0; i < 40; ++i) names.push_back("turn" + std::to_string(i));
  for (const std::string& name : names) turns.Note(name, {.took_us = 300}, 0);
  const auto told = turns.Take(kMinuteUs);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->turn_count, 40u);
  EXPECT_NE(told->count_by_turn.find("other 8"), std::string::npos) << told->count_by_turn;
}

}  // namespace
}  // namespace terrace

#include "tools/terrace/content/age_text.h"

#include <gtest/gtest.h>

namespace terrace::tools {
namespace {

TEST(AgeText, ReadsNumbersWithUnits) {
  const std::pair<const char*, uint64_t> kAges[] = {
      {"90s", 90'000},     {"15min", 900'000},  {"15m", 900'000},       {"2h", 7'200'000},
      {"3d", 259'200'000}, {"1w", 604'800'000}, {"1h30min", 5'400'000}, {"250ms", 250}};
  for (const auto& [text, time_ms] : kAges) {
    uint64_t read_ms = 0;
    EXPECT_TRUE(ParseAge(text, &read_ms)) << text;
    EXPECT_EQ(read_ms, time_ms) << text;
  }
}

TEST(AgeText, RefusesEverythingElse) {
  for (const char* text : {"", "2", "h", "2x", "-2h", "2 h", "2h ", "1.5h", "2hh", "1000000w",
                           "99999999999999999999s", "18446744073709551615w"}) {
    uint64_t read_ms = 0;
    EXPECT_FALSE(ParseAge(text, &read_ms)) << text;
  }
}

}  // namespace
}  // namespace terrace::tools

#include "tools/terrace/plan/capacity_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace::tools {
namespace {

ModelShape Plain(uint64_t token_bytes, uint64_t window_tokens = 0) {
  return {.kinds = {{.name = "full",
                     .layer_count = 1,
                     .token_bytes = token_bytes,
                     .window_tokens = window_tokens}}};
}

TEST(PrefillCost, IsWhatWasMeasured) {
  const PrefillCost one({{1000, 2.0}});
  EXPECT_DOUBLE_EQ(one.Seconds(500), 1.0);
  // 1 ms a token and 1 us a pair of tokens.
  const PrefillCost two({{1000, 2.0}, {4000, 20.0}});
  EXPECT_NEAR(two.Seconds(2000), 6.0, 1e-6);
  EXPECT_NEAR(two.Seconds(8000), 72.0, 1e-5);
}

TEST(PrefillCost, NeitherPartIsNegative) {
  const PrefillCost batched({{1000, 2.0}, {4000, 4.0}});  // faster a token where there are more
  EXPECT_GT(batched.Seconds(100'000), batched.Seconds(50'000));
  const PrefillCost steep({{1000, 1.0}, {2000, 8.0}});
  EXPECT_GT(steep.Seconds(1), 0);
}

TEST(CapacityPlan, BreakEvenIsBytesOverTheTimeTheyTakeToCompute) {
  const PrefillCost cost({{1000, 2.0}});
  EXPECT_DOUBLE_EQ(BreakEvenBytesPerSecond(Plain(100), cost, 4000), 50'000.0);
  EXPECT_DOUBLE_EQ(BreakEvenBytesPerSecond(Plain(100, 2000), cost, 4000), 25'000.0);
}

TEST(CapacityPlan, LoadingPaysFromTheLengthWhereItIsFaster) {
  const PrefillCost cost({{1000, 2.0}, {4000, 20.0}});  // n ms + n^2 us
  // 100 B a token at 10 kB/s: 10 ms a token, which computing takes from 9,000 tokens on.
  const auto from = LoadFromTokens(Plain(100), cost, 10'000, 100'000);
  ASSERT_TRUE(from);
  EXPECT_NEAR(static_cast<double>(*from), 9000, 1);
  EXPECT_EQ(LoadFromTokens(Plain(100), cost, 1'000'000'000, 100'000), 1u);
  EXPECT_EQ(LoadFromTokens(Plain(100), cost, 10'000, 8000), std::nullopt);
}

TEST(PrefillCost, WhatDoesNotAgreeIsSaid) {
  const auto why = [](const std::vector<PrefillPoint>& points) {
    return WhyPrefillsDisagree(points, PrefillCost(points));
  };
  EXPECT_EQ(why({{1000, 2.0}}), "");
  EXPECT_EQ(why({{1000, 2.0}, {4000, 20.0}, {8000, 79.0}}), "");
  EXPECT_EQ(why({{1000, 2.0}, {1000, 2.4}}), "") << "measured twice";
  EXPECT_THAT(why({{1000, 4.0}, {8000, 2.0}}), testing::HasSubstr("1000 tokens took 4 s"));
  EXPECT_THAT(why({{1000, 1.0}, {2000, 8.0}}), testing::HasSubstr("2000 tokens took 8 s"));
}

TEST(CapacityPlan, TiersAndPrefillsAreReadOrNamed) {
  PlannedTier tier;
  ASSERT_TRUE(ParseTier("nvme=4TiB@6GiB/s", &tier).ok());
  EXPECT_EQ(tier.name, "nvme");
  EXPECT_EQ(tier.capacity_bytes, uint64_t{4} << 40);
  EXPECT_EQ(tier.bytes_per_s, uint64_t{6} << 30);
  ASSERT_TRUE(ParseTier("dram=64G", &tier).ok());
  EXPECT_EQ(tier.bytes_per_s, 0u);
  for (const char* text : {"", "dram", "=4G", "dram=", "dram=x", "dram=0", "dram=4G@", "dram=4G@0",
                           "dram=4G@fast/s", "dram=-4G"}) {
    const Error error = ParseTier(text, &tier);
    EXPECT_NE(error.sentence().find(std::string("--tier '") + text + "'"), std::string::npos);
  }
  PrefillPoint point;
  ASSERT_TRUE(ParsePrefill("8K=1.5s", &point).ok());
  EXPECT_EQ(point.token_count, 8192u);
  EXPECT_DOUBLE_EQ(point.seconds, 1.5);
  for (const char* text : {"", "8192", "8192=", "8192=0", "8192=-1", "0=1", "x=1", "1=nan", "1=1x",
                           "1=1e-320", "1=1e300", "8G=1"}) {
    EXPECT_FALSE(ParsePrefill(text, &point).ok()) << text;
  }
}

}  // namespace
}  // namespace terrace::tools

#include "daemon/policy/capacity_curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "daemon/policy/hit_meter.h"
#include "tests/unit/replay/synthetic_trace.h"
#include "tools/replay/lru_curve.h"
#include "tools/replay/replay_cache.h"
#include "tools/terrace/trace/trace_reader.h"

namespace terrace::tools {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kBlockBytes = 1000;

TEST(CapacityCurve, DistancesAreTheBytesUsedSince) {
  CapacityCurve curve(uint64_t{1} << 40, 1);
  std::vector<BlockKey> keys;
  for (uint64_t i = 0; keys.size() < 1000; ++i) {
    const BlockKey key{.low = i, .high = i};
    if (curve.IsSampled(key)) keys.push_back(key);
  }
  EXPECT_EQ(curve.DistanceOf(keys[0]), CapacityCurve::kFar);
  for (const BlockKey& key : keys) curve.Use(key, kBlockBytes);
  for (size_t i = 0; i < keys.size(); ++i) {
    const double since = (static_cast<double>(keys.size() - i) - 0.5) * kBlockBytes;
    ASSERT_EQ(curve.DistanceOf(keys[i]), since * curve.weight());
  }
  curve.Use(keys[0], kBlockBytes);
  EXPECT_EQ(curve.DistanceOf(keys[0]), kBlockBytes * curve.weight() / 2);
}

TEST(CapacityCurve, BlocksBeyondTheSpanAreFar) {
  CapacityCurve curve(100 * kBlockBytes, 1);
  std::vector<BlockKey> keys;
  for (uint64_t i = 0; keys.size() < 500; ++i) {
    const BlockKey key{.low = i, .high = i};
    if (!curve.IsSampled(key)) continue;
    keys.push_back(key);
    curve.Use(key, kBlockBytes);
  }
  EXPECT_EQ(curve.DistanceOf(keys[0]), CapacityCurve::kFar);
  EXPECT_LT(curve.DistanceOf(keys.back()), 100 * kBlockBytes);
}

// Hit rates at 0.5, 1, 2 and 4 times a capacity: the meter's, and LRU's of a whole replay.
void ExpectWithinTwoPoints(const DenseTrace& trace, uint32_t capacity_blocks) {
  const LruCurve exact(trace);
  HitMeter meter({.dram_bytes = capacity_blocks * kBlockBytes, .seed = 5});
  std::vector<BlockKey> keys;
  for (size_t r = 0; r < trace.request_count(); ++r) {
    keys.clear();
    for (const BlockId id : trace.path(r)) keys.push_back(ReplayCache::KeyOf(id));
    meter.OnAsked(0, keys, kBlockBytes, 0);
  }
  const protocol::HitRateCounts counts = meter.Counts(0, 0).back();
  ASSERT_EQ(counts.sampled_asked, trace.touch_count());
  const auto asked = static_cast<double>(trace.touch_count());
  for (size_t f = 0; f < protocol::kHitRateFactorsHalves.size(); ++f) {
    const uint32_t blocks = capacity_blocks / 2 * protocol::kHitRateFactorsHalves[f];
    const double estimate =
        100 * static_cast<double>(static_cast<int64_t>(counts.sampled_hit_if_dram[f])) / asked;
    const double truth = 100 * static_cast<double>(exact.HitsAt(blocks)) / asked;
    EXPECT_LT(std::abs(estimate - truth), 2.0)
        << blocks << " blocks: estimated " << estimate << " %, " << truth << " % in a replay";
  }
}

// Domains of large blocks have few: 704 asked for in turn, where LRU hits all or nothing.
TEST(HitMeter, OfFewBlocksAllAreCounted) {
  constexpr uint32_t kBlocks = 704, kTierBlocks = 512, kTurns = 8;
  HitMeter meter(
      {.dram_bytes = kTierBlocks * kBlockBytes, .below_bytes = kBlocks * kBlockBytes, .seed = 5});
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < kTurns * kBlocks; ++i) {
    keys.assign(1, ReplayCache::KeyOf(i % kBlocks));
    meter.OnAsked(0, keys, kBlockBytes, 0);
  }
  EXPECT_EQ(meter.weight(), 1u);
  const protocol::HitRateCounts counts = meter.Counts(0, 0).back();
  const uint64_t all_again = uint64_t{kTurns - 1} * kBlocks;
  EXPECT_THAT(counts.sampled_hit_if_dram, ElementsAre(0, 0, all_again, all_again));
  EXPECT_THAT(counts.sampled_hit_if_below, ElementsAre(0, all_again, all_again, all_again));
}

TEST(HitMeter, OtherCapacitiesAreWithinTwoPointsOfAReplay) {
  DenseTrace trace;
  std::string why;
  ASSERT_TRUE(trace.Build(MakeRandomTrace(3, 20'000), &why)) << why;
  for (const uint32_t share : {50, 20, 8}) {
    SCOPED_TRACE(share);
    ExpectWithinTwoPoints(trace, trace.unique_count() / share);
  }
}

TEST(HitMeter, OtherCapacitiesAreWithinTwoPointsOfAReplayOfRealTraces) {
  const char* const directory = std::getenv("TERRACE_TRACES");
  if (directory == nullptr) {
    GTEST_SKIP() << "no recorded traces: name their directory in TERRACE_TRACES";
  }
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    if (!file.path().string().ends_with(".jsonl.gz")) continue;
    SCOPED_TRACE(file.path());
    Trace recorded;
    DenseTrace trace;
    std::string why;
    ASSERT_TRUE(ReadTrace(file.path(), {.request_count_max = 1u << 20}, &recorded, &why)) << why;
    ASSERT_TRUE(trace.Build(recorded, &why)) << why;
    for (const uint32_t share : {100, 50, 20, 10}) {
      SCOPED_TRACE(share);
      ExpectWithinTwoPoints(trace, trace.unique_count() / share);
    }
  }
}

}  // namespace
}  // namespace terrace::tools

// The power fails at any moment: what a sync covered is there, what it did not cover is there, gone
// or torn, and no wrong byte ever verifies. TERRACE_SIM_SEEDS: how many losses of power, kSeedsMin
// at least.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "sim/nvme_world.h"

namespace terrace::sim {
namespace {

constexpr uint64_t kSyncUsMax = 20'000;  // behind all that was asked of the drive before it

constexpr uint64_t kSeedsMin = 100;  // fewer lose nothing that is old enough to show the bound

uint64_t SeedCount(uint64_t otherwise) {
  const char* text = std::getenv("TERRACE_SIM_SEEDS");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// PROMISE: T10 losses of power
TEST(NvmePower, NoLossOfPowerMakesWrongBytesVerify) {
  NvmeWorld::Counts sum;
  const uint64_t seeds = std::max(SeedCount(300), kSeedsMin);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    NvmeWorld world({.seed = seed, .disk_count = 1 + seed % 2, .slab_count = 4});
    world.Run(100 + seed % 150);
    if (seed % 3 != 0) world.Settle();
    world.Run(seed % 97);
    world.Restart(NvmeWorld::Ending::kPowerLoss);
    world.Run(50);
    world.Restart(seed % 2 == 0 ? NvmeWorld::Ending::kPowerLoss : NvmeWorld::Ending::kKill);
    for (const std::string& complaint : world.complaints()) {
      ADD_FAILURE() << "seed " << seed << ": " << complaint;
    }
    ASSERT_EQ(world.counts().lies, 0u) << "seed " << seed;
    if (HasFailure()) return;
    sum.reads_right += world.counts().reads_right;
    sum.reads_detected += world.counts().reads_detected;
    sum.restored += world.counts().restored;
    sum.lost_to_power += world.counts().lost_to_power;
    sum.lost_age_us_max = std::max(sum.lost_age_us_max, world.counts().lost_age_us_max);
  }
  std::cout << seeds << " seeds: restored " << sum.restored << ", right " << sum.reads_right
            << ", detected " << sum.reads_detected << ", lies 0; of " << sum.lost_to_power
            << " lost the oldest was persisted " << sum.lost_age_us_max / 1000 << " ms before\n";
  // A sync begins each second, and takes its time.
  EXPECT_LE(sum.lost_age_us_max, kUsPerSecond + kSyncUsMax);
  EXPECT_GT(sum.lost_age_us_max, kUsPerSecond / 2) << "nothing was lost: no test";
  EXPECT_GT(sum.reads_right, seeds * 10);
  EXPECT_GT(sum.reads_detected, seeds / 50) << "the power never tore anything: no test";
}

}  // namespace
}  // namespace terrace::sim

// NvmeTier against a map of what was stored, over clean stops and kills.
#include <gtest/gtest.h>

#include "sim/nvme_world.h"

namespace terrace::sim {
namespace {

std::string Joined(const std::vector<std::string>& complaints) {
  std::string all;
  for (const std::string& complaint : complaints) all += complaint + "\n";
  return all;
}

class NvmeTierModel : public testing::TestWithParam<uint64_t> {};

TEST_P(NvmeTierModel, HoldsWhatAMapHoldsOverRestarts) {
  const uint64_t seed = GetParam();
  NvmeWorld world({.seed = seed, .disk_count = 1 + seed % 3});
  for (int life = 0; life < 8; ++life) {
    world.Run(600);
    world.Restart(life % 2 == 0 ? NvmeWorld::Ending::kCleanStop : NvmeWorld::Ending::kKill);
    ASSERT_TRUE(world.complaints().empty()) << "seed " << seed << "\n"
                                            << Joined(world.complaints());
  }
  EXPECT_GT(world.counts().stored, 100u);
  EXPECT_GT(world.counts().restored, 100u);
  EXPECT_EQ(world.counts().lies, 0u);
}
INSTANTIATE_TEST_SUITE_P(Seeds, NvmeTierModel, testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace terrace::sim

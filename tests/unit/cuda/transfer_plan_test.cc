#include "cuda/copy/transfer_plan.h"

#include <gtest/gtest.h>

#include "cuda/host/host_device.h"
#include "tests/sim/paged_world.h"

namespace terrace {
namespace {

PagedNest NestOf(TestCache* cache, uint64_t head_bytes) {
  *cache = MakeCache("nhd_planes_outer", {.head_bytes = head_bytes});
  std::string why;
  return std::move(CompileNest(cache->layout, {}, &why)).value();
}

TEST(TransferPlan, TheRuleGoesByTheLengthOfRuns) {
  TestCache cache;
  EXPECT_EQ(PlanByRule(NestOf(&cache, 128), false).store_path, TransferPath::kStaged);
  EXPECT_EQ(PlanByRule(NestOf(&cache, 4096), false).store_path, TransferPath::kStaged);
  EXPECT_EQ(PlanByRule(NestOf(&cache, 8192), false).load_path, TransferPath::kDirect)
      << "16 tokens of 2 heads of 8 KiB are 256 KiB";
  EXPECT_EQ(PlanByRule(NestOf(&cache, 1024), true).store_path, TransferPath::kZeroCopy);
}

TEST(TransferPlan, CalibrationChoosesTheFastestThatItTried) {
  const Device device = std::move(Device::Open(HostDeviceOps())).value();
  TestCache cache;
  const PagedNest nest = NestOf(&cache, 128);
  const TransferPlan plan = Calibrate(device, nest, {});
  ASSERT_FALSE(plan.measurements.empty());
  double best_store = 0;
  double of_chosen = 0;
  for (const PathMeasurement& measured : plan.measurements) {
    if (measured.direction != PagedDirection::kGather) continue;
    best_store = std::max(best_store, measured.bytes_per_second);
    if (measured.path == plan.store_path) of_chosen = measured.bytes_per_second;
  }
  EXPECT_EQ(of_chosen, best_store);
  EXPECT_EQ(plan.Apply({}).store_path, plan.store_path);
  EXPECT_EQ(plan.Apply({}).load_path, plan.load_path);
}

// A device that makes nothing: the rule stands.
TEST(TransferPlan, WithoutScratchMemoryTheRuleDecides) {
  static DeviceOps ops = HostDeviceOps();
  ops.allocate = [](DeviceHandle*, DeviceMemory, uint64_t, void**) -> DeviceStatus {
    return {static_cast<int32_t>(StatusCode::kNoSpace), 0, "no memory"};
  };
  const Device device = std::move(Device::Open(ops)).value();
  TestCache cache;
  const TransferPlan plan = Calibrate(device, NestOf(&cache, 128), {});
  EXPECT_TRUE(plan.measurements.empty());
  EXPECT_EQ(plan.store_path, TransferPath::kZeroCopy);
}

}  // namespace
}  // namespace terrace

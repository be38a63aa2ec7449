// The four edges under delayed and reordered streams. TERRACE_SIM_SEEDS sets the number of seeds;
// the claim for a release is 10,000 without a mismatch.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <string>

#include "tests/sim/engine_world.h"

namespace terrace {
namespace {

constexpr uint64_t kSeedsDefault = 500;
constexpr uint64_t kMutationSeedsMax = 1000;

uint64_t SeedCount() {
  const char* text = std::getenv("TERRACE_SIM_SEEDS");
  const uint64_t count = text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
  return count == 0 ? kSeedsDefault : count;
}

// PROMISE: T04 streams that run late
TEST(Edges, DelayedAndReorderedStreamsNeverShowAWrongByte) {
  uint64_t stored_count = 0;
  uint64_t loaded_count = 0;
  for (uint64_t seed = 1; seed <= SeedCount(); ++seed) {
    EngineWorld world({.seed = seed});
    ASSERT_EQ(world.Run(), 0u) << world.first_mismatch();
    ASSERT_EQ(world.failed_count(), 0u) << "seed " << seed;
    ASSERT_EQ(world.events_taken(), 0u) << "events leaked, seed " << seed;
    stored_count += world.store_count();
    loaded_count += world.load_count();
  }
  EXPECT_GT(stored_count, 5 * SeedCount());
  EXPECT_GT(loaded_count, 2 * SeedCount());
  std::printf(
      "%llu seeds: %llu blocks stored, %llu loads\n", static_cast<unsigned long long>(SeedCount()),
      static_cast<unsigned long long>(stored_count), static_cast<unsigned long long>(loaded_count));
}

TEST(Edges, ACopyThatFailedIsNeverCalledWritten) {
  uint64_t failed_count = 0;
  for (uint64_t seed = 1; seed <= SeedCount(); ++seed) {
    EngineWorld world({.seed = seed, .copy_failures_per_million = 5000});
    ASSERT_EQ(world.Run(), 0u) << world.first_mismatch();
    failed_count += world.failed_count();
  }
  EXPECT_GT(failed_count, 0u) << "no copy failed, so nothing was shown";
}

// Registered while copies run, taken out as soon as none holds them, and some never registered.
// PROMISE: T26 registrations that fail
TEST(Pins, CopiesThatRaceWithRegistrationAreRightToTheByte) {
  uint64_t loaded_count = 0;
  HostPins::Counts sum;
  for (uint64_t seed = 1; seed <= SeedCount(); ++seed) {
    EngineWorld world({.seed = seed,
                       .operation_count = 60,
                       .has_pins = true,
                       .registration_failures_per_million = 200'000});
    ASSERT_EQ(world.Run(), 0u) << world.first_mismatch();
    ASSERT_EQ(world.stray_count(), 0u) << "not registered when its copy ran, seed " << seed;
    ASSERT_EQ(world.failed_count(), 0u) << "seed " << seed;
    ASSERT_EQ(world.events_taken(), 0u) << "events leaked, seed " << seed;
    loaded_count += world.load_count();
    sum.straight_bytes += world.pin_counts().straight_bytes;
    sum.bounced_bytes += world.pin_counts().bounced_bytes;
    sum.failed_count += world.pin_counts().failed_count;
  }
  EXPECT_GT(loaded_count, 2 * SeedCount());
  EXPECT_GT(sum.straight_bytes, sum.bounced_bytes / 10);
  EXPECT_GT(sum.bounced_bytes, sum.straight_bytes / 10);
  EXPECT_GT(sum.failed_count, SeedCount() / 4);
}

// PROMISE: T26 each registration of a run that fails, alone
TEST(Pins, EachRegistrationThatFailsAloneCostsABounceAndNoByte) {
  constexpr uint64_t kRuns = 50;
  uint32_t failed_sum = 0;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    EngineWorldOptions options{.seed = seed, .operation_count = 60, .has_pins = true};
    for (uint32_t tried = 1; options.failing_registration <= tried;
         ++options.failing_registration) {
      EngineWorld world(options);
      ASSERT_EQ(world.Run(), 0u) << world.first_mismatch();
      ASSERT_EQ(world.stray_count(), 0u) << "not registered when its copy ran, seed " << seed;
      ASSERT_EQ(world.failed_count(), 0u) << "a copy failed, seed " << seed;
      ASSERT_EQ(world.events_taken(), 0u) << "events leaked, seed " << seed;
      if (options.failing_registration == 0) tried = world.registrations_tried();
      const bool is_reached = options.failing_registration > 0 &&
                              world.registrations_tried() >= options.failing_registration;
      ASSERT_EQ(world.pin_counts().failed_count, is_reached ? 1u : 0u) << "seed " << seed;
      failed_sum += is_reached ? 1 : 0;
    }
  }
  EXPECT_GT(failed_sum, 2 * kRuns);
  std::printf("%u registrations failed, each in a run of its own\n", failed_sum);
}

TEST(Pins, MemoryUnmappedUnderACopyIsNoticed) {
  for (uint64_t seed = 1; seed <= kMutationSeedsMax; ++seed) {
    EngineWorld world({.seed = seed, .has_pins = true, .unmaps_under_copies = true});
    (void)world.Run();
    if (world.stray_count() > 0) return;
  }
  FAIL() << "1,000 seeds unmapped memory under copies, and none was seen to touch it";
}

// The proof that the first test can fail: without any one kind of wait, wrong bytes are seen soon.
class DroppedEdge : public testing::TestWithParam<StreamEdge> {};

// PROMISE: T04 each edge left out is seen
TEST_P(DroppedEdge, IsCaughtWithinAThousandSeeds) {
  for (uint64_t seed = 1; seed <= kMutationSeedsMax; ++seed) {
    EngineWorld world({.seed = seed, .dropped_edge = GetParam()});
    if (world.Run() > 0) {
      std::printf("caught by %s\n", world.first_mismatch().c_str());
      return;
    }
  }
  FAIL() << "1,000 seeds ran without this edge and saw no wrong byte";
}

std::string NameOf(const testing::TestParamInfo<StreamEdge>& edge) {
  constexpr const char* kNames[] = {"KvWritten", "PageReuse", "DestinationFree", "LayerReady",
                                    "Staging"};
  static_assert(std::size(kNames) == kStreamEdgeCount);
  return kNames[static_cast<size_t>(edge.param)];
}

INSTANTIATE_TEST_SUITE_P(Edges, DroppedEdge,
                         testing::Values(StreamEdge::kKvWritten, StreamEdge::kPageReuse,
                                         StreamEdge::kDestinationFree, StreamEdge::kLayerReady,
                                         StreamEdge::kStaging),
                         NameOf);

}  // namespace
}  // namespace terrace

// How much of a prefix is usable, of any length of it.
#include "daemon/store/prefix_walk.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/unit/daemon/store/store_fixture.h"

namespace terrace {
namespace {

class PrefixWalkTest : public ::testing::Test {
 protected:
  PrefixWalkTest() {
    const Status opened = group.Open(
        TestGroup("windows", {TestSpace(0), TestSpace(1, /*window_blocks=*/2), TestSpace(2, 3)}), 1,
        &allocator, &classes);
    EXPECT_TRUE(opened.ok());
  }
  PrefixWalk Walked(std::span<const uint64_t> members, uint32_t first_position = 0) const {
    PrefixWalk walk{.first_position = first_position};
    for (const uint64_t mask : members) EXPECT_TRUE(WalkOn(group, mask, &walk));
    return walk;
  }

  std::vector<std::byte> table = std::vector<std::byte>(SlotTableBytes(kSegmentBytesMin, 1));
  SlotAllocator allocator{
      {.segment_bytes = kSegmentBytesMin, .segments_max = 1, .slot_table = table}};
  SlotClasses classes;
  Group group;
};

TEST_F(PrefixWalkTest, OfAnyLengthIsUsableAsIfItHadBeenWalkedNoFurther) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint64_t> members(random() % 60);
    for (uint64_t& mask : members) {
      // In half of the rounds windows are seldom whole.
      mask = 1 | (random() % 8 < (round % 2 == 0 ? 7U : 4U) ? 2 : 0) |
             (random() % 8 < (round % 2 == 0 ? 7U : 4U) ? 4 : 0);
    }
    const auto first_position = static_cast<uint32_t>(random() % 3);
    const PrefixWalk walk = Walked(members, first_position);
    for (size_t length = 0; length <= members.size(); ++length) {
      const uint32_t expected =
          Walked(std::span(members).first(length), first_position).usable_count;
      ASSERT_EQ(UsableWithin(walk, length), expected) << round << " " << length;
    }
    EXPECT_EQ(UsableWithin(walk, members.size() + 1), walk.usable_count);
  }
}

TEST_F(PrefixWalkTest, WhatIsReadyAtOnceIsUsableAtEveryLength) {
  PrefixWalk walk;
  WalkOnReady(group, 7, &walk);
  EXPECT_TRUE(WalkOn(group, 7, &walk));
  EXPECT_TRUE(WalkOn(group, 1, &walk));
  EXPECT_TRUE(WalkOn(group, 7, &walk));
  for (uint32_t length = 0; length <= 8; ++length) EXPECT_EQ(UsableWithin(walk, length), length);
  EXPECT_EQ(UsableWithin(walk, 10), 8U) << "two blocks before the next token lack a window";
  EXPECT_EQ(walk.usable_runs.size(), 1U);
}

TEST_F(PrefixWalkTest, WhatIsTriedOnwardsKnowsAllButTheRunsBehindIt) {
  PrefixWalk walk = Walked(std::vector<uint64_t>{7, 7, 5, 7});
  PrefixWalk tried = walk.Onwards();
  for (const uint64_t mask : {7, 7, 1, 7}) {
    EXPECT_TRUE(WalkOn(group, mask, &walk));
    EXPECT_TRUE(WalkOn(group, mask, &tried));
    EXPECT_EQ(tried.walked_count, walk.walked_count);
    EXPECT_EQ(tried.usable_count, walk.usable_count);
  }
}

}  // namespace
}  // namespace terrace

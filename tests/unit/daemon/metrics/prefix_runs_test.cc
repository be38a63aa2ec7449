#include "daemon/metrics/prefix_runs.h"

#include <gmock/gmock.h>

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr GroupId kGroup{.low = 1};

struct Tree {
  Tree() : runs({{kGroup, 10.0}}) {}
  void Add(uint64_t key, uint64_t parent, uint32_t child_count, uint32_t hit_count,
           GroupId group = kGroup) {
    EXPECT_TRUE(runs.Add({.key = {.low = key},
                          .parent = {.low = parent},
                          .group = group,
                          .byte_count = 100,
                          .hit_count = hit_count,
                          .child_count = child_count}));
  }
  PrefixRuns runs;
};

// A head of two blocks, and two tails of two and one.
Tree Forked() {
  Tree tree;
  tree.Add(1, 0, 1, 5);
  tree.Add(2, 1, 2, 5);
  tree.Add(3, 2, 1, 4);
  tree.Add(4, 3, 0, 4);
  tree.Add(5, 2, 0, 1);
  tree.runs.Finish();
  return tree;
}

TEST(PrefixRuns, AChainIsCutWhereItParts) {
  const Tree tree = Forked();
  const auto runs = tree.runs.runs();
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].block_count, 2u);
  EXPECT_EQ(runs[0].last.low, 2u);
  EXPECT_EQ(runs[1].block_count, 2u);
  EXPECT_EQ(runs[1].parent, 0u);
  EXPECT_EQ(runs[2].block_count, 1u);
  EXPECT_EQ(runs[2].parent, 0u);
}

TEST(PrefixRuns, WhatIsSavedIsSummedOverTheTree) {
  const Tree tree = Forked();
  const auto runs = tree.runs.runs();
  EXPECT_DOUBLE_EQ(runs[0].saved_us, 100);
  EXPECT_DOUBLE_EQ(runs[1].saved_us, 80);
  EXPECT_DOUBLE_EQ(runs[0].tree_saved_us, 190);
  EXPECT_EQ(runs[0].tree_block_count, 5u);
  EXPECT_DOUBLE_EQ(runs[0].saved_us_per_byte(), 0.5);
}

TEST(PrefixRuns, TheBestComeWithAllAboveThem) {
  const Tree tree = Forked();
  EXPECT_THAT(BestTree(tree.runs.runs(), 2), ElementsAre(0, 1));
  EXPECT_THAT(BestTree(tree.runs.runs(), 9), ElementsAre(0, 1, 2));
  EXPECT_THAT(BestPerByte(tree.runs.runs(), 2), ElementsAre(0, 1));
}

TEST(PrefixRuns, WhatWasNeverHitOrHasNoPriceIsNoTopPrefix) {
  Tree tree;
  tree.Add(1, 0, 0, 0);
  tree.Add(1, 0, 0, 9, GroupId{.low = 2});
  tree.runs.Finish();
  EXPECT_THAT(BestPerByte(tree.runs.runs(), 9), IsEmpty());
  EXPECT_THAT(BestTree(tree.runs.runs(), 9), ElementsAre(0, 1));
}

TEST(PrefixRuns, MoreBlocksThanTheBoundAreNotTaken) {
  Tree tree;
  for (uint32_t i = 1; i <= PrefixRuns::kBlocksMax; ++i) tree.Add(i, i - 1, 1, 0);
  EXPECT_FALSE(tree.runs.Add({.key = {.low = 99}}));
  EXPECT_EQ(tree.runs.block_count(), PrefixRuns::kBlocksMax);
}

}  // namespace
}  // namespace terrace

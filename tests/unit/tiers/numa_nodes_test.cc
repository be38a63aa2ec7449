#include "tiers/arena/numa_nodes.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

using Nodes = std::vector<uint32_t>;

TEST(NumaNodes, ReadsTheKernelsLists) {
  EXPECT_EQ(ParseNodeList("0\n"), Nodes({0}));
  EXPECT_EQ(ParseNodeList("0-3"), Nodes({0, 1, 2, 3}));
  EXPECT_EQ(ParseNodeList("0-1,4,8-9\n"), Nodes({0, 1, 4, 8, 9}));
}

TEST(NumaNodes, WhatIsNoListIsEmpty) {
  for (const char* text : {"", "\n", "x", "0-", "-1", "1-0", "0,,1", "0,", "0 1", "0-4000000000"}) {
    EXPECT_EQ(ParseNodeList(text), Nodes()) << text;
  }
}

TEST(NumaNodes, NodeZeroAloneWhereTheKernelDoesNotSay) {
  EXPECT_EQ(NodesWithMemory("/nonexistent"), Nodes({0}));
  EXPECT_FALSE(NodesWithMemory().empty());
}

}  // namespace
}  // namespace terrace

#include "tools/terrace/cli/block_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace terrace::tools {
namespace {

using protocol::ListEntry;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

ListEntry Block(uint64_t key, uint64_t parent, uint32_t position) {
  ListEntry entry;
  entry.key.low = key;
  entry.parent.low = parent;
  entry.group.low = 9;
  entry.position = position;
  entry.byte_count = 1024;
  entry.tier_mask = 2;
  return entry;
}

// 1 ─ 2 ─ 3 ─┬─ 4 ─ 5
//            └─ 6 ─┬─ 7
//                  └─ 8
std::vector<ListEntry> Branching() {
  return {Block(1, 0, 0), Block(2, 1, 1), Block(3, 2, 2), Block(4, 3, 3),
          Block(5, 4, 4), Block(6, 3, 3), Block(7, 6, 4), Block(8, 6, 4)};
}

std::vector<uint64_t> KeysOf(const BlockRun& run) {
  std::vector<uint64_t> keys;
  for (const ListEntry* block : run.blocks) keys.push_back(block->key.low);
  return keys;
}

TEST(BlockTree, ChainsAreOneRunAndBranchesEndThem) {
  const auto entries = Branching();
  const BlockTree tree(entries);
  ASSERT_EQ(tree.runs().size(), 5u);
  EXPECT_THAT(tree.roots(), ElementsAre(0));
  EXPECT_THAT(KeysOf(tree.runs()[0]), ElementsAre(1, 2, 3));
  EXPECT_THAT(KeysOf(tree.runs()[1]), ElementsAre(4, 5));
  EXPECT_THAT(KeysOf(tree.runs()[2]), ElementsAre(6));
  EXPECT_THAT(tree.runs()[0].children, ElementsAre(1, 2));
  EXPECT_THAT(tree.runs()[2].children, ElementsAre(3, 4));
}

TEST(BlockTree, OrderOfTheListingDoesNotMatter) {
  auto entries = Branching();
  std::reverse(entries.begin(), entries.end());
  const BlockTree tree(entries);
  EXPECT_EQ(tree.runs().size(), 5u);
  EXPECT_THAT(KeysOf(tree.runs()[0]), ElementsAre(1, 2, 3));
}

TEST(BlockTree, ABlockWhoseParentIsGoneIsARoot) {
  const std::vector<ListEntry> entries = {Block(2, 1, 1), Block(5, 5, 0)};  // 5 names itself
  const BlockTree tree(entries);
  EXPECT_THAT(tree.roots(), ElementsAre(0, 1));
}

TEST(BlockTree, OneLineARunWithConnectors) {
  const auto entries = Branching();
  GroupId group;
  group.low = 9;
  const std::string text = BlockTree(entries).Render(10, {{group, "llama"}});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 6);  // the group and five runs
  EXPECT_THAT(text, HasSubstr("llama\n"));
  EXPECT_THAT(text, HasSubstr("0-2  3 blocks, 3.0 KiB, dram"));
  EXPECT_THAT(text, HasSubstr("\n├─ 00000000000000000000000000000004"));
  EXPECT_THAT(text, HasSubstr("\n└─ 00000000000000000000000000000006"));
  EXPECT_THAT(text, HasSubstr("\n   ├─ 00000000000000000000000000000007"));
  EXPECT_THAT(text, HasSubstr("\n   └─ 00000000000000000000000000000008"));
}

TEST(BlockTree, BelowTheDepthOnlySumsAreShown) {
  const auto entries = Branching();
  const std::string text = BlockTree(entries).Render(1, {});
  EXPECT_THAT(text, HasSubstr("below it 5 blocks, 5.0 KiB"));
  EXPECT_THAT(text, Not(HasSubstr("├─")));
  const nlohmann::json runs = BlockTree(entries).ToJson(2, {});
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[2]["below_block_count"], 2);
  EXPECT_EQ(runs[0]["below_byte_count"], 5 * 1024);
}

TEST(BlockTree, DeepTreesNeedNoStack) {
  std::vector<ListEntry> entries;
  constexpr uint32_t kDeep = 20'000;
  for (uint32_t i = 1; i <= kDeep; ++i) {  // a chain of even keys, a leaf of odd key at every block
    entries.push_back(Block(2 * i, i == 1 ? 0 : 2 * (i - 1), i));
    if (i > 1) entries.push_back(Block(2 * i + 1, 2 * (i - 1), i));
  }
  const BlockTree tree(entries);
  EXPECT_EQ(tree.roots().size(), 1u);
  uint32_t depth_max = 0;
  for (const BlockRun& run : tree.runs()) depth_max = std::max(depth_max, run.depth);
  EXPECT_EQ(depth_max, kDeep - 1);
}

}  // namespace
}  // namespace terrace::tools

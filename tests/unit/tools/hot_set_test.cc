#include "tools/terrace/content/hot_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace terrace::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

BlockKey Key(uint64_t number) { return {.low = number, .high = 1}; }
HotBlock Block(uint64_t number, uint64_t parent, uint32_t position, uint64_t idle_ms,
               uint32_t hit_count = 0) {
  return {.key = Key(number),
          .parent = parent == 0 ? BlockKey() : Key(parent),
          .idle_ms = idle_ms,
          .position = position,
          .hit_count = hit_count};
}
uint64_t Ten(const GroupId&) { return 10; }

TEST(HotSet, TheHottestAndAllBeforeThemAreChosenColdestPromptFirst) {
  // 1 ─ 2 ─ 3 (hot)      4 ─ 5 (warm)      6 (cold)
  const HotChoice choice =
      ChooseHot({Block(1, 0, 0, 900'000), Block(2, 1, 1, 900'000), Block(3, 2, 2, 0),
                 Block(4, 0, 0, 100'000), Block(5, 4, 1, 100'000), Block(6, 0, 0, 900'000)},
                50, Ten);
  EXPECT_EQ(choice.block_count, 5u);
  EXPECT_EQ(choice.byte_count, 50u);
  EXPECT_THAT(choice.tips, ElementsAre(4u, 2u));
  EXPECT_THAT(choice.PathTo(2), ElementsAre(0u, 1u, 2u));
  EXPECT_THAT(choice.PathTo(4), ElementsAre(3u, 4u));
}

TEST(HotSet, ABudgetCutsTails) {
  const HotChoice choice =
      ChooseHot({Block(1, 0, 0, 0), Block(2, 1, 1, 0), Block(3, 2, 2, 0)}, 29, Ten);
  EXPECT_EQ(choice.block_count, 2u);
  EXPECT_THAT(choice.tips, ElementsAre(1u));
}

TEST(HotSet, OfEquallyFreshThoseThatWereUsedOftenComeFirst) {
  const HotChoice choice = ChooseHot(
      {Block(1, 0, 0, 1'000, 2), Block(2, 0, 0, 1'000, 9), Block(3, 0, 0, 1'000, 1)}, 10, Ten);
  EXPECT_THAT(choice.tips, ElementsAre(1u));
}

TEST(HotSet, WhatHasLostItsParentIsOfNoUse) {
  EXPECT_THAT(ChooseHot({Block(2, 1, 1, 0), Block(3, 2, 2, 0)}, 100, Ten).tips, IsEmpty());
  EXPECT_THAT(ChooseHot({Block(2, 0, 5, 0)}, 100, Ten).tips, IsEmpty());
}

TEST(HotSet, GroupsThatCannotBeOpenedAreLeftOut) {
  EXPECT_EQ(ChooseHot({Block(1, 0, 0, 0)}, 100, [](const GroupId&) { return 0; }).block_count, 0u);
}

}  // namespace
}  // namespace terrace::tools

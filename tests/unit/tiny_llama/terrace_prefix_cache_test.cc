#include "tiny_llama/terrace_prefix_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace terrace::tiny_llama {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(TerracePrefixCache, PageOfTheModelIsTheSlotOfItsSpace) {
  for (const Shape& shape : {Shape::Small(), Shape{.layers = 2}}) {
    const TinyLlama model(shape, 9);
    const SpaceGroupSpec group = GroupOf(model);
    std::string why;
    EXPECT_TRUE(group.Validate(&why).ok()) << why;
    ASSERT_THAT(group.members, SizeIs(1));
    EXPECT_EQ(group.members[0].spec.slot_bytes(), model.page_bytes());
    EXPECT_EQ(group.block_tokens(), shape.block_tokens);
  }
}

TEST(TerracePrefixCache, ModelsOfOtherBitsHaveOtherGroupsAndNames) {
  const SpaceGroupSpec group = GroupOf(TinyLlama(Shape::Small(), 9));
  EXPECT_EQ(group.Id(), GroupOf(TinyLlama(Shape::Small(), 9)).Id());
  EXPECT_NE(group.Id(), GroupOf(TinyLlama(Shape::Small(), 10)).Id());

  Shape narrower = Shape::Small();
  narrower.ffn_width -= 8;
  const SpaceGroupSpec other = GroupOf(TinyLlama(narrower, 9));
  EXPECT_NE(group.Id(), other.Id());
  EXPECT_NE(group.name, other.name);
}

TEST(TerracePrefixCache, WithoutADaemonTheModelComputesAndTheAccountSaysSo) {
  TinyLlama model(Shape::Small(), 9);
  const std::vector<uint8_t> prompt(70, 'a');
  InferenceResult alone;
  InferenceResult result;
  std::string why;
  ASSERT_TRUE(RunPrompt(model, prompt, {}, &alone, &why).ok());

  const std::string socket_path = testing::TempDir() + "/terrace-nobody-listens.sock";
  TerracePrefixCache cache(model,
                           {.socket_path = socket_path, .connect_deadline_us = 20 * kUsPerMs});
  ASSERT_TRUE(RunPrompt(model, prompt, {.cache = &cache}, &result, &why).ok());
  EXPECT_EQ(result.reused_tokens, 0u);
  EXPECT_EQ(result.LogitsDigest(), alone.LogitsDigest());
  EXPECT_EQ(cache.account().stored_blocks, 0u);
  ASSERT_THAT(cache.account().troubles, SizeIs(1));
  EXPECT_THAT(cache.account().troubles[0], HasSubstr(socket_path));
}

TEST(TerracePrefixCache, AccountNamesTheTiersInOrder) {
  TerracePrefixCache::Account account;
  EXPECT_THAT(account.RestoredTiers(), IsEmpty());
  account.restored_blocks_by_tier[static_cast<size_t>(protocol::TierKind::kNvme)] = 2;
  account.restored_blocks_by_tier[static_cast<size_t>(protocol::TierKind::kDram)] = 1;
  EXPECT_EQ(account.RestoredTiers(), "dram+nvme");
}

}  // namespace
}  // namespace terrace::tiny_llama

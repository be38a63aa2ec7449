#include "tiny_llama/inference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace terrace::tiny_llama {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kSeed = 5;

std::vector<uint8_t> Prompt(size_t tokens) {
  std::vector<uint8_t> prompt(tokens);
  for (size_t i = 0; i < tokens; ++i) prompt[i] = static_cast<uint8_t>(i * 13 + i / 7);
  return prompt;
}

// Pages by the whole prefix they stand for. After the last hit it leaves the next page spoiled, as
// a restore that failed half-way does.
class MapCache final : public PrefixCache {
 public:
  explicit MapCache(uint32_t block_tokens) : block_tokens_(block_tokens) {}

  uint32_t Restore(std::span<const uint8_t> tokens, PagedKv& kv) override {
    asked_tokens.push_back(tokens.size());
    uint32_t block = 0;
    for (; block < tokens.size() / block_tokens_; ++block) {
      const auto page = pages.find(PrefixOf(tokens, block));
      if (page == pages.end()) break;
      std::ranges::copy(page->second, kv.Page(block).begin());
    }
    std::ranges::fill(kv.Page(block), std::numeric_limits<float>::quiet_NaN());
    return block;
  }

  void Store(std::span<const uint8_t> tokens, PagedKv& kv, uint32_t first_block,
             uint32_t block_count) override {
    stored.emplace_back(first_block, block_count);
    for (uint32_t block = first_block; block < first_block + block_count; ++block) {
      const std::span<const float> page = kv.Page(block);
      pages[PrefixOf(tokens, block)] = {page.begin(), page.end()};
    }
  }

  std::map<std::string, std::vector<float>> pages;
  std::vector<size_t> asked_tokens;
  std::vector<std::pair<uint32_t, uint32_t>> stored;

 private:
  std::string PrefixOf(std::span<const uint8_t> tokens, uint32_t block) const {
    const auto prefix = tokens.first(size_t{block + 1} * block_tokens_);
    return {prefix.begin(), prefix.end()};
  }

  uint32_t block_tokens_;
};

class InferenceTest : public testing::Test {
 protected:
  InferenceResult RunWith(PrefixCache* cache, const std::vector<uint8_t>& prompt) {
    InferenceResult result;
    std::string why;
    EXPECT_TRUE(
        RunPrompt(model_, prompt, {.cache = cache, .generate_tokens = 24}, &result, &why).ok());
    return result;
  }

  TinyLlama model_{Shape::Small(), kSeed};
  MapCache cache_{16};
};

void ExpectSameAnswer(const InferenceResult& left, const InferenceResult& right) {
  ASSERT_EQ(left.logits.size(), kVocabulary);
  ASSERT_EQ(right.logits.size(), kVocabulary);
  EXPECT_EQ(std::memcmp(left.logits.data(), right.logits.data(), kVocabulary * sizeof(float)), 0);
  EXPECT_EQ(left.LogitsDigest(), right.LogitsDigest());
  EXPECT_EQ(left.generated, right.generated);
}

// PROMISE: T48 the example, bit for bit
TEST_F(InferenceTest, CacheChangesNoBitOfTheAnswer) {
  const InferenceResult alone = RunWith(nullptr, Prompt(101));
  EXPECT_EQ(alone.reused_tokens, 0u);
  EXPECT_EQ(alone.generated.size(), 24u);

  const InferenceResult first = RunWith(&cache_, Prompt(101));
  EXPECT_EQ(first.reused_tokens, 0u);
  ExpectSameAnswer(first, alone);

  const InferenceResult second = RunWith(&cache_, Prompt(101));
  EXPECT_EQ(second.reused_tokens, 96u);
  EXPECT_EQ(second.computed_tokens(), 5u);
  ExpectSameAnswer(second, alone);
  EXPECT_THAT(cache_.stored, ElementsAre(std::pair(0u, 6u)));
}

TEST_F(InferenceTest, LongerPromptReusesTheSharedPrefixAndStoresTheRest) {
  RunWith(&cache_, Prompt(50));
  const InferenceResult longer = RunWith(&cache_, Prompt(101));
  EXPECT_EQ(longer.reused_tokens, 48u);
  ExpectSameAnswer(longer, RunWith(nullptr, Prompt(101)));
  EXPECT_THAT(cache_.stored, ElementsAre(std::pair(0u, 3u), std::pair(3u, 3u)));
}

TEST_F(InferenceTest, BlockOfTheLastTokenIsComputedEvenIfCached) {
  RunWith(&cache_, Prompt(64));
  EXPECT_THAT(cache_.stored, ElementsAre(std::pair(0u, 4u)));
  const InferenceResult again = RunWith(&cache_, Prompt(64));
  EXPECT_EQ(again.reused_tokens, 48u);
  ExpectSameAnswer(again, RunWith(nullptr, Prompt(64)));
  EXPECT_THAT(cache_.asked_tokens, ElementsAre(48u, 48u));
  // One token more, and the fourth block is worth restoring.
  EXPECT_EQ(RunWith(&cache_, Prompt(65)).reused_tokens, 64u);
}

TEST_F(InferenceTest, PromptWithinOneBlockAsksNothingOfTheCache) {
  const InferenceResult result = RunWith(&cache_, Prompt(9));
  EXPECT_EQ(result.reused_tokens, 0u);
  EXPECT_THAT(cache_.asked_tokens, IsEmpty());
  EXPECT_THAT(cache_.stored, IsEmpty());
}

TEST_F(InferenceTest, WrongPageGivesAnotherDigest) {
  const InferenceResult right = RunWith(&cache_, Prompt(101));
  cache_.pages.rbegin()->second[17] += 0.25f;  // the last block restored
  EXPECT_NE(RunWith(&cache_, Prompt(101)).LogitsDigest(), right.LogitsDigest());
}

TEST_F(InferenceTest, ProgressCountsUpToThePromptAndItsEstimateEndsAtNothing) {
  RunWith(&cache_, Prompt(50));
  std::vector<uint32_t> tokens;
  std::vector<double> left_ms;
  InferenceResult result;
  std::string why;
  const RunOptions options{.cache = &cache_, .progress = [&](const PrefillProgress& progress) {
                             tokens.push_back(progress.tokens);
                             left_ms.push_back(progress.left_ms);
                           }};
  ASSERT_TRUE(RunPrompt(model_, Prompt(101), options, &result, &why).ok());
  EXPECT_THAT(tokens, ElementsAre(64u, 80u, 96u, 101u));
  EXPECT_GT(left_ms.front(), 0);
  EXPECT_EQ(left_ms.back(), 0);
}

TEST_F(InferenceTest, GreedyGenerationRepeatsInAnotherInstance) {
  TinyLlama twin(Shape::Small(), kSeed);
  InferenceResult result;
  std::string why;
  ASSERT_TRUE(RunPrompt(twin, Prompt(70), {.generate_tokens = 24}, &result, &why).ok());
  ExpectSameAnswer(result, RunWith(nullptr, Prompt(70)));
}

TEST_F(InferenceTest, RefusalsNameTheLimit) {
  InferenceResult result;
  std::string why;
  EXPECT_EQ(RunPrompt(model_, {}, {}, &result, &why).code(), StatusCode::kInvalid);
  EXPECT_THAT(why, HasSubstr("at least one byte"));
  EXPECT_EQ(RunPrompt(model_, Prompt(9), {.generate_tokens = 0}, &result, &why).code(),
            StatusCode::kInvalid);
  EXPECT_EQ(RunPrompt(model_, Prompt(16382), {.generate_tokens = 3}, &result, &why).code(),
            StatusCode::kInvalid);
  EXPECT_THAT(why, HasSubstr("the context of 16384 tokens"));
}

}  // namespace
}  // namespace terrace::tiny_llama

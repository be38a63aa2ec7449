#include "tiny_llama/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <vector>

#include "unit/tiny_llama/reference_llama.h"

namespace terrace::tiny_llama {
namespace {

constexpr uint64_t kSeed = 11;

std::vector<uint8_t> Prompt(size_t tokens) {
  std::vector<uint8_t> prompt(tokens);
  for (size_t i = 0; i < tokens; ++i) prompt[i] = static_cast<uint8_t>(i * i * 7 + i * 31 + 5);
  return prompt;
}

// Computes blocks from `first_block` to the end of the prompt; the logits of the last block's
// tokens.
std::vector<float> PrefillFrom(TinyLlama& model, PagedKv& kv, const std::vector<uint8_t>& prompt,
                               uint32_t first_block) {
  const size_t block_tokens = model.shape().block_tokens;
  std::vector<float> logits;
  for (size_t start = first_block * block_tokens; start < prompt.size(); start += block_tokens) {
    const size_t count = std::min(block_tokens, prompt.size() - start);
    model.PrefillBlock(kv, std::span(prompt).subspan(start, count),
                       static_cast<uint32_t>(start / block_tokens), &logits);
  }
  return logits;
}

// What a pool holds that other sequences used before.
void FillWithNan(PagedKv& kv, uint32_t page_count) {
  for (uint32_t page = 0; page < page_count; ++page) {
    std::ranges::fill(kv.Page(page), std::numeric_limits<float>::quiet_NaN());
  }
}

bool SameBits(std::span<const float> left, std::span<const float> right) {
  return left.size() == right.size() &&
         std::memcmp(left.data(), right.data(), left.size_bytes()) == 0;
}

// Largest difference over largest magnitude.
double RelativeError(std::span<const float> actual, std::span<const double> expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double difference = 0, magnitude = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    // Written so that a NaN is never taken for agreement.
    if (!(std::abs(actual[i] - expected[i]) <= difference)) {
      difference = std::abs(actual[i] - expected[i]);
    }
    magnitude = std::max(magnitude, std::abs(expected[i]));
  }
  return difference / magnitude;
}

double RelativeError(std::span<const float> actual, std::span<const float> expected) {
  return RelativeError(actual, std::vector<double>(expected.begin(), expected.end()));
}

struct BitCase {
  const char* name;
  Shape shape;
  size_t full_blocks;
  size_t partial_tokens;
};

void PrintTo(const BitCase& bit_case, std::ostream* out) { *out << bit_case.shape.CanonicalText(); }

class RestoredPrefix : public testing::TestWithParam<BitCase> {};

TEST_P(RestoredPrefix, GivesTheBitsOfAFullPrefill) {
  const Shape& shape = GetParam().shape;
  const size_t full_blocks = GetParam().full_blocks;
  const std::vector<uint8_t> prompt =
      Prompt(full_blocks * shape.block_tokens + GetParam().partial_tokens);
  const uint32_t page_count = static_cast<uint32_t>(full_blocks + (GetParam().partial_tokens > 0));
  TinyLlama storer(shape, kSeed);
  PagedKv stored = storer.NewKv();
  const std::vector<float> expected = PrefillFrom(storer, stored, prompt, 0);
  ASSERT_TRUE(std::ranges::all_of(expected, [](float logit) { return std::isfinite(logit); }));

  TinyLlama restorer(shape, kSeed);
  for (uint32_t restored = 0; restored < page_count; ++restored) {
    SCOPED_TRACE(restored);
    PagedKv kv = restorer.NewKv();
    FillWithNan(kv, page_count);
    for (uint32_t page = 0; page < restored; ++page) {
      std::ranges::copy(stored.PageBytes(page), kv.PageBytes(page).begin());
    }
    EXPECT_TRUE(SameBits(PrefillFrom(restorer, kv, prompt, restored), expected));
    for (uint32_t page = 0; page < page_count; ++page) {
      EXPECT_TRUE(SameBits(kv.Page(page), stored.Page(page))) << "page " << page;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RestoredPrefix,
                         testing::Values(BitCase{"PartialLastBlock", Shape::Small(), 5, 7},
                                         BitCase{"WholeLastBlock", Shape::Small(), 4, 0},
                                         BitCase{"OneTokenInLastBlock", Shape::Small(), 3, 1},
                                         BitCase{"DefaultWidths", Shape{.layers = 2}, 5, 33},
                                         BitCase{"OddWidths",
                                                 Shape{.layers = 3,
                                                       .d_model = 72,
                                                       .query_heads = 6,
                                                       .kv_heads = 2,
                                                       .head_size = 10,
                                                       .ffn_width = 101,
                                                       .block_tokens = 24,
                                                       .context_tokens_max = 240},
                                                 6, 5}),
                         [](const auto& info) { return info.param.name; });

class AgainstReference : public testing::TestWithParam<BitCase> {};

TEST_P(AgainstReference, LogitsKeysAndValuesAgree) {
  const Shape& shape = GetParam().shape;
  const std::vector<uint8_t> prompt =
      Prompt(GetParam().full_blocks * shape.block_tokens + GetParam().partial_tokens);
  ReferenceLlama reference(shape, kSeed);
  TinyLlama model(shape, kSeed);
  PagedKv kv = model.NewKv();
  std::vector<float> logits;
  for (uint32_t position = 0; position < prompt.size(); ++position) {
    const uint32_t row = position % shape.block_tokens;
    const uint32_t block = position / shape.block_tokens;
    if (row == 0) {
      model.PrefillBlock(
          kv,
          std::span(prompt).subspan(position,
                                    std::min<size_t>(shape.block_tokens, prompt.size() - position)),
          block, &logits);
    }
    const std::vector<double> expected = reference.Append(prompt[position]);
    ASSERT_LT(RelativeError(std::span(logits).subspan(row * kVocabulary, kVocabulary), expected),
              1e-3)
        << "position " << position;
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      for (uint32_t head = 0; head < shape.kv_heads; ++head) {
        const size_t place = size_t{row} * shape.head_size;
        const auto part = [&](const std::vector<double>& all) {
          return std::span(all).subspan(head * shape.head_size, shape.head_size);
        };
        const std::span<const float> page = kv.Page(block);
        ASSERT_LT(RelativeError(page.subspan(shape.KeyPlane(layer, head) + place, shape.head_size),
                                part(reference.keys(layer)[position])),
                  1e-3);
        ASSERT_LT(
            RelativeError(page.subspan(shape.ValuePlane(layer, head) + place, shape.head_size),
                          part(reference.values(layer)[position])),
            1e-3);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AgainstReference,
                         testing::Values(BitCase{"Small", Shape::Small(), 3, 5},
                                         BitCase{"EightQueryHeadsOverFour",
                                                 Shape{.layers = 2,
                                                       .d_model = 64,
                                                       .query_heads = 8,
                                                       .kv_heads = 4,
                                                       .head_size = 16,
                                                       .ffn_width = 96,
                                                       .block_tokens = 16,
                                                       .context_tokens_max = 64},
                                                 2, 9},
                                         BitCase{"SixQueryHeadsOverTwo",
                                                 Shape{.layers = 2,
                                                       .d_model = 60,
                                                       .query_heads = 6,
                                                       .kv_heads = 2,
                                                       .head_size = 12,
                                                       .ffn_width = 64,
                                                       .block_tokens = 8,
                                                       .context_tokens_max = 64},
                                                 4, 3},
                                         BitCase{"OneKvHead",
                                                 Shape{.layers = 1,
                                                       .d_model = 32,
                                                       .query_heads = 4,
                                                       .kv_heads = 1,
                                                       .head_size = 8,
                                                       .ffn_width = 48,
                                                       .block_tokens = 8,
                                                       .context_tokens_max = 64},
                                                 2, 1}),
                         [](const auto& info) { return info.param.name; });

// Whoever restores a page may have more threads than who stored it.
TEST(TinyLlama, BitsDoNotDependOnTheNumberOfThreads) {
  const Shape shape{.layers = 2};  // wide enough for several panels
  const std::vector<uint8_t> prompt = Prompt(3 * shape.block_tokens + 5);
  TinyLlama alone(shape, kSeed, 1);
  PagedKv expected_kv = alone.NewKv();
  const std::vector<float> expected = PrefillFrom(alone, expected_kv, prompt, 0);
  for (uint32_t threads : {2u, 3u}) {
    TinyLlama model(shape, kSeed, threads);
    PagedKv kv = model.NewKv();
    EXPECT_TRUE(SameBits(PrefillFrom(model, kv, prompt, 0), expected)) << threads;
    for (uint32_t page = 0; page < 4; ++page) {
      EXPECT_TRUE(SameBits(kv.Page(page), expected_kv.Page(page))) << threads << ", " << page;
    }
  }
}

TEST(TinyLlama, LaterTokenNeverChangesEarlierBits) {
  TinyLlama model(Shape::Small(), kSeed);
  const std::vector<uint8_t> prompt = Prompt(16);
  std::vector<uint8_t> changed = prompt;
  changed[10] ^= 1;
  PagedKv kv = model.NewKv();
  const std::vector<float> logits = PrefillFrom(model, kv, prompt, 0);
  const std::vector<float> other = PrefillFrom(model, kv, changed, 0);
  for (size_t row = 0; row < 16; ++row) {
    EXPECT_EQ(SameBits(std::span(logits).subspan(row * kVocabulary, kVocabulary),
                       std::span(other).subspan(row * kVocabulary, kVocabulary)),
              row < 10)
        << "token " << row;
  }
}

TEST(TinyLlama, PaddingNeverChangesTheBitsOfRealTokens) {
  TinyLlama model(Shape::Small(), kSeed);
  const std::vector<uint8_t> prompt = Prompt(32);
  PagedKv kv = model.NewKv();
  const std::vector<float> whole = PrefillFrom(model, kv, prompt, 0);
  const std::vector<float> part =
      PrefillFrom(model, kv, std::vector(prompt.begin(), prompt.begin() + 21), 0);
  ASSERT_EQ(part.size(), 5 * kVocabulary);
  EXPECT_TRUE(SameBits(part, std::span(whole).first(part.size())));
}

// In one layer, attention without positions would see a bag of tokens.
TEST(TinyLlama, OrderOfEarlierTokensMatters) {
  Shape shape = Shape::Small();
  shape.layers = 1;
  TinyLlama model(shape, kSeed);
  PagedKv kv = model.NewKv();
  const std::vector<float> there = PrefillFrom(model, kv, {40, 50, 60, 70}, 0);
  const std::vector<float> back = PrefillFrom(model, kv, {60, 50, 40, 70}, 0);
  EXPECT_GT(RelativeError(std::span(there).last(kVocabulary), std::span(back).last(kVocabulary)),
            1e-2);
}

TEST(TinyLlama, FirstTokenIsFeltAtTheEndOfALongPrompt) {
  TinyLlama model(Shape::Small(), kSeed);
  std::vector<uint8_t> prompt = Prompt(300);
  PagedKv kv = model.NewKv();
  const std::vector<float> logits = PrefillFrom(model, kv, prompt, 0);
  prompt[0] ^= 1;
  const std::vector<float> changed = PrefillFrom(model, kv, prompt, 0);
  EXPECT_GT(
      RelativeError(std::span(changed).last(kVocabulary), std::span(logits).last(kVocabulary)),
      1e-4);
}

TEST(TinyLlama, LogitsHaveWinnersAndDependOnTheSeed) {
  TinyLlama model(Shape::Small(), kSeed);
  TinyLlama other(Shape::Small(), kSeed + 1);
  PagedKv kv = model.NewKv();
  const std::vector<float> all = PrefillFrom(model, kv, Prompt(48), 0);
  const std::span<const float> logits = std::span(all).last(kVocabulary);
  double squares = 0;
  for (float logit : logits) squares += double{logit} * logit;
  EXPECT_GT(std::sqrt(squares / kVocabulary), 1.5);
  EXPECT_LT(std::sqrt(squares / kVocabulary), 6.0);
  EXPECT_FALSE(SameBits(all, PrefillFrom(other, kv, Prompt(48), 0)));
}

// Starts in the middle of a block and crosses into pages that hold another sequence's leftovers.
TEST(TinyLlama, DecodeContinuesWhatPrefillBegan) {
  TinyLlama model(Shape::Small(), kSeed);
  const std::vector<uint8_t> prompt = Prompt(64);
  PagedKv whole = model.NewKv();
  PagedKv kv = model.NewKv();
  FillWithNan(kv, 4);
  PrefillFrom(model, kv, std::vector(prompt.begin(), prompt.begin() + 27), 0);
  std::vector<float> expected;
  std::vector<float> logits;
  for (uint32_t position = 27; position < prompt.size(); ++position) {
    model.Decode(kv, prompt[position], position, &logits);
    expected =
        PrefillFrom(model, whole, std::vector(prompt.begin(), prompt.begin() + position + 1), 0);
    ASSERT_LT(RelativeError(logits, std::span(expected).last(kVocabulary)), 1e-3)
        << "position " << position;
  }
}

}  // namespace
}  // namespace terrace::tiny_llama

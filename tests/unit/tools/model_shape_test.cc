#include "tools/terrace/plan/model_shape.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/terrace/plan/known_models.h"

namespace terrace::tools {
namespace {

using nlohmann::json;

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kGiB = kKiB * kKiB * kKiB;

ModelShape ShapeOf(const json& config, const ShapeOptions& options = {}) {
  ModelShape shape;
  const Error error = ReadModelShape(config, options, &shape);
  EXPECT_TRUE(error.ok()) << error.sentence();
  return shape;
}

ModelShape ShapeOf(const char* name, const ShapeOptions& options = {}) {
  return ShapeOf(json::parse(KnownModelConfig(name)), options);
}

std::string Refusal(const json& config, const ShapeOptions& options = {}) {
  ModelShape shape;
  return ReadModelShape(config, options, &shape).sentence();
}

json Small() {
  return {{"model_type", "llama"},          {"num_hidden_layers", 8}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2},       {"hidden_size", 256},     {"torch_dtype", "bfloat16"},
          {"max_position_embeddings", 4096}};
}
constexpr uint64_t kSmallLayerBytes = 2 * 2 * 64 * 2;  // K and V, heads, head size, bfloat16

TEST(ModelShape, TokensTakeWhatIsPublished) {
  EXPECT_EQ(ShapeOf("llama-2-7b").token_bytes(), 512 * kKiB);
  EXPECT_EQ(ShapeOf("llama-3-70b").token_bytes(), 320 * kKiB);
  EXPECT_EQ(ShapeOf("llama-3.1-405b").token_bytes(), 516'096u);
  EXPECT_EQ(ShapeOf("mistral-7b").token_bytes(), 128 * kKiB);
  EXPECT_EQ(ShapeOf("deepseek-v3").token_bytes(), uint64_t{512 + 64} * 61 * 2);
  EXPECT_EQ(ShapeOf("llama-3-70b").session_bytes(131'072), 40 * kGiB);
}

TEST(ModelShape, EveryKnownModelIsRead) {
  for (const std::string& name : KnownModelNames()) {
    const ModelShape shape = ShapeOf(name.c_str());
    EXPECT_GT(shape.token_bytes(), 0u) << name;
    EXPECT_GT(shape.context_tokens_max, 0u) << name;
  }
  EXPECT_FALSE(KnownModelConfig("Meta-Llama/Llama-2-7B-hf").empty());
  EXPECT_TRUE(KnownModelConfig("llama-9").empty());
}

TEST(ModelShape, AWindowIsCountedOnceItIsFull) {
  const ModelShape mistral = ShapeOf("mistral-7b");
  EXPECT_EQ(mistral.session_bytes(1000), 1000 * 128 * kKiB);
  EXPECT_EQ(mistral.session_bytes(32'768), 4096 * 128 * kKiB);
  const ModelShape gemma = ShapeOf("gemma-3-27b");
  ASSERT_EQ(gemma.kinds.size(), 2u);
  EXPECT_EQ(gemma.kinds[0].layer_count, 10u);  // every sixth of 62
  EXPECT_EQ(gemma.kinds[1].layer_count, 52u);
  const uint64_t layer_bytes = 2 * 16 * 128 * 2;
  EXPECT_EQ(gemma.session_bytes(10'000), layer_bytes * (10 * 10'000 + 52 * 1024));
}

TEST(ModelShape, LayersOfEachKindAreToldApart) {
  json config = Small();
  config["sliding_window"] = 128;
  config["layer_types"] = {"full_attention",    "sliding_attention", "sliding_attention",
                           "sliding_attention", "full_attention",    "sliding_attention",
                           "sliding_attention", "sliding_attention"};
  EXPECT_EQ(ShapeOf(config).session_bytes(1000), kSmallLayerBytes * (2 * 1000 + 6 * 128));

  config = Small();
  config["attention_chunk_size"] = 256;
  config["no_rope_layers"] = {1, 1, 1, 0, 1, 1, 1, 0};
  EXPECT_EQ(ShapeOf(config).session_bytes(1000), kSmallLayerBytes * (2 * 1000 + 6 * 256));

  config = Small();
  config["model_type"] = "qwen2";
  config["sliding_window"] = 128;
  EXPECT_EQ(ShapeOf(config).session_bytes(1000), kSmallLayerBytes * 8 * 1000);  // it is off
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 3;
  EXPECT_EQ(ShapeOf(config).session_bytes(1000), kSmallLayerBytes * (3 * 1000 + 5 * 128));
}

TEST(ModelShape, StatesTakeTheSameHoweverLongASessionIs) {
  const ModelShape shape = ShapeOf("qwen3-next-80b-a3b");
  const uint64_t convolution = 3 * (2 * 16 * 128 + 32 * 128) * 2;
  const uint64_t state = 32 * 128 * 128 * 2;
  EXPECT_EQ(shape.session_bytes(0), 36 * (convolution + state));
  EXPECT_EQ(shape.session_bytes(1000) - shape.session_bytes(0), 12 * 1000 * 2 * 2 * 256 * 2);
}

TEST(ModelShape, AnIndexerBesideALatentIsCounted) {
  json config = json::parse(KnownModelConfig("deepseek-v3"));
  config["index_head_dim"] = 128;
  EXPECT_EQ(ShapeOf(config).token_bytes(), uint64_t{61} * ((512 + 64) * 2 + 128 + 4));
}

TEST(ModelShape, RanksCutHeadsUpAndRepeatThemWhereThereAreFewer) {
  EXPECT_EQ(ShapeOf("llama-3-70b", {.rank_count = 8}).token_bytes(), 320 * kKiB);
  EXPECT_EQ(ShapeOf("llama-3-70b", {.rank_count = 16}).token_bytes(), 640 * kKiB);
  EXPECT_EQ(ShapeOf("deepseek-v3", {.rank_count = 8}).token_bytes(), uint64_t{576} * 61 * 2);
}

TEST(ModelShape, TheCachesTypeMayBeAnother) {
  EXPECT_EQ(ShapeOf("llama-3-70b", {.cache_dtype = "fp8"}).token_bytes(), 160 * kKiB);
  EXPECT_EQ(Refusal(Small(), {.cache_dtype = "int3"}),
            "the cache's type is 'int3', which is not known: name one of float32, fp32, bfloat16, "
            "bf16, float16, fp16, fp8, fp8_e4m3, fp8_e5m2, float8_e4m3fn, float8_e5m2, int8 with "
            "--cache-dtype");
}

TEST(ModelShape, OfAModelOfSeveralPartsTheLanguageModelIsMeant) {
  const json whole = {{"model_type", "llava"},
                      {"torch_dtype", "float32"},
                      {"vision_config", {{"num_hidden_layers", 24}}},
                      {"text_config", Small()}};
  EXPECT_EQ(ShapeOf(whole).token_bytes(), 8 * kSmallLayerBytes);
}

TEST(ModelShape, WhatIsMissingWrongOrUnknownIsNamed) {
  json config = Small();
  config.erase("num_hidden_layers");
  EXPECT_NE(Refusal(config).find("no 'num_hidden_layers'"), std::string::npos);
  config = Small();
  config["num_key_value_heads"] = -2;
  EXPECT_EQ(Refusal(config),
            "'num_key_value_heads' is -2 in the model's configuration: expected a whole number of "
            "1 to 65536");
  config["num_key_value_heads"] = uint64_t{1} << 60;
  EXPECT_NE(Refusal(config).find("1 to 65536"), std::string::npos);
  config = Small();
  config["layer_types"] = std::vector<std::string>(8, "mamba");
  EXPECT_NE(Refusal(config).find("layers of kind 'mamba'"), std::string::npos);
  config["layer_types"] = std::vector<std::string>(7, "full_attention");
  EXPECT_NE(Refusal(config).find("kinds of 7 layers, but 'num_hidden_layers' is 8"),
            std::string::npos);
  EXPECT_NE(Refusal(json::array()).find("no JSON object"), std::string::npos);
}

TEST(ModelShape, HeadsWithoutAValueAreRefused) {
  json config = {{"num_hidden_layers", 1}, {"num_attention_heads", 6}, {"hidden_size", 5}};
  EXPECT_NE(Refusal(config).find("'hidden_size' is 5 and 'num_attention_heads' is 6"),
            std::string::npos)
      << Refusal(config);
  config["head_dim"] = 1;
  EXPECT_EQ(Refusal(config), "");
}

TEST(ModelShape, APeriodOfNoLayersIsRefused) {
  json config = Small();
  config["sliding_window"] = 128;
  for (const json& period : {json(0), json(-1), json("two")}) {
    config["sliding_window_pattern"] = period;
    EXPECT_NE(Refusal(config).find("'sliding_window_pattern' is"), std::string::npos) << period;
  }
  config = Small();
  config["linear_num_value_heads"] = 4;
  config["full_attention_interval"] = 0;
  EXPECT_NE(Refusal(config).find("'full_attention_interval' is 0"), std::string::npos);
}

// 2 x 65,536 heads of 65,536 values of 4 B in 4,096 layers are 2^47 B a token.
TEST(ModelShape, WhatASessionOfItMayHoldIsKnownBeforeItIsAddedUp) {
  json config = Small();
  ModelShape shape;
  ASSERT_TRUE(ReadModelShape(config, {}, &shape).ok());
  EXPECT_TRUE(shape.MayHold(uint64_t{1} << 32));
  config["num_hidden_layers"] = 4096;
  config["num_attention_heads"] = config["num_key_value_heads"] = config["head_dim"] = 65536;
  config["torch_dtype"] = "float32";
  ASSERT_TRUE(ReadModelShape(config, {}, &shape).ok());
  EXPECT_EQ(shape.token_bytes(), uint64_t{1} << 47);
  EXPECT_TRUE(shape.MayHold(1 << 13));
  EXPECT_EQ(shape.session_bytes(1 << 13), kSessionBytesMax);
  EXPECT_FALSE(shape.MayHold((1 << 13) + 1));
}

TEST(ModelShape, AWrongValueIsToldShortlyHoweverLongOrDeepItIs) {
  json config = Small();
  config["num_key_value_heads"] = std::string(1 << 20, 'x');
  EXPECT_NE(Refusal(config).find("is a text of 1048576 bytes"), std::string::npos);
  const int depth = 200'000;
  config["num_key_value_heads"] = json::parse(std::string(depth, '[') + std::string(depth, ']'));
  EXPECT_NE(Refusal(config).find("is a list"), std::string::npos);
}

}  // namespace
}  // namespace terrace::tools

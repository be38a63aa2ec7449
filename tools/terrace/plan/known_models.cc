#include "tools/terrace/plan/known_models.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace terrace::tools {
namespace {

struct KnownModel {
  std::string_view name;
  std::string_view config;
};

constexpr std::array<KnownModel, 25> kModels = {{
    {"llama-2-7b", R"({"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 32, "hidden_size": 4096, "max_position_embeddings": 4096,
      "torch_dtype": "float16"})"},
    {"llama-2-13b", R"({"model_type": "llama", "num_hidden_layers": 40, "num_attention_heads": 40,
      "num_key_value_heads": 40, "hidden_size": 5120, "max_position_embeddings": 4096,
      "torch_dtype": "float16"})"},
    {"llama-2-70b", R"({"model_type": "llama", "num_hidden_layers": 80, "num_attention_heads": 64,
      "num_key_value_heads": 8, "hidden_size": 8192, "max_position_embeddings": 4096,
      "torch_dtype": "float16"})"},
    {"llama-3-8b", R"({"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 8, "hidden_size": 4096, "max_position_embeddings": 8192,
      "torch_dtype": "bfloat16"})"},
    {"llama-3-70b", R"({"model_type": "llama", "num_hidden_layers": 80, "num_attention_heads": 64,
      "num_key_value_heads": 8, "hidden_size": 8192, "max_position_embeddings": 8192,
      "torch_dtype": "bfloat16"})"},
    {"llama-3.1-8b", R"({"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 8, "hidden_size": 4096, "max_position_embeddings": 131072,
      "torch_dtype": "bfloat16"})"},
    {"llama-3.1-70b", R"({"model_type": "llama", "num_hidden_layers": 80,
      "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192,
      "max_position_embeddings": 131072, "torch_dtype": "bfloat16"})"},
    {"llama-3.1-405b", R"({"model_type": "llama", "num_hidden_layers": 126,
      "num_attention_heads": 128, "num_key_value_heads": 8, "hidden_size": 16384,
      "max_position_embeddings": 131072, "torch_dtype": "bfloat16"})"},
    {"llama-3.2-1b", R"({"model_type": "llama", "num_hidden_layers": 16, "num_attention_heads": 32,
      "num_key_value_heads": 8, "head_dim": 64, "hidden_size": 2048,
      "max_position_embeddings": 131072, "torch_dtype": "bfloat16"})"},
    {"llama-3.2-3b", R"({"model_type": "llama", "num_hidden_layers": 28, "num_attention_heads": 24,
      "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 3072,
      "max_position_embeddings": 131072, "torch_dtype": "bfloat16"})"},
    {"mistral-7b", R"({"model_type": "mistral", "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
      "sliding_window": 4096, "max_position_embeddings": 32768, "torch_dtype": "bfloat16"})"},
    {"mistral-7b-v0.3", R"({"model_type": "mistral", "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
      "sliding_window": null, "max_position_embeddings": 32768, "torch_dtype": "bfloat16"})"},
    {"mixtral-8x7b", R"({"model_type": "mixtral", "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
      "max_position_embeddings": 32768, "torch_dtype": "bfloat16"})"},
    {"deepseek-v3", R"({"model_type": "deepseek_v3", "num_hidden_layers": 61,
      "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
      "max_position_embeddings": 163840, "torch_dtype": "bfloat16"})"},
    {"deepseek-r1", R"({"model_type": "deepseek_v3", "num_hidden_layers": 61,
      "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
      "max_position_embeddings": 163840, "torch_dtype": "bfloat16"})"},
    {"qwen2.5-7b", R"({"model_type": "qwen2", "num_hidden_layers": 28, "num_attention_heads": 28,
      "num_key_value_heads": 4, "hidden_size": 3584, "use_sliding_window": false,
      "max_position_embeddings": 32768, "torch_dtype": "bfloat16"})"},
    {"qwen2.5-72b", R"({"model_type": "qwen2", "num_hidden_layers": 80, "num_attention_heads": 64,
      "num_key_value_heads": 8, "hidden_size": 8192, "use_sliding_window": false,
      "max_position_embeddings": 32768, "torch_dtype": "bfloat16"})"},
    {"qwen3-8b", R"({"model_type": "qwen3", "num_hidden_layers": 36, "num_attention_heads": 32,
      "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 4096, "use_sliding_window": false,
      "max_position_embeddings": 40960, "torch_dtype": "bfloat16"})"},
    {"qwen3-32b", R"({"model_type": "qwen3", "num_hidden_layers": 64, "num_attention_heads": 64,
      "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 5120, "use_sliding_window": false,
      "max_position_embeddings": 40960, "torch_dtype": "bfloat16"})"},
    {"qwen3-235b-a22b", R"({"model_type": "qwen3_moe", "num_hidden_layers": 94,
      "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "hidden_size": 4096,
      "use_sliding_window": false, "max_position_embeddings": 40960,
      "torch_dtype": "bfloat16"})"},
    {"qwen3-next-80b-a3b", R"({"model_type": "qwen3_next", "num_hidden_layers": 48,
      "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "hidden_size": 2048,
      "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
      "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
      "max_position_embeddings": 262144, "torch_dtype": "bfloat16"})"},
    {"gpt-oss-20b", R"({"model_type": "gpt_oss", "num_hidden_layers": 24,
      "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "hidden_size": 2880,
      "sliding_window": 128, "sliding_window_pattern": 2, "max_position_embeddings": 131072,
      "torch_dtype": "bfloat16"})"},
    {"gpt-oss-120b", R"({"model_type": "gpt_oss", "num_hidden_layers": 36,
      "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "hidden_size": 2880,
      "sliding_window": 128, "sliding_window_pattern": 2, "max_position_embeddings": 131072,
      "torch_dtype": "bfloat16"})"},
    {"gemma-3-27b", R"({"model_type": "gemma3_text", "num_hidden_layers": 62,
      "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "hidden_size": 5376,
      "sliding_window": 1024, "sliding_window_pattern": 6, "max_position_embeddings": 131072,
      "torch_dtype": "bfloat16"})"},
    {"phi-4", R"({"model_type": "phi3", "num_hidden_layers": 40, "num_attention_heads": 40,
      "num_key_value_heads": 10, "hidden_size": 5120, "sliding_window": null,
      "max_position_embeddings": 16384, "torch_dtype": "bfloat16"})"},
}};

}  // namespace

std::string_view KnownModelConfig(std::string_view name) {
  if (const size_t slash = name.rfind('/'); slash != std::string_view::npos) {
    name.remove_prefix(slash + 1);
  }
  std::string lower(name);
  for (char& letter : lower) letter = static_cast<char>(std::tolower(static_cast<uint8_t>(letter)));
  for (const char* suffix : {"-hf", "-instruct", "-chat"}) {
    if (lower.ends_with(suffix)) lower.resize(lower.size() - std::string_view(suffix).size());
  }
  for (const KnownModel& model : kModels) {
    if (model.name == lower) return model.config;
  }
  return {};
}

std::vector<std::string> KnownModelNames() {
  std::vector<std::string> names;
  for (const KnownModel& model : kModels) names.emplace_back(model.name);
  return names;
}

}  // namespace terrace::tools

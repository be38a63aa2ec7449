#include "tools/terrace/plan/model_shape.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/terrace/cli/json_text.h"

namespace terrace::tools {
namespace {

using nlohmann::json;

struct DtypeBytes {
  std::string_view name;
  uint32_t bytes;
};
constexpr std::array<DtypeBytes, 12> kDtypes = {{{"float32", 4},
                                                 {"fp32", 4},
                                                 {"bfloat16", 2},
                                                 {"bf16", 2},
                                                 {"float16", 2},
                                                 {"fp16", 2},
                                                 {"fp8", 1},
                                                 {"fp8_e4m3", 1},
                                                 {"fp8_e5m2", 1},
                                                 {"float8_e4m3fn", 1},
                                                 {"float8_e5m2", 1},
                                                 {"int8", 1}}};
constexpr uint64_t kFieldMax = uint64_t{1} << 32;  // so that no product of a layer's overflows
constexpr uint64_t kLayersMax = 4096;
constexpr uint64_t kHeadsMax = 65536;
constexpr uint64_t kIndexerScaleBytes = 4;
constexpr size_t kToldBytesMax = 64;  // of a wrong value
constexpr uint64_t kIndexerScaledValues = 128;

// What stands there, for a sentence. Files come from anywhere: lists may be deep, and texts long.
std::string Told(const json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  if (value.is_string() && value.get_ref<const std::string&>().size() > kToldBytesMax) {
    return fmt::format("a text of {} bytes", value.get_ref<const std::string&>().size());
  }
  return JsonText(value);
}

// Reads fields until one is wrong, and keeps the first sentence.
class Fields {
 public:
  explicit Fields(const json& config) : config_(config) {}

  bool has(const char* name) const {
    const auto found = config_.find(name);
    return found != config_.end() && !found->is_null() && *found != false;
  }
  const json& at(const char* name) const { return config_.at(name); }
  const Error& error() const { return error_; }

  // A whole number of 1 to `max`; 0 after a wrong one.
  uint64_t Need(const char* name, uint64_t max = kFieldMax) {
    if (has(name)) return Number(name, at(name), max);
    Refuse(
        fmt::format("the model's configuration has no '{}', which the size of its KV cache "
                    "follows from. Name a complete config.json",
                    name));
    return 0;
  }
  uint64_t Get(const char* name, uint64_t otherwise, uint64_t max = kFieldMax) {
    return has(name) ? Number(name, at(name), max) : otherwise;
  }
  std::string Text(const char* name) const {
    return has(name) && at(name).is_string() ? at(name).get<std::string>() : "";
  }
  void Refuse(std::string sentence, StatusCode code = StatusCode::kInvalid) {
    if (error_.ok()) error_ = Error(code, std::move(sentence));
  }

 private:
  uint64_t Number(const char* name, const json& value, uint64_t max) {
    if (value.is_number_integer() && value > 0 && value <= max) return value.get<uint64_t>();
    Refuse(
        fmt::format("'{}' is {} in the model's configuration: expected a whole number of 1 to "
                    "{}",
                    name, Told(value), max));
    return 0;
  }

  const json& config_;
  Error error_;
};

// Of a model of several parts that whose KV cache is meant.
const json& LanguageModelOf(const json& config) {
  for (const char* part : {"text_config", "llm_config", "language_config"}) {
    const auto found = config.find(part);
    if (found != config.end() && found->is_object() && found->contains("num_hidden_layers")) {
      return *found;
    }
  }
  return config;
}

// Layers whose period is `period`: every last one of it attends to everything. None if it is 0:
// that was refused.
std::vector<std::string> Periodic(uint64_t layer_count, uint64_t period, const char* others) {
  std::vector<std::string> types;
  if (period == 0) return types;
  for (uint64_t i = 0; i < layer_count; ++i) {
    types.emplace_back((i + 1) % period == 0 ? "full_attention" : others);
  }
  return types;
}

// Llama 4: of each layer whether it turns its keys; those that do see their chunk alone.
std::vector<std::string> ChunkedTypes(Fields& fields, uint64_t layer_count) {
  if (!fields.has("no_rope_layers") || !fields.at("no_rope_layers").is_array()) {
    return Periodic(layer_count, fields.Get("no_rope_layer_interval", 4), "chunked_attention");
  }
  std::vector<std::string> types;
  for (const json& turns : fields.at("no_rope_layers")) {
    types.emplace_back(turns == 0 ? "full_attention" : "chunked_attention");
  }
  return types.empty() ? Periodic(layer_count, 4, "chunked_attention") : types;
}

std::vector<std::string> SlidingTypes(Fields& fields, uint64_t layer_count) {
  const std::string type = fields.Text("model_type");
  constexpr const char* kSliding = "sliding_attention";
  if (fields.has("sliding_window_pattern")) {
    return Periodic(layer_count, fields.Need("sliding_window_pattern", kLayersMax), kSliding);
  }
  if (type == "gemma2") return Periodic(layer_count, 2, kSliding);
  if (type == "gemma3_text" || type == "gemma3") return Periodic(layer_count, 6, kSliding);
  std::vector<std::string> types(layer_count, kSliding);
  // Qwen 2: its first layers attend to everything.
  if (fields.has("use_sliding_window")) {
    const uint64_t first = fields.Get("max_window_layers", 0, kLayersMax);
    std::fill_n(types.begin(), std::min(first, layer_count), "full_attention");
  }
  return types;
}

// One a layer. A field that is absent from a configuration of today is told by its older ones.
std::vector<std::string> LayerTypes(Fields& fields, uint64_t layer_count) {
  if (fields.has("layer_types") && fields.at("layer_types").is_array()) {
    std::vector<std::string> types;
    for (const json& type : fields.at("layer_types")) {
      types.push_back(type.is_string() ? type.get<std::string>() : Told(type));
    }
    return types;
  }
  if (fields.has("linear_num_value_heads")) {
    return Periodic(layer_count, fields.Get("full_attention_interval", 4), "linear_attention");
  }
  if (fields.has("attention_chunk_size")) return ChunkedTypes(fields, layer_count);
  const bool is_off =
      fields.Text("model_type").starts_with("qwen") && !fields.has("use_sliding_window");
  if (fields.has("sliding_window") && !is_off) return SlidingTypes(fields, layer_count);
  return std::vector<std::string>(layer_count, "full_attention");
}

// Of all ranks: fewer heads than ranks are on several of them.
uint64_t HeadTokenBytes(Fields& fields, const ShapeOptions& options, uint32_t element_bytes) {
  const uint64_t heads = fields.Need("num_attention_heads", kHeadsMax);
  const uint64_t kv_heads = fields.Get("num_key_value_heads", heads, kHeadsMax);
  uint64_t head_size = fields.Get("head_dim", 0, kHeadsMax);
  if (head_size == 0 && heads > 0) {
    const uint64_t hidden_size = fields.Need("hidden_size");
    head_size = hidden_size / heads;
    if (head_size == 0 && hidden_size > 0) {
      fields.Refuse(fmt::format(
          "'hidden_size' is {} and 'num_attention_heads' is {} in the model's configuration: no "
          "value would be left for a head's key. Correct them, or name 'head_dim'",
          hidden_size, heads));
    }
  }
  const uint64_t ranks = options.rank_count;
  const uint64_t heads_a_rank = std::max<uint64_t>((kv_heads + ranks - 1) / ranks, 1);
  return 2 * heads_a_rank * ranks * head_size * element_bytes;
}

uint64_t LinearStateBytes(Fields& fields, uint32_t element_bytes) {
  const uint64_t key_heads = fields.Need("linear_num_key_heads", kHeadsMax);
  const uint64_t value_heads = fields.Need("linear_num_value_heads", kHeadsMax);
  const uint64_t key_size = fields.Need("linear_key_head_dim", kHeadsMax);
  const uint64_t value_size = fields.Need("linear_value_head_dim", kHeadsMax);
  const uint64_t kernel = fields.Need("linear_conv_kernel_dim", kHeadsMax);
  const uint64_t mixed = 2 * key_heads * key_size + value_heads * value_size;
  return ((kernel - 1) * mixed + value_heads * key_size * value_size) * element_bytes;
}

void AddLatent(Fields& fields, uint32_t layer_count, uint32_t element_bytes, ModelShape* shape) {
  const uint64_t values = fields.Need("kv_lora_rank") + fields.Need("qk_rope_head_dim");
  shape->kinds.push_back(
      {.name = "mla", .layer_count = layer_count, .token_bytes = values * element_bytes});
  if (!fields.has("index_head_dim")) return;
  const uint64_t head = fields.Need("index_head_dim");
  const uint64_t scales = (head + kIndexerScaledValues - 1) / kIndexerScaledValues;
  shape->kinds.push_back({.name = "indexer",
                          .layer_count = layer_count,
                          .token_bytes = head + scales * kIndexerScaleBytes});
}

uint64_t CountOf(const std::vector<std::string>& types, std::string_view type) {
  return static_cast<uint64_t>(std::count(types.begin(), types.end(), type));
}

struct ElementBytes {
  uint32_t cache = 0;
  uint32_t model = 0;  // of states, which no cache type changes
};

void AddLayers(Fields& fields, const ShapeOptions& options, ElementBytes bytes,
               const std::vector<std::string>& types, ModelShape* shape) {
  const auto add = [&](std::string_view type, std::string name, const char* window) {
    const uint64_t count = CountOf(types, type);
    if (count == 0) return;
    shape->kinds.push_back({.name = std::move(name),
                            .layer_count = static_cast<uint32_t>(count),
                            .token_bytes = HeadTokenBytes(fields, options, bytes.cache),
                            .window_tokens = window == nullptr ? 0 : fields.Need(window)});
  };
  add("full_attention", "full", nullptr);
  add("sliding_attention", "sliding", "sliding_window");
  add("chunked_attention", "chunked", "attention_chunk_size");
  if (const uint64_t count = CountOf(types, "linear_attention"); count > 0) {
    shape->kinds.push_back({.name = "linear",
                            .layer_count = static_cast<uint32_t>(count),
                            .state_bytes = LinearStateBytes(fields, bytes.model)});
  }
}

// Kinds that hold a cache this file does not know must not be left out in silence.
void RefuseUnknown(Fields& fields, const std::vector<std::string>& types, uint64_t layer_count) {
  constexpr std::array<std::string_view, 4> kKnown = {"full_attention", "sliding_attention",
                                                      "chunked_attention", "linear_attention"};
  for (const std::string& type : types) {
    if (std::find(kKnown.begin(), kKnown.end(), type) != kKnown.end()) continue;
    fields.Refuse(fmt::format("'layer_types' names layers of kind '{}', whose cache is not known; "
                              "there are {}",
                              type, fmt::join(kKnown, ", ")),
                  StatusCode::kUnsupported);
  }
  for (const char* name : {"hybrid_override_pattern", "attn_layer_period", "mamba_d_state"}) {
    if (!fields.has(name) || fields.has("layer_types")) continue;
    fields.Refuse(fmt::format("'{}' says that some layers are of Mamba, whose states are not "
                              "known; there are {}",
                              name, fmt::join(kKnown, ", ")),
                  StatusCode::kUnsupported);
  }
  if (types.size() != layer_count && fields.error().ok()) {
    fields.Refuse(
        fmt::format("the configuration names the kinds of {} layers, but "
                    "'num_hidden_layers' is {}: they must be as many",
                    types.size(), layer_count));
  }
}

std::string ModelDtype(const Fields& fields, const json& config) {
  for (const char* name : {"dtype", "torch_dtype"}) {
    if (const std::string text = fields.Text(name); !text.empty()) return text;
    if (const std::string text = Fields(config).Text(name); !text.empty()) return text;
  }
  return "bfloat16";
}

Error RefuseDtype(const std::string& dtype) {
  return {StatusCode::kInvalid, fmt::format("the cache's type is '{}', which is not known: name "
                                            "one of {} with --cache-dtype",
                                            dtype, fmt::join(CacheDtypeNames(), ", "))};
}

}  // namespace

uint64_t ModelShape::token_bytes() const {
  uint64_t sum = 0;
  for (const KvKind& kind : kinds) sum += kind.layer_count * kind.token_bytes;
  return sum;
}

uint64_t ModelShape::session_bytes(uint64_t token_count) const {
  uint64_t sum = 0;
  for (const KvKind& kind : kinds) {
    const uint64_t held =
        kind.window_tokens == 0 ? token_count : std::min(token_count, kind.window_tokens);
    sum += kind.layer_count * (kind.token_bytes * held + kind.state_bytes);
  }
  return sum;
}

bool ModelShape::MayHold(uint64_t token_count) const {
  double bytes = 0;
  for (const KvKind& kind : kinds) {
    const double layer_bytes =
        static_cast<double>(kind.token_bytes) * static_cast<double>(token_count) +
        static_cast<double>(kind.state_bytes);
    bytes += kind.layer_count * layer_bytes;
  }
  return bytes <= static_cast<double>(kSessionBytesMax);
}

Error ReadModelShape(const json& whole, const ShapeOptions& options, ModelShape* shape) {
  if (!whole.is_object()) {
    return {StatusCode::kInvalid,
            "the model's configuration is no JSON object: name a config.json"};
  }
  const json& config = LanguageModelOf(whole);
  Fields fields(config);
  const std::string model_dtype = ModelDtype(fields, whole);
  *shape = {.model_type = fields.Text("model_type"),
            .cache_dtype = options.cache_dtype.empty() ? model_dtype : options.cache_dtype,
            .context_tokens_max = fields.Get("max_position_embeddings", 0),
            .kinds = {}};
  const ElementBytes bytes = {.cache = CacheElementBytes(shape->cache_dtype),
                              .model = std::max(CacheElementBytes(model_dtype), 1U)};
  if (bytes.cache == 0) return RefuseDtype(shape->cache_dtype);
  const uint64_t layer_count = fields.Need("num_hidden_layers", kLayersMax);
  if (!fields.error().ok()) return fields.error();
  const std::vector<std::string> types = LayerTypes(fields, layer_count);
  RefuseUnknown(fields, types, layer_count);
  if (fields.has("kv_lora_rank")) {
    AddLatent(fields, static_cast<uint32_t>(layer_count), bytes.cache, shape);
  } else {
    AddLayers(fields, options, bytes, types, shape);
  }
  return fields.error();
}

uint32_t CacheElementBytes(std::string_view dtype) {
  constexpr std::string_view kTorch = "torch.";
  if (dtype.starts_with(kTorch)) dtype.remove_prefix(kTorch.size());
  const auto* const found = std::find_if(kDtypes.begin(), kDtypes.end(),
                                         [&](const DtypeBytes& one) { return one.name == dtype; });
  return found == kDtypes.end() ? 0 : found->bytes;
}

std::vector<std::string> CacheDtypeNames() {
  std::vector<std::string> names;
  for (const DtypeBytes& one : kDtypes) names.emplace_back(one.name);
  return names;
}

}  // namespace terrace::tools

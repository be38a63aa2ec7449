// ModelShape: what one token of a model's KV cache takes, by kind of layer, read from the model's
// configuration as HuggingFace writes it (config.json).
//
// Formulas, per layer and token, e being the bytes of an element:
//   attention with heads      2 (K and V) x kv heads x head size x e
//   latent attention (MLA)    (kv_lora_rank + qk_rope_head_dim) x e, on every rank
//   its indexer (DSA)         index_head_dim + 4 for every 128 of them: fp8 and scales
// and, per layer and session, of gated delta nets, f being the bytes of the model's element:
//   (kernel - 1) x (2 x key heads x key size + value heads x value size) x f  for the convolution,
//   value heads x key size x value size x f  for the state.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/error.h"

namespace terrace::tools {

// Layers of one kind.
struct KvKind {
  std::string name;  // full, sliding, chunked, mla, indexer, linear
  uint32_t layer_count = 0;
  uint64_t token_bytes = 0;    // a token a layer, of all ranks together
  uint64_t window_tokens = 0;  // what the next token attends to; 0: everything
  uint64_t state_bytes = 0;    // a layer a session, whatever its length
};

// What a session may need at most: sums of what is below it do not overflow.
inline constexpr uint64_t kSessionBytesMax = uint64_t{1} << 60;

struct ModelShape {
  std::string model_type;
  std::string cache_dtype;
  uint64_t context_tokens_max = 0;  // 0: the configuration does not say
  std::vector<KvKind> kinds;        // not empty

  // Of all layers, without regard to windows: what storing one more token takes.
  uint64_t token_bytes() const;
  // What a session of so many tokens needs to go on: of a window's layers the window.
  // REQUIRES: MayHold(token_count).
  uint64_t session_bytes(uint64_t token_count) const;
  // Whether that many tokens, whatever their windows, take kSessionBytesMax at most.
  bool MayHold(uint64_t token_count) const;
};

struct ShapeOptions {
  std::string cache_dtype;  // empty: the model's own
  uint32_t rank_count = 1;  // tensor parallel: heads are cut up, and repeated where there are fewer
};

// kInvalid with a sentence that names the field, its value and what is expected; kUnsupported for
// layers whose cache this does not know.
Error ReadModelShape(const nlohmann::json& config, const ShapeOptions& options, ModelShape* shape);

// Bytes of one element of a cache of this type; 0: not known. CacheDtypeNames lists those that are.
uint32_t CacheElementBytes(std::string_view dtype);
std::vector<std::string> CacheDtypeNames();

}  // namespace terrace::tools

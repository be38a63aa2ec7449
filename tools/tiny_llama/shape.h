// The numbers that fix a tiny Llama: its weights' shapes, and the layout of one page of KV.
//
// A page holds the keys and values of `block_tokens` consecutive tokens for every layer, in the
// order
//   [layer][K, V][kv_head][token][head_size], float32, K after RoPE,
// so a page is one contiguous range of bytes and exactly one Terrace block.
#pragma once

#include <cstdint>
#include <string>

#include "terrace/status.h"

namespace terrace::tiny_llama {

inline constexpr uint32_t kVocabulary = 256;  // a token is a byte

// LIMITS: what Validate accepts; they keep every product of dimensions far inside 64 bits.
inline constexpr uint32_t kLayersMax = 128;
inline constexpr uint32_t kHeadsMax = 256;
inline constexpr uint32_t kHeadSizeMax = 256;
inline constexpr uint32_t kWidthMax = 16384;
inline constexpr uint32_t kBlockTokensMax = 1024;
inline constexpr uint32_t kContextTokensMax = 131072;

struct Shape {
  uint32_t layers = 8;
  uint32_t d_model = 512;
  uint32_t query_heads = 8;
  uint32_t kv_heads = 4;  // query head h reads KV head h / (query_heads / kv_heads)
  uint32_t head_size = 64;
  uint32_t ffn_width = 1408;
  uint32_t block_tokens = 64;
  uint32_t context_tokens_max = 16384;
  double rope_theta = 10000.0;

  // A few megabytes of weights and 16 KiB pages: for tests and first steps.
  static Shape Small();

  // kInvalid with `*why` naming field, value, limit and remedy.
  Status Validate(std::string* why) const;

  uint32_t queries_per_kv_head() const { return query_heads / kv_heads; }
  uint32_t query_width() const { return query_heads * head_size; }
  uint32_t kv_width() const { return kv_heads * head_size; }
  uint32_t blocks_max() const { return context_tokens_max / block_tokens; }

  // Floats of one [token][head_size] plane of a page.
  uint64_t plane_floats() const { return uint64_t{block_tokens} * head_size; }
  // First float of a head's keys in a page; its values are kv_heads planes further on.
  uint64_t KeyPlane(uint32_t layer, uint32_t kv_head) const {
    return (uint64_t{layer} * 2 * kv_heads + kv_head) * plane_floats();
  }
  uint64_t ValuePlane(uint32_t layer, uint32_t kv_head) const {
    return KeyPlane(layer, kv_head) + kv_heads * plane_floats();
  }
  uint64_t layer_bytes() const { return 2 * kv_heads * plane_floats() * sizeof(float); }
  // Default shape: 8 layers × 2 × 4 heads × 64 tokens × 64 floats × 4 bytes = 1 MiB.
  uint64_t page_bytes() const { return layers * layer_bytes(); }

  // One line that names every field KV depends on: a Space's revision is derived from it.
  std::string CanonicalText() const;

  friend bool operator==(const Shape&, const Shape&) = default;
};

}  // namespace terrace::tiny_llama

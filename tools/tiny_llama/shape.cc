#include "tiny_llama/shape.h"

#include <cinttypes>
#include <cstdio>

namespace terrace::tiny_llama {
namespace {

struct Range {
  const char* field;
  uint32_t value;
  uint32_t max;
};

std::string Text(const char* format, auto... values) {
  char text[256];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

}  // namespace

Shape Shape::Small() {
  return Shape{.layers = 2,
               .d_model = 128,
               .query_heads = 4,
               .kv_heads = 2,
               .head_size = 32,
               .ffn_width = 352,
               .block_tokens = 16,
               .context_tokens_max = 16384};
}

Status Shape::Validate(std::string* why) const {
  const Range ranges[] = {{"layers", layers, kLayersMax},
                          {"d_model", d_model, kWidthMax},
                          {"query_heads", query_heads, kHeadsMax},
                          {"kv_heads", kv_heads, kHeadsMax},
                          {"head_size", head_size, kHeadSizeMax},
                          {"ffn_width", ffn_width, kWidthMax},
                          {"block_tokens", block_tokens, kBlockTokensMax},
                          {"context_tokens_max", context_tokens_max, kContextTokensMax}};
  for (const Range& range : ranges) {
    if (range.value == 0 || range.value > range.max) {
      *why = Text("%s is %u: choose 1 to %u", range.field, range.value, range.max);
      return Status(StatusCode::kInvalid, "a dimension is out of range");
    }
  }
  if (query_heads % kv_heads != 0) {
    *why = Text("query_heads is %u: choose a multiple of kv_heads, %u", query_heads, kv_heads);
    return Status(StatusCode::kInvalid, "query heads do not share KV heads evenly");
  }
  if (head_size % 2 != 0) {
    *why = Text("head_size is %u: RoPE rotates pairs, choose an even number", head_size);
    return Status(StatusCode::kInvalid, "head size is odd");
  }
  if (context_tokens_max % block_tokens != 0) {
    *why = Text("context_tokens_max is %u: choose a multiple of block_tokens, %u",
                context_tokens_max, block_tokens);
    return Status(StatusCode::kInvalid, "the context does not end with a block");
  }
  if (!(rope_theta > 1.0 && rope_theta < 1e9)) {
    *why = Text("rope_theta is %g: choose a number between 1 and 1e9", rope_theta);
    return Status(StatusCode::kInvalid, "RoPE's base is out of range");
  }
  return Status::Ok();
}

std::string Shape::CanonicalText() const {
  return Text(
      "layers=%u d_model=%u query_heads=%u kv_heads=%u head_size=%u ffn_width=%u "
      "block_tokens=%u rope_theta=%.17g",
      layers, d_model, query_heads, kv_heads, head_size, ffn_width, block_tokens, rope_theta);
}

}  // namespace terrace::tiny_llama

// A small but whole Llama on one core: byte tokens, RMSNorm, RoPE, grouped-query attention, SwiGLU,
// float32, weights from a seed.
//
// The idea: bits depend on tokens and position alone. Prefill always runs one whole block (a short
// last one is padded and masked) and attention walks the past page by page, so each matrix product
// has one shape whatever was restored from a cache before, on one BLAS thread. Thus a prompt whose
// leading pages were copied from elsewhere gives the same logits, bit for bit, as one computed
// whole, and a compare is a memcmp. On another CPU model the BLAS picks other kernels and gives
// other bits.
//
// THREADING: one call at a time (the model owns its activations). The constructor sets OpenBLAS to
// one thread for the process.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tiny_llama/float_buffer.h"
#include "tiny_llama/paged_kv.h"
#include "tiny_llama/shape.h"
#include "tiny_llama/weights.h"

namespace terrace::tiny_llama {

class TinyLlama {
 public:
  // REQUIRES: a valid shape.
  TinyLlama(const Shape& shape, uint64_t seed);

  // An empty sequence of the model's page size and context.
  PagedKv NewKv() const;

  // Runs block `block_index` of a sequence and fills its page. `tokens` is the whole block, or the
  // start of it when the prompt ends there. `logits`, unless null, becomes [token][kVocabulary].
  // REQUIRES: 0 < tokens.size() ≤ block_tokens; the pages before it hold the blocks before it.
  // A page is fit for a cache once all of its tokens came through here.
  void PrefillBlock(PagedKv& kv, std::span<const uint8_t> tokens, uint32_t block_index,
                    std::vector<float>* logits);

  // Appends one token at `position` and gives its logits. Its KV may differ in the last bits from
  // what PrefillBlock computes: such a page does not go to a cache.
  // REQUIRES: position < context_tokens_max; all earlier positions are filled.
  void Decode(PagedKv& kv, uint8_t token, uint32_t position, std::vector<float>* logits);

  // The matrix kernels this machine runs, e.g. "Haswell": with others, the last bits differ.
  static std::string KernelName();

  const Shape& shape() const { return shape_; }
  uint64_t seed() const { return seed_; }
  uint64_t page_bytes() const { return shape_.page_bytes(); }
  const Weights& weights() const { return weights_; }

 private:
  // Rows of one pass: `row_count` consecutive tokens from `start`, all in one page.
  struct Pass {
    uint32_t start = 0;
    uint32_t row_count = 0;
    uint32_t page_index = 0;
  };

  void Forward(PagedKv& kv, std::span<const uint8_t> tokens, const Pass& pass);
  void Attend(PagedKv& kv, const LayerWeights& layer, uint32_t layer_index, const Pass& pass);
  void SplitHeads(std::span<float> page, uint32_t layer_index, const Pass& pass);
  void AttendHead(PagedKv& kv, uint32_t layer_index, uint32_t kv_head, const Pass& pass);
  void FeedForward(const LayerWeights& layer, const Pass& pass);
  void Head(uint32_t row_count);
  void RotateInto(float* to, const float* from, uint32_t position) const;

  // Constant after construction.
  Shape shape_;
  uint64_t seed_;
  Weights weights_;
  FloatBuffer rope_cos_;  // [context_tokens_max][head_size / 2]
  FloatBuffer rope_sin_;

  // Activations of the pass in progress; rows are tokens.
  FloatBuffer residual_;    // [row][d_model]
  FloatBuffer normed_;      // [row][d_model]
  FloatBuffer projected_;   // [row][query_width + 2 * kv_width]
  FloatBuffer queries_;     // [query_head][row][head_size]
  FloatBuffer scores_;      // [query of one KV head][row][position]
  FloatBuffer attended_;    // [query_head][row][head_size]
  FloatBuffer merged_;      // [row][query_width]
  FloatBuffer gate_up_;     // [row][2 * ffn_width]
  FloatBuffer gated_;       // [row][ffn_width]
  FloatBuffer row_logits_;  // [row][kVocabulary]
};

}  // namespace terrace::tiny_llama

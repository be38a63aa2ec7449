// A small but whole Llama on a few cores: byte tokens, RMSNorm, RoPE, grouped-query attention,
// SwiGLU, float32, weights from a seed.
//
// The idea: bits depend on tokens and position alone. Prefill always runs one whole block (a short
// last one is padded and masked) and attention walks the past page by page, so each matrix product
// has one shape whatever was restored from a cache before. Threads share work that is cut the same
// way however many there are: heads, and panels of columns, each multiplied by one thread. Thus a
// prompt whose leading pages were copied from elsewhere gives the same logits, bit for bit, as one
// computed whole, and a compare is a memcmp. With other matrix kernels the last bits differ.
//
// THREADING: one call at a time (the model owns its activations and its threads). The constructor
// sets OpenBLAS to one thread a call for the process.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tiny_llama/float_buffer.h"
#include "tiny_llama/paged_kv.h"
#include "tiny_llama/shape.h"
#include "tiny_llama/softmax.h"
#include "tiny_llama/thread_pool.h"
#include "tiny_llama/weights.h"

namespace terrace::tiny_llama {

// Changes whenever the same weights would give other bits; part of a Space's revision.
inline constexpr uint32_t kArithmeticVersion = 2;

// Lets OpenBLAS use its AVX2 kernels wherever the CPU has AVX2 and FMA: its own table of CPU models
// ends with those of its release, and newer ones get kernels of 2004. For main(): OpenBLAS chooses
// while it is loaded, so this runs the program again with OPENBLAS_CORETYPE set and returns only
// where nothing is to be changed. A value that the caller has set stays.
void ChooseMatrixKernels(char** argv);

class TinyLlama {
 public:
  // REQUIRES: a valid shape, threads > 0.
  TinyLlama(const Shape& shape, uint64_t seed, uint32_t threads = kThreadsDefault);
  static constexpr uint32_t kThreadsDefault = 2;

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

  struct Projection;

  void Project(uint32_t rows, const Projection& projection);
  void Forward(PagedKv& kv, std::span<const uint8_t> tokens, const Pass& pass);
  void Attend(PagedKv& kv, const LayerWeights& layer, uint32_t layer_index, const Pass& pass);
  void SplitHeads(std::span<float> page, uint32_t layer_index, const Pass& pass);
  void AttendHead(uint32_t layer_index, uint32_t kv_head, const Pass& pass);
  void WeighPage(uint32_t kv_head, uint32_t page, const Pass& pass);
  void MergeHeads(uint32_t kv_head, const Pass& pass);
  void FeedForward(const LayerWeights& layer, const Pass& pass);
  void Head(uint32_t row_count);
  void RotateInto(float* to, const float* from, uint32_t position) const;

  // Constant after construction.
  Shape shape_;
  uint64_t seed_;
  uint32_t score_columns_;  // block_tokens in whole lanes
  Weights weights_;
  FloatBuffer rope_cos_;  // [context_tokens_max][head_size / 2]
  FloatBuffer rope_sin_;

  // Activations of the pass in progress; rows are tokens.
  FloatBuffer residual_;                 // [row][d_model]
  FloatBuffer normed_;                   // [row][d_model]
  FloatBuffer projected_;                // [row][query_width + 2 * kv_width]
  FloatBuffer queries_;                  // [query_head][row][head_size]
  FloatBuffer scores_;                   // [query_head][row][score_columns_]: of one page
  FloatBuffer attended_;                 // [query_head][row][head_size]
  std::vector<RunningSoftmax> softmax_;  // [query_head][row]
  FloatBuffer merged_;                   // [row][query_width]
  FloatBuffer gate_up_;                  // [row][2 * ffn_width]
  FloatBuffer gated_;                    // [row][ffn_width]
  FloatBuffer row_logits_;               // [row][kVocabulary]
  std::vector<const float*> pages_;      // [page] up to the pass's own
  ThreadPool threads_;
};

}  // namespace terrace::tiny_llama

// One request to a tiny Llama: restore what a prefix cache has, compute the rest, store what is
// new, generate. What a cache may do to a host is exactly this: save time, never change an answer.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "terrace/status.h"
#include "tiny_llama/model.h"
#include "tiny_llama/paged_kv.h"

namespace terrace::tiny_llama {

// Where a host finds KV it need not compute. Neither call fails: what cannot be restored is
// computed, what cannot be stored is forgotten.
struct PrefixCache {
  virtual ~PrefixCache() = default;

  // Fills the pages of leading blocks of `tokens`, a whole number of blocks, and returns how many
  // are filled without a gap. Pages after those may hold anything.
  virtual uint32_t Restore(std::span<const uint8_t> tokens, PagedKv& kv) = 0;

  // Offers the pages of blocks [first_block, first_block + block_count) of `tokens`.
  virtual void Store(std::span<const uint8_t> tokens, PagedKv& kv, uint32_t first_block,
                     uint32_t block_count) = 0;
};

// How far a prefill has come.
struct PrefillProgress {
  uint32_t tokens = 0;  // of the prompt, restored ones among them
  double left_ms = 0;   // by what the blocks so far took: a later block attends to more
};

struct RunOptions {
  PrefixCache* cache = nullptr;  // null: compute everything
  uint32_t generate_tokens = 1;  // greedy; the first one is what time to first token waits for
  std::function<void(const PrefillProgress&)> progress = nullptr;  // after each block, if any
};

struct InferenceResult {
  uint32_t prompt_tokens = 0;
  uint32_t reused_tokens = 0;  // restored, a whole number of blocks
  double restore_ms = 0;       // part of ttft_ms
  double ttft_ms = 0;          // from the call to the first token known
  double store_ms = 0;         // after the first token
  double decode_ms = 0;        // for the tokens after the first
  std::vector<float> logits;   // [kVocabulary] at the prompt's last token
  std::vector<uint8_t> generated;

  uint32_t computed_tokens() const { return prompt_tokens - reused_tokens; }
  // XXH3-128 of the logits' bytes as 32 hex digits: equal digests, equal bits.
  std::string LogitsDigest() const;
};

// kInvalid with `*why` if the prompt is empty or, with what is to be generated, beyond the context.
// At least one block is always computed: the one that holds the prompt's last token is never
// restored, since a page holds no logits.
Status RunPrompt(TinyLlama& model, std::span<const uint8_t> prompt, const RunOptions& options,
                 InferenceResult* result, std::string* why);

}  // namespace terrace::tiny_llama

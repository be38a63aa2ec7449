#include "tiny_llama/inference.h"

#include <xxhash.h>

#include <algorithm>
#include <chrono>

#include "terrace/block_key.h"
#include "terrace/check.h"

namespace terrace::tiny_llama {
namespace {

using SteadyClock = std::chrono::steady_clock;

double MsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - start).count();
}

uint8_t Greedy(std::span<const float> logits) {
  return static_cast<uint8_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

Status CheckRequest(const Shape& shape, size_t prompt_tokens, uint32_t generate_tokens,
                    std::string* why) {
  if (prompt_tokens == 0) {
    *why = "the prompt is empty: give at least one byte";
    return Status(StatusCode::kInvalid, "empty prompt");
  }
  if (generate_tokens == 0) {
    *why = "generate_tokens is 0: ask for at least the first token";
    return Status(StatusCode::kInvalid, "nothing to generate");
  }
  if (prompt_tokens + generate_tokens > shape.context_tokens_max) {
    *why = "the prompt of " + std::to_string(prompt_tokens) + " tokens and " +
           std::to_string(generate_tokens) + " to generate exceed the context of " +
           std::to_string(shape.context_tokens_max) + " tokens: shorten the prompt";
    return Status(StatusCode::kInvalid, "beyond the context");
  }
  return Status::Ok();
}

// Multiplications of blocks [first, end), but for a factor.
double PrefillWork(const Shape& shape, uint32_t first, uint32_t end) {
  const double weights =
      1.0 * shape.d_model * (2 * shape.query_width() + 2 * shape.kv_width() + 3 * shape.ffn_width);
  const double a_page = 2.0 * shape.query_width() * shape.block_tokens;
  const double blocks = end - first;
  return blocks * weights + a_page * (blocks * first + blocks * (blocks + 1) / 2);
}

// Computes blocks [first_block, end of prompt) and leaves the last token's logits.
void Prefill(TinyLlama& model, std::span<const uint8_t> prompt, uint32_t first_block, PagedKv& kv,
             const RunOptions& options, std::vector<float>* logits) {
  const uint32_t block_tokens = model.shape().block_tokens;
  const uint32_t block_count =
      static_cast<uint32_t>((prompt.size() + block_tokens - 1) / block_tokens);
  const SteadyClock::time_point began = SteadyClock::now();
  for (uint32_t block = first_block; block < block_count; ++block) {
    const size_t start = size_t{block} * block_tokens;
    const size_t count = std::min<size_t>(block_tokens, prompt.size() - start);
    const bool is_last = block + 1 == block_count;
    model.PrefillBlock(kv, prompt.subspan(start, count), block, is_last ? logits : nullptr);
    if (!options.progress) continue;
    const double left = PrefillWork(model.shape(), block + 1, block_count);
    const double done = PrefillWork(model.shape(), first_block, block + 1);
    options.progress(
        {.tokens = static_cast<uint32_t>(start + count), .left_ms = MsSince(began) * left / done});
  }
  logits->erase(logits->begin(), logits->end() - kVocabulary);
}

}  // namespace

std::string InferenceResult::LogitsDigest() const {
  const XXH128_hash_t digest = XXH3_128bits(logits.data(), logits.size() * sizeof(float));
  return ToHex(digest.high64, digest.low64);
}

Status RunPrompt(TinyLlama& model, std::span<const uint8_t> prompt, const RunOptions& options,
                 InferenceResult* result, std::string* why) {
  TERRACE_RETURN_IF_ERROR(CheckRequest(model.shape(), prompt.size(), options.generate_tokens, why));
  const uint32_t block_tokens = model.shape().block_tokens;
  const uint32_t prompt_tokens = static_cast<uint32_t>(prompt.size());
  // Worked example, 64 tokens a block: of 128 tokens one block may be restored, of 129 two.
  const uint32_t restorable_blocks = (prompt_tokens - 1) / block_tokens;
  const uint32_t full_blocks = prompt_tokens / block_tokens;

  *result = InferenceResult{.prompt_tokens = prompt_tokens};
  PagedKv kv = model.NewKv();
  const SteadyClock::time_point start = SteadyClock::now();
  uint32_t reused_blocks = 0;
  if (options.cache != nullptr && restorable_blocks > 0) {
    reused_blocks = options.cache->Restore(prompt.first(restorable_blocks * block_tokens), kv);
    TERRACE_CHECK(reused_blocks <= restorable_blocks, "a cache restores what it was asked for");
    result->restore_ms = MsSince(start);
  }
  result->reused_tokens = reused_blocks * block_tokens;
  Prefill(model, prompt, reused_blocks, kv, options, &result->logits);
  result->generated.push_back(Greedy(result->logits));
  result->ttft_ms = MsSince(start);

  if (options.cache != nullptr && full_blocks > reused_blocks) {
    const SteadyClock::time_point store_start = SteadyClock::now();
    options.cache->Store(prompt.first(full_blocks * block_tokens), kv, reused_blocks,
                         full_blocks - reused_blocks);
    result->store_ms = MsSince(store_start);
  }

  const SteadyClock::time_point decode_start = SteadyClock::now();
  std::vector<float> logits;
  for (uint32_t i = 1; i < options.generate_tokens; ++i) {
    model.Decode(kv, result->generated.back(), prompt_tokens + i - 1, &logits);
    result->generated.push_back(Greedy(logits));
  }
  result->decode_ms = MsSince(decode_start);
  return Status::Ok();
}

}  // namespace terrace::tiny_llama

#include "tools/replay/eviction/gdsf.h"

#include <algorithm>
#include <bit>

namespace terrace::tools {
namespace {

// The cost of a token's attention equals that of the rest of its layer at about this context, for
// models of 8 to 70 billion weights.
constexpr double kContextOfEqualCostTokens = 32768;
constexpr uint32_t kBitsDropped = 64 - CandidateHeap::kOrderBits;

}  // namespace

void GdsfPolicy::OnInsert(BlockId id, const BlockTraits& traits, uint64_t) {
  if (id >= worths_.size()) worths_.resize(id + 1);
  const double context_tokens = double{1} * traits.position * traits.block_tokens;
  const double token_cost = traits.recompute_ns_per_token > 0
                                ? traits.recompute_ns_per_token
                                : 1 + context_tokens / kContextOfEqualCostTokens;
  const double byte_count = static_cast<double>(std::max<uint64_t>(traits.byte_count, 1));
  worths_[id] = {.per_use = token_cost * traits.block_tokens / byte_count, .use_count = 1};
  RankOf(id).priority = traits.priority;
  Rank(id);
}

// The bits of doubles that are not negative sort as they do; the last few do not matter.
void GdsfPolicy::Rank(BlockId id) {
  RankOf(id).order =
      std::bit_cast<uint64_t>(inflation_ + worths_[id].use_count * worths_[id].per_use) >>
      kBitsDropped;
}

void GdsfPolicy::OnTouch(std::span<const BlockId> run, const TouchContext& context) {
  // That a request ended is no second use of its tip.
  if (context.end_reason != protocol::EndReason::kUnknown) return;
  for (const BlockId id : run) {
    ++worths_[id].use_count;
    Rank(id);
    Resort(id);
  }
}

void GdsfPolicy::OnErase(BlockId id) {
  inflation_ = std::max(inflation_, std::bit_cast<double>(RankOf(id).order << kBitsDropped));
}

}  // namespace terrace::tools

#include "tools/replay/eviction/lfu.h"

#include <algorithm>

namespace terrace::tools {

void LfuPolicy::OnInsert(BlockId id, const BlockTraits& traits, uint64_t) {
  RankOf(id) = {traits.priority, ++use_count_};
}

void LfuPolicy::OnTouch(std::span<const BlockId> run, const TouchContext& context) {
  // That a request ended is no second use of its tip.
  if (context.end_reason != protocol::EndReason::kUnknown) return;
  use_count_ += run.size();
  uint64_t stamp = use_count_;  // tail first, as in LruPolicy
  for (const BlockId id : run) {
    CandidateHeap::Rank& rank = RankOf(id);
    const uint64_t frequency = std::min((rank.order >> kStampBits) + 1, kFrequencyMax);
    rank.order = frequency << kStampBits | stamp--;
    Resort(id);
  }
}

}  // namespace terrace::tools

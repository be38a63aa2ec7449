#include "tools/replay/eviction/lfu.h"

#include <algorithm>

namespace terrace::tools {

void LfuPolicy::OnInsert(BlockId id, const BlockTraits& traits, uint64_t) {
  if (id >= ranks_.size()) ranks_.resize(id + 1);
  ranks_[id] = {traits.priority, ++use_count_};
}

void LfuPolicy::OnTouch(std::span<const BlockId> run, const TouchContext& context) {
  // That a request ended is no second use of its tip.
  if (context.end_reason != protocol::EndReason::kUnknown) return;
  use_count_ += run.size();
  uint64_t stamp = use_count_;  // tail first, as in LruPolicy
  for (const BlockId id : run) {
    const uint64_t frequency = std::min((ranks_[id].order >> kStampBits) + 1, kFrequencyMax);
    ranks_[id].order = frequency << kStampBits | stamp--;
    if (heap_.Contains(id)) heap_.Change(id, ranks_[id]);
  }
}

void LfuPolicy::OnErase(BlockId) {}

void LfuPolicy::OnCandidate(BlockId id) { heap_.Add(id, ranks_[id]); }

void LfuPolicy::OnHeld(BlockId id) { heap_.Remove(id); }

void LfuPolicy::SetPriority(BlockId id, uint8_t priority) {
  ranks_[id].priority = priority;
  if (heap_.Contains(id)) heap_.Change(id, ranks_[id]);
}

}  // namespace terrace::tools

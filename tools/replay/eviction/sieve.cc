#include "tools/replay/eviction/sieve.h"

#include <algorithm>

namespace terrace::tools {

void SievePolicy::OnInsert(BlockId id, const BlockTraits& traits, uint64_t) {
  if (id >= ranks_.size()) ranks_.resize(id + 1);
  ranks_[id] = {traits.priority, hand_ / kLap * kLap + ++insert_count_};
}

void SievePolicy::OnTouch(std::span<const BlockId> run, const TouchContext& context) {
  // That a request ended is no second use of its tip.
  if (context.end_reason != protocol::EndReason::kUnknown) return;
  for (const BlockId id : run) {
    const uint64_t place = ranks_[id].order % kLap;
    const uint64_t next_lap = hand_ / kLap + (place > hand_ % kLap ? 0 : 1);
    ranks_[id].order = (next_lap + 1) * kLap + place;
    if (heap_.Contains(id)) heap_.Change(id, ranks_[id]);
  }
}

void SievePolicy::OnErase(BlockId id) {
  const bool was_taken = heap_.first() == kBlockNone || ranks_[id] < ranks_[heap_.first()];
  if (!was_taken) return;
  hand_ = std::max(hand_, ranks_[id].order);
  // Behind the newest the hand starts again at the oldest, whatever comes meanwhile.
  if (hand_ % kLap == insert_count_) hand_ = (hand_ / kLap + 1) * kLap;
}

void SievePolicy::SetPriority(BlockId id, uint8_t priority) {
  ranks_[id].priority = priority;
  if (heap_.Contains(id)) heap_.Change(id, ranks_[id]);
}

}  // namespace terrace::tools

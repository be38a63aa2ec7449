#include "daemon/policy/eviction/lru.h"

#include "terrace/check.h"

namespace terrace {

void LruPolicy::OnInsert(BlockId id, const BlockTraits& traits, uint64_t) {
  ranks_.Reach(id);
  ranks_[id] = {traits.priority, ++use_count_};
}

void LruPolicy::OnTouch(std::span<const BlockId> run, const TouchContext&) {
  // Head first: the last one gets the oldest stamp of this use.
  use_count_ += run.size();
  uint64_t order = use_count_;
  for (const BlockId id : run) {
    ranks_[id].order = order--;
    if (heap_.Contains(id)) heap_.Change(id, ranks_[id]);
  }
}

void LruPolicy::OnErase(BlockId) {}

void LruPolicy::OnCandidate(BlockId id) { heap_.Add(id, ranks_[id]); }

void LruPolicy::OnHeld(BlockId id) { heap_.Remove(id); }

uint32_t LruPolicy::EraseVictims(BlockRange run) {
  BlockId id = run.first + run.block_count - 1;
  TERRACE_CHECK(heap_.first() == id, "a run that is erased ends with the victim");
  heap_.Remove(id);
  const CandidateHeap::Rank next = heap_.first_rank();
  while (id > run.first && ranks_[id - 1] < next) --id;
  if (id > run.first) heap_.Add(id - 1, ranks_[id - 1]);
  if (heap_.first() != kBlockNone) ranks_.Prefetch(heap_.first());
  return run.first + run.block_count - id;
}

void LruPolicy::SetPriority(BlockId id, uint8_t priority) {
  ranks_[id].priority = priority;
  if (heap_.Contains(id)) heap_.Change(id, ranks_[id]);
}

}  // namespace terrace

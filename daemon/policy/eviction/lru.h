// Least recently used, tail first: of a run that was used together the tail counts as used before
// its head, so that what leaves first is what the rest does not need.
#pragma once

#include "daemon/policy/eviction/candidate_heap.h"
#include "daemon/policy/eviction/policy.h"

namespace terrace {

class LruPolicy final : public EvictionPolicy {
 public:
  void OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) override;
  void OnTouch(std::span<const BlockId> run, const TouchContext& context) override;
  void OnErase(BlockId id) override;
  void OnCandidate(BlockId id) override;
  void OnHeld(BlockId id) override;
  BlockId Victim() const override { return heap_.first(); }
  uint32_t EraseVictims(BlockRange run) override;
  void SetPriority(BlockId id, uint8_t priority) override;

 private:
  CandidateHeap heap_;
  ChunkedArray<CandidateHeap::Rank> ranks_;  // by id; order: when last used, in uses
  uint64_t use_count_ = 0;
};

}  // namespace terrace

// SIEVE: first in, first out, but what was used since the hand last came by is passed over once.
// Source: Zhang et al., "SIEVE is simpler than LRU" (NSDI 2024).
//
// The hand walks from old to new and starts again, lap after lap. So a block's rank is the lap and
// the place at which the hand will take it, and a use moves it to the lap after the next visit. A
// block that is held when the hand comes by goes as soon as it may.
#pragma once

#include <vector>

#include "daemon/policy/eviction/candidate_heap.h"
#include "daemon/policy/eviction/policy.h"

namespace terrace::tools {

class SievePolicy final : public EvictionPolicy {
 public:
  void OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) override;
  void OnTouch(std::span<const BlockId> run, const TouchContext& context) override;
  void OnErase(BlockId id) override;
  void OnCandidate(BlockId id) override { heap_.Add(id, ranks_[id]); }
  void OnHeld(BlockId id) override { heap_.Remove(id); }
  BlockId Victim() const override { return heap_.first(); }
  void SetPriority(BlockId id, uint8_t priority) override;

 private:
  static constexpr uint32_t kPlaceBits = 44;
  static constexpr uint64_t kLap = uint64_t{1} << kPlaceBits;

  CandidateHeap heap_;
  std::vector<CandidateHeap::Rank> ranks_;  // by id; order: lap, then place in order of coming
  uint64_t insert_count_ = 0;
  uint64_t hand_ = 0;  // order of what it took last
};

}  // namespace terrace::tools

// First in, first out.
#pragma once

#include <vector>

#include "daemon/policy/eviction/candidate_heap.h"
#include "daemon/policy/eviction/policy.h"

namespace terrace::tools {

class FifoPolicy final : public EvictionPolicy {
 public:
  void OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) override;
  void OnTouch(std::span<const BlockId> run, const TouchContext& context) override;
  void OnErase(BlockId id) override;
  void OnCandidate(BlockId id) override;
  void OnHeld(BlockId id) override;
  BlockId Victim() const override { return heap_.first(); }
  void SetPriority(BlockId id, uint8_t priority) override;

 private:
  CandidateHeap heap_;
  std::vector<CandidateHeap::Rank> ranks_;  // by id; order: when it came, in insertions
  uint64_t insert_count_ = 0;
};

}  // namespace terrace::tools

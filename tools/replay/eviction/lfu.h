// Least frequently used; among equals the least recently used.
#pragma once

#include <vector>

#include "daemon/policy/eviction/candidate_heap.h"
#include "daemon/policy/eviction/policy.h"

namespace terrace::tools {

class LfuPolicy final : public EvictionPolicy {
 public:
  void OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) override;
  void OnTouch(std::span<const BlockId> run, const TouchContext& context) override;
  void OnErase(BlockId id) override;
  void OnCandidate(BlockId id) override;
  void OnHeld(BlockId id) override;
  BlockId Victim() const override { return heap_.first(); }
  void SetPriority(BlockId id, uint8_t priority) override;

 private:
  static constexpr uint32_t kStampBits = 40;
  static constexpr uint64_t kFrequencyMax =
      (uint64_t{1} << (CandidateHeap::kOrderBits - kStampBits)) - 1;

  CandidateHeap heap_;
  std::vector<CandidateHeap::Rank> ranks_;  // by id; order: uses, then when last used
  uint64_t use_count_ = 0;
};

}  // namespace terrace::tools

// Greedy dual size frequency: uses × cost of recomputing ÷ bytes, plus the worth of what left last,
// so that old worth fades. Cost grows with the position, as attention does.
// Formula: Cherkasova, "Improving WWW proxies performance with greedy-dual-size-frequency" (1998).
#pragma once

#include <vector>

#include "daemon/policy/eviction/candidate_heap.h"
#include "daemon/policy/eviction/policy.h"

namespace terrace::tools {

class GdsfPolicy final : public EvictionPolicy {
 public:
  void OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) override;
  void OnTouch(std::span<const BlockId> run, const TouchContext& context) override;
  void OnErase(BlockId id) override;
  void OnCandidate(BlockId id) override;
  void OnHeld(BlockId id) override;
  BlockId Victim() const override { return heap_.first(); }
  void SetPriority(BlockId id, uint8_t priority) override;

 private:
  struct Worth {
    double per_use = 0;
    uint32_t use_count = 0;
  };

  void Rank(BlockId id);

  std::vector<CandidateHeap::Rank> ranks_;  // by id; order: the worth, as bits of a double
  std::vector<Worth> worths_;               // by id
  double inflation_ = 0;                    // worth of what left last
  CandidateHeap heap_;
};

}  // namespace terrace::tools

// S3-FIFO: newcomers pass through a small queue of a tenth of the tier; those used twice there go
// on to the main queue, the others leave and are remembered for one turn of the main queue. The
// main queue passes over what was used, once for each of at most three uses. Source: Yang et al.,
// "FIFO queues are all you need for cache eviction" (SOSP 2023).
//
// A block that is held when its turn comes goes as soon as it may.
#pragma once

#include <vector>

#include "daemon/policy/eviction/candidate_heap.h"
#include "daemon/policy/eviction/ghost_list.h"
#include "daemon/policy/eviction/policy.h"

namespace terrace {

class S3FifoPolicy final : public EvictionPolicy {
 public:
  // REQUIRES: capacity_blocks > 0.
  explicit S3FifoPolicy(uint32_t capacity_blocks);

  void OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) override;
  void OnTouch(std::span<const BlockId> run, const TouchContext& context) override;
  void OnErase(BlockId id) override;
  void OnCandidate(BlockId id) override;
  void OnHeld(BlockId id) override;
  BlockId Victim() const override;
  void SetPriority(BlockId id, uint8_t priority) override;

 private:
  struct BlockState {
    BlockKey key;
    CandidateHeap::Rank rank;  // order: when it entered its queue
    uint8_t use_count = 0;
    bool is_small = false;
  };

  CandidateHeap& QueueOf(const BlockState& state) const { return state.is_small ? small_ : main_; }
  void Requeue(BlockId id) const;

  // Constant after construction.
  const uint32_t small_count_max_;
  const uint32_t main_count_max_;

  GhostList ghosts_;
  // Victim moves queue heads that were used: what it decided stays decided.
  mutable std::vector<BlockState> states_;  // by id
  mutable CandidateHeap small_;
  mutable CandidateHeap main_;
  mutable uint32_t small_count_ = 0;  // held ones included
  mutable uint64_t stamp_ = 0;
};

}  // namespace terrace

// ARC: what was used once and what was used again are two lists, each by recency. Ghosts of both
// move the share the first list gets: a newcomer that was evicted from a list says that it was too
// short. Source: Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache" (2003).
#pragma once

#include <vector>

#include "daemon/policy/eviction/candidate_heap.h"
#include "daemon/policy/eviction/ghost_list.h"
#include "daemon/policy/eviction/policy.h"

namespace terrace {

class ArcPolicy final : public EvictionPolicy {
 public:
  // REQUIRES: capacity_blocks > 0.
  explicit ArcPolicy(uint32_t capacity_blocks) : capacity_blocks_(capacity_blocks) {}

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
    CandidateHeap::Rank rank;  // order: when last used, in uses
    bool is_frequent = false;
  };

  CandidateHeap& ListOf(const BlockState& state) { return state.is_frequent ? frequent_ : recent_; }

  // Constant after construction.
  const uint32_t capacity_blocks_;

  std::vector<BlockState> states_;  // by id
  CandidateHeap recent_;            // used once
  CandidateHeap frequent_;          // used again
  uint32_t recent_count_ = 0;       // held ones included
  double recent_target_ = 0;        // blocks, at most the capacity
  GhostList recent_ghosts_;
  GhostList frequent_ghosts_;
  uint64_t use_count_ = 0;
};

}  // namespace terrace

// W-TinyLFU: newcomers live in a window of a hundredth of the tier. What leaves it and what leaves
// the rest compare how often they were used of late, evicted or not, and the rarer one goes. The
// rest is two lists by recency: used once since it came in, and used again, at most four fifths.
// Source: Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy"
// (2017).
//
// The rest counts what may go: of held blocks none is demoted.
#pragma once

#include <array>
#include <vector>

#include "daemon/policy/eviction/candidate_heap.h"
#include "daemon/policy/eviction/policy.h"
#include "tools/replay/eviction/frequency_sketch.h"

namespace terrace::tools {

class WTinyLfuPolicy final : public EvictionPolicy {
 public:
  // REQUIRES: capacity_blocks > 0.
  explicit WTinyLfuPolicy(uint32_t capacity_blocks);

  void OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) override;
  void OnTouch(std::span<const BlockId> run, const TouchContext& context) override;
  void OnErase(BlockId id) override;
  void OnCandidate(BlockId id) override;
  void OnHeld(BlockId id) override;
  BlockId Victim() const override;
  void SetPriority(BlockId id, uint8_t priority) override;

 private:
  enum class Part : uint8_t { kWindow, kProbation, kProtected };

  struct BlockState {
    BlockKey key;
    CandidateHeap::Rank rank;  // order: when last used, in uses
    Part part = Part::kWindow;
  };

  CandidateHeap& ListOf(Part part) { return lists_[static_cast<size_t>(part)]; }
  BlockId FirstOf(Part part) const { return lists_[static_cast<size_t>(part)].first(); }
  uint32_t& CountOf(Part part) { return counts_[static_cast<size_t>(part)]; }
  void Move(BlockId id, Part part);
  void DemoteSome();
  // While the tier fills what overflows the window goes on without a contest, held or not.
  void Fill(BlockId newcomer);

  // Constant after construction.
  const uint32_t capacity_blocks_;
  const uint32_t window_count_max_;
  const uint32_t protected_count_max_;

  FrequencySketch sketch_;
  std::vector<BlockState> states_;      // by id
  std::array<CandidateHeap, 3> lists_;  // by part
  std::array<uint32_t, 3> counts_{};    // by part, held ones included
  uint64_t use_count_ = 0;
  bool is_filling_ = true;
  CandidateHeap window_order_;  // while it fills: the whole window
};

}  // namespace terrace::tools

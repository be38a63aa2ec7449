// Least frequently used; among equals the least recently used.
#pragma once

#include "tools/replay/eviction/ranked_policy.h"

namespace terrace::tools {

class LfuPolicy final : public RankedPolicy {
 public:
  void OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) override;
  void OnTouch(std::span<const BlockId> run, const TouchContext& context) override;

 private:
  static constexpr uint32_t kStampBits = 40;
  static constexpr uint64_t kFrequencyMax =
      (uint64_t{1} << (CandidateHeap::kOrderBits - kStampBits)) - 1;

  uint64_t use_count_ = 0;  // the order: how often a block was used, then when last
};

}  // namespace terrace::tools

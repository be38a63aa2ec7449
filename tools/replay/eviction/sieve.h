// SIEVE: first in, first out, but what was used since the hand last came by is passed over once.
// Source: Zhang et al., "SIEVE is simpler than LRU" (NSDI 2024).
//
// The hand walks from old to new and starts again, lap after lap. So a block's rank is the lap and
// the place at which the hand will take it, and a use moves it to the lap after the next visit. A
// block that is held when the hand comes by goes as soon as it may.
#pragma once

#include "tools/replay/eviction/ranked_policy.h"

namespace terrace::tools {

class SievePolicy final : public RankedPolicy {
 public:
  void OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) override;
  void OnTouch(std::span<const BlockId> run, const TouchContext& context) override;
  void OnErase(BlockId id) override;

 private:
  static constexpr uint32_t kPlaceBits = 44;
  static constexpr uint64_t kLap = uint64_t{1} << kPlaceBits;

  uint64_t insert_count_ = 0;  // the order: lap, then place in order of coming
  uint64_t hand_ = 0;          // order of what it took last
};

}  // namespace terrace::tools

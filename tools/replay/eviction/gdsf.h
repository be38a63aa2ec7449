// Greedy dual size frequency: uses × cost of recomputing ÷ bytes, plus the worth of what left last,
// so that old worth fades. Cost grows with the position, as attention does.
// Formula: Cherkasova, "Improving WWW proxies performance with greedy-dual-size-frequency" (1998).
#pragma once

#include <vector>

#include "tools/replay/eviction/ranked_policy.h"

namespace terrace::tools {

class GdsfPolicy final : public RankedPolicy {
 public:
  void OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) override;
  void OnTouch(std::span<const BlockId> run, const TouchContext& context) override;
  void OnErase(BlockId id) override;

 private:
  struct Worth {
    double per_use = 0;
    uint32_t use_count = 0;
  };

  // The order is the worth, as bits of a double.
  void Rank(BlockId id);

  std::vector<Worth> worths_;  // by id
  double inflation_ = 0;       // worth of what left last
};

}  // namespace terrace::tools

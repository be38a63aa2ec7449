// BatchDrops: copies in a tier that are given up together, because the tier is short of places of
// one shape and the room that could be had is held by places of another: it names whose.
//
// THREADING: store thread. LIMITS: one batch a tier; kPerStepMax blocks dropped in a step.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "daemon/residency/evictor.h"

namespace terrace {

class BatchDrops {
 public:
  static constexpr uint32_t kPerStepMax = 64;

  BatchDrops(CacheDomain& domain, Evictor& evictor)
      : d_(domain), evictor_(evictor), batches_(domain.lower.size()) {}

  // `tier` has no place for a local member of the block. True if others are being given up for it.
  bool Begin(BlockId id, uint32_t tier, uint32_t local_index);
  // Drops some. True if that was the end of a batch: there may be room.
  bool Step(uint32_t tier);
  bool has_work(uint32_t tier) const { return !batches_[tier].drops.empty(); }
  // A batch that dropped nothing is not tried again before the next Tick.
  void Tick(uint32_t tier) { batches_[tier].may_begin = true; }

 private:
  struct Batch {
    std::deque<SubtreeWalk> drops;
    bool has_dropped = false;  // any of them
    bool may_begin = true;
  };

  CacheDomain& d_;
  Evictor& evictor_;
  std::vector<Batch> batches_;  // by tier
};

}  // namespace terrace

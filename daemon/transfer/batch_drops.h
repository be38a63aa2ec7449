// BatchDrops: copies in a tier that are given up together, because the tier is short of places of
// one shape and the room that could be had is held by places of another, or because its room goes
// back to another domain: it names whose.
//
// THREADING: store thread. LIMITS: one batch a tier; kPerStepMax blocks dropped in a step.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
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
  // A batch that dropped nothing is not tried again before the next Tick. What goes back to another
  // domain is one, until it is gone; pins do not hold it.
  void Tick(uint32_t tier);

 private:
  struct Batch {
    std::deque<SubtreeWalk> drops;
    bool has_dropped = false;  // any of them
    bool may_begin = true;
    bool is_given = false;  // to another domain
  };
  void Fill(uint32_t tier, std::span<const uint32_t> owners);

  CacheDomain& d_;
  Evictor& evictor_;
  std::vector<Batch> batches_;  // by tier
};

}  // namespace terrace

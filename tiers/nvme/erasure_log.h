// ErasureLog: which frees a successor might still undo. A freed slot's erasure has ended when the
// table says that it is free, the catalog says so, and the drive would after a loss of power. What
// the last daemon freed is one erasure a slab, which ends with the first sync that covers all of
// it. Numbers count up, so that "all up to here" can be waited for. Keeps the slots' kEntryErasure.
//
// Pure: no I/O. THREADING: one thread.
#pragma once

#include <cstdint>
#include <set>
#include <unordered_map>

#include "tiers/nvme/nvme_slab.h"
#include "tiers/tier.h"

namespace terrace {

class ErasureLog {
 public:
  // The slot, whose entry may name a block, was freed. Nothing new if its last erasure goes on.
  void Begin(NvmeSlab& slab, uint32_t slot);
  // Ends that of the slot, if there is one and no successor finds what it covers any more.
  void EndIfDurable(NvmeSlab& slab, uint32_t slot);

  // Whatever the last daemon erased in the slab. Nothing new if that goes on.
  void BeginInherited(const NvmeSlab& slab);
  void EndInherited(const NvmeSlab& slab);
  bool IsInherited(const NvmeSlab& slab) const { return inherited_.contains(slab.index); }

  ErasureProgress progress() const {
    return {.begun = begun_, .ended = open_.empty() ? begun_ : *open_.begin()};
  }

 private:
  uint64_t begun_ = 0;
  std::set<uint64_t> open_;                           // numbers
  std::unordered_map<uint64_t, uint64_t> by_place_;   // numbers, by PlaceOf
  std::unordered_map<uint32_t, uint64_t> inherited_;  // likewise, by slab
};

}  // namespace terrace

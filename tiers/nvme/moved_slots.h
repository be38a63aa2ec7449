// MovedSlots: slots of one slab whose payload was copied there from a slab that goes, and whose
// entry is not to name it before a sync has covered the payload: the copy that is left is believed
// until then, whatever a loss of power leaves.
//
// Pure: no I/O. THREADING: one thread.
// INVARIANT: what is listed is kTaken and not being written; one that was freed meanwhile is
// known by its generation.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tiers/nvme/slab_slots.h"

namespace terrace {

class MovedSlots {
 public:
  // The payload is written.
  void Add(const SlabSlots& slots, uint32_t slot) {
    waiting_.push_back({.slot = slot, .generation = slots[slot].generation});
  }
  // A sync begins, which covers all of them.
  void BeginSync() { covered_ = std::exchange(waiting_, {}); }
  // It was never begun.
  void TakeBack() {
    waiting_.insert(waiting_.end(), covered_.begin(), covered_.end());
    covered_.clear();
  }
  // It went well: those that it covered and that are still there.
  std::vector<uint32_t> TakeCovered(const SlabSlots& slots) {
    return Present(slots, std::exchange(covered_, {}));
  }
  // The drive may have lost whatever no sync has covered.
  std::vector<uint32_t> TakeAll(const SlabSlots& slots) {
    TakeBack();
    return Present(slots, std::exchange(waiting_, {}));
  }

 private:
  struct Moved {
    uint32_t slot = 0;
    uint32_t generation = 0;
  };
  static std::vector<uint32_t> Present(const SlabSlots& slots, const std::vector<Moved>& moved) {
    std::vector<uint32_t> present;
    for (const Moved& one : moved) {
      const bool is_there = one.slot < slots.count() &&
                            slots[one.slot].generation == one.generation &&
                            slots[one.slot].state == SlabSlotState::kTaken;
      if (is_there) present.push_back(one.slot);
    }
    return present;
  }

  std::vector<Moved> waiting_;
  std::vector<Moved> covered_;
};

}  // namespace terrace

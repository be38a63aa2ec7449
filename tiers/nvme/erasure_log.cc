#include "tiers/nvme/erasure_log.h"

#include "terrace/check.h"
#include "tiers/nvme/slab_set.h"

namespace terrace {

void ErasureLog::Begin(NvmeSlab& slab, uint32_t slot) {
  if (slab.slots[slot].has(kEntryErasure)) return;
  slab.slots.SetFlags(slot, kEntryErasure, 0);
  const bool is_new = by_place_.emplace(PlaceOf(slab.index, slot), begun_).second;
  TERRACE_CHECK(is_new, "a slot has one erasure at a time");
  open_.insert(begun_++);
}

void ErasureLog::EndIfDurable(NvmeSlab& slab, uint32_t slot) {
  if (!slab.slots[slot].has(kEntryErasure)) return;
  if (slab.slots[slot].has(kEntryWriting | kEntryUnsynced | kEntrySyncing)) return;
  slab.slots.SetFlags(slot, 0, kEntryErasure);
  const auto found = by_place_.find(PlaceOf(slab.index, slot));
  TERRACE_CHECK(found != by_place_.end(), "the erasure of a slot that says so is under way");
  open_.erase(found->second);
  by_place_.erase(found);
}

void ErasureLog::BeginInherited(const NvmeSlab& slab) {
  if (!inherited_.emplace(slab.index, begun_).second) return;
  open_.insert(begun_++);
}

void ErasureLog::EndInherited(const NvmeSlab& slab) {
  const auto found = inherited_.find(slab.index);
  if (found == inherited_.end()) return;
  open_.erase(found->second);
  inherited_.erase(found);
}

}  // namespace terrace

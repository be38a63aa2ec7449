// SlotInspector: what an online check sees and may do. It compares slots as memory has them with
// table and catalog, has quarantined ones tried again, and has entries of free ones written anew.
//
// THREADING: the store thread. OWNERSHIP: its neighbours outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "tiers/disk/disk.h"
#include "tiers/nvme/header_table.h"
#include "tiers/tier.h"

namespace terrace {

class EntryWriter;
class ShapeClasses;
class SlabSet;
class SlotTrials;

// What memory holds of a slot, for whoever compares it with table and catalog.
struct SlabSlotView {
  SlabEntryState state = SlabEntryState::kFree;
  uint32_t owner = kOwnerNone;  // of a used slot
  uint32_t generation = 0;
  bool is_settled = false;  // table and catalog have been told; neither changes by itself

  friend bool operator==(const SlabSlotView&, const SlabSlotView&) = default;
};
struct SlabView {
  uint32_t index = 0;
  uint32_t disk = 0;  // of NvmeTier::Options::disks
  SlabGeometry geometry;
  SlabUuid uuid;
};

class SlotInspector {
 public:
  struct Neighbours {
    SlabSet& slabs;
    ShapeClasses& classes;
    EntryWriter& entries;
    SlotTrials& trials;
  };
  explicit SlotInspector(const Neighbours& neighbours) : with_(neighbours) {}

  // The first slab in use whose number is at least this.
  std::optional<SlabView> NextSlab(uint32_t index_min) const;
  // Of slots [first, first + views.size()). False: the slab is not in use, or has not so many.
  bool LookAtSlots(uint32_t slab, uint32_t first, std::span<SlabSlotView> views) const;
  // Writes to a quarantined slot and reads that back: it is free again if the drive keeps it.
  // `done` is called once, perhaps from inside this call: whether it is. REQUIRES: its entry names
  // nothing.
  void TryQuarantined(uint32_t slab, uint32_t slot, std::function<void(bool is_free)> done);
  // The entry of a slot that nobody has is written anew, as free. What a quarantined slot holds is
  // of no use then. Does nothing to a slot that somebody has.
  void RewriteAsFree(uint32_t slab, uint32_t slot);

 private:
  const Neighbours with_;
};

}  // namespace terrace

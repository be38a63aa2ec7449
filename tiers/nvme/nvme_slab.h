// NvmeSlab: one slab file as memory knows it: where it lies, its slots, and what is being done to
// it. Its phase and what stands under "steps" are SlabLifecycle's; before FinishRestore,
// SlabRestore's.
//
// THREADING: one thread. OWNERSHIP: SlabSet's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "tiers/crypto/group_key.h"
#include "tiers/disk/disk.h"
#include "tiers/nvme/header_table.h"
#include "tiers/nvme/moved_slots.h"
#include "tiers/nvme/slab_slots.h"
#include "tiers/nvme/unsynced_entries.h"

namespace terrace {

// A slab's state.
enum class SlabPhase : uint8_t {
  kRestoring,  // found at start, not yet open for blocks
  kCreating,   // its file is being made
  kReshaping,  // its table is being cleared for another shape
  kActive,
  kDraining,  // takes no blocks; takes another shape when empty
  kRetiring,  // takes no blocks; its file goes when empty
  kRemoving,
};

// What becomes of the blocks in a slab that is retiring.
enum class SlabWay : uint8_t {
  kGiven,  // they leave
  kMoved,  // they are copied to other slabs
};

struct NvmeSlab {
  NvmeSlab(uint32_t the_index, uint32_t the_disk, DiskFile the_file, SlotTotals* totals)
      : index(the_index), disk(the_disk), file(the_file), slots(totals) {}

  // Its table can be read: it has one of its shape.
  bool is_readable() const {
    return phase == SlabPhase::kRestoring || phase == SlabPhase::kActive || is_leaving();
  }
  bool is_leaving() const { return phase == SlabPhase::kDraining || phase == SlabPhase::kRetiring; }
  bool wants_clearing() const { return !unread_sectors.empty() && clear_attempts_left > 0; }
  // The sector of the slot's entry could not be read.
  bool IsUnread(uint32_t slot) const {
    return std::ranges::binary_search(unread_sectors, slot / geometry.entries_per_sector);
  }
  void NoteUnread(uint32_t slot) {
    const uint32_t sector = slot / geometry.entries_per_sector;
    const auto at = std::ranges::lower_bound(unread_sectors, sector);
    if (at == unread_sectors.end() || *at != sector) unread_sectors.insert(at, sector);
  }
  uint64_t slot_bytes() const { return geometry.shape.slot_bytes; }
  // All slots free and unwritten. REQUIRES: as SlabSlots::TakeShape.
  void TakeShape(const SlabGeometry& new_geometry, const SlabUuid& new_uuid) {
    geometry = new_geometry;
    uuid = new_uuid;
    slots.TakeShape(geometry.slot_count, geometry.shape.slot_bytes);
    ciphers.clear();
    unsynced.Clear();
    unread_sectors.clear();
  }

  const uint32_t index;
  const uint32_t disk;
  const DiskFile file;
  SlabPhase phase = SlabPhase::kCreating;
  SlabWay way = SlabWay::kGiven;  // kRetiring
  bool is_gone = false;           // somebody removed its file: nobody will find it again
  SlabGeometry geometry;
  SlabUuid uuid;
  SlabSlots slots;

  // By slot, once one of them has an encrypted payload: without a key it has none.
  std::vector<PayloadCipher> ciphers;
  void SetCipher(uint32_t slot, PayloadCipher cipher) {
    if (ciphers.empty()) ciphers.resize(slots.count());
    ciphers[slot] = std::move(cipher);
  }
  bool is_encrypted(uint32_t slot) const {
    return !ciphers.empty() && ciphers[slot].key != nullptr;
  }

  UnsyncedEntries unsynced;
  MovedSlots moved_in;
  bool is_superblock_due = false;  // the last one may not have reached the drive

  // Sectors of the table that could not be read at start, in order: to be cleared.
  std::vector<uint32_t> unread_sectors;
  uint32_t clear_attempts_left = 0;

  // ---- steps ----
  // kCreating, kReshaping, kRemoving, a superblock that is due, a sector to be cleared: one request
  // at a time.
  bool is_step_in_flight = false;
  uint32_t step = 0;
  uint64_t cleared_bytes = 0;  // of the new table
  SlabShape next_shape;        // kCreating, kDraining, kReshaping
  SlabUuid next_uuid;
  std::vector<std::byte> superblock;  // as last submitted
  uint64_t phase_since_us = 0;        // kDraining
};

}  // namespace terrace

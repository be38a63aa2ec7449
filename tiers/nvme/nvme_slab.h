// NvmeSlab: what memory holds of one slab: who has which slot, and which entries are yet to be
// written. Sixteen bytes a slot; what the bytes in it are is in the header table alone.
//
// A slot goes kFree → kTaken → kUsed → kErasing → kFree, or kUsed → kSuspect → kFree, kQuarantined.
// It is kErasing until the table says that it is free, so that no entry on disk ever names bytes of
// another block. Freed slots queue up: the oldest is handed out first.
//
// THREADING: one thread.
// INVARIANT: slots in use, erasing, quarantined and free make up all slots.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tiers/disk/disk.h"
#include "tiers/nvme/header_table.h"
#include "tiers/tier.h"

namespace terrace {

inline constexpr uint32_t kSlotNone = 0xFFFFFFFF;

enum class SlabSlotState : uint8_t {
  kFree,
  kErasing,      // free as soon as its entry says so
  kTaken,        // an owner has it; its bytes are not there
  kUsed,         // its bytes are there
  kLost,         // an owner has it, but its bytes or its entry may not have reached the drive
  kSuspect,      // nobody's; its bytes read wrong, and it is tried before anybody gets it again
  kQuarantined,  // nobody's: the drive was found wrong there
};

struct SlabSlot {
  uint32_t generation = 0;
  uint32_t owner = kOwnerNone;
  uint32_t next_free = kSlotNone;
  uint16_t transfers = 0;  // of payload, in flight
  SlabSlotState state = SlabSlotState::kFree;
  uint8_t flags = 0;
};
static_assert(sizeof(SlabSlot) == 16);

// Of a slot's entry.
inline constexpr uint8_t kEntryNamed = 1;      // the table may name a block here
inline constexpr uint8_t kEntryDirty = 2;      // to be written
inline constexpr uint8_t kEntryInFlight = 4;   // being written
inline constexpr uint8_t kEntryToCatalog = 8;  // written; the catalog has not answered
inline constexpr uint8_t kEntryErasure = 16;   // a successor might find what was freed
inline constexpr uint8_t kEntryUnsynced = 32;  // listed in NvmeSlab::unsynced
inline constexpr uint8_t kEntrySyncing = 64;   // listed in NvmeSlab::syncing
inline constexpr uint8_t kEntryDoubted = 128;  // the drive may say something older: to be written
inline constexpr uint8_t kEntryWriting = kEntryDirty | kEntryInFlight | kEntryToCatalog;
inline constexpr uint8_t kEntryWork = kEntryWriting | kEntryErasure | kEntryDoubted;

// What a slab is doing.
enum class SlabPhase : uint8_t {
  kRestoring,  // found at start, not yet open for blocks
  kCreating,   // its file is being made
  kReshaping,  // its table is being cleared for another shape
  kActive,
  kDraining,  // takes no blocks; takes another shape when empty
  kRetiring,  // takes no blocks; its file goes when empty
  kRemoving,
};

class NvmeSlab {
 public:
  NvmeSlab(uint32_t slab_index, uint32_t disk_index) : index(slab_index), disk(disk_index) {}

  // All slots free and unwritten.
  void TakeShape(const SlabGeometry& new_geometry, const SlabUuid& new_uuid);

  // The slot freed longest ago. REQUIRES: free_count > 0.
  uint32_t TakeSlot();
  void PushFree(uint32_t slot);
  // Moves a slot between states and keeps the counts.
  void SetState(uint32_t slot, SlabSlotState state);
  void SetFlags(uint32_t slot, uint8_t set, uint8_t clear);

  // Nobody owns a slot and no entry is on its way: the slab could be anything.
  bool is_empty() const { return owned_count == 0 && work_count == 0 && erasing_count == 0; }
  bool is_readable() const {
    return phase == SlabPhase::kRestoring || phase == SlabPhase::kActive || is_leaving();
  }
  bool is_leaving() const { return phase == SlabPhase::kDraining || phase == SlabPhase::kRetiring; }

  const uint32_t index;
  const uint32_t disk;
  DiskFile file = kDiskFileNone;
  SlabPhase phase = SlabPhase::kCreating;
  SlabGeometry geometry;
  SlabUuid uuid;
  std::vector<SlabSlot> slots;
  uint32_t owned_count = 0;  // kTaken, kUsed, kLost; kSuspect: its own trial's
  uint32_t free_count = 0;
  uint32_t erasing_count = 0;
  uint32_t quarantined_count = 0;
  uint32_t work_count = 0;  // slots with a flag of kEntryWork
  uint32_t doubted_count = 0;

  // Entries written since the last sync began, and those it is about to cover.
  std::vector<uint32_t> unsynced;
  std::vector<uint32_t> syncing;
  bool is_sync_in_flight = false;
  bool is_sync_due = false;        // something else than an entry was written
  bool is_sync_whole = false;      // that in flight covers all that the last daemon wrote
  bool is_gone = false;            // somebody removed its file: nobody will find it again
  bool is_superblock_due = false;  // the last one may not have reached the drive
  uint64_t last_sync_us = 0;
  std::optional<uint64_t>
      inherited_erasure;  // number; the last daemon's entries are not yet synced

  // Sectors of the table that could not be read at start, in order: to be cleared.
  std::vector<uint32_t> unread_sectors;
  uint32_t clear_attempts_left = 0;
  bool wants_clearing() const { return !unread_sectors.empty() && clear_attempts_left > 0; }
  bool IsUnread(uint32_t slot) const;

  // kCreating, kReshaping, kRemoving, a superblock that is due, a sector to be cleared: one request
  // at a time.
  bool is_step_in_flight = false;
  uint32_t step = 0;
  uint64_t cleared_bytes = 0;  // of the new table
  SlabShape next_shape;        // kDraining, kReshaping
  SlabUuid next_uuid;
  std::vector<std::byte> superblock;  // as last submitted
  uint64_t phase_since_us = 0;

 private:
  uint32_t* CountOf(SlabSlotState state);

  uint32_t free_head_ = kSlotNone;
  uint32_t free_tail_ = kSlotNone;
  uint32_t fresh_next_ = 0;  // slots from here on were never handed out and are in no list
};

}  // namespace terrace

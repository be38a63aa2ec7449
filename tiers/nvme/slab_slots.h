// SlabSlots: what memory holds of the slots of one slab: who has which, in which state, and what is
// yet to be said of it in the header table. Sixteen bytes a slot; what the bytes in it are is in
// the table alone.
//
// A slot goes kFree → kTaken → kUsed → kErasing → kFree, or kUsed → kSuspect → kFree, kQuarantined.
// It is kErasing until the table says that it is free, so that no entry on disk ever names bytes of
// another block. Freed slots queue up: the oldest is handed out first.
//
// Pure: no I/O.
// THREADING: one thread. OWNERSHIP: the totals, of all slabs of a tier, outlive it.
// INVARIANT: slots owned, erasing, quarantined and free make up all slots.
#pragma once

#include <cstdint>
#include <vector>

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

  bool is_owned() const {
    return state == SlabSlotState::kTaken || state == SlabSlotState::kUsed ||
           state == SlabSlotState::kLost;
  }
  bool has(uint8_t any_of_flags) const { return (flags & any_of_flags) != 0; }
};
static_assert(sizeof(SlabSlot) == 16);

// Of a slot's entry. EntryWriter sets the first four, ErasureLog kEntryErasure, UnsyncedEntries
// the next two, SlabSyncs kEntryDoubted.
inline constexpr uint8_t kEntryNamed = 1;      // the table may name a block here
inline constexpr uint8_t kEntryDirty = 2;      // to be written
inline constexpr uint8_t kEntryInFlight = 4;   // being written
inline constexpr uint8_t kEntryToCatalog = 8;  // written; the catalog has not answered
inline constexpr uint8_t kEntryErasure = 16;   // a successor might find what was freed
inline constexpr uint8_t kEntryUnsynced = 32;  // written since the last sync began
inline constexpr uint8_t kEntrySyncing = 64;   // covered by the sync under way
inline constexpr uint8_t kEntryDoubted = 128;  // the drive may say something older: to be written
inline constexpr uint8_t kEntryWriting = kEntryDirty | kEntryInFlight | kEntryToCatalog;
inline constexpr uint8_t kEntryWork = kEntryWriting | kEntryErasure | kEntryDoubted;

// Bytes of slots over all slabs of a tier, kept by SlabSlots.
struct SlotTotals {
  uint64_t used_bytes = 0;  // an owner has them
  uint64_t suspect_bytes = 0;
  uint64_t quarantined_bytes = 0;
  uint64_t lost_count = 0;  // ever
};

class SlabSlots {
 public:
  explicit SlabSlots(SlotTotals* totals) : totals_(totals) {}

  // All slots free and unwritten, of generations that no slot of this slab has had.
  // REQUIRES: nobody owns a slot, no entry is on its way, none is quarantined.
  void TakeShape(uint32_t slot_count, uint64_t slot_bytes);
  // Quarantined slots no longer count in the totals: their file has gone. REQUIRES: as TakeShape,
  // but for those.
  void Forget();

  uint32_t count() const { return static_cast<uint32_t>(slots_.size()); }
  const SlabSlot& operator[](uint32_t slot) const { return slots_[slot]; }

  // The slot freed longest ago, kTaken from now on. REQUIRES: free_count() > 0.
  uint32_t Take();
  // → kFree, behind all others.
  void PushFree(uint32_t slot);
  // Any other change of state. REQUIRES: one that the way of a slot has.
  void SetState(uint32_t slot, SlabSlotState state);
  void SetFlags(uint32_t slot, uint8_t set, uint8_t clear);
  void SetOwner(uint32_t slot, uint32_t owner);
  // Its extents of now are gone: the next have another generation.
  void EndGeneration(uint32_t slot);

  // At start: as the slot's entry says. REQUIRES: free.
  void RestoreGeneration(uint32_t slot, uint32_t generation);
  // Free slots whose entries were not seen go on above all that were: extents stay unique.
  void RaiseUnseenGenerations();

  void BeginTransfer(uint32_t slot);
  void EndTransfer(uint32_t slot);

  uint32_t owned_count() const { return owned_count_; }  // kSuspect among them: its own trial's
  uint32_t free_count() const { return free_count_; }
  uint32_t erasing_count() const { return erasing_count_; }
  uint32_t quarantined_count() const { return quarantined_count_; }
  uint32_t doubted_count() const { return doubted_count_; }
  bool has_work() const { return work_count_ > 0; }  // a slot has a flag of kEntryWork
  // Nobody owns a slot and no entry is on its way: the slab could be anything.
  bool is_empty() const { return owned_count_ == 0 && work_count_ == 0 && erasing_count_ == 0; }

 private:
  uint32_t* CountOf(SlabSlotState state);
  uint64_t* TotalOf(SlabSlotState state);  // null: in none
  void Move(uint32_t slot, SlabSlotState state);

  SlotTotals* const totals_;
  std::vector<SlabSlot> slots_;
  uint64_t slot_bytes_ = 0;
  uint32_t owned_count_ = 0;
  uint32_t free_count_ = 0;
  uint32_t erasing_count_ = 0;
  uint32_t quarantined_count_ = 0;
  uint32_t work_count_ = 0;
  uint32_t doubted_count_ = 0;
  uint32_t free_head_ = kSlotNone;
  uint32_t free_tail_ = kSlotNone;
  uint32_t fresh_next_ = 0;  // slots from here on were never handed out and are in no list
};

}  // namespace terrace

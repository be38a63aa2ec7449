#include "tiers/nvme/nvme_slab.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {

void NvmeSlab::TakeShape(const SlabGeometry& new_geometry, const SlabUuid& new_uuid) {
  TERRACE_CHECK(owned_count == 0 && work_count == 0, "a slab takes a shape when it is empty");
  geometry = new_geometry;
  uuid = new_uuid;
  // No extent of an earlier shape ever equals one of this.
  uint32_t generation = 0;
  for (const SlabSlot& slot : slots) generation = std::max(generation, slot.generation + 1);
  slots.assign(geometry.slot_count, SlabSlot{.generation = generation});
  slots.shrink_to_fit();
  free_count = geometry.slot_count;
  erasing_count = quarantined_count = 0;
  free_head_ = free_tail_ = kSlotNone;
  fresh_next_ = 0;
  unsynced.clear();
  syncing.clear();
  unread_sectors.clear();
}

bool NvmeSlab::IsUnread(uint32_t slot) const {
  return std::ranges::binary_search(unread_sectors, slot / geometry.entries_per_sector);
}

uint32_t* NvmeSlab::CountOf(SlabSlotState state) {
  switch (state) {
    case SlabSlotState::kFree:
      return &free_count;
    case SlabSlotState::kErasing:
      return &erasing_count;
    case SlabSlotState::kTaken:
    case SlabSlotState::kUsed:
    case SlabSlotState::kLost:
    case SlabSlotState::kSuspect:
      return &owned_count;
    case SlabSlotState::kQuarantined:
      break;
  }
  return &quarantined_count;
}

void NvmeSlab::SetState(uint32_t slot, SlabSlotState state) {
  --*CountOf(slots[slot].state);
  slots[slot].state = state;
  ++*CountOf(state);
}

void NvmeSlab::SetFlags(uint32_t slot, uint8_t set, uint8_t clear) {
  uint8_t& flags = slots[slot].flags;
  const bool had_work = (flags & kEntryWork) != 0;
  const bool was_doubted = (flags & kEntryDoubted) != 0;
  flags = static_cast<uint8_t>((flags & ~clear) | set);
  const bool has_work = (flags & kEntryWork) != 0;
  if (had_work != has_work) has_work ? ++work_count : --work_count;
  const bool is_doubted = (flags & kEntryDoubted) != 0;
  if (was_doubted != is_doubted) is_doubted ? ++doubted_count : --doubted_count;
}

uint32_t NvmeSlab::TakeSlot() {
  TERRACE_CHECK(free_count > 0, "a slot is taken where there is one");
  // Slots that were never used come first: they are older than any freed one. Restored ones among
  // them are passed over.
  while (fresh_next_ < slots.size()) {
    const uint32_t slot = fresh_next_++;
    if (slots[slot].state == SlabSlotState::kFree) {
      SetState(slot, SlabSlotState::kTaken);
      return slot;
    }
  }
  const uint32_t slot = free_head_;
  TERRACE_CHECK(slot != kSlotNone, "free slots are fresh or in the list");
  free_head_ = slots[slot].next_free;
  if (free_head_ == kSlotNone) free_tail_ = kSlotNone;
  slots[slot].next_free = kSlotNone;
  SetState(slot, SlabSlotState::kTaken);
  return slot;
}

void NvmeSlab::PushFree(uint32_t slot) {
  SetState(slot, SlabSlotState::kFree);
  slots[slot].owner = kOwnerNone;
  slots[slot].next_free = kSlotNone;
  // A restored slot that nobody wanted lies among the fresh ones.
  if (slot >= fresh_next_) return;
  if (free_tail_ == kSlotNone) {
    free_head_ = slot;
  } else {
    slots[free_tail_].next_free = slot;
  }
  free_tail_ = slot;
}

}  // namespace terrace

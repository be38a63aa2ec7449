#include "tiers/nvme/slab_slots.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {
namespace {

// Whether a slot in `from` may become `to` by SetState. What becomes free does so by PushFree.
bool IsStep(SlabSlotState from, SlabSlotState to) {
  using enum SlabSlotState;
  switch (to) {
    case kFree:
      return false;
    case kErasing:  // kFree: a restored block that nobody wants
      return from != kErasing && from != kLost;
    case kTaken:  // by Take alone
      return false;
    case kUsed:
      return from == kTaken || from == kFree;
    case kLost:
      return from == kUsed;
    case kSuspect:
      return from == kTaken || from == kUsed || from == kQuarantined;
    case kQuarantined:  // kFree and kUsed: restored
      return from != kErasing && from != kTaken && from != kQuarantined;
  }
  return false;
}

}  // namespace

void SlabSlots::TakeShape(uint32_t slot_count, uint64_t slot_bytes) {
  TERRACE_CHECK(is_empty(), "a slab takes a shape when it is empty");
  TERRACE_CHECK(quarantined_count_ == 0, "a quarantined slot keeps its place on the drive");
  uint32_t generation = 0;
  for (const SlabSlot& slot : slots_) generation = std::max(generation, slot.generation + 1);
  slots_.assign(slot_count, SlabSlot{.generation = generation});
  slots_.shrink_to_fit();
  slot_bytes_ = slot_bytes;
  free_count_ = slot_count;
  free_head_ = free_tail_ = kSlotNone;
  fresh_next_ = 0;
}

void SlabSlots::Forget() {
  TERRACE_CHECK(is_empty(), "a slab goes when nobody has a slot of it");
  totals_->quarantined_bytes -= uint64_t{quarantined_count_} * slot_bytes_;
}

uint32_t* SlabSlots::CountOf(SlabSlotState state) {
  switch (state) {
    case SlabSlotState::kFree:
      return &free_count_;
    case SlabSlotState::kErasing:
      return &erasing_count_;
    case SlabSlotState::kTaken:
    case SlabSlotState::kUsed:
    case SlabSlotState::kLost:
    case SlabSlotState::kSuspect:
      return &owned_count_;
    case SlabSlotState::kQuarantined:
      break;
  }
  return &quarantined_count_;
}

uint64_t* SlabSlots::TotalOf(SlabSlotState state) {
  switch (state) {
    case SlabSlotState::kTaken:
    case SlabSlotState::kUsed:
    case SlabSlotState::kLost:
      return &totals_->used_bytes;
    case SlabSlotState::kSuspect:
      return &totals_->suspect_bytes;
    case SlabSlotState::kQuarantined:
      return &totals_->quarantined_bytes;
    case SlabSlotState::kFree:
    case SlabSlotState::kErasing:
      break;
  }
  return nullptr;
}

void SlabSlots::Move(uint32_t slot, SlabSlotState state) {
  const SlabSlotState from = slots_[slot].state;
  --*CountOf(from);
  if (uint64_t* total_bytes = TotalOf(from)) *total_bytes -= slot_bytes_;
  slots_[slot].state = state;
  ++*CountOf(state);
  if (uint64_t* total_bytes = TotalOf(state)) *total_bytes += slot_bytes_;
}

void SlabSlots::SetState(uint32_t slot, SlabSlotState state) {
  TERRACE_CHECK(slot < slots_.size(), "a slot of this slab");
  TERRACE_CHECK(IsStep(slots_[slot].state, state), "a slot goes the way that the table can follow");
  TERRACE_CHECK(slots_[slot].state != SlabSlotState::kFree || slot >= fresh_next_,
                "a slot that was freed is taken in its turn");
  if (state == SlabSlotState::kLost) ++totals_->lost_count;
  Move(slot, state);
}

void SlabSlots::SetFlags(uint32_t slot, uint8_t set, uint8_t clear) {
  uint8_t& flags = slots_[slot].flags;
  const bool had_work = (flags & kEntryWork) != 0;
  const bool was_doubted = (flags & kEntryDoubted) != 0;
  flags = static_cast<uint8_t>((flags & ~clear) | set);
  const bool has_work = (flags & kEntryWork) != 0;
  if (had_work != has_work) has_work ? ++work_count_ : --work_count_;
  const bool is_doubted = (flags & kEntryDoubted) != 0;
  if (was_doubted != is_doubted) is_doubted ? ++doubted_count_ : --doubted_count_;
}

void SlabSlots::SetOwner(uint32_t slot, uint32_t owner) {
  TERRACE_CHECK(slots_[slot].is_owned(), "somebody has the slot of whom a name is given");
  slots_[slot].owner = owner;
}

void SlabSlots::EndGeneration(uint32_t slot) {
  TERRACE_CHECK(slots_[slot].transfers == 0, "no transfer on a freed extent is in flight");
  ++slots_[slot].generation;
  slots_[slot].owner = kOwnerNone;
}

void SlabSlots::RestoreGeneration(uint32_t slot, uint32_t generation) {
  TERRACE_CHECK(slots_[slot].state == SlabSlotState::kFree, "nobody has a slot that is restored");
  slots_[slot].generation = generation;
}

void SlabSlots::RaiseUnseenGenerations() {
  uint32_t generation = 0;
  for (const SlabSlot& slot : slots_) generation = std::max(generation, slot.generation + 1);
  for (SlabSlot& slot : slots_) {
    if (slot.generation == 0 && slot.state == SlabSlotState::kFree) slot.generation = generation;
  }
}

void SlabSlots::BeginTransfer(uint32_t slot) {
  TERRACE_CHECK(slots_[slot].is_owned(), "bytes go to and from slots that somebody has");
  ++slots_[slot].transfers;
}

void SlabSlots::EndTransfer(uint32_t slot) {
  TERRACE_CHECK(slots_[slot].transfers > 0, "a transfer ends once");
  --slots_[slot].transfers;
}

uint32_t SlabSlots::Take() {
  TERRACE_CHECK(free_count_ > 0, "a slot is taken where there is one");
  // Slots that were never used come first: they are older than any freed one. Restored ones among
  // them are passed over.
  while (fresh_next_ < slots_.size()) {
    const uint32_t slot = fresh_next_++;
    if (slots_[slot].state == SlabSlotState::kFree) {
      Move(slot, SlabSlotState::kTaken);
      return slot;
    }
  }
  const uint32_t slot = free_head_;
  TERRACE_CHECK(slot != kSlotNone, "free slots are fresh or in the list");
  TERRACE_CHECK(slots_[slot].state == SlabSlotState::kFree, "what is handed out is nobody's");
  free_head_ = slots_[slot].next_free;
  if (free_head_ == kSlotNone) free_tail_ = kSlotNone;
  slots_[slot].next_free = kSlotNone;
  Move(slot, SlabSlotState::kTaken);
  return slot;
}

void SlabSlots::PushFree(uint32_t slot) {
  const SlabSlotState from = slots_[slot].state;
  TERRACE_CHECK(from != SlabSlotState::kFree, "a slot is freed once");
  TERRACE_CHECK(from != SlabSlotState::kUsed && from != SlabSlotState::kLost,
                "the table says that a slot is free before it is");
  Move(slot, SlabSlotState::kFree);
  slots_[slot].owner = kOwnerNone;
  slots_[slot].next_free = kSlotNone;
  // A restored slot that nobody wanted lies among the fresh ones.
  if (slot >= fresh_next_) return;
  if (free_tail_ == kSlotNone) {
    free_head_ = slot;
  } else {
    slots_[free_tail_].next_free = slot;
  }
  free_tail_ = slot;
}

}  // namespace terrace

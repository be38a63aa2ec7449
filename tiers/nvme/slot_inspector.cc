#include "tiers/nvme/slot_inspector.h"

#include <utility>

#include "tiers/nvme/entry_writer.h"
#include "tiers/nvme/shape_classes.h"
#include "tiers/nvme/slot_trials.h"

namespace terrace {
namespace {

SlabSlotView ViewOf(const SlabSlot& slot) {
  SlabSlotView view{.owner = slot.owner, .generation = slot.generation};
  // Its entry, once that is settled.
  if (slot.state == SlabSlotState::kUsed) view.state = SlabEntryState::kUsed;
  if (slot.state == SlabSlotState::kQuarantined) view.state = SlabEntryState::kQuarantined;
  const bool is_changing =
      slot.state == SlabSlotState::kTaken || slot.state == SlabSlotState::kLost ||
      slot.state == SlabSlotState::kSuspect || slot.state == SlabSlotState::kErasing;
  view.is_settled = !is_changing && !slot.has(kEntryWriting | kEntryDoubted);
  return view;
}

}  // namespace

std::optional<SlabView> SlotInspector::NextSlab(uint32_t index_min) const {
  for (uint32_t index = index_min; index < with_.slabs.all().size(); ++index) {
    const NvmeSlab* const slab = with_.slabs.At(index);
    if (slab == nullptr || !slab->is_readable() || slab->is_gone) continue;
    return SlabView{
        .index = index, .disk = slab->disk, .geometry = slab->geometry, .uuid = slab->uuid};
  }
  return std::nullopt;
}

bool SlotInspector::LookAtSlots(uint32_t index, uint32_t first,
                                std::span<SlabSlotView> views) const {
  const NvmeSlab* const slab = with_.slabs.At(index);
  if (slab == nullptr || !slab->is_readable() || slab->is_gone) return false;
  if (first > slab->slots.count() || views.size() > slab->slots.count() - first) return false;
  for (uint32_t i = 0; i < views.size(); ++i) {
    views[i] = ViewOf(slab->slots[first + i]);
    // Its sector could not be read: it is cleared, or stays as it is.
    if (slab->IsUnread(first + i)) views[i].is_settled = false;
  }
  return true;
}

void SlotInspector::TryQuarantined(uint32_t index, uint32_t slot,
                                   std::function<void(bool is_free)> done) {
  NvmeSlab* const slab = with_.slabs.At(index);
  if (slab == nullptr || !slab->is_readable() || slot >= slab->slots.count() ||
      slab->IsUnread(slot) || slab->slots[slot].state != SlabSlotState::kQuarantined) {
    return done(false);
  }
  with_.trials.TryQuarantined(*slab, slot, std::move(done));
  with_.entries.Write();
}

void SlotInspector::RewriteAsFree(uint32_t index, uint32_t slot) {
  NvmeSlab* const slab = with_.slabs.At(index);
  // Between the look and this call it may have begun to take another shape, or to go.
  if (slab == nullptr || !slab->is_readable() || slot >= slab->slots.count()) return;
  const SlabSlotState state = slab->slots[slot].state;
  if (state == SlabSlotState::kQuarantined) {  // what it holds is of no use to anybody
    slab->slots.EndGeneration(slot);
    with_.classes.Erase(*slab, slot);
  } else if (state != SlabSlotState::kFree) {
    return;
  }
  with_.entries.MarkDirty(*slab, slot);
  with_.entries.Write();
}

}  // namespace terrace

// What an online check sees and may do: slots as memory has them.
#include <utility>

#include "tiers/nvme/nvme_tier_state.h"

namespace terrace {
namespace {

SlabSlotView ViewOf(const SlabSlot& slot) {
  SlabSlotView view{.owner = slot.owner, .generation = slot.generation};
  // What its entry says once it is settled.
  if (slot.state == SlabSlotState::kUsed) view.state = SlabEntryState::kUsed;
  if (slot.state == SlabSlotState::kQuarantined) view.state = SlabEntryState::kQuarantined;
  const bool is_changing =
      slot.state == SlabSlotState::kTaken || slot.state == SlabSlotState::kLost ||
      slot.state == SlabSlotState::kSuspect || slot.state == SlabSlotState::kErasing;
  view.is_settled = !is_changing && (slot.flags & (kEntryWriting | kEntryDoubted)) == 0;
  return view;
}

}  // namespace

std::optional<SlabView> NvmeTier::NextSlab(uint32_t index_min) const {
  for (uint32_t index = index_min; index < state_->slabs.size(); ++index) {
    const NvmeSlab* slab = state_->slabs[index].get();
    if (slab == nullptr || !slab->is_readable() || slab->is_gone) continue;
    return SlabView{
        .index = index, .disk = slab->disk, .geometry = slab->geometry, .uuid = slab->uuid};
  }
  return std::nullopt;
}

bool NvmeTier::LookAtSlots(uint32_t index, uint32_t first, std::span<SlabSlotView> views) const {
  const NvmeSlab* slab = state_->SlabAt(index);
  if (slab == nullptr || !slab->is_readable() || slab->is_gone) return false;
  if (first > slab->slots.size() || views.size() > slab->slots.size() - first) return false;
  for (size_t i = 0; i < views.size(); ++i) {
    views[i] = ViewOf(slab->slots[first + i]);
    // Its sector could not be read: it is cleared, or stays as it is.
    if (slab->IsUnread(first + static_cast<uint32_t>(i))) views[i].is_settled = false;
  }
  return true;
}

void NvmeTier::RewriteAsFree(uint32_t index, uint32_t slot) {
  State& s = *state_;
  NvmeSlab* slab = s.SlabAt(index);
  if (slab == nullptr || slot >= slab->slots.size()) return;
  const SlabSlotState state = slab->slots[slot].state;
  if (state == SlabSlotState::kQuarantined) {  // what it holds is of no use to anybody
    s.totals.quarantined_bytes -= slab->geometry.shape.slot_bytes;
    ++slab->slots[slot].generation;
    s.EraseSlot(*slab, slot);
  } else if (state != SlabSlotState::kFree) {
    return;
  }
  s.MarkDirty(*slab, slot);
  s.Pump();
}

}  // namespace terrace

#include "tiers/nvme/left_entries.h"

#include <algorithm>

#include "tiers/nvme/entry_writer.h"
#include "tiers/nvme/erasure_log.h"
#include "tiers/nvme/shape_classes.h"

namespace terrace {

void LeftEntries::Add(const NvmeSlab& slab, const SlabEntry& entry, bool is_locked) {
  const auto place = static_cast<uint32_t>(groups_.size());
  const auto [known, is_new] = places_.emplace(entry.group, place);
  if (is_new) groups_.push_back({.id = entry.group});
  slabs_.try_emplace(slab.index, slab.uuid);
  left_.push_back({.key = entry.key,
                   .group = known->second,
                   .position = entry.position,
                   .slab = slab.index,
                   .slot = entry.slot,
                   .generation = slab.slots[entry.slot].generation,
                   .is_locked = is_locked});
  ++count_;
  (is_locked ? locked_bytes_ : ungrouped_bytes_) += slab.slot_bytes();
}

void LeftEntries::EndRestore() {
  left_.shrink_to_fit();
  std::ranges::sort(left_, [](const Entry& a, const Entry& b) {
    return a.key != b.key ? a.key < b.key : a.group < b.group;
  });
}

// ---- erasures ----

void LeftEntries::MarkOne(LeftGroup* group, uint64_t position) {
  if (position >= group->erased_from) return;
  group->erased_from = position;
  to_look_ = left_.size();
}

void LeftEntries::Mark(const std::optional<GroupId>& group, uint64_t position) {
  for (LeftGroup& left : groups_) {
    if (!group || left.id == *group) MarkOne(&left, position);
  }
}

template <typename Visit>
void LeftEntries::ForEachOf(const std::optional<GroupId>& group, const BlockKey& key,
                            const Visit& visit) {
  auto found = std::ranges::lower_bound(left_, key, {}, &Entry::key);
  for (; found != left_.end() && found->key == key; ++found) {
    if (!found->is_gone && (!group || groups_[found->group].id == *group)) visit(*found);
  }
}

std::optional<uint64_t> LeftEntries::MarkBelow(const std::optional<GroupId>& group,
                                               const BlockKey& key) {
  std::optional<uint64_t> found;
  ForEachOf(group, key, [&](const Entry& entry) {
    const uint64_t position = entry.position;
    MarkOne(&groups_[entry.group], position + 1);
    found = std::min(found.value_or(position), position);
  });
  return found;
}

void LeftEntries::EraseKey(const std::optional<GroupId>& group, const BlockKey& key,
                           UnindexedTaken* taken) {
  ForEachOf(group, key, [&](Entry& entry) { Erase(&entry, taken); });
  with_.entries.Write();
}

bool LeftEntries::EraseMarked(uint32_t* budget, UnindexedTaken* taken) {
  uint64_t looks = uint64_t{*budget} * kLooksPerErasure;
  for (; to_look_ > 0 && looks > 0 && *budget > 0; --to_look_, --looks) {
    Entry& entry = left_[next_];
    next_ = (next_ + 1) % left_.size();
    if (entry.is_gone || entry.position < groups_[entry.group].erased_from) continue;
    Erase(&entry, taken);
    --*budget;
  }
  with_.entries.Write();
  if (count_ == 0) {
    left_ = {};
    to_look_ = next_ = 0;
  }
  return to_look_ == 0;
}

// What follows of the slot is waited for as what is begun here: a check may have given it to
// others, and its slab may be on its way out.
void LeftEntries::Erase(Entry* entry, UnindexedTaken* taken) {
  entry->is_gone = true;
  --count_;
  NvmeSlab* const slab = with_.slabs.At(entry->slab);
  if (slab == nullptr || slab->uuid != slabs_.at(entry->slab)) return;
  if (slab->phase == SlabPhase::kRemoving) return with_.erasures.BeginInherited(*slab);
  const SlabSlot& slot = slab->slots[entry->slot];
  if (slot.state != SlabSlotState::kQuarantined || slot.generation != entry->generation) {
    constexpr uint8_t kNotDurable = kEntryWriting | kEntryUnsynced | kEntrySyncing;
    if (slot.has(kNotDurable)) with_.erasures.Begin(*slab, entry->slot);
    return;
  }
  const bool is_first = entry == left_.data() || !entry[-1].IsOfOneBlock(*entry);
  taken->block_count += is_first ? 1 : 0;
  taken->byte_count += slab->slot_bytes();
  (entry->is_locked ? locked_bytes_ : ungrouped_bytes_) -= slab->slot_bytes();
  slab->slots.EndGeneration(entry->slot);
  with_.erasures.Begin(*slab, entry->slot);
  with_.classes.Erase(*slab, entry->slot);
  with_.entries.MarkDirty(*slab, entry->slot);
}

}  // namespace terrace

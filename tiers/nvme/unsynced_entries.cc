#include "tiers/nvme/unsynced_entries.h"

#include <utility>

#include "terrace/check.h"

namespace terrace {

void UnsyncedEntries::Add(SlabSlots& slots, uint32_t slot) {
  if (slots[slot].has(kEntryUnsynced)) return;
  slots.SetFlags(slot, kEntryUnsynced, 0);
  unsynced_.push_back(slot);
}

void UnsyncedEntries::Begin(SlabSlots& slots, uint64_t now_us, bool is_whole) {
  TERRACE_CHECK(!is_in_flight_ && syncing_.empty(), "a slab is synced by one request at a time");
  is_in_flight_ = true;
  is_required_ = false;
  is_whole_ = is_whole;
  begun_us_ = now_us;
  for (const uint32_t slot : unsynced_) slots.SetFlags(slot, kEntrySyncing, kEntryUnsynced);
  syncing_ = std::exchange(unsynced_, {});
}

void UnsyncedEntries::End(SlabSlots& slots) {
  TERRACE_CHECK(is_in_flight_, "a sync ends once");
  is_in_flight_ = false;
  for (const uint32_t slot : syncing_) slots.SetFlags(slot, 0, kEntrySyncing);
}

void UnsyncedEntries::TakeBack(SlabSlots& slots) {
  TERRACE_CHECK(!is_in_flight_, "a sync that is under way covers what it covers");
  is_required_ = true;
  for (const uint32_t slot : syncing_) Add(slots, slot);
}

std::vector<uint32_t> UnsyncedEntries::TakeAllInDoubt(SlabSlots& slots) {
  std::vector<uint32_t> all = syncing_;
  all.insert(all.end(), unsynced_.begin(), unsynced_.end());
  for (const uint32_t slot : all) slots.SetFlags(slot, 0, kEntryUnsynced);
  unsynced_.clear();
  is_whole_ = false;
  return all;
}

void UnsyncedEntries::Clear() {
  TERRACE_CHECK(!is_in_flight_, "a slab that is being synced keeps its shape");
  unsynced_.clear();
  syncing_.clear();
}

}  // namespace terrace

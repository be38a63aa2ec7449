// UnsyncedEntries: which entries of one slab were written since its last fdatasync began, and which
// the one under way is about to cover. Keeps the slots' kEntryUnsynced and kEntrySyncing.
//
// Pure: no I/O. THREADING: one thread.
// INVARIANT: a slot is listed once in each list at most, and has that list's flag.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tiers/nvme/slab_slots.h"

namespace terrace {

class UnsyncedEntries {
 public:
  // The entry of the slot has been written.
  void Add(SlabSlots& slots, uint32_t slot);
  // Something else than an entry was written, too.
  void Require() { is_required_ = true; }
  bool is_sync_due() const { return is_required_ || !unsynced_.empty(); }

  // A sync begins. `is_whole`: the drive has all that the last daemon wrote, too, once it is done.
  // REQUIRES: none is under way.
  void Begin(SlabSlots& slots, uint64_t now_us, bool is_whole);
  bool is_in_flight() const { return is_in_flight_; }
  bool is_whole() const { return is_whole_; }      // the one under way, or the last one
  uint64_t begun_us() const { return begun_us_; }  // of the last one; 0: none
  // It has ended, well or badly; covered() stays until it is forgotten.
  void End(SlabSlots& slots);
  std::span<const uint32_t> covered() const { return syncing_; }
  void ForgetCovered() { syncing_.clear(); }
  // It was never begun: what it was to cover is as unsynced as before.
  void TakeBack(SlabSlots& slots);

  // The drive may have lost everything since the last good sync: nothing is listed as unsynced from
  // now on, and the sync under way is not whole. Returns what it was to cover, then the rest.
  std::vector<uint32_t> TakeAllInDoubt(SlabSlots& slots);

  // The slab takes another shape. REQUIRES: no sync is under way.
  void Clear();

 private:
  std::vector<uint32_t> unsynced_;
  std::vector<uint32_t> syncing_;
  bool is_in_flight_ = false;
  bool is_required_ = false;
  bool is_whole_ = false;
  uint64_t begun_us_ = 0;
};

}  // namespace terrace

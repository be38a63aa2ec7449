// Entries: how the header table follows what memory decided. One write a slot at a time, and the
// latest decision wins, so that a queue of slots (not of contents) is all there is to wait for.
#include <algorithm>

#include "terrace/check.h"
#include "tiers/nvme/nvme_tier_state.h"

namespace terrace {

void NvmeTier::State::HoldEntry(const NvmeSlab& slab, uint32_t slot, const SlabEntry& entry,
                                bool is_announcing) {
  HeldEntry& kept = held[PlaceOf(slab.index, slot)];
  if (kept.bytes.empty()) ++held_with_bytes;
  kept.bytes.resize(slab.geometry.entry_bytes);
  EncodeEntry(slab.geometry, slab.uuid, entry, options.secret, kept.bytes);
  kept.commit_id = entry.commit_id;
  kept.member = entry.member;
  kept.is_announcing |= is_announcing;
}

void NvmeTier::State::DropHeld(uint64_t place) {
  const auto found = held.find(place);
  if (found == held.end()) return;
  if (!found->second.bytes.empty()) --held_with_bytes;
  held.erase(found);
}

void NvmeTier::State::MarkDirty(NvmeSlab& slab, uint32_t slot) {
  const uint8_t flags = slab.slots[slot].flags;
  if ((flags & kEntryDirty) != 0) return;
  slab.SetFlags(slot, kEntryDirty, 0);
  // What is in flight comes back to the queue by itself.
  if ((flags & kEntryInFlight) == 0) {
    disks[slab.disk].dirty_entries.push_back(PlaceOf(slab.index, slot));
  }
}

void NvmeTier::State::PumpEntries(uint32_t disk_index) {
  DiskState& disk = disks[disk_index];
  while (disk.health.is_on() && !disk.is_table_resting && !disk.dirty_entries.empty()) {
    const uint64_t place = disk.dirty_entries.front();
    NvmeSlab& slab = *slabs[place >> 32];
    if (!WriteEntry(slab, static_cast<uint32_t>(place)).ok()) return;
    disk.dirty_entries.pop_front();
  }
}

Status NvmeTier::State::WriteEntry(NvmeSlab& slab, uint32_t slot) {
  const SlabSlot& row = slab.slots[slot];
  std::vector<std::byte> plain;
  std::span<const std::byte> bytes;
  const bool names_block = row.state == SlabSlotState::kUsed;
  if (names_block) {
    bytes = held.at(PlaceOf(slab.index, slot)).bytes;
  } else {
    SlabEntry entry;
    entry.state = row.state == SlabSlotState::kLost || row.state == SlabSlotState::kQuarantined
                      ? SlabEntryState::kQuarantined
                      : SlabEntryState::kFree;
    entry.slot = slot;
    entry.generation = row.generation;
    plain.resize(slab.geometry.entry_bytes);
    EncodeEntry(slab.geometry, slab.uuid, entry, options.secret, plain);
    bytes = plain;
  }
  TERRACE_RETURN_IF_ERROR(
      Submit({.kind = RequestKind::kEntry, .disk = slab.disk, .slab = slab.index, .slot = slot},
             {.op = DiskOp::kWriteTable,
              .file = slab.file,
              .offset_bytes = slab.geometry.EntryOffsetBytes(slot),
              .from = bytes}));
  slab.SetFlags(slot, kEntryInFlight | (names_block ? kEntryNamed : 0), kEntryDirty);
  return Status::Ok();
}

void NvmeTier::State::OnEntryDone(const Request& request, Status status) {
  NvmeSlab& slab = *slabs[request.slab];
  slab.SetFlags(request.slot, status.ok() ? 0 : kEntryDirty, 0);
  slab.SetFlags(request.slot, 0, kEntryInFlight);
  if (status.code() == StatusCode::kIo) disks[slab.disk].is_table_resting = true;
  if (status.ok() && (slab.slots[request.slot].flags & kEntryUnsynced) == 0) {
    slab.SetFlags(request.slot, kEntryUnsynced, 0);
    slab.unsynced.push_back(request.slot);
  }
  if ((slab.slots[request.slot].flags & kEntryDirty) != 0) {
    disks[slab.disk].dirty_entries.push_back(PlaceOf(slab.index, request.slot));
    return;
  }
  OnEntrySettled(slab, request.slot);
}

void NvmeTier::State::OnEntrySettled(NvmeSlab& slab, uint32_t slot) {
  const SlabSlotState state = slab.slots[slot].state;
  if (state == SlabSlotState::kUsed) {
    HeldEntry& kept = held.at(PlaceOf(slab.index, slot));
    kept.bytes = {};
    --held_with_bytes;
  } else {
    slab.SetFlags(slot, 0, kEntryNamed);
  }
  // With a catalog to be told, the slab is not let go before the catalog has answered.
  slab.SetFlags(slot, kEntryToCatalog, kEntryDoubted);
  if (state == SlabSlotState::kErasing) {
    FreeSlot(slab, slot);
    GiveRoom();
  } else if (state == SlabSlotState::kSuspect) {
    suspects.push_back(PlaceOf(slab.index, slot));
    StepTrials();
  }
  if (options.catalog != nullptr) {
    options.catalog->OnEntryWritten(slab.index, slot);
  } else {
    OnCataloged(slab.index, slot);
  }
}

void NvmeTier::State::OnCataloged(uint32_t slab_index, uint32_t slot) {
  NvmeSlab* slab = SlabAt(slab_index);
  if (slab == nullptr || slot >= slab->slots.size()) return;
  const uint8_t flags = slab->slots[slot].flags;
  if ((flags & kEntryToCatalog) == 0) return;
  slab->SetFlags(slot, 0, kEntryToCatalog);
  if ((flags & (kEntryDirty | kEntryInFlight)) != 0) return;  // what comes next will be answered
  EndErasure(*slab, slot);
  const auto kept = held.find(PlaceOf(slab_index, slot));
  if (kept != held.end() && slab->slots[slot].state == SlabSlotState::kUsed) {
    const HeldEntry told = std::move(kept->second);
    held.erase(kept);
    if (told.is_announcing) {
      listener->OnPersisted(options.domain_index, slab->slots[slot].owner, told.commit_id,
                            told.member);
    }
  }
  if (NvmeSlab* still = SlabAt(slab_index)) LookAfter(*still);
}

// Once the table says so, the catalog says so, and the drive would after a loss of power.
void NvmeTier::State::EndErasure(NvmeSlab& slab, uint32_t slot) {
  const uint8_t flags = slab.slots[slot].flags;
  if ((flags & kEntryErasure) == 0) return;
  if ((flags & (kEntryWriting | kEntryUnsynced | kEntrySyncing)) != 0) return;
  slab.SetFlags(slot, 0, kEntryErasure);
  const auto found = erasures.find(PlaceOf(slab.index, slot));
  erasure_numbers.erase(found->second);
  erasures.erase(found);
}

void NvmeTier::State::EndInheritedErasure(NvmeSlab& slab) {
  if (!slab.inherited_erasure) return;
  erasure_numbers.erase(*slab.inherited_erasure);
  slab.inherited_erasure.reset();
}

void NvmeTier::State::BeginSyncs() {
  for (const auto& slab : slabs) {
    if (slab == nullptr || !slab->is_readable() || slab->is_sync_in_flight) continue;
    if (slab->unsynced.empty() && !slab->is_sync_due) continue;
    if (!disks[slab->disk].health.is_on()) continue;
    if (Now() - slab->last_sync_us < options.sync_interval_us) continue;
    const Status status =
        Submit({.kind = RequestKind::kSync, .disk = slab->disk, .slab = slab->index},
               {.op = DiskOp::kSync, .file = slab->file});
    if (!status.ok()) continue;
    slab->is_sync_in_flight = true;
    slab->is_sync_due = false;
    slab->is_sync_whole = slab->doubted_count == 0 && !slab->wants_clearing();
    slab->last_sync_us = Now();
    for (const uint32_t slot : slab->unsynced) {
      slab->SetFlags(slot, kEntrySyncing, kEntryUnsynced);
    }
    slab->syncing = std::move(slab->unsynced);
    slab->unsynced.clear();
  }
}

void NvmeTier::State::OnSyncDone(const Request& request, Status status) {
  NvmeSlab& slab = *slabs[request.slab];
  slab.is_sync_in_flight = false;
  for (const uint32_t slot : slab.syncing) slab.SetFlags(slot, 0, kEntrySyncing);
  if (status.code() == StatusCode::kNotFound) {
    GiveUpSlab(slab);
    status = Status::Ok();  // what is erased there nobody will find
  }
  if (status.code() == StatusCode::kBusy) {  // never begun: as if it had not been asked for
    slab.is_sync_due = true;
    for (const uint32_t slot : slab.syncing) {
      if ((slab.slots[slot].flags & kEntryUnsynced) != 0) continue;
      slab.SetFlags(slot, kEntryUnsynced, 0);
      slab.unsynced.push_back(slot);
    }
  } else if (!status.ok()) {
    LoseUnsynced(slab);
  } else {
    for (const uint32_t slot : slab.syncing) EndErasure(slab, slot);
    if (slab.is_sync_whole || slab.is_gone) EndInheritedErasure(slab);
  }
  slab.syncing.clear();
  LookAfter(slab);
}

// The kernel reports a failed sync once, calls the pages clean, and may forget them: nothing
// written since the last good sync is believed again. Entries are written anew; blocks are given
// up, because neither their bytes nor what their entries said is in memory any more.
void NvmeTier::State::LoseUnsynced(NvmeSlab& slab) {
  for (const std::vector<uint32_t>* list : {&slab.syncing, &slab.unsynced}) {
    for (const uint32_t slot : *list) {
      slab.SetFlags(slot, 0, kEntryUnsynced);
      if (slab.slots[slot].state == SlabSlotState::kUsed) {
        slab.SetState(slot, SlabSlotState::kLost);
        DropHeld(PlaceOf(slab.index, slot));
      }
      MarkDirty(slab, slot);
    }
  }
  slab.unsynced.clear();
  // An entry whose completion is still to come may have been among them.
  for (uint32_t slot = 0; slot < slab.slots.size(); ++slot) {
    if ((slab.slots[slot].flags & kEntryInFlight) != 0) MarkDirty(slab, slot);
  }
  slab.is_superblock_due = true;
  slab.is_sync_whole = false;
  if (slab.inherited_erasure) DoubtAll(slab);
}

// No sync has ever covered what the last daemon wrote. Free slots are written anew from memory, so
// that nothing it had freed comes back, and blocks by their owners, who alone know what to say.
void NvmeTier::State::DoubtAll(NvmeSlab& slab) {
  for (uint32_t slot = 0; slot < slab.slots.size(); ++slot) {
    if (slab.IsUnread(slot)) continue;
    slab.SetFlags(slot, kEntryDoubted, 0);
    if (slab.slots[slot].state != SlabSlotState::kUsed) {
      MarkDirty(slab, slot);
    } else if ((slab.slots[slot].flags & kEntryDirty) == 0) {
      listener->OnRecordInDoubt(options.domain_index, slab.slots[slot].owner);
    }
  }
}

}  // namespace terrace

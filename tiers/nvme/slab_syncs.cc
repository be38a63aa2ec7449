#include "tiers/nvme/slab_syncs.h"

#include "terrace/check.h"

namespace terrace {

SlabSyncs::SlabSyncs(uint64_t interval_us, const Neighbours& neighbours)
    : interval_us_(interval_us),
      disks_(neighbours.disks),
      slabs_(neighbours.slabs),
      entries_(neighbours.entries),
      erasures_(neighbours.erasures),
      lifecycle_(neighbours.lifecycle),
      reports_(neighbours.reports) {}

void SlabSyncs::BeginDue() {
  for (uint32_t disk = 0; disk < disks_.count(); ++disk) {
    if (!disks_.TakeRemovals(disk)) continue;
    for (const auto& slab : slabs_.all()) {
      if (slab != nullptr && slab->disk == disk) slab->unsynced.Require();
    }
  }
  for (const auto& slab : slabs_.all()) {
    if (slab == nullptr || !slab->is_readable() || slab->unsynced.is_in_flight()) continue;
    if (!slab->unsynced.is_sync_due() || !disks_.is_on(slab->disk)) continue;
    const uint64_t now_us = disks_.now_us();
    if (now_us - slab->unsynced.begun_us() < interval_us_) continue;
    const Status status =
        disks_.Submit({.kind = NvmeRequestKind::kSync, .disk = slab->disk, .slab = slab->index},
                      {.op = DiskOp::kSync, .file = slab->file});
    if (!status.ok()) continue;
    const bool is_whole = slab->slots.doubted_count() == 0 && !slab->wants_clearing();
    slab->unsynced.Begin(slab->slots, now_us, is_whole);
    slab->moved_in.BeginSync();
  }
}

void SlabSyncs::OnSyncDone(const NvmeRequest& request, Status status) {
  NvmeSlab& slab = slabs_[request.slab];
  slab.unsynced.End(slab.slots);
  if (status.code() == StatusCode::kNotFound) {
    lifecycle_.GiveUp(slab);
    status = Status::Ok();  // what is erased there nobody will find
  }
  if (status.code() == StatusCode::kBusy) {
    slab.unsynced.TakeBack(slab.slots);
    slab.moved_in.TakeBack();
  } else if (!status.ok()) {
    LoseUnsynced(slab);
  } else {
    for (const uint32_t slot : slab.unsynced.covered()) erasures_.EndIfDurable(slab, slot);
    for (const uint32_t slot : slab.moved_in.TakeCovered(slab.slots)) {
      if (slab.is_gone) continue;  // as StateOfMoved says
      slab.slots.SetState(slot, SlabSlotState::kUsed);
      entries_.MarkDirty(slab, slot);
    }
    if (slab.unsynced.is_whole() || slab.is_gone) erasures_.EndInherited(slab);
  }
  slab.unsynced.ForgetCovered();
  lifecycle_.LookAfter(slab);
}

void SlabSyncs::LoseUnsynced(NvmeSlab& slab) {
  TERRACE_CHECK(slab.is_readable(), "what a table of another shape said is of no use in this one");
  for (const uint32_t slot : slab.unsynced.TakeAllInDoubt(slab.slots)) {
    if (slab.slots[slot].state == SlabSlotState::kUsed) {
      slab.slots.SetState(slot, SlabSlotState::kLost);
      entries_.Drop(slab, slot);
    }
    entries_.MarkDirty(slab, slot);
  }
  for (const uint32_t slot : slab.moved_in.TakeAll(slab.slots)) {
    slab.slots.SetState(slot, SlabSlotState::kUsed);
    slab.slots.SetState(slot, SlabSlotState::kLost);
    entries_.Drop(slab, slot);
    entries_.MarkDirty(slab, slot);
  }
  // An entry whose completion is still to come may have been among them.
  for (uint32_t slot = 0; slot < slab.slots.count(); ++slot) {
    if (slab.slots[slot].has(kEntryInFlight)) entries_.MarkDirty(slab, slot);
  }
  slab.is_superblock_due = true;
  if (erasures_.IsInherited(slab)) DoubtAll(slab);
}

// No sync has ever covered what the last daemon wrote. Free slots are written anew from memory, so
// that nothing it had freed comes back, and blocks by their owners, who alone know what to say.
void SlabSyncs::DoubtAll(NvmeSlab& slab) {
  for (uint32_t slot = 0; slot < slab.slots.count(); ++slot) {
    if (slab.IsUnread(slot)) continue;
    slab.slots.SetFlags(slot, kEntryDoubted, 0);
    if (slab.slots[slot].state != SlabSlotState::kUsed) {
      entries_.MarkDirty(slab, slot);
    } else if (!slab.slots[slot].has(kEntryDirty)) {
      reports_.RecordInDoubt(slab.slots[slot].owner);
    }
  }
}

}  // namespace terrace

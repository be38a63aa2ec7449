// Slabs: which shape they have, and how they come, change and go. Nothing here waits: each step is
// a request, and Tick begins again what could not begin.
#include <algorithm>
#include <string>
#include <utility>

#include "terrace/check.h"
#include "tiers/nvme/nvme_tier_state.h"

namespace terrace {

Result<NvmeTier::State::ShapeClass*> NvmeTier::State::FindOrMakeClass(const SlabShape& shape) {
  const auto found = classes.find(shape);
  if (found != classes.end()) return &found->second;
  const Result<SlabGeometry> geometry = SlabGeometry::Of(shape, options.slab_bytes);
  if (!geometry.ok()) return geometry.status();
  if (classes.size() >= kShapesMax) return Status(StatusCode::kNoSpace, "too many shapes");
  ShapeClass& made = classes[shape];
  made.geometry = *geometry;
  made.on_disk.resize(disks.size());
  return &made;
}

// Of the disks that have a free slot the one with the least bytes in flight; among equals they take
// turns.
NvmeSlab* NvmeTier::State::PickSlab(ShapeClass& shape_class) {
  const auto disk_count = static_cast<uint32_t>(disks.size());
  uint32_t best = disk_count;
  for (uint32_t step = 1; step <= disk_count; ++step) {
    const uint32_t disk = (shape_class.last_disk + step) % disk_count;
    if (!disks[disk].health.is_on() || shape_class.on_disk[disk].open.empty()) continue;
    if (best == disk_count || disks[disk].bytes_in_flight < disks[best].bytes_in_flight) {
      best = disk;
    }
  }
  if (best == disk_count) return nullptr;
  shape_class.last_disk = best;
  return slabs[shape_class.on_disk[best].open.front()].get();
}

uint32_t NvmeTier::State::TakeSlotOf(NvmeSlab& slab) {
  ShapeClass::OnDisk& on_disk = ClassOf(slab).on_disk[slab.disk];
  TERRACE_CHECK(!on_disk.open.empty() && on_disk.open.front() == slab.index,
                "the slab whose turn it is gives the slot");
  on_disk.open.pop_front();
  const uint32_t slot = slab.TakeSlot();
  --on_disk.free_count;
  if (slab.free_count > 0) on_disk.open.push_back(slab.index);
  totals.used_bytes += slab.geometry.shape.slot_bytes;
  return slot;
}

// Makes the next slab before the last slot is gone, and one on each disk while there is plenty.
void NvmeTier::State::GrowAhead(ShapeClass& shape_class) {
  shape_class.is_wanting = false;
  uint64_t free_count = 0;
  uint32_t disks_on = 0;
  for (uint32_t disk = 0; disk < disks.size(); ++disk) {
    if (shape_class.on_disk[disk].coming_count > 0) return;
    if (!disks[disk].health.is_on()) continue;
    ++disks_on;
    free_count += shape_class.on_disk[disk].free_count;
  }
  const bool is_short = free_count * 4 < shape_class.geometry.slot_count;
  const bool is_narrow = shape_class.slab_count < disks_on &&
                         SlabBytesTotal() + options.slab_bytes <= options.capacity_bytes / 2;
  if (is_short || is_narrow) (void)BeginCreate(shape_class);
}

void NvmeTier::State::OpenForBlocks(NvmeSlab& slab) {
  slab.phase = SlabPhase::kActive;
  ShapeClass& shape_class = ClassOf(slab);
  ShapeClass::OnDisk& on_disk = shape_class.on_disk[slab.disk];
  ++shape_class.slab_count;
  ++on_disk.slab_count;
  on_disk.free_count += slab.free_count;
  on_disk.erasing_count += slab.erasing_count;
  if (slab.free_count > 0) on_disk.open.push_back(slab.index);
}

void NvmeTier::State::CloseForBlocks(NvmeSlab& slab) {
  ShapeClass& shape_class = ClassOf(slab);
  ShapeClass::OnDisk& on_disk = shape_class.on_disk[slab.disk];
  --shape_class.slab_count;
  --on_disk.slab_count;
  on_disk.free_count -= slab.free_count;
  on_disk.erasing_count -= slab.erasing_count;
  std::erase(on_disk.open, slab.index);
}

void NvmeTier::State::EraseSlot(NvmeSlab& slab, uint32_t slot) {
  slab.SetState(slot, SlabSlotState::kErasing);
  if (slab.phase == SlabPhase::kActive) ++ClassOf(slab).on_disk[slab.disk].erasing_count;
}

void NvmeTier::State::FreeSlot(NvmeSlab& slab, uint32_t slot) {
  const bool was_erasing = slab.slots[slot].state == SlabSlotState::kErasing;
  slab.PushFree(slot);
  if (slab.phase != SlabPhase::kActive) {
    LookAfter(slab);
    return;
  }
  ShapeClass::OnDisk& on_disk = ClassOf(slab).on_disk[slab.disk];
  if (was_erasing) --on_disk.erasing_count;
  ++on_disk.free_count;
  if (slab.free_count == 1) on_disk.open.push_back(slab.index);
}

bool NvmeTier::State::IsRoomComing(const ShapeClass& shape_class) const {
  for (uint32_t disk = 0; disk < disks.size(); ++disk) {
    if (!disks[disk].health.is_on()) continue;
    const ShapeClass::OnDisk& on_disk = shape_class.on_disk[disk];
    if (on_disk.coming_count > 0 || on_disk.erasing_count > 0) return true;
  }
  return false;
}

bool NvmeTier::State::MakeRoom(ShapeClass& shape_class) {
  return IsRoomComing(shape_class) || BeginCreate(shape_class) || BeginReshape(shape_class);
}

uint64_t NvmeTier::State::SlabBytesTotal() const {
  uint64_t sum_bytes = 0;
  for (const DiskState& disk : disks) sum_bytes += disk.slab_bytes;
  return sum_bytes;
}

bool NvmeTier::State::BeginCreate(ShapeClass& shape_class) {
  if (SlabBytesTotal() + options.slab_bytes > options.capacity_bytes) return false;
  if (shape_class.geometry.slab_bytes != options.slab_bytes) return false;  // does not fit in one
  uint32_t best = static_cast<uint32_t>(disks.size());
  for (uint32_t disk = 0; disk < disks.size(); ++disk) {
    if (!disks[disk].health.may_create(Now())) continue;
    if (best == disks.size() || disks[disk].slab_bytes < disks[best].slab_bytes) best = disk;
  }
  if (best == disks.size()) return false;
  uint32_t index = 0;
  while (SlabAt(index) != nullptr || foreign_indices.contains(index)) ++index;
  if (index > kSlabIndexMax) return false;
  const DiskFile file = disks[best].disk->NewFile();
  if (file == kDiskFileNone) {
    disks[best].health.OnCreateFailed(Now());
    return false;
  }
  if (index >= slabs.size()) slabs.resize(index + 1);
  slabs[index] = std::make_unique<NvmeSlab>(index, best);
  NvmeSlab& slab = *slabs[index];
  slab.phase = SlabPhase::kCreating;
  slab.file = file;
  slab.geometry.slab_bytes = options.slab_bytes;
  slab.next_shape = shape_class.geometry.shape;
  slab.next_uuid = {options.random(), options.random()};
  disks[best].slab_bytes += options.slab_bytes;
  ++shape_class.on_disk[best].coming_count;
  StepSlab(slab);
  return true;
}

// A slab that holds nothing may as well hold another shape.
bool NvmeTier::State::BeginReshape(ShapeClass& shape_class) {
  if (shape_class.geometry.slab_bytes != options.slab_bytes) return false;
  for (const auto& slab : slabs) {
    if (slab == nullptr || slab->phase != SlabPhase::kActive || !slab->is_empty() ||
        slab->quarantined_count > 0 || slab->is_sync_in_flight || slab->is_step_in_flight ||
        slab->geometry.shape == shape_class.geometry.shape || !disks[slab->disk].health.is_on() ||
        slab->geometry.slab_bytes != options.slab_bytes) {
      continue;
    }
    CloseForBlocks(*slab);
    slab->next_shape = shape_class.geometry.shape;
    StartReshape(*slab);
    return true;
  }
  return false;
}

void NvmeTier::State::StartReshape(NvmeSlab& slab) {
  slab.phase = SlabPhase::kReshaping;
  slab.step = 0;
  slab.cleared_bytes = 0;
  slab.next_uuid = {options.random(), options.random()};
  ++classes.at(slab.next_shape).on_disk[slab.disk].coming_count;
  WithdrawPlace(slab.index);
  StepSlab(slab);
}

// A shape is poor without a slab, or with less than a quarter of what each shape would have if all
// had the same.
bool NvmeTier::State::IsPoor(const ShapeClass& shape_class) const {
  if (shape_class.slab_count == 0) return true;
  uint64_t slab_count = 0;
  uint64_t class_count = 0;
  for (const auto& [shape, other] : classes) {
    slab_count += other.slab_count;
    class_count += other.slab_count > 0;
  }
  return shape_class.slab_count * class_count * 4 < slab_count;
}

NvmeSlab* NvmeTier::State::EmptiestOfOthers(const ShapeClass& shape_class) {
  NvmeSlab* best = nullptr;
  uint64_t best_bytes = 0;
  for (const auto& slab : slabs) {
    if (slab == nullptr || slab->phase != SlabPhase::kActive || slab->quarantined_count > 0 ||
        slab->geometry.shape == shape_class.geometry.shape ||
        slab->geometry.slab_bytes != options.slab_bytes || !disks[slab->disk].health.is_on() ||
        ClassOf(*slab).slab_count <= shape_class.slab_count) {
      continue;
    }
    const uint64_t owned_bytes = slab->owned_count * slab->geometry.shape.slot_bytes;
    if (best != nullptr && owned_bytes >= best_bytes) continue;
    best = slab.get();
    best_bytes = owned_bytes;
  }
  return best;
}

NvmeSlab* NvmeTier::State::DrainFor(ShapeClass& shape_class) {
  for (const auto& slab : slabs) {
    if (slab != nullptr && slab->phase == SlabPhase::kDraining &&
        slab->next_shape == shape_class.geometry.shape) {
      return slab.get();
    }
  }
  if (shape_class.geometry.slab_bytes != options.slab_bytes) return nullptr;
  if (IsRoomComing(shape_class) || !IsPoor(shape_class)) return nullptr;
  NvmeSlab* slab = EmptiestOfOthers(shape_class);
  if (slab == nullptr) return nullptr;
  CloseForBlocks(*slab);
  slab->phase = SlabPhase::kDraining;
  slab->next_shape = shape_class.geometry.shape;
  slab->phase_since_us = Now();
  LookAfter(*slab);
  return slab;
}

// ---- steps ----

// The request that comes next. Creating: the file. Reshaping: the table is cleared and that is on
// the drive before the superblock says that it is another slab, and that too is on the drive before
// blocks come: whatever a loss of power leaves, no bytes of the old shape are taken for entries.
DiskRequest NvmeTier::State::NextStep(NvmeSlab& slab) {
  const auto seal_superblock = [&](const SlabShape& shape, const SlabUuid& uuid) {
    slab.superblock.resize(kSlabSectorBytes);
    EncodeSuperblock({.uuid = uuid,
                      .slab_index = slab.index,
                      .shape = shape,
                      .slab_bytes = slab.geometry.slab_bytes},
                     options.secret, slab.superblock);
  };
  if (slab.phase == SlabPhase::kRemoving) return {.op = DiskOp::kRemove, .file = slab.file};
  if (slab.phase == SlabPhase::kCreating) {
    seal_superblock(slab.next_shape, slab.next_uuid);
    return {.op = DiskOp::kCreate,
            .file = slab.file,
            .length_bytes = slab.geometry.slab_bytes,
            .from = slab.superblock,
            .name = "slab-" + std::to_string(slab.index) + ".terrace"};
  }
  if (slab.phase == SlabPhase::kReshaping) {
    const SlabGeometry& geometry = classes.at(slab.next_shape).geometry;
    if (slab.step == 0) {
      const uint64_t length_bytes =
          std::min(kClearChunkBytes, geometry.table_bytes() - slab.cleared_bytes);
      return {.op = DiskOp::kWrite,
              .file = slab.file,
              .offset_bytes = kSlabTableOffsetBytes + slab.cleared_bytes,
              .from = {zeros.get(), length_bytes}};
    }
    if (slab.step != 2) return {.op = DiskOp::kSync, .file = slab.file};
    seal_superblock(slab.next_shape, slab.next_uuid);
  } else if (slab.wants_clearing()) {
    // Whole: of a part the kernel would have to read the rest.
    return {.op = DiskOp::kWriteTable,
            .file = slab.file,
            .offset_bytes =
                kSlabTableOffsetBytes + uint64_t{slab.unread_sectors.back()} * kSlabSectorBytes,
            .from = {zeros.get(), kSlabSectorBytes}};
  } else {
    seal_superblock(slab.geometry.shape, slab.uuid);  // once more: the last may be lost
  }
  return {.op = DiskOp::kWriteTable, .file = slab.file, .from = slab.superblock};
}

void NvmeTier::State::StepSlab(NvmeSlab& slab) {
  if (slab.is_step_in_flight || !disks[slab.disk].health.is_on()) return;
  const DiskRequest step = NextStep(slab);
  slab.is_step_in_flight =
      Submit({.kind = RequestKind::kSlabStep, .disk = slab.disk, .slab = slab.index}, step).ok();
}

void NvmeTier::State::OnStepDone(const Request& request, Status status) {
  NvmeSlab& slab = *slabs[request.slab];
  slab.is_step_in_flight = false;
  if (status.code() == StatusCode::kBusy) return;  // at the next Tick
  const bool is_found_gone =
      status.code() == StatusCode::kNotFound && slab.phase != SlabPhase::kCreating;
  if (is_found_gone) GiveUpSlab(slab);  // of a file that is being made, nothing was ever held
  if (!status.ok()) return OnStepFailed(slab);
  switch (slab.phase) {
    case SlabPhase::kCreating:
      disks[slab.disk].health.OnCreated();
      return FinishSlab(slab);
    case SlabPhase::kRemoving:
      return ForgetSlab(slab);
    case SlabPhase::kReshaping:
      if (slab.step == 0) {
        const uint64_t table_bytes = classes.at(slab.next_shape).geometry.table_bytes();
        slab.cleared_bytes = std::min(slab.cleared_bytes + kClearChunkBytes, table_bytes);
        if (slab.cleared_bytes < table_bytes) return StepSlab(slab);
      }
      if (++slab.step > 3) return FinishSlab(slab);
      return StepSlab(slab);
    default:
      slab.is_sync_due = true;
      if (slab.wants_clearing()) return FinishClearing(slab);
      slab.is_superblock_due = false;
  }
}

void NvmeTier::State::OnStepFailed(NvmeSlab& slab) {
  if (slab.phase == SlabPhase::kCreating) {
    disks[slab.disk].health.OnCreateFailed(Now());
    --classes.at(slab.next_shape).on_disk[slab.disk].coming_count;
    ForgetSlab(slab);
    GiveRoom();  // no room after all: who waited for it may evict
  } else if (slab.phase == SlabPhase::kReshaping) {
    slab.step = 0;  // from the start, at the next Tick: a failed sync is not believed later
    slab.cleared_bytes = 0;
  } else if (slab.wants_clearing()) {
    --slab.clear_attempts_left;
    slab.is_sync_due = true;  // without attempts left, the next good one ends what was inherited
  }
}

// What the sector named is forgotten: no later start finds what this one could not erase.
void NvmeTier::State::FinishClearing(NvmeSlab& slab) {
  const uint32_t per_sector = slab.geometry.entries_per_sector;
  const uint32_t first = slab.unread_sectors.back() * per_sector;
  const uint32_t end = std::min(first + per_sector, slab.geometry.slot_count);
  slab.unread_sectors.pop_back();
  for (uint32_t slot = first; slot < end; ++slot) {
    if (slab.slots[slot].state != SlabSlotState::kQuarantined) continue;
    totals.quarantined_bytes -= slab.geometry.shape.slot_bytes;
    FreeSlot(slab, slot);
    if (options.catalog != nullptr) options.catalog->OnEntryWritten(slab.index, slot);
  }
  LookAfter(slab);
  GiveRoom();
}

void NvmeTier::State::FinishSlab(NvmeSlab& slab) {
  ShapeClass& shape_class = classes.at(slab.next_shape);
  --shape_class.on_disk[slab.disk].coming_count;
  slab.TakeShape(shape_class.geometry, slab.next_uuid);
  slab.is_sync_due = true;
  OpenForBlocks(slab);
  PublishPlace(slab);
  is_room_wanted = is_room_wanted || shape_class.is_wanting;
  GiveRoom();
}

// Its file is gone: what it holds is given up, and it goes when nobody has a slot any more. Its
// bytes no longer count, so that another slab may come at once.
void NvmeTier::State::GiveUpSlab(NvmeSlab& slab) {
  if (std::exchange(slab.is_gone, true)) return;
  disks[slab.disk].slab_bytes -= slab.geometry.slab_bytes;
  if (slab.phase == SlabPhase::kReshaping) {
    --classes.at(slab.next_shape).on_disk[slab.disk].coming_count;
    slab.phase = SlabPhase::kRemoving;
    return;
  }
  if (slab.phase == SlabPhase::kActive) CloseForBlocks(slab);
  slab.phase = SlabPhase::kRetiring;
  for (uint32_t slot = 0; slot < slab.slots.size(); ++slot) {
    if (slab.slots[slot].state != SlabSlotState::kUsed) continue;
    slab.SetState(slot, SlabSlotState::kLost);
    DropHeld(PlaceOf(slab.index, slot));
    MarkDirty(slab, slot);
  }
}

void NvmeTier::State::ForgetSlab(NvmeSlab& slab) {
  if (!slab.is_gone) disks[slab.disk].slab_bytes -= slab.geometry.slab_bytes;
  totals.quarantined_bytes -= uint64_t{slab.quarantined_count} * slab.geometry.shape.slot_bytes;
  WithdrawPlace(slab.index);
  EndInheritedErasure(slab);
  slabs[slab.index].reset();
}

void NvmeTier::State::LookAfter(NvmeSlab& slab) {
  const bool is_quiet = slab.is_empty() && !slab.is_sync_in_flight && !slab.is_step_in_flight &&
                        disks[slab.disk].health.is_on();
  switch (slab.phase) {
    case SlabPhase::kDraining:
      if (is_quiet && slab.quarantined_count == 0) {
        StartReshape(slab);
      } else if (Now() - slab.phase_since_us > kDrainUs || slab.quarantined_count > 0) {
        OpenForBlocks(slab);
      }
      return;
    case SlabPhase::kRetiring:
      if (!is_quiet) return;
      slab.phase = SlabPhase::kRemoving;
      return StepSlab(slab);
    case SlabPhase::kRestoring:
      return;
    case SlabPhase::kActive:
      if (slab.is_superblock_due || slab.wants_clearing()) StepSlab(slab);
      return;
    default:
      return StepSlab(slab);
  }
}

void NvmeTier::State::LookAfterAll() {
  for (size_t index = 0; index < slabs.size(); ++index) {
    if (slabs[index] != nullptr) LookAfter(*slabs[index]);
  }
  for (auto& [shape, shape_class] : classes) {
    if (!shape_class.is_wanting || IsRoomComing(shape_class)) continue;
    if (PickSlab(shape_class) == nullptr) (void)BeginCreate(shape_class);
  }
}

// ---- what other threads may know ----

void NvmeTier::State::PublishPlace(const NvmeSlab& slab) {
  std::lock_guard lock(places_mutex);
  if (places.size() <= slab.index) places.resize(slab.index + 1);
  places[slab.index] = {.disk = disks[slab.disk].disk,
                        .file = slab.file,
                        .geometry = slab.geometry,
                        .uuid = slab.uuid};
}

void NvmeTier::State::WithdrawPlace(uint32_t slab) {
  std::lock_guard lock(places_mutex);
  if (slab < places.size()) places[slab].reset();
}

std::optional<NvmeTier::State::SlabPlace> NvmeTier::State::FindPlace(uint32_t slab) const {
  std::lock_guard lock(places_mutex);
  return slab < places.size() ? places[slab] : std::nullopt;
}

}  // namespace terrace

#include "tiers/nvme/slab_lifecycle.h"

#include <algorithm>
#include <string>
#include <utility>

#include "terrace/check.h"
#include "tiers/disk/left_behind.h"

namespace terrace {
namespace {

constexpr uint32_t kStepClears = 0, kStepSuperblock = 2, kStepLast = 3;  // of kReshaping
constexpr uint64_t kLeavingSlabsMax = 4;  // on their way to other domains
// Of slabs to be given away those whose use differs by less than this part of a slab are alike.
constexpr uint64_t kAlikeDivisor = 8;

}  // namespace

SlabLifecycle::SlabLifecycle(Options options, const Neighbours& neighbours)
    : options_(std::move(options)),
      disks_(neighbours.disks),
      slabs_(neighbours.slabs),
      classes_(neighbours.classes),
      entries_(neighbours.entries),
      erasures_(neighbours.erasures),
      reports_(neighbours.reports),
      shares_(neighbours.shares),
      zeros_(AllocateAligned(kClearChunkBytes)) {
  TERRACE_CHECK(options_.slab_bytes % kSlabSectorBytes == 0 && options_.slab_bytes > 0,
                "a slab is whole sectors");
}

SlabLifecycle::~SlabLifecycle() {
  if (disks_.is_any_in_flight()) LeaveBehind(std::move(zeros_));
}

// ---- room for a shape ----

bool SlabLifecycle::MakeRoom(ShapeClass& shape_class) {
  return classes_.IsRoomComing(shape_class) || BeginCreate(shape_class) ||
         BeginReshape(shape_class) || IsDrainedFor(shape_class) ||
         shares_.IsComing(options_.domain_index, now_us());
}

// Its owners have let go of a slab that is to be the shape's, or to make room for one, and only
// their entries are yet to say so on the drive.
bool SlabLifecycle::IsDrainedFor(const ShapeClass& shape_class) const {
  return std::ranges::any_of(slabs_.all(), [&](const auto& slab) {
    const bool is_ending = slab != nullptr && (slab->phase == SlabPhase::kDraining ||
                                               slab->phase == SlabPhase::kRemoving);
    return is_ending && disks_.is_on(slab->disk) &&
           slab->next_shape == shape_class.geometry().shape && slab->slots.owned_count() == 0 &&
           slab->slots.quarantined_count() == 0;
  });
}

void SlabLifecycle::GrowAhead(ShapeClass& shape_class) {
  classes_.SetWanting(shape_class, false);
  const bool may_spread = slabs_.file_bytes_total() + options_.slab_bytes <=
                          shares_.max_bytes(options_.domain_index) / 2;
  if (classes_.IsShort(shape_class) || (may_spread && classes_.IsNarrow(shape_class))) {
    (void)BeginCreate(shape_class);
  }
}

bool SlabLifecycle::BeginCreate(ShapeClass& shape_class) {
  if (shape_class.geometry().slab_bytes != options_.slab_bytes)
    return false;  // does not fit in one
  uint32_t best = disks_.count();
  for (uint32_t disk = 0; disk < disks_.count(); ++disk) {
    if (!disks_.may_create(disk) || disks_.disk(disk).file_room().is_full()) continue;
    if (best == disks_.count() || slabs_.file_bytes(disk) < slabs_.file_bytes(best)) best = disk;
  }
  if (best == disks_.count()) return false;
  const uint32_t index = slabs_.FreeIndex();
  if (index > kSlabIndexMax) return false;
  if (!shares_.MayTake(options_.domain_index, options_.slab_bytes, now_us())) {
    shares_.Ask(options_.domain_index, options_.slab_bytes, now_us());
    return false;
  }
  const DiskFile file = disks_.disk(best).NewFile();
  if (file == kDiskFileNone) {
    disks_.OnCreateFailed(best);
    return false;
  }
  NvmeSlab& slab = slabs_.Add(index, best, file, options_.slab_bytes);
  slab.next_shape = shape_class.geometry().shape;
  slab.next_uuid = {options_.random(), options_.random()};
  classes_.BeginComing(slab.next_shape, best);
  Step(slab);
  return true;
}

// A slab that holds nothing may as well hold another shape.
bool SlabLifecycle::BeginReshape(ShapeClass& shape_class) {
  if (shape_class.geometry().slab_bytes != options_.slab_bytes) return false;
  for (const auto& slab : slabs_.all()) {
    if (slab == nullptr || slab->phase != SlabPhase::kActive || !slab->slots.is_empty() ||
        slab->slots.quarantined_count() > 0 || slab->unsynced.is_in_flight() ||
        slab->is_step_in_flight || slab->geometry.shape == shape_class.geometry().shape ||
        !disks_.is_on(slab->disk) || slab->geometry.slab_bytes != options_.slab_bytes) {
      continue;
    }
    classes_.Close(*slab);
    slab->next_shape = shape_class.geometry().shape;
    StartReshape(*slab);
    return true;
  }
  return false;
}

void SlabLifecycle::StartReshape(NvmeSlab& slab) {
  TERRACE_CHECK(slab.slots.is_empty() && slab.slots.quarantined_count() == 0,
                "a table is cleared when nobody's bytes are named in it");
  TERRACE_CHECK(!slab.is_step_in_flight && !slab.unsynced.is_in_flight(),
                "a sync of the old table says nothing of the new one");
  slab.phase = SlabPhase::kReshaping;
  slab.step = kStepClears;
  slab.cleared_bytes = 0;
  slab.next_uuid = {options_.random(), options_.random()};
  classes_.BeginComing(slab.next_shape, slab.disk);
  slabs_.Withdraw(slab.index);
  Step(slab);
}

const NvmeSlab* SlabLifecycle::DrainFor(const ShapeClass& shape_class) {
  for (const auto& slab : slabs_.all()) {
    if (slab != nullptr && slab->phase == SlabPhase::kDraining &&
        slab->next_shape == shape_class.geometry().shape) {
      return slab.get();
    }
  }
  if (shape_class.geometry().slab_bytes != options_.slab_bytes) return nullptr;
  if (classes_.IsRoomComing(shape_class) || !classes_.IsPoor(shape_class)) return nullptr;
  NvmeSlab* const slab = classes_.EmptiestOfOthers(shape_class);
  if (slab == nullptr) return nullptr;
  classes_.Close(*slab);
  slab->phase = SlabPhase::kDraining;
  slab->next_shape = shape_class.geometry().shape;
  slab->phase_since_us = disks_.now_us();
  LookAfter(*slab);
  return slab;
}

// ---- room for other domains ----

// One more at a Tick, and few at once: who asks has the first the sooner.
void SlabLifecycle::GiveBack() {
  if (CountLeaving() >= kLeavingSlabsMax * options_.slab_bytes) return;
  if (!shares_.IsToGive(options_.domain_index, now_us())) return;
  NvmeSlab* const slab = NextToGive();
  if (slab == nullptr) return shares_.Excuse(options_.domain_index, now_us());
  classes_.Close(*slab);
  // Who waits for it would wait for the moving, too.
  const bool is_for_good = shares_.stats(options_.domain_index, now_us()).above_bytes > 0;
  slab->phase = SlabPhase::kRetiring;
  slab->way = is_for_good ? SlabWay::kMoved : SlabWay::kGiven;
  (void)CountLeaving();
  LookAfter(*slab);
}

// The emptiest; of those alike one of the disk that keeps most, so that all disks go on sharing the
// work, and of its the youngest: what hangs from its blocks is mostly in it.
NvmeSlab* SlabLifecycle::NextToGive() const {
  const auto may_go = [this](const NvmeSlab* slab) {
    return slab != nullptr && slab->phase == SlabPhase::kActive && disks_.is_on(slab->disk);
  };
  std::vector<uint64_t> staying_bytes(disks_.count());
  for (const auto& slab : slabs_.all()) {
    if (may_go(slab.get())) staying_bytes[slab->disk] += slab->geometry.slab_bytes;
  }
  NvmeSlab* best = nullptr;
  uint64_t best_eighths = 0;
  for (const auto& slab : slabs_.all()) {
    if (!may_go(slab.get())) continue;
    const uint64_t owned_bytes = slab->slots.owned_count() * slab->slot_bytes();
    const uint64_t eighths = owned_bytes * kAlikeDivisor / slab->geometry.slab_bytes;
    const bool is_better =
        best == nullptr || eighths < best_eighths ||
        (eighths == best_eighths && staying_bytes[slab->disk] >= staying_bytes[best->disk]);
    if (!is_better) continue;
    best = slab.get();
    best_eighths = eighths;
  }
  return best;
}

// Of disks that are off nothing leaves.
uint64_t SlabLifecycle::CountLeaving() {
  uint64_t leaving_bytes = 0;
  for (const auto& slab : slabs_.all()) {
    if (slab == nullptr || slab->is_gone || !disks_.is_on(slab->disk)) continue;
    const bool is_going =
        slab->phase == SlabPhase::kRetiring || slab->phase == SlabPhase::kRemoving;
    if (is_going) leaving_bytes += slab->geometry.slab_bytes;
  }
  shares_.SetLeaving(options_.domain_index, leaving_bytes);
  return leaving_bytes;
}

const NvmeSlab* SlabLifecycle::Leaving(SlabWay way, uint32_t first_index) const {
  for (const auto& slab : slabs_.all()) {
    const bool is_leaving = slab != nullptr && slab->index >= first_index &&
                            slab->phase == SlabPhase::kRetiring && slab->way == way &&
                            slab->slots.owned_count() > 0;
    if (is_leaving) return slab.get();
  }
  return nullptr;
}

// What is given goes slab by slab. What is moved leaves all of them at once: much of one may have
// been copied already, and wait for its sync.
bool SlabLifecycle::AppendLeaving(SlabWay way, std::vector<uint32_t>* owners) {
  Place& at = leaving_[static_cast<size_t>(way)];
  const NvmeSlab* const slab = Leaving(way, way == SlabWay::kMoved ? at.slab : 0);
  if (slab == nullptr) {
    at = {};
    return false;
  }
  if (slab->index != std::exchange(at.slab, slab->index)) at.slot = 0;
  const uint32_t end = std::min(at.slot + kLeavingSlotsMax, slab->slots.count());
  for (; at.slot < end; ++at.slot) {
    const uint32_t owner = slab->slots[at.slot].owner;
    if (owner != kOwnerNone) owners->push_back(owner);
  }
  if (end < slab->slots.count()) return true;
  at = {.slab = slab->index + 1};
  if (way == SlabWay::kMoved && Leaving(way, at.slab) != nullptr) return true;
  at = {};
  return false;
}

void SlabLifecycle::GiveUpMoving() {
  for (const auto& slab : slabs_.all()) {
    if (slab != nullptr) slab->way = SlabWay::kGiven;
  }
}

// ---- what becomes of a slab ----

void SlabLifecycle::FreeSlot(NvmeSlab& slab, uint32_t slot) {
  classes_.Free(slab, slot);
  if (slab.phase != SlabPhase::kActive) LookAfter(slab);
}

void SlabLifecycle::GiveUp(NvmeSlab& slab) {
  if (!slabs_.MarkGone(slab)) return;
  // Whoever removes one may have removed all: those that nothing is written to are looked at, too.
  for (const auto& other : slabs_.all()) {
    if (other != nullptr && other->disk == slab.disk) other->unsynced.Require();
  }
  if (slab.phase == SlabPhase::kReshaping) {
    classes_.EndComing(slab.next_shape, slab.disk);
    slab.phase = SlabPhase::kRemoving;
    return;
  }
  if (slab.phase == SlabPhase::kActive) classes_.Close(slab);
  slab.phase = SlabPhase::kRetiring;
  slab.way = SlabWay::kGiven;
  for (uint32_t slot = 0; slot < slab.slots.count(); ++slot) {
    if (slab.slots[slot].state != SlabSlotState::kUsed) continue;
    slab.slots.SetState(slot, SlabSlotState::kLost);
    entries_.Drop(slab, slot);
    entries_.MarkDirty(slab, slot);
  }
}

void SlabLifecycle::Forget(NvmeSlab& slab) {
  erasures_.EndInherited(slab);
  slabs_.Withdraw(slab.index);
  // The catalog has records of slots out of use, too, and would be found wrong at the next start.
  uint32_t left = slab.slots.quarantined_count();
  for (uint32_t slot = 0; left > 0 && slot < slab.slots.count(); ++slot) {
    if (slab.slots[slot].state != SlabSlotState::kQuarantined) continue;
    entries_.TellCatalog(slab, slot);
    --left;
  }
  slabs_.Remove(slab.index);
  (void)CountLeaving();
}

void SlabLifecycle::LookAfter(NvmeSlab& slab) {
  const bool is_quiet = slab.slots.is_empty() && !slab.unsynced.is_in_flight() &&
                        !slab.is_step_in_flight && disks_.is_on(slab.disk);
  const bool has_quarantined = slab.slots.quarantined_count() > 0;
  switch (slab.phase) {
    case SlabPhase::kDraining:
      if (is_quiet && !has_quarantined) {
        // A file of another size (slab_bytes was another) makes room for one of this.
        if (slab.geometry.slab_bytes == options_.slab_bytes) return StartReshape(slab);
        slab.phase = SlabPhase::kRemoving;
        return Step(slab);
      }
      if (disks_.now_us() - slab.phase_since_us > kDrainUs || has_quarantined) {
        classes_.Open(slab);
      }
      return;
    case SlabPhase::kRetiring:
      if (!is_quiet) return;
      slab.phase = SlabPhase::kRemoving;
      return Step(slab);
    case SlabPhase::kRestoring:
      return;
    case SlabPhase::kActive:
      if (slab.is_superblock_due || slab.wants_clearing()) Step(slab);
      return;
    case SlabPhase::kCreating:
    case SlabPhase::kReshaping:
    case SlabPhase::kRemoving:
      return Step(slab);
  }
}

void SlabLifecycle::LookAfterAll() {
  for (uint32_t index = 0; index < slabs_.all().size(); ++index) {
    if (NvmeSlab* slab = slabs_.At(index)) LookAfter(*slab);
  }
  for (ShapeClass* shape_class : classes_.Wanting()) {
    if (classes_.IsRoomComing(*shape_class)) continue;
    if (classes_.Pick(*shape_class) == nullptr) (void)BeginCreate(*shape_class);
  }
  GiveBack();
}

// ---- steps ----

void SlabLifecycle::SealSuperblock(NvmeSlab& slab, const SlabShape& shape, const SlabUuid& uuid) {
  slab.superblock.resize(kSlabSectorBytes);
  EncodeSuperblock({.uuid = uuid,
                    .slab_index = slab.index,
                    .shape = shape,
                    .slab_bytes = slab.geometry.slab_bytes},
                   options_.secret, slab.superblock);
}

// The request that comes next. Creating: the file. Reshaping: the table is cleared and that is on
// the drive before the superblock says that it is another slab, and that too is on the drive before
// blocks come.
DiskRequest SlabLifecycle::NextStep(NvmeSlab& slab) {
  if (slab.phase == SlabPhase::kRemoving) return {.op = DiskOp::kRemove, .file = slab.file};
  if (slab.phase == SlabPhase::kCreating) {
    SealSuperblock(slab, slab.next_shape, slab.next_uuid);
    return {.op = DiskOp::kCreate,
            .file = slab.file,
            .length_bytes = slab.geometry.slab_bytes,
            .from = slab.superblock,
            .name = "slab-" + std::to_string(slab.index) + ".terrace"};
  }
  if (slab.phase == SlabPhase::kReshaping) {
    const SlabGeometry& geometry = classes_.Of(slab.next_shape).geometry();
    if (slab.step == kStepClears) {
      const uint64_t length_bytes =
          std::min(kClearChunkBytes, geometry.table_bytes() - slab.cleared_bytes);
      return {.op = DiskOp::kWrite,
              .file = slab.file,
              .offset_bytes = kSlabTableOffsetBytes + slab.cleared_bytes,
              .from = {zeros_.get(), length_bytes}};
    }
    if (slab.step != kStepSuperblock) return {.op = DiskOp::kSync, .file = slab.file};
    SealSuperblock(slab, slab.next_shape, slab.next_uuid);
  } else if (slab.wants_clearing()) {
    // Whole: of a part the kernel would have to read the rest.
    return {.op = DiskOp::kWriteTable,
            .file = slab.file,
            .offset_bytes =
                kSlabTableOffsetBytes + uint64_t{slab.unread_sectors.back()} * kSlabSectorBytes,
            .from = {zeros_.get(), kSlabSectorBytes}};
  } else {
    SealSuperblock(slab, slab.geometry.shape, slab.uuid);  // once more: the last may be lost
  }
  return {.op = DiskOp::kWriteTable, .file = slab.file, .from = slab.superblock};
}

void SlabLifecycle::Step(NvmeSlab& slab) {
  if (slab.is_step_in_flight || !disks_.is_on(slab.disk)) return;
  const DiskRequest step = NextStep(slab);
  slab.is_step_in_flight =
      disks_
          .Submit({.kind = NvmeRequestKind::kSlabStep, .disk = slab.disk, .slab = slab.index}, step)
          .ok();
}

void SlabLifecycle::OnStepDone(const NvmeRequest& request, Status status) {
  NvmeSlab& slab = slabs_[request.slab];
  TERRACE_CHECK(slab.is_step_in_flight, "a step ends once");
  slab.is_step_in_flight = false;
  if (status.code() == StatusCode::kBusy) return;  // at the next Tick
  const bool is_found_gone =
      status.code() == StatusCode::kNotFound && slab.phase != SlabPhase::kCreating;
  if (is_found_gone) GiveUp(slab);  // of a file that is being made, nothing was ever held
  if (!status.ok()) return OnStepFailed(slab);
  switch (slab.phase) {
    case SlabPhase::kCreating:
      disks_.OnCreated(slab.disk);
      return Finish(slab);
    case SlabPhase::kRemoving:
      return Forget(slab);
    case SlabPhase::kReshaping:
      if (slab.step == kStepClears) {
        const uint64_t table_bytes = classes_.Of(slab.next_shape).geometry().table_bytes();
        slab.cleared_bytes = std::min(slab.cleared_bytes + kClearChunkBytes, table_bytes);
        if (slab.cleared_bytes < table_bytes) return Step(slab);
      }
      if (++slab.step > kStepLast) return Finish(slab);
      return Step(slab);
    default:
      slab.unsynced.Require();
      if (slab.wants_clearing()) return FinishClearing(slab);
      slab.is_superblock_due = false;
  }
}

void SlabLifecycle::OnStepFailed(NvmeSlab& slab) {
  if (slab.phase == SlabPhase::kCreating) {
    disks_.OnCreateFailed(slab.disk);
    classes_.EndComing(slab.next_shape, slab.disk);
    Forget(slab);
    reports_.OfferRoom();  // no room after all: who waited for it may evict
  } else if (slab.phase == SlabPhase::kReshaping) {
    slab.step = kStepClears;  // at the next Tick: a failed sync is not believed later
    slab.cleared_bytes = 0;
  } else if (slab.wants_clearing()) {
    --slab.clear_attempts_left;
    slab.unsynced.Require();  // without attempts left, the next good one ends what was inherited
  }
}

// What the sector named is forgotten: no later start finds what this one could not erase.
void SlabLifecycle::FinishClearing(NvmeSlab& slab) {
  const uint32_t per_sector = slab.geometry.entries_per_sector;
  const uint32_t first = slab.unread_sectors.back() * per_sector;
  const uint32_t end = std::min(first + per_sector, slab.geometry.slot_count);
  slab.unread_sectors.pop_back();
  for (uint32_t slot = first; slot < end; ++slot) {
    if (slab.slots[slot].state != SlabSlotState::kQuarantined) continue;
    FreeSlot(slab, slot);
    entries_.TellCatalog(slab, slot);
  }
  LookAfter(slab);
  reports_.OfferRoom();
}

void SlabLifecycle::Finish(NvmeSlab& slab) {
  const ShapeClass& shape_class = classes_.Of(slab.next_shape);
  classes_.EndComing(slab.next_shape, slab.disk);
  slab.TakeShape(shape_class.geometry(), slab.next_uuid);
  slab.unsynced.Require();
  classes_.Open(slab);
  slabs_.Publish(slab);
  if (shape_class.is_wanting()) reports_.WantRoom();
  reports_.OfferRoom();
}

}  // namespace terrace

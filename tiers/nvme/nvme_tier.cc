#include "tiers/nvme/nvme_tier.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "terrace/check.h"
#include "tiers/nvme/disk_probes.h"
#include "tiers/nvme/left_entries.h"
#include "tiers/nvme/slab_syncs.h"
#include "tiers/nvme/slot_trials.h"

namespace terrace {
namespace {

constexpr Status kSwitchedOff(StatusCode::kUnsupported, "the disk is switched off");

// Of a tier that shares with nobody.
std::unique_ptr<TierShares> OwnShares(const NvmeTier::Options& options) {
  if (options.shares != nullptr) return nullptr;
  std::vector<TierShares::Share> shares(options.domain_index + 1);
  shares.back() = {.guaranteed_bytes = options.capacity_bytes, .max_bytes = options.capacity_bytes};
  return std::make_unique<TierShares>(TierShares::Lending::kAll, options.capacity_bytes,
                                      std::move(shares));
}

}  // namespace

// The parts, and what passes from one to another. Each part uses those before it.
class NvmeTier::Parts final : public DiskListener, public EntryListener {
 public:
  explicit Parts(Options the_options);

  void OnDiskDone(uint64_t tag, Status status) override;
  void OnEntrySettled(NvmeSlab& slab, uint32_t slot) override;
  void OnEntryCataloged(NvmeSlab& slab, uint32_t slot,
                        const std::optional<WrittenBlock>& persisted) override;
  void OnTransferDone(const NvmeRequest& request, Status status);
  // The extent's owner lets go of it.
  void Release(const Extent& extent, SlabSlotState become);
  // How the payload of a new block is encrypted.
  Result<std::shared_ptr<PayloadCipher>> NewCipher(const BlockRecord& record,
                                                   uint64_t length_bytes) const;
  bool is_quiet() const;
  std::optional<FileRoom> FilesAtLimit() const;
  uint64_t capacity_bytes() const { return shares.max_bytes(options.domain_index); }

  const Options options;
  const std::unique_ptr<TierShares> own_shares;
  TierShares& shares;
  TierReports reports;
  NvmeDisks disks;
  SlabSet slabs;
  ShapeClasses classes;
  EntryWriter entries;
  ErasureLog erasures;
  SlabLifecycle lifecycle;
  SlabSyncs syncs;
  SlotTrials trials;
  DiskProbes probes;
  LeftEntries left;
  SlabRestore restore;
  SlotInspector inspector;
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t failed_transfers = 0;
  uint64_t too_large_bytes = 0;
};

NvmeTier::Parts::Parts(Options the_options)
    : options(std::move(the_options)),
      own_shares(OwnShares(options)),
      shares(own_shares == nullptr ? *options.shares : *own_shares),
      reports(options.domain_index),
      disks({.disks = options.disks,
             .lost_mounts = options.lost_mounts,
             .now_us = options.now_us,
             .health = {.failures_max = options.failures_max,
                        .probe_interval_us = options.probe_interval_us},
             .stuck_us = options.stuck_us},
            this),
      slabs(disks.count()),
      classes(disks, slabs, options.slab_bytes),
      entries({.secret = options.secret, .catalog = options.catalog}, disks, slabs, *this),
      lifecycle({.secret = options.secret,
                 .domain_index = options.domain_index,
                 .slab_bytes = options.slab_bytes,
                 .random = options.random},
                {disks, slabs, classes, entries, erasures, reports, shares}),
      syncs(options.sync_interval_us, {disks, slabs, entries, erasures, lifecycle, reports}),
      trials(options.random, {disks, slabs, classes, entries, lifecycle, syncs, reports}),
      probes(options.random, {disks, slabs, lifecycle, syncs, reports}),
      left({slabs, classes, entries, erasures}),
      restore({.domain_index = options.domain_index,
               .secret = options.secret,
               .capacity_bytes = capacity_bytes(),
               .outdated_files = options.outdated_files,
               .encryption = options.encryption},
              {disks, slabs, classes, entries, erasures, left}),
      inspector({slabs, classes, entries, trials}) {
  TERRACE_CHECK(options.now_us && options.random, "time and chance come from outside");
  slabs.CountIn(shares, options.domain_index);
}

void NvmeTier::Parts::OnDiskDone(uint64_t tag, Status status) {
  const NvmeRequest request = disks.Finish(tag, status);
  switch (request.kind) {
    case NvmeRequestKind::kRead:
    case NvmeRequestKind::kWrite:
      OnTransferDone(request, status);
      break;
    case NvmeRequestKind::kEntry:
      entries.OnWritten(request, status);
      break;
    case NvmeRequestKind::kSync:
      syncs.OnSyncDone(request, status);
      break;
    case NvmeRequestKind::kSlabStep:
      lifecycle.OnStepDone(request, status);
      break;
    case NvmeRequestKind::kProbe:
      probes.OnProbeDone(request, status);
      break;
    case NvmeRequestKind::kTrial:
      trials.OnTrialDone(request, status);
      break;
  }
  entries.Write();
}

void NvmeTier::Parts::OnEntrySettled(NvmeSlab& slab, uint32_t slot) {
  const SlabSlotState state = slab.slots[slot].state;
  if (state == SlabSlotState::kErasing) {
    lifecycle.FreeSlot(slab, slot);
    reports.OfferRoom();
  } else if (state == SlabSlotState::kSuspect) {
    trials.Add(slab, slot);
  }
}

void NvmeTier::Parts::OnEntryCataloged(NvmeSlab& slab, uint32_t slot,
                                       const std::optional<WrittenBlock>& persisted) {
  const uint32_t index = slab.index;
  erasures.EndIfDurable(slab, slot);
  if (persisted) {
    reports.Persisted(slab.slots[slot].owner, persisted->commit_id, persisted->member);
  }
  if (NvmeSlab* still = slabs.At(index)) lifecycle.LookAfter(*still);
}

void NvmeTier::Parts::OnTransferDone(const NvmeRequest& request, Status status) {
  NvmeSlab& slab = slabs[request.slab];
  slab.slots.EndTransfer(request.slot);
  if (slab.is_gone && status.ok()) {
    status = Status(StatusCode::kIo, "somebody removed the slab's file", ENOENT);
  }
  if (!status.ok()) ++failed_transfers;
  if (request.kind == NvmeRequestKind::kRead) {
    if (status.ok()) {
      read_bytes += request.length_bytes;
      disks.MeasureRead(request);
    }
  } else if (status.ok()) {
    written_bytes += request.length_bytes;
    if (request.cipher != nullptr && entries.is_held(slab, request.slot)) {
      slab.SetCipher(request.slot, *request.cipher);
      entries.Seal(slab, request.slot);
    }
    if (request.is_moved) {
      slab.moved_in.Add(slab.slots, request.slot);
      slab.unsynced.Require();
    } else {
      slab.slots.SetState(request.slot, SlabSlotState::kUsed);
      entries.MarkDirty(slab, request.slot);
    }
  } else {
    entries.Drop(slab, request.slot);
  }
  reports.TransferDone(request.transfer_id, status);
}

Result<std::shared_ptr<PayloadCipher>> NvmeTier::Parts::NewCipher(const BlockRecord& record,
                                                                  uint64_t length_bytes) const {
  const PayloadEncryption& encryption = options.encryption;
  auto cipher = std::make_shared<PayloadCipher>();
  cipher->key = encryption.keys->Find(record.group);
  if (cipher->key == nullptr) return Status(StatusCode::kGone, "the group has no key");
  cipher->name = NamePayload(record, length_bytes, record.part_checksums);
  TERRACE_RETURN_IF_ERROR(encryption.random(cipher->seal.salt));
  return cipher;
}

void NvmeTier::Parts::Release(const Extent& extent, SlabSlotState become) {
  NvmeSlab* const slab = slabs.Find(extent);
  TERRACE_CHECK(slab != nullptr, "only the present use of an extent can be freed");
  const auto slot = static_cast<uint32_t>(extent.position);
  slab->slots.EndGeneration(slot);
  entries.Drop(*slab, slot);
  if (slab->slots[slot].has(kEntryNamed)) erasures.Begin(*slab, slot);
  if (slab->slots[slot].state == SlabSlotState::kLost) {
    slab->slots.SetState(slot, SlabSlotState::kQuarantined);
    entries.MarkDirty(*slab, slot);
  } else if (become == SlabSlotState::kSuspect) {
    trials.Suspect(*slab, slot);
  } else if (slab->slots[slot].has(kEntryNamed | kEntryDirty | kEntryInFlight)) {
    classes.Erase(*slab, slot);
    entries.MarkDirty(*slab, slot);
  } else {
    lifecycle.FreeSlot(*slab, slot);
  }
  entries.Write();
}

bool NvmeTier::Parts::is_quiet() const {
  const ErasureProgress progress = erasures.progress();
  return disks.transfers_in_flight() == 0 && progress.ended == progress.begun &&
         std::ranges::none_of(slabs.all(), [](const auto& slab) {
           return slab != nullptr && slab->slots.has_work();
         });
}

// ---- the interface ----

NvmeTier::NvmeTier(Options options) : parts_(std::make_unique<Parts>(std::move(options))) {}

NvmeTier::~NvmeTier() = default;

void NvmeTier::SetListener(TierListener* listener) { parts_->reports.SetListener(listener); }

SlabRestore& NvmeTier::restore() { return parts_->restore; }

SlotInspector& NvmeTier::inspector() { return parts_->inspector; }

Result<Extent> NvmeTier::Allocate(uint32_t domain_index, uint64_t length_bytes,
                                  uint32_t part_count) {
  Parts& p = *parts_;
  TERRACE_CHECK(domain_index == p.options.domain_index, "a tier of slabs belongs to one domain");
  if (length_bytes == 0 || length_bytes % kSlabSectorBytes != 0) {
    return Status(StatusCode::kInvalid, "an extent is whole sectors");
  }
  Result<ShapeClass*> found = p.classes.FindOrMake({length_bytes, part_count});
  if (!found.ok()) {
    if (found.code() == StatusCode::kInvalid) {
      p.too_large_bytes = std::max(p.too_large_bytes, length_bytes);
    }
    return found.status();
  }
  ShapeClass& shape_class = **found;
  NvmeSlab* const slab = p.classes.Pick(shape_class);
  if (slab == nullptr) {
    p.classes.SetWanting(shape_class, true);
    p.reports.WantRoom();
    if (!p.disks.is_any_on()) return kSwitchedOff;
    if (p.lifecycle.MakeRoom(shape_class)) return Status(StatusCode::kBusy, "room is being made");
    return Status(StatusCode::kNoSpace, "no slot of this shape is free");
  }
  const uint32_t slot = p.classes.Take(*slab);
  p.lifecycle.GrowAhead(shape_class);
  return Extent{.position = slot,
                .length_bytes = length_bytes,
                .shard = slab->index,
                .generation = slab->slots[slot].generation};
}

void NvmeTier::Free(const Extent& extent) { parts_->Release(extent, SlabSlotState::kFree); }

void NvmeTier::Quarantine(const Extent& extent) {
  parts_->Release(extent, SlabSlotState::kSuspect);
}

Status NvmeTier::Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) {
  TERRACE_CHECK(into.size() == extent.length_bytes, "the buffer is as long as the extent");
  return ReadRange(transfer_id, extent, 0, into);
}

bool NvmeTier::reads_ranges() const { return !parts_->options.encryption.is_on(); }

Status NvmeTier::ReadRange(TransferId transfer_id, const Extent& extent, uint64_t offset_bytes,
                           std::span<std::byte> into) {
  Parts& p = *parts_;
  TERRACE_CHECK(p.reports.has_listener(), "a transfer has somebody to report to");
  TERRACE_CHECK(into.size() <= extent.length_bytes &&
                    offset_bytes <= extent.length_bytes - into.size() &&
                    (offset_bytes | into.size()) % kRangeAlignmentBytes == 0,
                "a range lies in the extent, aligned");
  NvmeSlab* const slab = p.slabs.Find(extent);
  if (slab == nullptr) return Status(StatusCode::kGone, "the extent was freed");
  if (!p.disks.is_on(slab->disk)) return kSwitchedOff;
  const auto slot = static_cast<uint32_t>(extent.position);
  const SlabSlotState state = slab->slots[slot].state;
  if (state == SlabSlotState::kTaken) return Status(StatusCode::kGone, "nothing is there");
  if (state == SlabSlotState::kLost) {
    return Status(StatusCode::kIo, "a sync failed: the bytes may not be on the drive", EIO);
  }
  std::shared_ptr<PayloadCipher> cipher;
  if (slab->is_encrypted(slot)) {
    if (into.size() != extent.length_bytes) {
      return Status(StatusCode::kUnsupported, "an encrypted payload is read whole");
    }
    cipher = std::make_shared<PayloadCipher>(slab->ciphers[slot]);
  }
  TERRACE_RETURN_IF_ERROR(
      p.disks.Submit({.kind = NvmeRequestKind::kRead,
                      .disk = slab->disk,
                      .slab = slab->index,
                      .slot = slot,
                      .transfer_id = transfer_id,
                      .length_bytes = into.size()},
                     {.op = DiskOp::kRead,
                      .file = slab->file,
                      .offset_bytes = slab->geometry.PayloadOffsetBytes(slot) + offset_bytes,
                      .into = into,
                      .cipher = std::move(cipher)}));
  slab->slots.BeginTransfer(slot);
  return Status::Ok();
}

Status NvmeTier::Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
                       std::span<const std::byte> from) {
  Parts& p = *parts_;
  TERRACE_CHECK(p.reports.has_listener(), "a transfer has somebody to report to");
  TERRACE_CHECK(from.size() == extent.length_bytes, "the buffer is as long as the extent");
  NvmeSlab* const slab = p.slabs.Find(extent);
  if (slab == nullptr) return Status(StatusCode::kGone, "the extent was freed");
  if (!p.disks.is_on(slab->disk)) return kSwitchedOff;
  if (p.disks.is_queue_full(slab->disk) || p.entries.is_full()) {
    return Status(StatusCode::kBusy, "the queue is full");
  }
  const auto slot = static_cast<uint32_t>(extent.position);
  if (slab->slots[slot].state != SlabSlotState::kTaken || slab->slots[slot].transfers > 0) {
    return Status(StatusCode::kInvalid, "a live slot is never overwritten");
  }
  std::shared_ptr<PayloadCipher> cipher;
  if (p.options.encryption.is_on()) {
    auto made = p.NewCipher(record, from.size());
    if (!made.ok()) return made.status();
    cipher = std::move(*made);
    slab->SetCipher(slot, {});  // none of the slot's last block
  }
  TERRACE_RETURN_IF_ERROR(p.disks.Submit({.kind = NvmeRequestKind::kWrite,
                                          .disk = slab->disk,
                                          .slab = slab->index,
                                          .slot = slot,
                                          .transfer_id = transfer_id,
                                          .length_bytes = from.size(),
                                          .cipher = cipher,
                                          .is_moved = record.is_moved},
                                         {.op = DiskOp::kWrite,
                                          .file = slab->file,
                                          .offset_bytes = slab->geometry.PayloadOffsetBytes(slot),
                                          .from = from,
                                          .cipher = cipher}));
  slab->slots.BeginTransfer(slot);
  slab->slots.SetOwner(slot, record.owner);
  if (record.is_moved) {
    p.entries.Hold(*slab, slot, extent, record);
  } else {
    p.entries.HoldNew(*slab, slot, extent, record);
  }
  return Status::Ok();
}

void NvmeTier::Amend(const Extent& extent, const BlockRecord& record) {
  Parts& p = *parts_;
  NvmeSlab* const slab = p.slabs.Find(extent);
  if (slab == nullptr) return;
  const auto slot = static_cast<uint32_t>(extent.position);
  const SlabSlotState state = slab->slots[slot].state;
  if (state == SlabSlotState::kLost) return;
  const bool is_used = state == SlabSlotState::kUsed;
  if (!is_used && !p.entries.is_held(*slab, slot)) return;
  p.entries.Hold(*slab, slot, extent, record);
  if (!is_used) return;  // its write sees to it
  p.entries.MarkDirty(*slab, slot);
  p.entries.Write();
}

uint64_t NvmeTier::PredictReadUs(uint64_t length_bytes) const {
  return parts_->disks.PredictReadUs(length_bytes);
}

uint64_t NvmeTier::SilentUs(std::span<const Extent> extents) const {
  uint64_t silent_us = 0;
  for (const Extent& extent : extents) {
    const NvmeSlab* const slab =
        extent.length_bytes == 0 ? nullptr : parts_->slabs.At(extent.shard);
    if (slab != nullptr) silent_us = std::max(silent_us, parts_->disks.SilentUs(slab->disk));
  }
  return silent_us;
}

ErasureProgress NvmeTier::erasures() const { return parts_->erasures.progress(); }

void NvmeTier::AppendOwnersToDrop(uint64_t length_bytes, uint32_t part_count,
                                  std::vector<uint32_t>* owners) {
  const ShapeClass* const found = parts_->classes.Find({length_bytes, part_count});
  if (found == nullptr) return;
  const NvmeSlab* const slab = parts_->lifecycle.DrainFor(*found);
  if (slab == nullptr) return;
  for (uint32_t slot = 0; slot < slab->slots.count(); ++slot) {
    const uint32_t owner = slab->slots[slot].owner;
    if (owner != kOwnerNone) owners->push_back(owner);
  }
}

bool NvmeTier::AppendOwnersToGive(std::vector<uint32_t>* owners) {
  return parts_->lifecycle.AppendLeaving(SlabWay::kGiven, owners);
}

bool NvmeTier::AppendOwnersToMove(std::vector<uint32_t>* owners) {
  return parts_->lifecycle.AppendLeaving(SlabWay::kMoved, owners);
}

bool NvmeTier::IsToMove(const Extent& extent) const {
  const NvmeSlab* const slab = parts_->slabs.Find(extent);
  return slab != nullptr && slab->phase == SlabPhase::kRetiring && slab->way == SlabWay::kMoved;
}

MovedState NvmeTier::StateOfMoved(const Extent& extent) const {
  const NvmeSlab* const slab = parts_->slabs.Find(extent);
  if (slab == nullptr || slab->is_gone) return MovedState::kLost;
  const SlabSlot& slot = slab->slots[static_cast<uint32_t>(extent.position)];
  if (slot.state == SlabSlotState::kLost) return MovedState::kLost;
  constexpr uint8_t kNotDurable = kEntryWriting | kEntryUnsynced | kEntrySyncing | kEntryDoubted;
  return slot.state == SlabSlotState::kUsed && !slot.has(kNotDurable) ? MovedState::kDurable
                                                                      : MovedState::kComing;
}

void NvmeTier::GiveUpMoving() { parts_->lifecycle.GiveUpMoving(); }

void NvmeTier::Tick() {
  Parts& p = *parts_;
  p.disks.SwitchOffStuck();
  p.disks.LookForRoom();
  p.probes.BeginDue();
  p.entries.Resume();
  p.entries.Write();
  p.lifecycle.LookAfterAll();
  p.syncs.BeginDue();
  p.trials.Step();
  p.trials.GiveUpWaiters();
  p.disks.Flush();
}

// It may grow, or would serve files that it found.
std::optional<FileRoom> NvmeTier::Parts::FilesAtLimit() const {
  const uint64_t held_bytes = slabs.file_bytes_total() + options.slab_bytes;
  const bool may_grow = held_bytes <= capacity_bytes() &&
                        shares.held_bytes_total() + options.slab_bytes <= shares.capacity_bytes();
  return may_grow || restore.counts().slabs_unopened > 0 ? disks.FilesAtLimit() : std::nullopt;
}

TierStats NvmeTier::stats() const {
  const Parts& p = *parts_;
  const std::optional<FileRoom> at_limit = p.FilesAtLimit();
  const FileRoom files = at_limit.value_or(FileRoom{});
  const SlotTotals& totals = p.slabs.totals();
  // Not the drive's fault: whole, and of use to a start that knows their groups or keys.
  const SlabRestore::Counts& found = p.restore.counts();
  const uint64_t left_bytes = std::min(p.left.ungrouped_bytes(), totals.quarantined_bytes);
  const uint64_t locked_bytes =
      std::min(p.left.locked_bytes(), totals.quarantined_bytes - left_bytes);
  return {
      .capacity_bytes = RoundDown(p.capacity_bytes(), p.options.slab_bytes),
      .used_bytes = totals.used_bytes,
      .transfers_in_flight = p.disks.transfers_in_flight(),
      .read_bytes = p.read_bytes,
      .written_bytes = p.written_bytes,
      .failed_transfers = p.failed_transfers,
      .stuck_transfers = p.disks.stuck_count(),
      .suspect_bytes = totals.suspect_bytes,
      .quarantined_bytes = totals.quarantined_bytes - locked_bytes - left_bytes,
      .places_recovered = p.trials.recovered_count(),
      .places_lost = totals.lost_count,
      .corrupt_entries = found.entries_corrupt,
      .too_large_bytes = p.too_large_bytes,
      .is_at_files_limit = at_limit.has_value(),
      .files_open = files.open_count,
      .fds_max = files.fds_max,
      .fds_wanted = files.fds_wanted,
      .catalog_memory_bytes = p.options.catalog == nullptr ? 0 : p.options.catalog->memory_bytes(),
      .catalog_trouble = p.options.catalog == nullptr ? "" : p.options.catalog->trouble(),
      .left_alone_bytes = p.slabs.left_alone_bytes() + locked_bytes + left_bytes,
      .ungrouped_bytes = left_bytes,
      .is_healthy = p.disks.is_any_on(),
      .share = p.shares.stats(p.options.domain_index, p.disks.now_us())};
}

std::vector<DriveTrouble> NvmeTier::troubles() const {
  std::vector<DriveTrouble> troubles = parts_->options.not_opened;
  std::ranges::copy(parts_->disks.Troubles(), std::back_inserter(troubles));
  return troubles;
}

bool NvmeTier::has_left() const { return parts_->left.count() > 0; }

void NvmeTier::MarkLeft(const std::optional<GroupId>& group, uint64_t position) {
  parts_->left.Mark(group, position);
}

std::optional<uint64_t> NvmeTier::MarkLeftBelow(const std::optional<GroupId>& group,
                                                const BlockKey& key) {
  return parts_->left.MarkBelow(group, key);
}

void NvmeTier::EraseLeftKey(const std::optional<GroupId>& group, const BlockKey& key,
                            UnindexedTaken* taken) {
  parts_->left.EraseKey(group, key, taken);
}

bool NvmeTier::EraseLeft(uint32_t* budget, UnindexedTaken* taken) {
  return parts_->left.EraseMarked(budget, taken);
}

bool NvmeTier::is_quiet() const { return parts_->is_quiet(); }

void NvmeTier::OnCataloged(uint32_t slab, uint32_t slot) {
  parts_->entries.OnCataloged(slab, slot);
  parts_->entries.Write();
}

Status NvmeTier::ReadEntryNow(uint32_t slab, uint32_t slot, std::vector<std::byte>* entry) const {
  const Parts& p = *parts_;
  const std::optional<SlabPlace> place = p.slabs.FindPlace(slab);
  if (!place) return Status(StatusCode::kNotFound, "no such slot");
  return TableReader(p.disks.disk(place->disk), *place, p.options.secret).ReadEntry(slot, entry);
}

}  // namespace terrace

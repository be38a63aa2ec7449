#include "tiers/nvme/nvme_tier.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "terrace/check.h"
#include "tiers/disk/left_behind.h"
#include "tiers/nvme/nvme_tier_state.h"

namespace terrace {
namespace {

constexpr Status kSwitchedOff(StatusCode::kUnsupported, "the disk is switched off");

}  // namespace

void FreeAligned::operator()(std::byte* bytes) const { std::free(bytes); }

AlignedBytes AllocateAligned(uint64_t length_bytes) {
  auto* bytes = static_cast<std::byte*>(std::aligned_alloc(kSlabSectorBytes, length_bytes));
  TERRACE_CHECK(bytes != nullptr, "a few sectors at start");
  std::fill_n(bytes, length_bytes, std::byte{0});
  return AlignedBytes(bytes);
}

NvmeTier::State::State(Options the_options) : options(std::move(the_options)) {
  TERRACE_CHECK(!options.disks.empty(), "a tier has a disk");
  TERRACE_CHECK(options.now_us && options.random, "time and chance come from outside");
  TERRACE_CHECK(options.slab_bytes % kSlabSectorBytes == 0 && options.slab_bytes > 0,
                "a slab is whole sectors");
  for (Disk* disk : options.disks) {
    disks.emplace_back(disk, DiskHealth::Options{.failures_max = options.failures_max,
                                                 .probe_interval_us = options.probe_interval_us});
    disks.back().probe_sector = AllocateAligned(kSlabSectorBytes);
  }
  zeros = AllocateAligned(kClearChunkBytes);
}

bool NvmeTier::State::is_any_disk_on() const {
  return std::ranges::any_of(disks, [](const DiskState& disk) { return disk.health.is_on(); });
}

SlabSlot* NvmeTier::State::Find(const Extent& extent) {
  NvmeSlab* slab = SlabAt(extent.shard);
  if (slab == nullptr || extent.position >= slab->slots.size()) return nullptr;
  SlabSlot& slot = slab->slots[extent.position];
  const bool is_owned = slot.state == SlabSlotState::kTaken || slot.state == SlabSlotState::kUsed ||
                        slot.state == SlabSlotState::kLost;
  const bool is_same = slot.generation == extent.generation &&
                       slab->geometry.shape.slot_bytes == extent.length_bytes;
  return is_owned && is_same ? &slot : nullptr;
}

Status NvmeTier::State::Submit(const Request& request, DiskRequest disk_request) {
  DiskState& disk = disks[request.disk];
  const uint32_t number =
      free_requests.empty() ? static_cast<uint32_t>(requests.size()) : free_requests.back();
  disk_request.tag = number;
  TERRACE_RETURN_IF_ERROR(disk.disk->Submit(disk_request));
  if (free_requests.empty()) {
    requests.emplace_back();
  } else {
    free_requests.pop_back();
  }
  requests[number] = request;
  requests[number].is_live = true;
  requests[number].begun_us = Now();
  ++disk.requests_in_flight;
  return Status::Ok();
}

Status NvmeTier::State::BeginTransfer(const Request& request, const DiskRequest& disk_request) {
  DiskState& disk = disks[request.disk];
  Request counted = request;
  counted.behind_bytes = disk.bytes_in_flight + request.length_bytes;
  TERRACE_RETURN_IF_ERROR(Submit(counted, disk_request));
  disk.bytes_in_flight += request.length_bytes;
  ++totals.transfers_in_flight;
  ++slabs[request.slab]->slots[request.slot].transfers;
  return Status::Ok();
}

void NvmeTier::State::OnTransferDone(const Request& request, Status status) {
  DiskState& disk = disks[request.disk];
  NvmeSlab& slab = *slabs[request.slab];
  disk.bytes_in_flight -= request.length_bytes;
  --totals.transfers_in_flight;
  --slab.slots[request.slot].transfers;
  if (slab.is_gone && status.ok()) {
    status = Status(StatusCode::kIo, "somebody removed the slab's file", ENOENT);
  }
  if (!status.ok()) ++totals.failed_transfers;
  if (request.kind == RequestKind::kRead) {
    if (status.ok()) {
      totals.read_bytes += request.length_bytes;
      disk.health.OnReadDone(request.behind_bytes, Now() - request.begun_us);
    }
  } else if (status.ok()) {
    totals.written_bytes += request.length_bytes;
    slab.SetState(request.slot, SlabSlotState::kUsed);
    MarkDirty(slab, request.slot);
  } else {
    DropHeld(PlaceOf(request.slab, request.slot));
  }
  listener->OnTransferDone(request.transfer_id, status);
}

void NvmeTier::State::Release(const Extent& extent, SlabSlotState state) {
  const SlabSlot* found = Find(extent);
  TERRACE_CHECK(found != nullptr, "only the present use of an extent can be freed");
  TERRACE_CHECK(found->transfers == 0, "no transfer on a freed extent is in flight");
  NvmeSlab& slab = *slabs[extent.shard];
  const auto number = static_cast<uint32_t>(extent.position);
  SlabSlot& slot = slab.slots[number];
  totals.used_bytes -= slab.geometry.shape.slot_bytes;
  ++slot.generation;
  slot.owner = kOwnerNone;
  DropHeld(PlaceOf(slab.index, number));
  if ((slot.flags & kEntryNamed) != 0 && (slot.flags & kEntryErasure) == 0) {
    slab.SetFlags(number, kEntryErasure, 0);
    erasures[PlaceOf(slab.index, number)] = erasures_begun;
    erasure_numbers.insert(erasures_begun++);
  }
  if (slot.state == SlabSlotState::kLost) {
    slab.SetState(number, SlabSlotState::kQuarantined);
    totals.quarantined_bytes += slab.geometry.shape.slot_bytes;
    MarkDirty(slab, number);
  } else if (state == SlabSlotState::kSuspect) {
    Suspect(slab, number);
  } else if ((slot.flags & (kEntryNamed | kEntryDirty | kEntryInFlight)) != 0) {
    EraseSlot(slab, number);
    MarkDirty(slab, number);
  } else {
    FreeSlot(slab, number);
  }
}

SlabEntry NvmeTier::State::Describe(const Extent& extent, const BlockRecord& record) const {
  const SlabShape& shape = slabs[extent.shard]->geometry.shape;
  SlabEntry entry{record};
  entry.state = SlabEntryState::kUsed;
  entry.slot = static_cast<uint32_t>(extent.position);
  entry.generation = extent.generation;
  entry.epoch = epoch;
  entry.length_bytes = extent.length_bytes;
  entry.part_checksums.assign(record.part_checksums.begin(), record.part_checksums.end());
  TERRACE_CHECK(entry.part_checksums.size() <= shape.part_count, "a checksum a part");
  entry.part_checksums.resize(shape.part_count);  // none: such bytes never verify
  return entry;
}

void NvmeTier::State::Pump() {
  for (uint32_t disk = 0; disk < disks.size(); ++disk) PumpEntries(disk);
}

void NvmeTier::State::GiveRoom() {
  if (!is_room_wanted) return;
  is_room_wanted = false;
  listener->OnRoom(options.domain_index);
}

// ---- the interface ----

NvmeTier::NvmeTier(Options options) : state_(std::make_unique<State>(std::move(options))) {
  for (Disk* disk : state_->options.disks) disk->SetListener(this);
}

NvmeTier::~NvmeTier() {
  for (State::DiskState& disk : state_->disks) {
    disk.disk->SetListener(nullptr);
    // The drive may still write there: the memory is its own for good.
    if (disk.is_probe_in_flight) LeaveBehind(std::move(disk.probe_sector));
    if (disk.requests_in_flight > 0 && state_->zeros) LeaveBehind(std::move(state_->zeros));
  }
  if (state_->trial.is_in_flight) LeaveBehind(std::move(state_->trial.bytes));
}

void NvmeTier::SetListener(TierListener* listener) { state_->listener = listener; }

Result<Extent> NvmeTier::Allocate(uint32_t domain_index, uint64_t length_bytes,
                                  uint32_t part_count) {
  State& s = *state_;
  TERRACE_CHECK(domain_index == s.options.domain_index, "a tier of slabs belongs to one domain");
  if (length_bytes == 0 || length_bytes % kSlabSectorBytes != 0) {
    return Status(StatusCode::kInvalid, "an extent is whole sectors");
  }
  Result<State::ShapeClass*> found = s.FindOrMakeClass({length_bytes, part_count});
  if (!found.ok()) return found.status();
  State::ShapeClass& shape_class = **found;
  NvmeSlab* slab = s.PickSlab(shape_class);
  if (slab == nullptr) {
    shape_class.is_wanting = true;
    s.is_room_wanted = true;
    if (!s.is_any_disk_on()) return kSwitchedOff;
    if (s.MakeRoom(shape_class)) return Status(StatusCode::kBusy, "room is being made");
    return Status(StatusCode::kNoSpace, "no slot of this shape is free");
  }
  const uint32_t slot = s.TakeSlotOf(*slab);
  s.GrowAhead(shape_class);
  return Extent{.position = slot,
                .length_bytes = length_bytes,
                .shard = slab->index,
                .generation = slab->slots[slot].generation};
}

void NvmeTier::Free(const Extent& extent) {
  state_->Release(extent, SlabSlotState::kFree);
  state_->Pump();
}

void NvmeTier::Quarantine(const Extent& extent) {
  state_->Release(extent, SlabSlotState::kSuspect);
  state_->Pump();
}

Status NvmeTier::Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) {
  TERRACE_CHECK(into.size() == extent.length_bytes, "the buffer is as long as the extent");
  return ReadRange(transfer_id, extent, 0, into);
}

Status NvmeTier::ReadRange(TransferId transfer_id, const Extent& extent, uint64_t offset_bytes,
                           std::span<std::byte> into) {
  State& s = *state_;
  TERRACE_CHECK(s.listener != nullptr, "a transfer has somebody to report to");
  TERRACE_CHECK(into.size() <= extent.length_bytes &&
                    offset_bytes <= extent.length_bytes - into.size() &&
                    (offset_bytes | into.size()) % kRangeAlignmentBytes == 0,
                "a range lies in the extent, aligned");
  const SlabSlot* slot = s.Find(extent);
  if (slot == nullptr) return Status(StatusCode::kGone, "the extent was freed");
  const NvmeSlab& slab = *s.slabs[extent.shard];
  if (!s.disks[slab.disk].health.is_on()) return kSwitchedOff;
  if (slot->state == SlabSlotState::kTaken) return Status(StatusCode::kGone, "nothing is there");
  if (slot->state == SlabSlotState::kLost) {
    return Status(StatusCode::kIo, "a sync failed: the bytes may not be on the drive", EIO);
  }
  const auto number = static_cast<uint32_t>(extent.position);
  return s.BeginTransfer({.kind = State::RequestKind::kRead,
                          .disk = slab.disk,
                          .slab = slab.index,
                          .slot = number,
                          .transfer_id = transfer_id,
                          .length_bytes = into.size()},
                         {.op = DiskOp::kRead,
                          .file = slab.file,
                          .offset_bytes = slab.geometry.PayloadOffsetBytes(number) + offset_bytes,
                          .into = into});
}

Status NvmeTier::Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
                       std::span<const std::byte> from) {
  State& s = *state_;
  TERRACE_CHECK(s.listener != nullptr, "a transfer has somebody to report to");
  TERRACE_CHECK(from.size() == extent.length_bytes, "the buffer is as long as the extent");
  SlabSlot* slot = s.Find(extent);
  if (slot == nullptr) return Status(StatusCode::kGone, "the extent was freed");
  NvmeSlab& slab = *s.slabs[extent.shard];
  State::DiskState& disk = s.disks[slab.disk];
  if (!disk.health.is_on()) return kSwitchedOff;
  if (disk.requests_in_flight >= disk.disk->queue_max() || s.held_with_bytes >= kEntriesHeldMax) {
    return Status(StatusCode::kBusy, "the queue is full");
  }
  if (slot->state != SlabSlotState::kTaken || slot->transfers > 0) {
    return Status(StatusCode::kInvalid, "a live slot is never overwritten");
  }
  const auto number = static_cast<uint32_t>(extent.position);
  TERRACE_RETURN_IF_ERROR(s.BeginTransfer({.kind = State::RequestKind::kWrite,
                                           .disk = slab.disk,
                                           .slab = slab.index,
                                           .slot = number,
                                           .transfer_id = transfer_id,
                                           .length_bytes = from.size()},
                                          {.op = DiskOp::kWrite,
                                           .file = slab.file,
                                           .offset_bytes = slab.geometry.PayloadOffsetBytes(number),
                                           .from = from}));
  ++s.epoch;
  slot->owner = record.owner;
  s.HoldEntry(slab, number, s.Describe(extent, record), true);
  return Status::Ok();
}

void NvmeTier::Amend(const Extent& extent, const BlockRecord& record) {
  State& s = *state_;
  const SlabSlot* slot = s.Find(extent);
  if (slot == nullptr || slot->state == SlabSlotState::kLost) return;
  NvmeSlab& slab = *s.slabs[extent.shard];
  const auto number = static_cast<uint32_t>(extent.position);
  const bool is_used = slot->state == SlabSlotState::kUsed;
  if (!is_used && !s.held.contains(State::PlaceOf(slab.index, number))) return;
  ++s.epoch;
  s.HoldEntry(slab, number, s.Describe(extent, record), false);
  if (!is_used) return;  // its write sees to it
  s.MarkDirty(slab, number);
  s.Pump();
}

uint64_t NvmeTier::PredictReadUs(uint64_t length_bytes) const {
  uint64_t sum_us = 0;
  uint64_t count = 0;
  for (const State::DiskState& disk : state_->disks) {
    if (!disk.health.is_on()) continue;
    sum_us += disk.health.PredictReadUs(disk.bytes_in_flight + length_bytes);
    ++count;
  }
  return count > 0 ? sum_us / count : state_->options.stuck_us;
}

ErasureProgress NvmeTier::erasures() const {
  const State& s = *state_;
  return {.begun = s.erasures_begun,
          .ended = s.erasure_numbers.empty() ? s.erasures_begun : *s.erasure_numbers.begin()};
}

void NvmeTier::AppendOwnersToDrop(uint64_t length_bytes, uint32_t part_count,
                                  std::vector<uint32_t>* owners) {
  State& s = *state_;
  const auto found = s.classes.find({length_bytes, part_count});
  if (found == s.classes.end()) return;
  const NvmeSlab* slab = s.DrainFor(found->second);
  if (slab == nullptr) return;
  for (const SlabSlot& slot : slab->slots) {
    if (slot.owner != kOwnerNone) owners->push_back(slot.owner);
  }
}

void NvmeTier::Tick() {
  State& s = *state_;
  s.LookForStuck();
  s.BeginProbes();
  for (State::DiskState& disk : s.disks) disk.is_table_resting = false;
  s.Pump();
  s.LookAfterAll();
  s.BeginSyncs();
  s.StepTrials();
  s.GiveUpTrialWaiters();
  for (State::DiskState& disk : s.disks) disk.disk->Flush();
}

TierStats NvmeTier::stats() const {
  TierStats stats = state_->totals;
  stats.capacity_bytes = RoundDown(state_->options.capacity_bytes, state_->options.slab_bytes);
  stats.is_healthy = state_->is_any_disk_on();
  return stats;
}

bool NvmeTier::is_quiet() const {
  return state_->totals.transfers_in_flight == 0 && !has_erasures_pending() &&
         std::ranges::all_of(state_->slabs, [](const auto& slab) {
           return slab == nullptr || slab->work_count == 0;
         });
}

void NvmeTier::OnCataloged(uint32_t slab, uint32_t slot) {
  state_->OnCataloged(slab, slot);
  state_->Pump();
}

void NvmeTier::OnDiskDone(uint64_t tag, Status status) {
  State& s = *state_;
  TERRACE_CHECK(tag < s.requests.size() && s.requests[tag].is_live, "a request is answered once");
  const State::Request request = s.requests[tag];
  s.requests[tag].is_live = false;
  s.free_requests.push_back(static_cast<uint32_t>(tag));
  State::DiskState& disk = s.disks[request.disk];
  --disk.requests_in_flight;
  const bool is_full = status.code() == StatusCode::kIo && status.detail() == ENOSPC;
  if (request.kind != State::RequestKind::kProbe && !is_full) {
    disk.health.OnOutcome(status, s.Now());
  }
  switch (request.kind) {
    case State::RequestKind::kRead:
    case State::RequestKind::kWrite:
      s.OnTransferDone(request, status);
      break;
    case State::RequestKind::kEntry:
      s.OnEntryDone(request, status);
      break;
    case State::RequestKind::kSync:
      s.OnSyncDone(request, status);
      break;
    case State::RequestKind::kSlabStep:
      s.OnStepDone(request, status);
      break;
    case State::RequestKind::kProbe:
      s.OnProbeDone(request, status);
      break;
    case State::RequestKind::kTrial:
      s.OnTrialDone(request, status);
      break;
  }
  s.Pump();
}

}  // namespace terrace

#include "tiers/nvme/slot_trials.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "terrace/check.h"
#include "tiers/disk/left_behind.h"

namespace terrace {
namespace {

// Other bytes at each place of each trial (splitmix64 of the word's number).
void FillChunk(uint64_t seed, uint64_t offset_bytes, std::span<std::byte> chunk) {
  for (size_t at = 0; at < chunk.size(); at += sizeof(uint64_t)) {
    uint64_t word = seed + (offset_bytes + at) / sizeof(uint64_t) * 0x9E3779B97F4A7C15;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
    word ^= word >> 31;
    std::memcpy(&chunk[at], &word, sizeof(word));
  }
}

bool IsChunk(uint64_t seed, uint64_t offset_bytes, std::span<const std::byte> chunk) {
  std::array<std::byte, kSlabSectorBytes> expected;
  for (size_t at = 0; at < chunk.size(); at += expected.size()) {
    FillChunk(seed, offset_bytes + at, expected);
    if (std::memcmp(&chunk[at], expected.data(), expected.size()) != 0) return false;
  }
  return true;
}

}  // namespace

SlotTrials::SlotTrials(std::function<uint64_t()> random, const Neighbours& neighbours)
    : random_(std::move(random)),
      disks_(neighbours.disks),
      slabs_(neighbours.slabs),
      classes_(neighbours.classes),
      entries_(neighbours.entries),
      lifecycle_(neighbours.lifecycle),
      syncs_(neighbours.syncs),
      reports_(neighbours.reports) {}

SlotTrials::~SlotTrials() {
  if (is_in_flight_) LeaveBehind(std::move(bytes_));
}

void SlotTrials::Suspect(NvmeSlab& slab, uint32_t slot) {
  TERRACE_CHECK(slab.slots[slot].owner == kOwnerNone, "nobody's bytes are overwritten by a trial");
  slab.slots.SetState(slot, SlabSlotState::kSuspect);
  entries_.MarkDirty(slab, slot);
}

void SlotTrials::TryQuarantined(NvmeSlab& slab, uint32_t slot, Done done) {
  TERRACE_CHECK(slab.slots[slot].state == SlabSlotState::kQuarantined, "the slot is out of use");
  waiters_[PlaceOf(slab.index, slot)].push_back(std::move(done));
  slab.slots.EndGeneration(slot);
  Suspect(slab, slot);
}

void SlotTrials::Add(const NvmeSlab& slab, uint32_t slot) {
  suspects_.push_back(PlaceOf(slab.index, slot));
  Step();
}

void SlotTrials::Step() {
  if (is_under_way_) return;
  for (size_t left = suspects_.size(); left > 0 && !is_under_way_; --left) {
    const uint64_t place = suspects_.front();
    suspects_.pop_front();
    NvmeSlab* const slab = slabs_.At(SlabOf(place));
    const uint32_t slot = SlotOf(place);
    if (slab == nullptr || slot >= slab->slots.count() ||
        slab->slots[slot].state != SlabSlotState::kSuspect) {
      continue;
    }
    if (slab->is_gone) {
      EndSuspect(*slab, slot, Verdict::kBad);
    } else if (!disks_.is_on(slab->disk) || slab->slots[slot].has(kEntryDirty | kEntryInFlight)) {
      suspects_.push_back(place);  // at another Tick
      Tell(place, false);
    } else {
      Begin(place);
    }
  }
}

void SlotTrials::Begin(uint64_t place) {
  if (bytes_ == nullptr) bytes_ = AllocateAligned(kTrialChunkBytes);
  is_under_way_ = true;
  stage_ = Stage::kWrites;
  place_ = place;
  seed_ = random_();
  offset_bytes_ = 0;
  StepTrial();
}

void SlotTrials::StepTrial() {
  const uint32_t slot = SlotOf(place_);
  const NvmeSlab& slab = slabs_[SlabOf(place_)];
  TERRACE_CHECK(slab.slots[slot].state == SlabSlotState::kSuspect && !is_in_flight_,
                "only what nobody has is overwritten");
  chunk_bytes_ = std::min(kTrialChunkBytes, slab.slot_bytes() - offset_bytes_);
  const std::span<std::byte> chunk(bytes_.get(), chunk_bytes_);
  DiskRequest request{.file = slab.file,
                      .offset_bytes = slab.geometry.PayloadOffsetBytes(slot) + offset_bytes_};
  switch (stage_) {
    case Stage::kWrites:
      request.op = DiskOp::kWrite;
      FillChunk(seed_, offset_bytes_, chunk);
      request.from = chunk;
      break;
    case Stage::kSyncs:
      request.op = DiskOp::kSync;
      break;
    case Stage::kReads:
      request.op = DiskOp::kRead;
      request.into = chunk;
      break;
  }
  const Status status = disks_.Submit(
      {.kind = NvmeRequestKind::kTrial, .disk = slab.disk, .slab = slab.index, .slot = slot},
      request);
  if (!status.ok()) return End(Verdict::kLater);
  is_in_flight_ = true;
}

bool SlotTrials::IsNoVerdict(const NvmeSlab& slab, Status status) const {
  return status.code() == StatusCode::kBusy ||
         (status.code() == StatusCode::kIo && status.detail() == ENOSPC) ||
         !disks_.is_on(slab.disk);
}

void SlotTrials::OnTrialDone(const NvmeRequest& request, Status status) {
  TERRACE_CHECK(is_in_flight_ && PlaceOf(request.slab, request.slot) == place_,
                "one slot is tried at a time");
  is_in_flight_ = false;
  NvmeSlab& slab = slabs_[request.slab];
  // The kernel reports a failed sync once, whoever asked for it.
  if (!status.ok() && stage_ == Stage::kSyncs) {
    if (status.code() == StatusCode::kNotFound) {
      lifecycle_.GiveUp(slab);
    } else if (status.code() != StatusCode::kBusy) {
      syncs_.LoseUnsynced(slab);
    }
  }
  if (slab.is_gone) return End(Verdict::kBad);
  if (!status.ok()) return End(IsNoVerdict(slab, status) ? Verdict::kLater : Verdict::kBad);
  if (stage_ == Stage::kReads && !IsChunk(seed_, offset_bytes_, {bytes_.get(), chunk_bytes_})) {
    return End(Verdict::kBad);
  }
  Advance(slab);
}

void SlotTrials::Advance(const NvmeSlab& slab) {
  if (stage_ != Stage::kSyncs) offset_bytes_ += chunk_bytes_;
  const bool is_stage_over = stage_ == Stage::kSyncs || offset_bytes_ == slab.slot_bytes();
  if (is_stage_over && stage_ == Stage::kReads) return End(Verdict::kSound);
  if (is_stage_over) {
    stage_ = stage_ == Stage::kWrites ? Stage::kSyncs : Stage::kReads;
    offset_bytes_ = 0;
  }
  StepTrial();
}

void SlotTrials::End(Verdict verdict) {
  is_under_way_ = false;
  const uint64_t place = place_;
  if (verdict == Verdict::kLater) {
    suspects_.push_back(place);  // at the next Tick
    return Tell(place, false);
  }
  EndSuspect(slabs_[SlabOf(place)], SlotOf(place), verdict);
  Step();
}

void SlotTrials::EndSuspect(NvmeSlab& slab, uint32_t slot, Verdict verdict) {
  const uint64_t place = PlaceOf(slab.index, slot);
  const bool is_sound = verdict == Verdict::kSound;
  if (!is_sound) {
    slab.slots.SetState(slot, SlabSlotState::kQuarantined);
    entries_.MarkDirty(slab, slot);
    lifecycle_.LookAfter(slab);
  } else if (slab.slots[slot].has(kEntryDirty | kEntryInFlight)) {
    classes_.Erase(slab, slot);
  } else {
    lifecycle_.FreeSlot(slab, slot);
  }
  if (is_sound) ++recovered_count_;
  Tell(place, is_sound);
  reports_.OfferRoom();
}

void SlotTrials::GiveUpWaiters() {
  std::vector<uint64_t> places;
  for (const auto& [place, waiters] : waiters_) {
    const NvmeSlab* const slab = slabs_.At(SlabOf(place));
    if (slab == nullptr || !disks_.is_on(slab->disk)) places.push_back(place);
  }
  for (const uint64_t place : places) Tell(place, false);
}

void SlotTrials::Tell(uint64_t place, bool is_free) {
  const auto found = waiters_.find(place);
  if (found == waiters_.end()) return;
  const std::vector<Done> waiters = std::move(found->second);
  waiters_.erase(found);
  for (const Done& done : waiters) done(is_free);
}

}  // namespace terrace

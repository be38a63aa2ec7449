// Slots whose bytes did not verify. That says nothing yet of the drive: a writer may have changed
// the bytes under way, memory may have. So each is tried: filled with what nobody could guess,
// synced, read back. A slot that keeps it is free again; one that does not is quarantined.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "terrace/check.h"
#include "tiers/nvme/nvme_tier_state.h"

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

// Until it is tried its entry says that it is free: a daemon that ends meanwhile has lost nothing.
void NvmeTier::State::Suspect(NvmeSlab& slab, uint32_t slot) {
  slab.SetState(slot, SlabSlotState::kSuspect);
  totals.suspect_bytes += slab.geometry.shape.slot_bytes;
  MarkDirty(slab, slot);
}

void NvmeTier::State::StepTrials() {
  if (trial.is_under_way) return;
  for (size_t left = suspects.size(); left > 0 && !trial.is_under_way; --left) {
    const uint64_t place = suspects.front();
    suspects.pop_front();
    NvmeSlab* const slab = SlabAt(static_cast<uint32_t>(place >> 32));
    const auto slot = static_cast<uint32_t>(place);
    if (slab == nullptr || slot >= slab->slots.size() ||
        slab->slots[slot].state != SlabSlotState::kSuspect) {
      continue;
    }
    if (slab->is_gone) {
      EndSuspect(*slab, slot, TrialVerdict::kBad);
    } else if (!disks[slab->disk].health.is_on() ||
               (slab->slots[slot].flags & (kEntryDirty | kEntryInFlight)) != 0) {
      suspects.push_back(place);  // at another Tick
      TellTried(place, false);
    } else {
      if (trial.bytes == nullptr) trial.bytes = AllocateAligned(kTrialChunkBytes);
      trial.is_under_way = true;
      trial.step = Trial::Step::kWrites;
      trial.place = place;
      trial.seed = options.random();
      trial.offset_bytes = 0;
      StepTrial();
    }
  }
}

void NvmeTier::State::StepTrial() {
  const auto slot = static_cast<uint32_t>(trial.place);
  const NvmeSlab& slab = *slabs[trial.place >> 32];
  trial.chunk_bytes =
      std::min(kTrialChunkBytes, slab.geometry.shape.slot_bytes - trial.offset_bytes);
  const std::span<std::byte> chunk(trial.bytes.get(), trial.chunk_bytes);
  DiskRequest request{.file = slab.file,
                      .offset_bytes = slab.geometry.PayloadOffsetBytes(slot) + trial.offset_bytes};
  switch (trial.step) {
    case Trial::Step::kWrites:
      request.op = DiskOp::kWrite;
      FillChunk(trial.seed, trial.offset_bytes, chunk);
      request.from = chunk;
      break;
    case Trial::Step::kSyncs:
      request.op = DiskOp::kSync;
      break;
    case Trial::Step::kReads:
      request.op = DiskOp::kRead;
      request.into = chunk;
      break;
  }
  const Status status = Submit(
      {.kind = RequestKind::kTrial, .disk = slab.disk, .slab = slab.index, .slot = slot}, request);
  if (!status.ok()) return EndTrial(TrialVerdict::kLater);
  trial.is_in_flight = true;
}

void NvmeTier::State::OnTrialDone(const Request& request, Status status) {
  trial.is_in_flight = false;
  NvmeSlab& slab = *slabs[request.slab];
  // The kernel reports a failed sync once, whoever asked for it.
  if (!status.ok() && trial.step == Trial::Step::kSyncs) {
    if (status.code() == StatusCode::kNotFound) {
      GiveUpSlab(slab);
    } else if (status.code() != StatusCode::kBusy) {
      LoseUnsynced(slab);
    }
  }
  if (slab.is_gone) return EndTrial(TrialVerdict::kBad);
  const bool is_later = status.code() == StatusCode::kBusy ||
                        (status.code() == StatusCode::kIo && status.detail() == ENOSPC) ||
                        !disks[slab.disk].health.is_on();
  if (!status.ok()) return EndTrial(is_later ? TrialVerdict::kLater : TrialVerdict::kBad);
  if (trial.step == Trial::Step::kReads &&
      !IsChunk(trial.seed, trial.offset_bytes, {trial.bytes.get(), trial.chunk_bytes})) {
    return EndTrial(TrialVerdict::kBad);
  }
  if (trial.step != Trial::Step::kSyncs) trial.offset_bytes += trial.chunk_bytes;
  const bool is_step_over =
      trial.step == Trial::Step::kSyncs || trial.offset_bytes == slab.geometry.shape.slot_bytes;
  if (is_step_over && trial.step == Trial::Step::kReads) return EndTrial(TrialVerdict::kSound);
  if (is_step_over) {
    trial.step = trial.step == Trial::Step::kWrites ? Trial::Step::kSyncs : Trial::Step::kReads;
    trial.offset_bytes = 0;
  }
  StepTrial();
}

void NvmeTier::State::EndTrial(TrialVerdict verdict) {
  trial.is_under_way = false;
  const uint64_t place = trial.place;
  if (verdict == TrialVerdict::kLater) {
    suspects.push_back(place);  // at the next Tick
    return TellTried(place, false);
  }
  EndSuspect(*slabs[place >> 32], static_cast<uint32_t>(place), verdict);
  StepTrials();
}

void NvmeTier::State::EndSuspect(NvmeSlab& slab, uint32_t slot, TrialVerdict verdict) {
  const uint64_t slot_bytes = slab.geometry.shape.slot_bytes;
  const uint64_t place = PlaceOf(slab.index, slot);
  totals.suspect_bytes -= slot_bytes;
  const bool is_sound = verdict == TrialVerdict::kSound;
  if (!is_sound) {
    slab.SetState(slot, SlabSlotState::kQuarantined);
    totals.quarantined_bytes += slot_bytes;
    MarkDirty(slab, slot);
    LookAfter(slab);
  } else if ((slab.slots[slot].flags & (kEntryDirty | kEntryInFlight)) != 0) {
    EraseSlot(slab, slot);
  } else {
    FreeSlot(slab, slot);
  }
  if (is_sound) ++totals.places_recovered;
  TellTried(place, is_sound);
  GiveRoom();
}

// A trial waits for its disk as long as that takes; who asked for it does not.
void NvmeTier::State::GiveUpTrialWaiters() {
  std::vector<uint64_t> places;
  for (const auto& [place, waiters] : trial_waiters) {
    const NvmeSlab* const slab = SlabAt(static_cast<uint32_t>(place >> 32));
    if (slab == nullptr || !disks[slab->disk].health.is_on()) places.push_back(place);
  }
  for (const uint64_t place : places) TellTried(place, false);
}

void NvmeTier::State::TellTried(uint64_t place, bool is_free) {
  const auto found = trial_waiters.find(place);
  if (found == trial_waiters.end()) return;
  const auto waiters = std::move(found->second);
  trial_waiters.erase(found);
  for (const auto& done : waiters) done(is_free);
}

void NvmeTier::TryQuarantined(uint32_t index, uint32_t slot,
                              std::function<void(bool is_free)> done) {
  State& s = *state_;
  NvmeSlab* const slab = s.SlabAt(index);
  if (slab == nullptr || slot >= slab->slots.size() || slab->IsUnread(slot) ||
      slab->slots[slot].state != SlabSlotState::kQuarantined) {
    return done(false);
  }
  s.trial_waiters[State::PlaceOf(index, slot)].push_back(std::move(done));
  s.totals.quarantined_bytes -= slab->geometry.shape.slot_bytes;
  ++slab->slots[slot].generation;
  s.Suspect(*slab, slot);
  s.Pump();
}

}  // namespace terrace

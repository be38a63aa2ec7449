// Disks that fail, hang, and come back.
#include <algorithm>
#include <cstring>
#include <utility>

#include "terrace/check.h"
#include "tiers/nvme/nvme_tier_state.h"

namespace terrace {
namespace {

// A probe goes to the drive and back: the write through the page cache, the read past it.
enum ProbeStep : uint32_t { kProbeWrites, kProbeSyncs, kProbeReads };

}  // namespace

void NvmeTier::State::LookForStuck() {
  totals.stuck_transfers = 0;
  for (Request& request : requests) {
    if (!request.is_live || Now() - request.begun_us <= options.stuck_us) continue;
    ++totals.stuck_transfers;
    // Once: a request that never ends costs its slot and its memory, not the disk for good.
    if (!std::exchange(request.is_stuck, true)) disks[request.disk].health.SwitchOff(Now());
  }
}

void NvmeTier::State::BeginProbes() {
  for (uint32_t index = 0; index < disks.size(); ++index) {
    DiskState& disk = disks[index];
    if (disk.is_probe_in_flight || !disk.health.TakeProbeTurn(Now())) continue;
    const auto slab = std::ranges::find_if(slabs, [&](const auto& candidate) {
      return candidate != nullptr && candidate->disk == index && candidate->is_readable() &&
             !candidate->is_gone;
    });
    if (slab == slabs.end()) {  // nowhere to try: making a slab will be the probe
      EndProbe(index, Status::Ok());
      continue;
    }
    disk.probe_slab = (*slab)->index;
    disk.probe_step = kProbeWrites;
    for (size_t at = 0; at < disk.probe_nonce.size(); at += sizeof(uint64_t)) {
      const uint64_t word = options.random();
      std::memcpy(&disk.probe_nonce[at], &word, sizeof(word));
    }
    disk.is_probe_in_flight = true;
    StepProbe(index);
  }
}

void NvmeTier::State::StepProbe(uint32_t index) {
  DiskState& disk = disks[index];
  DiskRequest step{.file = slabs[disk.probe_slab]->file};
  switch (disk.probe_step) {
    case kProbeWrites:
      step.op = DiskOp::kWriteTable;
      step.offset_bytes = kSlabProbeOffsetBytes;
      step.from = disk.probe_nonce;
      break;
    case kProbeSyncs:
      step.op = DiskOp::kSync;
      break;
    default:
      step.op = DiskOp::kRead;
      step.into = {disk.probe_sector.get(), kSlabSectorBytes};
  }
  const Status status =
      Submit({.kind = RequestKind::kProbe, .disk = index, .slab = disk.probe_slab}, step);
  if (!status.ok()) EndProbe(index, status);
}

void NvmeTier::State::OnProbeDone(const Request& request, Status status) {
  DiskState& disk = disks[request.disk];
  // The kernel reports a failed sync once, whoever asked for it.
  if (!status.ok() && disk.probe_step == kProbeSyncs) {
    NvmeSlab& slab = *slabs[disk.probe_slab];
    status.code() == StatusCode::kNotFound ? GiveUpSlab(slab) : LoseUnsynced(slab);
  }
  if (status.ok() && disk.probe_step == kProbeReads &&
      std::memcmp(disk.probe_sector.get() + kSlabProbeOffsetBytes, disk.probe_nonce.data(),
                  disk.probe_nonce.size()) != 0) {
    status = Status(StatusCode::kCorrupt, "the probe read something else than it wrote");
  }
  if (!status.ok() || disk.probe_step == kProbeReads) return EndProbe(request.disk, status);
  ++disk.probe_step;
  StepProbe(request.disk);
}

void NvmeTier::State::EndProbe(uint32_t index, Status status) {
  disks[index].is_probe_in_flight = false;
  disks[index].health.OnProbe(status);
  if (!status.ok()) return;
  is_room_wanted = true;
  GiveRoom();
}

}  // namespace terrace

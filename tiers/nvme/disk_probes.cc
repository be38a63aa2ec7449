#include "tiers/nvme/disk_probes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "terrace/check.h"
#include "tiers/disk/left_behind.h"

namespace terrace {

DiskProbes::DiskProbes(std::function<uint64_t()> random, const Neighbours& neighbours)
    : random_(std::move(random)),
      disks_(neighbours.disks),
      slabs_(neighbours.slabs),
      lifecycle_(neighbours.lifecycle),
      syncs_(neighbours.syncs),
      reports_(neighbours.reports),
      probes_(neighbours.disks.count()) {
  for (Probe& probe : probes_) probe.sector = AllocateAligned(kSlabSectorBytes);
}

DiskProbes::~DiskProbes() {
  for (Probe& probe : probes_) {
    // The drive may still write there: the memory is its own for good.
    if (probe.is_in_flight) LeaveBehind(std::move(probe.sector));
  }
}

const NvmeSlab* DiskProbes::SlabToProbe(uint32_t disk) const {
  const auto found = std::ranges::find_if(slabs_.all(), [&](const auto& slab) {
    return slab != nullptr && slab->disk == disk && slab->is_readable() && !slab->is_gone;
  });
  return found == slabs_.all().end() ? nullptr : found->get();
}

void DiskProbes::BeginDue() {
  for (uint32_t disk = 0; disk < disks_.count(); ++disk) {
    Probe& probe = probes_[disk];
    if (probe.is_in_flight || !disks_.TakeProbeTurn(disk)) continue;
    const NvmeSlab* const slab = SlabToProbe(disk);
    if (slab == nullptr) {
      End(disk, Status::Ok());
      continue;
    }
    probe.slab = slab->index;
    probe.stage = Stage::kWrites;
    for (size_t at = 0; at < probe.nonce.size(); at += sizeof(uint64_t)) {
      const uint64_t word = random_();
      std::memcpy(&probe.nonce[at], &word, sizeof(word));
    }
    probe.is_in_flight = true;
    Step(disk);
  }
}

void DiskProbes::Step(uint32_t disk) {
  Probe& probe = probes_[disk];
  DiskRequest step{.file = slabs_[probe.slab].file};
  switch (probe.stage) {
    case Stage::kWrites:
      step.op = DiskOp::kWriteTable;
      step.offset_bytes = kSlabProbeOffsetBytes;
      step.from = probe.nonce;
      break;
    case Stage::kSyncs:
      step.op = DiskOp::kSync;
      break;
    case Stage::kReads:
      step.op = DiskOp::kRead;
      step.into = {probe.sector.get(), kSlabSectorBytes};
      break;
  }
  const Status status =
      disks_.Submit({.kind = NvmeRequestKind::kProbe, .disk = disk, .slab = probe.slab}, step);
  if (!status.ok()) End(disk, status);
}

void DiskProbes::OnProbeDone(const NvmeRequest& request, Status status) {
  Probe& probe = probes_[request.disk];
  TERRACE_CHECK(probe.is_in_flight, "a disk is probed by one request at a time");
  // The kernel reports a failed sync once, whoever asked for it.
  if (!status.ok() && probe.stage == Stage::kSyncs) {
    NvmeSlab& slab = slabs_[probe.slab];
    status.code() == StatusCode::kNotFound ? lifecycle_.GiveUp(slab) : syncs_.LoseUnsynced(slab);
  }
  if (status.ok() && probe.stage == Stage::kReads &&
      std::memcmp(probe.sector.get() + kSlabProbeOffsetBytes, probe.nonce.data(),
                  probe.nonce.size()) != 0) {
    status = Status(StatusCode::kCorrupt, "the probe read something else than it wrote");
  }
  if (!status.ok() || probe.stage == Stage::kReads) return End(request.disk, status);
  probe.stage = probe.stage == Stage::kWrites ? Stage::kSyncs : Stage::kReads;
  Step(request.disk);
}

void DiskProbes::End(uint32_t disk, Status status) {
  probes_[disk].is_in_flight = false;
  disks_.OnProbe(disk, status);
  if (!status.ok()) return;
  reports_.WantRoom();
  reports_.OfferRoom();
}

}  // namespace terrace

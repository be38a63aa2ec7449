// DiskProbes: a disk that was switched off is tried now and then: a word goes to the drive and
// back, the write through the page cache, the read past it. Where no slab lies on the disk, making
// one will be the probe.
//
// THREADING: the store thread. OWNERSHIP: its neighbours outlive it. What the drive may still write
// to when it goes stays (LeaveBehind).
// LIMITS: one probe a disk at a time, begun at most once a DiskHealth::Options::probe_interval_us.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "tiers/nvme/aligned_bytes.h"
#include "tiers/nvme/slab_syncs.h"

namespace terrace {

class DiskProbes {
 public:
  struct Neighbours {
    NvmeDisks& disks;
    SlabSet& slabs;
    SlabLifecycle& lifecycle;
    SlabSyncs& syncs;
    TierReports& reports;
  };
  DiskProbes(std::function<uint64_t()> random, const Neighbours& neighbours);
  ~DiskProbes();

  // Probes the disks whose turn it is.
  void BeginDue();
  void OnProbeDone(const NvmeRequest& request, Status status);

 private:
  enum class Stage : uint8_t { kWrites, kSyncs, kReads };
  struct Probe {
    bool is_in_flight = false;
    Stage stage = Stage::kWrites;
    uint32_t slab = 0;
    std::array<std::byte, kSlabProbeBytes> nonce{};
    AlignedBytes sector;
  };

  // Null: none of the disk can be written to.
  const NvmeSlab* SlabToProbe(uint32_t disk) const;
  void Step(uint32_t disk);
  void End(uint32_t disk, Status status);

  const std::function<uint64_t()> random_;
  NvmeDisks& disks_;
  SlabSet& slabs_;
  SlabLifecycle& lifecycle_;
  SlabSyncs& syncs_;
  TierReports& reports_;
  std::vector<Probe> probes_;  // by disk
};

}  // namespace terrace

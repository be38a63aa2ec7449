// SlabSyncs: when what was written to a slab is known to be on the drive. Each slab is synced a
// while after something was written to it. After a sync that failed nothing written since the last
// good one is believed.
//
// THREADING: the store thread. OWNERSHIP: its neighbours outlive it.
// LIMITS: one sync a slab at a time, begun at most once an interval.
// INVARIANT: an erasure ends only after a good sync that began behind the write of its entry.
#pragma once

#include <cstdint>

#include "tiers/nvme/slab_lifecycle.h"

namespace terrace {

class SlabSyncs {
 public:
  struct Neighbours {
    NvmeDisks& disks;
    SlabSet& slabs;
    EntryWriter& entries;
    ErasureLog& erasures;
    SlabLifecycle& lifecycle;
    TierReports& reports;
  };
  SlabSyncs(uint64_t interval_us, const Neighbours& neighbours);

  // Begins those that are due.
  void BeginDue();
  void OnSyncDone(const NvmeRequest& request, Status status);

  // A sync of the slab's file failed, whoever asked for it: the kernel says so once, calls the
  // pages clean, and may forget them. Entries are written anew; blocks are given up, because
  // neither their bytes nor what their entries said is in memory any more.
  void LoseUnsynced(NvmeSlab& slab);

 private:
  void DoubtAll(NvmeSlab& slab);

  const uint64_t interval_us_;
  NvmeDisks& disks_;
  SlabSet& slabs_;
  EntryWriter& entries_;
  ErasureLog& erasures_;
  SlabLifecycle& lifecycle_;
  TierReports& reports_;
};

}  // namespace terrace

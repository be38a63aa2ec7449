// SlabLifecycle: how slabs are made, take another shape, and go. Nothing here waits: each step is a
// request, and LookAfterAll begins again what could not begin.
//
// THREADING: the store thread. OWNERSHIP: its neighbours outlive it. What the drive may still read
// when it goes stays (LeaveBehind).
// LIMITS: the domain's share of the tier counts whole slab files, also those left alone; one step a
// slab at a time, and few slabs at once on their way to other domains.
// INVARIANT: whatever a loss of power leaves, no bytes of an old shape are taken for entries.
#pragma once

#include <cstdint>
#include <functional>

#include "tiers/nvme/aligned_bytes.h"
#include "tiers/nvme/entry_writer.h"
#include "tiers/nvme/erasure_log.h"
#include "tiers/nvme/shape_classes.h"
#include "tiers/nvme/tier_reports.h"
#include "tiers/tier_shares.h"

namespace terrace {

inline constexpr uint64_t kDrainUs = 30'000'000;  // then a draining slab takes blocks again
inline constexpr uint64_t kClearChunkBytes = 256 * kKiB;

class SlabLifecycle {
 public:
  static constexpr uint32_t kLeavingSlotsMax = 1024;
  struct Options {
    DomainSecret secret{};
    uint32_t domain_index = 0;  // in the shares
    uint64_t slab_bytes = 0;
    std::function<uint64_t()> random;  // of slab uuids
  };
  struct Neighbours {
    NvmeDisks& disks;
    SlabSet& slabs;
    ShapeClasses& classes;
    EntryWriter& entries;
    ErasureLog& erasures;
    TierReports& reports;
    TierShares& shares;
  };
  SlabLifecycle(Options options, const Neighbours& neighbours);
  ~SlabLifecycle();

  // True if room of the shape is on its way, or is from now on, be it from other domains.
  bool MakeRoom(ShapeClass& shape_class);
  // A slot of the shape was taken: makes the next slab before the last slot is gone, and one on
  // each disk while there is plenty.
  void GrowAhead(ShapeClass& shape_class);
  // The slab whose owners give room to the shape; null if single blocks should go instead.
  const NvmeSlab* DrainFor(const ShapeClass& shape_class);
  // Owners that still hold a slab that goes this way, kLeavingSlotsMax slots a call. False: there
  // was none, or the end was reached, and the next call begins at the beginning.
  bool AppendLeaving(SlabWay way, std::vector<uint32_t>* owners);
  // What slabs that go still hold is given, not moved.
  void GiveUpMoving();

  // The slot is nobody's and its entry says so: → kFree.
  void FreeSlot(NvmeSlab& slab, uint32_t slot);
  // Its file is gone: what it holds is given up, its owners are among those that leave, and it goes
  // when nobody has a slot any more. Its bytes no longer count, so that another slab may come at
  // once.
  void GiveUp(NvmeSlab& slab);

  // The slab's next step, if it is time. The slab may be gone afterwards.
  void LookAfter(NvmeSlab& slab);
  void LookAfterAll();
  void OnStepDone(const NvmeRequest& request, Status status);

 private:
  bool BeginCreate(ShapeClass& shape_class);
  bool BeginReshape(ShapeClass& shape_class);
  bool IsDrainedFor(const ShapeClass& shape_class) const;
  uint64_t now_us() const { return disks_.now_us(); }
  void GiveBack();
  NvmeSlab* NextToGive() const;
  uint64_t CountLeaving();
  // A slab that goes this way, and whose owners still hold it, the first from an index on; null:
  // there is none.
  const NvmeSlab* Leaving(SlabWay way, uint32_t first_index) const;
  void StartReshape(NvmeSlab& slab);
  DiskRequest NextStep(NvmeSlab& slab);
  void SealSuperblock(NvmeSlab& slab, const SlabShape& shape, const SlabUuid& uuid);
  void Step(NvmeSlab& slab);
  void OnStepFailed(NvmeSlab& slab);
  void Finish(NvmeSlab& slab);
  void FinishClearing(NvmeSlab& slab);
  void Forget(NvmeSlab& slab);

  const Options options_;
  NvmeDisks& disks_;
  SlabSet& slabs_;
  ShapeClasses& classes_;
  EntryWriter& entries_;
  ErasureLog& erasures_;
  TierReports& reports_;
  TierShares& shares_;
  AlignedBytes zeros_;
  // Where AppendLeaving goes on, by SlabWay.
  struct Place {
    uint32_t slab = 0;
    uint32_t slot = 0;
  };
  Place leaving_[2];
};

}  // namespace terrace

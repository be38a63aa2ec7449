// The inside of NvmeTier, shared by its sources:
//   nvme_tier.cc          the Tier interface, transfers and completions
//   nvme_tier_table.cc    entries: written, retried, synced, told to the catalog
//   nvme_tier_slabs.cc    slabs: made, reshaped, drained, removed
//   nvme_tier_health.cc   disks: stuck requests, probes
//   nvme_tier_trial.cc    slots that were read wrong: written, and read back
//   nvme_tier_restore.cc  what outlived the last daemon
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "tiers/disk/disk_health.h"
#include "tiers/nvme/nvme_slab.h"
#include "tiers/nvme/nvme_tier.h"

namespace terrace {

// LIMITS, beside those of Options.
inline constexpr uint32_t kSlabIndexMax = 65'535;
inline constexpr uint32_t kShapesMax = 1024;         // with slabs, at a time
inline constexpr uint32_t kEntriesHeldMax = 16'384;  // written payload waiting for its entry
inline constexpr uint64_t kDrainUs = 30'000'000;     // then a draining slab takes blocks again
inline constexpr uint64_t kClearChunkBytes = 256 * kKiB;
inline constexpr size_t kUnreadSectorsMax =
    64;  // of a table; where there are more nothing is cleared
inline constexpr uint32_t kClearAttemptsMax = 3;
inline constexpr uint64_t kTrialChunkBytes = 256 * kKiB;  // compared in one turn

struct FreeAligned {
  void operator()(std::byte* bytes) const;
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeAligned>;
AlignedBytes AllocateAligned(uint64_t length_bytes);

struct NvmeTier::State final {
  enum class RequestKind : uint8_t { kRead, kWrite, kEntry, kSync, kSlabStep, kProbe, kTrial };
  struct Request {
    RequestKind kind = RequestKind::kRead;
    bool is_live = false;
    uint32_t disk = 0;
    uint32_t slab = 0;
    uint32_t slot = 0;
    TransferId transfer_id = 0;
    uint64_t length_bytes = 0;
    uint64_t behind_bytes = 0;  // in flight on the disk when it began, itself included
    uint64_t begun_us = 0;
    bool is_stuck = false;  // too old, and its disk was switched off for it
  };
  struct DiskState {
    explicit DiskState(Disk* the_disk, const DiskHealth::Options& options)
        : disk(the_disk), health(options) {}
    Disk* disk;
    DiskHealth health;
    uint64_t bytes_in_flight = 0;
    uint64_t requests_in_flight = 0;
    uint64_t slab_bytes = 0;  // of files, those left alone included
    std::deque<uint64_t>
        dirty_entries;              // PlaceOf; each slot with kEntryDirty that is not in flight
    bool is_table_resting = false;  // an entry failed: again at the next Tick
    bool is_probe_in_flight = false;
    uint32_t probe_slab = 0;
    uint32_t probe_step = 0;
    std::array<std::byte, kSlabProbeBytes> probe_nonce{};
    AlignedBytes probe_sector;
  };
  // Slabs of one shape.
  struct ShapeClass {
    struct OnDisk {
      std::deque<uint32_t> open;  // active slabs with free slots, by turns
      uint64_t free_count = 0;    // in active slabs
      uint64_t erasing_count = 0;
      uint32_t slab_count = 0;    // active
      uint32_t coming_count = 0;  // being made or reshaped
    };
    SlabGeometry geometry;  // of a new slab
    std::vector<OnDisk> on_disk;
    uint32_t slab_count = 0;  // active
    uint32_t last_disk = 0;
    bool is_wanting = false;  // asked in vain
  };
  // A used entry that is not yet written, and what its owner is told when it is.
  struct HeldEntry {
    std::vector<std::byte> bytes;  // empty: written
    CommitId commit_id = 0;
    uint16_t member = 0;
    bool is_announcing = false;
  };
  // One suspect slot: all of it is written, synced, and read back, a chunk at a time.
  struct Trial {
    enum class Step : uint8_t { kWrites, kSyncs, kReads };
    bool is_under_way = false;
    bool is_in_flight = false;
    Step step = Step::kWrites;
    uint64_t place = 0;         // PlaceOf
    uint64_t seed = 0;          // of what is written
    uint64_t offset_bytes = 0;  // of the chunk
    uint64_t chunk_bytes = 0;
    AlignedBytes bytes;  // kTrialChunkBytes, from the first trial on
  };
  // What other threads may know of a slab.
  struct SlabPlace {
    Disk* disk = nullptr;
    DiskFile file = kDiskFileNone;
    SlabGeometry geometry;
    SlabUuid uuid;
  };

  explicit State(Options the_options);

  // ---- nvme_tier.cc ----
  uint64_t Now() const { return options.now_us(); }
  static uint64_t PlaceOf(uint32_t slab, uint32_t slot) { return uint64_t{slab} << 32 | slot; }
  NvmeSlab* SlabAt(uint32_t slab) { return slab < slabs.size() ? slabs[slab].get() : nullptr; }
  // Null unless the extent is the present use of a slot.
  SlabSlot* Find(const Extent& extent);
  bool is_any_disk_on() const;
  Status Submit(const Request& request, DiskRequest disk_request);
  Status BeginTransfer(const Request& request, const DiskRequest& disk_request);
  void OnTransferDone(const Request& request, Status status);
  void Release(const Extent& extent, SlabSlotState state);
  void Pump();
  void GiveRoom();  // OnRoom, if somebody asked in vain
  SlabEntry Describe(const Extent& extent, const BlockRecord& record) const;

  // ---- nvme_tier_table.cc ----
  void HoldEntry(const NvmeSlab& slab, uint32_t slot, const SlabEntry& entry, bool is_announcing);
  void DropHeld(uint64_t place);
  void MarkDirty(NvmeSlab& slab, uint32_t slot);
  void PumpEntries(uint32_t disk);
  Status WriteEntry(NvmeSlab& slab, uint32_t slot);
  void OnEntryDone(const Request& request, Status status);
  void OnEntrySettled(NvmeSlab& slab, uint32_t slot);
  void OnCataloged(uint32_t slab, uint32_t slot);
  void EndErasure(NvmeSlab& slab, uint32_t slot);
  void EndInheritedErasure(NvmeSlab& slab);
  void BeginSyncs();
  void OnSyncDone(const Request& request, Status status);
  void LoseUnsynced(NvmeSlab& slab);
  void DoubtAll(NvmeSlab& slab);

  // ---- nvme_tier_slabs.cc ----
  // kInvalid: no slab can hold the shape. kNoSpace: kShapesMax.
  Result<ShapeClass*> FindOrMakeClass(const SlabShape& shape);
  ShapeClass& ClassOf(const NvmeSlab& slab) { return classes.at(slab.geometry.shape); }
  NvmeSlab* PickSlab(ShapeClass& shape_class);
  uint32_t TakeSlotOf(NvmeSlab& slab);
  void GrowAhead(ShapeClass& shape_class);
  void OpenForBlocks(NvmeSlab& slab);
  void CloseForBlocks(NvmeSlab& slab);
  void EraseSlot(NvmeSlab& slab, uint32_t slot);  // → kErasing
  void FreeSlot(NvmeSlab& slab, uint32_t slot);   // → kFree
  // True if room of the shape is on its way.
  bool MakeRoom(ShapeClass& shape_class);
  bool IsRoomComing(const ShapeClass& shape_class) const;
  bool BeginCreate(ShapeClass& shape_class);
  bool BeginReshape(ShapeClass& shape_class);
  void StartReshape(NvmeSlab& slab);
  // The slab whose owners give room to the shape; null if single blocks should go instead.
  NvmeSlab* DrainFor(ShapeClass& shape_class);
  bool IsPoor(const ShapeClass& shape_class) const;
  NvmeSlab* EmptiestOfOthers(const ShapeClass& shape_class);
  void StepSlab(NvmeSlab& slab);
  DiskRequest NextStep(NvmeSlab& slab);
  void OnStepDone(const Request& request, Status status);
  void OnStepFailed(NvmeSlab& slab);
  void FinishSlab(NvmeSlab& slab);
  void FinishClearing(NvmeSlab& slab);
  void GiveUpSlab(NvmeSlab& slab);
  void ForgetSlab(NvmeSlab& slab);
  void LookAfter(NvmeSlab& slab);
  void LookAfterAll();
  uint64_t SlabBytesTotal() const;
  void PublishPlace(const NvmeSlab& slab);
  void WithdrawPlace(uint32_t slab);
  std::optional<SlabPlace> FindPlace(uint32_t slab) const;

  // ---- nvme_tier_health.cc ----
  void LookForStuck();  // and switches their disks off
  void BeginProbes();
  void StepProbe(uint32_t disk);
  void OnProbeDone(const Request& request, Status status);
  void EndProbe(uint32_t disk, Status status);

  // ---- nvme_tier_trial.cc ----
  void Suspect(NvmeSlab& slab, uint32_t slot);  // → kSuspect
  // Begins the next trial whose disk is on, if none is under way.
  void StepTrials();
  void StepTrial();
  void OnTrialDone(const Request& request, Status status);
  enum class TrialVerdict : uint8_t { kSound, kBad, kLater };
  void EndTrial(TrialVerdict verdict);
  void EndSuspect(NvmeSlab& slab, uint32_t slot, TrialVerdict verdict);
  void GiveUpTrialWaiters();
  void TellTried(uint64_t place, bool is_free);

  // ---- nvme_tier_restore.cc ----
  struct UsedEntry {
    uint64_t fingerprint = 0;  // of group, key and member
    uint64_t epoch = 0;
    uint64_t place = 0;
  };
  using EntryVisitor = std::function<void(uint32_t slot, Status status, const SlabEntry& entry)>;
  Status OpenSlabsOf(uint32_t disk, std::vector<std::string>* notes);
  void OpenSlab(uint32_t disk, const std::string& name, uint32_t index,
                std::vector<std::string>* notes);
  void RetireAboveCapacity(std::vector<std::string>* notes);
  // A table read sector by sector: what cannot be read costs what is in it alone.
  std::vector<Status> ReadSectors(const NvmeSlab& slab, uint64_t begin_bytes,
                                  std::span<std::byte> into) const;
  void VisitTable(const NvmeSlab& slab, const EntryVisitor& visit,
                  const RestoreAhead& ahead = {}) const;
  void NoteEntry(NvmeSlab& slab, uint32_t slot, Status status, const SlabEntry& entry);
  bool IsInTable(const NvmeSlab& slab, uint32_t slot, std::span<const std::byte> entry) const;
  void SyncInherited();
  void RestoreUsed(NvmeSlab& slab, const SlabEntry& entry, bool is_wanted, const RestoreSink& sink);

  const Options options;
  TierListener* listener = nullptr;
  std::vector<DiskState> disks;
  std::vector<std::unique_ptr<NvmeSlab>> slabs;  // by slab index; null: no slab of that number
  std::set<uint32_t> foreign_indices;            // of files that are not ours
  std::map<SlabShape, ShapeClass> classes;
  std::vector<Request> requests;
  std::vector<uint32_t> free_requests;
  std::unordered_map<uint64_t, HeldEntry> held;  // by PlaceOf
  uint64_t held_with_bytes = 0;
  uint64_t epoch = 0;
  // Numbers of the erasures under way, by PlaceOf of slots with kEntryErasure, and in order.
  std::unordered_map<uint64_t, uint64_t> erasures;
  std::set<uint64_t> erasure_numbers;
  uint64_t erasures_begun = 0;
  bool is_room_wanted = false;
  AlignedBytes zeros;
  std::deque<uint64_t> suspects;  // PlaceOf; entries say free, trials to come
  // Who waits for the trial of a slot, by PlaceOf.
  std::unordered_map<uint64_t, std::vector<std::function<void(bool)>>> trial_waiters;
  Trial trial;
  TierStats totals;  // used, suspect, quarantined, transferred, failed, corrupt
  RestoreCounts restored;
  uint32_t generation_max = 0;

  mutable std::mutex places_mutex;
  std::vector<std::optional<SlabPlace>> places;  // under places_mutex
};

}  // namespace terrace

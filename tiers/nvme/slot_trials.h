// SlotTrials: slots whose bytes did not verify. That says nothing yet of the drive: a writer may
// have changed the bytes under way, memory may have. So each is tried: filled with what nobody
// could guess, synced, read back. A slot that keeps it is free again; one that does not is
// quarantined.
//
// THREADING: the store thread. OWNERSHIP: its neighbours outlive it. What the drive may still read
// or write when it goes stays (LeaveBehind).
// LIMITS: one trial at a time, kTrialChunkBytes compared in one turn.
// INVARIANT: a suspect slot's entry says that it is free before it is tried: a daemon that ends
// meanwhile has lost nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <unordered_map>
#include <vector>

#include "tiers/nvme/aligned_bytes.h"
#include "tiers/nvme/slab_syncs.h"

namespace terrace {

inline constexpr uint64_t kTrialChunkBytes = 256 * kKiB;

class SlotTrials {
 public:
  using Done = std::function<void(bool is_free)>;
  struct Neighbours {
    NvmeDisks& disks;
    SlabSet& slabs;
    ShapeClasses& classes;
    EntryWriter& entries;
    SlabLifecycle& lifecycle;
    SlabSyncs& syncs;
    TierReports& reports;
  };
  SlotTrials(std::function<uint64_t()> random, const Neighbours& neighbours);
  ~SlotTrials();

  // → kSuspect, tried once its entry says that it is free. REQUIRES: nobody has it any more.
  void Suspect(NvmeSlab& slab, uint32_t slot);
  // As Suspect, of a quarantined slot. `done` is called once, perhaps from inside this call.
  void TryQuarantined(NvmeSlab& slab, uint32_t slot, Done done);
  // The entry of a suspect slot says that it is free.
  void Add(const NvmeSlab& slab, uint32_t slot);

  // Begins the next trial whose disk is on, if none is under way.
  void Step();
  void OnTrialDone(const NvmeRequest& request, Status status);
  // A trial waits for its disk as long as that takes; who asked for it does not.
  void GiveUpWaiters();

  uint64_t recovered_count() const { return recovered_count_; }

 private:
  enum class Verdict : uint8_t { kSound, kBad, kLater };
  enum class Stage : uint8_t { kWrites, kSyncs, kReads };

  void Begin(uint64_t place);
  void StepTrial();
  // What the answer to a request says; kLater: nothing yet, the trial goes on or is to be repeated.
  bool IsNoVerdict(const NvmeSlab& slab, Status status) const;
  void Advance(const NvmeSlab& slab);
  void End(Verdict verdict);
  void EndSuspect(NvmeSlab& slab, uint32_t slot, Verdict verdict);
  void Tell(uint64_t place, bool is_free);

  const std::function<uint64_t()> random_;
  NvmeDisks& disks_;
  SlabSet& slabs_;
  ShapeClasses& classes_;
  EntryWriter& entries_;
  SlabLifecycle& lifecycle_;
  SlabSyncs& syncs_;
  TierReports& reports_;

  std::deque<uint64_t> suspects_;  // PlaceOf; entries say free, trials to come
  std::unordered_map<uint64_t, std::vector<Done>> waiters_;  // by PlaceOf
  uint64_t recovered_count_ = 0;

  // The trial under way: all of the slot is written, synced, and read back, a chunk at a time.
  bool is_under_way_ = false;
  bool is_in_flight_ = false;
  Stage stage_ = Stage::kWrites;
  uint64_t place_ = 0;
  uint64_t seed_ = 0;          // of what is written
  uint64_t offset_bytes_ = 0;  // of the chunk
  uint64_t chunk_bytes_ = 0;
  AlignedBytes bytes_;  // kTrialChunkBytes, from the first trial on
};

}  // namespace terrace

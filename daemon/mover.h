// Mover: moves blocks of one domain between DRAM and the tiers below. A promotion reads a block's
// members into slots that were taken for it, has the bytes checked, and makes the block readable;
// everybody who wants it meanwhile shares it. A write copies a Sealed, checksummed block down,
// after its parent, so that each tier holds prefixes.
//
// Work is abandoned, never cancelled: a block that is erased under a transfer stays until that
// ends. A read that still waits for the tier's queue when everybody has given up is not begun.
//
// THREADING: store thread. LIMITS: per tier kWritesInFlightMax blocks being written and
// kWritesQueuedMax queued; promotions are bounded by the slots they fill.
// INVARIANT: a copy is Filling, or draining, exactly while one job is at it.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "daemon/evictor.h"
#include "daemon/residency.h"
#include "daemon/verifier.h"

namespace terrace {

class SharedReader;
class SharedWriter;

class Mover final : public LowerWriter, public VerifierListener {
 public:
  static constexpr uint32_t kWritesInFlightMax = 32;
  static constexpr uint32_t kWritesQueuedMax = 8192;
  static constexpr uint32_t kDropsPerStepMax = 64;
  static constexpr uint32_t kAmendsPerStepMax = 64;

  Mover(CacheDomain& domain, Residency& residency, Evictor& evictor, Verifier& verifier);
  // The tier that hosts share.
  void SetShared(SharedWriter* writer, SharedReader* reader) {
    shared_writer_ = writer;
    shared_reader_ = reader;
  }

  // Takes slots and reads the fastest copy into them, or has an adopted copy compared; after kOk
  // OnBlockReady or OnBlockLost follows. kNoSpace: DRAM has no room. REQUIRES: no DRAM copy, or an
  // unverified one.
  Status Promote(BlockId id);
  // Writes the block to the persistent tier whatever the admission policy says. False if it never
  // will be.
  bool Persist(BlockId id);

  // Begins what is queued, as far as the tiers take it. True if anything is still queued.
  bool Step();
  bool has_work() const;
  // Nothing is on its way, and nothing is queued that a tier may still take.
  bool is_idle() const;

  // A tier may have room now that had none, or be on again.
  void OnRoom();
  // The file of a group is there, or will not be.
  void OnShelfChanged();
  // At least once a second.
  void Tick();
  // The transfer with this number: the low 48 bits of its TransferId.
  void OnTransferDone(uint64_t number, Status status);

  bool TryDemote(BlockId id) override;
  bool FreeTogether(BlockId id, uint32_t tier, uint32_t local_index) override;
  void OnRooted(BlockId id) override;
  void OnPromotionChecked(BlockId id, bool is_good) override;

 private:
  // What a read that did not go well means for the copy it read; the worst of its members' holds.
  enum class Verdict : uint8_t {
    kGood,
    kUnwanted,  // nobody waited for it any more
    kLater,     // the tier is off: the copy may be as good as ever
    kGone,
    kBad,  // a healthy drive could not read it, or read something else
  };
  struct Job {
    BlockId block = kBlockNone;
    uint32_t tier = 0;
    uint32_t next_local = 0;  // the first member whose transfer has not begun
    uint32_t in_flight_count = 0;
    bool is_used = false;
    bool is_write = false;
    bool is_failed = false;
    Verdict verdict = Verdict::kGood;
  };
  struct QueuedWrite {
    BlockId block = kBlockNone;
    CommitId commit_id = 0;
  };
  struct TierQueue {
    std::deque<uint32_t> begun_reads;  // jobs with members still to begin
    std::deque<uint32_t> begun_writes;
    std::deque<QueuedWrite> writes;
    std::deque<QueuedWrite> unshelved;  // they wait for the files of their groups
    uint32_t writes_in_flight = 0;
    // The tier makes room, or is off: the first write waits for OnRoom.
    bool is_room_awaited = false;
    std::deque<QueuedWrite> drops;  // copies that are given up together
    bool has_dropped = false;       // any of them
    bool may_drop_together = true;  // until the next Tick: it did not help

    bool may_start_write() const {
      return !writes.empty() && writes_in_flight < kWritesInFlightMax && !is_room_awaited;
    }
  };

  uint32_t TakeJob(const Job& job);
  // Nobody holds the block any more: what has not begun of the read need not.
  void GiveUpIfUnwanted(uint32_t number);
  // Begins the members' transfers. False if the tier's queue is full: again later.
  bool Begin(uint32_t number);
  Status BeginMember(uint32_t number, uint32_t local_index);
  void FinishIfDone(uint32_t number);
  void FinishRead(const Job& job);
  void Fail(Job& job, Status status);
  void EndPromotion(BlockId id, Verdict verdict);
  void LookAtHealth(uint32_t tier);
  void StepDrops(uint32_t tier);
  bool may_amend() const { return !d_.amends.empty() && !d_.lower[d_.persistent_tier].is_off; }
  void StepAmends();
  void EndAdoption(BlockId id, bool is_good);
  void FinishWrite(const Job& job);
  bool Admits(AdmissionMoment moment, BlockId id, uint32_t tier);
  bool MayWrite(BlockId id, uint32_t tier) const;
  // kBusy, kUnsupported: try again later. kNoSpace: give up.
  Status StartWrite(BlockId id, uint32_t tier);
  // What a successor could not read is not persisted: kKept is what it takes.
  GroupShelf::State ShelfStateOf(BlockId id, uint32_t tier);
  void QueueWrite(BlockId id, uint32_t tier);
  void RequeueUnshelved();
  void QueueAncestors(BlockId id);
  void QueueChildren(BlockId id, uint32_t tier);
  bool StepTier(uint32_t tier);

  CacheDomain& d_;
  Residency& residency_;
  Evictor& evictor_;
  Verifier& verifier_;
  SharedWriter* shared_writer_ = nullptr;
  SharedReader* shared_reader_ = nullptr;
  std::vector<Job> jobs_;
  std::vector<uint32_t> free_jobs_;
  std::vector<TierQueue> queues_;
};

}  // namespace terrace

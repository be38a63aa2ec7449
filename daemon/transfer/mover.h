// Mover: moves blocks of one domain between DRAM and the tiers below. A promotion reads a block's
// members into slots that were taken for it, has the bytes checked, and makes the block readable;
// everybody who wants it meanwhile shares it. Whoever asks for parts has the blocks of a run read
// and checked in steps, the first layers of all blocks before the next ones. A write copies a
// Sealed block down that the daemon has verified, after its parent, so that each tier holds
// prefixes: what a client says of its bytes never meets a drive.
//
// Work is abandoned, never cancelled: a block that is erased under a transfer stays until that
// ends. A read that still waits for the tier's queue when everybody has given up is not begun.
//
// THREADING: store thread. LIMITS: per tier kWritesInFlightMax blocks being written and
// kWritesQueuedMax queued; promotions are bounded by the slots they fill.
// INVARIANT: a copy is Filling, or draining, exactly while one job is at it.
#pragma once

#include <bitset>
#include <compare>
#include <cstdint>
#include <deque>
#include <set>
#include <unordered_map>
#include <vector>

#include "daemon/block/evictor.h"
#include "daemon/block/residency.h"
#include "daemon/transfer/verifier.h"

namespace terrace {

class SharedReader;
class SharedWriter;

class Mover final : public LowerWriter, public VerifierListener {
 public:
  static constexpr uint32_t kWritesInFlightMax = 32;
  static constexpr uint32_t kWritesQueuedMax = 8192;
  static constexpr uint32_t kDropsPerStepMax = 64;
  static constexpr uint32_t kAmendsPerStepMax = 64;
  static constexpr uint32_t kAheadInFlightMax = 4;  // of a tier; somebody may ask meanwhile
  static constexpr uint32_t kAheadQueuedMax = 256;
  static constexpr uint32_t kAheadEvictionsMax = 4;  // of clean copies, for one block
  static constexpr uint32_t kAheadSiblingsMax = 16;  // looked at for the next block

  Mover(CacheDomain& domain, Residency& residency, Evictor& evictor, Verifier& verifier);
  // The tier that hosts share.
  void SetShared(SharedWriter* writer, SharedReader* reader) {
    shared_writer_ = writer;
    shared_reader_ = reader;
  }

  // When a promotion's turn comes: the runs that were asked for first, each in the order of the
  // calls.
  struct ReadOrder {
    uint64_t run = 0;  // of NewRun()
    bool is_by_parts = false;
  };
  static constexpr uint64_t kRunAhead = UINT64_MAX;  // after all others
  uint64_t NewRun() { return next_run_++; }
  // Takes slots and reads the fastest copy into them, or has an adopted copy compared; after kOk
  // OnBlockReady or OnBlockLost follows. kNoSpace: DRAM has no room. REQUIRES: no DRAM copy, or an
  // unverified one.
  Status Promote(BlockId id, const ReadOrder& order);
  // A promotion that has not begun to read is asked for again, perhaps by parts now.
  void Hurry(BlockId id, const ReadOrder& order);
  // The chain below `tip` will probably be asked for: its next blocks are promoted when nothing
  // that was asked for waits, into room that is free or holds clean copies not used since.
  void ReadAhead(BlockId tip);
  // Sealed in DRAM just now: what is wanted below is verified, then queued.
  void OnSealed(BlockId id);
  // Writes the block to the persistent tier whatever the admission policy says. False if it never
  // will be.
  bool Persist(BlockId id);

  // A client of the device was answered with this block from elsewhere: from the second time on it
  // is copied there. REQUIRES: there is a device tier.
  void Raise(BlockId id);

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
  void OnVerified(BlockId id) override;
  void OnFetched(BlockId id) override { OnSealed(id); }
  void OnPromotionChecked(BlockId id, bool is_good) override;
  void OnStepChecked(BlockId id, uint32_t step, bool is_good) override;

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
    uint32_t next_local = 0;  // the first member whose transfer (of this step) has not begun
    uint32_t in_flight_count = 0;
    uint64_t run = 0;  // of a read; and its place in there
    uint64_t sequence = 0;
    uint32_t step = 0;                    // the first that has not begun
    uint32_t step_count = 1;              // 1: all is read at once
    uint32_t check_count = 0;             // steps that are being compared
    std::vector<uint8_t> step_transfers;  // by parts: in flight, of each step
    std::bitset<kPartsPerSpaceMax> steps_in;
    bool is_used = false;
    bool is_queued = false;  // among the reads
    bool is_write = false;
    bool is_failed = false;
    bool is_ahead = false;  // nobody has asked for it
    Verdict verdict = Verdict::kGood;

    bool is_by_parts() const { return step_count > 1; }
  };
  struct QueuedRead {
    uint64_t run = 0;
    uint32_t step = 0;
    uint64_t sequence = 0;
    uint32_t job = 0;
    friend auto operator<=>(const QueuedRead&, const QueuedRead&) = default;
  };
  struct QueuedWrite {
    BlockId block = kBlockNone;
    CommitId commit_id = 0;
  };
  struct QueuedAhead {
    BlockId block = kBlockNone;
    CommitId commit_id = 0;
    uint64_t asked_us = 0;  // when its chain was used
  };
  struct TierQueue {
    std::set<QueuedRead> reads;         // jobs with members still to begin
    std::deque<uint32_t> begun_writes;  // likewise
    std::deque<QueuedWrite> writes;
    std::deque<QueuedWrite> unshelved;  // they wait for the files of their groups
    uint32_t writes_in_flight = 0;
    std::deque<QueuedAhead> ahead;  // in order
    uint32_t ahead_in_flight = 0;
    // The tier makes room, or is off: the first write waits for OnRoom.
    bool is_room_awaited = false;
    std::deque<QueuedWrite> drops;  // copies that are given up together
    bool has_dropped = false;       // any of them
    bool may_drop_together = true;  // until the next Tick: it did not help

    bool may_start_write() const {
      return !writes.empty() && writes_in_flight < kWritesInFlightMax && !is_room_awaited;
    }
  };

  static bool HasWork(const TierQueue& queue);
  uint32_t TakeJob(const Job& job);
  // Nobody holds the block any more: what has not begun of the read need not.
  void GiveUpIfUnwanted(uint32_t number);
  void Enqueue(uint32_t number);
  void Unqueue(uint32_t number);
  void MakeByParts(Job& job) const;
  // Begins the members' transfers, of a read those of the next step. False if the tier's queue is
  // full: again later.
  bool Begin(uint32_t number);
  Status BeginMember(uint32_t number, uint32_t local_index);
  bool StepReads(uint32_t tier);
  void StepAhead(uint32_t tier);
  // Without making anybody wait or write. kNoSpace: room is short.
  Status TakeSlotsAhead(const QueuedAhead& ahead, uint64_t member_mask);
  // Where the chain probably goes on; kBlockNone if nothing below says so.
  BlockId NextInChain(BlockId id) const;
  bool MayReadAhead(BlockId id) const;
  // The bytes of a step are in: they are compared.
  void CheckIfIn(uint32_t number, uint32_t step);
  void Forget(BlockId id, uint32_t tier, Verdict verdict);
  void FinishIfDone(uint32_t number);
  void FinishRead(const Job& job);
  void Fail(Job& job, Status status);
  void EndPromotion(BlockId id, Verdict verdict);
  // What was read is not what was written: the drive is asked once more before it is believed.
  bool MayReadAgain(BlockId id) const;
  void ReadAgain(BlockId id);
  void LookAtHealth(uint32_t tier);
  void StepDrops(uint32_t tier);
  bool may_amend() const { return !d_.amends.empty() && !d_.lower[d_.persistent_tier].is_off; }
  void StepAmends();
  void EndAdoption(BlockId id, bool is_good);
  void FinishWrite(const Job& job);
  bool Admits(AdmissionMoment moment, BlockId id, uint32_t tier);
  // Sealed, not there yet, and its parent is: a tier holds prefixes.
  bool MayGoBelow(BlockId id, uint32_t tier) const;
  bool MayWrite(BlockId id, uint32_t tier) const {
    return d_.block(id).is_verified && MayGoBelow(id, tier);
  }
  void EndDraining(BlockId id);
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
  std::unordered_map<BlockId, uint32_t>
      reads_;  // their jobs, until the bytes are in; looked up only
  uint64_t next_run_ = 1;
  uint64_t next_sequence_ = 0;
};

}  // namespace terrace

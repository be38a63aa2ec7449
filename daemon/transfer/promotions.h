// Promotions: reads of blocks from a tier below into slots that were taken for them. Everybody who
// wants a block meanwhile shares its promotion. Whoever asks for parts has the blocks of a run read
// and checked in steps, the first layers of all blocks before the next ones.
//
// Work is abandoned, never cancelled: a block that is erased under a read stays until that ends. A
// read that still waits for the tier's queue when everybody has given up is not begun. What was
// read and is not what was written is read once more before the drive is believed.
//
// THREADING: store thread. LIMITS: promotions are bounded by the slots they fill.
// INVARIANT: a copy that fills from a tier does so exactly while one job is at it, or its check.
#pragma once

#include <bitset>
#include <compare>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <vector>

#include "daemon/residency/evictor.h"
#include "daemon/transfer/transfer_jobs.h"
#include "daemon/transfer/verifier.h"

namespace terrace {

// When a promotion's turn comes: the runs that were asked for first, each in the order of the
// calls.
struct ReadOrder {
  uint64_t run = 0;  // of Promotions::NewRun()
  bool is_by_parts = false;
};

class Promotions {
 public:
  static constexpr uint64_t kRunAhead = UINT64_MAX;  // after all others

  Promotions(CacheDomain& domain, Residency& residency, Evictor& evictor, Verifier& verifier,
             TransferJobs& jobs)
      : d_(domain),
        residency_(residency),
        evictor_(evictor),
        verifier_(verifier),
        jobs_(jobs),
        queues_(domain.lower.size()) {}

  uint64_t NewRun() { return next_run_++; }
  // Takes slots and reads the fastest copy into them; after kOk OnBlockReady or OnBlockLost
  // follows. kNoSpace: DRAM has no room. kNotFound: no tier that can be read has it. REQUIRES: no
  // DRAM copy.
  Status Begin(BlockId id, const ReadOrder& order);
  // The same for a block that nobody has asked for, into slots that were taken for it.
  void BeginAhead(BlockId id, uint32_t tier);
  uint32_t ahead_in_flight(uint32_t tier) const { return queues_[tier].ahead_in_flight; }
  // A promotion that has not begun to read is asked for again, perhaps by parts now.
  void Reprioritize(BlockId id, const ReadOrder& order);

  // Begins what is queued. False if the tier takes no more.
  bool Step(uint32_t tier);
  bool has_work(uint32_t tier) const { return !queues_[tier].reads.empty(); }
  // Blocks whose turn has not come; of each that is read by parts, the next step.
  uint64_t queued_count(uint32_t tier) const { return queues_[tier].reads.size(); }

  // Bytes that were asked for and whose reading has not begun: all, and those up to a block's own,
  // if it is among them.
  uint64_t waiting_bytes(uint32_t tier) const {
    return queues_[tier].asked_bytes - queues_[tier].begun_bytes;
  }
  uint64_t WaitingBytesTo(BlockId id) const;

  // A job that was taken here has ended.
  void OnTransferDone(const TransferJobs::Ended& ended);
  void OnStepChecked(BlockId id, uint32_t step, bool is_good);
  // All of what was read has been compared. REQUIRES: the block is Sealed, its copy fills.
  void OnChecked(BlockId id, bool is_good);
  // Nobody may be reading the slots that the second read fills.
  bool MayReadAgain(BlockId id) const;

 private:
  // What a job is beside its transfers, by its number.
  struct Read {
    uint64_t run = 0;
    uint64_t sequence = 0;       // its place in there
    uint64_t waiting_bytes = 0;  // that somebody asked for, and that have not begun
    uint64_t asked_mark = 0;     // TierQueue::asked_bytes when they were asked for, with them
    uint32_t check_count = 0;    // steps that are being compared
    std::bitset<kPartsPerSpaceMax> steps_in;
    bool is_queued = false;
    bool is_ahead = false;  // nobody has asked for it
  };
  struct QueuedRead {
    uint64_t run = 0;
    uint32_t step = 0;
    uint64_t sequence = 0;
    uint32_t job = 0;
    friend auto operator<=>(const QueuedRead&, const QueuedRead&) = default;
  };
  struct TierQueue {
    std::set<QueuedRead> reads;  // jobs with members still to begin
    uint32_t ahead_in_flight = 0;
    // Since the start. What was asked for first begins first, so that their difference is what
    // waits, and that of a mark and what has begun is what waits before it.
    uint64_t asked_bytes = 0, begun_bytes = 0;
  };

  uint32_t Take(BlockId id, uint32_t tier, const Read& read);
  QueuedRead PlaceOf(uint32_t number);
  void Enqueue(uint32_t number);
  void Unqueue(uint32_t number);
  // Somebody waits for the job's bytes; so many of them still have to begin.
  uint64_t BytesOf(const TransferJob& job) const;
  void CountAsked(uint32_t number);
  void CountBegun(uint32_t number, uint64_t waiting_bytes);
  // Nobody holds the block any more: what has not begun of the read need not.
  void GiveUpIfUnwanted(uint32_t number);
  // The bytes of a step are in: they are compared.
  void CheckIfIn(uint32_t number, uint32_t step);
  void FinishIfDone(uint32_t number);
  void Finish(const TransferJob& job);
  void End(BlockId id, TransferVerdict verdict);
  void ReadAgain(BlockId id);
  void Forget(BlockId id, uint32_t tier, TransferVerdict verdict);

  CacheDomain& d_;
  Residency& residency_;
  Evictor& evictor_;
  Verifier& verifier_;
  TransferJobs& jobs_;
  std::vector<TierQueue> queues_;
  std::vector<Read> reads_;                         // by job number
  std::unordered_map<BlockId, uint32_t> by_block_;  // jobs until the bytes are in; looked up only
  uint64_t next_run_ = 1;
  uint64_t next_sequence_ = 0;
};

}  // namespace terrace

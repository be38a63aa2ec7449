// WriteBack: writes of Sealed blocks from DRAM to the tiers below. A block is written that the
// daemon has verified, after its parent, so that each tier holds prefixes: what a client says of
// its bytes never meets a drive. What is wanted gone from DRAM is written first, if that can begin
// now.
//
// THREADING: store thread.
// LIMITS: per tier kInFlightMax blocks being written, kQueuedMax queued, and kWithoutGroupMax whose
// group could not be kept.
// OWNERSHIP: Block's WriteWishes.
// INVARIANT: a copy below is Filling, and one in DRAM Draining, exactly while jobs are at it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "daemon/residency/evictor.h"
#include "daemon/transfer/transfer_jobs.h"
#include "daemon/transfer/verifier.h"

namespace terrace {

class WriteBack {
 public:
  static constexpr uint32_t kInFlightMax = 32;
  static constexpr uint32_t kQueuedMax = 8192;
  static constexpr uint32_t kWithoutGroupMax = 1024;  // a tier

  WriteBack(CacheDomain& domain, Residency& residency, Evictor& evictor, Verifier& verifier,
            TransferJobs& jobs)
      : d_(domain),
        residency_(residency),
        evictor_(evictor),
        verifier_(verifier),
        jobs_(jobs),
        queues_(domain.lower.size()) {}

  // Sealed in DRAM just now: what the admission policy takes is queued.
  void OnSealed(BlockId id);
  // Likewise what was wanted below while it was not verified.
  void OnVerified(BlockId id);
  // The block is to be written to the tier once it is verified, whatever the policy says.
  void Queue(BlockId id, uint32_t tier);
  // The DRAM copy is wanted gone. True if it is Draining now, and dropped once written or verified.
  bool TryDemote(BlockId id);

  // Writes with members still to begin. False if the tier takes no more.
  bool StepBegun(uint32_t tier);
  // Begins queued writes, as far as the tier takes them.
  void StepQueued(uint32_t tier);
  bool has_work(uint32_t tier) const;
  // Something waits for room, or for a group's file.
  bool has_queued(uint32_t tier) const {
    return !queues_[tier].writes.empty() || !queues_[tier].without_group_file.empty();
  }
  // Blocks whose turn has not come.
  uint64_t queued_count(uint32_t tier) const {
    return queues_[tier].writes.size() + queues_[tier].without_group_file.size();
  }
  // Blocks whose group's file could not be written, first of their chains; a part of them, if many.
  uint64_t without_group_count(uint32_t tier) const { return queues_[tier].without_group.size(); }
  // The tier may have room now that had none, or be on again.
  void OnRoom(uint32_t tier) { queues_[tier].is_room_awaited = false; }
  // While it is closed, nothing begins to be written.
  void SetClosed(uint32_t tier, bool is_closed) { queues_[tier].is_closed = is_closed; }
  uint32_t in_flight_count(uint32_t tier) const { return queues_[tier].in_flight_count; }
  // The file of a group is there, or could not be written.
  void OnGroupFilesChanged();
  // A job that was taken here has ended.
  void OnTransferDone(const TransferJobs::Ended& ended) { FinishIfDone(ended.number); }

 private:
  struct QueuedWrite {
    BlockId block = kBlockNone;
    CommitId commit_id = 0;
  };
  struct TierQueue {
    std::deque<uint32_t> begun;  // jobs with members still to begin
    std::deque<QueuedWrite> writes;
    std::deque<QueuedWrite> without_group_file;  // they wait for it
    // It could not be written. They wait for nothing that is sure to come, and count nowhere; the
    // blocks below them follow by themselves.
    std::map<BlockId, CommitId> without_group;
    uint32_t in_flight_count = 0;
    bool is_room_awaited =
        false;  // the tier makes room, or is off: the first write waits for OnRoom
    bool is_closed = false;

    bool may_start() const {
      return !writes.empty() && in_flight_count < kInFlightMax && !is_room_awaited && !is_closed;
    }
  };

  WriteWishes& WishesOf(BlockId id) { return d_.blocks.Change<WriteWishes>(id, {}); }
  bool Admits(AdmissionMoment moment, BlockId id, uint32_t tier);
  // Sealed, not there yet, and its parent is: a tier holds prefixes.
  bool MayGoBelow(BlockId id, uint32_t tier) const;
  bool MayWrite(BlockId id, uint32_t tier) const {
    return d_.block(id).is_verified && MayGoBelow(id, tier);
  }
  // kBusy, kUnsupported: try again later. kNoSpace: give up.
  Status Start(BlockId id, uint32_t tier);
  // What a successor could not read is not persisted: kKept is what it takes.
  GroupFiles::State GroupFileStateOf(BlockId id, uint32_t tier);
  void QueueAgain(uint32_t tier);
  void EndDraining(BlockId id);
  void QueueAncestors(BlockId id);
  void QueueChildren(BlockId id, uint32_t tier);
  void FinishIfDone(uint32_t number);
  void Finish(const TransferJob& job);

  CacheDomain& d_;
  Residency& residency_;
  Evictor& evictor_;
  Verifier& verifier_;
  TransferJobs& jobs_;
  std::vector<TierQueue> queues_;
};

}  // namespace terrace

// Waiters: requests that were answered and still have something coming: Acquires and Prefetches
// with blocks on their way (promoted, or written by somebody else), and Waits for persistence. Each
// learns of its blocks in prefix order, and of its end exactly once. Who asked by parts learns of
// the first step (Group::step_count) of all its blocks that are promoted, then of the second, and
// of whole blocks instead of the last. Of a block that is written by somebody else it learns what
// its writer commits; parts that adjacent blocks have alike are one completion.
//
// Completions never come from inside the call that began or continued the request: what is known
// already at that time is told by the next Step().
//
// What happens to a block is only noted with those who wait for it; they are told in StepWoken() or
// Step(), some a turn. Likewise what a request has lost, or an ended one had, is given back: its
// nodes stay in the lists of their blocks until then, and count for nothing.
//
// THREADING: store thread. LIMITS: pending_per_session_max requests a session; kWorkPerStepMax
// blocks, runs of parts or nodes a step.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "daemon/block/lease_table.h"
#include "daemon/lease/pending_register.h"
#include "daemon/lease/promised_hits.h"
#include "daemon/residency/residency.h"

namespace terrace {

class Waiters final : public BlockObserver {
 public:
  static constexpr uint32_t kWorkPerStepMax = 4096;

  Waiters(CacheDomain& domain, Residency& residency, PendingRegister& requests)
      : d_(domain), residency_(residency), requests_(requests) {}

  // As PendingRegister::Open.
  PendingId Open(const NewPending& what);
  // The request comes to wait for `block`, entry `entry_index` of its lease; in rising order.
  void Await(PendingId id, uint32_t entry_index, BlockId block);
  // The reply is on its way: completions may begin. False if there is nothing to wait for: the
  // request is over.
  bool Arm(PendingId id, uint64_t deadline_us);
  // What an armed Acquire was promised: counted as it comes.
  void Promise(PendingId id, PromisedHits promised);
  // Its deadline has passed, or the client gave up: what is not there yet leaves the lease.
  void Expire(PendingId id);
  // Expire, by the deadline that has just been taken from the heap.
  void OnDeadline(PendingId id);
  // A Wait or an erasure has come to its end: its session is told.
  void EndWait(PendingId id, StatusCode outcome);
  // Ends without a word: one; all of a session on a lease (kLeaseNone: all of the session).
  void Drop(PendingId id) { End(id); }
  void DropAll(SessionId session, LeaseId lease);

  // A lease loses its entries from `from_index` on; all who wait for them are told.
  void Truncate(LeaseId lease, uint32_t from_index, StatusCode why);
  // Parts of a followed block were committed.
  void OnParts(BlockId id, const protocol::CommitEntry& entry);

  // Tells what was known before a request was armed, and what has happened since.
  void Step();
  // Only what has happened since, and what is left from before.
  void StepWoken();
  bool has_work() const { return !unannounced_.empty() || !woken_.empty() || !trimming_.empty(); }
  // The outcome of an unarmed Wait so far: kBusy, kOk, or kNotFound.
  StatusCode WaitOutcome(PendingId id) const;

  void OnBlockReady(BlockId id) override;
  void OnStepsIn(BlockId id) override;
  void OnBlockLost(BlockId id, StatusCode why) override;
  void OnBlockPersisted(BlockId id) override;

 private:
  struct Coming {
    uint32_t entry_index = 0;
    uint32_t node = kHandleNone;
    BlockId block = kBlockNone;
  };
  // Of one request, what it waits for and how far it was told.
  struct Pending {
    std::vector<Coming> coming;  // by entry_index; what is behind `end` has left, or it has ended
    uint32_t end = 0;
    uint32_t there = 0;      // the first of them that is not there yet, or none between
    uint32_t announced = 0;  // the first of them whose committed parts were not told yet
    uint32_t next = 0;       // the first of them not yet told
    uint32_t step = 0;       // by parts: being told of,
    uint32_t step_next = 0;  // up to this one of them
    // Committed and told next: of each member the parts that adjacent blocks have alike.
    std::vector<protocol::Completion> parts;
    uint32_t awaited_count = 0;  // of a Wait
    bool is_announced = false;   // what was known when it was armed has been told
    bool is_lost = false;        // a Wait's key left the cache
    bool is_woken = false;       // it is in woken_
    bool is_trimming = false;    // it is in trimming_
    PromisedHits promised;
  };
  uint32_t& HeadOf(BlockId id) { return d_.blocks.Change<WaiterList>(id, {}).waiters; }
  // One pending's wait for one block, in the block's list.
  struct Node {
    PendingId pending = kPendingNone;
    BlockId block = kBlockNone;
    uint32_t coming_index = 0;
    uint32_t previous = kHandleNone;
    uint32_t next = kHandleNone;
  };
  void GiveNode(uint32_t node);
  // What it waited for has left its request, or the request has ended.
  bool IsDead(const Node& node) const { return node.coming_index >= pendings_[node.pending].end; }
  void Spend(uint32_t work, uint32_t* budget);
  void Wake(PendingId id);
  void StepUnannounced(uint32_t* budget);
  void StepWoken(uint32_t* budget);
  void StepTrimming(uint32_t* budget);
  // Gives back what has left the request. False if the budget ran out.
  bool Trim(PendingId id, uint32_t* budget);
  void TrimSoon(PendingId id);
  void Free(PendingId id);
  // Tells which parts of followed blocks were committed before. False if the budget ran out.
  bool Announce(PendingId id, uint32_t* budget);
  // Words of the parts of a block that is being written; empty if it is not.
  std::span<const uint64_t> PartsOf(const Coming& coming, uint64_t* absent_mask) const;
  // Returns what it cost.
  uint32_t TellCommitted(PendingId id, const Coming& first, uint32_t block_count);
  void TellAbsent(PendingId id, const Coming& coming);
  void AddParts(PendingId id, const protocol::Completion& completion);
  void TellParts(PendingId id);
  void Advance(PendingId id, uint32_t* budget);
  // Tells of the steps before the last that are in without a gap. True once that is all of them.
  bool AdvanceParts(PendingId id, uint32_t* budget);
  bool IsStepIn(const Coming& coming, uint32_t step) const;
  void TellStep(PendingId id, uint32_t first, uint32_t end);
  void Tell(PendingId id, StatusCode status, protocol::Completion completion);
  void End(PendingId id);
  void Cut(PendingId id, uint32_t from_index, StatusCode why);
  void LetGoFrom(LeaseId id, uint32_t from_index);

  CacheDomain& d_;
  Residency& residency_;
  PendingRegister& requests_;
  std::deque<Pending> pendings_;  // by PendingId
  ChunkedArray<Node> nodes_;
  std::vector<uint32_t> free_nodes_;
  uint32_t node_count_ = 0;
  std::deque<PendingTicket> unannounced_;  // armed, and what was known before is not told yet
  std::deque<PendingTicket> woken_;        // armed, with something to tell; each once
  std::deque<PendingId> trimming_;         // each once
};

}  // namespace terrace

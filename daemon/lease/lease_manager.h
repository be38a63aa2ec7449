// LeaseManager: how leases begin and, above all, how they end.
//
// Release and Abort free at once: who calls them has synchronised. A hang-up and a passed time to
// live only *revoke*: commits are void, Reserved keys are free for others, but slots stay fenced
// until every joiner has acknowledged (Release or Abort) or is proven dead. No slot is reused on a
// timer.
//
// Long leases are let go some blocks a turn: Step().
//
// THREADING: store thread.
#pragma once

#include <cstdint>
#include <span>

#include "daemon/block/session_register.h"
#include "daemon/lease/waiters.h"
#include "daemon/residency/residency.h"

namespace terrace {

class LeaseManager {
 public:
  LeaseManager(CacheDomain& domain, Residency& residency, Waiters& waiters,
               SessionRegister& sessions)
      : d_(domain), residency_(residency), waiters_(waiters), sessions_(sessions) {}

  // A new lease, being built by its first joiner. kNoSpace above leases_per_session_max.
  Result<LeaseId> Open(LeaseKind kind, SessionIndex session, uint32_t group_index);
  // How many more blocks the lease may hold.
  uint32_t BlocksLeft(LeaseId id) const;
  uint32_t BlocksLeftOf(SessionIndex session) const;
  // Appends an entry and holds its block.
  void Append(LeaseId id, BlockId block, uint8_t flags);
  // The same for blocks of a path, without flags.
  void AppendPath(LeaseId id, std::span<const BlockId> run);
  // The same for blocks that are ready for all.
  void AppendReady(LeaseId id, std::span<const BlockRange> path);
  // REQUIRES: not a joiner yet.
  Status Join(LeaseId id, SessionIndex session);
  bool IsJoiner(LeaseId id, SessionIndex session) const;
  // True if nothing may be committed or joined any more: revoked, or about to be.
  bool IsVoid(LeaseId id) const;

  // The joiner leaves; the last one ends the lease. Of a revoked lease: the acknowledgement.
  void Leave(LeaseId id, SessionIndex session);
  // Reserved keys go; free at once if nobody else may be writing them.
  Status AbortKeys(LeaseId id, SessionIndex session, std::span<const uint32_t> key_indexes);
  // Gives up the whole lease for everybody; others are told, and acknowledge.
  void AbortAll(LeaseId id, SessionIndex session);
  // Whether nobody else may be writing what the lease reserves.
  bool IsAlone(LeaseId id, SessionIndex session) const;
  // A committed block is the cache's now; but the lease keeps its slots, and those that it turned
  // out not to need, if others have joined: they may be writing them whatever one of them says.
  void Sealed(LeaseId id, SessionIndex session, uint32_t entry_index,
              std::span<const SlotRef> slots_left);

  // The session's connection ended, or its process is dead, or it was silent too long.
  void OnHangUp(SessionIndex session);
  void OnSilence(SessionIndex session);

  // Does up to `budget` blocks' worth of what is left to do. True if work remains.
  bool Step(uint32_t* budget);
  bool has_work() const;

 private:
  // What a lease weighs beside its blocks: its own memory, in entries.
  static constexpr uint32_t kLeaseCostBlocks = 64;

  uint64_t ChargeLeft(const SessionRecord& owner) const;
  void Charge(LeaseId id, uint32_t block_count);
  void Uncharge(const Lease& lease);
  void Revoke(LeaseId id);
  void RemoveJoiner(LeaseId id, SessionIndex session);
  void EndIfDeserted(LeaseId id);
  bool StepSession(SessionIndex session, uint32_t* budget);
  bool StepTail(CutTail* tail, uint32_t* budget);
  // Who follows the lease loses all from its first unwritten block on, and is told once.
  void LoseUnwritten(const Lease& lease);
  // Erases a block that was being written; what its followers' loss takes counts, too.
  void EraseUnwritten(BlockId block, uint32_t* budget);
  bool StepRevoke(LeaseId id, uint32_t* budget);
  bool StepEnd(LeaseId id, uint32_t* budget);
  void Release(const LeaseEntry& entry);
  bool IsSilent(const Lease& lease) const;

  CacheDomain& d_;
  Residency& residency_;
  Waiters& waiters_;
  SessionRegister& sessions_;
};

}  // namespace terrace

// LeaseRegistry: the leases that are out, found by their token for what the daemon says unasked:
// blocks that became readable, and revocations. It counts what the daemon is owed: a token that was
// given n times, by Acquire or Reserve and by Joins, is to be ended n times.
//
// THREADING: any thread; one lock guards the buckets and the fields of a lease that say so.
// OWNERSHIP: holds no lease alive; whoever ends one takes it out.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "client/lease/lease_state.h"
#include "client/link/timed_lock.h"

namespace terrace::client {

class LeaseRegistry {
 public:
  // A lease is given out, unless its end was sent while it came. One of a miss (its token is zero)
  // is found by nobody, and is counted only if blocks of it are to come.
  void Add(LeaseState& lease);
  // Takes it out. Returns how many ends the daemon is owed for its token now: 0 while another lease
  // of this process still uses the token, which takes over what is owed.
  uint32_t Remove(LeaseState& lease);
  // The same of one whose end is marked as sent, and which may or may not have been added by now:
  // it will not be any more, and the daemon is owed its end.
  uint32_t GiveUp(LeaseState& lease);
  // The daemon revoked `token`: its leases are invalid from now on. Those that no thread is writing
  // to are taken out; returns how many ends are owed for them now.
  uint32_t Revoke(const LeaseToken& token);
  // An answer gave `token` once more, and nobody waits for it. True if a lease of this process uses
  // it, which takes over its end.
  bool Inherit(const LeaseToken& token);
  // The connection is gone: all are invalid.
  void InvalidateAll();
  // Of any lease that is out; zero if none is.
  LeaseToken AnyToken();

  // Nothing more will come to this lease.
  void SettleProgress(LeaseState& lease) {
    if (lease.is_coming.exchange(false)) coming_count_.fetch_sub(1);
  }
  // Leases of which blocks are to come: as long as there are any, somebody must read.
  uint32_t coming_count() const { return coming_count_.load(); }

  // Calls `visit(LeaseState&)` for the leases of `token`, under the lock.
  template <typename Visit>
  void ForToken(const LeaseToken& token, Visit visit) {
    LockGuard guard(lock_);
    for (LeaseState* lease = Bucket(token); lease != nullptr; lease = lease->next_registered) {
      if (lease->token == token) visit(*lease);
    }
  }

 private:
  static constexpr size_t kBucketCount = 1024;
  uint32_t RemoveLocked(LeaseState& lease);
  LeaseState*& Bucket(const LeaseToken& token) { return buckets_[token.low % kBucketCount]; }

  TimedLock lock_;
  std::array<LeaseState*, kBucketCount> buckets_{};
  std::atomic<uint32_t> coming_count_{0};
};

}  // namespace terrace::client

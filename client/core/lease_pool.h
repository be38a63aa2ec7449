// LeasePool lends LeaseStates whose vectors keep their memory from one lease to the next.
// LeaseRegistry finds the leases that are out by their token, for what the daemon says unasked.
//
// THREADING: any thread; locks are held for pointer work only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "client/core/lease_state.h"
#include "client/link/timed_lock.h"

namespace terrace::client {

inline constexpr size_t kLeasesPooledMax = 512;
// A lease that grew beyond this (a very long prompt) gives its memory back.
inline constexpr size_t kPooledLeaseBytesMax = 2 << 20;

class LeasePool {
 public:
  LeasePool() = default;
  ~LeasePool();
  LeasePool(const LeasePool&) = delete;
  LeasePool& operator=(const LeasePool&) = delete;

  // A cleared lease that returns to `core`'s pool with its last owner. May throw std::bad_alloc.
  std::shared_ptr<LeaseState> Take(std::shared_ptr<Core> core);
  // Takes back a lease without owners.
  void Put(LeaseState* lease);

 private:
  TimedLock lock_;
  LeaseState* free_ = nullptr;
  size_t free_count_ = 0;
};

class LeaseRegistry {
 public:
  void Add(LeaseState& lease);
  // Takes it out. Returns how many ends the daemon is owed for its token now: 0 while another lease
  // of this process still uses the token, which takes over what is owed.
  uint32_t Remove(LeaseState& lease);
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

  // Calls `visit(LeaseState&)` for the leases of `token`, under the lock.
  template <typename Visit>
  void ForToken(const LeaseToken& token, Visit visit) {
    LockGuard guard(lock_);
    for (LeaseState* lease = Bucket(token); lease != nullptr; lease = lease->next_registered) {
      if (lease->token == token) visit(*lease);
    }
  }

  uint32_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kBucketCount = 1024;
  uint32_t RemoveLocked(LeaseState& lease);
  LeaseState*& Bucket(const LeaseToken& token) { return buckets_[token.low % kBucketCount]; }

  TimedLock lock_;
  std::atomic<uint32_t> count_{0};
  std::array<LeaseState*, kBucketCount> buckets_{};
};

}  // namespace terrace::client

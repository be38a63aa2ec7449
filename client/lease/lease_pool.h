// LeasePool lends LeaseStates whose vectors keep their memory from one lease to the next.
//
// THREADING: any thread; the lock is held for pointer work only.
// LIMITS: kLeasesPooledMax states are kept, of at most kPooledLeaseBytesMax each.
#pragma once

#include <cstddef>
#include <memory>

#include "client/lease/lease_state.h"
#include "client/link/timed_lock.h"

namespace terrace::client {

inline constexpr size_t kLeasesPooledMax = 512;
// A lease that grew beyond this (a very long prompt) gives its memory back.
inline constexpr size_t kPooledLeaseBytesMax = 2 << 20;

class LeasePool {
 public:
  // Called with a lease whose last owner is gone; ends with Put.
  using Retirer = void (*)(LeaseState& lease);

  explicit LeasePool(Retirer retire) : retire_(retire) {}
  ~LeasePool();
  LeasePool(const LeasePool&) = delete;
  LeasePool& operator=(const LeasePool&) = delete;

  // A cleared lease that keeps `owner`, which has this pool. May throw std::bad_alloc.
  std::shared_ptr<LeaseState> Take(std::shared_ptr<Leases> owner);
  // Takes back a lease without owners.
  void Put(LeaseState* lease);

 private:
  const Retirer retire_;
  TimedLock lock_;
  LeaseState* free_ = nullptr;
  size_t free_count_ = 0;
};

}  // namespace terrace::client

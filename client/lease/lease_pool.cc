#include "client/lease/lease_pool.h"

#include <utility>

namespace terrace::client {
namespace {

// Gives the shared_ptr its counts inside the lease itself. Giving them back is the last that is
// done with a lease: then it may be lent again.
template <typename T>
struct InPlaceAllocator {
  using value_type = T;

  InPlaceAllocator(LeaseState* lease_in, LeasePool::Retirer retire_in)
      : lease(lease_in), retire(retire_in) {}
  template <typename U>
  InPlaceAllocator(const InPlaceAllocator<U>& other)  // NOLINT: rebinding
      : lease(other.lease), retire(other.retire) {}

  T* allocate(size_t) {
    static_assert(sizeof(T) <= LeaseState::kControlBlockBytes && alignof(T) <= 16);
    return reinterpret_cast<T*>(lease->control_block);
  }
  void deallocate(T*, size_t) noexcept { retire(*lease); }

  LeaseState* lease;
  LeasePool::Retirer retire;
};

struct KeepAlive {
  void operator()(LeaseState*) const {}
};

size_t HeldBytes(const LeaseState& lease) {
  return lease.spans.capacity() * sizeof(protocol::BlockSpan) +
         lease.slots.capacity() * sizeof(SlotAddress) + lease.keys.capacity() * sizeof(BlockKey) +
         lease.reserved.capacity() * sizeof(protocol::ReservedKey) +
         lease.slot_refs.capacity() * sizeof(SlotRef) +
         lease.written.capacity() * sizeof(WrittenPart) +
         lease.part_states.capacity() * sizeof(PartState) +
         lease.readable_parts.capacity() * sizeof(uint64_t);
}

}  // namespace

LeasePool::~LeasePool() {
  while (free_ != nullptr) {
    LeaseState* lease = free_;
    free_ = lease->next_free;
    delete lease;
  }
}

std::shared_ptr<LeaseState> LeasePool::Take(std::shared_ptr<Leases> owner) {
  LeaseState* lease = nullptr;
  {
    LockGuard guard(lock_);
    if (free_ != nullptr) {
      lease = free_;
      free_ = lease->next_free;
      --free_count_;
    }
  }
  if (lease == nullptr) lease = new LeaseState;
  lease->owner = std::move(owner);
  return std::shared_ptr<LeaseState>(lease, KeepAlive(),
                                     InPlaceAllocator<LeaseState>(lease, retire_));
}

void LeasePool::Put(LeaseState* lease) {
  if (HeldBytes(*lease) <= kPooledLeaseBytesMax) {
    lease->Clear();
    LockGuard guard(lock_);
    if (free_count_ < kLeasesPooledMax) {
      lease->next_free = free_;
      free_ = lease;
      ++free_count_;
      return;
    }
  }
  delete lease;
}

}  // namespace terrace::client

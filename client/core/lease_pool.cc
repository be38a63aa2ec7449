#include "client/core/lease_pool.h"

#include "client/core/core.h"

namespace terrace::client {
namespace {

// Gives the shared_ptr its counts inside the lease itself. Giving them back is the last that is
// done with a lease: then it may be lent again.
template <typename T>
struct InPlaceAllocator {
  using value_type = T;

  explicit InPlaceAllocator(LeaseState* lease_in) : lease(lease_in) {}
  template <typename U>
  InPlaceAllocator(const InPlaceAllocator<U>& other) : lease(other.lease) {}  // NOLINT: rebinding

  T* allocate(size_t) {
    static_assert(sizeof(T) <= LeaseState::kControlBlockBytes && alignof(T) <= 16);
    return reinterpret_cast<T*>(lease->control_block);
  }
  void deallocate(T*, size_t) noexcept { Core::Recycle(lease); }

  LeaseState* lease;
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

std::shared_ptr<LeaseState> LeasePool::Take(std::shared_ptr<Core> core) {
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
  lease->core = std::move(core);
  return std::shared_ptr<LeaseState>(lease, KeepAlive(), InPlaceAllocator<LeaseState>(lease));
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

void LeaseRegistry::Add(LeaseState& lease) {
  LockGuard guard(lock_);
  LeaseState*& bucket = Bucket(lease.token);
  lease.next_registered = bucket;
  bucket = &lease;
  lease.is_registered = true;
  lease.ends_owed = 1;
  count_.fetch_add(1, std::memory_order_relaxed);
}

uint32_t LeaseRegistry::Remove(LeaseState& lease) {
  LockGuard guard(lock_);
  return RemoveLocked(lease);
}

uint32_t LeaseRegistry::RemoveLocked(LeaseState& lease) {
  if (!lease.is_registered) return 0;
  lease.is_registered = false;
  count_.fetch_sub(1, std::memory_order_relaxed);
  LeaseState* heir = nullptr;
  LeaseState** link = &Bucket(lease.token);
  while (*link != nullptr) {
    if (*link == &lease) {
      *link = lease.next_registered;
      continue;
    }
    if ((*link)->token == lease.token) heir = *link;
    link = &(*link)->next_registered;
  }
  if (heir == nullptr) return lease.ends_owed;
  heir->ends_owed += lease.ends_owed;
  return 0;
}

uint32_t LeaseRegistry::Revoke(const LeaseToken& token) {
  LockGuard guard(lock_);
  uint32_t ends_owed = 0;
  LeaseState* next = nullptr;
  for (LeaseState* lease = Bucket(token); lease != nullptr; lease = next) {
    next = lease->next_registered;
    if (lease->token != token) continue;
    lease->is_revoked = true;
    lease->is_valid = false;
    lease->SettleProgress();
    if (lease->TakeEnd()) ends_owed += RemoveLocked(*lease);
  }
  return ends_owed;
}

bool LeaseRegistry::Inherit(const LeaseToken& token) {
  LockGuard guard(lock_);
  for (LeaseState* lease = Bucket(token); lease != nullptr; lease = lease->next_registered) {
    if (lease->token != token) continue;
    ++lease->ends_owed;
    return true;
  }
  return false;
}

void LeaseRegistry::InvalidateAll() {
  LockGuard guard(lock_);
  for (LeaseState* first : buckets_) {
    for (LeaseState* lease = first; lease != nullptr; lease = lease->next_registered) {
      lease->is_valid = false;
      lease->SettleProgress();
    }
  }
}

LeaseToken LeaseRegistry::AnyToken() {
  LockGuard guard(lock_);
  for (const LeaseState* lease : buckets_) {
    if (lease != nullptr) return lease->token;
  }
  return {};
}

}  // namespace terrace::client

#include "client/lease/lease_registry.h"

namespace terrace::client {

void LeaseRegistry::Add(LeaseState& lease) {
  LockGuard guard(lock_);
  if (lease.is_end_sent.load()) return;
  if (lease.is_coming.load()) coming_count_.fetch_add(1);
  if (lease.token.is_zero()) return;
  LeaseState*& bucket = Bucket(lease.token);
  lease.next_registered = bucket;
  bucket = &lease;
  lease.is_registered = true;
  lease.ends_owed = 1;
}

uint32_t LeaseRegistry::Remove(LeaseState& lease) {
  LockGuard guard(lock_);
  return RemoveLocked(lease);
}

uint32_t LeaseRegistry::GiveUp(LeaseState& lease) {
  LockGuard guard(lock_);
  if (!lease.is_registered) return 1;
  SettleProgress(lease);
  return RemoveLocked(lease);
}

uint32_t LeaseRegistry::RemoveLocked(LeaseState& lease) {
  if (!lease.is_registered) return 0;
  lease.is_registered = false;
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
    SettleProgress(*lease);
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
      SettleProgress(*lease);
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

#include "daemon/block/lease_table.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {

uint32_t Lease::EntryOf(uint32_t key_index) const {
  // Mostly every key was reserved, and an entry is where its key is.
  if (key_index < key_indexes.size() && key_indexes[key_index] == key_index) return key_index;
  const auto found = std::lower_bound(key_indexes.begin(), key_indexes.end(), key_index);
  if (found == key_indexes.end() || *found != key_index) return kEntryNone;
  return static_cast<uint32_t>(found - key_indexes.begin());
}

LeaseId LeaseTable::Open(LeaseKind kind, const LeaseToken& token, uint32_t group_index) {
  LeaseId id;
  if (!free_ids_.empty()) {
    id = free_ids_.back();
    free_ids_.pop_back();
  } else {
    id = id_count();
    leases_.emplace_back();
  }
  Lease& lease = leases_[id];
  ++lease.stamp;
  lease.token = token;
  lease.kind = kind;
  lease.phase = LeasePhase::kBuilding;
  lease.group_index = group_index;
  if (kind != LeaseKind::kPrefetch) {
    const bool is_new = by_token_.emplace(token, id).second;
    TERRACE_CHECK(is_new && !token.is_zero(), "tokens are drawn unique");
  }
  ++count_;
  return id;
}

void LeaseTable::Forget(LeaseId id) {
  const auto found = by_token_.find(leases_[id].token);
  if (found != by_token_.end() && found->second == id) by_token_.erase(found);
}

void LeaseTable::Close(LeaseId id) {
  Lease& lease = leases_[id];
  TERRACE_CHECK(lease.phase != LeasePhase::kUnused && lease.entries.empty() &&
                    lease.left_behind.empty() && lease.joiners.empty(),
                "a lease closes when nothing is left in it");
  Forget(id);
  const uint32_t stamp = lease.stamp;
  lease = Lease{};  // a long one gives its memory back now, not when its place is used again
  lease.stamp = stamp;
  free_ids_.push_back(id);
  --count_;
}

LeaseId LeaseTable::Find(const LeaseToken& token) const {
  const auto found = by_token_.find(token);
  return found == by_token_.end() ? kLeaseNone : found->second;
}

}  // namespace terrace

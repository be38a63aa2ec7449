#include "daemon/block/lease_table.h"

#include <algorithm>
#include <utility>

#include "terrace/check.h"

namespace terrace {

// Takes entries off the end of a list.
static LastEntries PopPath(std::vector<LeaseEntry>* entries, uint32_t* budget) {
  LastEntries popped{.last = entries->back()};
  entries->pop_back();
  --*budget;
  popped.path = {.first = popped.last.block, .block_count = 1};
  if (popped.last.block == kBlockNone || popped.last.flags != 0) return popped;
  while (*budget > 0 && !entries->empty() && popped.path.first > 0 && entries->back().flags == 0 &&
         entries->back().block == popped.path.first - 1) {
    entries->pop_back();
    --*budget;
    --popped.path.first;
    ++popped.path.block_count;
  }
  return popped;
}

LastEntries CutTail::PopLast(uint32_t* budget) {
  TERRACE_CHECK(!entries.empty() && *budget > 0, "there is something to be taken");
  return PopPath(&entries, budget);
}

// ---- phases ----

LeaseId LeaseTable::Open(const NewLease& opened) {
  LeaseId id;
  if (!free_ids_.empty()) {
    id = free_ids_.back();
    free_ids_.pop_back();
  } else {
    id = id_count();
    leases_.emplace_back();
  }
  Lease& lease = leases_[id];
  TERRACE_CHECK(lease.phase == LeasePhase::kUnused, "a lease has an id of its own");
  ++lease.stamp;
  lease.token = opened.token;
  lease.kind = opened.kind;
  lease.phase = LeasePhase::kBuilding;
  lease.group_index = opened.group_index;
  lease.marks = CommitMarks(opened.part_words);
  lease.owner = opened.owner;
  lease.owner_stamp = opened.owner_stamp;
  lease.created_us = opened.created_us;
  if (opened.kind != LeaseKind::kPrefetch) {
    const bool is_new = by_token_.emplace(opened.token, id).second;
    TERRACE_CHECK(is_new && !opened.token.is_zero(), "tokens are drawn unique");
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
                    lease.left_behind.empty() && lease.slots_kept.empty() && lease.joiners.empty(),
                "a lease closes when nothing is left in it");
  Forget(id);
  const uint32_t stamp = lease.stamp;
  lease = Lease{};  // a long one gives its memory back now, not when its place is used again
  lease.stamp = stamp;
  free_ids_.push_back(id);
  --count_;
}

void LeaseTable::GoLive(LeaseId id) {
  Lease& lease = leases_[id];
  TERRACE_CHECK(lease.phase == LeasePhase::kBuilding, "a lease is built once");
  lease.phase = LeasePhase::kLive;
  if (lease.entries.capacity() <= 2 * lease.entries.size() + kSpareEntriesMax) return;
  lease.entries.shrink_to_fit();
  lease.marks.EndKeys();
}

bool LeaseTable::Revoke(LeaseId id) {
  Lease& lease = leases_[id];
  TERRACE_CHECK(lease.phase != LeasePhase::kUnused, "what is revoked is a lease");
  if (lease.phase == LeasePhase::kRevoked || lease.phase == LeasePhase::kEnding) return false;
  lease.phase = LeasePhase::kRevoked;
  return true;
}

void LeaseTable::BeginEnd(LeaseId id) {
  TERRACE_CHECK(leases_[id].phase != LeasePhase::kUnused && leases_[id].joiners.empty(),
                "a lease ends when the last joiner has left");
  leases_[id].phase = LeasePhase::kEnding;
  Forget(id);
}

void LeaseTable::Join(LeaseId id, SessionIndex session) {
  std::vector<Joiner>& joiners = leases_[id].joiners;
  TERRACE_CHECK(std::ranges::find(joiners, session, &Joiner::session) == joiners.end(),
                "a session joins a lease once");
  joiners.push_back({.session = session});
}

void LeaseTable::RemoveJoiner(LeaseId id, SessionIndex session) {
  std::vector<Joiner>& joiners = leases_[id].joiners;
  const auto joiner = std::ranges::find(joiners, session, &Joiner::session);
  TERRACE_CHECK(joiner != joiners.end(), "only a joiner leaves");
  joiners.erase(joiner);
}

// ---- entries ----

void LeaseTable::MakeRoom(LeaseId id, size_t entry_count) {
  Lease& lease = leases_[id];
  lease.entries.reserve(entry_count);
  if (lease.kind == LeaseKind::kWrite) lease.marks.MakeRoom(entry_count);
}

void LeaseTable::Append(LeaseId id, const LeaseEntry& entry) {
  leases_[id].entries.push_back(entry);
  ++leases_[id].charged_count;
}

void LeaseTable::AppendPath(LeaseId id, BlockRange range) {
  Lease& lease = leases_[id];
  for (uint32_t i = 0; i < range.block_count; ++i) {
    lease.entries.push_back({.block = range.first + i});
  }
  lease.charged_count += range.block_count;
}

void LeaseTable::AppendPath(LeaseId id, std::span<const BlockId> run) {
  Lease& lease = leases_[id];
  const size_t first = lease.entries.size();
  lease.entries.resize(first + run.size());
  for (size_t i = 0; i < run.size(); ++i) lease.entries[first + i].block = run[i];
  lease.charged_count += static_cast<uint32_t>(run.size());
}

bool LeaseTable::Flag(LeaseId id, uint32_t entry_index, uint8_t flag) {
  LeaseEntry& entry = leases_[id].entries[entry_index];
  if (entry.block == kBlockNone || (entry.flags & flag) != 0) return false;
  entry.flags |= flag;
  return true;
}

LeaseEntry LeaseTable::Take(LeaseId id, uint32_t entry_index) {
  return std::exchange(leases_[id].entries[entry_index], {});
}

void LeaseTable::KeepSlots(LeaseId id, std::span<const SlotRef> slots) {
  std::vector<SlotRef>& kept = leases_[id].slots_kept;
  kept.insert(kept.end(), slots.begin(), slots.end());
}

SlotRef LeaseTable::TakeSlot(LeaseId id) {
  std::vector<SlotRef>& kept = leases_[id].slots_kept;
  TERRACE_CHECK(!kept.empty(), "there is something to be taken");
  const SlotRef slot = kept.back();
  kept.pop_back();
  return slot;
}

// ---- ends ----

LeaseTable::Revoked LeaseTable::RevokeNext(LeaseId id) {
  Lease& lease = leases_[id];
  TERRACE_CHECK(lease.is_to_revoke(), "a revocation deals with each entry once");
  LeaseEntry& entry = lease.revoked_behind_count < lease.left_behind.size()
                          ? lease.left_behind[lease.revoked_behind_count++]
                          : lease.entries[lease.revoked_count++];
  const bool is_fenced_now = entry.block != kBlockNone && (entry.flags & kEntryFenced) == 0;
  if (is_fenced_now) entry.flags |= kEntryFenced;
  return {.entry = entry, .is_fenced_now = is_fenced_now};
}

CutTail LeaseTable::Cut(LeaseId id, uint32_t from_entry) {
  Lease& lease = leases_[id];
  CutTail tail{.lease = id};
  if (from_entry >= lease.entries.size()) return tail;
  if (from_entry == 0) {
    tail.entries.swap(lease.entries);
  } else {
    tail.entries.assign(lease.entries.begin() + from_entry, lease.entries.end());
    lease.entries.resize(from_entry);
  }
  lease.revoked_count = std::min(lease.revoked_count, from_entry);
  return tail;
}

void LeaseTable::LeaveBehind(LeaseId id, const LeaseEntry& entry) {
  leases_[id].left_behind.push_back(entry);
}

LastEntries LeaseTable::PopLast(LeaseId id, uint32_t* budget) {
  Lease& lease = leases_[id];
  std::vector<LeaseEntry>& entries = lease.entries.empty() ? lease.left_behind : lease.entries;
  TERRACE_CHECK(!entries.empty() && *budget > 0, "there is something to be taken");
  if (lease.kind != LeaseKind::kWrite) return PopPath(&entries, budget);
  const LeaseEntry last = entries.back();
  entries.pop_back();
  --*budget;
  return {.last = last, .path = {.first = last.block, .block_count = 1}};
}

LeaseId LeaseTable::Find(const LeaseToken& token) const {
  const auto found = by_token_.find(token);
  return found == by_token_.end() ? kLeaseNone : found->second;
}

}  // namespace terrace

#include "daemon/lease/lease_manager.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {

Result<LeaseId> LeaseManager::Open(LeaseKind kind, SessionIndex session, uint32_t group_index) {
  SessionRecord& owner = sessions_.at(session);
  LeaseToken token;
  if (kind != LeaseKind::kPrefetch) {
    if (owner.leases.size() >= d_.limits.leases_per_session_max) {
      return Status(StatusCode::kNoSpace, "the session has leases_per_session_max leases");
    }
    if (ChargeLeft(owner) == 0) {
      return Status(StatusCode::kNoSpace, "the domain's leases hold lease_blocks_max blocks");
    }
    do {
      token = {.low = d_.seams.random.Next(), .high = d_.seams.random.Next()};
    } while (token.is_zero() || d_.leases.Find(token) != kLeaseNone);
  }
  const LeaseId id = d_.leases.Open(
      {.kind = kind,
       .token = token,
       .group_index = group_index,
       .part_words = kind == LeaseKind::kWrite ? d_.groups[group_index]->part_words() : 0,
       .owner = session,
       .owner_stamp = owner.stamp,
       .created_us = d_.NowUs()});
  d_.lease_charge.of_owner() += kLeaseCostBlocks;
  owner.lease_charge += kLeaseCostBlocks;
  if (kind != LeaseKind::kPrefetch) {
    const Status status = Join(id, session);
    TERRACE_CHECK(status.ok(), "the session has room for a lease");
  }
  return id;
}

Status LeaseManager::Join(LeaseId id, SessionIndex session) {
  SessionRecord& record = sessions_.at(session);
  if (record.leases.size() >= d_.limits.leases_per_session_max) {
    return Status(StatusCode::kNoSpace, "the session has leases_per_session_max leases");
  }
  d_.leases.Join(id, session);
  record.leases.push_back(id);
  if (record.deadline == kHandleNone) {
    const uint64_t ttl_us = d_.limits.lease_ttl_ms * kUsPerMs;
    record.deadline = d_.seams.deadlines.Add({.due_us = record.last_sign_us + ttl_us,
                                              .kind = DeadlineKind::kSessionSilent,
                                              .domain_index = d_.domain_index,
                                              .id = session});
  }
  return Status::Ok();
}

bool LeaseManager::IsJoiner(LeaseId id, SessionIndex session) const {
  for (const Joiner& joiner : d_.leases.at(id).joiners) {
    if (joiner.session == session) return true;
  }
  return false;
}

bool LeaseManager::IsVoid(LeaseId id) const {
  const Lease& lease = d_.leases.at(id);
  if (lease.phase != LeasePhase::kBuilding && lease.phase != LeasePhase::kLive) return true;
  if (lease.kind != LeaseKind::kWrite) return false;
  for (const Joiner& joiner : lease.joiners) {
    if (sessions_.at(joiner.session).is_hung_up) return true;
  }
  return false;
}

uint32_t LeaseManager::BlocksLeft(LeaseId id) const { return BlocksLeftOf(d_.leases.at(id).owner); }

uint32_t LeaseManager::BlocksLeftOf(SessionIndex session) const {
  const SessionRecord& owner = sessions_.at(session);
  const uint32_t own_left = d_.limits.lease_blocks_per_session_max -
                            std::min(owner.lease_blocks, d_.limits.lease_blocks_per_session_max);
  return static_cast<uint32_t>(std::min<uint64_t>(own_left, ChargeLeft(owner)));
}

// What all others leave, but never less than the session's equal share.
uint64_t LeaseManager::ChargeLeft(const SessionRecord& owner) const {
  const uint64_t share = d_.limits.lease_blocks_max / d_.limits.sessions.sessions_max;
  const uint64_t share_left = share - std::min(owner.lease_charge, share);
  const uint64_t pool_left =
      d_.limits.lease_blocks_max - std::min<uint64_t>(d_.lease_charge, d_.limits.lease_blocks_max);
  return std::max(share_left, pool_left);
}

void LeaseManager::Charge(LeaseId id, uint32_t block_count) {
  SessionRecord& owner = sessions_.at(d_.leases.at(id).owner);
  owner.lease_blocks += block_count;
  owner.lease_charge += block_count;
  d_.lease_charge.of_owner() += block_count;
}

void LeaseManager::Uncharge(const Lease& lease) {
  const uint64_t charge = uint64_t{lease.charged_count} + kLeaseCostBlocks;
  TERRACE_CHECK(d_.lease_charge >= charge, "a lease was charged before it is uncharged");
  d_.lease_charge.of_owner() -= charge;
  SessionRecord& owner = sessions_.at(lease.owner);
  if (!sessions_.IsOpen(lease.owner, lease.owner_stamp)) return;
  TERRACE_CHECK(owner.lease_blocks >= lease.charged_count && owner.lease_charge >= charge,
                "a lease was charged to its owner");
  owner.lease_blocks -= lease.charged_count;
  owner.lease_charge -= charge;
}

void LeaseManager::Append(LeaseId id, BlockId block, uint8_t flags) {
  d_.leases.Append(id, {.block = block, .flags = flags});
  Charge(id, 1);
  residency_.holds.Hold(block, HoldKind::kLease);
}

void LeaseManager::AppendPath(LeaseId id, std::span<const BlockId> run) {
  d_.leases.AppendPath(id, run);
  Charge(id, static_cast<uint32_t>(run.size()));
  residency_.holds.HoldPath(run);
}

void LeaseManager::AppendReady(LeaseId id, std::span<const BlockRange> path) {
  uint32_t block_count = 0;
  for (const BlockRange& range : path) block_count += range.block_count;
  d_.leases.MakeRoom(id, d_.leases.at(id).entries.size() + block_count);
  for (const BlockRange& range : path) {
    d_.leases.AppendPath(id, range);
    residency_.holds.HoldReady(range);
  }
  Charge(id, block_count);
}

bool LeaseManager::IsAlone(LeaseId id, SessionIndex session) const {
  const std::vector<Joiner>& joiners = d_.leases.at(id).joiners;
  return joiners.size() == 1 && joiners[0].session == session;
}

void LeaseManager::Sealed(LeaseId id, SessionIndex session, uint32_t entry_index,
                          std::span<const SlotRef> slots_left) {
  if (!IsAlone(id, session)) {
    d_.leases.KeepSlots(id, slots_left);
    d_.leases.Flag(id, entry_index, kEntrySealed);
    return;
  }
  for (const SlotRef& slot : slots_left) d_.slots.Free(slot);
  Release(d_.leases.Take(id, entry_index));
}

// ---- ends ----

void LeaseManager::Leave(LeaseId id, SessionIndex session) {
  waiters_.DropAll(sessions_.at(session).id, id);
  RemoveJoiner(id, session);
  EndIfDeserted(id);
}

void LeaseManager::RemoveJoiner(LeaseId id, SessionIndex session) {
  if (d_.leases.at(id).phase == LeasePhase::kRevoked) --sessions_.at(session).revoked_leases;
  d_.leases.RemoveJoiner(id, session);
  std::vector<LeaseId>& leases = sessions_.at(session).leases;
  const auto place = std::find(leases.rbegin(), leases.rend(), id);
  TERRACE_CHECK(place != leases.rend(), "a session knows the leases it joined");
  *place = leases.back();
  leases.pop_back();
}

void LeaseManager::EndIfDeserted(LeaseId id) {
  const Lease& lease = d_.leases.at(id);
  if (!lease.joiners.empty()) return;
  d_.leases.BeginEnd(id);
  if (!lease.is_unnoted) d_.lease_backlog.Add(LeaseWork{LeaseWorkKind::kEnd, id, lease.stamp});
}

Status LeaseManager::AbortKeys(LeaseId id, SessionIndex session,
                               std::span<const uint32_t> key_indexes) {
  const Lease& lease = d_.leases.at(id);
  for (const uint32_t index : key_indexes) {
    if (index >= lease.marks.key_count()) {
      return Status(StatusCode::kInvalid, "a key index is not of this lease");
    }
  }
  const bool is_alone = IsAlone(id, session);
  for (const uint32_t index : key_indexes) {
    const uint32_t place = lease.marks.EntryOf(index);
    if (place == kEntryNone) continue;
    const BlockId block = lease.entries[place].block;
    if (block == kBlockNone || d_.block(block).phase != BlockPhase::kReserved) continue;
    if (is_alone) {
      d_.leases.Take(id, place);
      residency_.lifecycle.Erase(block, StatusCode::kGone);
      residency_.holds.LetGo(block, HoldKind::kLease);
    } else {
      // The others may still be writing: the slots wait for the end of the lease.
      if (d_.leases.Flag(id, place, kEntryFenced)) residency_.holds.Hold(block, HoldKind::kFence);
      residency_.lifecycle.Erase(block, StatusCode::kGone);
    }
  }
  return Status::Ok();
}

void LeaseManager::AbortAll(LeaseId id, SessionIndex session) {
  const Lease& lease = d_.leases.at(id);
  if (lease.phase == LeasePhase::kLive && lease.joiners.size() > 1) {
    Revoke(id);
    for (const Joiner& joiner : lease.joiners) {
      const SessionRecord& record = sessions_.at(joiner.session);
      if (joiner.session == session || record.is_hung_up) continue;
      d_.seams.listener.OnLeaseRevoked(record.id, lease.token);
    }
  }
  Leave(id, session);
}

void LeaseManager::Revoke(LeaseId id) {
  if (!d_.leases.Revoke(id)) return;
  const Lease& lease = d_.leases.at(id);
  ++d_.counters.leases_revoked;
  for (const Joiner& joiner : lease.joiners) {
    SessionRecord& record = sessions_.at(joiner.session);
    ++record.revoked_leases;
    waiters_.DropAll(record.id, id);
  }
  d_.lease_backlog.Add(LeaseWork{LeaseWorkKind::kRevoke, id, lease.stamp});
}

void LeaseManager::OnHangUp(SessionIndex session) {
  d_.lease_backlog.Add(LeaseWork{LeaseWorkKind::kSession, session, sessions_.at(session).stamp});
}

void LeaseManager::OnSilence(SessionIndex session) {
  // Leave() and Revoke() do not change a session's list of leases under this walk.
  const std::vector<LeaseId>& leases = sessions_.at(session).leases;
  uint32_t revoked_count = 0;
  for (const LeaseId id : leases) {
    const Lease& lease = d_.leases.at(id);
    if (IsVoid(id) || !IsSilent(lease)) continue;
    Revoke(id);
    ++revoked_count;
    for (const Joiner& joiner : lease.joiners) {
      const SessionRecord& record = sessions_.at(joiner.session);
      if (!record.is_hung_up) d_.seams.listener.OnLeaseRevoked(record.id, lease.token);
    }
  }
  const SessionRecord& silent = sessions_.at(session);
  if (revoked_count > 0 && !silent.is_hung_up && d_.limits.on_silent) {
    d_.limits.on_silent(d_.domain_index, silent.id, revoked_count);
  }
}

bool LeaseManager::IsSilent(const Lease& lease) const {
  const uint64_t ttl_us = d_.limits.lease_ttl_ms * kUsPerMs;
  for (const Joiner& joiner : lease.joiners) {
    const SessionRecord& record = sessions_.at(joiner.session);
    if (!record.is_hung_up && record.last_sign_us + ttl_us > d_.NowUs()) return false;
  }
  return true;
}

// ---- work in turns ----

bool LeaseManager::has_work() const { return !d_.lease_backlog.is_empty(); }

bool LeaseManager::Step(uint32_t* budget) {
  const uint32_t budget_before = *budget;
  while (*budget > 0 && has_work()) {
    // Before anything else is done to their leases.
    LeaseBacklog& backlog = d_.lease_backlog;
    if (!backlog.tails().empty()) {
      if (StepTail(&backlog.first_tail(), budget)) backlog.EndTail();
      continue;
    }
    if (!backlog.entries().empty()) {
      Release(backlog.TakeEntry());
      --*budget;
      continue;
    }
    const LeaseWork work = backlog.first_work();
    --*budget;
    bool is_done = true;
    if (work.kind == LeaseWorkKind::kSession) {
      if (sessions_.IsOpen(work.id, work.stamp)) is_done = StepSession(work.id, budget);
    } else if (d_.leases.at(work.id).stamp == work.stamp) {
      is_done =
          work.kind == LeaseWorkKind::kEnd ? StepEnd(work.id, budget) : StepRevoke(work.id, budget);
    }
    if (is_done) backlog.EndWork();
  }
  d_.seams.work += budget_before - *budget;
  return has_work();
}

// The tail first, as paths go.
bool LeaseManager::StepTail(CutTail* tail, uint32_t* budget) {
  while (!tail->entries.empty()) {
    if (*budget == 0) return false;
    const auto [entry, path] = tail->PopLast(budget);
    if (entry.block == kBlockNone) continue;
    if (tail->stays || (entry.flags & kEntryByParts) != 0) {
      const uint8_t flags = entry.flags | kEntryByParts;
      for (uint32_t i = path.block_count; i-- > 0;) {
        d_.leases.LeaveBehind(tail->lease, {.block = path.first + i, .flags = flags});
      }
    } else if (entry.flags == 0) {
      residency_.holds.LetGoPath(path);
    } else {
      Release(entry);
    }
  }
  return true;
}

// A hung-up session's leases, one after the other. Those of a dead one it leaves.
bool LeaseManager::StepSession(SessionIndex session, uint32_t* budget) {
  SessionRecord& record = sessions_.at(session);
  while (record.revoked_count < record.leases.size()) {
    if (*budget == 0) return false;
    --*budget;
    const LeaseId id = record.leases[record.revoked_count];
    const Lease& lease = d_.leases.at(id);
    bool has_living = false;
    for (const Joiner& joiner : lease.joiners) {
      has_living |= !sessions_.at(joiner.session).is_hung_up;
    }
    if (lease.kind == LeaseKind::kWrite || !has_living) {
      const bool is_news = lease.phase != LeasePhase::kRevoked;
      Revoke(id);
      for (const Joiner& joiner : lease.joiners) {
        const SessionRecord& other = sessions_.at(joiner.session);
        if (is_news && !other.is_hung_up) d_.seams.listener.OnLeaseRevoked(other.id, lease.token);
      }
    }
    ++record.revoked_count;
  }
  if (!record.is_dead) return true;
  while (!record.leases.empty()) {
    if (*budget == 0) return false;
    --*budget;
    const LeaseId id = record.leases.back();
    RemoveJoiner(id, session);
    EndIfDeserted(id);
  }
  sessions_.Close(session);
  return true;
}

// Block by block, the last first, each follower would be told of each.
void LeaseManager::LoseUnwritten(const Lease& lease) {
  const size_t end = std::min<size_t>(lease.entries.size(), protocol::kBlocksPerTurnMax);
  for (size_t i = 0; i < end; ++i) {
    const BlockId block = lease.entries[i].block;
    if (block == kBlockNone || d_.block(block).phase != BlockPhase::kReserved) continue;
    waiters_.OnBlockLost(block, StatusCode::kGone);
    return;
  }
}

void LeaseManager::EraseUnwritten(BlockId block, uint32_t* budget) {
  const uint64_t work_before = d_.seams.work;
  residency_.lifecycle.Erase(block, StatusCode::kGone);
  const uint64_t spent = std::min<uint64_t>(d_.seams.work - work_before, *budget);
  d_.seams.work -= spent;  // Step() counts what the budget lost
  *budget -= static_cast<uint32_t>(spent);
}

bool LeaseManager::StepRevoke(LeaseId id, uint32_t* budget) {
  if (d_.leases.at(id).kind == LeaseKind::kWrite) LoseUnwritten(d_.leases.at(id));
  while (d_.leases.at(id).is_to_revoke()) {
    if (*budget == 0) return false;
    --*budget;
    const auto [entry, is_fenced_now] = d_.leases.RevokeNext(id);
    if (is_fenced_now) residency_.holds.Hold(entry.block, HoldKind::kFence);
    if (d_.leases.at(id).kind == LeaseKind::kWrite && entry.block != kBlockNone &&
        d_.block(entry.block).phase == BlockPhase::kReserved) {
      EraseUnwritten(entry.block, budget);
    }
  }
  return true;
}

// The lease's blocks are let go, the tail first.
bool LeaseManager::StepEnd(LeaseId id, uint32_t* budget) {
  const Lease& lease = d_.leases.at(id);
  if (lease.kind == LeaseKind::kWrite) LoseUnwritten(lease);
  while (!lease.entries.empty() || !lease.left_behind.empty()) {
    if (*budget == 0) return false;
    const auto [entry, path] = d_.leases.PopLast(id, budget);
    if (entry.block == kBlockNone) continue;
    if (lease.kind != LeaseKind::kWrite && entry.flags == 0) {
      residency_.holds.LetGoPath(path);
      continue;
    }
    if (lease.kind == LeaseKind::kWrite && d_.block(entry.block).phase == BlockPhase::kReserved) {
      EraseUnwritten(entry.block, budget);
    }
    Release(entry);
  }
  while (!lease.slots_kept.empty()) {
    if (*budget == 0) return false;
    --*budget;
    d_.slots.Free(d_.leases.TakeSlot(id));
  }
  Uncharge(lease);
  d_.leases.Close(id);
  return true;
}

void LeaseManager::Release(const LeaseEntry& entry) {
  if (entry.flags & kEntryFenced) residency_.holds.LetGo(entry.block, HoldKind::kFence);
  residency_.holds.LetGo(entry.block, HoldKind::kLease);
}

}  // namespace terrace

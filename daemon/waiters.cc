#include "daemon/waiters.h"

#include <algorithm>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

void EraseFrom(std::vector<PendingId>* list, PendingId id) {
  const auto found = std::find(list->rbegin(), list->rend(), id);
  TERRACE_CHECK(found != list->rend(), "a pending request is in its lists");
  *found = list->back();
  list->pop_back();
}

}  // namespace

PendingId Waiters::Open(const NewPending& what) {
  const RequestKey key{what.session, what.request_id};
  if (by_request_.contains(key)) return kPendingNone;
  PendingId id;
  if (free_pendings_.empty()) {
    id = static_cast<PendingId>(pendings_.size());
    pendings_.emplace_back();
  } else {
    id = free_pendings_.back();
    free_pendings_.pop_back();
  }
  const uint32_t stamp = pendings_[id].stamp + 1;
  pendings_[id] = Pending{.what = what, .stamp = stamp, .is_used = true};
  by_request_.emplace(key, id);
  by_session_[what.session].push_back(id);
  if (what.lease != kLeaseNone) by_lease_[what.lease].push_back(id);
  return id;
}

PendingId Waiters::Find(SessionId session, uint64_t request_id) const {
  const auto found = by_request_.find({session, request_id});
  return found == by_request_.end() ? kPendingNone : found->second;
}

uint32_t Waiters::CountOf(SessionId session) const {
  const auto found = by_session_.find(session);
  return found == by_session_.end() ? 0 : static_cast<uint32_t>(found->second.size());
}

void Waiters::Await(PendingId id, uint32_t entry_index, BlockId block) {
  Pending& pending = pendings_[id];
  uint32_t node;
  if (free_nodes_.empty()) {
    node = node_count_++;
    nodes_.Reach(node);
  } else {
    node = free_nodes_.back();
    free_nodes_.pop_back();
  }
  Block& b = d_.block(block);
  nodes_[node] = {.pending = id,
                  .block = block,
                  .coming_index = static_cast<uint32_t>(pending.coming.size()),
                  .next = b.waiters};
  if (b.waiters != kHandleNone) nodes_[b.waiters].previous = node;
  b.waiters = node;
  pending.coming.push_back({.entry_index = entry_index, .node = node, .block = block});
  ++pending.awaited_count;
}

void Waiters::GiveNode(uint32_t node) {
  const Node& n = nodes_[node];
  if (n.next != kHandleNone) nodes_[n.next].previous = n.previous;
  if (n.previous != kHandleNone) {
    nodes_[n.previous].next = n.next;
  } else {
    d_.block(n.block).waiters = n.next;
  }
  Pending& pending = pendings_[n.pending];
  pending.coming[n.coming_index].node = kHandleNone;
  --pending.awaited_count;
  free_nodes_.push_back(node);
}

bool Waiters::Arm(PendingId id, uint64_t deadline_us) {
  Pending& pending = pendings_[id];
  if (pending.coming.empty()) {
    End(id);
    return false;
  }
  pending.is_armed = true;
  pending.deadline = d_.seams.deadlines.Add({.due_us = deadline_us,
                                             .kind = DeadlineKind::kPending,
                                             .domain_index = d_.domain_index,
                                             .id = id});
  unannounced_.push_back({id, pending.stamp});
  return true;
}

void Waiters::ArmErasure(PendingId id, const ErasureMark& mark, uint64_t deadline_us) {
  Pending& pending = pendings_[id];
  pending.is_armed = true;
  pending.deadline = d_.seams.deadlines.Add({.due_us = deadline_us,
                                             .kind = DeadlineKind::kPending,
                                             .domain_index = d_.domain_index,
                                             .id = id});
  erasures_.push_back({id, pending.stamp, mark});
}

void Waiters::StepErasures() {
  std::erase_if(erasures_, [this](Erasure& erasure) {
    const Pending& pending = pendings_[erasure.id];
    if (!pending.is_used || pending.stamp != erasure.stamp) return true;
    if (!d_.IsErased(&erasure.mark)) return false;
    EndWait(erasure.id, StatusCode::kOk);
    return true;
  });
}

bool Waiters::Step() {
  if (unannounced_.empty()) return false;
  const std::vector<Unannounced> now = std::move(unannounced_);
  unannounced_.clear();
  for (const Unannounced& item : now) {
    Pending& pending = pendings_[item.id];
    if (!pending.is_used || pending.stamp != item.stamp) continue;
    if (!std::exchange(pending.is_announced, true) && pending.what.kind == PendingKind::kAcquire) {
      for (uint32_t i = pending.next; i < pending.coming.size(); ++i) {
        TellParts(pending, pending.coming[i]);
      }
    }
    if (pending.what.kind != PendingKind::kWait) Advance(item.id);
  }
  return true;
}

// The parts of a Reserved block that its writer has committed so far.
void Waiters::TellParts(const Pending& pending, const Coming& coming) {
  const Block& b = d_.block(coming.block);
  if (coming.node == kHandleNone) {
    TellAbsent(pending, coming);
    return;
  }
  if (b.phase != BlockPhase::kReserved || b.writer_lease == kHandleNone) return;
  const Lease& writer = d_.leases.at(b.writer_lease);
  const Group& group = d_.group_of(b);
  const uint64_t* bits = &writer.part_bits[size_t{b.writer_entry} * group.part_words()];
  for (const LocalMember& local : group.locals()) {
    if (!((pending.what.member_mask >> local.member) & 1)) continue;
    if ((writer.absent_masks[b.writer_entry] >> local.member) & 1) {
      Tell(pending, StatusCode::kOk,
           {.first_block = coming.entry_index,
            .block_count = 1,
            .part_count = local.part_count,
            .member = local.member,
            .flags = protocol::kCompletionAbsent});
      continue;
    }
    const auto is_in = [&](uint32_t part) {
      const uint32_t bit = local.first_part_bit + part;
      return part < local.part_count && ((bits[bit / 64] >> (bit % 64)) & 1);
    };
    for (uint32_t part = 0; part < local.part_count; ++part) {
      if (!is_in(part)) continue;
      const uint32_t first = part;
      while (is_in(part + 1)) ++part;
      Tell(pending, StatusCode::kOk,
           {.first_block = coming.entry_index,
            .block_count = 1,
            .part_first = first,
            .part_count = part + 1 - first,
            .member = local.member});
    }
  }
}

// Sealed before anybody was told: members whose slots were handed out and turned out to be empty.
void Waiters::TellAbsent(const Pending& pending, const Coming& coming) {
  const Block& b = d_.block(coming.block);
  for (const LocalMember& local : d_.group_of(b).locals()) {
    const uint64_t bit = uint64_t{1} << local.member;
    if (!(pending.what.member_mask & bit) || (b.dram.member_mask & bit)) continue;
    Tell(pending, StatusCode::kOk,
         {.first_block = coming.entry_index,
          .block_count = 1,
          .part_count = local.part_count,
          .member = local.member,
          .flags = protocol::kCompletionAbsent});
  }
}

void Waiters::OnParts(BlockId id, const protocol::CommitEntry& entry) {
  const bool is_absent = (entry.flags & protocol::kCommitAbsent) != 0;
  for (uint32_t node = d_.block(id).waiters; node != kHandleNone; node = nodes_[node].next) {
    const Pending& pending = pendings_[nodes_[node].pending];
    if (pending.what.kind != PendingKind::kAcquire || !pending.is_announced) continue;
    if (!((pending.what.member_mask >> entry.member) & 1)) continue;
    Tell(pending, StatusCode::kOk,
         {.first_block = pending.coming[nodes_[node].coming_index].entry_index,
          .block_count = 1,
          .part_first = entry.part_first,
          .part_count = is_absent ? 1u : entry.part_count,  // 0 would mean the whole block
          .member = entry.member,
          .flags = is_absent ? protocol::kCompletionAbsent : 0});
  }
}

void Waiters::OnBlockReady(BlockId id) {
  std::vector<PendingId> woken;
  for (uint32_t node = d_.block(id).waiters; node != kHandleNone;) {
    const uint32_t next = nodes_[node].next;
    const PendingId pending = nodes_[node].pending;
    if (pendings_[pending].what.kind != PendingKind::kWait) {
      GiveNode(node);
      woken.push_back(pending);
    }
    node = next;
  }
  // First come, first told; the list has the last one first.
  for (size_t i = woken.size(); i-- > 0;) {
    if (pendings_[woken[i]].is_used) Advance(woken[i]);
  }
}

// Nothing ends here: the block itself is still to come.
void Waiters::OnStepsIn(BlockId id) {
  for (uint32_t node = d_.block(id).waiters; node != kHandleNone; node = nodes_[node].next) {
    const PendingId pending = nodes_[node].pending;
    if (pendings_[pending].what.is_by_parts) Advance(pending);
  }
}

void Waiters::OnBlockPersisted(BlockId id) {
  std::vector<PendingId> woken;
  for (uint32_t node = d_.block(id).waiters; node != kHandleNone;) {
    const uint32_t next = nodes_[node].next;
    const PendingId pending = nodes_[node].pending;
    if (pendings_[pending].what.kind == PendingKind::kWait) {
      GiveNode(node);
      woken.push_back(pending);
    }
    node = next;
  }
  for (size_t i = woken.size(); i-- > 0;) {
    const Pending& pending = pendings_[woken[i]];
    if (pending.is_used && pending.is_armed && pending.awaited_count == 0) {
      EndWait(woken[i], StatusCode::kOk);
    }
  }
}

void Waiters::OnBlockLost(BlockId id, StatusCode why) {
  Block& b = d_.block(id);
  // Waits first: they do not hold the block.
  for (uint32_t node = b.waiters; node != kHandleNone;) {
    const PendingId waiting = nodes_[node].pending;
    const bool is_wait = pendings_[waiting].what.kind == PendingKind::kWait;
    if (is_wait) {
      GiveNode(node);
      pendings_[waiting].is_lost = true;
      if (pendings_[waiting].is_armed) EndWait(waiting, StatusCode::kNotFound);
      node = b.waiters;
      continue;
    }
    node = nodes_[node].next;
  }
  while (b.waiters != kHandleNone) {
    const Node n = nodes_[b.waiters];
    const Pending& pending = pendings_[n.pending];
    Truncate(pending.what.lease, pending.coming[n.coming_index].entry_index, why);
  }
}

// A followed block's writer brings its parts in whatever order; nobody waits for them here.
bool Waiters::IsStepIn(const Coming& coming, uint32_t step) const {
  const Block& b = d_.block(coming.block);
  return coming.node == kHandleNone || b.phase == BlockPhase::kReserved || b.steps_in > step;
}

bool Waiters::AdvanceParts(PendingId id) {
  Pending& pending = pendings_[id];
  const uint32_t last = d_.groups[d_.leases.at(pending.what.lease).group_index]->step_count() - 1;
  uint32_t budget = kStepsPerTurnMax;
  while (pending.step < last) {
    const uint32_t first = pending.step_next;
    uint32_t end = first;
    while (end < pending.coming.size() && budget > 0 &&
           IsStepIn(pending.coming[end], pending.step)) {
      ++end;
      --budget;
    }
    TellStep(id, first, end);
    pending.step_next = end;
    if (budget == 0) {
      unannounced_.push_back({id, pending.stamp});
      return false;
    }
    if (end < pending.coming.size()) return false;
    ++pending.step;
    pending.step_next = 0;
  }
  return true;
}

// Of the step that is being told of, and coming[first, end): a completion for each run and member.
void Waiters::TellStep(PendingId id, uint32_t first, uint32_t end) {
  const Pending& pending = pendings_[id];
  Lease& lease = d_.leases.at(pending.what.lease);
  const auto is_promoted = [&](uint32_t i) {
    return d_.block(pending.coming[i].block).phase != BlockPhase::kReserved;
  };
  while (first < end) {
    uint32_t run_end = first;
    const uint32_t entry_index = pending.coming[first].entry_index;
    for (; run_end < end && is_promoted(run_end); ++run_end) {
      const Coming& coming = pending.coming[run_end];
      if (coming.entry_index != entry_index + (run_end - first)) break;
      lease.entries[coming.entry_index].flags |= kEntryByParts;
      d_.block(coming.block).is_part_told = true;
    }
    for (const LocalMember& local : d_.groups[lease.group_index]->locals()) {
      const bool is_meant = (pending.what.member_mask >> local.member) & 1;
      if (run_end == first || !is_meant || pending.step >= local.part_runs.size()) continue;
      const PartRun& run = local.part_runs[pending.step];
      Tell(pending, StatusCode::kOk,
           {.first_block = entry_index,
            .block_count = run_end - first,
            .part_first = run.part_first,
            .part_count = run.part_count,
            .member = local.member});
    }
    first = std::max(run_end, first + 1);
  }
}

// Tells of all that is Ready without a gap, in one completion for each run.
void Waiters::Advance(PendingId id) {
  Pending& pending = pendings_[id];
  if (!pending.is_announced) return;
  if (pending.what.is_by_parts && !AdvanceParts(id)) return;
  std::vector<LeaseEntry>& entries = d_.leases.at(pending.what.lease).entries;
  const auto is_there = [&pending](uint32_t i) {
    return i < pending.coming.size() && pending.coming[i].node == kHandleNone;
  };
  while (is_there(pending.next)) {
    const uint32_t first = pending.next;
    const auto is_run = [&pending](uint32_t i) {
      return pending.coming[i].entry_index == pending.coming[i - 1].entry_index + 1;
    };
    do {
      ++pending.next;
    } while (is_there(pending.next) && is_run(pending.next));
    const bool is_last = pending.next == pending.coming.size();
    Tell(pending, StatusCode::kOk,
         {.first_block = pending.coming[first].entry_index,
          .block_count = pending.next - first,
          .flags = is_last ? protocol::kCompletionLast : 0});
    if (pending.what.kind != PendingKind::kPrefetch) continue;
    for (uint32_t i = first; i < pending.next; ++i) {
      LeaseEntry& entry = entries[pending.coming[i].entry_index];
      residency_.LetGo(entry.block, HoldKind::kLease);
      entry.block = kBlockNone;
    }
  }
  if (pending.next == pending.coming.size()) End(id);
}

void Waiters::Expire(PendingId id) {
  Pending& pending = pendings_[id];
  if (pending.what.kind == PendingKind::kWait || pending.what.kind == PendingKind::kErasure) {
    EndWait(id, StatusCode::kBusy);
    return;
  }
  uint32_t first = pending.next;
  while (first < pending.coming.size() && pending.coming[first].node == kHandleNone) ++first;
  if (first == pending.coming.size()) return;  // all there; the next Step() tells
  Truncate(pending.what.lease, pending.coming[first].entry_index, StatusCode::kBusy);
}

void Waiters::OnDeadline(PendingId id) {
  pendings_[id].deadline = kHandleNone;
  Expire(id);
}

void Waiters::Truncate(LeaseId lease, uint32_t from_index, StatusCode why) {
  const auto found = by_lease_.find(lease);
  if (found != by_lease_.end()) {
    const std::vector<PendingId> ids = found->second;  // Cut may end some
    for (const PendingId id : ids) Cut(id, from_index, why);
  }
  LetGoFrom(d_.leases.at(lease), from_index);
}

void Waiters::Cut(PendingId id, uint32_t from_index, StatusCode why) {
  Pending& pending = pendings_[id];
  uint32_t kept = static_cast<uint32_t>(pending.coming.size());
  while (kept > 0 && pending.coming[kept - 1].entry_index >= from_index) {
    --kept;
    if (pending.coming[kept].node != kHandleNone) GiveNode(pending.coming[kept].node);
  }
  if (kept == pending.coming.size()) return;
  pending.coming.resize(kept);
  if (!pending.is_armed) return;  // its reply will be shorter
  pending.next = std::min(pending.next, kept);
  pending.step_next = std::min(pending.step_next, kept);
  const bool is_last = pending.next == kept;
  Tell(pending, why, {.first_block = from_index, .flags = is_last ? protocol::kCompletionLast : 0});
  if (is_last) {
    End(id);
  } else {
    Advance(id);  // by parts: what is left may have waited for what is gone
  }
}

void Waiters::LetGoFrom(Lease& lease, uint32_t from_index) {
  for (size_t i = from_index; i < lease.entries.size(); ++i) {
    const LeaseEntry entry = lease.entries[i];
    if (entry.block == kBlockNone) continue;
    if (entry.flags & kEntryByParts) {
      lease.left_behind.push_back(entry);
    } else {
      d_.letting_go.push_back(entry);
    }
  }
  lease.entries.resize(std::min<size_t>(lease.entries.size(), from_index));
  lease.revoked_count = std::min(lease.revoked_count, static_cast<uint32_t>(lease.entries.size()));
}

void Waiters::Tell(const Pending& pending, StatusCode status, protocol::Completion completion) {
  if (pending.what.kind == PendingKind::kAcquire) {
    completion.token = d_.leases.at(pending.what.lease).token;
  }
  d_.seams.listener.OnCompletion(pending.what.session, pending.what.request_id,
                                 status == StatusCode::kOk ? Status::Ok() : Status(status),
                                 completion);
}

StatusCode Waiters::WaitOutcome(PendingId id) const {
  const Pending& pending = pendings_[id];
  if (pending.is_lost) return StatusCode::kNotFound;
  return pending.awaited_count == 0 ? StatusCode::kOk : StatusCode::kBusy;
}

void Waiters::EndWait(PendingId id, StatusCode outcome) {
  const Pending& pending = pendings_[id];
  d_.seams.listener.OnWaitDone(pending.what.session, pending.what.request_id,
                               outcome == StatusCode::kOk ? Status::Ok() : Status(outcome));
  End(id);
}

void Waiters::Drop(PendingId id) { End(id); }

void Waiters::DropAll(SessionId session, LeaseId lease) {
  const auto found = by_session_.find(session);
  if (found == by_session_.end()) return;
  const std::vector<PendingId> ids = found->second;
  for (const PendingId id : ids) {
    if (lease == kLeaseNone || pendings_[id].what.lease == lease) End(id);
  }
}

void Waiters::End(PendingId id) {
  Pending& pending = pendings_[id];
  for (const Coming& coming : pending.coming) {
    if (coming.node != kHandleNone) GiveNode(coming.node);
  }
  if (pending.deadline != kHandleNone) d_.seams.deadlines.Remove(pending.deadline);
  by_request_.erase({pending.what.session, pending.what.request_id});
  const auto of_session = by_session_.find(pending.what.session);
  EraseFrom(&of_session->second, id);
  if (of_session->second.empty()) by_session_.erase(of_session);
  const LeaseId lease = pending.what.lease;
  if (lease != kLeaseNone) {
    const auto of_lease = by_lease_.find(lease);
    EraseFrom(&of_lease->second, id);
    if (of_lease->second.empty()) by_lease_.erase(of_lease);
  }
  const bool is_prefetch = pending.what.kind == PendingKind::kPrefetch;
  pending.is_used = false;
  pending.coming = {};
  pending.deadline = kHandleNone;
  free_pendings_.push_back(id);
  if (is_prefetch) {
    // The blocks a Prefetch still holds are nobody's now.
    d_.leases.at(lease).phase = LeasePhase::kEnding;
    d_.lease_work.push_back({LeaseWorkKind::kEnd, lease, d_.leases.at(lease).stamp});
  }
}

}  // namespace terrace

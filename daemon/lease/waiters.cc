#include "daemon/lease/waiters.h"

#include <algorithm>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

// Given back where a request loses or ends something, without a turn of its own.
constexpr uint32_t kTrimAtOnceMax = 64;
// What costs as much as one block or completion: so many words of parts compared, parts looked at,
// or entries moved or passed over.
constexpr uint32_t kWordsPerWork = 8;
constexpr uint32_t kPartsPerWork = 16;
constexpr uint32_t kEntriesPerWork = 64;
constexpr uint32_t kEndWork = 2;  // of ending a request, against looking a block up

}  // namespace

PendingId Waiters::Open(const NewPending& what) {
  const PendingId id = requests_.Open(what);
  if (id == kPendingNone) return id;
  if (id == pendings_.size()) {
    pendings_.emplace_back();
  } else {
    pendings_[id] = Pending();
  }
  return id;
}

void Waiters::Await(PendingId id, uint32_t entry_index, BlockId block) {
  Pending& pending = pendings_[id];
  TERRACE_CHECK(!requests_.IsOver(id) && !requests_.IsArmed(id),
                "an armed request waits for nothing more");
  uint32_t all = UINT32_MAX;
  Trim(id, &all);  // what was cut off while it was being built
  uint32_t node;
  if (free_nodes_.empty()) {
    node = node_count_++;
    nodes_.Reach(node);
  } else {
    node = free_nodes_.back();
    free_nodes_.pop_back();
  }
  if (pending.coming.size() == CacheDomain::kGrownAtOnceMin) {
    pending.coming.reserve(requests_.at(id).block_count);
  }
  uint32_t& head = HeadOf(block);
  nodes_[node] = {.pending = id,
                  .block = block,
                  .coming_index = static_cast<uint32_t>(pending.coming.size()),
                  .next = head};
  if (head != kHandleNone) nodes_[head].previous = node;
  head = node;
  pending.coming.push_back({.entry_index = entry_index, .node = node, .block = block});
  ++pending.end;
  ++pending.awaited_count;
}

void Waiters::GiveNode(uint32_t node) {
  const Node& n = nodes_[node];
  if (n.next != kHandleNone) nodes_[n.next].previous = n.previous;
  if (n.previous != kHandleNone) {
    nodes_[n.previous].next = n.next;
  } else {
    HeadOf(n.block) = n.next;
  }
  Pending& pending = pendings_[n.pending];
  TERRACE_CHECK(pending.coming[n.coming_index].node == node && pending.awaited_count > 0,
                "a node and what waits by it name each other, or another's wait would end");
  pending.coming[n.coming_index].node = kHandleNone;
  --pending.awaited_count;
  free_nodes_.push_back(node);
}

bool Waiters::Arm(PendingId id, uint64_t deadline_us) {
  if (pendings_[id].end == 0) {
    TERRACE_CHECK(!requests_.IsArmed(id), "a request is armed once");
    End(id);
    return false;
  }
  requests_.Arm(id, deadline_us);
  unannounced_.push_back(requests_.TicketOf(id));
  return true;
}

// What is before the first block that is coming may be read at once.
void Waiters::Promise(PendingId id, PromisedHits promised) {
  promised.Deliver(d_, pendings_[id].coming.front().entry_index);
  pendings_[id].promised = std::move(promised);
}

// ---- turns --------------------------------------------------------------------------------------

void Waiters::Spend(uint32_t work, uint32_t* budget) {
  d_.seams.work += work;
  *budget -= std::min(*budget, work);
}

void Waiters::Step() {
  uint32_t budget = kWorkPerStepMax / 2;
  StepUnannounced(&budget);
  StepWoken();
}

void Waiters::StepWoken() {
  uint32_t budget = kWorkPerStepMax / 2;
  StepWoken(&budget);
  StepTrimming(&budget);
}

void Waiters::StepUnannounced(uint32_t* budget) {
  while (!unannounced_.empty() && *budget > 0) {
    const PendingTicket item = unannounced_.front();
    unannounced_.pop_front();
    Spend(1, budget);
    if (!requests_.IsCurrent(item)) continue;
    Pending& pending = pendings_[item.id];
    const PendingKind kind = requests_.at(item.id).kind;
    if (kind == PendingKind::kAcquire && !Announce(item.id, budget)) {
      unannounced_.push_back(item);
      return;
    }
    pending.is_announced = true;
    if (kind != PendingKind::kWait) Wake(item.id);
  }
}

void Waiters::Wake(PendingId id) {
  Pending& pending = pendings_[id];
  if (!pending.is_announced || std::exchange(pending.is_woken, true)) return;
  woken_.push_back(requests_.TicketOf(id));
}

void Waiters::StepWoken(uint32_t* budget) {
  while (!woken_.empty() && *budget > 0) {
    const PendingTicket item = woken_.front();
    woken_.pop_front();
    Spend(1, budget);
    if (!requests_.IsCurrent(item)) continue;
    Pending& pending = pendings_[item.id];
    pending.is_woken = false;
    Spend(static_cast<uint32_t>(pending.parts.size()), budget);
    TellParts(item.id);
    Advance(item.id, budget);
  }
}

void Waiters::StepTrimming(uint32_t* budget) {
  while (!trimming_.empty() && *budget > 0) {
    const PendingId id = trimming_.front();
    if (!Trim(id, budget)) return;
    trimming_.pop_front();
    pendings_[id].is_trimming = false;
    if (requests_.IsOver(id)) Free(id);
  }
}

bool Waiters::Trim(PendingId id, uint32_t* budget) {
  Pending& pending = pendings_[id];
  while (pending.coming.size() > pending.end) {
    if (*budget == 0) return false;
    Spend(1, budget);
    if (pending.coming.back().node != kHandleNone) GiveNode(pending.coming.back().node);
    pending.coming.pop_back();
  }
  return true;
}

void Waiters::TrimSoon(PendingId id) {
  uint32_t budget = kTrimAtOnceMax;
  if (pendings_[id].is_trimming || Trim(id, &budget)) return;
  pendings_[id].is_trimming = true;
  trimming_.push_back(id);
}

// ---- parts of blocks that are being written -----------------------------------------------------

bool Waiters::Announce(PendingId id, uint32_t* budget) {
  Pending& pending = pendings_[id];
  while (pending.announced < pending.end) {
    if (*budget == 0) return false;
    Spend(1, budget);
    const Coming first = pending.coming[pending.announced++];
    if (first.node == kHandleNone) {
      TellAbsent(id, first);
      continue;
    }
    uint64_t absent_mask = 0;
    const std::span<const uint64_t> parts = PartsOf(first, &absent_mask);
    if (parts.empty()) continue;
    const auto compare_work = static_cast<uint32_t>(1 + parts.size() / kWordsPerWork);
    uint32_t block_count = 1;
    while (*budget > 0 && pending.announced < pending.end) {
      const Coming& next = pending.coming[pending.announced];
      uint64_t next_absent_mask = 0;
      const std::span<const uint64_t> next_parts = PartsOf(next, &next_absent_mask);
      if (next.entry_index != first.entry_index + block_count || next_absent_mask != absent_mask ||
          !std::ranges::equal(next_parts, parts)) {
        break;
      }
      ++pending.announced;
      ++block_count;
      Spend(compare_work, budget);
    }
    Spend(TellCommitted(id, first, block_count), budget);
  }
  return true;
}

std::span<const uint64_t> Waiters::PartsOf(const Coming& coming, uint64_t* absent_mask) const {
  if (coming.node == kHandleNone) return {};
  const Block& b = d_.block(coming.block);
  if (b.phase != BlockPhase::kReserved || b.writer_lease == kHandleNone) return {};
  const Lease& writer = d_.leases.at(b.writer_lease);
  *absent_mask = writer.marks.absent_mask(b.writer_entry);
  return writer.marks.PartBitsOf(b.writer_entry);
}

// The parts of the first block that its writer has committed so far; those behind it have the same.
uint32_t Waiters::TellCommitted(PendingId id, const Coming& first, uint32_t block_count) {
  uint64_t absent_mask = 0;
  const std::span<const uint64_t> bits = PartsOf(first, &absent_mask);
  uint32_t work = 0;
  const uint64_t member_mask = requests_.at(id).member_mask;
  for (const LocalMember& local : d_.group_of(d_.block(first.block)).locals()) {
    if (!((member_mask >> local.member) & 1)) continue;
    work += 1 + local.part_count / kPartsPerWork;
    if ((absent_mask >> local.member) & 1) {
      Tell(id, StatusCode::kOk,
           {.first_block = first.entry_index,
            .block_count = block_count,
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
      const uint32_t part_first = part;
      while (is_in(part + 1)) ++part;
      ++work;
      Tell(id, StatusCode::kOk,
           {.first_block = first.entry_index,
            .block_count = block_count,
            .part_first = part_first,
            .part_count = part + 1 - part_first,
            .member = local.member});
    }
  }
  return work;
}

// Sealed before anybody was told: members whose slots were handed out and turned out to be empty.
void Waiters::TellAbsent(PendingId id, const Coming& coming) {
  const Block& b = d_.block(coming.block);
  if (d_.group_of(b).windowed_count() == 0) return;
  for (const LocalMember& local : d_.group_of(b).locals()) {
    const uint64_t bit = uint64_t{1} << local.member;
    if (!(requests_.at(id).member_mask & bit) || (b.dram.member_mask & bit)) continue;
    Tell(id, StatusCode::kOk,
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
    ++d_.seams.work;
    const PendingId waiting = nodes_[node].pending;
    const Pending& pending = pendings_[waiting];
    const uint32_t coming_index = nodes_[node].coming_index;
    const NewPending& what = requests_.at(waiting);
    if (IsDead(nodes_[node]) || what.kind != PendingKind::kAcquire) continue;
    if (coming_index >= pending.announced) continue;
    if (!((what.member_mask >> entry.member) & 1)) continue;
    AddParts(waiting,
             {.first_block = pending.coming[coming_index].entry_index,
              .block_count = 1,
              .part_first = entry.part_first,
              .part_count = is_absent ? 1u : entry.part_count,  // 0 would mean the whole block
              .member = entry.member,
              .flags = is_absent ? protocol::kCompletionAbsent : 0});
    Wake(waiting);
  }
}

// A writer commits one part of many blocks, or all parts of one.
void Waiters::AddParts(PendingId id, const protocol::Completion& completion) {
  for (protocol::Completion& open : pendings_[id].parts) {
    if (open.member != completion.member) continue;
    const bool is_next_block = open.first_block + open.block_count == completion.first_block &&
                               open.part_first == completion.part_first &&
                               open.part_count == completion.part_count &&
                               open.flags == completion.flags;
    if (is_next_block) {
      ++open.block_count;
      return;
    }
    Tell(id, StatusCode::kOk, open);
    open = completion;
    return;
  }
  pendings_[id].parts.push_back(completion);
}

void Waiters::TellParts(PendingId id) {
  for (const protocol::Completion& open : pendings_[id].parts) Tell(id, StatusCode::kOk, open);
  pendings_[id].parts.clear();
}

// ---- what happens to blocks ---------------------------------------------------------------------

void Waiters::OnBlockReady(BlockId id) {
  std::vector<PendingId> ready;
  for (uint32_t node = d_.block(id).waiters; node != kHandleNone;) {
    const uint32_t next = nodes_[node].next;
    const PendingId pending = nodes_[node].pending;
    if (IsDead(nodes_[node])) {
      GiveNode(node);
    } else if (requests_.at(pending).kind != PendingKind::kWait) {
      GiveNode(node);
      ready.push_back(pending);
    }
    node = next;
  }
  d_.seams.work += ready.size();
  // First come, first told; the list has the last one first.
  for (size_t i = ready.size(); i-- > 0;) Wake(ready[i]);
}

// Nothing ends here: the block itself is still to come.
void Waiters::OnStepsIn(BlockId id) {
  for (uint32_t node = d_.block(id).waiters; node != kHandleNone; node = nodes_[node].next) {
    ++d_.seams.work;
    const PendingId pending = nodes_[node].pending;
    if (!IsDead(nodes_[node]) && requests_.at(pending).is_by_parts) Wake(pending);
  }
}

void Waiters::OnBlockPersisted(BlockId id) {
  std::vector<PendingTicket> woken;
  for (uint32_t node = d_.block(id).waiters; node != kHandleNone;) {
    const uint32_t next = nodes_[node].next;
    const PendingId pending = nodes_[node].pending;
    if (IsDead(nodes_[node])) {
      GiveNode(node);
    } else if (requests_.at(pending).kind == PendingKind::kWait) {
      GiveNode(node);
      woken.push_back(requests_.TicketOf(pending));
    }
    node = next;
  }
  for (size_t i = woken.size(); i-- > 0;) {
    const PendingTicket& waiting = woken[i];
    if (!requests_.IsCurrent(waiting) || !requests_.IsArmed(waiting.id)) continue;
    if (pendings_[waiting.id].awaited_count == 0) EndWait(waiting.id, StatusCode::kOk);
  }
}

void Waiters::OnBlockLost(BlockId id, StatusCode why) {
  const Block& b = d_.block(id);
  // Waits first: they do not hold the block.
  for (uint32_t node = b.waiters; node != kHandleNone;) {
    const PendingId waiting = nodes_[node].pending;
    const uint32_t next = nodes_[node].next;
    ++d_.seams.work;
    if (IsDead(nodes_[node])) {
      GiveNode(node);
      node = next;
    } else if (requests_.at(waiting).kind == PendingKind::kWait) {
      GiveNode(node);
      pendings_[waiting].is_lost = true;
      if (requests_.IsArmed(waiting)) EndWait(waiting, StatusCode::kNotFound);
      node = b.waiters;  // it may have waited for the block twice
    } else {
      node = next;
    }
  }
  while (b.waiters != kHandleNone) {
    const Node n = nodes_[b.waiters];
    ++d_.seams.work;
    if (IsDead(n)) {
      GiveNode(b.waiters);
      continue;
    }
    const Pending& pending = pendings_[n.pending];
    Truncate(requests_.at(n.pending).lease, pending.coming[n.coming_index].entry_index, why);
  }
}

// A followed block's writer brings its parts in whatever order; nobody waits for them here.
bool Waiters::IsStepIn(const Coming& coming, uint32_t step) const {
  const Block& b = d_.block(coming.block);
  return coming.node == kHandleNone || b.phase == BlockPhase::kReserved || b.steps_in > step;
}

bool Waiters::AdvanceParts(PendingId id, uint32_t* budget) {
  Pending& pending = pendings_[id];
  const uint32_t last =
      d_.groups[d_.leases.at(requests_.at(id).lease).group_index]->step_count() - 1;
  while (pending.step < last) {
    const uint32_t first = pending.step_next;
    uint32_t end = first;
    while (end < pending.end) {
      if (*budget == 0 || !IsStepIn(pending.coming[end], pending.step)) break;
      ++end;
      Spend(1, budget);
    }
    TellStep(id, first, end);
    pending.step_next = end;
    if (*budget == 0) {
      Wake(id);
      return false;
    }
    if (end < pending.end) return false;
    ++pending.step;
    pending.step_next = 0;
  }
  return true;
}

// Of the step that is being told of, and coming[first, end): a completion for each run and member.
void Waiters::TellStep(PendingId id, uint32_t first, uint32_t end) {
  const Pending& pending = pendings_[id];
  const NewPending& what = requests_.at(id);
  const Lease& lease = d_.leases.at(what.lease);
  const auto is_promoted = [&](uint32_t i) {
    return d_.block(pending.coming[i].block).phase != BlockPhase::kReserved;
  };
  while (first < end) {
    uint32_t run_end = first;
    const uint32_t entry_index = pending.coming[first].entry_index;
    for (; run_end < end && is_promoted(run_end); ++run_end) {
      const Coming& coming = pending.coming[run_end];
      if (coming.entry_index != entry_index + (run_end - first)) break;
      d_.leases.Flag(what.lease, coming.entry_index, kEntryByParts);
      residency_.dram.TellParts(coming.block);
    }
    for (const LocalMember& local : d_.groups[lease.group_index]->locals()) {
      const bool is_meant = (what.member_mask >> local.member) & 1;
      if (run_end == first || !is_meant || pending.step >= local.part_runs.size()) continue;
      const PartRun& run = local.part_runs[pending.step];
      Tell(id, StatusCode::kOk,
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
void Waiters::Advance(PendingId id, uint32_t* budget) {
  Pending& pending = pendings_[id];
  if (requests_.at(id).is_by_parts && !AdvanceParts(id, budget)) return;
  const auto is_there = [&pending](uint32_t i) {
    return i < pending.end && pending.coming[i].node == kHandleNone;
  };
  while (is_there(pending.next)) {
    if (*budget == 0) return Wake(id);
    const uint32_t first = pending.next;
    const auto is_run = [&pending](uint32_t i) {
      return pending.coming[i].entry_index == pending.coming[i - 1].entry_index + 1;
    };
    do {
      ++pending.next;
      Spend(1, budget);
    } while (*budget > 0 && is_there(pending.next) && is_run(pending.next));
    const bool is_last = pending.next == pending.end;
    Tell(id, StatusCode::kOk,
         {.first_block = pending.coming[first].entry_index,
          .block_count = pending.next - first,
          .flags = is_last ? protocol::kCompletionLast : 0});
    pending.promised.Deliver(d_, pending.coming[pending.next - 1].entry_index + 1);
    if (requests_.at(id).kind != PendingKind::kPrefetch) continue;
    for (uint32_t i = first; i < pending.next; ++i) {
      const LeaseEntry entry =
          d_.leases.Take(requests_.at(id).lease, pending.coming[i].entry_index);
      residency_.holds.LetGo(entry.block, HoldKind::kLease);
    }
  }
  if (pending.next == pending.end) {
    pending.promised.DeliverAll(d_);
    End(id);
  } else {
    pending.promised.Deliver(d_, pending.coming[pending.next].entry_index);
  }
}

// ---- ends ---------------------------------------------------------------------------------------

void Waiters::Expire(PendingId id) {
  Pending& pending = pendings_[id];
  const NewPending& what = requests_.at(id);
  if (what.kind == PendingKind::kWait || what.kind == PendingKind::kErasure) {
    EndWait(id, StatusCode::kBusy);
    return;
  }
  const uint32_t from = pending.there;
  while (pending.there < pending.end && pending.coming[pending.there].node == kHandleNone) {
    ++pending.there;
  }
  d_.seams.work += (pending.there - from) / kEntriesPerWork;
  if (pending.there == pending.end) return;  // all there; the next Step() tells
  Truncate(what.lease, pending.coming[pending.there].entry_index, StatusCode::kBusy);
}

void Waiters::OnDeadline(PendingId id) {
  d_.seams.work += kEndWork;
  requests_.OnDeadline(id);
  Expire(id);
}

void Waiters::Truncate(LeaseId lease, uint32_t from_index, StatusCode why) {
  for (const PendingId id : requests_.OfLease(lease)) Cut(id, from_index, why);
  LetGoFrom(lease, from_index);
}

void Waiters::Cut(PendingId id, uint32_t from_index, StatusCode why) {
  Pending& pending = pendings_[id];
  const auto first_left = std::partition_point(
      pending.coming.begin(), pending.coming.begin() + pending.end,
      [from_index](const Coming& coming) { return coming.entry_index < from_index; });
  const auto kept = static_cast<uint32_t>(first_left - pending.coming.begin());
  if (kept == pending.end) return;
  for (uint32_t* cursor :
       {&pending.end, &pending.there, &pending.announced, &pending.next, &pending.step_next}) {
    *cursor = std::min(*cursor, kept);
  }
  TrimSoon(id);
  if (!requests_.IsArmed(id)) return;  // its reply will be shorter
  pending.promised.Lose(d_, from_index);
  TellParts(id);
  const bool is_last = pending.next == kept;
  Tell(id, why, {.first_block = from_index, .flags = is_last ? protocol::kCompletionLast : 0});
  if (is_last) {
    pending.promised.DeliverAll(d_);
    End(id);
  } else {
    Wake(id);  // by parts: what is left may have waited for what is gone
  }
}

void Waiters::LetGoFrom(LeaseId id, uint32_t from_index) {
  CutTail tail = d_.leases.Cut(id, from_index);
  if (tail.entries.empty()) return;
  // What one has waited for in vain, another joiner may have been told of, or the same one by
  // another answer: it stays until the end.
  const Lease& lease = d_.leases.at(id);
  tail.stays = lease.joiners.size() > 1 || lease.is_told_again;
  d_.seams.work += 1 + tail.entries.size() / kEntriesPerWork;
  d_.lease_backlog.Add(std::move(tail));
}

void Waiters::Tell(PendingId id, StatusCode status, protocol::Completion completion) {
  ++d_.seams.work;
  const NewPending& what = requests_.at(id);
  if (what.kind == PendingKind::kAcquire) completion.token = d_.leases.at(what.lease).token;
  d_.seams.listener.OnCompletion(what.session, what.request_id,
                                 status == StatusCode::kOk ? Status::Ok() : Status(status),
                                 completion);
}

StatusCode Waiters::WaitOutcome(PendingId id) const {
  const Pending& pending = pendings_[id];
  if (pending.is_lost) return StatusCode::kNotFound;
  return pending.awaited_count == 0 ? StatusCode::kOk : StatusCode::kBusy;
}

void Waiters::EndWait(PendingId id, StatusCode outcome) {
  const NewPending& what = requests_.at(id);
  d_.seams.listener.OnWaitDone(what.session, what.request_id,
                               outcome == StatusCode::kOk ? Status::Ok() : Status(outcome));
  End(id);
}

void Waiters::DropAll(SessionId session, LeaseId lease) {
  const std::vector<PendingId> ids =
      lease != kLeaseNone ? requests_.OfLease(lease) : requests_.OfSession(session);
  // The last first, as the register looks for them.
  for (size_t i = ids.size(); i-- > 0;) {
    const NewPending& what = requests_.at(ids[i]);
    if (what.session != session) continue;
    d_.seams.listener.OnRequestDropped(session, what.request_id);
    End(ids[i]);
  }
}

void Waiters::End(PendingId id) {
  ++d_.seams.work;
  requests_.End(id);
  const NewPending what = requests_.at(id);
  Pending& pending = pendings_[id];
  pending.promised.LoseRest(d_);
  pending.promised = {};
  pending.is_announced = false;
  pending.end = 0;
  pending.parts = {};
  TrimSoon(id);
  if (!pending.is_trimming) Free(id);
  if (what.kind == PendingKind::kPrefetch) {
    // The blocks a Prefetch still holds are nobody's now.
    d_.leases.BeginEnd(what.lease);
    d_.lease_backlog.Add(
        LeaseWork{LeaseWorkKind::kEnd, what.lease, d_.leases.at(what.lease).stamp});
  }
}

void Waiters::Free(PendingId id) {
  pendings_[id].coming = {};
  requests_.Free(id);
}

}  // namespace terrace

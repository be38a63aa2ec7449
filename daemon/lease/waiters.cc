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
  TERRACE_CHECK(pending.is_used && !pending.is_armed, "an armed request waits for nothing more");
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
    pending.coming.reserve(pending.what.block_count);
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
  pending.coming[n.coming_index].node = kHandleNone;
  --pending.awaited_count;
  free_nodes_.push_back(node);
}

void Waiters::EndBy(PendingId id, uint64_t deadline_us) {
  pendings_[id].is_armed = true;
  pendings_[id].deadline = d_.seams.deadlines.Add({.due_us = deadline_us,
                                                   .kind = DeadlineKind::kPending,
                                                   .domain_index = d_.domain_index,
                                                   .id = id});
}

bool Waiters::Arm(PendingId id, uint64_t deadline_us) {
  Pending& pending = pendings_[id];
  TERRACE_CHECK(pending.is_used && !pending.is_armed, "a request is armed once");
  if (pending.end == 0) {
    End(id);
    return false;
  }
  EndBy(id, deadline_us);
  unannounced_.push_back({id, pending.stamp});
  return true;
}

// What is before the first block that is coming may be read at once.
void Waiters::Promise(PendingId id, PromisedHits promised) {
  promised.Deliver(d_, pendings_[id].coming.front().entry_index);
  pendings_[id].promised = std::move(promised);
}

void Waiters::ArmErasure(PendingId id, const ErasureMark& mark, uint64_t deadline_us) {
  EndBy(id, deadline_us);
  unmarked_erasures_.push_back({id, pendings_[id].stamp, mark});
}

void Waiters::StepErasures() {
  uint32_t budget = protocol::kBlocksPerTurnMax;
  for (; !unmarked_erasures_.empty() && budget > 0; Spend(1, &budget)) {
    Erasure& first = unmarked_erasures_.front();
    if (IsCurrent({first.id, first.stamp})) {
      if (!d_.IsGivenToTier(&first.mark)) break;
      erasures_.push_back(first);
    }
    unmarked_erasures_.pop_front();
  }
  for (; !erasures_.empty() && budget > 0; Spend(1, &budget)) {
    Erasure& first = erasures_.front();
    if (IsCurrent({first.id, first.stamp})) {
      if (!d_.IsErased(&first.mark)) break;
      EndWait(first.id, StatusCode::kOk);
    }
    erasures_.pop_front();
  }
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
    const Queued item = unannounced_.front();
    unannounced_.pop_front();
    Spend(1, budget);
    if (!IsCurrent(item)) continue;
    Pending& pending = pendings_[item.id];
    if (pending.what.kind == PendingKind::kAcquire && !Announce(item.id, budget)) {
      unannounced_.push_back(item);
      return;
    }
    pending.is_announced = true;
    if (pending.what.kind != PendingKind::kWait) Wake(item.id);
  }
}

void Waiters::Wake(PendingId id) {
  Pending& pending = pendings_[id];
  if (!pending.is_announced || std::exchange(pending.is_woken, true)) return;
  woken_.push_back({id, pending.stamp});
}

void Waiters::StepWoken(uint32_t* budget) {
  while (!woken_.empty() && *budget > 0) {
    const Queued item = woken_.front();
    woken_.pop_front();
    Spend(1, budget);
    if (!IsCurrent(item)) continue;
    Pending& pending = pendings_[item.id];
    pending.is_woken = false;
    Spend(static_cast<uint32_t>(pending.parts.size()), budget);
    TellParts(pending);
    Advance(item.id, budget);
  }
}

void Waiters::StepTrimming(uint32_t* budget) {
  while (!trimming_.empty() && *budget > 0) {
    const PendingId id = trimming_.front();
    if (!Trim(id, budget)) return;
    trimming_.pop_front();
    pendings_[id].is_trimming = false;
    if (!pendings_[id].is_used) Free(id);
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
      TellAbsent(pending, first);
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
    Spend(TellCommitted(pending, first, block_count), budget);
  }
  return true;
}

std::span<const uint64_t> Waiters::PartsOf(const Coming& coming, uint64_t* absent_mask) const {
  if (coming.node == kHandleNone) return {};
  const Block& b = d_.block(coming.block);
  if (b.phase != BlockPhase::kReserved || b.writer_lease == kHandleNone) return {};
  const Lease& writer = d_.leases.at(b.writer_lease);
  const size_t words = d_.group_of(b).part_words();
  *absent_mask = writer.absent_masks[b.writer_entry];
  return std::span(writer.part_bits).subspan(b.writer_entry * words, words);
}

// The parts of the first block that its writer has committed so far; those behind it have the same.
uint32_t Waiters::TellCommitted(const Pending& pending, const Coming& first, uint32_t block_count) {
  uint64_t absent_mask = 0;
  const std::span<const uint64_t> bits = PartsOf(first, &absent_mask);
  uint32_t work = 0;
  for (const LocalMember& local : d_.group_of(d_.block(first.block)).locals()) {
    if (!((pending.what.member_mask >> local.member) & 1)) continue;
    work += 1 + local.part_count / kPartsPerWork;
    if ((absent_mask >> local.member) & 1) {
      Tell(pending, StatusCode::kOk,
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
      Tell(pending, StatusCode::kOk,
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
void Waiters::TellAbsent(const Pending& pending, const Coming& coming) {
  const Block& b = d_.block(coming.block);
  if (d_.group_of(b).windowed_count() == 0) return;
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
    ++d_.seams.work;
    Pending& pending = pendings_[nodes_[node].pending];
    const uint32_t coming_index = nodes_[node].coming_index;
    if (IsDead(nodes_[node]) || pending.what.kind != PendingKind::kAcquire) continue;
    if (coming_index >= pending.announced) continue;
    if (!((pending.what.member_mask >> entry.member) & 1)) continue;
    AddParts(pending,
             {.first_block = pending.coming[coming_index].entry_index,
              .block_count = 1,
              .part_first = entry.part_first,
              .part_count = is_absent ? 1u : entry.part_count,  // 0 would mean the whole block
              .member = entry.member,
              .flags = is_absent ? protocol::kCompletionAbsent : 0});
    Wake(nodes_[node].pending);
  }
}

// A writer commits one part of many blocks, or all parts of one.
void Waiters::AddParts(Pending& pending, const protocol::Completion& completion) {
  for (protocol::Completion& open : pending.parts) {
    if (open.member != completion.member) continue;
    const bool is_next_block = open.first_block + open.block_count == completion.first_block &&
                               open.part_first == completion.part_first &&
                               open.part_count == completion.part_count &&
                               open.flags == completion.flags;
    if (is_next_block) {
      ++open.block_count;
      return;
    }
    Tell(pending, StatusCode::kOk, open);
    open = completion;
    return;
  }
  pending.parts.push_back(completion);
}

void Waiters::TellParts(Pending& pending) {
  for (const protocol::Completion& open : pending.parts) Tell(pending, StatusCode::kOk, open);
  pending.parts.clear();
}

// ---- what happens to blocks ---------------------------------------------------------------------

void Waiters::OnBlockReady(BlockId id) {
  std::vector<PendingId> ready;
  for (uint32_t node = d_.block(id).waiters; node != kHandleNone;) {
    const uint32_t next = nodes_[node].next;
    const PendingId pending = nodes_[node].pending;
    if (IsDead(nodes_[node])) {
      GiveNode(node);
    } else if (pendings_[pending].what.kind != PendingKind::kWait) {
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
    if (!IsDead(nodes_[node]) && pendings_[pending].what.is_by_parts) Wake(pending);
  }
}

void Waiters::OnBlockPersisted(BlockId id) {
  std::vector<PendingId> woken;
  for (uint32_t node = d_.block(id).waiters; node != kHandleNone;) {
    const uint32_t next = nodes_[node].next;
    const PendingId pending = nodes_[node].pending;
    if (IsDead(nodes_[node])) {
      GiveNode(node);
    } else if (pendings_[pending].what.kind == PendingKind::kWait) {
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
  const Block& b = d_.block(id);
  // Waits first: they do not hold the block.
  for (uint32_t node = b.waiters; node != kHandleNone;) {
    const PendingId waiting = nodes_[node].pending;
    const uint32_t next = nodes_[node].next;
    if (IsDead(nodes_[node])) {
      GiveNode(node);
      node = next;
    } else if (pendings_[waiting].what.kind == PendingKind::kWait) {
      GiveNode(node);
      pendings_[waiting].is_lost = true;
      if (pendings_[waiting].is_armed) EndWait(waiting, StatusCode::kNotFound);
      node = b.waiters;  // it may have waited for the block twice
    } else {
      node = next;
    }
  }
  while (b.waiters != kHandleNone) {
    const Node n = nodes_[b.waiters];
    if (IsDead(n)) {
      GiveNode(b.waiters);
      continue;
    }
    const Pending& pending = pendings_[n.pending];
    Truncate(pending.what.lease, pending.coming[n.coming_index].entry_index, why);
  }
}

// A followed block's writer brings its parts in whatever order; nobody waits for them here.
bool Waiters::IsStepIn(const Coming& coming, uint32_t step) const {
  const Block& b = d_.block(coming.block);
  return coming.node == kHandleNone || b.phase == BlockPhase::kReserved || b.steps_in > step;
}

bool Waiters::AdvanceParts(PendingId id, uint32_t* budget) {
  Pending& pending = pendings_[id];
  const uint32_t last = d_.groups[d_.leases.at(pending.what.lease).group_index]->step_count() - 1;
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
  const Lease& lease = d_.leases.at(pending.what.lease);
  const auto is_promoted = [&](uint32_t i) {
    return d_.block(pending.coming[i].block).phase != BlockPhase::kReserved;
  };
  while (first < end) {
    uint32_t run_end = first;
    const uint32_t entry_index = pending.coming[first].entry_index;
    for (; run_end < end && is_promoted(run_end); ++run_end) {
      const Coming& coming = pending.coming[run_end];
      if (coming.entry_index != entry_index + (run_end - first)) break;
      d_.leases.Flag(pending.what.lease, coming.entry_index, kEntryByParts);
      residency_.dram.TellParts(coming.block);
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
void Waiters::Advance(PendingId id, uint32_t* budget) {
  Pending& pending = pendings_[id];
  if (pending.what.is_by_parts && !AdvanceParts(id, budget)) return;
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
    Tell(pending, StatusCode::kOk,
         {.first_block = pending.coming[first].entry_index,
          .block_count = pending.next - first,
          .flags = is_last ? protocol::kCompletionLast : 0});
    pending.promised.Deliver(d_, pending.coming[pending.next - 1].entry_index + 1);
    if (pending.what.kind != PendingKind::kPrefetch) continue;
    for (uint32_t i = first; i < pending.next; ++i) {
      const LeaseEntry entry = d_.leases.Take(pending.what.lease, pending.coming[i].entry_index);
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
  if (pending.what.kind == PendingKind::kWait || pending.what.kind == PendingKind::kErasure) {
    EndWait(id, StatusCode::kBusy);
    return;
  }
  const uint32_t from = pending.there;
  while (pending.there < pending.end && pending.coming[pending.there].node == kHandleNone) {
    ++pending.there;
  }
  d_.seams.work += (pending.there - from) / kEntriesPerWork;
  if (pending.there == pending.end) return;  // all there; the next Step() tells
  Truncate(pending.what.lease, pending.coming[pending.there].entry_index, StatusCode::kBusy);
}

void Waiters::OnDeadline(PendingId id) {
  d_.seams.work += kEndWork;
  pendings_[id].deadline = kHandleNone;
  Expire(id);
}

void Waiters::Truncate(LeaseId lease, uint32_t from_index, StatusCode why) {
  const auto found = by_lease_.find(lease);
  if (found != by_lease_.end()) {
    const std::vector<PendingId> ids = found->second;  // Cut may end some
    for (const PendingId id : ids) Cut(id, from_index, why);
  }
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
  if (!pending.is_armed) return;  // its reply will be shorter
  pending.promised.Lose(d_, from_index);
  TellParts(pending);
  const bool is_last = pending.next == kept;
  Tell(pending, why, {.first_block = from_index, .flags = is_last ? protocol::kCompletionLast : 0});
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
  d_.seams.work += 1 + tail.entries.size() / kEntriesPerWork;
  d_.lease_backlog.Add(std::move(tail));
}

void Waiters::Tell(const Pending& pending, StatusCode status, protocol::Completion completion) {
  ++d_.seams.work;
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

void Waiters::DropAll(SessionId session, LeaseId lease) {
  std::vector<PendingId> ids;  // End() changes the lists
  if (lease != kLeaseNone) {
    const auto found = by_lease_.find(lease);
    if (found != by_lease_.end()) ids = found->second;
  } else {
    const auto found = by_session_.find(session);
    if (found != by_session_.end()) ids = found->second;
  }
  // The last first, as EraseFrom() looks for them.
  for (size_t i = ids.size(); i-- > 0;) {
    if (pendings_[ids[i]].what.session == session) End(ids[i]);
  }
}

void Waiters::End(PendingId id) {
  Pending& pending = pendings_[id];
  TERRACE_CHECK(pending.is_used, "a request ends once");
  ++d_.seams.work;
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
  pending.promised.LoseRest(d_);
  pending.promised = {};
  pending.is_used = pending.is_armed = pending.is_announced = false;
  pending.deadline = kHandleNone;
  pending.end = 0;
  pending.parts = {};
  TrimSoon(id);
  if (!pending.is_trimming) Free(id);
  if (is_prefetch) {
    // The blocks a Prefetch still holds are nobody's now.
    d_.leases.BeginEnd(lease);
    d_.lease_backlog.Add(LeaseWork{LeaseWorkKind::kEnd, lease, d_.leases.at(lease).stamp});
  }
}

void Waiters::Free(PendingId id) {
  pendings_[id].coming = {};
  free_pendings_.push_back(id);
}

}  // namespace terrace

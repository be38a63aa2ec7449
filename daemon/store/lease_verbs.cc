#include "daemon/store/lease_verbs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "daemon/store/store_rooms.h"
#include "daemon/store/visibility.h"
#include "terrace/check.h"
#include "terrace/protocol_join.h"

namespace terrace {

using protocol::BlockSpan;
using protocol::SpanState;

namespace {

SpanState StateOf(const Block& block, uint32_t uid) {
  if (block.phase == BlockPhase::kReserved) return SpanState::kFollowing;
  return block.IsReadableFor(uid) ? SpanState::kReady : SpanState::kComing;
}

// Whether a joiner may read the block on the device: it was answered there, or has been copied
// there with all that the joiner asks for. The lease pins every copy of a block.
bool IsReadableThere(const Caller& caller, const LeaseEntry& entry, uint64_t member_mask) {
  if ((entry.flags & kEntryOnDevice) != 0) return true;
  const CacheDomain& domain = caller.domain();
  const Block& b = domain.block(entry.block);
  if (b.phase != BlockPhase::kSealed || !domain.IsOnDevice(b)) return false;
  const uint64_t asked = member_mask & MembersOf(domain, b);
  return (asked & ~b.lower[domain.device_tier].member_mask) == 0;
}

// What follows from the blocks, spans and slots of an answer.
void TellCounts(const Group& group, AcquireResult* result) {
  protocol::AcquireReply& reply = result->reply;
  reply.token_count = reply.block_count * group.block_tokens();
  reply.span_count = static_cast<uint32_t>(result->spans.size());
  reply.slot_count = static_cast<uint32_t>(result->slots.size());
  reply.flags = group.has_remote() ? protocol::kMatchIsBound : 0;
}

}  // namespace

// ---- Join ----

Result<JoinOperation> LeaseVerbs::Join(const JoinQuery& query, JoinResult* answer) {
  const SessionIndex index = store_.sessions.Find(query.session);
  if (index == kSessionNone) return Status(StatusCode::kGone, "the session has ended");
  const CacheDomain& domain = store_.domains[store_.sessions.at(index).domain_index]->domain;
  const LeaseId id = domain.leases.Find(query.request.token);
  if (id == kLeaseNone) return Status(StatusCode::kNotFound, "no lease has this token");
  JoinOperation join(store_.operations, query, answer);
  join.Plan(domain.leases.at(id));
  return Result<JoinOperation>(std::move(join));
}

// Which page of the lease is told, and how.
void JoinOperation::Plan(const Lease& lease) {
  const bool is_paged = (query_.request.flags & protocol::kJoinPaged) != 0;
  const auto members = static_cast<size_t>(std::popcount(query_.request.member_mask));
  const uint32_t first_block = query_.first_block;
  answer_->is_write = lease.kind == LeaseKind::kWrite;
  if (answer_->is_write) {
    if (first_block > 0) answer_->write.reply.token = query_.request.token;
    end_ = first_block + protocol::JoinPageKeys(members);
    has_more_ = is_paged && lease.marks.key_count() > end_;
    return;
  }
  if (first_block > 0) {
    answer_->read.reply.token = query_.request.token;
    answer_->read.reply.block_count = first_block;
  }
  const auto block_count = static_cast<uint32_t>(lease.entries.size());
  const uint32_t page_blocks = protocol::JoinPageBlocks(members);
  if (is_paged && (block_count > page_blocks || first_block > 0)) walk_ = Walk::kSlots;
  end_ = first_block + page_blocks;
  has_more_ = is_paged && block_count > end_;
}

Result<Progress> JoinOperation::Step() {
  TERRACE_CHECK(tie_.store() != nullptr, "an operation that is over is not stepped");
  Caller caller;
  Status stepped = tie_.store()->Enter(query_.session, query_.request.group_handle, &caller);
  if (stepped.ok()) stepped = answer_->is_write ? Write(caller) : Read(caller);
  if (!stepped.ok()) {
    Undo();
    return stepped;
  }
  const Progress progress = is_walked_ ? EndWalk() : Progress::kGoesOn;
  if (progress == Progress::kDone) tie_.Cut();
  return progress;
}

// The lease, joined by the session: by this call if it is the first one.
Status JoinOperation::Continue(const Caller& caller, LeaseKind kind, LeaseToken* joined,
                               LeaseId* id) {
  *id = caller.domain().leases.Find(query_.request.token);
  if (*id == kLeaseNone) return Status(StatusCode::kNotFound, "no lease has this token");
  const Lease& lease = caller.domain().leases.at(*id);
  LeaseManager& manager = caller.rooms->lease_manager;
  if (lease.kind != kind || lease.group_index != query_.request.group_handle) {
    return Status(StatusCode::kInvalid, "the lease is of another group or kind");
  }
  if (lease.phase == LeasePhase::kBuilding) {
    return Status(StatusCode::kBusy, "the lease is not complete yet");
  }
  const bool is_joiner = manager.IsJoiner(*id, caller.session);
  // Revoked halfway. Of a first page Undo leaves, since nobody else would acknowledge the fence; a
  // session that was told slots on earlier pages may be using them, and acknowledges itself.
  if (manager.IsVoid(*id)) return Status(StatusCode::kGone, "the lease was revoked");
  if (!joined->is_zero()) {
    if (!is_joiner) {
      return Status(StatusCode::kInvalid,
                    "a later page of a lease that the session has not joined");
    }
    caller.domain().leases.TellAgain(*id);
    return Status::Ok();
  }
  if (is_joiner) {
    return Status(StatusCode::kInvalid, "the session has joined this lease already");
  }
  TERRACE_RETURN_IF_ERROR(manager.Join(*id, caller.session));
  tie_.store()->SignOfLife(tie_.store()->sessions.at(caller.session));
  *joined = query_.request.token;
  has_joined_ = true;
  return Status::Ok();
}

Status JoinOperation::OpenPending(const Caller& caller, LeaseId id) {
  const NewPending pending{.kind = PendingKind::kAcquire,
                           .session = query_.session,
                           .request_id = query_.request_id,
                           .lease = id,
                           .member_mask = query_.request.member_mask,
                           .is_by_parts = (query_.request.flags & protocol::kAcquireByParts) != 0};
  const bool is_room =
      caller.rooms->pending.CountOf(query_.session) < tie_.store()->options.pending_per_session_max;
  if (!is_room || caller.rooms->waiters.Open(pending) == kPendingNone) {
    return Status(StatusCode::kBusy, "the session has too many requests pending, or this one");
  }
  has_pending_ = true;
  return Status::Ok();
}

Status JoinOperation::Read(const Caller& caller) {
  StoreRooms& store = *tie_.store();
  AcquireResult& result = answer_->read;
  protocol::AcquireReply& reply = result.reply;
  LeaseId id = kLeaseNone;
  const bool is_first = reply.token.is_zero();
  TERRACE_RETURN_IF_ERROR(Continue(caller, LeaseKind::kRead, &reply.token, &id));
  reply.member_mask = query_.request.member_mask & caller.group->local_mask();
  // What is still coming is awaited in the walk that tells of spans, from its first block on.
  const bool awaits = walk_ == Walk::kSpans ? reply.block_count == 0 : is_first;
  if (awaits && walk_ != Walk::kSlots) TERRACE_RETURN_IF_ERROR(OpenPending(caller, id));
  const auto last =
      static_cast<uint32_t>(std::min<size_t>(caller.domain().leases.at(id).entries.size(), end_));
  if (reply.block_count > last) CutTo(last);
  const uint32_t end = static_cast<uint32_t>(
      std::min<uint64_t>(last, uint64_t{reply.block_count} + protocol::kBlocksPerTurnMax));
  ReadBlocks(caller, id, end);
  is_walked_ = reply.block_count < end || end == last;
  if (!result.slots.empty()) store.sessions.at(caller.session).has_slots = true;
  // Its Acquire's own deadline decides for all; this one only bounds the wait.
  const PendingId pending = PendingOf(caller);
  if (is_walked_ && pending != kPendingNone) {
    caller.rooms->waiters.Arm(pending, store.clock.NowUs() + store.options.deadline_us_max);
  }
  reply.lease_ttl_ms = store.options.lease_ttl_ms;
  TellCounts(*caller.group, &result);
  return Status::Ok();
}

// The blocks before `end`, as far as the session may read them.
void JoinOperation::ReadBlocks(const Caller& caller, LeaseId id, uint32_t end) {
  CacheDomain& domain = caller.domain();
  const Lease& lease = domain.leases.at(id);
  const bool takes_device = (query_.request.flags & protocol::kAcquireDevice) != 0 &&
                            tie_.store()->sessions.at(caller.session).has_device;
  const bool is_by_parts = (query_.request.flags & protocol::kAcquireByParts) != 0;
  const PendingId pending = PendingOf(caller);
  uint32_t& passed_count = answer_->read.reply.block_count;
  for (; passed_count < end; ++passed_count) {
    const LeaseEntry& entry = lease.entries[passed_count];
    const Block& b = domain.block(entry.block);
    if (b.is_bad_below) break;
    const uint32_t uid = caller.uid;
    if (b.phase == BlockPhase::kReserved && b.writer_uid != uid) break;  // nobody verifies parts
    // With the device it reads further than the lease's others: what it is told of, now or later,
    // stays held when their prefix ends before it.
    if (takes_device || (is_by_parts && StateOf(b, uid) == SpanState::kReady)) {
      domain.leases.Flag(id, passed_count, kEntryByParts);
    }
    if (takes_device && ReadOnDevice(caller, entry)) continue;
    if (b.dram.row == kRowNone) break;
    // Erased before its bytes were there, it has nobody any more who brings them.
    if (b.phase == BlockPhase::kErased && StateOf(b, uid) != SpanState::kReady) break;
    if (takes_device) caller.rooms->mover.PromoteToDevice(entry.block);
    ReadInDram(caller, pending, entry.block);
  }
}

// The next block of the answer, where it lies on the device. False if it cannot be read there: then
// it is in DRAM, or the joiner's prefix ends.
bool JoinOperation::ReadOnDevice(const Caller& caller, const LeaseEntry& entry) {
  AcquireResult& result = answer_->read;
  if (!IsReadableThere(caller, entry, result.reply.member_mask)) return false;
  const BlockSpan span{
      .first_block = result.reply.block_count, .block_count = 1, .tier = protocol::TierKind::kHbm};
  if (walk_ != Walk::kSlots) AppendToSpans(span, &result.spans);
  if (walk_ == Walk::kSpans) return true;
  ++caller.domain().counters.device_blocks_served;
  AppendDeviceSlots(*caller.group, caller.domain(), caller.domain().block(entry.block),
                    result.reply.member_mask, &result.slots);
  return true;
}

// The next block of the answer, where it lies, or will lie, in DRAM.
void JoinOperation::ReadInDram(const Caller& caller, PendingId pending, BlockId block) {
  const Block& b = caller.domain().block(block);
  const protocol::AcquireReply& reply = answer_->read.reply;
  BlockSpan span{
      .first_block = reply.block_count, .block_count = 1, .state = StateOf(b, caller.uid)};
  if (span.state == SpanState::kComing) {
    const Coming coming = ComingFrom(*caller.rooms, block, &answer_->read.walk.unqueued);
    span.tier = coming.tier;
    span.eta_us = coming.eta_us;
    if (b.dram.is_readable()) caller.rooms->verifier.VerifyForReader(block);
  }
  if (span.state != SpanState::kReady && pending != kPendingNone) {
    caller.rooms->waiters.Await(pending, reply.block_count, block);
  }
  if (walk_ != Walk::kSlots) AppendToSpans(span, &answer_->read.spans);
  if (walk_ == Walk::kSpans) return;
  const std::span<const SlotRef> refs = caller.domain().slots_of(b);
  for (size_t i = 0; i < refs.size(); ++i) {
    if ((reply.member_mask >> caller.group->locals()[i].member) & 1) {
      answer_->read.slots.push_back(refs[i].address);
    }
  }
}

// The prefix has become shorter since the last step: what was told of the rest is taken back.
void JoinOperation::CutTo(uint32_t block_count) {
  AcquireResult& result = answer_->read;
  const size_t cut_count = result.reply.block_count - block_count;
  result.reply.block_count = block_count;
  TrimSpans(block_count, &result.spans);
  if (walk_ == Walk::kSpans) return;
  const size_t slots_each = std::popcount(result.reply.member_mask);
  result.slots.resize(result.slots.size() - std::min(result.slots.size(), cut_count * slots_each));
}

Status JoinOperation::Write(const Caller& caller) {
  CacheDomain& domain = caller.domain();
  ReserveResult& result = answer_->write;
  LeaseId id = kLeaseNone;
  TERRACE_RETURN_IF_ERROR(Continue(caller, LeaseKind::kWrite, &result.reply.token, &id));
  protocol::ReserveReply& reply = result.reply;
  reply.member_mask = query_.request.member_mask & caller.group->local_mask();
  const Lease& lease = domain.leases.at(id);
  const uint32_t last = std::min(lease.marks.key_count(), end_);
  uint32_t key_index = query_.first_block + static_cast<uint32_t>(result.keys.size());
  const uint32_t end = static_cast<uint32_t>(
      std::min<uint64_t>(last, uint64_t{key_index} + protocol::kBlocksPerTurnMax));
  for (; key_index < end; ++key_index) {
    const uint32_t place = lease.marks.EntryOf(key_index);
    const BlockId block = place == kEntryNone ? kBlockNone : lease.entries[place].block;
    protocol::ReservedKey key{.status = static_cast<uint8_t>(StatusCode::kExists)};
    if (block != kBlockNone && domain.block(block).phase == BlockPhase::kReserved) {
      key.status = static_cast<uint8_t>(StatusCode::kOk);
      key.commit_id = domain.block(block).commit_id;
      const std::span<const SlotRef> refs = domain.slots_of(domain.block(block));
      for (size_t i = 0; i < refs.size(); ++i) {
        if ((reply.member_mask >> caller.group->locals()[i].member) & 1) {
          result.slots.push_back(refs[i]);
        }
      }
    }
    result.keys.push_back(key);
  }
  is_walked_ = key_index >= last;
  if (!result.slots.empty()) tie_.store()->sessions.at(caller.session).has_slots = true;
  reply.key_count = static_cast<uint32_t>(result.keys.size());
  reply.slot_count = static_cast<uint32_t>(result.slots.size());
  reply.lease_ttl_ms = tie_.store()->options.lease_ttl_ms;
  return Status::Ok();
}

Progress JoinOperation::EndWalk() {
  AcquireResult& result = answer_->read;
  protocol::AcquireReply& reply = result.reply;
  if (has_more_) {
    (answer_->is_write ? answer_->write.reply.reserved : reply.flags) |= protocol::kJoinHasMore;
    return Progress::kDone;
  }
  if (walk_ == Walk::kSlots) {
    // That was the last page of slots: what comes with it is about the whole lease.
    walk_ = Walk::kSpans;
    end_ = reply.block_count;
    reply.block_count = 0;
    is_walked_ = false;
    return Progress::kGoesOn;
  }
  if (walk_ == Walk::kSpans) {
    // Blocks may have left while it was walked.
    const size_t page_blocks = reply.block_count - std::min(reply.block_count, query_.first_block);
    const auto members = static_cast<size_t>(std::popcount(reply.member_mask));
    result.slots.resize(std::min(result.slots.size(), page_blocks * members));
    reply.slot_count = static_cast<uint32_t>(result.slots.size());
  }
  return Progress::kDone;
}

PendingId JoinOperation::PendingOf(const Caller& caller) const {
  return has_pending_ ? caller.rooms->pending.Find(query_.session, query_.request_id)
                      : kPendingNone;
}

void JoinOperation::Undo() {
  StoreRooms* const store = tie_.store();
  tie_.Cut();
  const SessionIndex session =
      store == nullptr ? kSessionNone : store->sessions.Find(query_.session);
  if (session == kSessionNone) return;
  const Caller caller{.rooms = &store->at(store->sessions.at(session).domain_index)};
  const PendingId pending = PendingOf(caller);
  if (pending != kPendingNone && !caller.rooms->pending.IsArmed(pending)) {
    caller.rooms->waiters.Drop(pending);
  }
  if (has_joined_) store->LeaveUntold(query_.session, query_.request.token);
}

// ---- Release, Cancel, Touch, Renew ----

Status LeaseVerbs::Release(SessionId session, const protocol::ReleaseRequest& request) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, kAllGroups, &caller));
  const LeaseId id = caller.domain().leases.Find(request.token);
  if (id == kLeaseNone || !caller.rooms->lease_manager.IsJoiner(id, caller.session)) {
    return Status(StatusCode::kGone, "the session has no such lease");
  }
  if (request.hints.end_reason != protocol::EndReason::kUnknown) {
    const Lease& lease = caller.domain().leases.at(id);
    if (lease.is_unnoted) caller.rooms->deferred_hits.OnRequestEnd(id, request.hints);
    const BlockId tip = caller.domain().index.Find(lease.group_index, lease.tip);
    if (tip != kBlockNone && !lease.is_unnoted) {
      caller.rooms->residency.hints.Touch({&tip, 1}, request.hints);
    }
  }
  caller.rooms->lease_manager.Leave(id, caller.session);
  store_.Settle(*caller.rooms);
  return Status::Ok();
}

Status LeaseVerbs::Cancel(SessionId session, uint64_t request_id) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, kAllGroups, &caller));
  const PendingId pending = caller.rooms->pending.Find(session, request_id);
  if (pending == kPendingNone || !caller.rooms->pending.IsArmed(pending)) {
    return Status(StatusCode::kNotFound, "no request of that id is pending");
  }
  caller.rooms->waiters.Expire(pending);
  store_.Settle(*caller.rooms);
  return Status::Ok();
}

Status LeaseVerbs::Touch(const KeysQuery& query) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(query.session, query.group_index, &caller));
  std::vector<BlockId> run;
  for (const BlockKey& key : query.keys) {
    const BlockId id = caller.domain().index.Find(query.group_index, key);
    if (id == kBlockNone || caller.domain().block(id).phase != BlockPhase::kSealed) continue;
    caller.rooms->residency.hints.Apply(id, query.hints);
    run.push_back(id);
  }
  caller.rooms->residency.hints.Touch(run, query.hints);
  store_.Settle(*caller.rooms);
  return Status::Ok();
}

Status LeaseVerbs::Renew(SessionId session, const LeaseToken& token) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, kAllGroups, &caller));
  const LeaseId id = caller.domain().leases.Find(token);
  if (id == kLeaseNone || !caller.rooms->lease_manager.IsJoiner(id, caller.session) ||
      caller.rooms->lease_manager.IsVoid(id)) {
    return Status(StatusCode::kGone, "the session has no such lease, or it was revoked");
  }
  return Status::Ok();
}

}  // namespace terrace

#include "daemon/store/lease_verbs.h"

#include <algorithm>
#include <bit>

#include "daemon/store/store_rooms.h"
#include "daemon/store/visibility.h"

namespace terrace {

using protocol::BlockSpan;
using protocol::SpanState;

Result<LeaseShape> LeaseVerbs::ShapeOf(SessionId session, const LeaseToken& token) const {
  const SessionIndex index = store_.sessions.Find(session);
  if (index == kSessionNone) return Status(StatusCode::kGone, "the session has ended");
  const CacheDomain& domain = store_.domains[store_.sessions.at(index).domain_index]->domain;
  const LeaseId id = domain.leases.Find(token);
  if (id == kLeaseNone) return Status(StatusCode::kNotFound, "no lease has this token");
  const Lease& lease = domain.leases.at(id);
  const bool is_write = lease.kind == LeaseKind::kWrite;
  return LeaseShape{
      .is_write = is_write,
      .block_count = is_write ? lease.key_count : static_cast<uint32_t>(lease.entries.size())};
}

namespace {

// The lease of a Join, joined by the session: by this call if it is the first one.
Status BeginJoin(StoreRooms& store, const Caller& caller, const protocol::JoinRequest& request,
                 LeaseKind kind, LeaseToken* joined, LeaseId* id) {
  *id = caller.domain().leases.Find(request.token);
  if (*id == kLeaseNone) return Status(StatusCode::kNotFound, "no lease has this token");
  const Lease& lease = caller.domain().leases.at(*id);
  LeaseKeeper& keeper = caller.rooms->keeper;
  if (lease.kind != kind || lease.group_index != request.group_handle) {
    return Status(StatusCode::kInvalid, "the lease is of another group or kind");
  }
  if (lease.phase == LeasePhase::kBuilding) {
    return Status(StatusCode::kBusy, "the lease is not complete yet");
  }
  if (keeper.IsVoid(*id)) {
    // Revoked halfway: its slots were never told, so that nobody would acknowledge the fence.
    if (!joined->is_zero() && keeper.IsJoiner(*id, caller.session)) {
      keeper.Leave(*id, caller.session);
    }
    return Status(StatusCode::kGone, "the lease was revoked");
  }
  if (!joined->is_zero() && keeper.IsJoiner(*id, caller.session)) return Status::Ok();
  if (!joined->is_zero()) {
    return Status(StatusCode::kInvalid, "a later page of a lease that the session has not joined");
  }
  if (keeper.IsJoiner(*id, caller.session)) {
    return Status(StatusCode::kInvalid, "the session has joined this lease already");
  }
  TERRACE_RETURN_IF_ERROR(keeper.Join(*id, caller.session));
  store.SignOfLife(store.sessions.at(caller.session));
  *joined = request.token;
  return Status::Ok();
}

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

// The next block of the answer, where it lies on the device. False if it cannot be read there: then
// it is in DRAM, or the joiner's prefix ends.
bool JoinOnDevice(const Caller& caller, const LeaseEntry& entry, AcquireResult* result) {
  if (!IsReadableThere(caller, entry, result->reply.member_mask)) return false;
  const BlockSpan span{
      .first_block = result->reply.block_count, .block_count = 1, .tier = protocol::TierKind::kHbm};
  if (result->join_walk != JoinWalk::kSlots) AppendToSpans(span, &result->spans);
  if (result->join_walk == JoinWalk::kSpans) return true;
  ++caller.domain().counters.device_blocks_served;
  AppendDeviceSlots(*caller.group, caller.domain(), caller.domain().block(entry.block),
                    result->reply.member_mask, &result->slots);
  return true;
}

// The next block of the answer, where it lies, or will lie, in DRAM.
void JoinInDram(const Caller& caller, PendingId pending, BlockId block, AcquireResult* result) {
  const Block& b = caller.domain().block(block);
  protocol::AcquireReply& reply = result->reply;
  BlockSpan span{
      .first_block = reply.block_count, .block_count = 1, .state = StateOf(b, caller.uid)};
  if (span.state == SpanState::kComing) {
    span.tier = ComingFrom(*caller.rooms, block, 0).tier;
    if (b.dram.is_readable()) caller.rooms->verifier.VerifyForReader(block);
  }
  if (span.state != SpanState::kReady && pending != kPendingNone) {
    caller.rooms->waiters.Await(pending, reply.block_count, block);
  }
  if (result->join_walk != JoinWalk::kSlots) AppendToSpans(span, &result->spans);
  if (result->join_walk == JoinWalk::kSpans) return;
  const std::span<const SlotRef> refs = caller.domain().slots_of(b);
  for (size_t i = 0; i < refs.size(); ++i) {
    if ((reply.member_mask >> caller.group->locals()[i].member) & 1) {
      result->slots.push_back(refs[i].address);
    }
  }
}

// What follows from the blocks, spans and slots of an answer.
void TellCounts(const Group& group, AcquireResult* result) {
  protocol::AcquireReply& reply = result->reply;
  reply.token_count = reply.block_count * group.block_tokens();
  reply.span_count = static_cast<uint32_t>(result->spans.size());
  reply.slot_count = static_cast<uint32_t>(result->slots.size());
  reply.flags = group.has_remote() ? protocol::kMatchIsBound : 0;
}

// The prefix has become shorter since the last call: what was told of the rest is taken back.
void CutTo(uint32_t block_count, AcquireResult* result) {
  protocol::AcquireReply& reply = result->reply;
  const size_t cut_count = reply.block_count - block_count;
  reply.block_count = block_count;
  TrimSpans(block_count, &result->spans);
  if (result->join_walk == JoinWalk::kSpans) return;
  const size_t slots_each = std::popcount(reply.member_mask);
  result->slots.resize(result->slots.size() -
                       std::min(result->slots.size(), cut_count * slots_each));
}

}  // namespace

Status LeaseVerbs::JoinRead(SessionId session, uint64_t request_id,
                            const protocol::JoinRequest& request, AcquireResult* result) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, request.group_handle, &caller));
  CacheDomain& domain = caller.domain();
  Waiters& waiters = caller.rooms->waiters;
  const bool is_first = result->reply.token.is_zero();
  LeaseId id = kLeaseNone;
  TERRACE_RETURN_IF_ERROR(
      BeginJoin(store_, caller, request, LeaseKind::kRead, &result->reply.token, &id));
  result->reply.member_mask = request.member_mask & caller.group->local_mask();
  // What is still coming is awaited in the walk that tells of spans, from its first block on.
  const bool awaits =
      result->join_walk == JoinWalk::kSpans ? result->reply.block_count == 0 : is_first;
  if (awaits && result->join_walk != JoinWalk::kSlots) {
    const NewPending pending{.kind = PendingKind::kAcquire,
                             .session = session,
                             .request_id = request_id,
                             .lease = id,
                             .member_mask = request.member_mask,
                             .is_by_parts = (request.flags & protocol::kAcquireByParts) != 0};
    const bool is_room =
        caller.rooms->pending.CountOf(session) < store_.options.pending_per_session_max;
    if (!is_room || waiters.Open(pending) == kPendingNone) {
      caller.rooms->keeper.Leave(id, caller.session);
      return Status(StatusCode::kBusy, "the session has too many requests pending, or this one");
    }
  }
  const PendingId pending = caller.rooms->pending.Find(session, request_id);
  const Lease& lease = domain.leases.at(id);
  protocol::AcquireReply& reply = result->reply;
  const auto last =
      static_cast<uint32_t>(std::min<size_t>(lease.entries.size(), result->block_count_max));
  if (reply.block_count > last) CutTo(last, result);
  const uint32_t end = static_cast<uint32_t>(
      std::min<uint64_t>(last, uint64_t{reply.block_count} + protocol::kBlocksPerTurnMax));
  const bool takes_device = (request.flags & protocol::kAcquireDevice) != 0 &&
                            store_.sessions.at(caller.session).has_device;
  const bool is_by_parts = (request.flags & protocol::kAcquireByParts) != 0;
  for (; reply.block_count < end; ++reply.block_count) {
    const LeaseEntry& entry = lease.entries[reply.block_count];
    const Block& b = domain.block(entry.block);
    if (b.is_bad_below) break;
    const uint32_t uid = caller.uid;
    if (b.phase == BlockPhase::kReserved && b.writer_uid != uid) break;  // nobody verifies parts
    // With the device it reads further than the lease's others: what it is told of, now or later,
    // stays held when their prefix ends before it.
    if (takes_device || (is_by_parts && StateOf(b, uid) == SpanState::kReady)) {
      domain.leases.Flag(id, reply.block_count, kEntryByParts);
    }
    if (takes_device && JoinOnDevice(caller, entry, result)) continue;
    if (b.dram.row == kRowNone) break;
    if (takes_device) caller.rooms->mover.PromoteToDevice(entry.block);
    JoinInDram(caller, pending, entry.block, result);
  }
  result->is_finished = reply.block_count < end || end == last;
  if (!result->slots.empty()) store_.sessions.at(caller.session).has_slots = true;
  // Its Acquire's own deadline decides for all; this one only bounds the wait.
  if (result->is_finished && pending != kPendingNone) {
    waiters.Arm(pending, store_.clock.NowUs() + store_.options.deadline_us_max);
  }
  reply.lease_ttl_ms = store_.options.lease_ttl_ms;
  TellCounts(*caller.group, result);
  return Status::Ok();
}

Status LeaseVerbs::JoinWrite(SessionId session, const protocol::JoinRequest& request,
                             ReserveResult* result) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, request.group_handle, &caller));
  CacheDomain& domain = caller.domain();
  LeaseId id = kLeaseNone;
  TERRACE_RETURN_IF_ERROR(
      BeginJoin(store_, caller, request, LeaseKind::kWrite, &result->reply.token, &id));
  protocol::ReserveReply& reply = result->reply;
  reply.member_mask = request.member_mask & caller.group->local_mask();
  const Lease& lease = domain.leases.at(id);
  const uint32_t last =
      lease.key_count - std::min(lease.key_count, result->first_key) < result->key_count_max
          ? lease.key_count
          : result->first_key + result->key_count_max;
  uint32_t key_index = result->first_key + static_cast<uint32_t>(result->keys.size());
  const uint32_t end = static_cast<uint32_t>(
      std::min<uint64_t>(last, uint64_t{key_index} + protocol::kBlocksPerTurnMax));
  for (; key_index < end; ++key_index) {
    const uint32_t place = lease.EntryOf(key_index);
    const BlockId block = place == kEntryNone ? kBlockNone : lease.entries[place].block;
    protocol::ReservedKey key{.status = static_cast<uint8_t>(StatusCode::kExists)};
    if (block != kBlockNone && domain.block(block).phase == BlockPhase::kReserved) {
      key.status = static_cast<uint8_t>(StatusCode::kOk);
      key.commit_id = domain.block(block).commit_id;
      const std::span<const SlotRef> refs = domain.slots_of(domain.block(block));
      for (size_t i = 0; i < refs.size(); ++i) {
        if ((reply.member_mask >> caller.group->locals()[i].member) & 1) {
          result->slots.push_back(refs[i]);
        }
      }
    }
    result->keys.push_back(key);
  }
  result->is_finished = key_index >= last;
  if (!result->slots.empty()) store_.sessions.at(caller.session).has_slots = true;
  reply.key_count = static_cast<uint32_t>(result->keys.size());
  reply.slot_count = static_cast<uint32_t>(result->slots.size());
  reply.lease_ttl_ms = store_.options.lease_ttl_ms;
  return Status::Ok();
}

Status LeaseVerbs::Release(SessionId session, const protocol::ReleaseRequest& request) {
  Caller caller;
  TERRACE_RETURN_IF_ERROR(store_.Enter(session, kAllGroups, &caller));
  const LeaseId id = caller.domain().leases.Find(request.token);
  if (id == kLeaseNone || !caller.rooms->keeper.IsJoiner(id, caller.session)) {
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
  caller.rooms->keeper.Leave(id, caller.session);
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
  if (id == kLeaseNone || !caller.rooms->keeper.IsJoiner(id, caller.session) ||
      caller.rooms->keeper.IsVoid(id)) {
    return Status(StatusCode::kGone, "the session has no such lease, or it was revoked");
  }
  return Status::Ok();
}

}  // namespace terrace

#include "client/core/verb_calls.h"

#include <algorithm>
#include <bit>

#include "terrace/protocol_join.h"

namespace terrace::client {
namespace {

using protocol::Verb;

// The caller is wrong: the sentence, for a person, is in last_error().
Status Refused(Core& core, const char* what, const std::string& sentence) {
  core.connection().SetError(sentence);
  return Status(StatusCode::kInvalid, what);
}

Status NoSuchGroup(Core& core, GroupRef ref) {
  return Refused(core, "no such GroupRef: Open it",
                 "GroupRef " + std::to_string(ref.index) + " names no SpaceGroup of this Client, " +
                     "which has opened " + std::to_string(core.groups().count()) + ": Open it");
}

Status CheckMembers(Core& core, const Group& group, uint64_t member_mask) {
  if (group.has_members(member_mask)) return Status::Ok();
  return Refused(core, "member_mask names members the SpaceGroup has not",
                 "member_mask is " + std::to_string(member_mask) + ", and SpaceGroup " +
                     group.name() + " has " + std::to_string(group.members().size()) +
                     " members: set bits below that only");
}

// The daemon's share of a call's deadlines: by deadline_us it ends what it was asked for, of a verb
// that brings blocks to DRAM the bringing.
void SetDeadlines(Verb verb, uint64_t answer_us, uint64_t load_us, protocol::Hints* hints) {
  if (hints->deadline_us != 0) return;
  uint64_t deadline_us = answer_us;
  if (verb == Verb::kAcquire || verb == Verb::kPrefetch) {
    deadline_us = load_us != 0 ? load_us : std::max(answer_us, kLoadDeadlineUsDefault);
    const uint64_t answer_ms = answer_us / kUsPerMs;
    hints->by_verb = static_cast<uint8_t>(std::clamp<uint64_t>(answer_ms, 1, 255));
  }
  // The answer has to come back in time, too.
  if (verb == Verb::kReserve) {
    const uint64_t wait_us = answer_us * 3 / 4;
    hints->by_verb =
        static_cast<uint8_t>(std::min<uint64_t>(wait_us / protocol::kRoomWaitUnitUs, 255));
  }
  hints->deadline_us = static_cast<uint32_t>(std::min<uint64_t>(deadline_us, 0xFFFFFFFF));
}

void NewLease(Core& core, LeaseState::Kind kind, std::span<const BlockKey> keys, KeysCall* call) {
  call->spec.lease = core.NewLease();
  LeaseState& lease = *call->spec.lease;
  lease.kind = kind;
  lease.group = call->group;
  lease.is_by_parts = (call->spec.asked.flags & protocol::kAcquireByParts) != 0;
  lease.keys.assign(keys.begin(), keys.end());
}

// What a Join asks, page by page.
struct JoinCall {
  GroupRef group;
  LeaseState::Kind kind = LeaseState::Kind::kRead;
  protocol::JoinRequest request;
  protocol::JoinPage page;
  uint64_t deadline_us = 0;
  std::shared_ptr<LeaseState> lease;  // as far as it is known
};

Status JoinOnePage(Core& core, JoinCall* join) {
  KeysCall call;
  call.spec.asked = {.verb = Verb::kJoin,
                     .key_count = protocol::kKeysPerRequestMax,
                     .flags = protocol::kKeysFlat | join->request.flags,
                     .first_block = join->page.first_block};
  if (join->lease == nullptr) call.spec.asked.joined = join->request.token;
  TERRACE_RETURN_IF_ERROR(SetGroup(core, join->group, &call));
  TERRACE_RETURN_IF_ERROR(CheckMembers(core, *call.group, join->request.member_mask));
  if (join->lease != nullptr && join->lease->connection != call.spec.connection) {
    return Status(StatusCode::kGone, "the connection to the daemon broke between two pages");
  }
  join->request.group_handle = call.request.group_handle;
  call.spec.deadline_us = join->deadline_us;
  call.spec.message.parts = {BytesOf(join->request)};
  if (join->lease == nullptr) {
    NewLease(core, join->kind, {}, &call);
  } else {
    call.spec.lease = join->lease;
    call.spec.message.parts[1] = BytesOf(join->page);
  }
  FinishedCall finished = core.calls().Call(std::move(call.spec));
  if (!finished.status().ok()) return finished.status();
  join->lease = finished.TakeLease();
  join->page.first_block = join->lease->block_count;
  return Status::Ok();
}

}  // namespace

uint64_t After(uint64_t relative_us) {
  const uint64_t now_us = MonotonicUs();
  return relative_us < kNever - now_us ? now_us + relative_us : kNever;
}

Status SetGroup(Core& core, GroupRef ref, KeysCall* call) {
  call->spec.connection = core.connection().number();
  call->spec.is_bypassed = core.bypass().Takes(call->spec.asked.verb);
  const bool may_be_any =
      call->spec.asked.verb == Verb::kEvict || call->spec.asked.verb == Verb::kPin;
  if (ref.index == kEveryGroup && may_be_any) return Status::Ok();
  call->group = core.groups().At(ref.index);
  if (call->group == nullptr) return NoSuchGroup(core, ref);
  call->request.group_handle = call->group->handle(call->spec.connection);
  if (call->spec.is_bypassed) return Status::Ok();
  if (call->spec.connection == 0 || call->request.group_handle == 0) {
    return Status(StatusCode::kGone, "not connected, or the SpaceGroup was not opened again");
  }
  return Status::Ok();
}

Status FillKeys(Core& core, GroupRef ref, std::span<const BlockKey> keys,
                const RequestOptions& options, Verb verb, KeysCall* call) {
  CallSpec& spec = call->spec;
  spec.asked = {.verb = verb,
                .key_count = static_cast<uint32_t>(keys.size()),
                .flags = options.flags & ~protocol::kReserveHasEvents};
  TERRACE_RETURN_IF_ERROR(SetGroup(core, ref, call));
  const uint32_t keys_max = core.connection().keys_per_request_max();
  if (keys.size() > keys_max) {
    return Refused(core, "more keys than keys_per_request_max: ask in pieces",
                   "a request has " + std::to_string(keys.size()) + " keys; the daemon takes " +
                       std::to_string(keys_max) + " (keys_per_request_max): ask in pieces");
  }
  if (call->group != nullptr) {
    TERRACE_RETURN_IF_ERROR(CheckMembers(core, *call->group, options.member_mask));
  }
  if (!options.event_hashes.empty() &&
      (verb != Verb::kReserve || options.event_hashes.size() != keys.size())) {
    return Refused(core, "event_hashes go with Reserve, one a key",
                   std::to_string(options.event_hashes.size()) + " event_hashes beside " +
                       std::to_string(keys.size()) + " keys: they go with Reserve, one a key");
  }
  uint64_t relative_us = core.options().default_deadline_us;
  if (verb == Verb::kEvict) relative_us += protocol::kErasureWaitUs;
  if (options.deadline_us != 0) relative_us = options.deadline_us;
  spec.deadline_us = After(relative_us);
  protocol::KeysRequest& request = call->request;
  request.key_count = spec.asked.key_count;
  request.flags = spec.asked.flags;
  if (!options.event_hashes.empty()) request.flags |= protocol::kReserveHasEvents;
  request.first_position = options.first_position;
  // Said in full: the daemon keeps one self_mask for all GroupRefs of a SpaceGroup.
  request.member_mask = options.member_mask != 0 || call->group == nullptr
                            ? options.member_mask
                            : call->group->self_mask();
  request.parent = options.parent;
  request.hints = options.hints;
  SetDeadlines(verb, relative_us, options.load_deadline_us, &request.hints);
  if (verb == Verb::kTouch) {
    spec.message.parts = {BytesOf(call->touch), BytesOf(request), std::as_bytes(keys)};
  } else {
    spec.message.parts = {BytesOf(request), std::as_bytes(keys),
                          std::as_bytes(options.event_hashes)};
  }
  // Keys are kept for checksums, which only writers make.
  if (verb == Verb::kAcquire) NewLease(core, LeaseState::Kind::kRead, {}, call);
  if (verb == Verb::kReserve) NewLease(core, LeaseState::Kind::kWrite, keys, call);
  return Status::Ok();
}

Status FillCommit(Core& core, const std::shared_ptr<LeaseState>& lease,
                  const RequestOptions& options, CallSpec* spec, bool* must_send) {
  if (lease == nullptr || !core.IsLeaseOfMine(*lease)) {
    return Refused(core, "no lease of this Client",
                   "the lease to commit is none, or another Client's: reserve by this one");
  }
  spec->is_bypassed = core.bypass().Takes(Verb::kCommit);
  if (!lease->is_valid.load() && !spec->is_bypassed) return kLeaseGone;
  const uint64_t relative_us =
      options.deadline_us != 0 ? options.deadline_us : core.options().default_deadline_us;
  spec->asked.verb = Verb::kCommit;
  spec->connection = lease->connection;
  spec->deadline_us = After(relative_us);
  spec->lease = lease;
  spec->commit.flags = options.flags & protocol::kCommitRelease;
  spec->commit.hints = options.hints;
  // Half: others' requests are on their way, too.
  spec->commit_bytes_max =
      std::min<uint64_t>(core.options().send_buffer_bytes_max, protocol::kMessageBytesMax) / 2;
  if (spec->commit.hints.deadline_us == 0) {
    spec->commit.hints.deadline_us =
        static_cast<uint32_t>(std::min<uint64_t>(relative_us, 0xFFFFFFFF));
  }
  LockGuard guard(lease->write_lock);
  *must_send = !lease->token.is_zero() && (!lease->written.empty() || spec->commit.flags != 0);
  return Status::Ok();
}

Result<std::shared_ptr<LeaseState>> JoinLease(Core& core, GroupRef ref, LeaseState::Kind kind,
                                              const protocol::JoinRequest& request) {
  const Group* const group = core.groups().At(ref.index);
  if (group == nullptr) return NoSuchGroup(core, ref);
  JoinCall join{.group = ref,
                .kind = kind,
                .request = request,
                .deadline_us = After(core.options().default_deadline_us)};
  if (request.member_mask == 0) join.request.member_mask = group->self_mask();
  const auto members = static_cast<size_t>(std::popcount(join.request.member_mask));
  const uint32_t page_blocks = kind == LeaseState::Kind::kRead ? protocol::JoinPageBlocks(members)
                                                               : protocol::JoinPageKeys(members);
  // Daemons that know nothing of pages refuse the flag, so it is said only where they may be many.
  const bool may_be_paged = page_blocks < protocol::kKeysPerRequestMax;
  if (may_be_paged) join.request.flags |= protocol::kJoinPaged;
  TERRACE_RETURN_IF_ERROR(core.calls().WaitForGivenUpJoins(request.token, join.deadline_us));
  Status status = JoinOnePage(core, &join);
  if (status.code() == StatusCode::kInvalid && may_be_paged) {
    join.request.flags = request.flags;
    status = JoinOnePage(core, &join);
  }
  while (status.ok() && join.lease->has_more) status = JoinOnePage(core, &join);
  if (status.ok()) return std::move(join.lease);
  if (join.lease != nullptr) core.GiveUpJoin(*join.lease);
  return status;
}

}  // namespace terrace::client

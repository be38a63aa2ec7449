// The verbs of Client: each builds its request, hands it to the Core, and reads the answer that the
// Core has checked.
#include "terrace/client.h"

#include <sys/un.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "client/core/core.h"
#include "terrace/chunk.h"
#include "terrace/protocol_join.h"

namespace terrace {

using client::BodyReader;
using client::BytesOf;
using client::CallSpec;
using client::Core;
using client::FinishedCall;
using client::Group;
using client::MonotonicUs;
using protocol::Verb;

struct Client::Internals {
  std::shared_ptr<Core> core;
};

namespace {

constexpr uint32_t kEveryGroup = 0xFFFFFFFF;
constexpr size_t kClientNameBytesMax = sizeof(protocol::HelloRequest::client_name) - 1;
constexpr Status kForked(StatusCode::kGone, "this is a forked child: it needs its own Client");

// Runs a verb; what throws inside is a lack of memory.
template <typename Verb>
auto Guarded(const Core& core, Verb verb) -> decltype(verb()) {
  if (core.is_forked()) return kForked;
  try {
    return verb();
  } catch (...) {
    return Status(StatusCode::kNoSpace, "no memory for the request or its answer");
  }
}

uint64_t After(uint64_t relative_us) {
  const uint64_t now_us = MonotonicUs();
  return relative_us < client::kNever - now_us ? now_us + relative_us : client::kNever;
}

// A request about keys while it is built: the message points into it.
struct KeysCall {
  CallSpec spec;
  protocol::KeysRequest request;
  const Group* group = nullptr;
};

Status SetGroup(Core& core, GroupRef ref, KeysCall* call) {
  call->spec.connection = core.connection();
  const bool may_be_any =
      call->spec.asked.verb == Verb::kEvict || call->spec.asked.verb == Verb::kPin;
  if (ref.index == kEveryGroup && may_be_any) return Status::Ok();
  call->group = core.groups().At(ref.index);
  if (call->group == nullptr) return Status(StatusCode::kInvalid, "no such GroupRef: Open it");
  call->request.group_handle = call->group->handle(call->spec.connection);
  if (call->spec.connection == 0 || call->request.group_handle == 0) {
    return Status(StatusCode::kGone, "not connected, or the SpaceGroup was not opened again");
  }
  return Status::Ok();
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

Status FillKeys(Core& core, GroupRef ref, std::span<const BlockKey> keys,
                const RequestOptions& options, Verb verb, KeysCall* call) {
  CallSpec& spec = call->spec;
  spec.asked = {.verb = verb,
                .key_count = static_cast<uint32_t>(keys.size()),
                .flags = options.flags & ~protocol::kReserveHasEvents};
  TERRACE_RETURN_IF_ERROR(SetGroup(core, ref, call));
  if (keys.size() > core.keys_per_request_max()) {
    return Status(StatusCode::kInvalid, "more keys than keys_per_request_max: ask in pieces");
  }
  if (call->group != nullptr && !call->group->has_members(options.member_mask)) {
    return Status(StatusCode::kInvalid, "member_mask names members the SpaceGroup has not");
  }
  if (!options.event_hashes.empty() &&
      (verb != Verb::kReserve || options.event_hashes.size() != keys.size())) {
    return Status(StatusCode::kInvalid, "event_hashes go with Reserve, one a key");
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
  spec.message.parts = {BytesOf(request), std::as_bytes(keys), std::as_bytes(options.event_hashes)};
  return Status::Ok();
}

Status NewLease(Core& core, LeaseState::Kind kind, std::span<const BlockKey> keys, KeysCall* call) {
  call->spec.lease = core.NewLease();
  call->spec.lease->kind = kind;
  call->spec.lease->group = call->group;
  call->spec.lease->is_by_parts = (call->spec.asked.flags & protocol::kAcquireByParts) != 0;
  call->spec.lease->keys.assign(keys.begin(), keys.end());
  return Status::Ok();
}

// Keys are kept for checksums, which only writers make.
Status FillLeaseCall(Core& core, GroupRef ref, std::span<const BlockKey> keys,
                     const RequestOptions& options, Verb verb, KeysCall* call) {
  TERRACE_RETURN_IF_ERROR(FillKeys(core, ref, keys, options, verb, call));
  return verb == Verb::kReserve ? NewLease(core, LeaseState::Kind::kWrite, keys, call)
                                : NewLease(core, LeaseState::Kind::kRead, {}, call);
}

template <typename Lease>
Result<Lease> CallForLease(Core& core, KeysCall& call) {
  FinishedCall finished = core.Call(std::move(call.spec));
  if (!finished.status().ok()) return finished.status();
  return Lease(finished.TakeLease());
}

// What a Join asks, page by page.
struct JoinCall {
  GroupRef group;
  protocol::JoinRequest request;
  protocol::JoinPage page;
  uint64_t deadline_us = 0;
  std::shared_ptr<LeaseState> lease;  // as far as it is known
};

template <typename Lease>
Status JoinOnePage(Core& core, JoinCall* join) {
  constexpr LeaseState::Kind kKind =
      std::is_same_v<Lease, ReadLease> ? LeaseState::Kind::kRead : LeaseState::Kind::kWrite;
  KeysCall call;
  call.spec.asked = {.verb = Verb::kJoin,
                     .key_count = protocol::kKeysPerRequestMax,
                     .flags = protocol::kKeysFlat | join->request.flags,
                     .first_block = join->page.first_block};
  TERRACE_RETURN_IF_ERROR(SetGroup(core, join->group, &call));
  if (!call.group->has_members(join->request.member_mask)) {
    return Status(StatusCode::kInvalid, "member_mask names members the SpaceGroup has not");
  }
  if (join->lease != nullptr && join->lease->connection != call.spec.connection) {
    return Status(StatusCode::kGone, "the connection to the daemon broke between two pages");
  }
  join->request.group_handle = call.request.group_handle;
  call.spec.deadline_us = join->deadline_us;
  call.spec.message.parts = {BytesOf(join->request)};
  if (join->lease == nullptr) {
    TERRACE_RETURN_IF_ERROR(NewLease(core, kKind, {}, &call));
  } else {
    call.spec.lease = join->lease;
    call.spec.message.parts[1] = BytesOf(join->page);
  }
  FinishedCall finished = core.Call(std::move(call.spec));
  if (!finished.status().ok()) return finished.status();
  join->lease = finished.TakeLease();
  join->page.first_block = join->lease->block_count;
  return Status::Ok();
}

template <typename Lease>
Result<Lease> Join(Core& core, GroupRef ref, const LeaseToken& token, uint64_t member_mask,
                   uint32_t flags) {
  const Group* const group = core.groups().At(ref.index);
  if (group == nullptr) return Status(StatusCode::kInvalid, "no such GroupRef: Open it");
  if (member_mask == 0) member_mask = group->self_mask();
  const auto members = static_cast<size_t>(std::popcount(member_mask));
  const uint32_t page_blocks = std::is_same_v<Lease, ReadLease> ? protocol::JoinPageBlocks(members)
                                                                : protocol::JoinPageKeys(members);
  // Daemons that know nothing of pages refuse the flag, so it is said only where they may be many.
  const bool may_be_paged = page_blocks < protocol::kKeysPerRequestMax;
  JoinCall join{.group = ref,
                .request = {.token = token,
                            .member_mask = member_mask,
                            .flags = flags | (may_be_paged ? protocol::kJoinPaged : 0)},
                .deadline_us = After(core.options().default_deadline_us)};
  Status status = JoinOnePage<Lease>(core, &join);
  if (status.code() == StatusCode::kInvalid && may_be_paged) {
    join.request.flags = flags;
    status = JoinOnePage<Lease>(core, &join);
  }
  while (status.ok() && join.lease->has_more) status = JoinOnePage<Lease>(core, &join);
  if (status.ok()) return Lease(std::move(join.lease));
  if (join.lease != nullptr) core.GiveUpJoin(*join.lease);
  return status;
}

// False in *must_send if there is nothing to say.
Status FillCommit(Core& core, const std::shared_ptr<LeaseState>& lease,
                  const RequestOptions& options, CallSpec* spec, bool* must_send) {
  if (lease == nullptr || lease->core.get() != &core) {
    return Status(StatusCode::kInvalid, "no lease of this Client");
  }
  if (!lease->is_valid.load()) {
    return Status(StatusCode::kGone, "the lease is not valid any more");
  }
  if ((options.flags & protocol::kCommitRelease) != 0 && lease->copy_count.load() != 0) {
    return Status(StatusCode::kBusy,
                  "a copy of this lease is under way: its end must be seen first");
  }
  const uint64_t relative_us =
      options.deadline_us != 0 ? options.deadline_us : core.options().default_deadline_us;
  spec->asked.verb = Verb::kCommit;
  spec->connection = lease->connection;
  spec->deadline_us = After(relative_us);
  spec->lease = lease;
  spec->commit.flags = options.flags & protocol::kCommitRelease;
  spec->commit.hints = options.hints;
  if (spec->commit.hints.deadline_us == 0) {
    spec->commit.hints.deadline_us =
        static_cast<uint32_t>(std::min<uint64_t>(relative_us, 0xFFFFFFFF));
  }
  client::LockGuard guard(lease->write_lock);
  *must_send = !lease->token.is_zero() && (!lease->written.empty() || spec->commit.flags != 0);
  if (*must_send) {
    const uint32_t refused = lease->parts_refused.exchange(0);
    const uint32_t told = std::min<uint32_t>(refused, 255);
    spec->commit.hints.by_verb = static_cast<uint8_t>(told);
    lease->parts_refused.fetch_add(refused - told);  // for the next one, or the end of the lease
  }
  return Status::Ok();
}

template <typename T>
T TakeReply(const FinishedCall& finished) {
  T reply;
  // The Core has checked its size.
  static_cast<void>(BodyReader(finished.body()).Read(&reply));
  return reply;
}

Status CheckOptions(const ClientOptions& options, std::string* why) {
  const size_t path_bytes_max = sizeof(sockaddr_un::sun_path) - 1;
  if (options.socket_path.empty() || options.socket_path.size() > path_bytes_max) {
    *why = "socket_path has " + std::to_string(options.socket_path.size()) +
           " bytes; the limit is 1 to " + std::to_string(path_bytes_max) +
           ": name the domain's socket, or mount it at a shorter path";
  } else if (options.client_name.size() > kClientNameBytesMax) {
    *why = "client_name has " + std::to_string(options.client_name.size()) +
           " bytes; the limit is " + std::to_string(kClientNameBytesMax) + ": shorten it";
  } else if (options.pending_requests_max == 0 ||
             options.pending_requests_max > client::kPendingRequestsMax) {
    *why = "pending_requests_max is " + std::to_string(options.pending_requests_max) +
           "; the limit is 1 to " + std::to_string(client::kPendingRequestsMax);
  } else if (options.send_buffer_bytes_max < protocol::kFrameBytesMax) {
    *why = "send_buffer_bytes_max is " + std::to_string(options.send_buffer_bytes_max) +
           "; the least is one frame, " + std::to_string(protocol::kFrameBytesMax);
  } else if (options.default_deadline_us == 0 || options.reconnect_backoff_ms_max == 0) {
    *why = "default_deadline_us and reconnect_backoff_ms_max must be more than 0";
  } else {
    return Status::Ok();
  }
  return Status(StatusCode::kInvalid, "a ClientOptions field is out of range");
}

}  // namespace

Result<std::unique_ptr<Client>> Client::Create(const ClientOptions& options, std::string* why) {
  try {
    std::string reason;
    Status status = CheckOptions(options, &reason);
    if (status.ok()) {
      auto internals = std::make_unique<Internals>();
      Result<std::shared_ptr<Core>> core = Core::Start(options, &reason);
      if (core.ok()) {
        internals->core = std::move(core).value();
        return std::unique_ptr<Client>(new Client(std::move(internals)));
      }
      status = core.status();
    }
    if (why != nullptr) *why = reason;
    return status;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kNoSpace, "no memory for a Client");
  }
}

Client::Client(std::unique_ptr<Internals> internals) : internals_(std::move(internals)) {}

Client::~Client() {
  if (internals_->core->is_forked()) {
    // The parent's thread and locks are not here: what is left is memory.
    static_cast<void>(internals_.release());
    return;
  }
  internals_->core->Stop();
}

Result<std::shared_ptr<HostPins>> Client::PinArena(std::shared_ptr<const Device> device,
                                                   std::string_view why) {
  Core& core = *internals_->core;
  return Guarded(core, [&] { return core.PinArena(std::move(device), why); });
}

Status Client::PausePinning(uint64_t deadline_us) {
  Core& core = *internals_->core;
  if (core.is_forked()) return kForked;
  const std::shared_ptr<client::SegmentPinner> pinner = core.pinner();
  return pinner == nullptr ? Status::Ok() : pinner->Pause(After(deadline_us));
}

void Client::ResumePinning() {
  Core& core = *internals_->core;
  if (core.is_forked()) return;
  if (const std::shared_ptr<client::SegmentPinner> pinner = core.pinner()) pinner->Resume();
}

Status Client::WaitConnected(uint64_t deadline_us) {
  Core& core = *internals_->core;
  if (core.is_forked()) return kForked;
  return core.WaitConnected(After(deadline_us));
}

bool Client::is_connected() const {
  return !internals_->core->is_forked() && internals_->core->is_connected();
}
uint64_t Client::boot_id() const { return is_connected() ? internals_->core->boot_id() : 0; }
std::string Client::last_error() const {
  try {
    return internals_->core->is_forked() ? kForked.what() : internals_->core->last_error();
  } catch (const std::bad_alloc&) {
    return {};
  }
}

Result<GroupRef> Client::Open(const SpaceGroupSpec& spec, uint64_t self_mask,
                              uint64_t deadline_us) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Result<GroupRef> {
    const uint64_t until_us =
        After(deadline_us != 0 ? deadline_us : core.options().default_deadline_us);
    std::string why;
    Result<std::unique_ptr<Group>> created = Group::Create(spec, self_mask, &why);
    if (!created.ok()) {
      core.SetError(why);
      return created.status();
    }
    std::unique_ptr<Group> unnamed = std::move(created).value();
    Group* group = unnamed.get();
    GroupRef ref;
    while (true) {
      TERRACE_RETURN_IF_ERROR(core.WaitConnected(until_us));
      CallSpec open;
      open.asked.verb = Verb::kOpen;
      open.deadline_us = until_us;
      open.connection = core.connection();
      open.message.parts = {group->open_body()};
      const uint32_t connection = open.connection;
      const FinishedCall finished = core.Call(std::move(open));
      if (finished.status().code() == StatusCode::kGone && MonotonicUs() < until_us) continue;
      if (!finished.status().ok()) return finished.status();
      const Result<uint32_t> handle = group->DecodeOpenReply(finished.body(), &why);
      if (!handle.ok()) {
        core.SetError(why);
        return handle.status();
      }
      if (unnamed != nullptr) {
        const Result<uint32_t> index = core.groups().Add(std::move(unnamed));
        if (!index.ok()) return index.status();
        ref.index = *index;
        group = core.groups().At(ref.index);
      }
      group->Bind(connection, *handle);
      // After another reconnect the group may have come too late to be opened again with the rest.
      if (core.connection() == connection) return ref;
    }
  });
}

Result<PrefixHasher> Client::Hasher(GroupRef group) const {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Result<PrefixHasher> {
    const Group* found = core.groups().At(group.index);
    if (found == nullptr) return Status(StatusCode::kInvalid, "no such GroupRef: Open it");
    const std::shared_ptr<client::Attachment> attachment = core.attachment();
    if (attachment == nullptr) return Status(StatusCode::kGone, "not connected to the daemon");
    PrefixHasher::Options options;
    options.key_hash = static_cast<KeyHash>(attachment->geometry().key_hash);
    options.group = found->id();
    options.block_tokens = found->block_tokens();
    return found->is_of_chunks() ? ChunkHasher(options, attachment->secret())
                                 : PrefixHasher(options, attachment->secret());
  });
}

Result<MatchResult> Client::Match(GroupRef group, std::span<const BlockKey> keys,
                                  const RequestOptions& options) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Result<MatchResult> {
    KeysCall call;
    TERRACE_RETURN_IF_ERROR(FillKeys(core, group, keys, options, Verb::kMatch, &call));
    const FinishedCall finished = core.Call(std::move(call.spec));
    if (!finished.status().ok()) return finished.status();
    const auto reply = TakeReply<protocol::MatchReply>(finished);
    return MatchResult{.block_count = reply.block_count,
                       .token_count = reply.token_count,
                       .is_bound = (reply.flags & protocol::kMatchIsBound) != 0};
  });
}

Result<ReadLease> Client::Acquire(GroupRef group, std::span<const BlockKey> keys,
                                  const RequestOptions& options) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Result<ReadLease> {
    KeysCall call;
    TERRACE_RETURN_IF_ERROR(FillLeaseCall(core, group, keys, options, Verb::kAcquire, &call));
    return CallForLease<ReadLease>(core, call);
  });
}

Status Client::WaitReady(const ReadLease& lease, uint32_t block_count, uint64_t deadline_us) {
  Core& core = *internals_->core;
  if (core.is_forked()) return kForked;
  if (lease.state_ == nullptr || lease.state_->core.get() != &core) {
    return Status(StatusCode::kInvalid, "no lease of this Client");
  }
  return core.WaitReady(*lease.state_, block_count, After(deadline_us));
}

Result<uint32_t> Client::Prefetch(GroupRef group, std::span<const BlockKey> keys,
                                  const RequestOptions& options) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Result<uint32_t> {
    KeysCall call;
    TERRACE_RETURN_IF_ERROR(FillKeys(core, group, keys, options, Verb::kPrefetch, &call));
    const FinishedCall finished = core.Call(std::move(call.spec));
    if (!finished.status().ok()) return finished.status();
    return finished.block_count();
  });
}

Result<WriteLease> Client::Reserve(GroupRef group, std::span<const BlockKey> keys,
                                   const RequestOptions& options) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Result<WriteLease> {
    KeysCall call;
    TERRACE_RETURN_IF_ERROR(FillLeaseCall(core, group, keys, options, Verb::kReserve, &call));
    return CallForLease<WriteLease>(core, call);
  });
}

Result<ReadLease> Client::JoinRead(GroupRef group, const LeaseToken& token, uint64_t member_mask,
                                   uint32_t flags) {
  Core& core = *internals_->core;
  return Guarded(core, [&] { return Join<ReadLease>(core, group, token, member_mask, flags); });
}

Result<WriteLease> Client::JoinWrite(GroupRef group, const LeaseToken& token,
                                     uint64_t member_mask) {
  Core& core = *internals_->core;
  return Guarded(core, [&] { return Join<WriteLease>(core, group, token, member_mask, 0); });
}

Result<uint32_t> Client::Commit(WriteLease& lease, const RequestOptions& options) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Result<uint32_t> {
    CallSpec spec;
    bool must_send = false;
    TERRACE_RETURN_IF_ERROR(FillCommit(core, lease.state_, options, &spec, &must_send));
    if (!must_send) return uint32_t{0};
    const FinishedCall finished = core.Call(std::move(spec));
    if (!finished.status().ok()) return finished.status();
    return finished.block_count();
  });
}

Status Client::AcquireAsync(GroupRef group, std::span<const BlockKey> keys,
                            const RequestOptions& options, uint64_t user_data,
                            CompletionCallback callback) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Status {
    KeysCall call;
    TERRACE_RETURN_IF_ERROR(FillLeaseCall(core, group, keys, options, Verb::kAcquire, &call));
    return core.Submit(std::move(call.spec), {user_data, std::move(callback)});
  });
}

Status Client::PrefetchAsync(GroupRef group, std::span<const BlockKey> keys,
                             const RequestOptions& options, uint64_t user_data,
                             CompletionCallback callback) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Status {
    KeysCall call;
    TERRACE_RETURN_IF_ERROR(FillKeys(core, group, keys, options, Verb::kPrefetch, &call));
    return core.Submit(std::move(call.spec), {user_data, std::move(callback)});
  });
}

Status Client::ReserveAsync(GroupRef group, std::span<const BlockKey> keys,
                            const RequestOptions& options, uint64_t user_data,
                            CompletionCallback callback) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Status {
    KeysCall call;
    TERRACE_RETURN_IF_ERROR(FillLeaseCall(core, group, keys, options, Verb::kReserve, &call));
    return core.Submit(std::move(call.spec), {user_data, std::move(callback)});
  });
}

Status Client::CommitAsync(WriteLease& lease, const RequestOptions& options, uint64_t user_data,
                           CompletionCallback callback) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Status {
    CallSpec spec;
    bool must_send = false;
    TERRACE_RETURN_IF_ERROR(FillCommit(core, lease.state_, options, &spec, &must_send));
    if (lease.token().is_zero()) {
      return Status(StatusCode::kInvalid, "the lease reserved nothing: there is nothing to commit");
    }
    return core.Submit(std::move(spec), {user_data, std::move(callback)});
  });
}

bool Client::Poll(ClientCompletion* completion) {
  return !internals_->core->is_forked() && internals_->core->completions().Pop(completion);
}
bool Client::PollUntil(ClientCompletion* completion, uint64_t deadline_us) {
  Core& core = *internals_->core;
  if (core.is_forked()) return false;
  core.WaitCompletion(After(deadline_us));
  return core.completions().Pop(completion);
}
int Client::event_fd() const {
  return internals_->core->is_forked() ? -1 : internals_->core->completions().event_fd();
}

Status Client::Touch(GroupRef group, std::span<const BlockKey> keys,
                     const RequestOptions& options) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Status {
    KeysCall call;
    TERRACE_RETURN_IF_ERROR(FillKeys(core, group, keys, options, Verb::kTouch, &call));
    const protocol::TouchRequest touch;
    call.spec.message.parts = {BytesOf(touch), BytesOf(call.request), std::as_bytes(keys)};
    return core.Call(std::move(call.spec)).status();
  });
}

Status Client::Query(GroupRef group, std::span<const BlockKey> keys,
                     std::vector<protocol::QueriedBlock>* blocks, const RequestOptions& options) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Status {
    KeysCall call;
    TERRACE_RETURN_IF_ERROR(FillKeys(core, group, keys, options, Verb::kQuery, &call));
    const FinishedCall finished = core.Call(std::move(call.spec));
    if (!finished.status().ok()) return finished.status();
    blocks->resize(finished.body().size() / sizeof(protocol::QueriedBlock));
    static_cast<void>(BodyReader(finished.body()).ReadArray(std::span(*blocks)));
    return Status::Ok();
  });
}

Status Client::WaitPersisted(GroupRef group, std::span<const BlockKey> keys,
                             const RequestOptions& options) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Status {
    KeysCall call;
    TERRACE_RETURN_IF_ERROR(FillKeys(core, group, keys, options, Verb::kWait, &call));
    return core.Call(std::move(call.spec)).status();
  });
}

Result<protocol::EvictReply> Client::Evict(GroupRef group, std::span<const BlockKey> keys,
                                           const RequestOptions& options) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Result<protocol::EvictReply> {
    KeysCall call;
    TERRACE_RETURN_IF_ERROR(FillKeys(core, group, keys, options, Verb::kEvict, &call));
    const FinishedCall finished = core.Call(std::move(call.spec));
    if (!finished.status().ok()) return finished.status();
    return TakeReply<protocol::EvictReply>(finished);
  });
}

Result<uint32_t> Client::Pin(GroupRef group, std::span<const BlockKey> keys,
                             const RequestOptions& options) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Result<uint32_t> {
    KeysCall call;
    TERRACE_RETURN_IF_ERROR(FillKeys(core, group, keys, options, Verb::kPin, &call));
    const FinishedCall finished = core.Call(std::move(call.spec));
    if (!finished.status().ok()) return finished.status();
    return TakeReply<protocol::PinReply>(finished).block_count;
  });
}

Status Client::Reset(GroupRef group) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Status {
    KeysCall call;
    call.spec.asked.verb = Verb::kReset;
    TERRACE_RETURN_IF_ERROR(SetGroup(core, group, &call));
    const protocol::ResetRequest request{.group_handle = call.request.group_handle};
    call.spec.deadline_us = After(core.options().default_deadline_us + protocol::kErasureWaitUs);
    call.spec.message.parts = {BytesOf(request)};
    return core.Call(std::move(call.spec)).status();
  });
}

Result<std::string> Client::Stats(uint64_t deadline_us) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Result<std::string> {
    const protocol::StatsRequest request;
    CallSpec spec;
    spec.asked.verb = Verb::kStats;
    spec.connection = core.connection();
    spec.deadline_us = After(deadline_us != 0 ? deadline_us : core.options().default_deadline_us);
    spec.message.parts = {BytesOf(request)};
    const FinishedCall finished = core.Call(std::move(spec));
    if (!finished.status().ok()) return finished.status();
    return std::string(reinterpret_cast<const char*>(finished.body().data()),
                       finished.body().size());
  });
}

Result<std::vector<protocol::ListEntry>> Client::List(const protocol::ListRequest& request,
                                                      uint64_t* cursor, uint64_t deadline_us) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Result<std::vector<protocol::ListEntry>> {
    protocol::ListRequest sent = request;
    KeysCall call;
    call.spec.asked = {.verb = Verb::kList, .entry_count = request.entry_count_max};
    call.spec.connection = core.connection();
    if (request.group_handle != 0) {
      TERRACE_RETURN_IF_ERROR(SetGroup(core, GroupRef{request.group_handle - 1}, &call));
      sent.group_handle = call.request.group_handle;
    }
    sent.cursor = *cursor;
    call.spec.deadline_us =
        After(deadline_us != 0 ? deadline_us : core.options().default_deadline_us);
    call.spec.message.parts = {BytesOf(sent)};
    const FinishedCall finished = core.Call(std::move(call.spec));
    if (!finished.status().ok()) return finished.status();
    BodyReader body(finished.body());
    protocol::ListReply reply;
    static_cast<void>(body.Read(&reply));
    std::vector<protocol::ListEntry> entries(reply.entry_count);
    static_cast<void>(body.ReadArray(std::span(entries)));
    *cursor = reply.cursor;
    return entries;
  });
}

}  // namespace terrace

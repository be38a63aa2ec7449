// The verbs of Client: each builds its request, hands it to the Core, and reads the answer that the
// Core has checked.
#include "terrace/client.h"

#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "client/core/core.h"
#include "client/core/verb_calls.h"
#include "terrace/chunk.h"

namespace terrace {

using client::After;
using client::AsyncSpec;
using client::BodyReader;
using client::BytesOf;
using client::CallSpec;
using client::Connection;
using client::Core;
using client::FinishedCall;
using client::Group;
using client::KeysCall;
using client::kForked;
using client::MonotonicUs;
using protocol::Verb;

struct Client::Internals {
  std::shared_ptr<Core> core;
};

namespace {

constexpr size_t kClientNameBytesMax = sizeof(protocol::HelloRequest::client_name) - 1;

// Runs a verb; what throws inside is a lack of memory.
template <typename Verb>
auto Guarded(const Core& core, Verb verb) -> decltype(verb()) {
  if (core.connection().is_forked()) return kForked;
  try {
    return verb();
  } catch (...) {
    return Status(StatusCode::kNoSpace, "no memory for the request or its answer");
  }
}

// The callback may destroy the Client before this has returned: the Core stays until then.
Status Submit(Core& core, CallSpec spec, AsyncSpec async) {
  const std::shared_ptr<Core> until_return = core.shared_from_this();
  return core.calls().Submit(std::move(spec), std::move(async));
}

template <typename T>
T TakeReply(const FinishedCall& finished) {
  T reply;
  // The Core has checked its size.
  static_cast<void>(BodyReader(finished.body()).Read(&reply));
  return reply;
}

template <typename Lease>
Result<Lease> TakeLease(FinishedCall& finished) {
  return Lease(finished.TakeLease());
}

Status TakeNothing(FinishedCall&) { return Status::Ok(); }

// Asks about keys; `take` makes the result of the answer, whose status is kOk.
template <typename Take>
auto AskOfKeys(Core& core, Verb verb, GroupRef group, std::span<const BlockKey> keys,
               const RequestOptions& options, Take take)
    -> decltype(take(std::declval<FinishedCall&>())) {
  return Guarded(core, [&]() -> decltype(take(std::declval<FinishedCall&>())) {
    KeysCall call;
    TERRACE_RETURN_IF_ERROR(FillKeys(core, group, keys, options, verb, &call));
    FinishedCall finished = core.calls().Call(std::move(call.spec));
    if (!finished.status().ok()) return finished.status();
    return take(finished);
  });
}

// The same, answered by a completion.
Status SubmitOfKeys(Core& core, Verb verb, GroupRef group, std::span<const BlockKey> keys,
                    const RequestOptions& options, AsyncSpec async) {
  return Guarded(core, [&]() -> Status {
    KeysCall call;
    TERRACE_RETURN_IF_ERROR(FillKeys(core, group, keys, options, verb, &call));
    return Submit(core, std::move(call.spec), std::move(async));
  });
}

template <typename Lease>
Result<Lease> Join(Core& core, GroupRef group, LeaseState::Kind kind,
                   const protocol::JoinRequest& request) {
  return Guarded(core, [&]() -> Result<Lease> {
    Result<std::shared_ptr<LeaseState>> joined = client::JoinLease(core, group, kind, request);
    if (!joined.ok()) return joined.status();
    return Lease(std::move(joined).value());
  });
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
      // Made first: once the Core has its thread, nothing may fail that would leave it running.
      std::unique_ptr<Client> client(new Client(std::make_unique<Internals>()));
      Result<std::shared_ptr<Core>> core = Core::Start(options, &reason);
      if (core.ok()) {
        client->internals_->core = std::move(core).value();
        return client;
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
  if (internals_->core == nullptr) return;  // it was not started
  if (internals_->core->connection().is_forked()) {
    // The parent's thread and locks are not here: what is left is memory.
    static_cast<void>(internals_.release());
    return;
  }
  internals_->core->Stop();
}

Result<std::shared_ptr<HostPins>> Client::PinArena(std::shared_ptr<const Device> device,
                                                   std::string_view why) {
  Core& core = *internals_->core;
  return Guarded(core, [&] { return core.pins().Start(std::move(device), why); });
}

Status Client::PausePinning(uint64_t deadline_us) {
  Core& core = *internals_->core;
  if (core.connection().is_forked()) return kForked;
  const std::shared_ptr<client::SegmentPinner> pinner = core.pins().pinner();
  return pinner == nullptr ? Status::Ok() : pinner->Pause(After(deadline_us));
}

void Client::ResumePinning() {
  Core& core = *internals_->core;
  if (core.connection().is_forked()) return;
  if (const std::shared_ptr<client::SegmentPinner> pinner = core.pins().pinner()) pinner->Resume();
}

Status Client::WaitConnected(uint64_t deadline_us) {
  Core& core = *internals_->core;
  if (core.connection().is_forked()) return kForked;
  return core.connection().WaitUntilConnected(After(deadline_us));
}

bool Client::is_connected() const {
  return !internals_->core->connection().is_forked() &&
         internals_->core->connection().is_connected();
}
uint64_t Client::boot_id() const {
  return is_connected() ? internals_->core->connection().boot_id() : 0;
}
std::string Client::last_error() const {
  try {
    return internals_->core->connection().is_forked() ? kForked.what()
                                                      : internals_->core->connection().last_error();
  } catch (const std::bad_alloc&) {
    return {};
  }
}

bool Client::is_bypassed() const { return internals_->core->bypass().is_on(); }
uint64_t Client::bypassed_count() const { return internals_->core->bypass().answered_count(); }

bool Client::is_reader() const { return internals_->core->connection().is_reader(); }

Result<GroupRef> Client::Open(const SpaceGroupSpec& spec, uint64_t self_mask,
                              uint64_t deadline_us) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Result<GroupRef> {
    const uint64_t until_us =
        After(deadline_us != 0 ? deadline_us : core.options().default_deadline_us);
    std::string why;
    Result<std::unique_ptr<Group>> created = Group::Create(spec, self_mask, &why);
    if (!created.ok()) {
      core.connection().SetError(why);
      return created.status();
    }
    std::unique_ptr<Group> unnamed = std::move(created).value();
    Group* group = unnamed.get();
    GroupRef ref;
    while (true) {
      TERRACE_RETURN_IF_ERROR(core.connection().WaitUntilConnected(until_us));
      CallSpec open;
      open.asked.verb = Verb::kOpen;
      open.deadline_us = until_us;
      open.connection = core.connection().number();
      open.message.parts = {group->open_body()};
      const uint32_t connection = open.connection;
      const FinishedCall finished = core.calls().Call(std::move(open));
      if (finished.status().code() == StatusCode::kGone && MonotonicUs() < until_us) continue;
      if (!finished.status().ok()) return finished.status();
      const Result<uint32_t> handle = group->DecodeOpenReply(finished.body(), &why);
      if (!handle.ok()) {
        core.connection().SetError(why);
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
      if (core.connection().number() == connection) return ref;
    }
  });
}

Result<PrefixHasher> Client::Hasher(GroupRef group) const {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Result<PrefixHasher> {
    const Group* found = core.groups().At(group.index);
    if (found == nullptr) return Status(StatusCode::kInvalid, "no such GroupRef: Open it");
    const std::shared_ptr<client::Attachment> attachment = core.connection().attachment();
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
  return AskOfKeys(*internals_->core, Verb::kMatch, group, keys, options,
                   [](FinishedCall& finished) -> Result<MatchResult> {
                     const auto reply = TakeReply<protocol::MatchReply>(finished);
                     return MatchResult{.block_count = reply.block_count,
                                        .token_count = reply.token_count,
                                        .is_bound = (reply.flags & protocol::kMatchIsBound) != 0};
                   });
}

Result<ReadLease> Client::Acquire(GroupRef group, std::span<const BlockKey> keys,
                                  const RequestOptions& options) {
  return AskOfKeys(*internals_->core, Verb::kAcquire, group, keys, options, TakeLease<ReadLease>);
}

Status Client::WaitReady(const ReadLease& lease, uint32_t block_count, uint64_t deadline_us) {
  Core& core = *internals_->core;
  if (core.connection().is_forked()) return kForked;
  if (lease.state_ == nullptr || !core.IsLeaseOfMine(*lease.state_)) {
    return Status(StatusCode::kInvalid, "no lease of this Client");
  }
  return core.calls().WaitReady(*lease.state_, block_count, After(deadline_us));
}

Result<uint32_t> Client::Prefetch(GroupRef group, std::span<const BlockKey> keys,
                                  const RequestOptions& options) {
  return AskOfKeys(
      *internals_->core, Verb::kPrefetch, group, keys, options,
      [](FinishedCall& finished) -> Result<uint32_t> { return finished.block_count(); });
}

Result<WriteLease> Client::Reserve(GroupRef group, std::span<const BlockKey> keys,
                                   const RequestOptions& options) {
  return AskOfKeys(*internals_->core, Verb::kReserve, group, keys, options, TakeLease<WriteLease>);
}

Result<ReadLease> Client::JoinRead(GroupRef group, const LeaseToken& token, uint64_t member_mask,
                                   uint32_t flags) {
  return Join<ReadLease>(*internals_->core, group, LeaseState::Kind::kRead,
                         {.token = token, .member_mask = member_mask, .flags = flags});
}

Result<WriteLease> Client::JoinWrite(GroupRef group, const LeaseToken& token,
                                     uint64_t member_mask) {
  return Join<WriteLease>(*internals_->core, group, LeaseState::Kind::kWrite,
                          {.token = token, .member_mask = member_mask});
}

Result<uint32_t> Client::Commit(WriteLease& lease, const RequestOptions& options) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Result<uint32_t> {
    uint32_t sealed_count = 0;
    uint64_t deadline_us = 0;
    Status refusal;
    for (bool has_more = true; has_more;) {
      CallSpec spec;
      bool must_send = false;
      TERRACE_RETURN_IF_ERROR(FillCommit(core, lease.state_, options, &spec, &must_send));
      if (!must_send) break;
      if (deadline_us == 0) deadline_us = spec.deadline_us;  // of all pieces
      spec.deadline_us = deadline_us;
      spec.may_be_split = true;
      const FinishedCall finished = core.calls().Call(std::move(spec));
      has_more = finished.has_more();
      const StatusCode code = finished.status().code();
      if (code == StatusCode::kOk) {
        sealed_count += finished.block_count();
      } else if (finished.was_returned()) {
        return finished.status();  // as the others would be, which the lease has, too
      } else if (!has_more && (code == StatusCode::kBusy || code == StatusCode::kGone)) {
        return finished.status();  // nobody has said what became of the rest
      } else if (refusal.ok()) {
        refusal = finished.status();
      }
    }
    if (sealed_count == 0 && !refusal.ok()) return refusal;
    return sealed_count;
  });
}

Status Client::AcquireAsync(GroupRef group, std::span<const BlockKey> keys,
                            const RequestOptions& options, uint64_t user_data,
                            CompletionCallback callback) {
  return SubmitOfKeys(*internals_->core, Verb::kAcquire, group, keys, options,
                      {user_data, std::move(callback)});
}

Status Client::PrefetchAsync(GroupRef group, std::span<const BlockKey> keys,
                             const RequestOptions& options, uint64_t user_data,
                             CompletionCallback callback) {
  return SubmitOfKeys(*internals_->core, Verb::kPrefetch, group, keys, options,
                      {user_data, std::move(callback)});
}

Status Client::ReserveAsync(GroupRef group, std::span<const BlockKey> keys,
                            const RequestOptions& options, uint64_t user_data,
                            CompletionCallback callback) {
  return SubmitOfKeys(*internals_->core, Verb::kReserve, group, keys, options,
                      {user_data, std::move(callback)});
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
    return Submit(core, std::move(spec), {user_data, std::move(callback)});
  });
}

bool Client::Poll(ClientCompletion* completion) {
  return !internals_->core->connection().is_forked() &&
         internals_->core->completions().Pop(completion);
}
bool Client::PollUntil(ClientCompletion* completion, uint64_t deadline_us) {
  Core& core = *internals_->core;
  if (core.connection().is_forked()) return false;
  return core.calls().PopUntil(completion, After(deadline_us));
}
int Client::event_fd() const {
  return internals_->core->connection().is_forked() ? -1
                                                    : internals_->core->completions().event_fd();
}

Status Client::Touch(GroupRef group, std::span<const BlockKey> keys,
                     const RequestOptions& options) {
  return AskOfKeys(*internals_->core, Verb::kTouch, group, keys, options, TakeNothing);
}

Status Client::Query(GroupRef group, std::span<const BlockKey> keys,
                     std::vector<protocol::QueriedBlock>* blocks, const RequestOptions& options) {
  return AskOfKeys(*internals_->core, Verb::kQuery, group, keys, options,
                   [blocks](FinishedCall& finished) -> Status {
                     blocks->resize(finished.body().size() / sizeof(protocol::QueriedBlock));
                     static_cast<void>(BodyReader(finished.body()).ReadArray(std::span(*blocks)));
                     return Status::Ok();
                   });
}

Status Client::WaitPersisted(GroupRef group, std::span<const BlockKey> keys,
                             const RequestOptions& options) {
  return AskOfKeys(*internals_->core, Verb::kWait, group, keys, options, TakeNothing);
}

Result<protocol::EvictReply> Client::Evict(GroupRef group, std::span<const BlockKey> keys,
                                           const RequestOptions& options) {
  return AskOfKeys(*internals_->core, Verb::kEvict, group, keys, options,
                   [](FinishedCall& finished) -> Result<protocol::EvictReply> {
                     return TakeReply<protocol::EvictReply>(finished);
                   });
}

Result<uint32_t> Client::Pin(GroupRef group, std::span<const BlockKey> keys,
                             const RequestOptions& options) {
  return AskOfKeys(*internals_->core, Verb::kPin, group, keys, options,
                   [](FinishedCall& finished) -> Result<uint32_t> {
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
    return core.calls().Call(std::move(call.spec)).status();
  });
}

Result<std::string> Client::Stats(uint64_t deadline_us) {
  Core& core = *internals_->core;
  return Guarded(core, [&]() -> Result<std::string> {
    const protocol::StatsRequest request;
    CallSpec spec;
    spec.asked.verb = Verb::kStats;
    spec.connection = core.connection().number();
    spec.deadline_us = After(deadline_us != 0 ? deadline_us : core.options().default_deadline_us);
    spec.message.parts = {BytesOf(request)};
    const FinishedCall finished = core.calls().Call(std::move(spec));
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
    call.spec.connection = core.connection().number();
    if (request.group_handle != 0) {
      TERRACE_RETURN_IF_ERROR(SetGroup(core, GroupRef{request.group_handle - 1}, &call));
      sent.group_handle = call.request.group_handle;
    }
    sent.cursor = *cursor;
    call.spec.deadline_us =
        After(deadline_us != 0 ? deadline_us : core.options().default_deadline_us);
    call.spec.message.parts = {BytesOf(sent)};
    const FinishedCall finished = core.calls().Call(std::move(call.spec));
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

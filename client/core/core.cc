#include "client/core/core.h"

#include <algorithm>
#include <new>
#include <system_error>

#include "client/core/background.h"
#include "client/core/commit.h"
#include "cuda/host/device_name.h"

namespace terrace::client {
namespace {

// Beyond send_buffer_bytes_max, for what cannot be refused: the ends of leases. A daemon that
// leaves more than this unread is given up.
constexpr uint64_t kUnawaitedBytesMax = 4 << 20;
constexpr size_t kCompletionsPerRequest = 4;

}  // namespace

bool Core::Waiting::is_over() const {
  if (request != nullptr) return request->is_done.load();
  if (completions != nullptr) return !completions->is_empty() || !completions->is_awaited();
  return lease->ready_count.load() >= block_count || !lease->is_valid.load() ||
         !lease->is_coming.load() || lease->staying_count.load() < block_count;
}

uint32_t Core::Waiting::lane() const {
  return request != nullptr ? request->index % kLeaseLane : kLeaseLane;
}

Core::Core(const ClientOptions& options, std::string device_name)
    : options_(options),
      device_name_(std::move(device_name)),
      fork_generation_(ForkGeneration()),
      requests_(options.pending_requests_max),
      completions_(options.pending_requests_max * kCompletionsPerRequest) {
  callbacks_.reserve(options.pending_requests_max);
}

Result<std::shared_ptr<Core>> Core::Start(const ClientOptions& options, std::string* why) {
  std::string device_name;
  if (options.device != nullptr) {
    Result<std::string> name = DeviceName(*options.device);
    if (!name.ok()) {
      *why = std::string("device cannot say which it is: ") + name.status().what() +
             "; open it anew, or leave it out";
      return name.status();
    }
    device_name = std::move(name).value();
  }
  std::shared_ptr<Core> core(new Core(options, std::move(device_name)));
  Status status = core->link_.Open();
  if (status.ok()) status = core->completions_.Open();
  if (!status.ok()) {
    *why = "no descriptors left for a Client: raise this process's descriptor limit";
    return status;
  }
  try {
    const SignalsBlocked blocked;
    core->background_ = std::thread([core] { Background(*core).Run(); });
  } catch (const std::system_error&) {
    *why = "no thread for a Client: raise this process's thread limit";
    return Status(StatusCode::kNoSpace, "no thread for a Client");
  }
  return core;
}

void Core::Stop() {
  is_stopping_ = true;
  connecting_.WakeAll();
  link_.WakeBackground();
  completions_.Clear();  // their leases keep this Core, and the session, alive
  // So that a callback's own call does not wait for its answer.
  link_.Shutdown();
  // A user may destroy the Client from a callback: then the thread ends by itself.
  if (background_.get_id() == std::this_thread::get_id()) {
    background_.detach();
  } else if (background_.joinable()) {
    background_.join();
  }
  if (const std::shared_ptr<SegmentPinner> pinner = this->pinner()) pinner->Stop();
}

Request* Core::Prepare(CallSpec* spec) {
  Request* request = requests_.Take();
  if (request == nullptr) return nullptr;
  request->connection = spec->connection;
  request->deadline_us = spec->deadline_us;
  request->asked = spec->asked;
  request->lease = std::move(spec->lease);
  spec->message.verb = spec->asked.verb;
  spec->message.request_id = request->id;
  if (spec->asked.verb != protocol::Verb::kCommit) return request;
  request->commit = spec->commit;
  try {
    BuildCommit(*request, &spec->message);
  } catch (const std::bad_alloc&) {
    requests_.Free(*request);
    throw;
  }
  return request;
}

Status Core::SendRequest(const CallSpec& spec) {
  return link_.Send(
      spec.connection, spec.message,
      {.deadline_us = spec.deadline_us, .unsent_bytes_max = options_.send_buffer_bytes_max});
}

FinishedCall Core::Call(CallSpec spec) {
  Request* request = Prepare(&spec);
  if (request == nullptr) {
    return FinishedCall(Status(StatusCode::kBusy, "pending_requests_max requests are pending"));
  }
  requests_.MakePending(*request);
  const Status sent = SendRequest(spec);
  if (!sent.ok() && requests_.Withdraw(*request, spec.message.request_id)) {
    ReturnWritten(*request);
    requests_.Free(*request);
    return FinishedCall(sent);
  }
  const Status waited = Await({.request = request}, spec.deadline_us);
  if (!waited.ok() && requests_.Abandon(*request)) return FinishedCall(waited);
  return FinishedCall(requests_, *request);
}

Status Core::Submit(CallSpec spec, AsyncSpec async) {
  // The callback may destroy the Client before the request's own call has returned.
  const std::shared_ptr<Core> until_return = shared_from_this();
  const bool has_callback = async.callback != nullptr;
  if (!has_callback && !completions_.Reserve()) {
    return Status(StatusCode::kBusy, "finished requests wait for Poll");
  }
  const uint64_t deadline_us = spec.deadline_us;
  Request* request = Prepare(&spec);
  if (request == nullptr) {
    if (!has_callback) completions_.Unreserve();
    return Status(StatusCode::kBusy, "pending_requests_max requests are pending");
  }
  request->is_async = true;
  request->user_data = async.user_data;
  request->callback = std::move(async.callback);
  requests_.MakePending(*request);
  const Status sent = SendRequest(spec);
  if (!sent.ok() && requests_.Withdraw(*request, spec.message.request_id)) {
    ReturnWritten(*request);
    requests_.Free(*request);
    if (!has_callback) completions_.Unreserve();
    return sent;
  }
  // A caller that reads now does this when it leaves.
  if (!reader_.is_locked()) link_.ListenInBackground();
  if (deadline_us < background_until_us_.load()) link_.WakeBackground();
  return Status::Ok();
}

Status Core::Await(const Waiting& waiting, uint64_t deadline_us) {
  bool was_reader = false;
  Status status;
  while (!waiting.is_over()) {
    if (MonotonicUs() >= deadline_us) {
      status = Status(StatusCode::kBusy, "the deadline passed");
      break;
    }
    was_reader = reader_.TryLock();
    if (was_reader) {
      ReadWhile(waiting, deadline_us);
      LeaveReader();
      continue;
    }
    const uint32_t entered = sleepers_.Enter();
    if (!waiting.is_over() && reader_.is_locked()) {
      sleepers_.Sleep(entered, waiting.lane(), deadline_us);
    }
    sleepers_.Leave();
  }
  // It may have been woken to take over, and has no need to any more.
  if (!was_reader && !reader_.is_locked()) sleepers_.WakeOne();
  return status;
}

Status Core::WaitReady(LeaseState& lease, uint32_t block_count, uint64_t deadline_us) {
  const Status waited = Await({.lease = &lease, .block_count = block_count}, deadline_us);
  if (lease.ready_count.load() >= block_count) return Status::Ok();
  if (!lease.is_valid.load()) return Status(StatusCode::kGone, "the lease is not valid any more");
  if (!waited.ok()) return waited;
  return Status(StatusCode::kNotFound, "no more blocks will come");
}

void Core::WaitCompletion(uint64_t deadline_us) {
  static_cast<void>(Await({.completions = &completions_}, deadline_us));
}

Status Core::WaitConnected(uint64_t deadline_us) {
  while (true) {
    const uint32_t entered = connecting_.Enter();
    Status status(StatusCode::kBusy, "not connected yet; last_error() says why");
    if (is_connected()) {
      status = Status::Ok();
    } else if (is_stopping_) {
      status = Status(StatusCode::kGone, "the Client is being destroyed");
    } else {
      LockGuard guard(state_lock_);
      if (refusal_.is_final) status = refusal_.status;
    }
    const bool must_wait = status.code() == StatusCode::kBusy && MonotonicUs() < deadline_us;
    if (must_wait) connecting_.Sleep(entered, 0, deadline_us);
    connecting_.Leave();
    if (!must_wait) return status;
  }
}

void Core::SendUnawaited(uint32_t connection, protocol::Verb verb,
                         std::array<std::span<const std::byte>, 4> parts) {
  Outgoing message;
  message.verb = verb;
  message.request_id = uint64_t{unawaited_count_.fetch_add(1) + 1} << 16 | kUnawaitedSlot;
  message.parts = parts;
  const Status sent =
      link_.Send(connection, message,
                 {.unsent_bytes_max = options_.send_buffer_bytes_max + kUnawaitedBytesMax});
  if (sent.code() != StatusCode::kBusy) return;
  SetError(
      "the daemon does not read: send_buffer_bytes_max bytes are unsent and leases cannot be "
      "ended; "
      "the connection is given up. Is terraced stopped?");
  link_.Shutdown();
}

void Core::SendRelease(uint32_t connection, const LeaseToken& token, uint8_t end_reason,
                       uint32_t times) {
  protocol::ReleaseRequest release;
  release.token = token;
  release.hints.end_reason = static_cast<protocol::EndReason>(end_reason);
  for (uint32_t i = 0; i < times; ++i) {
    SendUnawaited(connection, protocol::Verb::kRelease, {BytesOf(release)});
  }
}

bool Core::SendAbort(LeaseState& lease) {
  protocol::AbortRequest abort;
  abort.token = lease.token;
  abort.parts_refused = lease.parts_refused.exchange(0);
  std::vector<uint32_t> key_indexes;
  bool is_whole = true;
  try {
    LockGuard guard(lease.write_lock);
    for (uint32_t key = 0; key < lease.reserved.size(); ++key) {
      if (!lease.is_reserved(key)) continue;
      if (IsCommitted(lease, key)) {
        is_whole = false;
      } else {
        key_indexes.push_back(key);
      }
    }
  } catch (const std::bad_alloc&) {
    // Aborting what was committed as well costs hits, never bytes.
    is_whole = true;
  }
  if (is_whole) key_indexes.clear();
  abort.key_count = static_cast<uint32_t>(key_indexes.size());
  if (is_whole || abort.key_count > 0) {
    SendUnawaited(lease.connection, protocol::Verb::kAbort,
                  {BytesOf(abort), std::as_bytes(std::span(key_indexes))});
  }
  return is_whole;
}

void Core::SendEndIfDue(LeaseState& lease) {
  if (!lease.TakeEnd()) return;
  uint32_t ends_owed = registry_.Remove(lease);
  lease.SettleProgress();
  if (lease.connection != connection()) return;
  // What this process did not finish nobody can: other joiners' parts of it are worthless.
  if (lease.kind == LeaseState::Kind::kWrite && !lease.is_revoked && ends_owed > 0) {
    if (SendAbort(lease)) --ends_owed;
  }
  SendRelease(lease.connection, lease.token, lease.end_reason, ends_owed);
}

void Core::Recycle(LeaseState* lease) {
  // In a child of fork() the parent's locks may be held by threads that do not exist here.
  if (lease->core->is_forked()) return;
  const std::shared_ptr<Core> core = lease->core;
  core->Retire(*lease);
  lease->core.reset();
  core->pool_.Put(lease);
}

void Core::Retire(LeaseState& lease) {
  lease.is_valid = false;
  lease.is_end_wanted = true;
  SendEndIfDue(lease);
  // From here on nothing finds it any more.
  SendRelease(lease.connection, lease.token, lease.end_reason, registry_.Remove(lease));
  if (lease.attachment == nullptr) return;
  for (const uint32_t segment : lease.segments) {
    if (!lease.attachment->ReleaseSegment(segment)) continue;
    const protocol::UnmappedRequest unmapped{.segment = segment};
    SendUnawaited(lease.connection, protocol::Verb::kUnmapped, {BytesOf(unmapped)});
  }
  lease.segments.clear();
  DropLater(std::move(lease.attachment));
}

void Core::DropLater(std::shared_ptr<Attachment> attachment) {
  if (attachment->slab_device().device == nullptr || is_stopping_) return;
  try {
    LockGuard guard(state_lock_);
    if (attachment == attachment_) return;  // it has another owner
    left_.push_back(std::move(attachment));
  } catch (const std::bad_alloc&) {
    return;  // then here and now
  }
  link_.WakeBackground();
}

void Core::SetError(std::string_view text) noexcept {
  LockGuard guard(state_lock_);
  try {
    last_error_ = text;
  } catch (const std::bad_alloc&) {
    last_error_.clear();
  }
}

std::string Core::last_error() const {
  LockGuard guard(state_lock_);
  return last_error_;
}

std::shared_ptr<Attachment> Core::attachment() const {
  LockGuard guard(state_lock_);
  return attachment_;
}

}  // namespace terrace::client

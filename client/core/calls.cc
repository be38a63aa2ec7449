#include "client/core/calls.h"

#include <new>
#include <string>

#include "client/core/commit.h"

namespace terrace::client {
namespace {

constexpr Status kCopyUnderWay(StatusCode::kBusy,
                               "a copy of this lease is under way: its end must be seen first");

// Where Poll finds a request's completion; given back unless the request will end.
class CompletionRoom {
 public:
  explicit CompletionRoom(PendingRequests& requests) : requests_(requests) {}
  ~CompletionRoom() {
    if (is_held_) requests_.Unreserve();
  }
  CompletionRoom(const CompletionRoom&) = delete;
  CompletionRoom& operator=(const CompletionRoom&) = delete;

  bool Reserve() { return is_held_ = requests_.completions().Reserve(); }
  void Keep() { is_held_ = false; }

 private:
  PendingRequests& requests_;
  bool is_held_ = false;
};

}  // namespace

FinishedCall Calls::Call(CallSpec spec) {
  const Result<Request*> prepared = Prepare(&spec);
  if (!prepared.ok()) return FinishedCall(prepared.status());
  Request* const request = *prepared;
  if (spec.is_bypassed) {
    AnswerBypassed(*request);
    return FinishedCall(requests_.table(), *request);
  }
  requests_.table().MakePending(*request);
  const Status sent = connection_.Send(spec.connection, spec.message, spec.deadline_us);
  if (!sent.ok() && Withdraw(*request, spec.message.request_id)) return FinishedCall(sent);
  const Status waited = Await({.request = request}, spec.deadline_us);
  if (!waited.ok() && requests_.table().Abandon(*request)) {
    SetErrorOf(connection_, spec.message.request_id, "the daemon has not answered by the deadline");
    return FinishedCall(waited);
  }
  return FinishedCall(requests_.table(), *request);
}

Status Calls::Submit(CallSpec spec, AsyncSpec async) {
  CompletionRoom room(requests_);
  if (async.callback == nullptr && !room.Reserve()) {
    return Status(StatusCode::kBusy, "finished requests wait for Poll");
  }
  const uint64_t deadline_us = spec.deadline_us;
  const Result<Request*> prepared = Prepare(&spec);
  if (!prepared.ok()) return prepared.status();
  Request* const request = *prepared;
  request->is_async = true;
  request->user_data = async.user_data;
  request->callback = std::move(async.callback);
  if (spec.is_bypassed) {
    if (connection_.is_stopping()) {  // else a chain of them would have no end
      requests_.table().Free(*request);
      return Status(StatusCode::kGone, "the Client is being destroyed");
    }
    AnswerBypassed(*request);
    room.Keep();
    requests_.End(*request);
    return Status::Ok();
  }
  requests_.table().MakePending(*request);
  const Status sent = connection_.Send(spec.connection, spec.message, spec.deadline_us);
  if (!sent.ok() && Withdraw(*request, spec.message.request_id)) return sent;
  room.Keep();
  // A caller that reads now does this when it leaves.
  if (!role_.is_taken()) connection_.link().ListenInBackground();
  if (deadline_us < requests_.next_look_us()) connection_.link().WakeBackground();
  return Status::Ok();
}

Result<Request*> Calls::Prepare(CallSpec* spec) {
  Request* const request = requests_.table().Take();
  if (request == nullptr) return RefuseForOthers();
  request->connection = spec->connection;
  request->deadline_us = spec->deadline_us;
  request->asked = spec->asked;
  request->lease = std::move(spec->lease);
  spec->message.verb = spec->asked.verb;
  spec->message.request_id = request->id;
  if (spec->asked.verb != protocol::Verb::kCommit) return request;
  request->commit = spec->commit;
  if (spec->is_bypassed) return request;
  LeaseState& lease = *request->lease;
  if (!IsOneCommit(lease, spec->commit_bytes_max)) {
    if (!spec->may_be_split) return RefuseSplit(request, spec->commit_bytes_max);
    request->commit.flags &= ~protocol::kCommitRelease;  // the last piece's
  }
  const bool is_release = (request->commit.flags & protocol::kCommitRelease) != 0;
  if (is_release && !lease.owner->CloseForRelease(lease)) {
    lease.owner->StayOpen(lease);
    requests_.table().Free(*request);
    return kCopyUnderWay;
  }
  try {
    BuildCommit(*request, spec->commit_bytes_max, &spec->message);
  } catch (const std::bad_alloc&) {
    requests_.table().Free(*request);
    throw;
  }
  return request;
}

Status Calls::RefuseSplit(Request* request, uint64_t bytes_max) {
  requests_.table().Free(*request);
  try {
    connection_.SetError("what the lease has written takes more than " + std::to_string(bytes_max) +
                         " bytes to say, half of send_buffer_bytes_max or of a message: commit "
                         "more often while it is written, or by the Commit that waits");
  } catch (const std::bad_alloc&) {
    connection_.SetError("too much was written for one Commit");
  }
  return Status(StatusCode::kInvalid, "too much for one asynchronous Commit");
}

// Counted, so that each sentence is another: the last one may have been told to somebody.
Status Calls::RefuseForOthers() {
  const uint64_t count = refused_count_.fetch_add(1, std::memory_order_relaxed) + 1;
  try {
    connection_.SetError("pending_requests_max of the client is " +
                         std::to_string(requests_.table().requests_max()) +
                         ", and so many are pending: wait for some of them, or raise it (" +
                         std::to_string(count) + " refused so far)");
  } catch (const std::bad_alloc&) {
    connection_.SetError("pending_requests_max of the client are pending");
  }
  return Status(StatusCode::kBusy, "pending_requests_max requests are pending");
}

void Calls::AnswerBypassed(Request& request) {
  try {
    bypass_.Answer(request);
  } catch (const std::bad_alloc&) {
    request.status = Status(StatusCode::kNoSpace, "no memory for the answer");
  }
}

bool Calls::Withdraw(Request& request, uint64_t id) {
  if (!requests_.table().Withdraw(request, id)) return false;
  ReturnWritten(request);
  requests_.table().Free(request);
  return true;
}

Status Calls::Await(const Awaited& awaited, uint64_t deadline_us) {
  bool was_reader = false;
  Status status;
  while (!awaited.is_over()) {
    if (MonotonicUs() >= deadline_us) {
      status = Status(StatusCode::kBusy, "the deadline passed");
      break;
    }
    was_reader = role_.TryTake();
    if (was_reader) {
      reader_.ReadWhile(awaited, deadline_us);
      reader_.Leave();
      continue;
    }
    role_.SleepUnless([&awaited] { return awaited.is_over(); }, awaited.lane(), deadline_us);
  }
  if (!was_reader) role_.PassOn();
  return status;
}

Status Calls::WaitForGivenUpJoins(const LeaseToken& token, uint64_t deadline_us) {
  const Status waited = Await({.table = &requests_.table(), .token = token}, deadline_us);
  if (!waited.ok()) {
    connection_.SetError(
        "a Join of this lease that was given up at its deadline is still unanswered: ask again "
        "later");
  }
  return waited;
}

Status Calls::WaitReady(const LeaseState& lease, uint32_t block_count, uint64_t deadline_us) {
  const Status waited = Await({.lease = &lease, .block_count = block_count}, deadline_us);
  if (!lease.is_valid.load()) return kLeaseGone;
  if (lease.ready_count.load() >= block_count) return Status::Ok();
  if (!waited.ok()) return waited;
  return Status(StatusCode::kNotFound, "no more blocks will come");
}

bool Calls::PopUntil(ClientCompletion* completion, uint64_t deadline_us) {
  CompletionQueue& completions = requests_.completions();
  while (true) {
    const Status waited = Await({.completions = &completions}, deadline_us);
    if (completions.Pop(completion)) return true;
    // Another thread may have been here first.
    if (!waited.ok() || !completions.is_awaited()) return false;
  }
}

}  // namespace terrace::client

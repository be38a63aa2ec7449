#include "client/core/pending_requests.h"

#include <utility>

#include "client/core/commit.h"

namespace terrace::client {
namespace {

constexpr size_t kCompletionsPerRequest = 4;

// What a user's callback throws ends here: the thread goes on for everybody else.
void Invoke(const CompletionCallback& callback, ClientCompletion completion) {
  try {
    callback(std::move(completion));
  } catch (...) {
  }
}

}  // namespace

bool Awaited::is_over() const {
  if (request != nullptr) return request->is_done.load();
  if (completions != nullptr) return !completions->is_empty() || !completions->is_awaited();
  if (table != nullptr) return !table->IsJoinGivenUp(token);
  return lease->ready_count.load() >= block_count || !lease->is_valid.load() ||
         !lease->is_coming.load() || lease->staying_count.load() < block_count;
}

uint32_t Awaited::lane() const {
  return request != nullptr ? request->index % kLeaseLane : kLeaseLane;
}

PendingRequests::PendingRequests(const ClientOptions& options, Link& link, ReaderRole& role)
    : link_(link),
      role_(role),
      table_(options.pending_requests_max),
      completions_(options.pending_requests_max * kCompletionsPerRequest) {
  callbacks_.reserve(options.pending_requests_max);
}

void PendingRequests::End(Request& request) {
  if (!request.is_async) {
    const uint32_t lane = Awaited{.request = &request}.lane();
    if (table_.MarkDone(request)) return role_.WakeLane(lane);
    const bool is_join = request.asked.verb == protocol::Verb::kJoin;
    table_.Free(request);
    if (is_join) role_.WakeLane(kLeaseLane);  // another Join may wait for that
    return;
  }
  if (table_.IsAbandoned(request)) return table_.Free(request);
  if (request.callback != nullptr) {
    {
      LockGuard guard(callbacks_lock_);
      callbacks_.push_back(&request);
    }
    link_.WakeBackground();
    return;
  }
  // First, since whom it wakes may ask for the next one at once.
  ClientCompletion completion = CompletionOf(request);
  table_.Free(request);
  completions_.Push(std::move(completion));
  role_.WakeLane(kLeaseLane);
}

void PendingRequests::Unreserve() {
  completions_.Unreserve();
  if (!completions_.is_awaited()) role_.WakeLane(kLeaseLane);
}

void PendingRequests::FailAll() {
  RequestTable::Cursor cursor;
  while (Request* request = table_.ClaimBroken(&cursor)) Fail(*request);
}

void PendingRequests::Fail(Request& request) {
  request.status = Status(StatusCode::kGone, "the connection to the daemon broke");
  if (request.asked.verb == protocol::Verb::kCommit) ReturnWritten(request);
  End(request);
}

void PendingRequests::RunCallbacks() {
  size_t left = 0;
  {
    LockGuard guard(callbacks_lock_);
    left = callbacks_.size();
  }
  // What they ask for may be answered at once: its turn is the next one.
  for (; left > 0; --left) {
    Request* request = nullptr;
    {
      LockGuard guard(callbacks_lock_);
      if (callbacks_.empty()) return;  // one of them has destroyed the Client
      // Oldest first; there are few.
      request = callbacks_.front();
      callbacks_.erase(callbacks_.begin());
    }
    const CompletionCallback callback = std::move(request->callback);
    ClientCompletion completion = CompletionOf(*request);
    table_.Free(*request);
    Invoke(callback, std::move(completion));
  }
}

uint64_t PendingRequests::Expire() {
  uint64_t next_deadline_us = kNever;
  const uint64_t now_us = MonotonicUs();
  RequestTable::Cursor cursor;
  while (Request* request = table_.ClaimExpired(now_us, &cursor, &next_deadline_us)) {
    ClientCompletion completion;
    completion.user_data = request->user_data;
    completion.verb = request->asked.verb;
    completion.status = Status(StatusCode::kBusy, "the deadline passed");
    const CompletionCallback callback = std::move(request->callback);
    table_.FinishExpiry(*request);
    if (callback == nullptr) {
      completions_.Push(std::move(completion));
      role_.WakeLane(kLeaseLane);
    } else {
      Invoke(callback, std::move(completion));
    }
  }
  return next_deadline_us;
}

ClientCompletion PendingRequests::CompletionOf(Request& request) {
  ClientCompletion completion;
  completion.user_data = request.user_data;
  completion.verb = request.asked.verb;
  completion.status = request.status;
  completion.block_count = request.block_count;
  if (!request.status.ok()) return completion;
  if (request.asked.verb == protocol::Verb::kAcquire) {
    completion.read_lease = ReadLease(std::move(request.lease));
  } else if (request.asked.verb == protocol::Verb::kReserve) {
    completion.write_lease = WriteLease(std::move(request.lease));
  }
  return completion;
}

}  // namespace terrace::client

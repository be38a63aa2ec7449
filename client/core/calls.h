// Calls: sends requests, and waits for what was asked for. A blocking call that has to wait becomes
// the reader of the connection, or sleeps while another is; see ReaderRole.
//
// THREADING: any thread. Every call ends by its deadline.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "client/core/bypass.h"
#include "client/core/pending_requests.h"
#include "client/core/reader.h"
#include "client/core/replies.h"
#include "client/lease/lease_state.h"
#include "client/link/frames.h"
#include "client/link/reader_role.h"
#include "client/session/connection.h"
#include "terrace/client.h"

namespace terrace::client {

// A request as a verb describes it.
struct CallSpec {
  Outgoing message;          // its request_id is filled in
  uint64_t deadline_us = 0;  // CLOCK_MONOTONIC
  uint32_t connection = 0;
  Asked asked;
  std::shared_ptr<LeaseState> lease;  // see Request
  protocol::CommitRequest commit;     // Commit: flags and hints
  uint64_t commit_bytes_max = 0;      // Commit: more are not said at once
  bool may_be_split = false;          // Commit: its caller commits the rest; else it is refused
  bool is_bypassed = false;           // answered by Bypass: it is sent nowhere
};

// The end of a blocking request; gives its slot back when it goes.
class FinishedCall {
 public:
  explicit FinishedCall(Status status) : status_(status) {}
  FinishedCall(RequestTable& table, Request& request)
      : table_(&table), request_(&request), status_(request.status) {}
  ~FinishedCall() {
    if (request_ != nullptr) table_->Free(*request_);
  }
  FinishedCall(const FinishedCall&) = delete;
  FinishedCall& operator=(const FinishedCall&) = delete;

  Status status() const { return status_; }
  // REQUIRES: status() is kOk, for these.
  std::span<const std::byte> body() const { return request_->body; }
  uint32_t block_count() const { return request_->block_count; }
  bool has_more() const { return request_ != nullptr && request_->has_more; }
  bool was_returned() const { return request_ != nullptr && request_->was_returned; }
  std::shared_ptr<LeaseState> TakeLease() { return std::move(request_->lease); }

 private:
  RequestTable* table_ = nullptr;
  Request* request_ = nullptr;
  Status status_;
};

// What was asked when it came from a user's asynchronous call.
struct AsyncSpec {
  uint64_t user_data = 0;
  CompletionCallback callback;
};

class Calls {
 public:
  Calls(Connection& connection, ReaderRole& role, Reader& reader, PendingRequests& requests,
        Bypass& bypass)
      : connection_(connection),
        role_(role),
        reader_(reader),
        requests_(requests),
        bypass_(bypass) {}
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // Sends a request and waits for its answer. kBusy: too many are pending, too much is unsent, or
  // the deadline passed; kGone: the connection is not there any more. May throw std::bad_alloc.
  FinishedCall Call(CallSpec spec);
  // Sends a request; exactly one completion follows kOk, by the deadline. The callback may destroy
  // the Client before this has returned: the caller keeps the Core.
  Status Submit(CallSpec spec, AsyncSpec async);

  // Before a Join: kOk once none of that lease that was given up is still to be answered. What it
  // is answered is let go of, and until then the daemon takes this session for joined. kBusy: the
  // deadline passed.
  Status WaitForGivenUpJoins(const LeaseToken& token, uint64_t deadline_us);
  // kOk once block_count blocks of the lease are ready; else as Client::WaitReady.
  Status WaitReady(const LeaseState& lease, uint32_t block_count, uint64_t deadline_us);
  // Takes a completion, waiting for one. False when none is awaited, or at the deadline.
  bool PopUntil(ClientCompletion* completion, uint64_t deadline_us);

 private:
  // kBusy as Call's. A Commit that releases its lease closes it.
  Result<Request*> Prepare(CallSpec* spec);
  // pending_requests_max are pending; says so.
  Status RefuseForOthers();
  // An asynchronous Commit that one message does not hold; frees it.
  Status RefuseSplit(Request* request, uint64_t bytes_max);
  void AnswerBypassed(Request& request);
  // Gives up a request that could not be sent. False if it has ended already.
  bool Withdraw(Request& request, uint64_t id);
  Status Await(const Awaited& awaited, uint64_t deadline_us);

  Connection& connection_;
  ReaderRole& role_;
  Reader& reader_;
  PendingRequests& requests_;
  Bypass& bypass_;
  std::atomic<uint64_t> refused_count_{0};  // because of others that were pending
};

}  // namespace terrace::client

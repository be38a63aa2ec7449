// PendingRequests: the requests under way, and how each ends: a blocking caller is woken, a
// callback is left to the background thread, or a completion waits for Poll. It ends asynchronous
// requests whose deadline has passed; a blocking caller looks at its own deadline.
//
// THREADING: any thread; RunCallbacks and Expire by the background thread. `callbacks_lock_` guards
// the list of callbacks; see RequestTable and CompletionQueue for theirs.
// LIMITS: ClientOptions::pending_requests_max requests, four times as many completions.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "client/core/completion_queue.h"
#include "client/core/request_table.h"
#include "client/lease/lease_state.h"
#include "client/link/link.h"
#include "client/link/reader_role.h"
#include "client/link/timed_lock.h"
#include "terrace/client.h"

namespace terrace::client {

// What a blocking caller waits for: one of these.
struct Awaited {
  const Request* request = nullptr;   // its answer
  const LeaseState* lease = nullptr;  // or block_count of its blocks
  uint32_t block_count = 0;
  CompletionQueue* completions = nullptr;  // or any completion, while some may come
  RequestTable* table = nullptr;           // or that no Join of `token` is given up and unanswered
  LeaseToken token;

  bool is_over() const;
  uint32_t lane() const;  // of ReaderRole's sleepers
};

class PendingRequests {
 public:
  PendingRequests(const ClientOptions& options, Link& link, ReaderRole& role);
  PendingRequests(const PendingRequests&) = delete;
  PendingRequests& operator=(const PendingRequests&) = delete;

  RequestTable& table() { return table_; }
  CompletionQueue& completions() { return completions_; }
  // As of the CompletionQueue; others may be waiting for what now does not come any more.
  void Unreserve();

  // Of a claimed request, whose status and results are filled in.
  void End(Request& request);
  // The connection broke: every request ends with kGone, what a Commit took goes back to its lease.
  void FailAll();
  void Fail(Request& request);
  bool is_any_asynchronous() const { return table_.async_count() > 0; }

  // Calls what End left here, oldest first. What a callback throws is dropped.
  void RunCallbacks();
  // Ends asynchronous requests whose deadline has passed with kBusy. Returns the next deadline
  // (CLOCK_MONOTONIC, µs), kNever without any.
  uint64_t Expire();
  // Until when the background thread sleeps; who submits an earlier deadline wakes it.
  void SetNextLook(uint64_t until_us) { next_look_us_ = until_us; }
  uint64_t next_look_us() const { return next_look_us_.load(); }

 private:
  static ClientCompletion CompletionOf(Request& request);

  Link& link_;
  ReaderRole& role_;
  RequestTable table_;
  CompletionQueue completions_;
  std::atomic<uint64_t> next_look_us_{0};

  TimedLock callbacks_lock_;
  std::vector<Request*> callbacks_;  // finished requests, whose callbacks are to be run
};

}  // namespace terrace::client

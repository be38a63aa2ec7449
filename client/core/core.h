// Core: what a Client and its leases share: requests and their answers, the leases that are out,
// and the connection they belong to. It lives until the last lease is gone.
//
// Who waits, reads: a blocking caller becomes the reader of the connection for as long as it waits,
// and serves everybody's answers meanwhile; others sleep and one of them takes over when it leaves.
// The background thread reads for asynchronous requests, runs callbacks, and reconnects.
//
// A *connection* is numbered; what belongs to an earlier one is kGone. Whoever reads the end of a
// connection, or nonsense, tears it down: leases become invalid, requests end with kGone.
//
// THREADING: any thread, except where the reader role is required.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "client/core/attachment.h"
#include "client/core/completion_queue.h"
#include "client/core/group.h"
#include "client/core/handshake.h"
#include "client/core/lease_pool.h"
#include "client/core/replies.h"
#include "client/core/request_table.h"
#include "client/core/segment_pinner.h"
#include "client/core/work_orders.h"
#include "client/link/frames.h"
#include "client/link/link.h"
#include "client/link/signals_blocked.h"
#include "client/link/timed_lock.h"
#include "terrace/client.h"

namespace terrace::client {

// The Sleepers' lane of those that wait for blocks or completions; the others are for answers.
inline constexpr uint32_t kLeaseLane = 31;

// A request as a verb describes it.
struct CallSpec {
  Outgoing message;  // its request_id is filled in
  uint64_t deadline_us = 0;
  uint32_t connection = 0;
  Asked asked;
  std::shared_ptr<LeaseState> lease;  // see Request
  protocol::CommitRequest commit;     // Commit: flags and hints
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

class Core : public std::enable_shared_from_this<Core> {
 public:
  // Starts the background thread. kNoSpace or kIo with `*why`.
  static Result<std::shared_ptr<Core>> Start(const ClientOptions& options, std::string* why);
  // Ends everything pending with kGone. Leases stay mapped.
  void Stop();

  FinishedCall Call(CallSpec spec);
  Status Submit(CallSpec spec, AsyncSpec async);
  Status WaitReady(LeaseState& lease, uint32_t block_count, uint64_t deadline_us);
  // Until completions() has one, none can come, or the deadline.
  void WaitCompletion(uint64_t deadline_us);
  Status WaitConnected(uint64_t deadline_us);

  // Tells the daemon that the lease is over, if it is and the daemon does not know. Never waits.
  void SendEndIfDue(LeaseState& lease);
  // A Join ended between two pages: the daemon's lease is let go.
  void GiveUpJoin(const LeaseState& lease) { SendRelease(lease.connection, lease.token, 0, 1); }
  // The last owner of `lease` is gone.
  static void Recycle(LeaseState* lease);

  void SetError(std::string_view text) noexcept;
  std::string last_error() const;
  // A lease starts (1) or stops (−1) to expect completions.
  void CountComing(int change) { coming_count_.fetch_add(static_cast<uint32_t>(change)); }

  bool is_forked() const { return fork_generation_ != ForkGeneration(); }
  bool is_connected() const { return link_.connection() != 0; }
  uint64_t boot_id() const { return boot_id_.load(); }
  uint32_t connection() const { return link_.connection(); }
  // What the present connection's handshake gave; null while there is none.
  std::shared_ptr<Attachment> attachment() const;
  uint32_t keys_per_request_max() const { return keys_per_request_max_.load(); }

  const ClientOptions& options() const { return options_; }
  // How other processes know ClientOptions::device; empty: there is none.
  const std::string& device_name() const { return device_name_; }
  GroupTable& groups() { return groups_; }
  CompletionQueue& completions() { return completions_; }
  // ---- what a device reaches of the arena; core_pins.cc ----
  Result<std::shared_ptr<HostPins>> PinArena(std::shared_ptr<const Device> device,
                                             std::string_view why);
  // Null before PinArena.
  std::shared_ptr<SegmentPinner> pinner() const;

  std::shared_ptr<LeaseState> NewLease() { return pool_.Take(shared_from_this()); }

 private:
  friend class Background;
  friend class WorkOrders;
  Core(const ClientOptions& options, std::string device_name);

  // ---- requests: core.cc ----
  Request* Prepare(CallSpec* spec);
  Status SendRequest(const CallSpec& spec);
  // What a blocking caller waits for.
  struct Waiting {
    const Request* request = nullptr;   // its answer
    const LeaseState* lease = nullptr;  // or block_count of its blocks
    uint32_t block_count = 0;
    const CompletionQueue* completions = nullptr;  // or any completion, while some may come

    bool is_over() const;
    uint32_t lane() const;
  };
  Status Await(const Waiting& waiting, uint64_t deadline_us);
  // A message whose answer nobody waits for. It is never refused: rather the connection breaks.
  void SendUnawaited(uint32_t connection, protocol::Verb verb,
                     std::array<std::span<const std::byte>, 4> parts);
  void SendRelease(uint32_t connection, const LeaseToken& token, uint8_t end_reason,
                   uint32_t times);
  // True if that ended the lease; else a Release has to.
  bool SendAbort(LeaseState& lease);
  void Retire(LeaseState& lease);
  // Unmapping memory of a device takes long, and may wait for it: not on a caller's thread.
  void DropLater(std::shared_ptr<Attachment> attachment);

  // ---- hooks of the pinner: core_pins.cc ----
  bool AskPinTurn();
  void TellPinCounts(const HostPins& pins);
  void EndPinTurn();
  void ListenForTurn(bool is_listening);
  void TellUnmapped(const Attachment& attachment, uint32_t segment);

  // ---- as the reader: core_reader.cc ----
  void ReadWhile(const Waiting& waiting, uint64_t deadline_us);
  // Takes what the socket has. False when it has nothing now, or the connection ended.
  bool ReadOnce();
  void LeaveReader();
  void Dispatch();
  void OnMessage(const Message& message);
  void OnAnswer(const Message& message);
  void OnCompletion(const Message& message);
  void OnLeaseRevoked(const Message& message);
  void OnSegmentRevoke(const Message& message);
  void OnWorkOrder(const Message& message);
  void TakeAnswer(const Message& message, Request& request);
  void TakeLease(const Message& message, Request& request);
  static const char* DecodeLease(const Message& message, const Asked& asked, LeaseState* lease);
  bool IsOtherKind(const Message& message, const Request& request);
  void TakeCommit(const Message& message, Request& request);
  void GiveBackLease(const Message& message);
  void FailRequest(Request& request);
  void EndRequest(Request& request);
  static ClientCompletion CompletionOf(Request& request);
  void BreakOnAnswer(const Message& message, const char* why) noexcept;
  void Break(std::string_view why);
  void Teardown();

  const ClientOptions options_;
  const std::string device_name_;
  const uint32_t fork_generation_;
  Link link_;
  GroupTable groups_;
  LeasePool pool_;
  LeaseRegistry registry_;
  RequestTable requests_;
  CompletionQueue completions_;
  WorkOrders orders_{*this};
  Sleepers sleepers_;  // blocking callers that are not the reader

  // The reader role, and what only its holder touches.
  TimedLock reader_;
  FrameReader frames_{protocol::kFrameBytesMax};
  bool is_broken_ = true;  // no connection, or torn down

  std::atomic<uint64_t> boot_id_{0};
  std::atomic<uint32_t> keys_per_request_max_{protocol::kKeysPerRequestMax};
  std::atomic<uint32_t> unawaited_count_{0};
  std::atomic<uint32_t> coming_count_{0};  // leases with completions to come

  mutable TimedLock state_lock_;
  std::shared_ptr<Attachment> attachment_;         // guarded by state_lock_, changed by the reader
  std::shared_ptr<Attachment> retired_;            // guarded by state_lock_: to be dropped
  std::vector<std::shared_ptr<Attachment>> left_;  // the same; their leases were the last owners
  std::string last_error_;                         // guarded by state_lock_
  std::shared_ptr<SegmentPinner> pinner_;          // guarded by state_lock_, set once
  Refusal refusal_;      // guarded by state_lock_: the last attempt's, if final
  Sleepers connecting_;  // callers of WaitConnected

  // Finished asynchronous requests whose callbacks the background thread runs.
  TimedLock callbacks_lock_;
  std::vector<Request*> callbacks_;

  std::atomic<uint64_t> turnless_boot_id_{0};  // of a daemon that gives out no turns
  std::atomic<bool> is_turn_awaited_{false};   // counted in coming_count_
  // The pinner's thread's; but for the texts, which are there before it.
  protocol::DeviceReport told_;
  uint32_t told_connection_ = 0;

  std::atomic<bool> is_stopping_{false};
  std::atomic<uint64_t> background_until_us_{0};  // when the background thread looks at deadlines
  std::thread background_;
};

}  // namespace terrace::client

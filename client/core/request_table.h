// The requests that wait for an answer. A slot is taken per request and given back when its answer
// came, or was disposed of: a caller that gave up at its deadline abandons the slot, and the late
// answer, which may carry a lease that has to be given back, still finds it.
//
// THREADING: any thread; transitions happen under a lock held for a few stores. Fields of a slot
// belong to who took it until it is pending, and to who claimed it from then on.
// LIMITS: ClientOptions::pending_requests_max slots, abandoned ones included.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/core/replies.h"
#include "client/lease/lease_state.h"
#include "client/link/timed_lock.h"
#include "terrace/client.h"

namespace terrace::client {

inline constexpr uint32_t kPendingRequestsMax = 4096;

struct Request {
  enum class State : uint8_t {
    kFree,
    kPending,
    kClaimed,           // its answer is being taken apart, or its connection broke
    kClaimedAbandoned,  // so, and its caller has given up meanwhile
    kExpiring,          // asynchronous, past its deadline: being reported
    kExpiringAnswered,  // so, and its answer came meanwhile
    kAbandoned,         // reported; waits for its late answer
    kDone,              // its caller has yet to look
  };

  State state = State::kFree;  // guarded by the table's lock
  std::atomic<bool> is_done{false};

  LeaseToken given_up_join;  // of a Join that waits for its late answer; guarded, too

  uint16_t index = 0;  // constant
  uint64_t id = 0;
  uint32_t connection = 0;
  uint64_t deadline_us = 0;
  Asked asked;
  bool is_async = false;
  std::shared_ptr<LeaseState> lease;  // Acquire, Reserve, Join: to be filled; Commit: its subject
  uint64_t user_data = 0;
  CompletionCallback callback;

  Status status;
  std::vector<std::byte> body;  // of an answer that its caller takes apart
  uint32_t block_count = 0;     // Commit: sealed; Prefetch: there or coming

  // Commit: what it commits, and how that is said; see commit.h.
  bool has_more = false;      // than one message says: the rest is the lease's still
  bool was_returned = false;  // to the lease: the daemon has taken none of it
  std::vector<WrittenPart> written;
  protocol::CommitRequest commit;
  std::vector<protocol::CommitEntry> entries;
  std::vector<Checksum> checksums;
};

class RequestTable {
 public:
  explicit RequestTable(uint32_t requests_max);

  // A free slot with a fresh id; null if all are taken.
  Request* Take();
  // From now on an answer, a deadline or a broken connection may claim it.
  void MakePending(Request& request);
  // Claims the request of that id, which could not be sent. False if something else claimed it
  // meanwhile: then its end was or will be reported, and the slot may be another request's.
  bool Withdraw(Request& request, uint64_t id);

  enum class Claim {
    kClaimed,    // the claimer ends it: MarkDone, or Free
    kAbandoned,  // so, but nobody waits: dispose of the answer, then Free
    kLate,       // dispose of the answer; another thread ends the request
    kUnknown,    // never sent, or answered before
  };
  struct Answered {
    Claim claim = Claim::kUnknown;
    Request* request = nullptr;
    protocol::Verb verb = protocol::Verb::kHello;  // of the request
  };
  Answered ClaimAnswered(uint64_t id);
  // Goes over the slots once, for as many calls as it takes.
  struct Cursor {
    uint32_t index = 0;
  };
  // The next request of a connection that is gone, claimed; null when there are no more. Abandoned
  // ones are freed on the way. What is pending behind the cursor is of no connection, and withdrawn
  // by who cannot send it.
  Request* ClaimBroken(Cursor* cursor);
  // The next asynchronous request whose deadline has passed, for FinishExpiry after it was
  // reported; null if there is none. `*next_deadline_us` is lowered to the earliest deadline met.
  Request* ClaimExpired(uint64_t now_us, Cursor* cursor, uint64_t* next_deadline_us);
  void FinishExpiry(Request& request);

  // Ends a claimed blocking request. False if its caller gave up: then it still is the claimer's.
  bool MarkDone(Request& request);
  // The caller's deadline has passed. False if it is done.
  bool Abandon(Request& request);
  // Of a claimed request: its end was reported before its answer came.
  bool IsAbandoned(const Request& request);
  // Whether a Join of that lease was given up and may still be answered "joined".
  bool IsJoinGivenUp(const LeaseToken& token);
  void Free(Request& request);

  uint32_t requests_max() const { return request_count_; }
  uint32_t async_count() const { return async_count_.load(); }

 private:
  static constexpr uint32_t kSlotBits = 16;

  TimedLock lock_;
  uint64_t sequence_ = 0;
  uint32_t given_up_join_count_ = 0;
  std::atomic<uint32_t> async_count_{0};  // pending ones
  std::unique_ptr<Request[]> requests_;
  uint32_t request_count_;
  std::vector<uint16_t> free_;
};

}  // namespace terrace::client

// LeaseVerbs: what sessions do with leases and blocks they know: Join, Release, Cancel, Touch,
// Renew.
//
// THREADING: the store thread.
#pragma once

#include <cstdint>

#include "daemon/block/keys_query.h"
#include "daemon/lease/pending_register.h"
#include "daemon/store/operation.h"
#include "daemon/store/verb_results.h"
#include "terrace/protocol.h"
#include "terrace/status.h"

namespace terrace {

struct Caller;
struct StoreRooms;

// Who joins which lease, and from where on.
struct JoinQuery {
  SessionId session = 0;
  uint64_t request_id = 0;
  protocol::JoinRequest request;  // its group_handle is the group's index
  // Of a paged Join that goes on: the first block, or key, of this page. The session has joined.
  uint32_t first_block = 0;
};

// An operation: `answer` grows with its steps. A lease whose slots do not fit one answer is told in
// pages of slots; behind the last of them come the spans of all of it, and then completions.
// Undone, a session that was told nothing has not joined.
class JoinOperation {
 public:
  JoinOperation(JoinOperation&&) noexcept = default;
  ~JoinOperation() { Undo(); }

  // The next blocks; of those still coming the joiner gets completions under its own request_id,
  // never before the reply.
  Result<Progress> Step();

 private:
  friend class LeaseVerbs;
  // The parts of the answer that one pass over a read lease fills in.
  enum class Walk : uint8_t { kAll, kSlots, kSpans };

  JoinOperation(OperationList& list, const JoinQuery& query, JoinResult* answer)
      : tie_(list), query_(query), answer_(answer) {}

  void Plan(const Lease& lease);
  Status Continue(const Caller& caller, LeaseKind kind, LeaseToken* joined, LeaseId* id);
  Status OpenPending(const Caller& caller, LeaseId id);
  Status Read(const Caller& caller);
  void ReadBlocks(const Caller& caller, LeaseId id, uint32_t end);
  bool ReadOnDevice(const Caller& caller, const LeaseEntry& entry);
  void ReadInDram(const Caller& caller, PendingId pending, BlockId block);
  void CutTo(uint32_t block_count);
  Status Write(const Caller& caller);
  Progress EndWalk();
  PendingId PendingOf(const Caller& caller) const;
  void Undo();

  OperationTie tie_;
  JoinQuery query_;
  JoinResult* answer_;
  Walk walk_ = Walk::kAll;
  uint32_t end_ = UINT32_MAX;  // where the walk ends; write: keys a page
  bool has_more_ = false;      // a page that others follow
  bool is_walked_ = false;
  bool has_joined_ = false;  // by this operation
  bool has_pending_ = false;
};

class LeaseVerbs {
 public:
  explicit LeaseVerbs(StoreRooms& store) : store_(store) {}

  // `answer` outlives the operation. kNotFound: the token names no lease of the domain.
  Result<JoinOperation> Join(const JoinQuery& query, JoinResult* answer);
  Status Release(SessionId session, const protocol::ReleaseRequest& request);
  Status Cancel(SessionId session, uint64_t request_id);
  Status Touch(const KeysQuery& query);
  Status Renew(SessionId session, const LeaseToken& token);

 private:
  StoreRooms& store_;
};

}  // namespace terrace

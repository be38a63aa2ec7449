// PrefixVerbs: how far a prefix is there, and holding on to it: Match, Acquire, Prefetch. Each is
// an operation (operation.h): `answer` grows with its steps, and is whole when it is done, with
// min_tokens applied.
//
// THREADING: the store thread. LIMITS: a step is about kBlocksPerTurnMax blocks at most.
#pragma once

#include <cstdint>

#include "daemon/block/group.h"
#include "daemon/block/keys_query.h"
#include "daemon/store/operation.h"
#include "daemon/store/verb_results.h"
#include "terrace/status.h"

namespace terrace {

struct StoreRooms;

// How many keys may be compared with runs in one turn.
inline constexpr uint32_t kReadyKeysPerTurnMax = 8 * protocol::kBlocksPerTurnMax;

class MatchOperation {
 public:
  MatchOperation(OperationList& list, PrefixMatch* answer) : tie_(list), answer_(answer) {}
  // The next keys of the request; query.key_count_of_request says which are the last (0: these).
  Result<Progress> Step(const KeysQuery& query);

 private:
  Status Walk(const KeysQuery& query);

  OperationTie tie_;
  PrefixMatch* answer_;
  const Group* group_ = nullptr;  // of the step under way
  uint32_t passed_count_ = 0;
};

// Undone, the lease it has built is let go.
class AcquireOperation {
 public:
  AcquireOperation(OperationList& list, AcquireResult* answer) : tie_(list), answer_(answer) {}
  AcquireOperation(AcquireOperation&&) noexcept = default;
  ~AcquireOperation() { Undo(); }

  // The short way, before the first Step of a request that wants no slots (member_mask 0, no
  // flags): what of its first keys is ready in DRAM is held run by run, passed_count() blocks, and
  // Step goes on behind them. REQUIRES: keys.size() ≤ kReadyKeysPerTurnMax.
  Result<Progress> StepReady(const KeysQuery& query);
  // The next keys, as in MatchOperation. Completions of the request come from later calls only,
  // never before the reply.
  Result<Progress> Step(const KeysQuery& query);
  uint32_t passed_count() const { return passed_count_; }

 private:
  Status HoldRuns(const KeysQuery& query);
  Status Hold(const KeysQuery& query);
  void Finish(const KeysQuery& query);
  Progress End(const KeysQuery& query);
  Status Fail(Status status);
  void Undo();

  OperationTie tie_;
  AcquireResult* answer_;
  SessionId session_ = 0;
  uint32_t passed_count_ = 0;
};

// Undone, nothing waits for its blocks any more.
class PrefetchOperation {
 public:
  PrefetchOperation(OperationList& list, PrefixMatch* answer) : tie_(list), answer_(answer) {}
  PrefetchOperation(PrefetchOperation&&) noexcept = default;
  ~PrefetchOperation() { Undo(); }

  // The next keys, as in MatchOperation.
  Result<Progress> Step(const KeysQuery& query);

 private:
  Status Hold(const KeysQuery& query);
  void Finish(const KeysQuery& query);
  void Undo();

  OperationTie tie_;
  PrefixMatch* answer_;
  SessionId session_ = 0;
  uint64_t request_id_ = 0;
  uint32_t passed_count_ = 0;
};

class PrefixVerbs {
 public:
  explicit PrefixVerbs(StoreRooms& store) : store_(store) {}

  // `answer` outlives the operation.
  MatchOperation Match(PrefixMatch* answer);
  AcquireOperation Acquire(AcquireResult* answer);
  PrefetchOperation Prefetch(PrefixMatch* answer);
  // Before a step of an Acquire or Prefetch: asks the shared tier for those of its keys that are
  // not here. kOk: go on. kBusy: OnSeekDone follows, then go on. All Seeks of a request together
  // take no longer than SharedUse::seek_us; *end_us is 0 at the first and the same object at the
  // others.
  Status Seek(const KeysQuery& query, uint64_t* end_us);

 private:
  StoreRooms& store_;
};

}  // namespace terrace

// StoringVerbs: new blocks: Reserve gives slots, Commit seals what was written, Abort gives up.
//
// THREADING: the store thread. LIMITS: a step is about kBlocksPerTurnMax blocks at most.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "daemon/block/keys_query.h"
#include "daemon/store/operation.h"
#include "daemon/store/verb_results.h"
#include "terrace/protocol.h"
#include "terrace/status.h"

namespace terrace {

struct Caller;
struct StoreRooms;

// An operation. Undone, the slots it has taken are free again.
class ReserveOperation {
 public:
  ReserveOperation(OperationList& list, ReserveResult* answer) : tie_(list), answer_(answer) {}
  ReserveOperation(ReserveOperation&&) noexcept = default;
  ~ReserveOperation() { Undo(); }

  // The next keys; answer->keys says how many have been answered, query.key_count_of_request how
  // many there are (0: these). kAwaits: the next of them waits for memory. kStays: what was hit
  // before is noted first.
  Result<Progress> Step(const KeysQuery& query);

 private:
  bool AreHitsNoted(const Caller& caller);
  Status Take(const Caller& caller, const KeysQuery& query);
  void Finish(const KeysQuery& query);
  void Undo();

  OperationTie tie_;
  ReserveResult* answer_;
  SessionId session_ = 0;
  size_t passed_count_ = 0;
  std::optional<uint64_t> hits_before_;  // of the domain, when it began
};

class StoringVerbs {
 public:
  explicit StoringVerbs(StoreRooms& store) : store_(store) {}

  // `answer` outlives the operation.
  ReserveOperation Reserve(ReserveResult* answer);
  // `checksums` holds part_count roots for every entry flagged kCommitHasChecksums, in order.
  // It may stop before the last entry, when those it passed gave enough to do: result->entries says
  // how far it came, and the next call goes on there. kCommitRelease is heeded once nothing is
  // left.
  // REQUIRES: entries.size() ≤ kBlocksPerTurnMax; of a longer Commit only the last call says
  // kCommitRelease, and results add up.
  Status Commit(SessionId session, const protocol::CommitRequest& request,
                std::span<const protocol::CommitEntry> entries, std::span<const Checksum> checksums,
                CommitResult* result);
  // parts_refused: see protocol::AbortRequest; counted with the first step of a request.
  Status Abort(SessionId session, const LeaseToken& token, std::span<const uint32_t> key_indexes,
               uint32_t parts_refused = 0);

 private:
  StoreRooms& store_;
};

}  // namespace terrace

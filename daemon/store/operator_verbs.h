// OperatorVerbs: looking at blocks and ruling over them: Query, Wait, Pin, Evict, Reset, List.
//
// THREADING: the store thread. LIMITS: a step is about kBlocksPerTurnMax blocks at most.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "daemon/block/keys_query.h"
#include "daemon/store/operation.h"
#include "terrace/protocol.h"
#include "terrace/status.h"

namespace terrace {

struct StoreRooms;

// How many blocks are described in one turn: all members and copies of each are looked at.
inline constexpr uint32_t kListBlocksMax = protocol::kBlocksPerTurnMax / 4;

// An operation: until every key of the request is persisted. Undone, nobody waits any more.
class WaitOperation {
 public:
  explicit WaitOperation(OperationList& list) : tie_(list) {}
  WaitOperation(WaitOperation&&) noexcept = default;
  ~WaitOperation() { Undo(); }

  // The next keys; query.key_count_of_request says which are the last (0: these). kUnsupported: no
  // persistent tier; kNotFound: a key is not in the cache. kDone: all are persisted now; kFollows:
  // OnWaitDone tells when.
  Result<Progress> Step(const KeysQuery& query);

 private:
  Status Await(const KeysQuery& query);
  Status Finish(const KeysQuery& query);
  void Undo();

  OperationTie tie_;
  SessionId session_ = 0;
  uint64_t request_id_ = 0;
  uint32_t passed_count_ = 0;
};

class OperatorVerbs {
 public:
  explicit OperatorVerbs(StoreRooms& store) : store_(store) {}

  Status Query(const KeysQuery& query, std::vector<protocol::QueriedBlock>* blocks);
  WaitOperation Wait();
  // How many lookups a key of such a query costs: more than one where all groups are asked for it.
  uint32_t KeyCost(SessionId session, uint32_t group_index) const;
  // Cursors: do at most kBlocksPerTurnMax blocks and say in *cursor whether more is left (0: done);
  // counts in *reply add up. kGone: more cursors were opened meanwhile than are kept; start again.
  // Without kEvictSubtree keys of a chain come tail first, call by call; of a dry run `gone`
  // remembers from call to call how many children of a block would have gone.
  using ChildrenGone = std::unordered_map<uint32_t, uint32_t>;
  Status Evict(const KeysQuery& query, uint64_t* cursor, protocol::EvictReply* reply,
               ChildrenGone* gone = nullptr);
  Status Pin(const KeysQuery& query, protocol::PinReply* reply);
  Status Reset(SessionId session, uint32_t group_index, uint64_t* cursor);
  // After an Evict or Reset. kOk: no successor will find what was erased, not even after a loss of
  // power; kBusy: OnWaitDone follows, with kBusy if that takes longer than
  // protocol::kErasureWaitUs. kNoSpace: too many requests are pending.
  Status AwaitErasures(SessionId session, uint64_t request_id);
  // Looks at kListBlocksMax blocks at most; reply->cursor continues.
  Status List(SessionId session, const protocol::ListRequest& request, protocol::ListReply* reply,
              std::vector<protocol::ListEntry>* entries);

 private:
  StoreRooms& store_;
};

}  // namespace terrace

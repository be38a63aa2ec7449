// OperatorVerbs: looking at blocks and ruling over them: Query, Wait, Pin, Evict, Reset, List,
// EvictWhere, NamedPin.
//
// THREADING: the store thread. LIMITS: a step is about kBlocksPerTurnMax blocks at most.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "daemon/block/absent_places.h"
#include "daemon/block/keys_query.h"
#include "daemon/rule/filtered_eviction.h"
#include "daemon/rule/keyed_eviction.h"
#include "daemon/store/operation.h"
#include "daemon/store/verb_results.h"
#include "terrace/protocol.h"
#include "terrace/protocol_admin.h"
#include "terrace/protocol_operator.h"
#include "terrace/status.h"

namespace terrace {

struct Caller;
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

// An operation: what was evicted stays so when it is dropped. Counts in `answer` add up; a block
// counts once, however many of the keys it has or is below.
class EvictOperation {
 public:
  EvictOperation(OperationList& list, protocol::EvictReply* answer) : tie_(list), answer_(answer) {}
  EvictOperation(EvictOperation&&) noexcept = default;
  ~EvictOperation() { Undo(); }

  // The next keys, as in WaitOperation; at most kBlocksPerTurnMax blocks. Without kEvictSubtree
  // keys of a chain come tail first, step by step; with it a step may take several (kStays). kGone:
  // more walks were begun meanwhile than are kept; start again. kBusy: the hints name a deadline,
  // and it has passed since the first step.
  Result<Progress> Step(const KeysQuery& query);

 private:
  Status Evict(const KeysQuery& query);
  Status Walk(const KeysQuery& query, const Caller& caller);
  void Undo();

  OperationTie tie_;
  protocol::EvictReply* answer_;
  uint32_t domain_index_ = 0;
  uint64_t walk_ = 0;         // 0: none is open
  uint64_t deadline_us_ = 0;  // 0: it has not begun
  uint32_t passed_count_ = 0;
  bool has_unindexed_ = false;  // of the keys at hand
  std::optional<KeyedEviction> eviction_;
};

// An operation: every block of the group leaves. What has left stays so when it is dropped.
class ResetOperation {
 public:
  ResetOperation(OperationList& list, SessionId session, uint32_t group_index)
      : tie_(list), session_(session), group_index_(group_index) {}

  // kBlocksPerTurnMax blocks at most.
  Result<Progress> Step();
  uint64_t erased_count() const { return erased_count_; }

 private:
  Status Erase();

  OperationTie tie_;
  SessionId session_;
  uint32_t group_index_;
  uint64_t erased_count_ = 0;
  bool is_begun_ = false;
  bool is_through_ = false;
};

// An operation: a page of a listing, of kBlocksPerTurnMax entries at most. Undone, a listing that
// it began has ended.
class ListOperation {
 public:
  // request.group_handle is the group's index, or kAllGroups.
  ListOperation(OperationList& list, SessionId session, const protocol::ListRequest& request,
                ListResult* answer)
      : tie_(list), session_(session), request_(request), answer_(answer) {}
  ListOperation(ListOperation&&) noexcept = default;
  ~ListOperation() { Undo(); }

  // Looks at kListBlocksMax blocks at most. kGone as in EvictOperation.
  Result<Progress> Step();

 private:
  Status Continue();
  void Undo();

  OperationTie tie_;
  SessionId session_;
  protocol::ListRequest request_;
  ListResult* answer_;
  uint32_t domain_index_ = 0;
  uint32_t passed_count_ = 0;  // blocks
  uint64_t walk_ = 0;          // that it began; 0: none is open
};

// An operation: blocks leave by filters. What has left stays so when it is dropped.
class EvictWhereOperation {
 public:
  EvictWhereOperation(OperationList& list, SessionId session,
                      const protocol::EvictWhereRequest& request, protocol::EvictReply* answer)
      : tie_(list), session_(session), request_(request), answer_(answer) {}
  EvictWhereOperation(EvictWhereOperation&&) noexcept = default;
  ~EvictWhereOperation() { Undo(); }

  // kBlocksPerTurnMax blocks at most. kNotFound: no such group; kUnsupported: no such tier; kGone
  // as in EvictOperation.
  Result<Progress> Step();

 private:
  Result<bool> Evict();
  Status Begin(const Caller& caller);
  bool EvictUnindexed(const Caller& caller);
  void Undo();

  OperationTie tie_;
  SessionId session_;
  protocol::EvictWhereRequest request_;
  protocol::EvictReply* answer_;
  EvictionFilter filter_;
  std::optional<FilteredEviction> eviction_;
};

// What a NamedPin asks, beside its keys.
struct NamedPinQuery {
  SessionId session = 0;
  std::string_view name;
  protocol::NamedPinRequest request;
};

class OperatorVerbs {
 public:
  explicit OperatorVerbs(StoreRooms& store) : store_(store) {}

  Status Query(const KeysQuery& query, std::vector<protocol::QueriedBlock>* blocks);
  WaitOperation Wait();
  // How many lookups a key of such a query costs: more than one where all groups are asked for it.
  uint32_t KeyCost(SessionId session, uint32_t group_index) const;
  // `answer` outlives the operation.
  EvictOperation Evict(protocol::EvictReply* answer);
  Status Pin(const KeysQuery& query, protocol::PinReply* reply);
  EvictWhereOperation EvictWhere(SessionId session, const protocol::EvictWhereRequest& request,
                                 protocol::EvictReply* answer);
  // The next keys of a NamedPin; `passed_count` came before. Of kSet kNoSpace: no further pin;
  // kGone: it ended meanwhile. Of kClear kNotFound: there is none.
  Status NamedPin(const NamedPinQuery& query, std::span<const BlockKey> keys, uint32_t passed_count,
                  NamedPinResult* answer);
  ResetOperation Reset(SessionId session, uint32_t group_index);
  // After an Evict or Reset. kOk: no successor will find what was erased, not even after a loss of
  // power; kBusy: OnWaitDone follows, with kBusy if that takes longer than
  // protocol::kErasureWaitUs. kNoSpace: too many requests are pending. `reach`: kHere where copies
  // of this host's tiers were to go, which says nothing of what AbsentPlaces have.
  Status AwaitErasures(SessionId session, uint64_t request_id,
                       ErasureReach reach = ErasureReach::kEverywhere);
  ListOperation List(SessionId session, const protocol::ListRequest& request, ListResult* answer);
  // The next kListBlocksMax of all of a domain's blocks, parents first, for who has no session. 0
  // in *cursor begins, and is the end. kGone: begin again.
  Status ListAll(uint32_t domain_index, uint64_t* cursor,
                 std::vector<protocol::ListEntry>* entries);

  // Whether the domain takes anything new. What the store itself begins, scrubbing, rests while it
  // does not.
  protocol::ServingMode serving(uint32_t domain_index) const;
  void SetServing(uint32_t domain_index, protocol::ServingMode mode);
  // A request was answered without being served, as the mode wants it.
  void CountUnserved(uint32_t domain_index);
  // A request went on without the pin that its hints asked for.
  void CountPinDropped(uint32_t domain_index);
  // What is left of what the domain took: fills in the counts, and whether the store has nothing to
  // do for it.
  void AddLeft(uint32_t domain_index, protocol::DrainReply* reply) const;

 private:
  StoreRooms& store_;
};

}  // namespace terrace

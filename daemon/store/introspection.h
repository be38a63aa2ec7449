// Introspection: HitRates and Explain: what misses were made of, and why a prefix ends where it
// ends.
//
// THREADING: the store thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/block/store_listener.h"
#include "daemon/store/operation.h"
#include "daemon/store/prefix_walk.h"
#include "daemon/store/verb_results.h"
#include "terrace/protocol_introspection.h"
#include "terrace/status.h"

namespace terrace {

struct StoreRooms;

// An operation: why a chain of `key_count` keys ends where it ends. It holds nothing.
class ExplainOperation {
 public:
  // What its request names.
  struct Query {
    SessionId session = 0;
    GroupId group;
    uint32_t key_count = 0;
    uint32_t flags = 0;  // protocol::kExplainMembers
  };
  ExplainOperation(OperationList& list, const Query& query, ExplainResult* answer)
      : tie_(list), query_(query), answer_(answer) {}

  // The next keys. kStays once the chain has ended before its last key: one more step, in which the
  // keys are passed over, compares the group with others. kNotFound: the domain has no such group.
  Result<Progress> Step(std::span<const BlockKey> keys);

 private:
  Status Explain(std::span<const BlockKey> keys);

  OperationTie tie_;
  Query query_;
  ExplainResult* answer_;
  PrefixWalk walk_;
  uint32_t passed_count_ = 0;
  bool has_ended_ = false;  // the chain
  bool is_through_ = false;
};

class Introspection {
 public:
  explicit Introspection(StoreRooms& store) : store_(store) {}

  // At most kHitRateRowsMax rows; reply->next_row continues.
  Status HitRates(SessionId session, uint32_t first_row, protocol::HitRateReply* reply,
                  std::vector<protocol::HitRateRow>* rows);
  // `answer` outlives the operation.
  ExplainOperation Explain(const ExplainOperation::Query& query, ExplainResult* answer);

 private:
  StoreRooms& store_;
};

}  // namespace terrace

// Introspection: HitRates and Explain: what misses were made of, and why a prefix ends where it
// ends.
//
// THREADING: the store thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/block/store_listener.h"
#include "daemon/store/verb_results.h"
#include "terrace/protocol_insight.h"
#include "terrace/status.h"

namespace terrace {

struct StoreRooms;

class Introspection {
 public:
  explicit Introspection(StoreRooms& store) : store_(store) {}

  // At most kHitRateRowsMax rows; reply->next_row continues.
  Status HitRates(SessionId session, uint32_t first_row, protocol::HitRateReply* reply,
                  std::vector<protocol::HitRateRow>* rows);
  // The next keys of a chain; call until result->is_finished or no keys are left, then once
  // more with is_finished set. kNotFound: the domain has no such group.
  Status Explain(SessionId session, const GroupId& group, std::span<const BlockKey> keys,
                 ExplainResult* result);

 private:
  StoreRooms& store_;
};

}  // namespace terrace

// AcquireMisses: what an Acquire did not find, and why, for the domain's HitMeter.
//
// THREADING: the store thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "daemon/block/keys_query.h"
#include "daemon/store/store_rooms.h"
#include "terrace/protocol_insight.h"

namespace terrace {

struct AcquireResult;

struct AcquireMisses {
  uint32_t asked_count = 0;  // keys that were passed
  uint32_t cold_count = 0;   // of those, never seen
  bool is_rest_cold = false;
  std::optional<protocol::MissCause> cause;  // of the first that was not there
};

// Of the keys of a step those behind the walk.
void CountMisses(const Caller& caller, const KeysQuery& query, std::span<const BlockKey> missed,
                 AcquireMisses* misses);
// Once the request is answered.
void CountAnswer(const Caller& caller, const KeysQuery& query, const AcquireResult& result);

}  // namespace terrace

// What an Acquire did not find, and why: counted for the domain's HitMeter.
//
// THREADING: the store thread.
#pragma once

#include <span>

#include "daemon/block/keys_query.h"
#include "daemon/store/store_rooms.h"
#include "daemon/store/verb_results.h"

namespace terrace {

// Counts the keys of a step that lie behind the walk.
void CountMisses(const Caller& caller, const KeysQuery& query, std::span<const BlockKey> missed,
                 AcquireMisses* misses);
// Once the request is answered.
void CountAnswer(const Caller& caller, const KeysQuery& query, const AcquireResult& result);

}  // namespace terrace

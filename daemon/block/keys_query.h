// KeysQuery: what a request about keys asks of the rooms.
#pragma once

#include <cstdint>
#include <span>

#include "daemon/block/store_listener.h"
#include "terrace/block_key.h"
#include "terrace/protocol.h"

namespace terrace {

// In place of a group index: every group of the domain. Sessions translate handles: where a
// protocol struct with a group_handle is passed on (Join, List), that field holds the group index.
inline constexpr uint32_t kAllGroups = 0xFFFFFFFF;

// A request about keys, as a session passes it on. REQUIRES: keys.size() ≤ kBlocksPerTurnMax, but
// for AcquireReady.
struct KeysQuery {
  SessionId session = 0;
  uint64_t request_id = 0;
  uint32_t group_index = 0;  // kAllGroups only for Evict and Pin
  uint32_t flags = 0;        // protocol::kKeysFlat, …
  uint64_t member_mask = 0;  // as meant: the session has put its self_mask where the frame said 0
  BlockKey parent;
  uint32_t first_position = 0;
  protocol::Hints hints;
  std::span<const BlockKey> keys;
  uint32_t key_count_of_request = 0;       // of all calls together; 0: not known
  BlockKey last_key;                       // of the request, where that is an Acquire
  std::span<const uint64_t> event_hashes;  // empty, or one a key (Reserve)
};

}  // namespace terrace

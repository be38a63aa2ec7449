// BlockMeta: what is said of a block wherever it lies: in the daemon's memory, in a row of the slot
// table, in a slab entry, in a manifest on Redis. BlockDescription adds which block it is, for all
// that outlive the daemon's memory. Each format embeds it and adds only what is its own.
#pragma once

#include <cstdint>

#include "terrace/block_key.h"
#include "terrace/protocol.h"

namespace terrace {

struct BlockMeta {
  CommitId commit_id = 0;
  uint64_t event_hash = 0;  // as routers know it; 0: they do not
  uint32_t recompute_ns_per_token = 0;
  uint8_t priority = protocol::kPriorityDefault;
  bool is_pinned = false;    // by an operator or a hint
  bool is_no_store = false;  // never below DRAM

  friend bool operator==(const BlockMeta&, const BlockMeta&) = default;
};

struct BlockDescription : BlockMeta {
  GroupId group;
  SpaceId space;  // of the member
  BlockKey key;
  BlockKey parent;            // zero: a root
  uint64_t expires_at_s = 0;  // Unix seconds; 0: never
  uint32_t position = 0;      // in blocks from the root of its chain
  uint16_t member = 0;

  friend bool operator==(const BlockDescription&, const BlockDescription&) = default;
};

}  // namespace terrace

// RedisBlockName: by what hosts that share a tier find a block.
#pragma once

#include <cstdint>

#include "terrace/block_key.h"
#include "terrace/space.h"

namespace terrace {

inline constexpr uint32_t kRedisRunBlocks = 64;

// What a member's bytes of a block are found by. Positions 64·r to 64·r + 63 of a chain are a run,
// and `run` is the key of the first of them; a block that is in no chain is its own run, at 0.
struct RedisBlockName {
  GroupId group;
  SpaceId space;
  BlockKey key;
  BlockKey run;
  uint32_t position = 0;
  uint64_t generation = 0;  // of the group: rises when its blocks are forgotten

  // The same block as one of no chain, which is found under its own key.
  RedisBlockName Alone() const {
    RedisBlockName alone = *this;
    alone.run = key;
    alone.position = 0;
    return alone;
  }

  friend bool operator==(const RedisBlockName&, const RedisBlockName&) = default;
};

}  // namespace terrace

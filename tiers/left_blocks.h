// LeftBlocks: the face of a tier that keeps blocks which its start could not serve, since nobody
// knew their groups or had their keys. No index names them, and a later start may serve them, so an
// erasure has to find them here. What it erases takes the way of what Tier::Free gives away: it has
// ended when Tier::erasures says so.
//
// THREADING: the store thread.
#pragma once

#include <cstdint>
#include <optional>

#include "terrace/block_key.h"
#include "tiers/tier.h"

namespace terrace {

// Blocks that an erasure took from where no index names them.
struct UnindexedTaken {
  uint64_t block_count = 0;
  uint64_t byte_count = 0;
};

class LeftBlocks {
 public:
  virtual ~LeftBlocks() = default;
  virtual bool has_left() const = 0;
  // What is left of a group (none: of any), from that position on, goes when EraseLeft comes to it.
  virtual void MarkLeft(const std::optional<GroupId>& group, uint64_t position) = 0;
  // Likewise what lies deeper in its group than the key, if that is left: it may continue the key.
  // The key's position then, else none.
  virtual std::optional<uint64_t> MarkLeftBelow(const std::optional<GroupId>& group,
                                                const BlockKey& key) = 0;
  // What is left under the key goes at once.
  virtual void EraseLeftKey(const std::optional<GroupId>& group, const BlockKey& key,
                            UnindexedTaken* taken) = 0;
  // What is marked goes, as many entries as *budget says. True: nothing that is marked is left.
  virtual bool EraseLeft(uint32_t* budget, UnindexedTaken* taken) = 0;
};

// Null: the tier serves all that it keeps.
inline LeftBlocks* LeftBlocksOf(Tier* tier) { return dynamic_cast<LeftBlocks*>(tier); }

}  // namespace terrace

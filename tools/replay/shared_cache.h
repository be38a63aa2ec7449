// SharedCache: the tier that hosts share, as a server with maxmemory-policy allkeys-lru keeps it:
// what was read or written longest ago goes, whatever hangs on it.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>

#include "daemon/index/block_id.h"

namespace terrace::tools {

class SharedCache {
 public:
  // As redis.admission: everything that is stored, or what was asked for again after it was stored.
  enum class Admission : uint8_t { kAll, kHit };

  // capacity_blocks: > 0
  SharedCache(uint32_t capacity_blocks, Admission admission)
      : capacity_blocks_(capacity_blocks), admission_(admission) {}

  bool Has(BlockId id) const { return places_.contains(id); }
  void Read(BlockId id);
  // A host has the block and the tier has not. was_served: it was asked for again.
  void Offer(BlockId id, bool was_served);

  uint64_t written_count() const { return written_count_; }

 private:
  const uint32_t capacity_blocks_;
  const Admission admission_;
  std::list<BlockId> order_;  // oldest first
  std::unordered_map<BlockId, std::list<BlockId>::iterator> places_;
  uint64_t written_count_ = 0;
};

}  // namespace terrace::tools

// BlockMarks: what one walk over the tree notes of blocks: a set of them. Another walk's is
// another. A block that was born on the place of one that was noted counts as noted.
//
// THREADING: one thread. LIMITS: a bit a block, for 4,096 at a time as one of them is noted.
#pragma once

#include <bitset>
#include <cstdint>
#include <unordered_map>

#include "daemon/index/radix_index.h"

namespace terrace {

class BlockMarks {
 public:
  bool Has(BlockId id) const {
    const auto page = pages_.find(id / kPageBlocks);
    return page != pages_.end() && page->second.test(id % kPageBlocks);
  }
  void Add(BlockId id) { pages_[id / kPageBlocks].set(id % kPageBlocks); }
  void Remove(BlockId id) {
    const auto page = pages_.find(id / kPageBlocks);
    if (page != pages_.end()) page->second.reset(id % kPageBlocks);
  }

 private:
  static constexpr uint32_t kPageBlocks = 4096;
  std::unordered_map<uint32_t, std::bitset<kPageBlocks>> pages_;
};

}  // namespace terrace

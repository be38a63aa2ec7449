// BlockTable: the blocks of one domain by id. Everybody reads; a part is given only to the classes
// that its Key names, so that what a part says can be looked for in few places.
//
// THREADING: store thread. LIMITS: ids are the RadixIndex's; memory grows a chunk at a time and is
// never moved.
#pragma once

#include <memory>
#include <type_traits>

#include "daemon/block/block.h"
#include "daemon/index/chunked_array.h"

namespace terrace {

class BlockTable {
 public:
  // REQUIRES: the id was reached.
  const Block& operator[](BlockId id) const { return blocks_[id]; }
  void Prefetch(BlockId id) const { blocks_.Prefetch(id); }
  // Ids below this have been reached.
  uint32_t reach() const { return blocks_.reach(); }

  // A part, for its owner to change: `Change<HoldCounts>(id, {})`.
  template <typename Part>
  Part& Change(BlockId id, typename Part::Key) {
    return blocks_[id];
  }
  // The id is a new block's from now on, or nobody's.
  void Clear(BlockId id, BlockLife::Key) {
    static_assert(std::is_trivially_destructible_v<Block>);
    blocks_.Reach(id);
    std::construct_at(&blocks_[id]);  // in its place: to build one elsewhere and copy it stalls
  }

 private:
  ChunkedArray<Block> blocks_;
};

}  // namespace terrace

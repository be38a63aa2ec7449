// IdExtents: which block ids are free, as extents of consecutive ones, so that the blocks of a
// chain get consecutive ids although they come one by one. A freed id joins the free ids beside it.
//
// What is noted of an extent lies in its first and last cell: the array of keys, of which a free id
// needs none.
//
// THREADING: one thread. LIMITS: blocks_max ids.
#pragma once

#include <array>
#include <cstdint>

#include "daemon/index/block_id.h"
#include "daemon/index/mapped_array.h"
#include "terrace/block_key.h"

namespace terrace {

class IdExtents {
 public:
  // Smaller extents are used only when there is no fresh id: chains would be cut into pieces.
  static constexpr uint32_t kUsefulIds = 32;

  IdExtents(uint32_t blocks_max, MappedArray<BlockKey>* cells)
      : blocks_max_(blocks_max), cells_(*cells) {
    heads_.fill(kBlockNone);
  }

  // A free id: the one behind `previous` if `is_free(id)` says so, else the first of many.
  // kBlockNone when all are in use.
  template <typename IsFree>
  BlockId Take(BlockId previous, const IsFree& is_free) {
    if (previous != kBlockNone && previous + 1 < id_count_ && is_free(previous + 1)) {
      return TakeFirst(previous + 1);
    }
    return TakeAny(previous);
  }
  // Consecutive ids. `is_free(id)` is true of ids that were given and not taken again since.
  template <typename IsFree>
  void Give(BlockId first, uint32_t length, const IsFree& is_free) {
    const BlockId end = first + length;
    if (end < id_count_ && is_free(end)) {
      length += LengthAt(end);
      Unlist(end);
    }
    if (first > 0 && is_free(first - 1)) {
      const auto before = static_cast<uint32_t>(cells_[first - 1].high / kHighHalf);
      first -= before;
      length += before;
      Unlist(first);
    }
    List(first, length);
  }

  // Ids below this have been in use.
  uint32_t id_count() const { return id_count_; }
  uint32_t free_count() const { return free_count_; }

 private:
  // A cell of an extent: length and next extent in `low`; in `high` the previous extent and, in the
  // last cell, the length again.
  static constexpr uint64_t kHighHalf = uint64_t{1} << 32;

  uint32_t LengthAt(BlockId first) const { return static_cast<uint32_t>(cells_[first].low); }
  BlockId TakeFirst(BlockId first);
  BlockId TakeAny(BlockId previous);
  void List(BlockId first, uint32_t length);
  void Unlist(BlockId first);

  const uint32_t blocks_max_;
  MappedArray<BlockKey>& cells_;
  std::array<BlockId, 32> heads_;  // extents of 2^i to 2^(i+1) - 1 ids
  uint32_t listed_classes_ = 0;    // bit i: heads_[i] is one
  uint32_t id_count_ = 0;
  uint32_t free_count_ = 0;
};

}  // namespace terrace

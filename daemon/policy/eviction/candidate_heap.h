// CandidateHeap: candidates ordered by priority, then by a policy's rank; the smallest goes first.
// An indexed heap, four below each: O(log n) to add, remove and re-rank, O(1) to look at the first.
//
// Paths go tail first: when the first leaves, what it hung on comes, and ranks next. So the top
// stays open until another candidate comes or goes, and a path leaves in O(1) a block.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>

#include "daemon/index/block_id.h"
#include "daemon/index/chunked_array.h"

namespace terrace {

class CandidateHeap {
 public:
  static constexpr uint32_t kOrderBits = 56;
  static constexpr uint64_t kOrderMax = (uint64_t{1} << kOrderBits) - 1;
  struct Rank {
    Rank() = default;
    Rank(uint8_t priority_of, uint64_t order_of) : order(order_of), priority(priority_of) {}

    uint64_t order : kOrderBits = 0;  // unique, so that the first is never ambiguous
    uint64_t priority : 64 - kOrderBits = 0;

    friend bool operator==(Rank left, Rank right) { return left.bits() == right.bits(); }
    friend auto operator<=>(Rank left, Rank right) { return left.bits() <=> right.bits(); }

   private:
    uint64_t bits() const { return uint64_t{priority} << kOrderBits | order; }
  };

  // REQUIRES: not contained.
  void Add(BlockId id, Rank rank);
  // REQUIRES: contained.
  void Remove(BlockId id);
  void Change(BlockId id, Rank rank);
  bool Contains(BlockId id) const { return id < places_.reach() && places_[id] != kNowhere; }
  // kBlockNone when empty.
  BlockId first() const {
    const uint32_t place = first_place();
    return place < place_count_ ? heap_[place].id : kBlockNone;
  }
  // Above all others when empty.
  Rank first_rank() const {
    const uint32_t place = first_place();
    return place < place_count_ ? heap_[place].rank : Rank{UINT8_MAX, kOrderMax};
  }
  uint32_t count() const { return place_count_ - (is_top_open_ ? 1 : 0); }

 private:
  struct Entry {
    Rank rank;
    BlockId id = kBlockNone;
  };
  static_assert(sizeof(Entry) == 16);
  static constexpr uint32_t kNowhere = 0;
  static constexpr uint32_t kBelow = 4;

  uint32_t first_place() const { return is_top_open_ ? LowestBelow(0) : 0; }
  // place_count_ or more if there is nothing below.
  uint32_t LowestBelow(uint32_t place) const {
    uint32_t lowest = kBelow * place + 1;
    const uint32_t end = std::min(lowest + kBelow, place_count_);
    for (uint32_t below = lowest + 1; below < end; ++below) {
      if (heap_[below].rank < heap_[lowest].rank) lowest = below;
    }
    return lowest;
  }
  void CloseTop();
  void Place(uint32_t place, const Entry& entry);
  void Settle(uint32_t place, const Entry& entry);

  ChunkedArray<Entry> heap_;
  uint32_t place_count_ = 0;
  bool is_top_open_ = false;       // nobody is at heap_[0]
  ChunkedArray<uint32_t> places_;  // by id; counted from 1
};

}  // namespace terrace

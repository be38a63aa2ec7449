// CandidateHeap: candidates ordered by priority, then by a policy's rank; the smallest goes first.
// An indexed binary heap: O(log n) to add, remove and re-rank, O(1) to look at the first.
//
// Paths go tail first: when the first leaves, what it hung on comes, and ranks next. So the top
// stays open until another candidate comes or goes, and a path leaves in O(1) a block.
#pragma once

#include <cstdint>

#include "daemon/block.h"
#include "daemon/chunked_array.h"

namespace terrace {

class CandidateHeap {
 public:
  struct Rank {
    uint8_t priority = 0;
    uint64_t order = 0;  // unique, so that the first is never ambiguous

    friend auto operator<=>(const Rank&, const Rank&) = default;
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
  uint32_t count() const { return place_count_ - (is_top_open_ ? 1 : 0); }

 private:
  struct Entry {
    Rank rank;
    BlockId id = kBlockNone;
  };
  static constexpr uint32_t kNowhere = 0;

  uint32_t first_place() const {
    if (!is_top_open_) return 0;
    return place_count_ > 2 && heap_[2].rank < heap_[1].rank ? 2 : 1;
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

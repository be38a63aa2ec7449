// CandidateHeap: candidates ordered by priority, then by a policy's rank; the smallest goes first.
// An indexed binary heap: O(log n) to add, remove and re-rank, O(1) to look at the first.
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
  BlockId first() const { return count_ == 0 ? kBlockNone : heap_[0].id; }
  uint32_t count() const { return count_; }

 private:
  struct Entry {
    Rank rank;
    BlockId id = kBlockNone;
  };
  static constexpr uint32_t kNowhere = 0;

  void Place(uint32_t place, const Entry& entry);
  void Settle(uint32_t place, const Entry& entry);

  ChunkedArray<Entry> heap_;
  uint32_t count_ = 0;
  ChunkedArray<uint32_t> places_;  // by id; counted from 1
};

}  // namespace terrace

// CandidateHeap: candidates ordered by priority, then by a policy's rank; the smallest goes first.
// An indexed binary heap: O(log n) to add, remove and re-rank, O(1) to look at the first.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/block.h"

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
  bool Contains(BlockId id) const { return id < places_.size() && places_[id] != kNowhere; }
  // kBlockNone when empty.
  BlockId first() const { return heap_.empty() ? kBlockNone : heap_[0].id; }
  uint32_t count() const { return static_cast<uint32_t>(heap_.size()); }

 private:
  struct Entry {
    Rank rank;
    BlockId id = kBlockNone;
  };
  static constexpr uint32_t kNowhere = 0xFFFFFFFF;

  void Place(uint32_t place, const Entry& entry);
  void Settle(uint32_t place, const Entry& entry);

  std::vector<Entry> heap_;
  std::vector<uint32_t> places_;  // by id
};

}  // namespace terrace

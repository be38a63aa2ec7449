#include "daemon/policy/eviction/candidate_heap.h"

#include "terrace/check.h"

namespace terrace {

void CandidateHeap::Place(uint32_t place, const Entry& entry) {
  heap_[place] = entry;
  places_[entry.id] = place + 1;
}

// Puts `entry` at `place` or wherever up or down from it order is kept.
void CandidateHeap::Settle(uint32_t place, const Entry& entry) {
  while (place > 0) {
    const uint32_t above = (place - 1) / kBelow;
    if (heap_[above].rank <= entry.rank) break;
    Place(place, heap_[above]);
    place = above;
  }
  while (true) {
    const uint32_t below = LowestBelow(place);
    if (below >= place_count_ || heap_[below].rank >= entry.rank) break;
    Place(place, heap_[below]);
    place = below;
  }
  Place(place, entry);
}

void CandidateHeap::Add(BlockId id, Rank rank) {
  TERRACE_CHECK(!Contains(id), "a candidate is added once");
  places_.Reach(id);
  const Entry entry{rank, id};
  if (is_top_open_) {
    is_top_open_ = false;
    Settle(0, entry);
    return;
  }
  heap_.Reach(place_count_);
  Settle(place_count_++, entry);
}

void CandidateHeap::CloseTop() {
  if (!is_top_open_) return;
  is_top_open_ = false;
  const Entry last = heap_[--place_count_];
  if (place_count_ > 0) Settle(0, last);
}

void CandidateHeap::Remove(BlockId id) {
  TERRACE_CHECK(Contains(id), "only a candidate is removed");
  CloseTop();
  const uint32_t place = places_[id] - 1;
  places_[id] = kNowhere;
  if (place == 0) {
    is_top_open_ = true;
    return;
  }
  const Entry last = heap_[--place_count_];
  if (place < place_count_) Settle(place, last);
}

void CandidateHeap::Change(BlockId id, Rank rank) {
  TERRACE_CHECK(Contains(id), "only a candidate is re-ranked");
  CloseTop();
  Settle(places_[id] - 1, Entry{rank, id});
}

}  // namespace terrace

#include "daemon/eviction/candidate_heap.h"

#include "terrace/check.h"

namespace terrace {

void CandidateHeap::Place(uint32_t place, const Entry& entry) {
  heap_[place] = entry;
  places_[entry.id] = place + 1;
}

// Puts `entry` at `place` or wherever up or down from it order is kept.
void CandidateHeap::Settle(uint32_t place, const Entry& entry) {
  while (place > 0) {
    const uint32_t above = (place - 1) / 2;
    if (heap_[above].rank <= entry.rank) break;
    Place(place, heap_[above]);
    place = above;
  }
  while (true) {
    uint32_t below = 2 * place + 1;
    if (below >= count_) break;
    if (below + 1 < count_ && heap_[below + 1].rank < heap_[below].rank) ++below;
    if (heap_[below].rank >= entry.rank) break;
    Place(place, heap_[below]);
    place = below;
  }
  Place(place, entry);
}

void CandidateHeap::Add(BlockId id, Rank rank) {
  TERRACE_CHECK(!Contains(id), "a candidate is added once");
  places_.Reach(id);
  heap_.Reach(count_);
  const Entry entry{rank, id};
  Settle(count_++, entry);
}

void CandidateHeap::Remove(BlockId id) {
  TERRACE_CHECK(Contains(id), "only a candidate is removed");
  const uint32_t place = places_[id] - 1;
  const Entry last = heap_[--count_];
  places_[id] = kNowhere;
  if (place < count_) Settle(place, last);
}

void CandidateHeap::Change(BlockId id, Rank rank) {
  TERRACE_CHECK(Contains(id), "only a candidate is re-ranked");
  Settle(places_[id] - 1, Entry{rank, id});
}

}  // namespace terrace

#include "daemon/eviction/candidate_heap.h"

#include "terrace/check.h"

namespace terrace {

void CandidateHeap::Place(uint32_t place, const Entry& entry) {
  heap_[place] = entry;
  places_[entry.id] = place;
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
    if (below >= heap_.size()) break;
    if (below + 1 < heap_.size() && heap_[below + 1].rank < heap_[below].rank) ++below;
    if (heap_[below].rank >= entry.rank) break;
    Place(place, heap_[below]);
    place = below;
  }
  Place(place, entry);
}

void CandidateHeap::Add(BlockId id, Rank rank) {
  TERRACE_CHECK(!Contains(id), "a candidate is added once");
  if (id >= places_.size()) places_.resize(id + 1, kNowhere);
  const Entry entry{rank, id};
  heap_.push_back(entry);
  Settle(count() - 1, entry);
}

void CandidateHeap::Remove(BlockId id) {
  TERRACE_CHECK(Contains(id), "only a candidate is removed");
  const uint32_t place = places_[id];
  const Entry last = heap_.back();
  heap_.pop_back();
  places_[id] = kNowhere;
  if (place < heap_.size()) Settle(place, last);
}

void CandidateHeap::Change(BlockId id, Rank rank) {
  TERRACE_CHECK(Contains(id), "only a candidate is re-ranked");
  Settle(places_[id], Entry{rank, id});
}

}  // namespace terrace

#include "daemon/block/deadline_heap.h"

#include "terrace/check.h"

namespace terrace {

bool DeadlineHeap::IsBefore(const Entry& a, const Entry& b) {
  if (a.deadline.due_us != b.deadline.due_us) return a.deadline.due_us < b.deadline.due_us;
  return a.order < b.order;
}

void DeadlineHeap::Place(uint32_t place, const Entry& entry) {
  heap_[place] = entry;
  places_[entry.handle] = place;
}

void DeadlineHeap::Settle(uint32_t place, const Entry& entry) {
  while (place > 0) {
    const uint32_t above = (place - 1) / 2;
    if (IsBefore(heap_[above], entry)) break;
    Place(place, heap_[above]);
    place = above;
  }
  while (true) {
    uint32_t below = 2 * place + 1;
    if (below >= heap_.size()) break;
    if (below + 1 < heap_.size() && IsBefore(heap_[below + 1], heap_[below])) ++below;
    if (IsBefore(entry, heap_[below])) break;
    Place(place, heap_[below]);
    place = below;
  }
  Place(place, entry);
}

uint32_t DeadlineHeap::Add(const Deadline& deadline) {
  uint32_t handle;
  if (free_handles_.empty()) {
    handle = static_cast<uint32_t>(places_.size());
    places_.push_back(0);
  } else {
    handle = free_handles_.back();
    free_handles_.pop_back();
  }
  const Entry entry{deadline, added_count_++, handle};
  heap_.push_back(entry);
  Settle(count() - 1, entry);
  return handle;
}

void DeadlineHeap::Remove(uint32_t handle) {
  const uint32_t place = places_[handle];
  TERRACE_CHECK(place < heap_.size() && heap_[place].handle == handle,
                "a handle names an entry that has not come due");
  const Entry last = heap_.back();
  heap_.pop_back();
  if (place < heap_.size()) Settle(place, last);
  free_handles_.push_back(handle);
}

bool DeadlineHeap::PopDue(uint64_t now_us, Deadline* deadline) {
  if (next_us() > now_us || heap_.empty()) return false;
  *deadline = heap_[0].deadline;
  Remove(heap_[0].handle);
  return true;
}

}  // namespace terrace

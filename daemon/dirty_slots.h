// DirtySlots: the slots whose table entries changed since they were last looked at. Each is in it
// once however often it changes, so slots bound it, not writes: 8 bytes a waiting slot and a bit
// for each slot there is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

namespace terrace {

struct SlotName {
  uint32_t slab = 0;
  uint32_t slot = 0;
  friend auto operator<=>(const SlotName&, const SlotName&) = default;
};

class DirtySlots {
 public:
  void Add(SlotName name) {
    std::vector<bool>& waiting = is_waiting_[name.slab];
    if (waiting.size() <= name.slot) waiting.resize(name.slot + 1);
    if (waiting[name.slot]) return;
    waiting[name.slot] = true;
    order_.push_back(name);
  }

  // Moves up to `count_max` slots to the end of `*names`, those that wait longest first.
  void Take(size_t count_max, std::vector<SlotName>* names) {
    for (; count_max > 0 && !order_.empty(); --count_max) {
      names->push_back(order_.front());
      is_waiting_[order_.front().slab][order_.front().slot] = false;
      order_.pop_front();
    }
  }

  size_t count() const { return order_.size(); }
  bool is_empty() const { return order_.empty(); }

 private:
  std::deque<SlotName> order_;
  std::unordered_map<uint32_t, std::vector<bool>> is_waiting_;  // by slab
};

}  // namespace terrace

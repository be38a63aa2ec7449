// DirtySlots: the slots whose table entries changed, from the change until whoever made it has his
// answer. A slot waits, is looked at, is answered; a change on the way there sends it back to
// waiting, and only the last look is answered. Each slot is listed at most once a stage, so slots
// bound it, not changes: 16 bytes a slot on its way and a byte for each slot there is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
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
  // It changed.
  void Add(SlotName name) {
    if (!Set(name, kWaiting)) return;
    waiting_.push_back(name);
  }
  // Moves up to `count_max` slots to the end of `*names`, to be looked at; longest waiting first.
  void Take(size_t count_max, std::vector<SlotName>* names) {
    for (; count_max > 0 && !waiting_.empty(); --count_max) {
      const SlotName name = waiting_.front();
      waiting_.pop_front();
      Clear(name, kWaiting);
      Set(name, kLookedAt);
      names->push_back(name);
    }
  }
  // What Take gave has been looked at, or need not be. True if there were no answers before.
  bool Answer(std::span<const SlotName> names) {
    const bool were_none = answered_.empty();
    for (const SlotName name : names) {
      if (Set(name, kAnswered)) answered_.push_back(name);
      Clear(name, kLookedAt);
    }
    return were_none && !answered_.empty();
  }
  // Goes through up to `count_max` answers and appends those that no change has overtaken. True if
  // there are more.
  bool TakeAnswers(size_t count_max, std::vector<SlotName>* names) {
    for (; count_max > 0 && !answered_.empty(); --count_max) {
      const SlotName name = answered_.front();
      answered_.pop_front();
      Clear(name, kAnswered);
      if (stages_[name.slab][name.slot] == 0) names->push_back(name);
    }
    return !answered_.empty();
  }

  size_t waiting_count() const { return waiting_.size(); }

 private:
  static constexpr uint8_t kWaiting = 1, kLookedAt = 2, kAnswered = 4;

  // False if it was set.
  bool Set(SlotName name, uint8_t stage) {
    std::vector<uint8_t>& slab = stages_[name.slab];
    if (slab.size() <= name.slot) slab.resize(name.slot + 1);
    const bool is_new = (slab[name.slot] & stage) == 0;
    slab[name.slot] |= stage;
    return is_new;
  }
  void Clear(SlotName name, uint8_t stage) {
    uint8_t& stages = stages_[name.slab][name.slot];
    stages = static_cast<uint8_t>(stages & ~stage);
  }

  std::deque<SlotName> waiting_;
  std::deque<SlotName> answered_;
  std::unordered_map<uint32_t, std::vector<uint8_t>> stages_;  // by slab
};

}  // namespace terrace

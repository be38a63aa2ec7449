// What has been erased, until no successor finds it: the headers in the persistent tier are
// written after the block has left the index.
//
// THREADING: the store thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>

#include "daemon/index/block_id.h"
#include "tiers/shared_tier.h"

namespace terrace {

// What was erased while a job held it, and so has not left the persistent tier; numbered as they
// came.
class ErasedBelow {
 public:
  void Add(BlockId id) {
    numbers_[id] = begun_;
    order_.emplace_back(begun_++, id);
  }
  void Remove(BlockId id) {
    numbers_.erase(id);
    while (!order_.empty() && !IsThere(order_.front())) order_.pop_front();
  }
  uint64_t begun() const { return begun_; }
  // Those before this number have left.
  uint64_t ended() const { return order_.empty() ? begun_ : order_.front().first; }

 private:
  using Entry = std::pair<uint64_t, BlockId>;
  bool IsThere(const Entry& entry) const {
    const auto found = numbers_.find(entry.second);
    return found != numbers_.end() && found->second == entry.first;
  }

  std::unordered_map<BlockId, uint64_t> numbers_;  // looked up only, never walked
  std::deque<Entry> order_;                        // the first of them is there
  uint64_t begun_ = 0;
};

// What had been erased at some time; see CacheDomain::IsErased.
struct ErasureMark {
  uint64_t below = 0;
  SharedErasureMark shared;
  std::optional<uint64_t> tier;
  bool is_for_absent = false;  // it has to be noted for AbsentPlaces
};

}  // namespace terrace

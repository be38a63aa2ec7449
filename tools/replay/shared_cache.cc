#include "tools/replay/shared_cache.h"

namespace terrace::tools {

void SharedCache::Read(BlockId id) { order_.splice(order_.end(), order_, places_.at(id)); }

void SharedCache::Offer(BlockId id, bool was_served) {
  if (Has(id) || (admission_ == Admission::kHit && !was_served)) return;
  places_[id] = order_.insert(order_.end(), id);
  ++written_count_;
  if (order_.size() <= capacity_blocks_) return;
  places_.erase(order_.front());
  order_.pop_front();
}

}  // namespace terrace::tools

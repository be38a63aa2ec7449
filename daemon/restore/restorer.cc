#include "daemon/restore/restorer.h"

#include <algorithm>

#include "daemon/block/cache_domain.h"
#include "terrace/check.h"

namespace terrace {

// Entries of one group come together, mostly; a domain has some hundred groups at most.
uint32_t Restorer::GroupOf(const GroupId& id) {
  const auto known = group_indexes_.find(id.low);
  if (known != group_indexes_.end()) {
    return d_.groups[known->second]->id() == id ? known->second : kAllGroups;
  }
  for (uint32_t g = 0; g < d_.groups.size(); ++g) {
    if (d_.groups[g]->id() != id) continue;
    group_indexes_.emplace(id.low, g);
    return g;
  }
  return kAllGroups;
}

BlockId Restorer::Take(uint32_t tier, const BlockRecord& record, const Extent& extent) {
  TERRACE_CHECK(tier == d_.persistent_tier, "what is restored comes from the persistent tier");
  tier_ = tier;
  const uint32_t group_index = GroupOf(record.group);
  last_group_index_ = group_index;
  const BlockId id = group_index == kAllGroups
                         ? kBlockNone
                         : residency_.lifecycle.Restore(group_index, tier, record, extent);
  if (id == kBlockNone) {
    ++dropped_count_;
    return kBlockNone;
  }
  if (id >= places_.size()) places_.resize(id + 1);
  Place& place = places_[id];
  place.epoch = std::max(place.epoch, record.epoch);
  place.parent = record.parent;
  return id;
}

RestoreSummary Restorer::Finish() {
  for (BlockId id = 0; id < places_.size(); ++id) {
    const uint32_t member_count =
        static_cast<uint32_t>(std::popcount(d_.block(id).lower[tier_].member_mask));
    if (!residency_.lifecycle.KeepIfWhole(id, tier_)) dropped_count_ += member_count;
  }
  LinkAll();
  RestoreSummary summary{.copies_dropped = dropped_count_};
  for (const Order& order : Ordered()) {
    residency_.lifecycle.EndRestore(order.id, tier_);
    ++summary.blocks;
  }
  return summary;
}

void Restorer::LinkAll() {
  for (BlockId id = 0; id < places_.size(); ++id) {
    if (id + kPrefetchDistance < places_.size()) {
      const BlockId ahead = id + static_cast<BlockId>(kPrefetchDistance);
      d_.index.Prefetch(d_.index.node(ahead).group_index, places_[ahead].parent);
    }
    const RadixIndex::Node& node = d_.index.node(id);
    if (!node.is_live || places_[id].parent.is_zero()) continue;
    const BlockId parent = d_.index.Find(node.group_index, places_[id].parent);
    if (parent != kBlockNone) residency_.lifecycle.Link(id, parent);
  }
}

// Written long ago first; what was written together tail first.
std::vector<Restorer::Order> Restorer::Ordered() const {
  std::vector<Order> ordered;
  ordered.reserve(places_.size());
  for (BlockId id = 0; id < places_.size(); ++id) {
    if (d_.index.node(id).is_live) ordered.push_back({places_[id].epoch, id});
  }
  std::sort(ordered.begin(), ordered.end(), [this](const Order& a, const Order& b) {
    if (a.epoch != b.epoch) return a.epoch < b.epoch;
    const uint32_t a_position = d_.index.node(a.id).position;
    const uint32_t b_position = d_.index.node(b.id).position;
    return a_position != b_position ? a_position > b_position : a.id < b.id;
  });
  return ordered;
}

}  // namespace terrace

#include "daemon/rule/unindexed_eviction.h"

#include <unordered_set>

namespace terrace {
namespace {

LeftBlocks* LeftOf(const CacheDomain& domain) {
  if (domain.persistent_tier == kLowerTiersMax) return nullptr;
  return LeftBlocksOf(domain.lower[domain.persistent_tier].tier);
}

std::optional<uint64_t> TagOf(const std::optional<GroupId>& group) {
  return group ? std::optional(group->low) : std::nullopt;
}

}  // namespace

UnindexedEviction::UnindexedEviction(CacheDomain& domain, Adoption& adoption)
    : d_(domain), adoption_(adoption), left_(LeftOf(domain)), since_us_(domain.NowUs()) {}

std::optional<GroupId> UnindexedEviction::IdOf(uint32_t group_index) const {
  if (group_index == kAllGroups) return std::nullopt;
  return d_.groups[group_index]->id();
}

bool UnindexedEviction::EvictAll(uint32_t group_index, std::optional<TierKind> tier,
                                 protocol::EvictReply* reply) {
  const std::optional<GroupId> group = IdOf(group_index);
  if (tier.value_or(TierKind::kDram) == TierKind::kDram) adoption_.Erase(TagOf(group));
  if (left_ != nullptr && tier.value_or(TierKind::kNvme) == TierKind::kNvme) {
    left_->MarkLeft(group, 0);
  }
  return GoOn(reply);
}

bool UnindexedEviction::EvictKeys(const KeysQuery& query, std::span<const BlockId> found,
                                  protocol::EvictReply* reply) {
  const std::optional<GroupId> group = IdOf(query.group_index);
  const bool is_subtree = (query.flags & protocol::kEvictSubtree) != 0;
  if (is_subtree) {
    std::unordered_set<BlockKey> indexed;
    for (const BlockId id : found) {
      const RadixIndex::Node& node = d_.index.node(id);
      indexed.insert(node.key);
      MarkBelow(d_.groups[node.group_index]->id(), node.position);
    }
    for (const BlockKey& key : query.keys) MarkBelowKey(group, key, indexed.contains(key));
  }
  UnindexedTaken taken;
  for (const BlockKey& key : query.keys) {
    adoption_.EraseKey(TagOf(group), key, &taken);
    if (left_ != nullptr) left_->EraseLeftKey(group, key, &taken);
  }
  return Take(&taken, reply);
}

// Memory and drives need not have the same blocks of a chain. How deep a key lies that neither has
// nobody knows: anything but a first block may continue it, as everything here has lost its parent.
void UnindexedEviction::MarkBelowKey(const std::optional<GroupId>& group, const BlockKey& key,
                                     bool is_indexed) {
  const std::optional<uint64_t> parked = adoption_.EraseBelowKey(TagOf(group), key);
  std::optional<uint64_t> left;
  if (left_ != nullptr) left = left_->MarkLeftBelow(group, key);
  if (is_indexed) return;
  if (!parked) adoption_.Erase(TagOf(group), left.value_or(0) + 1);
  if (!left && left_ != nullptr) left_->MarkLeft(group, parked.value_or(0) + 1);
}

bool UnindexedEviction::GoOn(protocol::EvictReply* reply) {
  UnindexedTaken taken;
  return Take(&taken, reply);
}

void UnindexedEviction::MarkBelow(const GroupId& group, uint64_t position) {
  adoption_.Erase(group.low, position + 1);
  if (left_ != nullptr) left_->MarkLeft(group, position + 1);
}

bool UnindexedEviction::Take(UnindexedTaken* taken, protocol::EvictReply* reply) {
  uint32_t budget = protocol::kBlocksPerTurnMax;
  bool is_through = adoption_.DropErased(&budget, taken);
  if (left_ != nullptr) is_through &= left_->EraseLeft(&budget, taken);
  reply->block_count += taken->block_count;
  reply->byte_count += taken->byte_count;
  d_.counters.blocks_evicted += taken->block_count;
  return is_through;
}

}  // namespace terrace

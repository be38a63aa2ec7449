#include "daemon/rule/unindexed_eviction.h"

namespace terrace {

std::optional<uint64_t> UnindexedEviction::TagOf(uint32_t group_index) const {
  if (group_index == kAllGroups) return std::nullopt;
  return d_.groups[group_index]->id().low;
}

bool UnindexedEviction::EvictAll(uint32_t group_index, protocol::EvictReply* reply) {
  adoption_.Erase(TagOf(group_index));
  Adoption::Taken taken;
  return Drop(&taken, reply);
}

bool UnindexedEviction::EvictKeys(const KeysQuery& query, std::span<const BlockId> found,
                                  protocol::EvictReply* reply) {
  const std::optional<uint64_t> tag = TagOf(query.group_index);
  const bool is_subtree = (query.flags & protocol::kEvictSubtree) != 0;
  Adoption::Taken taken;
  for (const BlockKey& key : query.keys) {
    if (is_subtree) adoption_.EraseBelowKey(tag, key);
    adoption_.EraseKey(tag, key, &taken);
  }
  for (const BlockId id : found) {
    if (!is_subtree) break;
    const RadixIndex::Node& node = d_.index.node(id);
    adoption_.Erase(TagOf(node.group_index), uint64_t{node.position} + 1);
  }
  return Drop(&taken, reply);
}

bool UnindexedEviction::Drop(Adoption::Taken* taken, protocol::EvictReply* reply) {
  uint32_t budget = protocol::kBlocksPerTurnMax;
  const bool is_through = adoption_.DropErased(&budget, taken);
  reply->block_count += taken->block_count;
  reply->byte_count += taken->byte_count;
  d_.counters.blocks_evicted += taken->block_count;
  return is_through;
}

}  // namespace terrace

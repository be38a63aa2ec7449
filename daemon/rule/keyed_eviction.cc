#include "daemon/rule/keyed_eviction.h"

#include "daemon/index/tree_walk.h"

namespace terrace {

uint64_t BytesOf(const CacheDomain& domain, const Block& block) {
  const Group& group = *domain.groups[block.group_index];
  uint64_t byte_count = 0;
  const auto count = [&](const BlockCopy& copy) {
    if (copy.row == kRowNone) return;
    if ((copy.member_mask & group.local_mask()) == group.local_mask()) {
      byte_count += group.block_bytes();
      return;
    }
    for (const LocalMember& local : group.locals()) {
      if ((copy.member_mask >> local.member) & 1) byte_count += local.slot_bytes;
    }
  };
  count(block.dram);
  for (const BlockCopy& copy : block.lower) count(copy);
  return byte_count;
}

void KeyedEviction::EvictKeys(const std::vector<BlockId>& ids, protocol::EvictReply* reply) {
  for (size_t i = ids.size(); i-- > 0;) {
    const BlockId id = ids[i];
    const RadixIndex::Node node = d_.index.node(id);
    // A key may be given twice.
    if (!node.is_live || gone_.contains(id)) continue;
    const auto gone = children_gone_.find(id);
    const bool is_leaf = node.child_count == (gone == children_gone_.end() ? 0 : gone->second);
    if (!is_leaf || !MayGo(id)) {
      if (skipped_.insert(id).second) ++reply->skipped_count;
      EraseBefore(id);
      continue;
    }
    // It had a child when its key was given before.
    if (skipped_.erase(id) != 0) --reply->skipped_count;
    if (options_.is_dry_run) {
      gone_.insert(id);
      if (node.parent != kBlockNone) ++children_gone_[node.parent];
    }
    Count(id, reply);
  }
}

Result<bool> KeyedEviction::EvictWalked(uint64_t walk, protocol::EvictReply* reply) {
  // In a pass that begins again something else may lie below.
  const TreeWalks::IsPast is_past = [this, walk](BlockId id) {
    return seen_.Has(id) && d_.walks.passes(walk) == 0;
  };
  uint32_t budget = protocol::kBlocksPerTurnMax;
  bool is_done = false;
  while (budget > 0 && !is_done) {
    const BlockId id = d_.walks.Next(walk, &budget, &is_done, is_past);
    if (id != kBlockNone) VisitWalked(id, reply);
  }
  if (is_done && d_.walks.has_left_out(walk)) return Busy();
  return is_done;
}

Status KeyedEviction::Busy() {
  return Status(StatusCode::kBusy,
                "blocks came and went all the while, and some may be left: ask again");
}

void KeyedEviction::VisitWalked(BlockId id, protocol::EvictReply* reply) {
  const RadixIndex::Node node = d_.index.node(id);
  const bool has_children = options_.is_dry_run ? keeps_child_.Has(id) : node.child_count > 0;
  const bool goes = !has_children && MayGo(id);
  const bool was_seen = seen_.Has(id);
  if (goes && was_seen) {  // it was skipped, before it could go
    --reply->skipped_count;
    seen_.Remove(id);
  }
  if (!goes || options_.is_dry_run) seen_.Add(id);
  if (goes) return Count(id, reply);
  if (was_seen) return;
  ++reply->skipped_count;
  EraseBefore(id);
  if (options_.is_dry_run && node.parent != kBlockNone) keeps_child_.Add(node.parent);
}

// Transfers and checks under way hold nobody up: what they touch goes when they end.
bool KeyedEviction::MayGo(BlockId id) const {
  const Block& b = d_.block(id);
  return b.phase == BlockPhase::kSealed && d_.index.pin_count(id) == 0 && !b.is_kept();
}

// Of what is only being written the shared tier may have what was written before.
void KeyedEviction::EraseBefore(BlockId id) {
  const bool is_new = d_.block(id).phase == BlockPhase::kReserved;
  if (is_new && !options_.is_dry_run && !options_.is_all) shared_.Erase(id);
}

void KeyedEviction::Count(BlockId id, protocol::EvictReply* reply) {
  ++reply->block_count;
  reply->byte_count += BytesOf(d_, d_.block(id));
  if (options_.is_dry_run) return;
  ++d_.counters.blocks_evicted;
  if (!options_.is_all) shared_.Erase(id);
  const EraseCauseScope scope(d_, protocol::MissCause::kOperator);
  residency_.lifecycle.Erase(id, StatusCode::kNotFound);
}

}  // namespace terrace

// Blocks that leave together: the end of a path whose only copies are in DRAM, when several are
// wanted gone at once.
#include "daemon/residency.h"

namespace terrace {

// Nothing keeps it but the block behind it in its run.
bool Residency::MayGoWithNext(BlockId id) const {
  const Block& b = d_.block(id);
  return b.phase == BlockPhase::kSealed && b.dram.state == CopyState::kReady &&
         b.dram_children == 1 && b.job_count == 0 && b.fence_count == 0 && !b.is_pinned &&
         !b.is_inherited && b.waiters == kHandleNone;
}

uint32_t Residency::DropTail(BlockRange run) {
  const BlockId last = run.first + run.block_count - 1;
  const Block& tip = d_.block(last);
  if (!d_.lower.empty() || !tip.is_dram_candidate || tip.waiters != kHandleNone) return 0;
  BlockId first = last;
  while (first > run.first && MayGoWithNext(first - 1)) --first;
  if (first == last) return 0;

  const BlockId parent = d_.index.node(first).parent;
  const uint32_t block_count =
      d_.dram_policy->EraseVictims({.first = first, .block_count = last - first + 1});
  const bool has_left_some = last - block_count + 1 > first;
  first = last - block_count + 1;
  for (BlockId id = last; id + block_count > last; --id) {
    Block& b = d_.block(id);
    d_.forgotten.Remember(b.group_index, d_.index.node(id).key, d_.erase_cause, d_.NowUs());
    d_.walks.OnErase(id);
    if (b.expiry != kHandleNone) d_.seams.deadlines.Remove(b.expiry);
    FreeSlots(id, b.dram.member_mask);
    Group& group = d_.group_of(b);
    group.slots().Give(b.dram.row);
    group.roots().Give(b.roots_row);
    d_.admission->OnErase(id);
    b = Block{};
    d_.readiness[id] = kReadyForNone;
    if (d_.is_watched) d_.changed.push_back(id);
    if (id == 0) break;
  }
  d_.counters.blocks_evicted += block_count;
  d_.index.EraseTail({.first = first, .block_count = block_count}, d_.dram_policy->Victim());
  const BlockId next = has_left_some ? first - 1 : parent;
  if (next == kBlockNone) return block_count;
  --d_.block(next).dram_children;
  // EraseVictims has said so of what it left.
  d_.block(next).is_dram_candidate |= has_left_some;
  Refresh(next);
  return block_count;
}

}  // namespace terrace

// Blocks that leave together: the end of a path whose only copies are in DRAM, when several are
// wanted gone at once.
#include "daemon/block/residency.h"
#include "terrace/check.h"

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
  Leave({.first = first, .block_count = block_count});
  for (BlockId id = last + 1; id-- > first;) {
    Block& b = d_.block(id);
    FreeSlots(id, b.dram.member_mask);
    Group& group = d_.group_of(b);
    group.slots().Give(b.dram.row);
    group.roots().Give(b.roots_row);
    d_.admission->OnErase(id);
    TERRACE_CHECK(b.kv_event_places == 0, "what has gone was told to be gone");
    b = Block{};
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

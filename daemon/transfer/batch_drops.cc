#include "daemon/transfer/batch_drops.h"

#include "terrace/check.h"

namespace terrace {

bool BatchDrops::Begin(BlockId id, uint32_t tier, uint32_t local_index) {
  Batch& batch = batches_[tier];
  if (!batch.drops.empty()) return true;
  if (!batch.may_begin) return false;
  const LocalMember& local = d_.group_of(d_.block(id)).locals()[local_index];
  std::vector<uint32_t> owners;
  d_.lower[tier].tier->AppendOwnersToDrop(local.slot_bytes, local.part_count, &owners);
  for (const uint32_t owner : owners) {
    TERRACE_CHECK(owner < d_.index.id_count(), "a tier names owners that it was told");
    batch.drops.push_back(evictor_.WalkFrom(owner));
  }
  batch.has_dropped = false;
  return !owners.empty();
}

// What is held or pinned stays: the tier may name others another time.
bool BatchDrops::Step(uint32_t tier) {
  Batch& batch = batches_[tier];
  if (batch.drops.empty()) return false;
  uint32_t budget = kPerStepMax * SubtreeWalk::kDropCost;
  while (!batch.drops.empty() && budget > 0) {
    SubtreeWalk& walk = batch.drops.front();
    --budget;
    const Block& b = d_.block(walk.top);
    if (b.commit_id == walk.top_commit && b.phase == BlockPhase::kSealed &&
        b.lower[tier].row != kRowNone) {
      const WalkEnd end = evictor_.DropLowerSubtree(tier, &walk, &budget);
      if (end == WalkEnd::kBudget) return false;
      batch.has_dropped |= end == WalkEnd::kAllGone;
    }
    batch.drops.pop_front();
  }
  if (!batch.drops.empty()) return false;
  batch.may_begin = batch.has_dropped;
  return true;
}

}  // namespace terrace

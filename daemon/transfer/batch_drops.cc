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
  Fill(tier, owners);
  batch.is_given = false;
  return !owners.empty();
}

void BatchDrops::Fill(uint32_t tier, std::span<const uint32_t> owners) {
  for (const uint32_t owner : owners) {
    TERRACE_CHECK(owner < d_.index.id_count(), "a tier names owners that it was told");
    batches_[tier].drops.push_back(evictor_.WalkFrom(owner));
  }
  batches_[tier].has_dropped = false;
}

void BatchDrops::Tick(uint32_t tier) {
  Batch& batch = batches_[tier];
  batch.may_begin = true;
  if (!batch.drops.empty()) return;
  std::vector<uint32_t> owners;
  d_.lower[tier].tier->AppendOwnersToGive(&owners);
  Fill(tier, owners);
  batch.is_given = true;
}

// What is held or pinned stays: the tier may name others another time.
bool BatchDrops::Step(uint32_t tier) {
  Batch& batch = batches_[tier];
  if (batch.drops.empty()) return false;
  uint32_t budget = kPerStepMax * SubtreeWalk::kDropCost;
  const Evictor::Pins pins = batch.is_given ? Evictor::Pins::kGive : Evictor::Pins::kHold;
  const EraseCauseScope scope(d_, batch.is_given ? protocol::MissCause::kQuota : d_.erase_cause);
  while (!batch.drops.empty() && budget > 0) {
    SubtreeWalk& walk = batch.drops.front();
    --budget;
    const Block& b = d_.block(walk.top);
    if (b.commit_id == walk.top_commit && b.phase == BlockPhase::kSealed &&
        b.lower[tier].row != kRowNone) {
      const WalkEnd end = evictor_.DropLowerSubtree(tier, pins, &walk, &budget);
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

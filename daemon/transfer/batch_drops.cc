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
    batches_[tier].drops.push_back({.block = owner, .commit_id = d_.block(owner).commit_id});
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
  uint32_t budget = kPerStepMax;
  const Evictor::Pins pins = batch.is_given ? Evictor::Pins::kGive : Evictor::Pins::kHold;
  const EraseCauseScope scope(d_, batch.is_given ? protocol::MissCause::kQuota : d_.erase_cause);
  while (!batch.drops.empty() && budget > 0) {
    const Drop drop = batch.drops.front();
    const Block& b = d_.block(drop.block);
    --budget;
    if (b.commit_id == drop.commit_id && b.phase == BlockPhase::kSealed &&
        b.lower[tier].row != kRowNone) {
      const bool is_dropped = evictor_.DropLowerSubtree(drop.block, tier, pins, &budget);
      batch.has_dropped |= is_dropped;
      if (!is_dropped && budget == 0) return false;  // goes on with the rest of the subtree
    }
    batch.drops.pop_front();
  }
  if (!batch.drops.empty()) return false;
  batch.may_begin = batch.has_dropped;
  return true;
}

}  // namespace terrace

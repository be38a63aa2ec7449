// What nobody waits for: a tier's health, copies given up together, records that say something new.
#include <algorithm>
#include <iterator>

#include "daemon/mover.h"

namespace terrace {

void Mover::LookAtHealth(uint32_t tier) {
  d_.lower[tier].is_off = !d_.lower[tier].tier->stats().is_healthy;
}

void Mover::OnRoom() {
  for (uint32_t t = 0; t < queues_.size(); ++t) {
    LookAtHealth(t);
    queues_[t].is_room_awaited = false;
  }
  Step();
}

void Mover::RequeueUnshelved() {
  for (TierQueue& queue : queues_) {
    std::move(queue.unshelved.begin(), queue.unshelved.end(), std::back_inserter(queue.writes));
    queue.unshelved.clear();
  }
}

void Mover::OnShelfChanged() {
  RequeueUnshelved();
  Step();
}

void Mover::Tick() {
  for (uint32_t t = 0; t < queues_.size(); ++t) {
    d_.lower[t].tier->Tick();
    queues_[t].may_drop_together = true;
  }
  RequeueUnshelved();
  OnRoom();  // a word that was missed costs one period
}

bool Mover::FreeTogether(BlockId id, uint32_t tier, uint32_t local_index) {
  TierQueue& queue = queues_[tier];
  if (!queue.drops.empty()) return true;
  if (!queue.may_drop_together) return false;
  const LocalMember& local = d_.group_of(d_.block(id)).locals()[local_index];
  std::vector<uint32_t> owners;
  d_.lower[tier].tier->AppendOwnersToDrop(local.slot_bytes, local.part_count, &owners);
  for (const uint32_t owner : owners) {
    queue.drops.push_back({.block = owner, .commit_id = d_.block(owner).commit_id});
  }
  queue.has_dropped = false;
  return !owners.empty();
}

// What is held or pinned stays: the tier may name others another time.
void Mover::StepDrops(uint32_t tier) {
  TierQueue& queue = queues_[tier];
  if (queue.drops.empty()) return;
  uint32_t budget = kDropsPerStepMax;
  while (!queue.drops.empty() && budget > 0) {
    const QueuedWrite drop = queue.drops.front();
    const Block& b = d_.block(drop.block);
    --budget;
    if (b.commit_id == drop.commit_id && b.phase == BlockPhase::kSealed &&
        b.lower[tier].row != kRowNone) {
      const bool is_dropped = evictor_.DropLowerSubtree(drop.block, tier, &budget);
      queue.has_dropped |= is_dropped;
      if (!is_dropped && budget == 0) return;  // goes on with the rest of the subtree
    }
    queue.drops.pop_front();
  }
  if (!queue.drops.empty()) return;
  queue.may_drop_together = queue.has_dropped;
  queue.is_room_awaited = false;
}

void Mover::StepAmends() {
  for (uint32_t i = 0; i < kAmendsPerStepMax && may_amend(); ++i) {
    const BlockId id = d_.amends.front();
    d_.amends.pop_front();
    Block& b = d_.block(id);
    const BlockCopy& copy = b.lower[d_.persistent_tier];
    // Dropped meanwhile, or written anew: then the end of that asks again.
    if (!b.is_amend_due || copy.state != CopyState::kReady) continue;
    b.is_amend_due = false;
    Group& group = d_.group_of(b);
    for (size_t local = 0; local < group.locals().size(); ++local) {
      if (!((copy.member_mask >> group.locals()[local].member) & 1)) continue;
      d_.lower[d_.persistent_tier].tier->Amend(group.extents().at(copy.row)[local],
                                               d_.RecordOf(id, group.locals()[local]));
    }
  }
}

}  // namespace terrace

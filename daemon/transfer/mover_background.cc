// What nobody waits for: a tier's health, reading ahead, copies given up together, records that say
// something new.
#include <algorithm>
#include <iterator>

#include "daemon/transfer/mover.h"

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

// ---- reading ahead ----

bool Mover::MayReadAhead(BlockId id) const {
  const Block& b = d_.block(id);
  return b.phase == BlockPhase::kSealed && b.dram.state == CopyState::kNone && b.has_roots &&
         !residency_.IsExpired(id) && d_.FastestTier(b) != kLowerTiersMax;
}

// Where chains part, the one that was used last.
BlockId Mover::NextInChain(BlockId id) const {
  BlockId next = kBlockNone;
  uint32_t looked_at = 0;
  for (BlockId child = d_.index.node(id).first_child;
       child != kBlockNone && looked_at < kAheadSiblingsMax;
       child = d_.index.node(child).next_sibling, ++looked_at) {
    if (d_.block(child).phase != BlockPhase::kSealed) continue;
    if (next == kBlockNone || d_.index.touched_us(child) > d_.index.touched_us(next)) next = child;
  }
  return next;
}

void Mover::ReadAhead(BlockId tip) {
  const uint64_t now_us = d_.NowUs();
  if (d_.block(tip).phase != BlockPhase::kSealed) return;
  for (uint32_t i = 0; i < d_.limits.read_ahead_blocks; ++i) {
    tip = NextInChain(tip);
    if (tip == kBlockNone) return;
    const Block& b = d_.block(tip);
    if (b.dram.state != CopyState::kNone) continue;  // there, or on its way
    if (!MayReadAhead(tip)) return;
    std::deque<QueuedAhead>& ahead = queues_[d_.FastestTier(b)].ahead;
    if (ahead.size() >= kAheadQueuedMax) return;
    ahead.push_back({.block = tip, .commit_id = b.commit_id, .asked_us = now_us});
  }
}

Status Mover::TakeSlotsAhead(const QueuedAhead& ahead, uint64_t member_mask) {
  const BlockId id = ahead.block;
  // Nobody is short of what nobody has asked for.
  const bool was_short = d_.is_short;
  uint32_t short_class = 0;
  Status status = residency_.TakeSlots(id, member_mask, &short_class);
  for (uint32_t i = 0; i < kAheadEvictionsMax && !status.ok(); ++i) {
    const BlockId victim = d_.dram_policy->Victim();
    if (victim == kBlockNone) break;
    const Block& v = d_.block(victim);
    const bool is_clean = residency_.HasOtherCopy(v, v.dram);
    if (!is_clean || v.group_index != d_.block(id).group_index ||
        d_.index.touched_us(victim) >= ahead.asked_us) {
      break;
    }
    residency_.DropDram(victim);
    status = residency_.TakeSlots(id, member_mask, &short_class);
  }
  d_.is_short = was_short;
  return status;
}

void Mover::StepAhead(uint32_t tier) {
  TierQueue& queue = queues_[tier];
  while (!queue.ahead.empty() && queue.ahead_in_flight < kAheadInFlightMax) {
    const QueuedAhead next = queue.ahead.front();
    queue.ahead.pop_front();
    const BlockId id = next.block;
    if (d_.block(id).commit_id != next.commit_id || !MayReadAhead(id)) continue;
    if (d_.FastestTier(d_.block(id)) != tier) continue;
    // Its parent may be the coldest of all until its child is in.
    const BlockId parent = d_.index.node(id).parent;
    residency_.Hold(id, HoldKind::kJob);
    if (parent != kBlockNone) residency_.Hold(parent, HoldKind::kJob);
    const Status status = TakeSlotsAhead(next, d_.block(id).lower[tier].member_mask);
    if (parent != kBlockNone) residency_.LetGo(parent, HoldKind::kJob);
    if (status.ok()) {
      ++d_.counters.read_ahead_blocks;
      ++queue.ahead_in_flight;
      d_.block(id).is_read_ahead = true;
      d_.block(id).fill_tier = static_cast<uint8_t>(tier);
      const uint32_t number = TakeJob({.block = id,
                                       .tier = tier,
                                       .run = kRunAhead,
                                       .sequence = next_sequence_++,
                                       .is_ahead = true});
      reads_[id] = number;
      Enqueue(number);
    }
    residency_.LetGo(id, HoldKind::kJob);
    if (!status.ok()) return queue.ahead.clear();
    if (!StepReads(tier)) return;
  }
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

#include "daemon/transfer/read_ahead.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {

bool ReadAhead::MayRead(BlockId id) const {
  const Block& b = d_.block(id);
  return b.phase == BlockPhase::kSealed && b.dram.state == CopyState::kNone && b.has_roots &&
         !residency_.candidates.IsExpired(id) && d_.FastestTier(b) != kLowerTiersMax;
}

// Where chains part, the one that was used last.
BlockId ReadAhead::NextInChain(BlockId id) const {
  BlockId next = kBlockNone;
  uint32_t looked_at = 0;
  for (BlockId child = d_.index.node(id).first_child;
       child != kBlockNone && looked_at < kSiblingsMax;
       child = d_.index.node(child).next_sibling, ++looked_at) {
    if (d_.block(child).phase != BlockPhase::kSealed) continue;
    if (next == kBlockNone || d_.index.touched_us(child) > d_.index.touched_us(next)) next = child;
  }
  return next;
}

void ReadAhead::Queue(BlockId tip) {
  const uint64_t now_us = d_.NowUs();
  if (d_.block(tip).phase != BlockPhase::kSealed) return;
  for (uint32_t i = 0; i < d_.limits.read_ahead_blocks; ++i) {
    tip = NextInChain(tip);
    if (tip == kBlockNone) return;
    if (!QueueOne(tip, now_us)) return;
  }
}

void ReadAhead::QueueLeft(std::span<const BlockId> left) {
  const uint64_t now_us = d_.NowUs();
  const size_t count_max = std::max<size_t>(d_.limits.read_ahead_blocks, 1);
  for (const BlockId id : left.first(std::min(left.size(), count_max))) {
    if (!QueueOne(id, now_us)) return;
  }
}

bool ReadAhead::QueueOne(BlockId id, uint64_t asked_us) {
  const Block& b = d_.block(id);
  if (b.dram.state != CopyState::kNone) return true;  // there, or on its way
  if (!MayRead(id)) return false;
  std::deque<Queued>& queue = queues_[d_.FastestTier(b)];
  if (queue.size() >= kQueuedMax) return false;
  queue.push_back({.block = id, .commit_id = b.commit_id, .asked_us = asked_us});
  return true;
}

Status ReadAhead::TakeSlots(const Queued& queued, uint32_t tier) {
  const BlockId id = queued.block;
  const uint64_t member_mask = d_.block(id).lower[tier].member_mask;
  const FillFrom from{.source = FillSource::kTier, .tier = tier, .is_ahead = true};
  uint32_t short_class = 0;
  Status status = residency_.dram.TakeSlots(id, member_mask, from, &short_class);
  for (uint32_t i = 0; i < kEvictionsMax && !status.ok(); ++i) {
    const BlockId victim = d_.dram_policy->Victim();
    if (victim == kBlockNone) break;
    const Block& v = d_.block(victim);
    const bool is_clean = residency_.candidates.HasOtherCopy(v, v.dram);
    if (!is_clean || v.group_index != d_.block(id).group_index ||
        d_.index.touched_us(victim) >= queued.asked_us) {
      break;
    }
    residency_.lifecycle.DropDram(victim);
    status = residency_.dram.TakeSlots(id, member_mask, from, &short_class);
  }
  return status;
}

Status ReadAhead::TakeSlotsBelowParent(const Queued& queued, uint32_t tier) {
  const BlockId parent = d_.index.node(queued.block).parent;
  if (parent == kBlockNone) return TakeSlots(queued, tier);
  residency_.holds.Hold(parent, HoldKind::kJob);
  const Status status = TakeSlots(queued, tier);
  residency_.holds.LetGo(parent, HoldKind::kJob);
  return status;
}

void ReadAhead::Step(uint32_t tier) {
  TERRACE_CHECK(!promotions_.has_work(tier), "what was asked for is read first");
  std::deque<Queued>& queue = queues_[tier];
  while (!queue.empty() && promotions_.ahead_in_flight(tier) < kInFlightMax) {
    const Queued next = queue.front();
    queue.pop_front();
    const BlockId id = next.block;
    if (d_.block(id).commit_id != next.commit_id || !MayRead(id)) continue;
    if (d_.FastestTier(d_.block(id)) != tier) continue;
    residency_.holds.Hold(id, HoldKind::kJob);
    const Status status = TakeSlotsBelowParent(next, tier);
    if (status.ok()) {
      ++d_.counters.read_ahead_blocks;
      promotions_.BeginAhead(id, tier);
    }
    residency_.holds.LetGo(id, HoldKind::kJob);
    if (!status.ok()) return queue.clear();
    if (!promotions_.Step(tier)) return;
  }
}

}  // namespace terrace

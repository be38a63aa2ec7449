#include "daemon/transfer/batch_drops.h"

#include <algorithm>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint32_t kSiblingsMax = 64;  // looked at for one in DRAM
constexpr uint32_t kRefillCost = 128;  // of a turn's budget: a tier looks at many places

}  // namespace

bool BatchDrops::Begin(BlockId id, uint32_t tier, uint32_t local_index) {
  Batch& batch = batches_[tier];
  if (!batch.drops.empty() || batch.is_giving) return true;
  if (!batch.may_begin) return batch.goes_again;
  const LocalMember& local = d_.group_of(d_.block(id)).locals()[local_index];
  std::vector<uint32_t> owners;
  d_.lower[tier].tier->AppendOwnersToDrop(local.slot_bytes, local.part_count, &owners);
  batch.has_dropped = false;
  Fill(batch, owners);
  return !owners.empty();
}

void BatchDrops::Fill(Batch& batch, std::span<const uint32_t> owners) {
  for (const uint32_t owner : owners) {
    TERRACE_CHECK(owner < d_.index.id_count(), "a tier names owners that it was told");
    batch.drops.push_back({.walk = evictor_.WalkFrom(owner)});
  }
}

void BatchDrops::Refill(uint32_t tier) {
  std::vector<uint32_t> owners;
  batches_[tier].has_more = d_.lower[tier].tier->AppendOwnersToGive(&owners);
  Fill(batches_[tier], owners);
}

bool BatchDrops::IsThere(const Drop& drop, uint32_t tier) const {
  const Block& b = d_.block(drop.walk.top);
  return b.commit_id == drop.walk.top_commit && b.phase == BlockPhase::kSealed &&
         (drop.is_in_dram ? b.dram.row : b.lower[tier].row) != kRowNone;
}

BlockId BatchDrops::ChildInTheWay(BlockId id, uint32_t tier) const {
  const Block& b = d_.block(id);
  if (b.lower[tier].state != CopyState::kReady || b.lower_children[tier] > 0 || d_.IsHeld(id)) {
    return kBlockNone;
  }
  bool has_other_copy = b.dram.row != kRowNone;
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    has_other_copy |= t != tier && b.lower[t].row != kRowNone;
  }
  if (has_other_copy) return kBlockNone;
  BlockId child = d_.index.node(id).first_child;
  for (uint32_t i = 0; i < kSiblingsMax && child != kBlockNone; ++i) {
    if (d_.block(child).dram.row != kRowNone) return child;
    child = d_.index.node(child).next_sibling;
  }
  return kBlockNone;
}

void BatchDrops::Tick(uint32_t tier) {
  Batch& batch = batches_[tier];
  batch.may_begin = true;
  batch.goes_again = false;
  // A drive that answers no write any more keeps nothing from leaving.
  if (std::exchange(batch.is_waiting, false) || !batch.drops.empty() || batch.has_more) return;
  Refill(tier);
  batch.is_giving = batch.is_waiting = batch.has_work();
  batch.pass_count = batch.is_giving ? batch.pass_count + 1 : 0;
  batch.has_dropped = false;
}

// What is held stays, and what is pinned of a batch that nobody else waits for: the tier may name
// others another time.
bool BatchDrops::Step(uint32_t tier, uint32_t writes_in_flight, uint32_t* budget) {
  Batch& batch = batches_[tier];
  if (writes_in_flight == 0) batch.is_waiting = false;
  if (!batch.has_work() || batch.is_waiting) return false;
  const Evictor::Pins pins = batch.is_giving ? Evictor::Pins::kGive : Evictor::Pins::kHold;
  const EraseCauseScope scope(d_, batch.is_giving ? protocol::MissCause::kQuota : d_.erase_cause);
  while (*budget > 0) {
    if (batch.drops.empty()) {
      if (!batch.has_more) break;
      *budget -= std::min(*budget, kRefillCost);
      Refill(tier);
      continue;
    }
    --*budget;
    const Drop whole = batch.drops.front();
    if (!IsThere(whole, tier)) {
      batch.drops.pop_front();
      continue;
    }
    SubtreeWalk& walk = batch.drops.front().walk;
    const WalkEnd end = whole.is_in_dram ? evictor_.DropDramSubtree(pins, &walk, budget)
                                         : evictor_.DropLowerSubtree(tier, pins, &walk, budget);
    if (end == WalkEnd::kBudget) return false;
    const BlockId held = walk.held;
    batch.has_dropped |= end == WalkEnd::kAllGone;
    batch.goes_again |= end == WalkEnd::kHeld && tier == d_.persistent_tier && d_.is_scrubbing;
    batch.drops.pop_front();
    if (end != WalkEnd::kHeld || !batch.is_giving) continue;
    if (whole.is_in_dram) {
      batch.drops.pop_front();  // what it was in the way of stays as well
    } else if (batch.pass_count % 2 == 1) {
      held_.push_back(held);
    } else if (const BlockId child = ChildInTheWay(held, tier); child != kBlockNone) {
      batch.drops.push_front({.walk = evictor_.WalkFrom(whole.walk.top)});
      batch.drops.push_front({.walk = evictor_.WalkFrom(child), .is_in_dram = true});
    }
  }
  if (!batch.drops.empty() || batch.has_more) return false;
  batch.is_giving = false;
  batch.may_begin = batch.has_dropped && !batch.goes_again;
  return true;
}

}  // namespace terrace

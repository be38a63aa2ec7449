#include "daemon/residency/evictor.h"

#include <algorithm>

namespace terrace {

BlockId Evictor::Insert(const NewBlock& block) {
  BlockId id = residency_.lifecycle.Reserve(block);
  if (id != kBlockNone) return id;
  // blocks_max ids are in use: the least wanted of the lowest tier makes room.
  for (uint32_t t = static_cast<uint32_t>(d_.lower.size()); t-- > 0;) {
    const BlockId victim = d_.lower[t].policy->Victim();
    if (t == d_.device_tier || victim == kBlockNone || !MayEvict(victim) ||
        victim == block.parent) {
      continue;
    }
    Evict(victim);
    return residency_.lifecycle.Reserve(block);
  }
  const BlockId victim = d_.dram_policy->Victim();
  if (victim != kBlockNone && MayEvict(victim) && victim != block.parent) {
    Evict(victim);
    return residency_.lifecycle.Reserve(block);
  }
  if (d_.device_tier == kLowerTiersMax) return kBlockNone;
  const BlockId last = d_.lower[d_.device_tier].policy->Victim();
  if (last == kBlockNone || !MayEvict(last) || last == block.parent) return kBlockNone;
  Evict(last);
  return residency_.lifecycle.Reserve(block);
}

Status Evictor::TakeSlots(BlockId id, uint64_t member_mask, const FillFrom& from,
                          Newcomer newcomer) {
  uint32_t demotions_left = kDemotionsPerBlockMax;
  uint32_t short_class = 0;
  bool has_compacted = false;
  bool has_trimmed = false;
  for (uint32_t tries = 0; tries <= kEvictionsPerBlockMax; ++tries) {
    const Status status = residency_.dram.TakeSlots(id, member_mask, from, &short_class);
    if (status.ok()) {
      expected_count_ = std::max(expected_count_, 2u) - 1;
      return status;
    }
    if (!has_trimmed) {
      has_trimmed = true;
      const BlockId oldest = d_.dram_policy->Victim();
      if (TrimWindow(id, short_class)) continue;
      if (oldest != kBlockNone && TrimWindow(oldest, short_class)) continue;
    }
    if (newcomer == Newcomer::kMayPassBy && d_.dram_policy->PassesBy()) {
      return Status(StatusCode::kNotFound, "all that is there is likelier to be asked for");
    }
    // Slots of another size help only by the extent: a thinly used one is emptied at once.
    const BlockId victim = d_.dram_policy->Victim();
    const bool is_foreign =
        victim == kBlockNone || d_.block(victim).group_index != d_.block(id).group_index;
    if (is_foreign && !has_compacted) {
      has_compacted = true;
      if (Compact(short_class, kThinShareDivisor)) continue;
    }
    if (!EvictSomeFromDram(is_foreign ? 1 : expected_count_, &demotions_left)) break;
  }
  if (Compact(short_class, 1)) {
    const Status status = residency_.dram.TakeSlots(id, member_mask, from, &short_class);
    if (status.ok()) return status;
  }
  return Status(StatusCode::kNoSpace, "no slot is free, and nothing more may be evicted for it");
}

bool Evictor::TrimWindow(BlockId tip, uint32_t class_index) {
  const LocalMember* windowed = nullptr;
  for (const LocalMember& local : d_.group_of(d_.block(tip)).locals()) {
    if (local.class_index == class_index && local.window_blocks > 0) windowed = &local;
  }
  if (windowed == nullptr || windowed->window_blocks > kTrimWindowMax) return false;
  // One more than the window: `tip` may be a block that is only being written, and the prefix
  // before it should stay useful. Where chains part, others may end, and need their windows.
  uint32_t distance = 0;
  uint32_t trimmed_count = 0;
  for (BlockId id = d_.index.node(tip).parent;
       id != kBlockNone && d_.index.node(id).child_count == 1; id = d_.index.node(id).parent) {
    if (++distance <= windowed->window_blocks) continue;
    if (distance > windowed->window_blocks + kTrimBlocksMax) break;
    const Block& b = d_.block(id);
    if (b.phase != BlockPhase::kSealed || b.dram.state != CopyState::kReady || d_.IsHeld(id) ||
        b.is_inherited || !((b.dram.member_mask >> windowed->member) & 1)) {
      continue;
    }
    residency_.dram.DropMember(id, windowed->member);
    ++trimmed_count;
  }
  return trimmed_count > 0;
}

bool Evictor::EvictSomeFromDram(uint32_t at_once_max, uint32_t* demotions_left) {
  while (true) {
    const BlockId victim = d_.dram_policy->Victim();
    if (victim == kBlockNone) return false;
    if (*demotions_left > 0 && writer_ != nullptr && writer_->TryDemote(victim)) {
      --*demotions_left;
      continue;
    }
    const uint32_t count = std::min(
        {victim - d_.index.runs().RunAt(victim).first + 1, at_once_max, kEvictionsAtOnceMax});
    if (residency_.lifecycle.DropTail({.first = victim + 1 - count, .block_count = count}) == 0) {
      residency_.lifecycle.DropDram(victim);
    }
    return true;
  }
}

Status Evictor::TakeExtents(BlockId id, uint32_t tier) {
  // The parent may be the tier's next victim until its child is in.
  const BlockId parent = d_.index.node(id).parent;
  if (parent != kBlockNone) residency_.holds.Hold(parent, HoldKind::kJob);
  const Status status = TakeExtentsHeld(id, tier);
  if (parent != kBlockNone) residency_.holds.LetGo(parent, HoldKind::kJob);
  return status;
}

// Of tiers whose places come in shapes only places of the same shape help; of others any do. Which
// it is shows when the least wanted of all has gone.
Status Evictor::TakeExtentsHeld(BlockId id, uint32_t tier) {
  const auto frees_together = [&](uint32_t local) {
    return writer_ != nullptr && writer_->FreeTogether(id, tier, local);
  };
  const Status room_comes(StatusCode::kBusy, "room is being made");
  uint32_t short_local = 0;
  uint32_t foreign_count = 0;
  Status status = residency_.lower.TakeExtents(id, tier, &short_local);
  for (uint32_t tries = 0; tries < kEvictionsPerBlockMax; ++tries) {
    if (status.code() != StatusCode::kNoSpace) return status;
    const LocalMember& local = d_.group_of(d_.block(id)).locals()[short_local];
    BlockId victim = d_.lower[tier].policy->Victim();
    if (victim == kBlockNone) {
      // What is being scrubbed may go in a moment, and may be all there is. The next tick looks.
      if (tier == d_.persistent_tier && d_.is_scrubbing) return room_comes;
      break;
    }
    if (!HasShape(victim, local)) {
      if (frees_together(short_local)) return room_comes;
      const BlockId like = foreign_count == 0 ? kBlockNone : VictimOfShape(tier, local);
      if (like != kBlockNone) {
        victim = like;
      } else if (foreign_count++ >= kForeignEvictionsMax) {
        return status;
      }
    }
    d_.admission->OnDropBelow(d_.NowUs() - d_.index.touched_us(victim));
    residency_.lifecycle.DropLower(victim, tier, DropReason::kNotWanted);
    status = residency_.lower.TakeExtents(id, tier, &short_local);
  }
  if (status.code() == StatusCode::kNoSpace && frees_together(short_local)) return room_comes;
  return status;
}

Result<Extent> Evictor::TakeExtentToMove(BlockId id, uint32_t tier, const LocalMember& local) {
  for (uint32_t tries = 0; tries < kEvictionsPerMoveMax; ++tries) {
    Result<Extent> extent =
        d_.lower[tier].tier->Allocate(d_.domain_index, local.slot_bytes, local.part_count);
    if (extent.code() != StatusCode::kNoSpace) return extent;
    BlockId victim = d_.lower[tier].policy->Victim();
    if (victim != kBlockNone && !HasShape(victim, local)) victim = VictimOfShape(tier, local);
    if (victim == kBlockNone) return extent.status();
    if (victim == id) return Status(StatusCode::kNotFound, "the block is what is least wanted");
    d_.admission->OnDropBelow(d_.NowUs() - d_.index.touched_us(victim));
    residency_.lifecycle.DropLower(victim, tier, DropReason::kNotWanted);
  }
  return Status(StatusCode::kBusy, "more has to go before there is room");
}

BlockId Evictor::VictimOfShape(uint32_t tier, const LocalMember& local) {
  EvictionPolicy& policy = *d_.lower[tier].policy;
  std::vector<BlockId> passed;
  BlockId victim = policy.Victim();
  while (victim != kBlockNone && !HasShape(victim, local)) {
    if (passed.size() == kCandidatesPassedMax) {
      victim = kBlockNone;
      break;
    }
    policy.OnHeld(victim);
    passed.push_back(victim);
    victim = policy.Victim();
  }
  for (const BlockId id : passed) policy.OnCandidate(id);
  return victim;
}

bool Evictor::HasShape(BlockId id, const LocalMember& local) const {
  for (const LocalMember& own : d_.group_of(d_.block(id)).locals()) {
    if (own.slot_bytes == local.slot_bytes && own.part_count == local.part_count) return true;
  }
  return false;
}

bool Evictor::MayEvict(BlockId id) const {
  const Block& b = d_.block(id);
  return b.phase == BlockPhase::kSealed && !d_.IsHeld(id) && !b.is_kept() &&
         d_.index.node(id).child_count == 0;
}

bool Evictor::Evict(BlockId id) {
  if (!MayEvict(id)) return false;
  ++d_.counters.blocks_evicted;
  residency_.lifecycle.Erase(id, StatusCode::kNotFound);
  return true;
}

BlockId Evictor::BlockIn(const SlotRef& slot) const {
  const SlotRow& row = d_.slots.row(slot);
  const auto is_it = [&](uint32_t group_index) {
    const Group* const group =
        group_index < d_.groups.size() ? d_.groups[group_index].get() : nullptr;
    return group != nullptr && group->id().low == row.block.group_tag;
  };
  // Slots that lie together are of one group, mostly.
  if (!is_it(last_group_index_)) {
    last_group_index_ = 0;
    while (last_group_index_ < d_.groups.size() && !is_it(last_group_index_)) ++last_group_index_;
  }
  const BlockId id = d_.index.Find(last_group_index_, row.block.key);
  return id != kBlockNone && d_.block(id).commit_id == row.block.commit_id ? id : kBlockNone;
}

// ---- subtrees ----

namespace {

struct DramOfSubtree {
  bool Has(BlockId id) const { return d.block(id).dram.row != kRowNone; }
  uint32_t ChildCount(BlockId id) const { return d.block(id).dram_children; }
  bool IsHeld(BlockId id) const { return d.IsHeld(id); }
  bool MayGo(BlockId id) const {
    return pins == Evictor::Pins::kGive ? residency.candidates.MayLeaveDram(id)
                                        : residency.candidates.MayDropDram(id);
  }
  void Drop(BlockId id) const { residency.lifecycle.DropDram(id); }

  const CacheDomain& d;
  Residency& residency;
  Evictor::Pins pins;
};

struct LowerOfSubtree {
  bool Has(BlockId id) const { return d.block(id).lower[tier].row != kRowNone; }
  uint32_t ChildCount(BlockId id) const { return d.block(id).lower_children[tier]; }
  bool IsHeld(BlockId id) const { return d.block(id).job_count > 0; }
  bool MayGo(BlockId id) const {
    return pins == Evictor::Pins::kGive ? residency.candidates.MayLeaveLower(id, tier)
                                        : residency.candidates.MayDropLower(id, tier);
  }
  void Drop(BlockId id) const { residency.lifecycle.DropLower(id, tier, DropReason::kNotWanted); }

  const CacheDomain& d;
  Residency& residency;
  uint32_t tier;
  Evictor::Pins pins;
};

void Pay(uint32_t cost, uint32_t* budget) { *budget -= std::min(cost, *budget); }

bool IsSame(const CacheDomain& d, BlockId id, CommitId commit_id) {
  return id < d.index.id_count() && d.index.node(id).is_live && d.block(id).commit_id == commit_id;
}

void StandOn(const CacheDomain& d, BlockId id, BlockId next, SubtreeWalk* walk) {
  walk->at = id;
  walk->at_commit = d.block(id).commit_id;
  walk->next = next;
}

// Looks at one child of where the walk stands, and goes down to it if it has a copy.
template <typename Tier>
void LookAtChild(const Tier& tier, SubtreeWalk* walk) {
  const RadixIndex& index = tier.d.index;
  const bool goes_on = walk->next != kBlockNone && index.node(walk->next).is_live &&
                       index.node(walk->next).parent == walk->at;
  const BlockId child = goes_on ? walk->next : index.node(walk->at).first_child;
  if (tier.Has(child)) return StandOn(tier.d, child, kBlockNone, walk);
  walk->next = index.node(child).next_sibling;
}

// Drops the copy of a block that has no child in the tier. False: that was the subtree's top.
template <typename Tier>
bool DropLeaf(const Tier& tier, SubtreeWalk* walk) {
  const RadixIndex::Node leaf = tier.d.index.node(walk->at);
  const bool is_top = walk->at == walk->top;
  tier.Drop(walk->at);
  if (is_top) return false;
  StandOn(tier.d, leaf.parent, leaf.next_sibling, walk);
  return true;
}

template <typename Tier>
WalkEnd DropSubtree(const Tier& tier, SubtreeWalk* walk, uint32_t* budget) {
  const auto end = [walk](WalkEnd how) {
    walk->End();
    return how;
  };
  const auto held = [&](BlockId id) {
    walk->End();
    walk->held = id;
    return WalkEnd::kHeld;
  };
  while (*budget > 0) {
    if (!IsSame(tier.d, walk->top, walk->top_commit) || !tier.Has(walk->top)) {
      return end(WalkEnd::kAllGone);
    }
    if (!IsSame(tier.d, walk->at, walk->at_commit) || !tier.Has(walk->at)) {
      StandOn(tier.d, walk->top, kBlockNone, walk);
    }
    Pay(1, budget);
    // A lease holds a chain from its root: what is below the top goes only if the top may.
    if (tier.IsHeld(walk->top)) return held(walk->top);
    if (tier.ChildCount(walk->at) > 0) {
      LookAtChild(tier, walk);
      continue;
    }
    if (!tier.MayGo(walk->at)) return held(walk->at);
    Pay(SubtreeWalk::kDropCost - 1, budget);
    if (!DropLeaf(tier, walk)) return end(WalkEnd::kAllGone);
  }
  return WalkEnd::kBudget;
}

}  // namespace

SubtreeWalk Evictor::WalkFrom(BlockId id) const {
  return {.top = id, .top_commit = d_.block(id).commit_id};
}

WalkEnd Evictor::DropDramSubtree(Pins pins, SubtreeWalk* walk, uint32_t* budget) {
  return DropSubtree(DramOfSubtree{d_, residency_, pins}, walk, budget);
}

WalkEnd Evictor::DropLowerSubtree(uint32_t tier, Pins pins, SubtreeWalk* walk, uint32_t* budget) {
  return DropSubtree(LowerOfSubtree{d_, residency_, tier, pins}, walk, budget);
}

bool Evictor::Compact(uint32_t class_index, uint64_t share_divisor) {
  scratch_slots_.clear();
  const uint64_t run_bytes = d_.slots.SlotsInEmptiestExtent(class_index, &scratch_slots_);
  uint64_t used_bytes = 0;
  for (const SlotRef& slot : scratch_slots_) used_bytes += BytesOf(slot);
  if (run_bytes == 0 || used_bytes * share_divisor > run_bytes) return false;
  uint32_t budget = kCompactionBlocksMax * SubtreeWalk::kDropCost;
  for (const SlotRef& slot : scratch_slots_) {
    // An earlier drop may have taken this slot's block along.
    if (!d_.slots.IsCurrent(slot)) continue;
    const BlockId id = BlockIn(slot);
    if (id == kBlockNone) return false;
    SubtreeWalk walk = WalkFrom(id);
    if (DropDramSubtree(Pins::kHold, &walk, &budget) != WalkEnd::kAllGone) return false;
  }
  return true;
}

uint64_t Evictor::BytesOf(const SlotRef& slot) const {
  const BlockId id = BlockIn(slot);
  if (id == kBlockNone) return 0;
  const LocalMember* local = d_.group_of(d_.block(id)).FindLocal(d_.slots.row(slot).block.member);
  return local == nullptr ? 0 : local->slot_bytes;
}

}  // namespace terrace

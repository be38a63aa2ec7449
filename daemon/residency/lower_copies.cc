#include "daemon/residency/lower_copies.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "terrace/check.h"

namespace terrace {

Status LowerCopies::TakeExtents(BlockId id, uint32_t tier, uint32_t* short_local) {
  const Block& b = d_.block(id);
  Group& group = d_.group_of(b);
  TERRACE_CHECK(b.lower[tier].state == CopyState::kNone && b.dram.is_readable(),
                "a copy is written from DRAM, once");
  const uint32_t row = group.extents().Take();
  const std::span<Extent> extents = group.extents().at(row);
  const std::span<const LocalMember> locals = group.locals();
  for (uint32_t i = 0; i < locals.size(); ++i) {
    if (!((b.dram.member_mask >> locals[i].member) & 1)) continue;
    const Result<Extent> extent =
        d_.lower[tier].tier->Allocate(d_.domain_index, locals[i].slot_bytes, locals[i].part_count);
    if (!extent.ok()) {
      *short_local = i;
      for (uint32_t j = 0; j < i; ++j) {
        if (extents[j].length_bytes > 0) d_.lower[tier].tier->Free(extents[j]);
      }
      group.extents().Give(row);
      return extent.status();
    }
    extents[i] = *extent;
  }
  PartOf(id).lower[tier] = {
      .member_mask = b.dram.member_mask,
      .row = row,
      .state = CopyState::kFilling,
      .unpersisted_count = static_cast<uint8_t>(std::popcount(b.dram.member_mask)),
  };
  CountWithParent(id, tier, 1);
  candidates_.EnterLower(id, tier, d_.NowUs());
  return Status::Ok();
}

void LowerCopies::EndFill(BlockId id, uint32_t tier, bool is_good) {
  const Block& b = d_.block(id);
  TERRACE_CHECK(b.lower[tier].state == CopyState::kFilling, "I3: a write ends once");
  if (!is_good || b.phase != BlockPhase::kSealed) {
    Free(id, tier, DropReason::kNotWanted);
    if (b.phase == BlockPhase::kSealed) candidates_.Refresh(id);
    return;
  }
  PartOf(id).lower[tier].state = CopyState::kReady;
  ++d_.lower[tier].block_count.of_owner();
  if (b.lower[tier].unpersisted_count == 0) ++d_.lower[tier].persisted_block_count.of_owner();
  if (tier == d_.persistent_tier) updates_.OnCopyReady(id);
  candidates_.Refresh(id);
}

void LowerCopies::EndPersist(BlockId id, CommitId commit_id, uint32_t member) {
  if (id >= d_.index.id_count() || d_.persistent_tier == kLowerTiersMax) return;
  const Block& b = d_.block(id);
  const BlockCopy& copy = b.lower[d_.persistent_tier];
  if (b.phase != BlockPhase::kSealed || b.commit_id != commit_id ||
      !((copy.member_mask >> member) & 1)) {
    return;
  }
  TERRACE_CHECK(copy.unpersisted_count > 0, "a write is persisted once");
  if (--PartOf(id).lower[d_.persistent_tier].unpersisted_count > 0) return;
  if (copy.state == CopyState::kReady)
    ++d_.lower[d_.persistent_tier].persisted_block_count.of_owner();
  observers_.waiting->OnBlockPersisted(id);
}

bool LowerCopies::IsPersisted(BlockId id) const {
  if (d_.persistent_tier == kLowerTiersMax) return false;
  const BlockCopy& copy = d_.block(id).lower[d_.persistent_tier];
  return copy.is_readable() && copy.unpersisted_count == 0;
}

// ---- restoring ----

void LowerCopies::BeginRestore(BlockId id, uint32_t tier) {
  BlockCopy& copy = PartOf(id).lower[tier];
  TERRACE_CHECK(copy.state == CopyState::kNone, "a copy is restored once");
  copy = {.row = d_.group_of(d_.block(id)).extents().Take(), .state = CopyState::kFilling};
}

bool LowerCopies::RestoreMember(BlockId id, uint32_t tier, const LocalMember& local,
                                const Extent& extent) {
  BlockCopy& copy = PartOf(id).lower[tier];
  const uint64_t bit = uint64_t{1} << local.member;
  if (copy.row == kRowNone || (copy.member_mask & bit)) return false;
  Group& group = d_.group_of(d_.block(id));
  copy.member_mask |= bit;
  group.extents().at(copy.row)[static_cast<size_t>(&local - group.locals().data())] = extent;
  return true;
}

void LowerCopies::EndRestore(BlockId id, uint32_t tier) {
  BlockCopy& copy = PartOf(id).lower[tier];
  TERRACE_CHECK(copy.state == CopyState::kFilling, "a restored copy becomes readable once");
  copy.state = CopyState::kReady;
  ++d_.lower[tier].block_count.of_owner();
  ++d_.lower[tier].persisted_block_count.of_owner();
  candidates_.EnterLower(id, tier, d_.block(id).created_us);
}

void LowerCopies::GiveUpRestore(BlockId id, uint32_t tier) {
  BlockCopy& copy = PartOf(id).lower[tier];
  TERRACE_CHECK(copy.state == CopyState::kFilling, "what is readable is not given up");
  Group& group = d_.group_of(d_.block(id));
  for (const Extent& extent : group.extents().at(copy.row)) {
    if (extent.length_bytes > 0) d_.lower[tier].tier->Free(extent);
  }
  group.extents().Give(copy.row);
  copy = {};
}

// ---- leaving ----

void LowerCopies::Move(BlockId id, uint32_t tier, uint32_t local_index, const Extent& to) {
  const Block& b = d_.block(id);
  TERRACE_CHECK(b.lower[tier].state == CopyState::kReady && !d_.IsReadInPlace(id, tier),
                "I2: a copy that is used stays where it is");
  Extent& place = d_.group_of(b).extents().at(b.lower[tier].row)[local_index];
  d_.lower[tier].tier->Free(std::exchange(place, to));
}

void LowerCopies::Free(BlockId id, uint32_t tier, DropReason reason) {
  LowerPart& part = PartOf(id);
  const Block& b = d_.block(id);
  TERRACE_CHECK(b.lower[tier].row != kRowNone, "there is a copy to be freed");
  LowerTier& lower = d_.lower[tier];
  for (Extent& extent : d_.group_of(b).extents().at(b.lower[tier].row)) {
    if (extent.length_bytes == 0) continue;
    if (reason == DropReason::kBadBytes) {
      lower.tier->Quarantine(extent);
    } else {
      lower.tier->Free(extent);
    }
  }
  if (tier == d_.persistent_tier) {
    updates_.OnCopyGone(id);
    if (b.phase == BlockPhase::kErased) d_.erased_below.Remove(id);
  }
  candidates_.LeaveLower(id, tier);
  if (b.lower[tier].state == CopyState::kReady) {
    TERRACE_CHECK(lower.block_count > 0, "copies below are counted");
    --lower.block_count.of_owner();
    if (b.lower[tier].unpersisted_count == 0) --lower.persisted_block_count.of_owner();
  }
  d_.group_of(b).extents().Give(b.lower[tier].row);
  part.lower[tier] = {};
  CountWithParent(id, tier, -1);
}

void LowerCopies::FreeErased(BlockId id) {
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (d_.block(id).lower[t].row == kRowNone || d_.IsReadInPlace(id, t)) continue;
    Free(id, t, DropReason::kNotWanted);
  }
}

void LowerCopies::OnErased(BlockId id) {
  LowerPart& part = PartOf(id);
  std::ranges::fill(part.lower_children, 0);
  if (d_.block(id).job_count == 0 || d_.persistent_tier == kLowerTiersMax) return;
  if (part.lower[d_.persistent_tier].row != kRowNone) d_.erased_below.Add(id);
}

// ---- children ----

void LowerCopies::CountChild(BlockId parent, const Block& child, int32_t by) {
  LowerPart& part = PartOf(parent);
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (child.lower[t].row == kRowNone) continue;
    TERRACE_CHECK(by > 0 || part.lower_children[t] > 0, "I5: children below are counted");
    part.lower_children[t] += by;
  }
}

void LowerCopies::CountWithParent(BlockId id, uint32_t tier, int32_t by) {
  const RadixIndex::Node& node = d_.index.node(id);
  if (!node.is_live || node.parent == kBlockNone) return;
  LowerPart& part = PartOf(node.parent);
  TERRACE_CHECK(by > 0 || part.lower_children[tier] > 0, "I5: children below are counted");
  part.lower_children[tier] += by;
  candidates_.Refresh(node.parent);
}

}  // namespace terrace

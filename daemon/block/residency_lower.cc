// The copies below DRAM; the rest is residency.cc.
#include <bit>

#include "daemon/block/residency.h"
#include "terrace/check.h"

namespace terrace {

Status Residency::TakeExtents(BlockId id, uint32_t tier, uint32_t* short_local) {
  Block& b = d_.block(id);
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
  b.lower[tier] = {
      .member_mask = b.dram.member_mask,
      .row = row,
      .state = CopyState::kFilling,
      .unpersisted_count = static_cast<uint8_t>(std::popcount(b.dram.member_mask)),
  };
  const BlockId parent = d_.index.node(id).parent;
  if (parent != kBlockNone) {
    ++d_.block(parent).lower_children[tier];
    Refresh(parent);
  }
  d_.lower[tier].policy->OnInsert(id, d_.TraitsOf(id), d_.NowUs());
  return Status::Ok();
}

void Residency::EndLowerFill(BlockId id, uint32_t tier, bool is_good) {
  Block& b = d_.block(id);
  TERRACE_CHECK(b.lower[tier].state == CopyState::kFilling, "I3: a write ends once");
  if (!is_good || b.phase != BlockPhase::kSealed) {
    FreeExtents(id, tier);
    if (b.phase == BlockPhase::kSealed) Refresh(id);
    return;
  }
  b.lower[tier].state = CopyState::kReady;
  ++d_.lower[tier].block_count;
  if (b.lower[tier].unpersisted_count == 0) ++d_.lower[tier].persisted_block_count;
  if (tier == d_.persistent_tier && b.is_amend_due) d_.amends.push_back(id);
  Refresh(id);
}

void Residency::Amend(BlockId id) {
  Block& b = d_.block(id);
  if (d_.persistent_tier == kLowerTiersMax || b.is_amend_due) return;
  const CopyState state = b.lower[d_.persistent_tier].state;
  if (state == CopyState::kNone) return;  // its record will say what holds then
  b.is_amend_due = true;
  if (state == CopyState::kReady) d_.amends.push_back(id);
}

void Residency::EndPersist(BlockId id, CommitId commit_id, uint32_t member) {
  if (id >= d_.index.id_count() || d_.persistent_tier == kLowerTiersMax) return;
  Block& b = d_.block(id);
  BlockCopy& copy = b.lower[d_.persistent_tier];
  if (b.phase != BlockPhase::kSealed || b.commit_id != commit_id ||
      !((copy.member_mask >> member) & 1)) {
    return;
  }
  TERRACE_CHECK(copy.unpersisted_count > 0, "a write is persisted once");
  if (--copy.unpersisted_count > 0) return;
  if (copy.state == CopyState::kReady) ++d_.lower[d_.persistent_tier].persisted_block_count;
  observer_->OnBlockPersisted(id);
}

bool Residency::IsPersisted(BlockId id) const {
  if (d_.persistent_tier == kLowerTiersMax) return false;
  const BlockCopy& copy = d_.block(id).lower[d_.persistent_tier];
  return copy.is_readable() && copy.unpersisted_count == 0;
}

void Residency::DropLower(BlockId id, uint32_t tier, DropReason reason) {
  Block& b = d_.block(id);
  TERRACE_CHECK(b.lower[tier].state == CopyState::kReady && b.job_count == 0,
                "I3: no transfer touches a copy that is dropped");
  TERRACE_CHECK(!d_.IsReadInPlace(id, tier), "I2: what is held is not freed");
  FreeExtents(id, tier, reason);
  if (b.phase != BlockPhase::kSealed) return;
  if (b.dram.state == CopyState::kNone && !HasOtherCopy(b, b.dram)) {
    ++d_.counters.blocks_evicted;
    const bool is_bad = reason == DropReason::kBadBytes;
    const Because because(d_, is_bad ? protocol::MissCause::kCorrupt : d_.erase_cause);
    Erase(id, StatusCode::kNotFound);
    return;
  }
  Refresh(id);
}

// What nobody can find has no business below, whoever still reads its slots; but who reads it on
// the device reads its extents.
void Residency::FreeErasedExtents(BlockId id) {
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (d_.block(id).lower[t].row == kRowNone || d_.IsReadInPlace(id, t)) continue;
    FreeExtents(id, t);
  }
}

void Residency::FreeExtents(BlockId id, uint32_t tier, DropReason reason) {
  Block& b = d_.block(id);
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
    b.is_amend_due = false;
    if (b.phase == BlockPhase::kErased) d_.erased_below.Remove(id);
  }
  if (b.is_lower_candidate[tier]) {
    lower.policy->OnHeld(id);
    b.is_lower_candidate[tier] = false;
  }
  lower.policy->OnErase(id);
  if (b.lower[tier].state == CopyState::kReady) {
    --lower.block_count;
    if (b.lower[tier].unpersisted_count == 0) --lower.persisted_block_count;
  }
  d_.group_of(b).extents().Give(b.lower[tier].row);
  b.lower[tier] = {};
  const RadixIndex::Node& node = d_.index.node(id);
  if (node.is_live && node.parent != kBlockNone) {
    --d_.block(node.parent).lower_children[tier];
    Refresh(node.parent);
  }
}

}  // namespace terrace

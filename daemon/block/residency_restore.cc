// Copies that outlived the last process become blocks again.
#include <algorithm>

#include "daemon/block/residency.h"
#include "terrace/check.h"
#include "terrace/checksum.h"

namespace terrace {
namespace {

// Says all that is needed to serve the member's bytes: a promotion is believed because of its
// checksums only.
bool Describes(const BlockRecord& record, const LocalMember& local, const Extent& extent) {
  const auto is_known = [](const Checksum& root) { return !root.is_zero(); };
  return record.space == local.space && record.commit_id != 0 &&
         extent.length_bytes == local.slot_bytes &&
         record.part_checksums.size() == local.part_count &&
         std::all_of(record.part_checksums.begin(), record.part_checksums.end(), is_known);
}

}  // namespace

BlockId Residency::Restore(uint32_t group_index, uint32_t tier, const BlockRecord& record,
                           const Extent& extent) {
  Group& group = *d_.groups[group_index];
  const std::span<const LocalMember> locals = group.locals();
  const auto local = std::find_if(locals.begin(), locals.end(),
                                  [&](const LocalMember& l) { return l.member == record.member; });
  if (local == locals.end() || !Describes(record, *local, extent)) return kBlockNone;
  const uint64_t unix_s = d_.seams.clock.UnixSeconds();
  if (record.expires_at_s != 0 && record.expires_at_s <= unix_s) return kBlockNone;

  BlockId id = d_.index.Find(group_index, record.key);
  if (id == kBlockNone) {
    id = d_.index.Insert(group_index, record.key, record.position);
    if (id == kBlockNone) return kBlockNone;
    d_.blocks.Reach(id);
    Block& b = d_.block(id);
    b = Block{};
    b.phase = BlockPhase::kSealed;
    b.group_index = group_index;
    b.commit_id = record.commit_id;
    b.event_hash = record.event_hash;
    b.created_us = d_.NowUs();
    d_.index.Touch({id, 1}, b.created_us);
    b.roots_row = group.roots().Take();
    b.recompute_ns_per_token = record.recompute_ns_per_token;
    b.priority = std::min(record.priority, protocol::kPriorityMax);
    b.is_pinned = record.is_pinned;
    b.has_roots = true;
    if (record.expires_at_s != 0) {
      b.expires_us = d_.NowUs() + (record.expires_at_s - unix_s) * kUsPerSecond;
    }
    b.lower[tier] = {.row = group.extents().Take(), .state = CopyState::kFilling};
  }
  Block& b = d_.block(id);
  const uint64_t bit = uint64_t{1} << record.member;
  // One block never mixes two commits.
  if (b.commit_id != record.commit_id || d_.index.node(id).position != record.position ||
      b.lower[tier].row == kRowNone || (b.lower[tier].member_mask & bit)) {
    return kBlockNone;
  }
  b.lower[tier].member_mask |= bit;
  group.extents().at(b.lower[tier].row)[static_cast<size_t>(local - locals.begin())] = extent;
  std::copy(record.part_checksums.begin(), record.part_checksums.end(),
            d_.roots_of(b).begin() + local->first_root);
  return id;
}

bool Residency::KeepIfWhole(BlockId id, uint32_t tier) {
  Block& b = d_.block(id);
  Group& group = d_.group_of(b);
  if ((b.lower[tier].member_mask & group.full_mask()) == group.full_mask()) return true;
  for (const Extent& extent : group.extents().at(b.lower[tier].row)) {
    if (extent.length_bytes > 0) d_.lower[tier].tier->Free(extent);
  }
  group.extents().Give(b.lower[tier].row);
  group.roots().Give(b.roots_row);
  TERRACE_CHECK(b.kv_event_places == 0, "nobody was told of it yet");
  b = Block{};
  d_.index.Erase(id);
  d_.index.Recycle(id);
  return false;
}

void Residency::EndRestore(BlockId id, uint32_t tier) {
  Block& b = d_.block(id);
  TERRACE_CHECK(b.phase == BlockPhase::kSealed && b.lower[tier].state == CopyState::kFilling,
                "a restored copy becomes readable once");
  b.lower[tier].state = CopyState::kReady;
  ++d_.lower[tier].block_count;
  ++d_.lower[tier].persisted_block_count;
  d_.lower[tier].policy->OnInsert(id, d_.TraitsOf(id), b.created_us);
  if (b.expires_us != kNever) AddExpiry(id);
  Refresh(id);
}

}  // namespace terrace

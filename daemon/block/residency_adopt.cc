// DRAM copies that a predecessor left behind.
#include <algorithm>

#include "daemon/block/residency.h"
#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint64_t kExpiryLeftMaxS = uint64_t{1} << 32;  // what a row says may be anything

}  // namespace

BlockId Residency::Adopt(uint32_t group_index, std::span<const AdoptedMember> members) {
  Group& group = *d_.groups[group_index];
  const SlotIdentity row = d_.slots.row(members[0].slot).block;
  uint64_t member_mask = 0;
  for (const AdoptedMember& member : members) {
    if (group.FindLocal(member.member) == nullptr) return kBlockNone;
    member_mask |= uint64_t{1} << member.member;
  }
  if ((member_mask & group.full_mask()) != group.full_mask()) return kBlockNone;
  const uint64_t unix_s = d_.seams.clock.UnixSeconds();
  if (row.expires_at_s != 0 && row.expires_at_s <= unix_s) return kBlockNone;
  BlockId id = d_.index.Find(group_index, row.key);
  if (id != kBlockNone) {
    const Block& known = d_.block(id);
    // One block never mixes two commits: who was restored from below, or was stored since, stays.
    if (known.phase != BlockPhase::kSealed || known.commit_id != row.commit_id ||
        known.dram.state != CopyState::kNone || d_.index.node(id).position != row.position) {
      return kBlockNone;
    }
  }
  const std::span<const LocalMember> locals = group.locals();
  for (const AdoptedMember& member : members) {
    const LocalMember* local = group.FindLocal(member.member);
    if (!d_.slots.Claim(member.slot, local->class_index)) return kBlockNone;
  }
  if (id == kBlockNone) {
    id = InsertAdopted(group_index, row);
    if (id == kBlockNone) return kBlockNone;
  }
  Block& b = d_.block(id);
  b.is_inherited = true;
  b.dram = {
      .member_mask = member_mask, .row = group.slots().Take(), .state = CopyState::kUnverified};
  const std::span<SlotRef> refs = d_.slots_of(b);
  for (const AdoptedMember& member : members) {
    refs[static_cast<size_t>(group.FindLocal(member.member) - locals.data())] = member.slot;
  }
  const BlockId parent = d_.index.node(id).parent;
  if (parent != kBlockNone) {
    ++d_.block(parent).dram_children;
    Refresh(parent);
  } else if (!row.parent.is_zero()) {
    const BlockId above = d_.index.Find(group_index, row.parent);
    if (above != kBlockNone) Link(id, above);
  }
  d_.dram_policy->OnInsert(id, d_.TraitsOf(id), d_.NowUs());
  Refresh(id);
  return id;
}

// Believed no further than its key: the bytes are compared before anybody gets them.
BlockId Residency::InsertAdopted(uint32_t group_index, const SlotIdentity& row) {
  const BlockId id = d_.index.Insert(group_index, row.key, row.position);
  if (id == kBlockNone) return kBlockNone;
  d_.blocks.Reach(id);
  Block& b = d_.block(id);
  b = Block{};
  b.phase = BlockPhase::kSealed;
  b.group_index = group_index;
  b.commit_id = row.commit_id;
  b.event_hash = row.event_hash;
  b.writer_uid = row.writer_uid;
  b.created_us = d_.NowUs();
  d_.index.Touch({id, 1}, b.created_us);
  b.roots_row = d_.group_of(b).roots().Take();
  b.recompute_ns_per_token = row.recompute_ns_per_token;
  b.priority = std::min(row.priority, protocol::kPriorityMax);
  b.is_pinned = row.flags & kSlotPinned;
  b.is_no_store = row.flags & kSlotNoStore;
  b.has_roots = true;  // their digest, which is as good until they are computed
  if (row.expires_at_s != 0) {
    const uint64_t left_s = row.expires_at_s - d_.seams.clock.UnixSeconds();
    b.expires_us = d_.NowUs() + std::min(left_s, kExpiryLeftMaxS) * kUsPerSecond;
    AddExpiry(id);
  }
  return id;
}

void Residency::BeginVerify(BlockId id) {
  Block& b = d_.block(id);
  TERRACE_CHECK(b.dram.state == CopyState::kUnverified, "an adopted copy is verified once");
  b.dram.state = CopyState::kFilling;
  b.fill_tier = kFillTierNone;
  Refresh(id);
}

void Residency::Disinherit(BlockId id) {
  Block& b = d_.block(id);
  b.is_inherited = false;
  if (b.phase == BlockPhase::kSealed) Refresh(id);
}

void Residency::Inherit(const SlotRef& slot) {
  d_.slots.row(slot).state = SlotState::kFenced;
  d_.inherited_slots.push_back(slot);
  d_.inherited_bytes += d_.slots.row(slot).slot_pages * kArenaPageBytes;
}

void Residency::FreeInherited() {
  const SlotRef slot = d_.inherited_slots.back();
  d_.inherited_slots.pop_back();
  d_.inherited_bytes -= d_.slots.row(slot).slot_pages * kArenaPageBytes;
  d_.slots.Free(slot);
}

}  // namespace terrace

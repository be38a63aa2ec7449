// How blocks are born.
#include <algorithm>
#include <utility>

#include "daemon/residency/lifecycle.h"
#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint64_t kExpiryLeftMaxS = uint64_t{1} << 32;  // what a row says may be anything

// Says all that is needed to serve the member's bytes: a promotion is believed because of its
// checksums only.
bool Describes(const BlockRecord& record, const LocalMember& local, const Extent& extent) {
  const auto is_known = [](const Checksum& root) { return !root.is_zero(); };
  return record.space == local.space && record.commit_id != 0 &&
         extent.length_bytes == local.slot_bytes &&
         record.part_checksums.size() == local.part_count &&
         std::all_of(record.part_checksums.begin(), record.part_checksums.end(), is_known);
}

bool IsPast(uint64_t expires_at_s, uint64_t unix_s) {
  return expires_at_s != 0 && expires_at_s <= unix_s;
}

}  // namespace

BlockId Lifecycle::Birth(const NewBlock& block, BlockPhase phase, const BlockMeta& meta) {
  const BlockId id = d_.index.Insert(block.group_index, block.key, block.position, block.parent);
  if (id == kBlockNone) return kBlockNone;
  d_.blocks.Clear(id, {});
  BlockLife& life = LifeOf(id);
  life.phase = phase;
  life.group_index = block.group_index;
  life.writer_session = block.writer_session;
  life.writer_uid = block.writer_uid;
  life.writer_lease = block.writer_lease;
  life.writer_entry = block.writer_entry;
  life.created_us = d_.NowUs();
  BlockMeta& said = d_.blocks.Change<BlockTerms>(id, {});
  said = meta;
  said.priority = std::min(meta.priority, protocol::kPriorityMax);
  hints_.OnBirth(id);
  d_.index.Touch({id, 1}, life.created_us);
  Group& group = *d_.groups[block.group_index];
  life.roots_row = group.roots().Take();
  d_.seams.work += 1 + group.root_count() / Group::kRootsPerLookup;
  candidates_.NoteReadiness(id);  // nobody may read it yet
  return id;
}

BlockId Lifecycle::Reserve(const NewBlock& block) {
  const BlockId id = Birth(block, BlockPhase::kReserved, {.event_hash = block.event_hash});
  if (id == kBlockNone) return kBlockNone;
  CommitId& commit_id = d_.blocks.Change<BlockTerms>(id, {}).commit_id;
  do {
    commit_id = d_.seams.random.Next();
  } while (commit_id == 0);
  d_.writer_classes.Add(block.writer_uid);
  protocol::Hints hints = block.hints;
  if (hints.ttl_s == 0) hints.ttl_s = d_.options.ttl_default_s;
  hints_.Apply(id, hints);
  if (const BlockId parent = d_.index.node(id).parent; parent != kBlockNone) {
    candidates_.Refresh(parent);
  }
  d_.admission->OnInsert(id, d_.TraitsOf(id), d_.NowUs());
  ++d_.reserved_count.of_owner();
  return id;
}

bool Lifecycle::Link(BlockId child, BlockId parent) {
  if (child == parent || !d_.index.Link(child, parent)) return false;
  d_.walks.OnLink();
  dram_.CountChild(parent, d_.block(child), 1);
  lower_.CountChild(parent, d_.block(child), 1);
  rows_.Update(child);
  candidates_.Refresh(parent);
  return true;
}

void Lifecycle::Expect(BlockId id) {
  TERRACE_CHECK(d_.block(id).phase == BlockPhase::kReserved, "only a new block is expected");
  LifeOf(id).phase = BlockPhase::kSealed;
  dram_.Expect(id);
  --d_.reserved_count.of_owner();
  candidates_.Refresh(id);
}

void Lifecycle::Describe(BlockId id, CommitId commit_id, uint64_t event_hash) {
  TERRACE_CHECK(d_.block(id).is_arriving(), "what can be read is what it is");
  BlockMeta& meta = d_.blocks.Change<BlockTerms>(id, {});
  meta.commit_id = commit_id;
  meta.event_hash = event_hash;
}

// Every checksum root of these members is known.
bool Lifecycle::AreAllRootsIn(BlockId id, uint64_t member_mask) const {
  const std::span<const Checksum> roots = d_.roots_of(d_.block(id));
  for (const LocalMember& local : d_.group_of(d_.block(id)).locals()) {
    if (!((member_mask >> local.member) & 1)) continue;
    for (uint32_t part = 0; part < local.part_count; ++part) {
      if (roots[local.first_root + part].is_zero()) return false;
    }
  }
  return true;
}

std::vector<SlotRef> Lifecycle::Seal(BlockId id, uint64_t member_mask) {
  TERRACE_CHECK(d_.block(id).phase == BlockPhase::kReserved, "I4: a Reserved block is sealed once");
  std::vector<SlotRef> slots_left = dram_.EndWrite(id, member_mask);
  BlockLife& life = LifeOf(id);
  life.phase = BlockPhase::kSealed;
  life.created_us = d_.NowUs();
  d_.index.Touch({id, 1}, life.created_us);
  --d_.reserved_count.of_owner();
  ++d_.counters.blocks_sealed;
  d_.counters.sealed_bytes += d_.group_of(d_.block(id)).block_bytes();
  if (AreAllRootsIn(id, member_mask)) dram_.RootsKnown(id);
  rows_.SetStates(id, SlotState::kSealed, 0);
  hints_.StartExpiry(id);  // if it passed unsealed
  candidates_.Refresh(id);
  observers_.waiting->OnBlockReady(id);
  return slots_left;
}

// ---- copies that outlived the last process ----

BlockId Lifecycle::Restore(uint32_t group_index, uint32_t tier, const BlockRecord& record,
                           const Extent& extent) {
  const LocalMember* const local = d_.groups[group_index]->FindLocal(record.member);
  if (local == nullptr || !Describes(record, *local, extent)) return kBlockNone;
  const uint64_t unix_s = d_.seams.clock.UnixSeconds();
  if (IsPast(record.expires_at_s, unix_s)) return kBlockNone;
  BlockId id = d_.index.Find(group_index, record.key);
  if (id == kBlockNone) {
    id = Birth({.group_index = group_index, .key = record.key, .position = record.position},
               BlockPhase::kSealed, record);
    if (id == kBlockNone) return kBlockNone;
    LifeOf(id).is_outlived = true;
    dram_.RootsPromised(id);
    if (record.expires_at_s != 0) {
      hints_.RestoreExpiry(id, d_.NowUs() + (record.expires_at_s - unix_s) * kUsPerSecond);
    }
    lower_.BeginRestore(id, tier);
  }
  const Block& b = d_.block(id);
  // One block never mixes two commits.
  if (b.commit_id != record.commit_id || d_.index.node(id).position != record.position ||
      !lower_.RestoreMember(id, tier, *local, extent)) {
    return kBlockNone;
  }
  std::copy(record.part_checksums.begin(), record.part_checksums.end(),
            d_.roots_of(b).begin() + local->first_root);
  return id;
}

bool Lifecycle::KeepIfWhole(BlockId id, uint32_t tier) {
  const uint64_t full_mask = d_.group_of(d_.block(id)).full_mask();
  if ((d_.block(id).lower[tier].member_mask & full_mask) == full_mask) return true;
  lower_.GiveUpRestore(id, tier);
  Leave({id, 1}, protocol::MissCause::kCold);
  d_.index.Erase(id);
  GiveIdBack(id);
  d_.index.Recycle(id);
  return false;
}

void Lifecycle::EndRestore(BlockId id, uint32_t tier) {
  TERRACE_CHECK(d_.block(id).phase == BlockPhase::kSealed,
                "a restored copy is of a block that can be found");
  lower_.EndRestore(id, tier);
  hints_.StartExpiry(id);
  candidates_.Refresh(id);
}

// ---- copies in DRAM that a predecessor left ----

BlockId Lifecycle::Adopt(uint32_t group_index, std::span<const AdoptedMember> members) {
  const Group& group = *d_.groups[group_index];
  const SlotIdentity row = d_.slots.row(members[0].slot).block;
  std::vector<SlotRef> slots(group.locals().size());
  uint64_t member_mask = 0;
  for (const AdoptedMember& member : members) {
    const LocalMember* const local = group.FindLocal(member.member);
    if (local == nullptr) return kBlockNone;
    member_mask |= uint64_t{1} << member.member;
    slots[static_cast<size_t>(local - group.locals().data())] = member.slot;
  }
  if ((member_mask & group.full_mask()) != group.full_mask()) return kBlockNone;
  if (IsPast(row.expires_at_s, d_.seams.clock.UnixSeconds())) return kBlockNone;
  BlockId id = d_.index.Find(group_index, row.key);
  if (id != kBlockNone) {
    const Block& known = d_.block(id);
    // One block never mixes two commits: who was restored from below, or was stored since, stays.
    if (known.phase != BlockPhase::kSealed || known.commit_id != row.commit_id ||
        known.dram.state != CopyState::kNone || d_.index.node(id).position != row.position) {
      return kBlockNone;
    }
  }
  for (const AdoptedMember& member : members) {
    const LocalMember* const local = group.FindLocal(member.member);
    if (!d_.slots.Claim(member.slot, local->class_index)) return kBlockNone;
  }
  if (id == kBlockNone) id = BirthOfAdopted(group_index, row);
  if (id == kBlockNone) return kBlockNone;
  dram_.Adopt(id, member_mask, slots);
  if (d_.index.node(id).parent == kBlockNone && !row.parent.is_zero()) {
    const BlockId above = d_.index.Find(group_index, row.parent);
    if (above != kBlockNone) Link(id, above);
  }
  candidates_.EnterDram(id);
  candidates_.Refresh(id);
  return id;
}

// Believed no further than its key: the bytes are compared before anybody gets them.
BlockId Lifecycle::BirthOfAdopted(uint32_t group_index, const SlotIdentity& row) {
  const BlockId id = Birth({.group_index = group_index,
                            .key = row.key,
                            .position = row.position,
                            .writer_uid = row.writer_uid},
                           BlockPhase::kSealed, MetaOf(row));
  if (id == kBlockNone) return kBlockNone;
  LifeOf(id).is_outlived = true;
  dram_.RootsPromised(id);  // their digest, which is as good until they are computed
  if (row.expires_at_s != 0) {
    const uint64_t left_s = row.expires_at_s - d_.seams.clock.UnixSeconds();
    hints_.RestoreExpiry(id, d_.NowUs() + std::min(left_s, kExpiryLeftMaxS) * kUsPerSecond);
    hints_.StartExpiry(id);
  }
  return id;
}

}  // namespace terrace

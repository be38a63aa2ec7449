#include "daemon/block/residency.h"

#include <algorithm>
#include <cstring>

#include "daemon/policy/wear_governor.h"
#include "terrace/check.h"
#include "terrace/checksum.h"

namespace terrace {
namespace {

uint64_t BitOf(const LocalMember& local) { return uint64_t{1} << local.member; }

// Ids of a run that follow each other, as ranges.
template <typename Visit>
void ForEachRange(std::span<const BlockId> run, const Visit& visit) {
  for (size_t i = 0; i < run.size();) {
    size_t end = i + 1;
    while (end < run.size() && run[end] == run[end - 1] + 1) ++end;
    visit(BlockRange{run[i], static_cast<uint32_t>(end - i)});
    i = end;
  }
}

}  // namespace

// ---- phases ----

BlockId Residency::Insert(const NewBlock& block) {
  const BlockId id = d_.index.Insert(block.group_index, block.key, block.position, block.parent);
  if (id == kBlockNone) return kBlockNone;
  d_.blocks.Reach(id);
  Block& b = d_.block(id);
  b = Block{};
  b.phase = BlockPhase::kReserved;
  d_.readiness[id] = kReadyForNone;
  b.group_index = block.group_index;
  do {
    b.commit_id = d_.seams.random.Next();
  } while (b.commit_id == 0);
  b.event_hash = block.event_hash;
  b.writer_session = block.writer_session;
  b.writer_uid = block.writer_uid;
  d_.writer_classes.Add(b.writer_uid);
  b.created_us = d_.NowUs();
  d_.index.Touch({id, 1}, b.created_us);
  b.roots_row = d_.group_of(b).roots().Take();
  ApplyHints(id, block.hints);
  if (const BlockId parent = d_.index.node(id).parent; parent != kBlockNone) Refresh(parent);
  d_.admission->OnInsert(id, d_.TraitsOf(id), d_.NowUs());
  ++d_.reserved_count;
  return id;
}

bool Residency::Link(BlockId child, BlockId parent) {
  if (child == parent || !d_.index.Link(child, parent)) return false;
  CountChild(parent, d_.block(child), 1);
  AmendRows(child);
  Refresh(parent);
  return true;
}

void Residency::ApplyHints(BlockId id, const protocol::Hints& hints) {
  Block& b = d_.block(id);
  if (hints.priority != protocol::kPriorityUnset) {
    if (b.priority != hints.priority) Amend(id);
    b.priority = std::min(hints.priority, protocol::kPriorityMax);
    if (b.dram.row != kRowNone) d_.dram_policy->SetPriority(id, b.priority);
    for (uint32_t t = 0; t < d_.lower.size(); ++t) {
      if (b.lower[t].row != kRowNone) d_.lower[t].policy->SetPriority(id, b.priority);
    }
  }
  if (hints.recompute_ns_per_token != 0) b.recompute_ns_per_token = hints.recompute_ns_per_token;
  if (hints.flags & protocol::kHintNoStore) b.is_no_store = true;
  if (hints.flags & protocol::kHintPin) SetPinned(id);
  if (hints.ttl_s != 0) {
    if (b.expiry != kHandleNone) d_.seams.deadlines.Remove(b.expiry);
    b.expires_us = d_.NowUs() + hints.ttl_s * kUsPerSecond;
    Amend(id);
    AddExpiry(id);
    NoteReadiness(id);
  }
  AmendRows(id);
}

void Residency::AddExpiry(BlockId id) {
  Block& b = d_.block(id);
  b.expiry = d_.seams.deadlines.Add({.due_us = b.expires_us,
                                     .kind = DeadlineKind::kBlockExpiry,
                                     .domain_index = d_.domain_index,
                                     .id = id});
}

void Residency::Seal(BlockId id, uint64_t member_mask) {
  Block& b = d_.block(id);
  TERRACE_CHECK(b.phase == BlockPhase::kReserved && b.dram.state == CopyState::kFilling,
                "I4: a Reserved block is sealed once");
  FreeSlots(id, b.dram.member_mask & ~member_mask);
  b.phase = BlockPhase::kSealed;
  b.dram.state = CopyState::kReady;
  b.created_us = d_.NowUs();
  d_.index.Touch({id, 1}, b.created_us);
  --d_.reserved_count;
  ++d_.counters.blocks_sealed;
  if (b.has_roots) RootsKnown(id);
  SetRowStates(id, SlotState::kSealed, 0);
  if (b.expires_us != kNever && b.expiry == kHandleNone) AddExpiry(id);  // it passed unsealed
  Refresh(id);
  observer_->OnBlockReady(id);
}

void Residency::Erase(BlockId id, StatusCode why) {
  Block& b = d_.block(id);
  TERRACE_CHECK(b.phase == BlockPhase::kReserved || b.phase == BlockPhase::kSealed,
                "a block is erased once");
  const BlockId parent = d_.index.node(id).parent;
  if (parent != kBlockNone) CountChild(parent, b, -1);
  Leave({id, 1});
  d_.index.Erase(id);
  b.dram_children = 0;
  std::fill_n(b.lower_children, kLowerTiersMax, 0);
  Refresh(id);
  if (parent != kBlockNone) Refresh(parent);
  SetRowStates(id, SlotState::kFenced, b.writer_session);
  if (b.job_count == 0) {
    FreeErasedExtents(id);
  } else if (d_.persistent_tier != kLowerTiersMax && b.lower[d_.persistent_tier].row != kRowNone) {
    d_.erased_below.Add(id);
  }
  observer_->OnBlockLost(id, why);
  if (b.phase == BlockPhase::kErased && !d_.IsHeld(id)) Reclaim(id);
}

void Residency::Leave(BlockRange range) {
  const uint64_t now_us = d_.NowUs();
  for (BlockId id = range.first + range.block_count; id-- > range.first;) {
    Block& b = d_.block(id);
    if (b.phase == BlockPhase::kSealed) {
      d_.forgotten.Remember(b.group_index, d_.index.key(id), d_.erase_cause, now_us);
    } else {
      --d_.reserved_count;
    }
    d_.walks.OnErase(id);
    b.phase = BlockPhase::kErased;
    b.steps_in = 0;
    if (b.expiry != kHandleNone) {
      d_.seams.deadlines.Remove(b.expiry);
      b.expiry = kHandleNone;
    }
    d_.readiness[id] = kReadyForNone;
    if (d_.is_watched) d_.changed.push_back(id);
  }
  if (kv_events_ != nullptr) kv_events_->OnLeave(range);
}

void Residency::Expect(BlockId id) {
  Block& b = d_.block(id);
  TERRACE_CHECK(b.phase == BlockPhase::kReserved && b.dram.state == CopyState::kNone,
                "only a new block is expected");
  b.phase = BlockPhase::kSealed;
  b.fill_tier = kFillTierShared;
  b.has_roots = true;  // they come with the bytes, and nobody gets the bytes before
  --d_.reserved_count;
  Refresh(id);
}

// Nobody holds it and nobody can find it.
void Residency::Reclaim(BlockId id) {
  Block& b = d_.block(id);
  TERRACE_CHECK(b.phase == BlockPhase::kErased && !d_.IsHeld(id) && b.fence_count == 0,
                "I2: what is held is not freed");
  TERRACE_CHECK(b.kv_event_places == 0, "what has gone was told to be gone");
  if (b.dram.row != kRowNone) ReleaseDramRow(id);
  FreeErasedExtents(id);
  d_.group_of(b).roots().Give(b.roots_row);
  d_.admission->OnErase(id);
  b.phase = BlockPhase::kUnused;
  d_.index.Recycle(id);
}

// ---- the DRAM copy ----

Status Residency::TakeSlots(BlockId id, uint64_t member_mask, uint32_t* short_class) {
  Block& b = d_.block(id);
  Group& group = d_.group_of(b);
  TERRACE_CHECK(b.dram.state == CopyState::kNone, "one DRAM copy a block");
  const uint32_t row = group.slots().Take();
  const std::span<SlotRef> refs = group.slots().at(row);
  const std::span<const LocalMember> locals = group.locals();
  SlotIdentity identity = DescribeForRows(id);
  for (uint32_t i = 0; i < locals.size(); ++i) {
    if (!(member_mask & BitOf(locals[i]))) continue;
    identity.member = static_cast<uint8_t>(locals[i].member);
    const Result<SlotRef> slot = d_.slots.Allocate(locals[i].class_index, identity);
    if (!slot.ok()) {
      for (uint32_t j = 0; j < i; ++j) {
        if (refs[j].address.has_bytes()) d_.slots.Free(refs[j]);
      }
      group.slots().Give(row);
      d_.is_short = true;
      *short_class = locals[i].class_index;
      return Status(StatusCode::kNoSpace, "no slot is free");
    }
    refs[i] = *slot;
  }
  b.dram = {.member_mask = member_mask, .row = row, .state = CopyState::kFilling};
  b.steps_in = 0;
  b.is_part_told = b.is_read_ahead = b.is_read_again = false;
  SetRowStates(id, b.phase == BlockPhase::kReserved ? SlotState::kReserved : SlotState::kFilling,
               b.writer_session);
  const BlockId parent = d_.index.node(id).parent;
  if (parent != kBlockNone) {
    ++d_.block(parent).dram_children;
    Refresh(parent);
  }
  d_.dram_policy->OnInsert(id, d_.TraitsOf(id), d_.NowUs());
  return Status::Ok();
}

void Residency::StepsIn(BlockId id, uint32_t step_count) {
  Block& b = d_.block(id);
  TERRACE_CHECK(b.phase == BlockPhase::kSealed && b.dram.state == CopyState::kFilling,
                "parts come during a promotion");
  if (step_count == b.steps_in) return;
  b.steps_in = static_cast<uint8_t>(step_count);
  observer_->OnStepsIn(id);
}

void Residency::EndFill(BlockId id, bool is_good) {
  Block& b = d_.block(id);
  TERRACE_CHECK(b.dram.state == CopyState::kFilling && b.phase != BlockPhase::kReserved,
                "I3: a promotion ends once");
  if (b.phase == BlockPhase::kErased) return;  // its slots go with its last holder
  if (is_good) {
    b.dram.state = CopyState::kReady;
    b.has_roots = b.is_verified = true;
    RootsKnown(id);
    SetRowStates(id, SlotState::kSealed, 0);
    Refresh(id);
    observer_->OnBlockReady(id);
    return;
  }
  TERRACE_CHECK(!b.is_part_told || d_.index.pin_count(id) == 0, "nobody reads what goes");
  b.steps_in = 0;
  // Whoever held it was promised the slot, never its bytes; it has left their leases now.
  observer_->OnBlockLost(id, StatusCode::kNotFound);
  ReleaseDramRow(id);
  Refresh(id);
}

void Residency::DropDram(BlockId id) {
  Block& b = d_.block(id);
  TERRACE_CHECK(MayLeaveDram(id), "I5: a dropped copy is not held and has no child in its tier");
  if (!HasOtherCopy(b, b.dram)) {
    ++d_.counters.blocks_evicted;
    const bool is_refused = d_.erase_cause == protocol::MissCause::kCapacity && IsChoosyBelow();
    const Because because(d_, is_refused ? protocol::MissCause::kAdmission : d_.erase_cause);
    Erase(id, StatusCode::kNotFound);
    return;
  }
  ReleaseDramRow(id);
  Refresh(id);
}

// What admission had taken would have a copy below.
bool Residency::IsChoosyBelow() const {
  return !d_.lower.empty() && (d_.limits.admission_policy != "all" ||
                               d_.options.write_bytes_per_day != WearGovernor::kUnlimited);
}

void Residency::DropMember(BlockId id, uint32_t member) {
  const Block& b = d_.block(id);
  TERRACE_CHECK(
      b.phase == BlockPhase::kSealed && b.dram.state == CopyState::kReady && !d_.IsHeld(id),
      "I2: what is held is not freed");
  FreeSlots(id, uint64_t{1} << member);
}

void Residency::SetDraining(BlockId id) {
  Block& b = d_.block(id);
  TERRACE_CHECK(b.dram.state == CopyState::kReady, "only a Ready copy drains");
  b.dram.state = CopyState::kDraining;
  Refresh(id);
}

void Residency::ClearDraining(BlockId id) {
  Block& b = d_.block(id);
  if (b.dram.state == CopyState::kDraining) b.dram.state = CopyState::kReady;
  Refresh(id);
}

void Residency::FreeSlots(BlockId id, uint64_t member_mask) {
  Block& b = d_.block(id);
  const std::span<SlotRef> refs = d_.slots_of(b);
  const std::span<const LocalMember> locals = d_.group_of(b).locals();
  for (uint32_t i = 0; i < locals.size(); ++i) {
    if (!(b.dram.member_mask & member_mask & BitOf(locals[i]))) continue;
    if (b.is_inherited) {
      Inherit(refs[i]);
    } else {
      d_.slots.Free(refs[i]);
    }
    refs[i] = SlotRef{};
  }
  b.dram.member_mask &= ~member_mask;
  NoteReadiness(id);
}

void Residency::ReleaseDramRow(BlockId id) {
  Block& b = d_.block(id);
  FreeSlots(id, b.dram.member_mask);
  if (b.is_dram_candidate) {
    d_.dram_policy->OnHeld(id);
    b.is_dram_candidate = false;
  }
  d_.dram_policy->OnErase(id);
  d_.group_of(b).slots().Give(b.dram.row);
  b.dram = {};
  b.is_inherited = false;
  const RadixIndex::Node& node = d_.index.node(id);
  if (node.is_live && node.parent != kBlockNone) {
    --d_.block(node.parent).dram_children;
    Refresh(node.parent);
  }
}

void Residency::SetRowStates(BlockId id, SlotState state, uint64_t holder) {
  const Block& b = d_.block(id);
  if (b.dram.row == kRowNone) return;
  for (const SlotRef& ref : d_.slots_of(b)) {
    if (!ref.address.has_bytes()) continue;
    SlotRow& row = d_.slots.row(ref);
    row.state = state;
    row.holder = holder;
  }
}

SlotIdentity Residency::DescribeForRows(BlockId id) const {
  const Block& b = d_.block(id);
  const RadixIndex::Node& node = d_.index.node(id);
  SlotIdentity identity{.key = node.key,
                        .commit_id = b.commit_id,
                        .group_tag = d_.group_of(b).id().low,
                        .event_hash = b.event_hash,
                        .position = node.position,
                        .writer_uid = b.writer_uid,
                        .recompute_ns_per_token = b.recompute_ns_per_token,
                        .priority = b.priority};
  if (node.parent != kBlockNone) identity.parent = d_.index.node(node.parent).key;
  if (b.is_pinned) identity.flags |= kSlotPinned;
  if (b.is_no_store) identity.flags |= kSlotNoStore;
  if (b.expires_us != kNever) {
    const uint64_t now_us = d_.NowUs();
    const uint64_t left_us = b.expires_us > now_us ? b.expires_us - now_us : 0;
    // Never 0, which says: no expiry.
    identity.expires_at_s =
        std::max<uint64_t>(1, d_.seams.clock.UnixSeconds() + left_us / kUsPerSecond);
  }
  return identity;
}

void Residency::AmendRows(BlockId id) {
  const Block& b = d_.block(id);
  if (b.dram.row == kRowNone) return;
  SlotIdentity identity = DescribeForRows(id);
  for (const SlotRef& ref : d_.slots_of(b)) {
    if (!ref.address.has_bytes()) continue;
    identity.member = d_.slots.row(ref).block.member;
    // Most hints change nothing.
    if (identity != d_.slots.row(ref).block) d_.slots.Amend(ref, identity);
  }
}

// ---- worth ----

void Residency::Verified(BlockId id) {
  Block& b = d_.block(id);
  TERRACE_CHECK(b.phase == BlockPhase::kSealed && b.dram.is_readable(), "what is read is there");
  b.is_verified = true;
  RootsKnown(id);
  observer_->OnBlockReady(id);
}

void Residency::Doubt(BlockId id) {
  d_.block(id).is_verified = false;
  NoteReadiness(id);
}

// The digest of a member's roots, for a successor that adopts the slot.
void Residency::RootsKnown(BlockId id) {
  Block& b = d_.block(id);
  b.has_roots = true;
  NoteReadiness(id);
  if (b.dram.row == kRowNone) return;
  const std::span<const SlotRef> refs = d_.slots_of(b);
  const std::span<const Checksum> roots = d_.roots_of(b);
  const std::span<const LocalMember> locals = d_.group_of(b).locals();
  for (uint32_t i = 0; i < locals.size(); ++i) {
    if (!refs[i].address.has_bytes()) continue;
    const std::span<const Checksum> own = roots.subspan(locals[i].first_root, locals[i].part_count);
    d_.slots.row(refs[i]).checksum = FoldRoots(own, b.commit_id);
  }
}

template <typename Tell>
void Residency::ForEachPolicy(std::span<const BlockId> run, const Tell& tell) {
  std::vector<BlockId> resident;
  const auto of_tier = [&](EvictionPolicy& policy, auto copy_of) {
    resident.clear();
    for (const BlockId id : run) {
      if (copy_of(d_.block(id)).row != kRowNone) resident.push_back(id);
    }
    if (!resident.empty()) tell(policy, std::span<const BlockId>(resident));
  };
  of_tier(*d_.dram_policy, [](const Block& b) -> const BlockCopy& { return b.dram; });
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    of_tier(*d_.lower[t].policy, [t](const Block& b) -> const BlockCopy& { return b.lower[t]; });
  }
}

void Residency::Touch(std::span<const BlockId> run, const protocol::Hints& hints) {
  const TouchContext context = d_.ContextOf(hints);
  ForEachRange(run, [&](BlockRange range) { d_.index.Touch(range, context.now_us); });
  d_.admission->OnTouch(run, context);
  ForEachPolicy(run, [&](EvictionPolicy& policy, std::span<const BlockId> resident) {
    policy.OnTouch(resident, context);
  });
  Expect(run, hints);
}

void Residency::Expect(std::span<const BlockId> run, const protocol::Hints& hints) {
  if (hints.expected_reuse_ms == 0) return;
  const uint64_t now_us = d_.NowUs();
  const uint64_t at_us = now_us + hints.expected_reuse_ms * kUsPerMs;
  ForEachPolicy(run, [&](EvictionPolicy& policy, std::span<const BlockId> resident) {
    policy.OnExpected(resident, at_us, now_us);
  });
}

void Residency::SetPinned(BlockId id) {
  if (!d_.block(id).is_pinned) Amend(id);
  d_.block(id).is_pinned = true;
  AmendRows(id);
  Refresh(id);
}

void Residency::ClearPinned(BlockId id) {
  if (d_.block(id).is_pinned) Amend(id);
  d_.block(id).is_pinned = false;
  AmendRows(id);
  Refresh(id);
}

// ---- holding ----

void Residency::Hold(BlockId id, HoldKind kind) {
  Block& b = d_.block(id);
  switch (kind) {
    case HoldKind::kLease:
      d_.index.Pin({id, 1});
      break;
    case HoldKind::kJob:
      ++b.job_count;
      break;
    case HoldKind::kFence:
      if (b.fence_count++ == 0) {
        d_.fenced_bytes += d_.group_of(b).block_bytes();
        d_.fenced_slot_count += static_cast<uint32_t>(d_.group_of(b).locals().size());
      }
      break;
  }
  Refresh(id);
}

void Residency::LetGo(BlockId id, HoldKind kind) {
  Block& b = d_.block(id);
  switch (kind) {
    case HoldKind::kLease:
      d_.index.Unpin({id, 1});
      break;
    case HoldKind::kJob:
      TERRACE_CHECK(b.job_count > 0, "I3: every job ends once");
      --b.job_count;
      break;
    case HoldKind::kFence:
      TERRACE_CHECK(b.fence_count > 0, "every fence falls once");
      if (--b.fence_count == 0) {
        d_.fenced_bytes -= d_.group_of(b).block_bytes();
        d_.fenced_slot_count -= static_cast<uint32_t>(d_.group_of(b).locals().size());
      }
      break;
  }
  WasLetGo(id);
}

void Residency::HoldPath(std::span<const BlockId> run) {
  ForEachRange(run, [this](BlockRange range) { d_.index.Pin(range); });
  for (const BlockId id : run) Refresh(id);
}

void Residency::LetGoPath(BlockRange range) {
  d_.index.Unpin(range);
  std::vector<BlockRange> pieces;
  ForEachPiece(range, [&pieces](BlockRange piece) { pieces.push_back(piece); });
  // The tail first, as paths go.
  for (size_t p = pieces.size(); p-- > 0;) {
    const bool is_ready = std::memchr(&d_.readiness[pieces[p].first], kReadyForNone,
                                      pieces[p].block_count) == nullptr;
    for (uint32_t i = pieces[p].block_count; i-- > 0;) {
      const BlockId id = pieces[p].first + i;
      const bool is_last = i + 1 == pieces[p].block_count;
      if (is_ready && !is_last && !d_.IsOnDevice(d_.block(id))) continue;
      WasLetGo(id);
      if (is_ready && d_.device_tier == kLowerTiersMax) break;
    }
  }
}

void Residency::HoldReady(BlockRange range) {
  d_.index.Pin(range);
  ForEachPiece(range, [this](BlockRange piece) {
    const BlockId last = piece.first + piece.block_count - 1;
    for (BlockId id = piece.first; d_.device_tier != kLowerTiersMax && id < last; ++id) {
      if (d_.IsOnDevice(d_.block(id))) Refresh(id);
    }
    Refresh(last);
  });
}

// The range, run by run. Of blocks that are ready (for whomever) in one run only the last one can
// be dropped, held or not: behind the others is one in DRAM, and their own copy there is readable.
// But on a device any of them can be dropped, unless it is held: somebody may read it there.
template <typename Visit>
void Residency::ForEachPiece(BlockRange range, const Visit& visit) {
  const BlockId end = range.first + range.block_count;
  for (BlockId id = range.first; id < end;) {
    const BlockId last = std::min(d_.index.runs().RunAt(id).last(), end - 1);
    for (BlockId i = id; d_.is_watched && i <= last; ++i) d_.changed.push_back(i);
    visit(BlockRange{id, last - id + 1});
    id = last + 1;
  }
}

uint8_t Residency::ReadinessOf(BlockId id) const {
  const Block& b = d_.block(id);
  const bool is_ready = b.phase == BlockPhase::kSealed && b.dram.is_readable() && b.has_roots &&
                        b.expires_us == kNever && !b.is_read_ahead &&
                        b.dram.member_mask == d_.group_of(b).local_mask();
  if (!is_ready) return kReadyForNone;
  return b.is_verified ? kReadyForAll : d_.writer_classes.ClassOf(b.writer_uid);
}

void Residency::NoteReadiness(BlockId id) { d_.readiness[id] = ReadinessOf(id); }

void Residency::WasLetGo(BlockId id) {
  const Block& b = d_.block(id);
  if (b.phase == BlockPhase::kErased && b.job_count == 0) FreeErasedExtents(id);
  if (b.phase == BlockPhase::kErased && !d_.IsHeld(id)) {
    if (b.fence_count == 0) Reclaim(id);
    return;
  }
  Refresh(id);
}

// ---- candidates ----

bool Residency::HasOtherCopy(const Block& block, const BlockCopy& copy) const {
  if (&copy != &block.dram && block.dram.is_readable()) return true;
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (&copy != &block.lower[t] && block.lower[t].is_readable()) return true;
  }
  return false;
}

bool Residency::MayDropDram(BlockId id) const {
  return !d_.block(id).is_pinned && MayLeaveDram(id);
}

bool Residency::MayLeaveDram(BlockId id) const {
  const Block& b = d_.block(id);
  return b.phase == BlockPhase::kSealed && b.dram.is_readable() && !d_.IsHeld(id) &&
         !b.is_inherited && b.dram_children == 0 &&
         (d_.index.node(id).child_count == 0 || HasOtherCopy(b, b.dram));
}

bool Residency::MayDropLower(BlockId id, uint32_t tier) const {
  const Block& b = d_.block(id);
  // On a device a pin keeps the block, not this copy of it.
  const bool is_kept = b.is_pinned && (tier != d_.device_tier || !HasOtherCopy(b, b.lower[tier]));
  if (b.phase != BlockPhase::kSealed || b.lower[tier].state != CopyState::kReady ||
      b.job_count > 0 || is_kept || b.lower_children[tier] > 0 || d_.IsReadInPlace(id, tier)) {
    return false;
  }
  return HasOtherCopy(b, b.lower[tier]) ||
         (d_.index.node(id).child_count == 0 && d_.index.pin_count(id) == 0);
}

bool Residency::IsExpired(BlockId id) const {
  const uint64_t expires_us = d_.block(id).expires_us;
  return expires_us != kNever && expires_us <= d_.NowUs();
}

void Residency::CountChild(BlockId parent, const Block& child, int32_t by) {
  Block& p = d_.block(parent);
  if (child.dram.row != kRowNone) p.dram_children += by;
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    if (child.lower[t].row != kRowNone) p.lower_children[t] += by;
  }
}

// Tells the policies whether the block is a candidate now.
void Residency::Refresh(BlockId id) {
  Block& b = d_.block(id);
  NoteReadiness(id);
  if (d_.is_watched) d_.changed.push_back(id);
  if (kv_events_ != nullptr) kv_events_->OnChange(id);
  const auto refresh = [id](bool may_drop, bool* is_candidate, EvictionPolicy& policy) {
    if (may_drop == *is_candidate) return;
    *is_candidate = may_drop;
    if (may_drop) {
      policy.OnCandidate(id);
    } else {
      policy.OnHeld(id);
    }
  };
  refresh(b.dram.state == CopyState::kReady && MayDropDram(id), &b.is_dram_candidate,
          *d_.dram_policy);
  for (uint32_t t = 0; t < d_.lower.size(); ++t) {
    refresh(MayDropLower(id, t), &b.is_lower_candidate[t], *d_.lower[t].policy);
  }
}

}  // namespace terrace

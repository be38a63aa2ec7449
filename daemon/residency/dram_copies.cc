#include "daemon/residency/dram_copies.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {

static uint64_t BitOf(const LocalMember& local) { return uint64_t{1} << local.member; }

// ---- filling ----

Status DramCopies::TakeSlots(BlockId id, uint64_t member_mask, const FillFrom& from,
                             uint32_t* short_class) {
  DramPart& part = PartOf(id);
  const Block& b = d_.block(id);
  Group& group = d_.group_of(b);
  TERRACE_CHECK(b.dram.state == CopyState::kNone, "one DRAM copy a block");
  const uint32_t row = group.slots().Take();
  const std::span<SlotRef> refs = group.slots().at(row);
  const std::span<const LocalMember> locals = group.locals();
  SlotIdentity identity = rows_.Describe(id);
  for (uint32_t i = 0; i < locals.size(); ++i) {
    if (!(member_mask & BitOf(locals[i]))) continue;
    identity.member = static_cast<uint8_t>(locals[i].member);
    const Result<SlotRef> slot = d_.slots.Allocate(locals[i].class_index, identity);
    if (!slot.ok()) {
      for (uint32_t j = 0; j < i; ++j) {
        if (refs[j].address.has_bytes()) d_.slots.Free(refs[j]);
      }
      group.slots().Give(row);
      // Read-ahead asks for room that is free; it makes nobody short.
      if (!from.is_ahead) ++d_.shortages.of_owner();
      *short_class = locals[i].class_index;
      return Status(StatusCode::kNoSpace, "no slot is free");
    }
    refs[i] = *slot;
  }
  part.dram = {.member_mask = member_mask, .row = row, .state = CopyState::kFilling};
  part.fill_source = from.source;
  part.fill_tier = static_cast<uint8_t>(from.tier);
  part.steps_in = 0;
  part.is_part_told = part.is_read_again = false;
  part.is_read_ahead = from.is_ahead;
  if (from.source != FillSource::kWriter) began_us_.insert_or_assign(id, d_.NowUs());
  rows_.SetStates(id, b.phase == BlockPhase::kReserved ? SlotState::kReserved : SlotState::kFilling,
                  b.writer_session);
  CountWithParent(id, 1);
  candidates_.EnterDram(id);
  return Status::Ok();
}

void DramCopies::Expect(BlockId id) {
  TERRACE_CHECK(d_.block(id).dram.state == CopyState::kNone, "only a new block is expected");
  PartOf(id).fill_source = FillSource::kShared;
  RootsPromised(id);  // they come with the bytes, and nobody gets the bytes before
}

template <typename Take>
void DramCopies::TakeOutSlots(BlockId id, uint64_t member_mask, const Take& take) {
  const Block& b = d_.block(id);
  const std::span<SlotRef> refs = d_.slots_of(b);
  const std::span<const LocalMember> locals = d_.group_of(b).locals();
  for (uint32_t i = 0; i < locals.size(); ++i) {
    if (!(b.dram.member_mask & member_mask & BitOf(locals[i]))) continue;
    take(std::exchange(refs[i], {}));
  }
  PartOf(id).dram.member_mask &= ~member_mask;
  candidates_.NoteReadiness(id);
}

std::vector<SlotRef> DramCopies::EndWrite(BlockId id, uint64_t member_mask) {
  TERRACE_CHECK(d_.block(id).dram.state == CopyState::kFilling, "I4: a block is written once");
  std::vector<SlotRef> left;
  TakeOutSlots(id, ~member_mask, [&left](const SlotRef& slot) { left.push_back(slot); });
  PartOf(id).dram.state = CopyState::kReady;
  return left;
}

void DramCopies::StepsIn(BlockId id, uint32_t step_count) {
  const Block& b = d_.block(id);
  TERRACE_CHECK(b.phase == BlockPhase::kSealed && b.dram.state == CopyState::kFilling,
                "parts come during a promotion");
  TERRACE_CHECK(step_count >= b.steps_in, "what is in stays in");
  if (step_count == b.steps_in) return;
  PartOf(id).steps_in = static_cast<uint8_t>(step_count);
  observers_.waiting->OnStepsIn(id);
}

void DramCopies::TellParts(BlockId id) { PartOf(id).is_part_told = true; }

void DramCopies::FillAgain(BlockId id) {
  const Block& b = d_.block(id);
  TERRACE_CHECK(b.dram.state == CopyState::kFilling && !b.is_read_again && !b.is_part_told,
                "slots that nobody reads are filled again, once");
  DramPart& part = PartOf(id);
  part.is_read_again = true;
  part.steps_in = 0;
}

void DramCopies::EndFill(BlockId id, bool is_good) {
  DramPart& part = PartOf(id);
  const Block& b = d_.block(id);
  TERRACE_CHECK(b.dram.state == CopyState::kFilling && b.phase != BlockPhase::kReserved,
                "I3: a promotion ends once");
  CountPromotion(id, is_good && b.phase == BlockPhase::kSealed);
  // What came from other hosts is from now on a block like any other.
  if (part.fill_source == FillSource::kShared) part.fill_source = FillSource::kWriter;
  if (b.phase == BlockPhase::kErased) return;  // its slots go with its last holder
  part.steps_in = 0;  // who waits for these bytes once more waits for all of them
  if (is_good) {
    part.dram.state = CopyState::kReady;
    part.is_verified = true;
    RootsKnown(id);
    rows_.SetStates(id, SlotState::kSealed, 0);
    candidates_.Refresh(id);
    observers_.waiting->OnBlockReady(id);
    return;
  }
  TERRACE_CHECK(!b.is_part_told || d_.index.pin_count(id) == 0, "nobody reads what goes");
  // Whoever held it was promised the slot, never its bytes; it has left their leases now.
  observers_.waiting->OnBlockLost(id, StatusCode::kNotFound);
  Release(id);
  candidates_.Refresh(id);
}

void DramCopies::CountPromotion(BlockId id, bool is_good) {
  const auto found = began_us_.find(id);
  if (found == began_us_.end()) return;  // a comparison in place
  const Block& b = d_.block(id);
  const auto tier = b.fill_source == FillSource::kShared ? protocol::TierKind::kRedis
                                                         : d_.lower[b.fill_tier].tier->kind();
  if (is_good) {
    d_.counters.promotion_us[static_cast<size_t>(tier)].Add(d_.NowUs() - found->second);
  }
  began_us_.erase(found);
}

// ---- leaving ----

void DramCopies::DropMember(BlockId id, uint32_t member) {
  const Block& b = d_.block(id);
  TERRACE_CHECK(
      b.phase == BlockPhase::kSealed && b.dram.state == CopyState::kReady && !d_.IsHeld(id),
      "I2: what is held is not freed");
  FreeSlots(id, uint64_t{1} << member);
}

void DramCopies::FreeSlots(BlockId id, uint64_t member_mask) {
  const bool is_inherited = d_.block(id).is_inherited;
  TakeOutSlots(id, member_mask, [this, is_inherited](const SlotRef& slot) {
    if (is_inherited) {
      d_.inherited.Add(slot, d_.slots);
    } else {
      d_.slots.Free(slot);
    }
  });
}

void DramCopies::Release(BlockId id) {
  DramPart& part = PartOf(id);
  TERRACE_CHECK(part.dram.row != kRowNone, "there is a copy to be released");
  if (part.dram.state == CopyState::kFilling) began_us_.erase(id);
  FreeSlots(id, part.dram.member_mask);
  candidates_.LeaveDram(id);
  d_.group_of(d_.block(id)).slots().Give(part.dram.row);
  part.dram = {};
  part.is_inherited = false;
  CountWithParent(id, -1);
}

void DramCopies::ReleaseInTail(BlockId id) {
  DramPart& part = PartOf(id);
  FreeSlots(id, part.dram.member_mask);
  d_.group_of(d_.block(id)).slots().Give(part.dram.row);
  part.dram = {};
}

void DramCopies::SetDraining(BlockId id) {
  TERRACE_CHECK(d_.block(id).dram.state == CopyState::kReady, "only a Ready copy drains");
  PartOf(id).dram.state = CopyState::kDraining;
  candidates_.Refresh(id);
}

void DramCopies::ClearDraining(BlockId id) {
  DramPart& part = PartOf(id);
  if (part.dram.state == CopyState::kDraining) part.dram.state = CopyState::kReady;
  candidates_.Refresh(id);
}

// ---- a predecessor's ----

void DramCopies::Adopt(BlockId id, uint64_t member_mask, std::span<const SlotRef> slots) {
  DramPart& part = PartOf(id);
  Group& group = d_.group_of(d_.block(id));
  TERRACE_CHECK(part.dram.state == CopyState::kNone && slots.size() == group.locals().size(),
                "a copy is adopted whole, where there is none");
  part.is_inherited = true;
  part.dram = {
      .member_mask = member_mask, .row = group.slots().Take(), .state = CopyState::kUnverified};
  std::ranges::copy(slots, group.slots().at(part.dram.row).begin());
  CountWithParent(id, 1);
}

void DramCopies::BeginVerify(BlockId id) {
  DramPart& part = PartOf(id);
  TERRACE_CHECK(part.dram.state == CopyState::kUnverified, "an adopted copy is verified once");
  part.dram.state = CopyState::kFilling;
  part.fill_source = FillSource::kAdopted;
  candidates_.Refresh(id);
}

void DramCopies::Disinherit(BlockId id) {
  PartOf(id).is_inherited = false;
  if (d_.block(id).phase == BlockPhase::kSealed) candidates_.Refresh(id);
}

// ---- what is known of the bytes ----

void DramCopies::RootsPromised(BlockId id) { PartOf(id).has_roots = true; }

void DramCopies::RootsKnown(BlockId id) {
  PartOf(id).has_roots = true;
  candidates_.NoteReadiness(id);
  rows_.SetDigests(id);
}

void DramCopies::Verified(BlockId id) {
  const Block& b = d_.block(id);
  TERRACE_CHECK(b.phase == BlockPhase::kSealed && b.dram.is_readable(), "what is read is there");
  PartOf(id).is_verified = true;
  RootsKnown(id);
  observers_.waiting->OnBlockReady(id);
}

void DramCopies::Doubt(BlockId id) {
  PartOf(id).is_verified = false;
  candidates_.NoteReadiness(id);
}

// ---- children ----

void DramCopies::CountChild(BlockId parent, const Block& child, int32_t by) {
  if (child.dram.row == kRowNone) return;
  DramPart& part = PartOf(parent);
  TERRACE_CHECK(by > 0 || part.dram_children > 0, "I5: children in DRAM are counted");
  part.dram_children += by;
}

void DramCopies::CountWithParent(BlockId id, int32_t by) {
  const RadixIndex::Node& node = d_.index.node(id);
  if (!node.is_live || node.parent == kBlockNone) return;
  DramPart& part = PartOf(node.parent);
  TERRACE_CHECK(by > 0 || part.dram_children > 0, "I5: children in DRAM are counted");
  part.dram_children += by;
  candidates_.Refresh(node.parent);
}

void DramCopies::OnErased(BlockId id) {
  DramPart& part = PartOf(id);
  part.dram_children = 0;
  part.steps_in = 0;
  // Its slots go with its last holder, whatever becomes of the write.
  if (part.dram.state == CopyState::kDraining) part.dram.state = CopyState::kReady;
}

}  // namespace terrace

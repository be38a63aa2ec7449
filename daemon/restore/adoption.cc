#include "daemon/restore/adoption.h"

#include <algorithm>
#include <tuple>

#include "terrace/check.h"

namespace terrace {

bool Adoption::ParkedSlot::ComesBefore(const ParkedSlot& other) const {
  const auto order = [](const ParkedSlot& s) {
    return std::tuple(s.group_tag, s.position, s.key.high, s.key.low, s.commit_id, s.member,
                      s.slot.address.segment, s.slot.row);
  };
  return order(*this) < order(other);
}

AdoptSummary Adoption::Begin(std::span<const SessionId> sessions) {
  TERRACE_CHECK(ranges_.empty() && adopted_.empty(), "rows of a predecessor are taken over once");
  sessions_.assign(sessions.begin(), sessions.end());
  std::vector<SlotAllocator::AdoptedSlot> found;
  d_.slots.Adopt(&found);
  std::vector<ParkedSlot> parked;
  for (const SlotAllocator::AdoptedSlot& adopted : found) {
    const SlotRow& row = d_.slots.row(adopted.slot);
    if (adopted.is_torn) ++summary_.torn_slots;
    // Bytes nobody has a digest of cannot be verified.
    if (row.state != SlotState::kSealed || row.checksum.is_zero()) {
      if (row.state == SlotState::kSealed) ++summary_.slots_dropped;
      Forsake(adopted.slot);
      continue;
    }
    parked.push_back({.slot = adopted.slot,
                      .key = row.block.key,
                      .group_tag = row.block.group_tag,
                      .commit_id = row.block.commit_id,
                      .position = row.block.position,
                      .member = row.block.member});
  }
  Park(std::move(parked));
  for (uint32_t g = 0; g < d_.groups.size(); ++g) OnGroup(g);
  while (AdoptSome(SIZE_MAX)) {
  }
  SortByKey();
  if (sessions_.empty()) ReleaseSome(SIZE_MAX);
  summary_.slots_fenced = d_.inherited.count();
  summary_.slots_parked = parked_count_;
  return summary_;
}

void Adoption::Park(std::vector<ParkedSlot> slots) {
  parked_ = std::move(slots);
  parked_count_ = static_cast<uint32_t>(parked_.size());
  std::sort(parked_.begin(), parked_.end(),
            [](const ParkedSlot& a, const ParkedSlot& b) { return a.ComesBefore(b); });
  for (size_t i = 0; i < parked_.size(); ++i) {
    if (ranges_.empty() || ranges_.back().group_tag != parked_[i].group_tag) {
      ranges_.push_back({.group_tag = parked_[i].group_tag, .next = i, .end = i});
    }
    ranges_.back().end = ranges_.back().erased_end = i + 1;
  }
}

void Adoption::OnGroup(uint32_t group_index) {
  for (Range& range : ranges_) {
    if (d_.groups[group_index]->id().low == range.group_tag) range.group_index = group_index;
  }
  // So that whoever opened it finds a small group's blocks at once.
  AdoptSome(kRowsAtOpenMax);
}

// A group nobody used may have given its place to another one.
bool Adoption::IsOpen(const Range& range) const {
  return range.next < range.end && range.group_index != kAllGroups &&
         d_.groups[range.group_index]->id().low == range.group_tag;
}

bool Adoption::HasOpenRange() const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [this](const Range& range) { return IsOpen(range); });
}

bool Adoption::AdoptSome(size_t budget) {
  for (Range& range : ranges_) {
    while (IsOpen(range)) {
      if (budget == 0) return true;
      const size_t before = range.next;
      AdoptNext(&range);
      budget -= std::min(budget, range.next - before);
    }
  }
  ForgetIfNone();
  return false;
}

void Adoption::ForgetIfNone() {
  if (parked_count_ > 0) return;
  parked_ = {};
  ranges_ = {};
  by_key_ = {};
}

// The next block of the range, from all its members' slots.
void Adoption::AdoptNext(Range* range) {
  std::vector<AdoptedMember> members;
  std::vector<SlotRef> unwanted;
  const ParkedSlot& first = parked_[range->next];
  if (first.is_dropped) {
    ++range->next;
    return;
  }
  for (; range->next < range->end && parked_[range->next].IsOfOneBlock(first); ++range->next) {
    const ParkedSlot& slot = parked_[range->next];
    if (!members.empty() && members.back().member == slot.member) {
      unwanted.push_back(slot.slot);
    } else {
      members.push_back({.member = slot.member, .slot = slot.slot});
    }
    TERRACE_CHECK(parked_count_ > 0, "parked slots are those of the ranges: 0 frees them all");
    --parked_count_;
  }
  const BlockId id = residency_.lifecycle.Adopt(range->group_index, members);
  if (id == kBlockNone) {
    for (const AdoptedMember& member : members) unwanted.push_back(member.slot);
  } else {
    adopted_.push_back({.block = id, .commit_id = first.commit_id});
    ++summary_.blocks;
    ++d_.counters.blocks_adopted;
  }
  summary_.slots_dropped += unwanted.size();
  for (const SlotRef& slot : unwanted) Forsake(slot);
}

// No block's any more.
void Adoption::Forsake(const SlotRef& slot) { d_.inherited.Add(slot, d_.slots); }

void Adoption::DropParked() {
  size_t budget = kRowsPerStepMax;
  bool is_room = false;
  for (Range& range : ranges_) {
    // The tails go first.
    for (; budget > 0 && range.erased_end > (IsOpen(range) ? range.end : range.next); --budget) {
      UnindexedTaken taken;
      DropTail(&range, &taken);
      is_room |= sessions_.empty() && taken.byte_count > 0;
    }
  }
  if (is_room) ReleaseSome(kRowsPerStepMax);
}

// ---- erasures ----

void Adoption::SortByKey() {
  for (const Range& range : ranges_) {
    for (size_t i = range.next; i < range.end; ++i) by_key_.push_back(static_cast<uint32_t>(i));
  }
  std::sort(by_key_.begin(), by_key_.end(),
            [this](uint32_t a, uint32_t b) { return parked_[a].key < parked_[b].key; });
}

void Adoption::Erase(std::optional<uint64_t> group_tag, uint64_t position) {
  for (Range& range : ranges_) {
    if (group_tag && range.group_tag != *group_tag) continue;
    const auto parked = std::span(parked_).subspan(range.next, range.end - range.next);
    const auto first = std::ranges::partition_point(
        parked, [position](const ParkedSlot& slot) { return slot.position < position; });
    range.end = range.next + static_cast<size_t>(first - parked.begin());
  }
}

template <typename Visit>
void Adoption::ForEachOf(std::optional<uint64_t> group_tag, const BlockKey& key,
                         const Visit& visit) {
  const auto key_of = [this](uint32_t index) { return parked_[index].key; };
  auto found = std::ranges::lower_bound(by_key_, key, {}, key_of);
  for (; found != by_key_.end() && key_of(*found) == key; ++found) {
    const ParkedSlot& slot = parked_[*found];
    if (slot.is_dropped || (group_tag && slot.group_tag != *group_tag)) continue;
    const Range& range = *std::ranges::lower_bound(ranges_, slot.group_tag, {}, &Range::group_tag);
    if (*found >= range.next && *found < range.erased_end) visit(range, *found);
  }
}

std::optional<uint64_t> Adoption::EraseBelowKey(std::optional<uint64_t> group_tag,
                                                const BlockKey& key) {
  std::optional<uint64_t> found;
  ForEachOf(group_tag, key, [&](const Range& range, size_t index) {
    const uint64_t position = parked_[index].position;
    Erase(range.group_tag, position + 1);
    found = std::min(found.value_or(position), position);
  });
  return found;
}

void Adoption::EraseKey(std::optional<uint64_t> group_tag, const BlockKey& key,
                        UnindexedTaken* taken) {
  ForEachOf(group_tag, key, [&](const Range& /*range*/, size_t index) { DropOne(index, taken); });
}

bool Adoption::DropErased(uint32_t* budget, UnindexedTaken* taken) {
  for (Range& range : ranges_) {
    for (; range.erased_end > range.end; --*budget) {
      if (*budget == 0) return false;
      DropTail(&range, taken);
    }
  }
  ForgetIfNone();
  return true;
}

void Adoption::DropTail(Range* range, UnindexedTaken* taken) {
  DropOne(--range->erased_end, taken);
  range->end = std::min(range->end, range->erased_end);
}

void Adoption::DropOne(size_t parked_index, UnindexedTaken* taken) {
  ParkedSlot& slot = parked_[parked_index];
  if (slot.is_dropped) return;
  slot.is_dropped = true;
  const bool is_first = parked_index == 0 || !parked_[parked_index - 1].IsOfOneBlock(slot);
  taken->block_count += is_first ? 1 : 0;
  taken->byte_count += d_.slots.row(slot.slot).slot_pages * kArenaPageBytes;
  Forsake(slot.slot);
  TERRACE_CHECK(parked_count_ > 0, "a slot is parked until it is adopted or dropped");
  --parked_count_;
}

void Adoption::OnSessionEnd(SessionId session) { std::erase(sessions_, session); }

void Adoption::Step() {
  AdoptSome(kRowsPerStepMax);
  VerifySome();
  if (sessions_.empty()) ReleaseSome(kRowsPerStepMax);
}

// Heads of prefixes first: they were adopted first.
void Adoption::VerifySome() {
  std::erase_if(in_check_, [this](const Adopted& adopted) {
    const Block& b = d_.block(adopted.block);
    return b.commit_id != adopted.commit_id || !b.is_adopting();
  });
  while (in_check_.size() < kInCheckMax && verify_next_ < adopted_.size()) {
    const Adopted& adopted = adopted_[verify_next_++];
    const Block& b = d_.block(adopted.block);
    if (b.phase != BlockPhase::kSealed || b.commit_id != adopted.commit_id ||
        b.dram.state != CopyState::kUnverified) {
      continue;
    }
    if (mover_.Promote(adopted.block, {}).ok()) in_check_.push_back(adopted);
  }
}

void Adoption::ReleaseSome(size_t budget) {
  TERRACE_CHECK(sessions_.empty(), "whom the predecessor served may still write to its slots");
  for (; budget > 0 && release_next_ < adopted_.size(); --budget) {
    const Adopted& adopted = adopted_[release_next_++];
    const Block& b = d_.block(adopted.block);
    if (b.commit_id == adopted.commit_id && b.is_inherited)
      residency_.dram.Disinherit(adopted.block);
  }
  for (; budget > 0 && d_.inherited.count() > 0; --budget) d_.inherited.FreeLast(d_.slots);
  if (release_next_ == adopted_.size() && verify_next_ == adopted_.size()) {
    adopted_ = {};
    release_next_ = verify_next_ = 0;
  }
}

bool Adoption::has_work() const {
  if (HasOpenRange()) return true;
  if (verify_next_ < adopted_.size() && in_check_.size() < kInCheckMax) return true;
  return sessions_.empty() && (release_next_ < adopted_.size() || d_.inherited.count() > 0);
}

}  // namespace terrace

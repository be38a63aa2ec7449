#include "client/lease/lease_state.h"

#include <algorithm>
#include <bit>
#include <new>
#include <tuple>

namespace terrace {
namespace {

using client::PartState;

constexpr uint32_t kNoSlot = 0xFFFFFFFF;
constexpr size_t kPartWordsPerSlot = kPartsPerSpaceMax / 64;
static_assert(kPartWordsPerSlot == 2);
// Parts remembered per slot before those written twice are looked for.
constexpr size_t kWrittenPartsPerSlotMax = 2 * kPartsPerSpaceMax;

Status CheckSlot(const LeaseState& lease, const SlotAddress& slot, uint32_t member) {
  if (!slot.has_bytes()) return Status::Ok();
  const uint64_t end_bytes = slot.page * kArenaPageBytes + lease.member(member).slot_bytes;
  if (end_bytes <= lease.attachment->segment_bytes(slot.segment)) return Status::Ok();
  return Status(StatusCode::kInvalid, "a slot passes the end of its segment");
}

constexpr Status kOtherSlots(StatusCode::kInvalid,
                             "it has other slots than its keys and members ask for");

Status CheckMembers(const LeaseState& lease) {
  if (lease.group->has_members(lease.member_mask)) return Status::Ok();
  return Status(StatusCode::kInvalid, "it has slots of members the SpaceGroup has not");
}

auto PartOrder(const client::WrittenPart& part) {
  return std::tuple(part.key_index, part.member, part.part_index);
}

constexpr Status kCopiedInto(StatusCode::kBusy,
                             "pages are being copied into this block: wait for the copy");

Status NotOpen(PartState state) {
  if (state == PartState::kWriting) {
    return Status(StatusCode::kBusy, "a thread is writing that part: wait for it");
  }
  return Status(StatusCode::kExists, "that part is committed, or about to be: its bytes stay");
}

Status AreOpen(std::span<const PartState> states) {
  for (const PartState state : states) {
    if (state != PartState::kOpen) return NotOpen(state);
  }
  return Status::Ok();
}

}  // namespace

uint32_t LeaseState::member_count() const {
  return static_cast<uint32_t>(std::popcount(member_mask));
}

int LeaseState::MemberOrdinal(uint32_t member) const {
  if (member >= 64 || (member_mask >> member & 1) == 0) return -1;
  return std::popcount(member_mask & ((uint64_t{1} << member) - 1));
}

std::byte* LeaseState::ReadSlot(uint32_t block_index, uint32_t member) const {
  const int ordinal = MemberOrdinal(member);
  if (kind != Kind::kRead || block_index >= block_count || ordinal < 0) return nullptr;
  const SlotAddress& slot =
      slots[size_t{block_index} * member_count() + static_cast<uint32_t>(ordinal)];
  // A followed block's writer may declare the member absent while we look.
  const uint32_t segment = std::atomic_ref<uint32_t>(const_cast<uint32_t&>(slot.segment)).load();
  if (segment == kSegmentNone) return nullptr;
  return attachment->base(segment) + slot.page * kArenaPageBytes;
}

bool LeaseState::IsHostReadable(uint32_t block_index, uint32_t member) const {
  const auto ordinal = static_cast<uint32_t>(MemberOrdinal(member));
  const SlotAddress& slot = slots[size_t{block_index} * member_count() + ordinal];
  const uint32_t segment = std::atomic_ref<uint32_t>(const_cast<uint32_t&>(slot.segment)).load();
  return segment == kSegmentNone || attachment->is_host_readable(segment);
}

bool LeaseState::is_reserved(uint32_t key_index) const {
  return kind == Kind::kWrite && key_index < reserved.size() && first_slots[key_index] != kNoSlot;
}

std::byte* LeaseState::WriteSlot(uint32_t key_index, uint32_t member) const {
  if (!is_reserved(key_index) || MemberOrdinal(member) < 0) return nullptr;
  const SlotAddress& slot = slot_refs[SlotIndex(key_index, member)].address;
  if (!slot.has_bytes()) return nullptr;
  return attachment->base(slot.segment) + slot.page * kArenaPageBytes;
}

Status LeaseState::PrepareRead() {
  TERRACE_RETURN_IF_ERROR(CheckMembers(*this));
  size_t index = 0;
  for (uint32_t block = 0; block < block_count; ++block) {
    for (uint64_t rest = member_mask; rest != 0; rest &= rest - 1) {
      const auto member = static_cast<uint32_t>(std::countr_zero(rest));
      TERRACE_RETURN_IF_ERROR(CheckSlot(*this, slots[index++], member));
    }
  }
  if (!slots.empty()) TERRACE_RETURN_IF_ERROR(attachment->RetainSegments(slots, &segments));
  staying_count = block_count;
  const bool is_all_ready = std::all_of(spans.begin(), spans.end(), [](const auto& span) {
    return span.state == protocol::SpanState::kReady;
  });
  if (is_all_ready) {
    ready_count = block_count;
    return Status::Ok();
  }
  is_block_ready.assign(block_count, 0);
  uint32_t block = 0;
  bool has_parts = is_by_parts;
  for (const protocol::BlockSpan& span : spans) {
    if (span.state == protocol::SpanState::kReady) {
      std::fill_n(is_block_ready.begin() + block, span.block_count, 1);
    }
    has_parts |= span.state == protocol::SpanState::kFollowing;
    block += span.block_count;
  }
  if (has_parts) readable_parts.assign(slots.size() * kPartWordsPerSlot, 0);
  for (uint32_t i = 0; is_by_parts && i < block_count; ++i) {
    // Held to the end of the lease, even if a block before it does not come.
    const auto first = readable_parts.begin() +
                       static_cast<ptrdiff_t>(size_t{i} * member_count() * kPartWordsPerSlot);
    if (is_block_ready[i] != 0)
      std::fill_n(first, member_count() * kPartWordsPerSlot, ~uint64_t{0});
  }
  BlocksReady(0, 0);
  is_coming = true;
  return Status::Ok();
}

Status LeaseState::PrepareWrite() {
  TERRACE_RETURN_IF_ERROR(CheckMembers(*this));
  first_slots.assign(reserved.size(), kNoSlot);
  uint32_t next_slot = 0;
  for (size_t key = 0; key < reserved.size(); ++key) {
    if (reserved[key].status != static_cast<uint8_t>(StatusCode::kOk)) continue;
    if (slot_refs.size() - next_slot < member_count()) return kOtherSlots;
    first_slots[key] = next_slot;
    for (uint64_t rest = member_mask; rest != 0; rest &= rest - 1) {
      const auto member = static_cast<uint32_t>(std::countr_zero(rest));
      TERRACE_RETURN_IF_ERROR(CheckSlot(*this, slot_refs[next_slot++].address, member));
    }
  }
  if (next_slot != slot_refs.size()) return kOtherSlots;
  for (uint64_t rest = member_mask; rest != 0; rest &= rest - 1) {
    const auto index = static_cast<uint32_t>(std::countr_zero(rest));
    parts_per_slot = std::max(parts_per_slot, member(index).part_count());
  }
  committed_parts.assign(size_t{next_slot}, 0);
  part_states.assign(size_t{next_slot} * parts_per_slot, PartState::kOpen);
  is_copied_into.assign(size_t{next_slot}, 0);
  slots.clear();
  for (const SlotRef& ref : slot_refs) slots.push_back(ref.address);
  if (!slots.empty()) TERRACE_RETURN_IF_ERROR(attachment->RetainSegments(slots, &segments));
  staying_count = block_count;
  return Status::Ok();
}

void LeaseState::BlocksReady(uint32_t first_block, uint32_t count) {
  const auto block_end = static_cast<uint32_t>(is_block_ready.size());
  const uint32_t begin = std::min(first_block, block_end);
  std::fill_n(is_block_ready.begin() + begin, std::min(count, block_end - begin), 1);
  uint32_t ready = ready_count.load();
  while (ready < staying_count.load() && is_block_ready[ready] != 0) ++ready;
  ready_count.store(ready);
}

void LeaseState::PartsReadable(const protocol::Completion& completion) {
  const int ordinal = MemberOrdinal(completion.member);
  if (ordinal < 0 || readable_parts.empty()) return;
  const uint32_t part_end = member(completion.member).part_count();
  const uint64_t block_end =
      std::min<uint64_t>(uint64_t{completion.first_block} + completion.block_count, block_count);
  for (uint64_t block = completion.first_block; block < block_end; ++block) {
    const size_t slot = block * member_count() + static_cast<uint32_t>(ordinal);
    if ((completion.flags & protocol::kCompletionAbsent) != 0) {
      std::atomic_ref<uint32_t>(slots[slot].segment).store(kSegmentNone);
      continue;
    }
    const uint64_t end =
        std::min<uint64_t>(uint64_t{completion.part_first} + completion.part_count, part_end);
    for (uint64_t part = completion.part_first; part < end; ++part) {
      std::atomic_ref<uint64_t> word(readable_parts[slot * kPartWordsPerSlot + part / 64]);
      word.fetch_or(uint64_t{1} << (part % 64), std::memory_order_release);
    }
  }
}

void LeaseState::BlocksLeft(uint32_t first_block) {
  if (first_block < staying_count.load()) staying_count.store(first_block);
}

bool LeaseState::is_part_readable(uint32_t block_index, uint32_t member_index,
                                  uint32_t part_index) const {
  if (block_index < ready_count.load()) return true;
  const int ordinal = MemberOrdinal(member_index);
  if (ordinal < 0 || block_index >= staying_count.load() || readable_parts.empty() ||
      part_index >= kPartsPerSpaceMax) {
    return false;
  }
  const size_t slot = size_t{block_index} * member_count() + static_cast<uint32_t>(ordinal);
  const std::atomic_ref<uint64_t> word(
      const_cast<uint64_t&>(readable_parts[slot * kPartWordsPerSlot + part_index / 64]));
  return (word.load(std::memory_order_acquire) >> (part_index % 64) & 1) != 0;
}

std::span<PartState> LeaseState::PartStatesOf(const client::WrittenPart& part) {
  const std::span<PartState> states =
      PartStatesOf(SlotIndex(part.key_index, part.member), part.member);
  if (part.kind == client::WrittenPart::Kind::kAbsent) return states;
  return states.subspan(part.part_index, 1);
}

Status LeaseState::Push(const client::WrittenPart& part) {
  try {
    if (written.size() >= kWrittenPartsPerSlotMax * slot_refs.size()) SortWritten();
    written.push_back(part);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kNoSpace, "no memory to remember a written part");
  }
  return Status::Ok();
}

Status LeaseState::Remember(const client::WrittenPart& part, bool from_copy) {
  client::LockGuard guard(write_lock);
  TERRACE_RETURN_IF_ERROR(AreOpen(PartStatesOf(part)));
  const uint32_t slot = SlotIndex(part.key_index, part.member);
  if (!from_copy && is_copied_into[slot] != 0) return kCopiedInto;
  return Push(part);
}

Status LeaseState::BeginPart(const client::WrittenPart& part) {
  client::LockGuard guard(write_lock);
  const uint32_t slot = SlotIndex(part.key_index, part.member);
  // First: who is refused leaves no trace that the copy's end, or a Commit, would meet.
  if (is_copied_into[slot] != 0) return kCopiedInto;
  PartState& state = PartStatesOf(slot, part.member)[part.part_index];
  if (state != PartState::kOpen) return NotOpen(state);
  state = PartState::kWriting;
  return Status::Ok();
}

Status LeaseState::EndPart(const client::WrittenPart& part) {
  client::LockGuard guard(write_lock);
  TERRACE_RETURN_IF_ERROR(Push(part));
  PartStatesOf(part).front() = PartState::kOpen;
  return Status::Ok();
}

void LeaseState::ForgetPart(const client::WrittenPart& part) {
  client::LockGuard guard(write_lock);
  std::erase_if(written, [&](const auto& other) { return PartOrder(other) == PartOrder(part); });
  PartStatesOf(part).front() = PartState::kOpen;
}

bool LeaseState::SendPart(const client::WrittenPart& part) {
  const std::span<PartState> states = PartStatesOf(part);
  if (!AreOpen(states).ok()) return false;
  std::ranges::fill(states, PartState::kSent);
  return true;
}

void LeaseState::ReturnPart(const client::WrittenPart& part) {
  std::ranges::fill(PartStatesOf(part), PartState::kOpen);
}

Status LeaseState::Rewrite(std::span<const uint32_t> key_indexes, uint32_t member) {
  client::LockGuard guard(write_lock);
  for (size_t i = 0; i < key_indexes.size(); ++i) {
    const uint32_t slot = SlotIndex(key_indexes[i], member);
    const Status status =
        is_copied_into[slot] != 0 ? kCopiedInto : AreOpen(PartStatesOf(slot, member));
    if (status.ok()) {
      is_copied_into[slot] = 1;
      continue;
    }
    EndRewriteLocked(key_indexes.first(i), member);
    return status;
  }
  std::erase_if(written, [&](const client::WrittenPart& part) {
    return part.member == member && std::ranges::binary_search(key_indexes, part.key_index);
  });
  return Status::Ok();
}

void LeaseState::EndRewrite(std::span<const uint32_t> key_indexes, uint32_t member) {
  client::LockGuard guard(write_lock);
  EndRewriteLocked(key_indexes, member);
}

void LeaseState::EndRewriteLocked(std::span<const uint32_t> key_indexes, uint32_t member) {
  for (const uint32_t key : key_indexes) is_copied_into[SlotIndex(key, member)] = 0;
}

void LeaseState::SortWritten() {
  // Layer-wise writers come in order already, and a stable sort would allocate.
  const auto is_before = [](const auto& a, const auto& b) { return PartOrder(a) < PartOrder(b); };
  if (!std::is_sorted(written.begin(), written.end(), is_before)) {
    std::stable_sort(written.begin(), written.end(), is_before);
  }
  const auto is_same = [](const auto& a, const auto& b) { return PartOrder(a) == PartOrder(b); };
  // From the back, so that the last of equals is the one that stays.
  const auto kept = std::unique(written.rbegin(), written.rend(), is_same);
  written.erase(written.begin(), kept.base());
}

bool LeaseState::IsCommitted(uint32_t key_index) const {
  for (uint64_t rest = member_mask; rest != 0; rest &= rest - 1) {
    const auto index = static_cast<uint32_t>(std::countr_zero(rest));
    if (committed_parts[SlotIndex(key_index, index)] < member(index).part_count()) return false;
  }
  return true;
}

bool LeaseState::TakeEnd() {
  if (is_valid.load() || is_end_sent.load()) return false;
  // The library alone knows its own copies; of raw slots and of reads only the user knows the end.
  const bool may_acknowledge = is_revoked.load() && kind == Kind::kWrite && !has_raw_slots.load();
  if (!is_end_wanted.load() && !may_acknowledge) return false;
  if (copy_count.load() != 0) return false;
  return !is_end_sent.exchange(true);
}

void LeaseState::Clear() {
  group = nullptr;
  connection = 0;
  request_id = 0;
  token = {};
  member_mask = 0;
  is_by_parts = has_more = false;
  block_count = token_count = 0;
  spans.clear();
  slots.clear();
  keys.clear();
  reserved.clear();
  slot_refs.clear();
  first_slots.clear();
  segments.clear();
  ends_owed = 0;
  is_block_ready.clear();
  is_valid = is_revoked = is_end_wanted = is_end_sent = has_raw_slots = is_coming = false;
  ready_count = staying_count = 0;
  end_reason = 0;
  parts_refused = 0;
  readable_parts.clear();
  written.clear();
  committed_parts.clear();
  part_states.clear();
  parts_per_slot = 0;
  is_copied_into.clear();
}

}  // namespace terrace

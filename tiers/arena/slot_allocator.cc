#include "tiers/arena/slot_allocator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint32_t kPagesPerChunk = static_cast<uint32_t>(kExtentUnitBytes / kArenaPageBytes);

struct SlotClass {
  explicit SlotClass(const ExtentShape& extent_shape)
      : shape(extent_shape),
        by_free_count(shape.chunk_count * kExtentUnitBytes / shape.slot_bytes + 1, kExtentNone) {}

  // The smallest free count of any listed extent; 0 if none is listed.
  uint32_t FewestFree() const {
    for (uint32_t word = 0; word < listed.size(); ++word) {
      if (listed[word] != 0)
        return word * 64 + static_cast<uint32_t>(std::countr_zero(listed[word]));
    }
    return 0;
  }

  ExtentShape shape;
  // Heads of the lists of extents with exactly that many free slots; and which lists are not empty.
  std::vector<uint32_t> by_free_count;
  std::array<uint64_t, kSlotsPerExtentMax / 64 + 1> listed = {};
};

}  // namespace

struct SlotAllocator::State {
  explicit State(const Options& options);

  SlotRow& Row(uint32_t segment, uint32_t row) const {
    return rows[uint64_t{segment} * rows_per_segment + row];
  }
  uint64_t RowIndex(uint32_t segment, uint32_t row) const {
    return uint64_t{segment} * rows_per_segment + row;
  }
  uint32_t CheckOf(uint32_t segment, uint32_t row) const {
    return RowCheck(Row(segment, row), table_seed, RowIndex(segment, row));
  }
  void TakeRow(const SlotRef& ref, const CarvedExtent& extent, const SlotIdentity& block,
               SlotState state);
  void CountUsed(uint32_t segment, CarvedExtent* extent, uint32_t slot);
  void CountCarved(const CarvedExtent& extent);

  bool AdoptSegment(uint32_t segment, std::vector<AdoptedSlot>* slots);
  bool AdoptRow(uint32_t segment, uint32_t row, bool is_torn, std::vector<AdoptedSlot>* slots);
  void FenceSegment(uint32_t segment, std::vector<AdoptedSlot>* slots);
  // The slot of an extent as its row has it now.
  SlotRef RefOf(uint32_t segment, uint32_t chunk, uint32_t slot) const;
  void AppendSlots(uint32_t segment, uint32_t chunk, std::vector<SlotRef>* slots) const;
  bool IsMovable(uint32_t segment, uint32_t first_row, const CarvedExtent& extent) const;

  // The lists of a class's extents that have free slots and do not drain.
  void List(uint32_t extent_id);
  void Unlist(uint32_t extent_id);

  // Constant after construction.
  uint32_t rows_per_segment;
  uint32_t classes_max;
  SlotRow* rows;
  uint64_t table_seed;

  ExtentMap extents;
  std::vector<SlotClass> classes;
  std::vector<uint32_t> slots_used_in;  // by segment
  uint64_t used_bytes = 0;
  uint64_t carved_slot_bytes = 0;
  uint64_t waste_bytes = 0;
  uint32_t slots_used = 0;
};

SlotAllocator::State::State(const Options& options)
    : rows_per_segment(static_cast<uint32_t>(options.segment_bytes / kArenaPageBytes)),
      classes_max(options.classes_max),
      rows(reinterpret_cast<SlotRow*>(options.slot_table.data())),
      table_seed(options.table_seed),
      extents(options.segment_bytes, options.segments_max),
      slots_used_in(options.segments_max) {
  TERRACE_CHECK(
      options.slot_table.size() >= SlotTableBytes(options.segment_bytes, options.segments_max),
      "every page of the arena has a row");
}

SlotRef SlotAllocator::State::RefOf(uint32_t segment, uint32_t chunk, uint32_t slot) const {
  const uint64_t offset_bytes = slot * extents.Find(segment, chunk)->slot_bytes;
  SlotRef ref;
  ref.address.segment = segment;
  ref.address.page = chunk * kPagesPerChunk + static_cast<uint32_t>(offset_bytes / kArenaPageBytes);
  ref.row = chunk * kRowsPerChunk + slot;
  ref.generation = Row(segment, ref.row).generation;
  return ref;
}

void SlotAllocator::State::AppendSlots(uint32_t segment, uint32_t chunk,
                                       std::vector<SlotRef>* slots) const {
  const CarvedExtent* extent = extents.Find(segment, chunk);
  if (extent == nullptr) return;
  for (uint32_t slot = 0; slot < extent->slot_count; ++slot) {
    if (extent->IsUsed(slot)) slots->push_back(RefOf(segment, chunk, slot));
  }
}

// Only Sealed bytes can be moved or evicted; a writer or a fence holds the others in place.
bool SlotAllocator::State::IsMovable(uint32_t segment, uint32_t first_row,
                                     const CarvedExtent& extent) const {
  for (uint32_t slot = 0; slot < extent.slot_count; ++slot) {
    if (extent.IsUsed(slot) && Row(segment, first_row + slot).state != SlotState::kSealed) {
      return false;
    }
  }
  return true;
}

void SlotAllocator::State::List(uint32_t extent_id) {
  CarvedExtent& extent = extents.at(extent_id);
  const SegmentState state = extents.state(extents.SegmentOf(extent_id));
  if (extent.free_count == 0 || state != SegmentState::kAssigned) return;
  if (extent.class_index == kClassNone) return;
  SlotClass& slot_class = classes[extent.class_index];
  uint32_t& head = slot_class.by_free_count[extent.free_count];
  extent.previous = kExtentNone;
  extent.next = head;
  if (head != kExtentNone) extents.at(head).previous = extent_id;
  head = extent_id;
  extent.is_listed = true;
  slot_class.listed[extent.free_count / 64] |= uint64_t{1} << (extent.free_count % 64);
}

void SlotAllocator::State::Unlist(uint32_t extent_id) {
  CarvedExtent& extent = extents.at(extent_id);
  if (!extent.is_listed) return;
  SlotClass& slot_class = classes[extent.class_index];
  uint32_t& head = slot_class.by_free_count[extent.free_count];
  if (extent.next != kExtentNone) extents.at(extent.next).previous = extent.previous;
  if (extent.previous != kExtentNone) {
    extents.at(extent.previous).next = extent.next;
  } else {
    head = extent.next;
  }
  if (head == kExtentNone) {
    slot_class.listed[extent.free_count / 64] &= ~(uint64_t{1} << (extent.free_count % 64));
  }
  extent.is_listed = false;
}

SlotAllocator::SlotAllocator(const Options& options) : state_(std::make_unique<State>(options)) {}
SlotAllocator::~SlotAllocator() = default;

Result<uint32_t> SlotAllocator::AddClass(uint64_t slot_bytes, uint64_t owner) {
  State& s = *state_;
  if (slot_bytes == 0 || slot_bytes % kArenaPageBytes != 0) {
    return Status(StatusCode::kInvalid, "a slot is a positive multiple of 4 KiB");
  }
  if (slot_bytes > s.extents.chunks_per_segment() * kExtentUnitBytes) {
    return Status(StatusCode::kInvalid,
                  "a slot is larger than a segment: use fewer tokens a block");
  }
  if (s.classes.size() >= s.classes_max) {
    return Status(StatusCode::kNoSpace, "classes_max slot classes exist already");
  }
  const auto class_index = static_cast<uint32_t>(s.classes.size());
  s.classes.emplace_back(
      ExtentShape(class_index, slot_bytes, owner, s.extents.chunks_per_segment()));
  return class_index;
}

Result<SlotRef> SlotAllocator::Allocate(uint32_t class_index, const SlotIdentity& block) {
  State& s = *state_;
  TERRACE_CHECK(class_index < s.classes.size(), "the class was added");
  SlotClass& slot_class = s.classes[class_index];
  uint32_t extent_id = kExtentNone;
  if (const uint32_t fewest_free = slot_class.FewestFree(); fewest_free != 0) {
    extent_id = slot_class.by_free_count[fewest_free];
  } else {
    extent_id = s.extents.Carve(&slot_class.shape);
    if (extent_id == kExtentNone) {
      return Status(StatusCode::kNoSpace, "no populated memory fits a slot of this size");
    }
    s.CountCarved(s.extents.at(extent_id));
  }
  CarvedExtent& extent = s.extents.at(extent_id);
  const uint32_t slot = extent.LowestFree();
  const uint32_t segment = s.extents.SegmentOf(extent_id);
  s.Unlist(extent_id);
  s.CountUsed(segment, &extent, slot);
  s.List(extent_id);
  const SlotRef ref = s.RefOf(segment, s.extents.ChunkOf(extent_id), slot);
  TERRACE_CHECK(s.Row(segment, ref.row).state == SlotState::kFree, "a free slot has a free row");
  s.TakeRow(ref, extent, block, SlotState::kReserved);
  return ref;
}

void SlotAllocator::State::CountUsed(uint32_t segment, CarvedExtent* extent, uint32_t slot) {
  extent->SetUsed(slot);
  ++slots_used_in[segment];
  ++slots_used;
  used_bytes += extent->slot_bytes;
}

void SlotAllocator::State::CountCarved(const CarvedExtent& extent) {
  carved_slot_bytes += extent.slot_count * extent.slot_bytes;
  waste_bytes += extent.waste_bytes();
}

// The state comes last: until then a successor takes the row for free.
void SlotAllocator::State::TakeRow(const SlotRef& ref, const CarvedExtent& extent,
                                   const SlotIdentity& block, SlotState state) {
  SlotRow& row = Row(ref.address.segment, ref.row);
  row.holder = 0;
  row.checksum = {};
  row.slot_pages = static_cast<uint32_t>(extent.slot_bytes / kArenaPageBytes);
  row.extent_chunks = extent.chunk_count;
  row.block = block;
  row.check = CheckOf(ref.address.segment, ref.row);
  std::atomic_ref<SlotState>(row.state).store(state, std::memory_order_release);
}

void SlotAllocator::Amend(const SlotRef& slot, const SlotIdentity& block) {
  SlotRow& row = this->row(slot);
  TERRACE_CHECK(row.state != SlotState::kFree, "only a slot in use has a block");
  // A kill in between leaves a torn row.
  std::atomic_ref<uint32_t>(row.check).store(~row.check, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  row.block = block;
  const uint32_t check = state_->CheckOf(slot.address.segment, slot.row);
  std::atomic_ref<uint32_t>(row.check).store(check, std::memory_order_release);
}

void SlotAllocator::Free(const SlotRef& slot) {
  State& s = *state_;
  TERRACE_CHECK(IsCurrent(slot), "only the present use of a slot can be freed");
  const uint32_t segment = slot.address.segment;
  SlotRow& row = s.Row(segment, slot.row);
  TERRACE_CHECK(row.state != SlotState::kFree, "a slot in use has a row in use");
  // The state goes first: who frees a slot has seen to it that nobody touches it any more. The rest
  // of a free row says nothing, and spares the store its cache line.
  std::atomic_ref<SlotState>(row.state).store(SlotState::kFree, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  // The generation may wrap: a stale echo is believed only if it is exactly 2³² uses old.
  ++row.generation;

  const uint32_t extent_id = segment * s.extents.chunks_per_segment() + slot.row / kRowsPerChunk;
  CarvedExtent& extent = s.extents.at(extent_id);
  s.Unlist(extent_id);
  extent.SetFree(slot.row % kRowsPerChunk);
  --s.slots_used_in[segment];
  --s.slots_used;
  s.used_bytes -= extent.slot_bytes;
  if (extent.used_count() > 0) {
    s.List(extent_id);
    return;
  }
  s.carved_slot_bytes -= extent.slot_count * extent.slot_bytes;
  s.waste_bytes -= extent.waste_bytes();
  s.extents.Return(extent_id);
}

// ---- adoption ----

void SlotAllocator::Adopt(std::vector<AdoptedSlot>* slots) {
  State& s = *state_;
  TERRACE_CHECK(s.slots_used == 0, "adoption comes before the first slot");
  for (uint32_t segment = 0; segment < s.slots_used_in.size(); ++segment) {
    if (s.extents.state(segment) != SegmentState::kFree) continue;
    const size_t before = slots->size();
    if (s.AdoptSegment(segment, slots)) continue;
    slots->resize(before);
    s.FenceSegment(segment, slots);
  }
}

// Sound rows first: where a torn row's carving is in doubt, theirs counts.
bool SlotAllocator::State::AdoptSegment(uint32_t segment, std::vector<AdoptedSlot>* slots) {
  std::vector<uint32_t> torn;
  for (uint32_t row = 0; row < rows_per_segment; ++row) {
    const SlotRow& r = Row(segment, row);
    if (r.state == SlotState::kFree) continue;
    const bool is_sound =
        static_cast<uint8_t>(r.state) < kSlotStateCount && r.check == CheckOf(segment, row);
    if (!is_sound) {
      torn.push_back(row);
    } else if (!AdoptRow(segment, row, false, slots)) {
      return false;
    }
  }
  for (const uint32_t row : torn) {
    if (!AdoptRow(segment, row, true, slots)) return false;
  }
  return true;
}

bool SlotAllocator::State::AdoptRow(uint32_t segment, uint32_t row_index, bool is_torn,
                                    std::vector<AdoptedSlot>* slots) {
  const uint32_t chunk = row_index / kRowsPerChunk;
  const uint32_t slot = row_index % kRowsPerChunk;
  const SlotRow& row = Row(segment, row_index);
  const uint64_t slot_bytes = row.slot_pages * kArenaPageBytes;
  const CarvedExtent* known = extents.Find(segment, chunk);
  if (known == nullptr) {
    const uint32_t id = extents.CarveAdopted(segment, chunk, row.extent_chunks, slot_bytes);
    if (id == kExtentNone) return false;
    CountCarved(extents.at(id));
  } else if (!is_torn &&
             (known->slot_bytes != slot_bytes || known->chunk_count != row.extent_chunks)) {
    return false;
  }
  CarvedExtent& extent = extents.at(segment * extents.chunks_per_segment() + chunk);
  if (slot >= extent.slot_count) return false;
  CountUsed(segment, &extent, slot);
  const SlotRef ref = RefOf(segment, chunk, slot);
  if (is_torn) TakeRow(ref, extent, {}, SlotState::kFenced);
  slots->push_back({.slot = ref, .is_torn = is_torn});
  return true;
}

void SlotAllocator::State::FenceSegment(uint32_t segment, std::vector<AdoptedSlot>* slots) {
  for (uint32_t chunk = 0; chunk < extents.chunks_per_segment(); ++chunk) {
    const CarvedExtent* found = extents.Find(segment, chunk);
    if (found == nullptr) continue;
    CarvedExtent& extent = extents.at(segment * extents.chunks_per_segment() + chunk);
    carved_slot_bytes -= extent.slot_count * extent.slot_bytes;
    waste_bytes -= extent.waste_bytes();
    used_bytes -= extent.used_bytes();
    slots_used -= extent.used_count();
    extent.used = {};
    extent.free_count = extent.slot_count;
    extents.Return(segment * extents.chunks_per_segment() + chunk);
  }
  slots_used_in[segment] = 0;
  // Row 0 keeps all of it until the others have gone: a successor of this one, too, finds either
  // the contradiction or the fence.
  const uint32_t id = extents.CarveAdopted(segment, 0, extents.chunks_per_segment(),
                                           extents.chunks_per_segment() * kExtentUnitBytes);
  CarvedExtent& whole = extents.at(id);
  CountCarved(whole);
  CountUsed(segment, &whole, 0);
  const SlotRef ref = RefOf(segment, 0, 0);
  TakeRow(ref, whole, {}, SlotState::kFenced);
  for (uint32_t row = 1; row < rows_per_segment; ++row) {
    if (Row(segment, row).state == SlotState::kFree) continue;
    Row(segment, row).state = SlotState::kFree;
    ++Row(segment, row).generation;
  }
  slots->push_back({.slot = ref, .is_torn = true});
}

bool SlotAllocator::Claim(const SlotRef& slot, uint32_t class_index) {
  State& s = *state_;
  TERRACE_CHECK(IsCurrent(slot) && class_index < s.classes.size(), "a slot in use and a class");
  const uint32_t extent_id =
      slot.address.segment * s.extents.chunks_per_segment() + slot.row / kRowsPerChunk;
  const CarvedExtent& extent = s.extents.at(extent_id);
  if (extent.class_index == class_index) return true;
  const ExtentShape& shape = s.classes[class_index].shape;
  if (extent.class_index != kClassNone || extent.slot_bytes != shape.slot_bytes ||
      extent.chunk_count > shape.chunk_count) {
    return false;
  }
  s.extents.Claim(extent_id, shape);
  s.List(extent_id);
  return true;
}

bool SlotAllocator::IsCurrent(const SlotRef& slot) const {
  const uint32_t chunk = slot.row / kRowsPerChunk;
  const uint32_t index = slot.row % kRowsPerChunk;
  const CarvedExtent* extent = state_->extents.Find(slot.address.segment, chunk);
  if (extent == nullptr || index >= extent->slot_count || !extent->IsUsed(index)) return false;
  return state_->RefOf(slot.address.segment, chunk, index) == slot;
}

SlotRow& SlotAllocator::row(const SlotRef& slot) {
  return const_cast<SlotRow&>(std::as_const(*this).row(slot));
}

const SlotRow& SlotAllocator::row(const SlotRef& slot) const {
  TERRACE_CHECK(state_->extents.Find(slot.address.segment, slot.row / kRowsPerChunk) != nullptr,
                "the slot lies in an extent");
  return state_->Row(slot.address.segment, slot.row);
}

void SlotAllocator::SegmentPopulated(uint32_t segment) {
  TERRACE_CHECK(segment_state(segment) == SegmentState::kAbsent,
                "only an absent segment is populated");
  state_->extents.SetState(segment, SegmentState::kFree);
}

SegmentState SlotAllocator::segment_state(uint32_t segment) const {
  TERRACE_CHECK(segment < state_->slots_used_in.size(), "the segment is part of the arena");
  return state_->extents.state(segment);
}

void SlotAllocator::BeginDrain(uint32_t segment) {
  State& s = *state_;
  const SegmentState state = segment_state(segment);
  TERRACE_CHECK(state == SegmentState::kAssigned || state == SegmentState::kFree,
                "only a segment that holds or may hold slots is drained");
  for (uint32_t chunk = 0; chunk < s.extents.chunks_per_segment(); ++chunk) {
    s.Unlist(segment * s.extents.chunks_per_segment() + chunk);  // no extent: not listed
  }
  s.extents.SetState(segment, SegmentState::kDraining);
}

void SlotAllocator::EndDrain(uint32_t segment) {
  State& s = *state_;
  TERRACE_CHECK(segment_state(segment) == SegmentState::kDraining, "the segment drains");
  const bool is_empty = s.slots_used_in[segment] == 0;
  s.extents.SetState(segment, is_empty ? SegmentState::kFree : SegmentState::kAssigned);
  for (uint32_t chunk = 0; chunk < s.extents.chunks_per_segment(); ++chunk) {
    if (s.extents.Find(segment, chunk) == nullptr) continue;
    s.List(segment * s.extents.chunks_per_segment() + chunk);
  }
}

bool SlotAllocator::IsDrained(uint32_t segment) const {
  return segment_state(segment) == SegmentState::kDraining && state_->slots_used_in[segment] == 0;
}

void SlotAllocator::SetSegmentState(uint32_t segment, SegmentState state) {
  const SegmentState now = segment_state(segment);
  const bool is_step = (IsDrained(segment) && state == SegmentState::kRevoking) ||
                       (now == SegmentState::kRevoking && state == SegmentState::kPunching) ||
                       (now == SegmentState::kPunching &&
                        (state == SegmentState::kAbsent || state == SegmentState::kFree));
  TERRACE_CHECK(is_step, "a drained segment is revoked, then punched, then absent");
  state_->extents.SetState(segment, state);
}

uint32_t SlotAllocator::slots_used_in(uint32_t segment) const {
  return state_->slots_used_in[segment];
}

uint32_t SlotAllocator::SlotsInSegment(uint32_t segment, uint32_t chunk, uint32_t slot_count_min,
                                       std::vector<SlotRef>* slots) const {
  const size_t slot_count_end = slots->size() + slot_count_min;
  while (chunk < state_->extents.chunks_per_segment() && slots->size() < slot_count_end) {
    state_->AppendSlots(segment, chunk++, slots);
  }
  return chunk < state_->extents.chunks_per_segment() ? chunk : 0;
}

uint64_t SlotAllocator::SlotsInEmptiestExtent(uint32_t for_class,
                                              std::vector<SlotRef>* slots) const {
  State& s = *state_;
  TERRACE_CHECK(for_class < s.classes.size(), "the class was added");
  const ExtentRun run = s.extents.FindEmptiestRun(
      s.classes[for_class].shape,
      [&s](uint32_t segment, uint32_t first_row, const CarvedExtent& extent) {
        return s.IsMovable(segment, first_row, extent);
      });
  if (run.segment == kSegmentNone) return 0;
  for (uint32_t chunk = run.chunk; chunk < run.chunk + run.chunk_count; ++chunk) {
    s.AppendSlots(run.segment, chunk, slots);
  }
  return run.chunk_count * kExtentUnitBytes;
}

uint64_t SlotAllocator::slot_bytes(uint32_t class_index) const {
  TERRACE_CHECK(class_index < state_->classes.size(), "the class was added");
  return state_->classes[class_index].shape.slot_bytes;
}

uint64_t SlotAllocator::extent_bytes(uint32_t class_index) const {
  TERRACE_CHECK(class_index < state_->classes.size(), "the class was added");
  return state_->classes[class_index].shape.chunk_count * kExtentUnitBytes;
}

uint32_t SlotAllocator::segment_count(SegmentState state) const {
  return state_->extents.segment_count(state);
}

SlotAllocator::Usage SlotAllocator::usage() const {
  const State& s = *state_;
  const uint64_t populated_segments = s.slots_used_in.size() -
                                      segment_count(SegmentState::kAbsent) -
                                      segment_count(SegmentState::kPunching);
  const uint64_t segment_bytes = s.extents.chunks_per_segment() * kExtentUnitBytes;
  Usage usage;
  usage.used_bytes = s.used_bytes;
  usage.free_slot_bytes = s.carved_slot_bytes - s.used_bytes;
  usage.waste_bytes = s.waste_bytes;
  usage.unassigned_bytes = populated_segments * segment_bytes - s.carved_slot_bytes - s.waste_bytes;
  usage.slots_used = s.slots_used;
  return usage;
}

void SlotAllocator::CheckInvariants() const {
  const State& s = *state_;
  s.extents.CheckInvariants();
  uint64_t used_bytes = 0, carved_slot_bytes = 0, waste_bytes = 0, slots_used = 0;
  for (uint32_t segment = 0; segment < s.slots_used_in.size(); ++segment) {
    uint32_t segment_slots = 0;
    for (uint32_t chunk = 0; chunk < s.extents.chunks_per_segment(); ++chunk) {
      const CarvedExtent* extent = s.extents.Find(segment, chunk);
      if (extent == nullptr) continue;
      uint32_t used_count = 0;
      for (uint32_t slot = 0; slot < kSlotsPerExtentMax; ++slot) {
        const bool is_used = extent->IsUsed(slot);
        TERRACE_CHECK(!is_used || slot < extent->slot_count, "only slots that exist are used");
        const SlotState state = s.Row(segment, chunk * kRowsPerChunk + slot).state;
        TERRACE_CHECK(is_used == (state != SlotState::kFree), "row and bitmap agree");
        used_count += is_used ? 1 : 0;
      }
      TERRACE_CHECK(used_count == extent->used_count(), "an extent counts its slots");
      const bool is_listable = extent->free_count > 0 && extent->class_index != kClassNone &&
                               s.extents.state(segment) == SegmentState::kAssigned;
      TERRACE_CHECK(extent->is_listed == is_listable, "free slots are listed unless they drain");
      used_bytes += extent->used_bytes();
      carved_slot_bytes += extent->slot_count * extent->slot_bytes;
      waste_bytes += extent->waste_bytes();
      segment_slots += used_count;
    }
    TERRACE_CHECK(segment_slots == s.slots_used_in[segment], "a segment counts its slots");
    slots_used += segment_slots;
  }
  TERRACE_CHECK(used_bytes == s.used_bytes && slots_used == s.slots_used, "used slots add up");
  TERRACE_CHECK(carved_slot_bytes == s.carved_slot_bytes && waste_bytes == s.waste_bytes,
                "used + free slot bytes + waste = bytes of all extents");
}

}  // namespace terrace

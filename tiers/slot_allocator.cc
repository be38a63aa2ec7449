#include "tiers/slot_allocator.h"

#include <algorithm>
#include <array>
#include <bit>

#include "terrace/check.h"

namespace terrace {
namespace {

// Memory is carved in chunks of 2 MiB. Chunk c of a segment owns the rows [c × 512, (c + 1) × 512)
// of its slot table, and slot k of an extent beginning at chunk c has row c × 512 + k: a row names
// its extent and its slot without a search. It fits because no extent holds more than 512 slots: a
// slot ≤ 40 KiB wastes ≤ 2 % of a single chunk, and a larger one does so within 51 slots.
constexpr uint32_t kRowsPerChunk = static_cast<uint32_t>(kExtentUnitBytes / kArenaPageBytes);
constexpr uint32_t kSlotsPerExtentMax = kRowsPerChunk;
constexpr uint32_t kPagesPerChunk = kRowsPerChunk;

constexpr uint64_t kWasteDivisor = 50;  // an extent may waste one part in 50: 2 %
// Where no whole extent fits, a class takes a leftover run if it wastes no more than one part
// in 24.
constexpr uint64_t kLeftoverWasteDivisor = 24;

constexpr uint32_t kNoExtent = 0xFFFFFFFF;
constexpr uint16_t kNoChunk = 0xFFFF;
constexpr uint32_t kWordBits = 64;

// Segments a search for the emptiest run looks at in one call: some 10⁴ steps.
constexpr uint32_t kSegmentsPerSearchMax = 64;

// Slots per extent that a run of `chunk_count` holds.
uint32_t SlotsIn(uint32_t chunk_count, uint64_t slot_bytes) {
  return static_cast<uint32_t>(chunk_count * kExtentUnitBytes / slot_bytes);
}

uint64_t WasteBytes(uint32_t chunk_count, uint64_t slot_bytes) {
  return chunk_count * kExtentUnitBytes % slot_bytes;
}

// Chunks of the smallest extent that wastes ≤ 2 %, or of the one that wastes the smallest share.
// Example: 640 KiB slots waste 6.25 % of 2, 4, 6 and 8 MiB and nothing of 10 MiB: 5 chunks.
uint32_t ExtentChunks(uint64_t slot_bytes, uint32_t chunks_max) {
  uint32_t best = 0;
  for (uint32_t chunks = 1; chunks <= chunks_max; ++chunks) {
    if (chunks * kExtentUnitBytes < slot_bytes) continue;
    const uint64_t waste = WasteBytes(chunks, slot_bytes);
    if (waste * kWasteDivisor <= chunks * kExtentUnitBytes) return chunks;
    if (best == 0 || waste * best < WasteBytes(best, slot_bytes) * chunks) best = chunks;
  }
  return best;
}

struct CarvedExtent {
  uint32_t class_index = 0;
  uint32_t previous = kNoExtent;  // neighbours in the class's list for this free_count
  uint32_t next = kNoExtent;
  uint16_t chunk_count = 0;  // 0: no extent begins at this chunk
  uint16_t slot_count = 0;
  uint16_t free_count = 0;
  bool is_listed = false;
  std::array<uint64_t, kSlotsPerExtentMax / kWordBits> used = {};

  bool IsUsed(uint32_t slot) const { return (used[slot / kWordBits] >> (slot % kWordBits)) & 1; }
  uint32_t used_count() const { return uint32_t{slot_count} - free_count; }
};

struct SlotClass {
  uint64_t slot_bytes = 0;
  uint64_t owner = 0;
  uint32_t chunk_count = 0;
  uint32_t last_segment = kSegmentNone;       // where the last extent was carved
  uint64_t leftover_missing_at = UINT64_MAX;  // chunks_returned when no leftover run would do
  // Head of the list of extents with exactly that many free slots; and which lists are not empty.
  std::vector<uint32_t> by_free_count;
  std::array<uint64_t, kSlotsPerExtentMax / kWordBits + 1> listed = {};

  // The smallest non-zero free count of any listed extent; 0 if there is none.
  uint32_t FewestFree() const {
    for (uint32_t word = 0; word < listed.size(); ++word) {
      if (listed[word] != 0) {
        return word * kWordBits + static_cast<uint32_t>(std::countr_zero(listed[word]));
      }
    }
    return 0;
  }
};

struct Segment {
  SegmentState state = SegmentState::kAbsent;
  uint32_t extent_count = 0;
  uint32_t slots_used = 0;
  std::vector<uint16_t> chunk_owner;  // first chunk of the covering extent, or kNoChunk
  std::vector<CarvedExtent> extents;  // by first chunk
};

}  // namespace

struct SlotAllocator::State {
  explicit State(const Options& options);

  // ---- addressing ----
  uint32_t ExtentId(uint32_t segment, uint32_t chunk) const {
    return segment * chunks_per_segment + chunk;
  }
  uint32_t SegmentOf(uint32_t extent_id) const { return extent_id / chunks_per_segment; }
  uint32_t ChunkOf(uint32_t extent_id) const { return extent_id % chunks_per_segment; }
  CarvedExtent& ExtentAt(uint32_t extent_id) {
    return segments[SegmentOf(extent_id)].extents[ChunkOf(extent_id)];
  }
  SlotRow& Row(uint32_t segment, uint32_t row) const {
    return rows[uint64_t{segment} * rows_per_segment + row];
  }
  SlotRef RefOf(uint32_t segment, uint32_t chunk, uint32_t slot) const;
  const CarvedExtent* FindExtent(const SlotRef& slot) const;

  // ---- lists of a class's extents that have free slots ----
  void List(uint32_t extent_id);
  void Unlist(uint32_t extent_id);

  // ---- carving ----
  uint32_t Carve(uint32_t class_index);
  uint32_t CarveAt(uint32_t class_index, uint32_t segment, uint32_t chunk, uint32_t chunk_count);
  void Uncarve(uint32_t extent_id);
  uint32_t FindSegment(const SlotClass& slot_class) const;
  uint32_t FindRun(uint32_t segment, uint32_t chunk_count) const;
  uint32_t CarveLeftover(uint32_t class_index);
  void MeasureRuns(uint32_t segment);
  void SetState(uint32_t segment, SegmentState state);

  // ---- compaction ----
  struct Window {
    uint32_t segment = kSegmentNone;
    uint32_t chunk = 0;
    uint32_t chunk_count = 0;
    uint64_t used_bytes = 0;

    // Emptier by share; at equal shares the one that loses less.
    bool IsEmptierThan(const Window& other) const {
      const uint64_t mine = used_bytes * other.chunk_count;
      const uint64_t theirs = other.used_bytes * chunk_count;
      return mine != theirs ? mine < theirs : used_bytes < other.used_bytes;
    }
  };
  void FindEmptiestWindow(uint32_t for_class, uint32_t segment, Window* best) const;
  bool IsMovable(const Window& window) const;
  void AppendSlots(uint32_t segment, uint32_t chunk, std::vector<SlotRef>* slots) const;

  // Constant after construction.
  uint32_t chunks_per_segment;
  uint32_t rows_per_segment;
  uint32_t segments_max;
  uint32_t classes_max;
  SlotRow* rows;

  std::vector<SlotClass> classes;
  std::vector<Segment> segments;
  // Keys of the search for room, apart so that a scan over all segments stays in a few cache lines.
  std::vector<uint64_t> segment_owner;
  std::vector<uint16_t> longest_run;  // free chunks in a row; 0 unless kFree or kAssigned
  std::array<uint32_t, 6> state_counts = {};
  // No run of this many chunks exists since chunks were last given back: spares a full arena the
  // scan.
  uint32_t missing_run_chunks = 0xFFFFFFFF;
  uint64_t chunks_returned = 0;  // counts the times that free chunks appeared
  uint32_t leftover_from = 0;    // where the next search for a leftover run begins
  uint32_t search_from = 0;      // where the next search for the emptiest run begins
  uint64_t used_bytes = 0;
  uint64_t slot_bytes_carved = 0;
  uint64_t waste_bytes = 0;
  uint64_t chunks_carved = 0;
  uint32_t slots_used = 0;
};

SlotAllocator::State::State(const Options& options)
    : chunks_per_segment(static_cast<uint32_t>(options.segment_bytes / kExtentUnitBytes)),
      rows_per_segment(static_cast<uint32_t>(options.segment_bytes / kArenaPageBytes)),
      segments_max(options.segments_max),
      classes_max(options.classes_max),
      rows(reinterpret_cast<SlotRow*>(options.slot_table.data())),
      segments(options.segments_max),
      segment_owner(options.segments_max),
      longest_run(options.segments_max) {
  TERRACE_CHECK(options.segment_bytes >= kSegmentBytesMin &&
                    options.segment_bytes <= kSegmentBytesMax &&
                    options.segment_bytes % kExtentUnitBytes == 0,
                "a segment is 1 to 128 chunks of 2 MiB");
  TERRACE_CHECK(options.segments_max > 0, "an arena has an address space");
  TERRACE_CHECK(
      options.slot_table.size() >= SlotTableBytes(options.segment_bytes, options.segments_max),
      "every page of the arena has a row");
  state_counts[static_cast<size_t>(SegmentState::kAbsent)] = segments_max;
}

SlotRef SlotAllocator::State::RefOf(uint32_t segment, uint32_t chunk, uint32_t slot) const {
  const uint64_t slot_bytes = classes[segments[segment].extents[chunk].class_index].slot_bytes;
  SlotRef ref;
  ref.address.segment = segment;
  ref.address.page =
      chunk * kPagesPerChunk + static_cast<uint32_t>(slot * slot_bytes / kArenaPageBytes);
  ref.row = chunk * kRowsPerChunk + slot;
  ref.generation = Row(segment, ref.row).generation;
  return ref;
}

const CarvedExtent* SlotAllocator::State::FindExtent(const SlotRef& slot) const {
  const uint32_t segment = slot.address.segment;
  if (segment >= segments_max || slot.row >= rows_per_segment) return nullptr;
  if (segments[segment].extents.empty()) return nullptr;
  const CarvedExtent& extent = segments[segment].extents[slot.row / kRowsPerChunk];
  return extent.chunk_count == 0 ? nullptr : &extent;
}

void SlotAllocator::State::List(uint32_t extent_id) {
  CarvedExtent& extent = ExtentAt(extent_id);
  if (extent.free_count == 0) return;
  if (segments[SegmentOf(extent_id)].state != SegmentState::kAssigned) return;
  SlotClass& slot_class = classes[extent.class_index];
  uint32_t& head = slot_class.by_free_count[extent.free_count];
  extent.previous = kNoExtent;
  extent.next = head;
  if (head != kNoExtent) ExtentAt(head).previous = extent_id;
  head = extent_id;
  extent.is_listed = true;
  slot_class.listed[extent.free_count / kWordBits] |= uint64_t{1}
                                                      << (extent.free_count % kWordBits);
}

void SlotAllocator::State::Unlist(uint32_t extent_id) {
  CarvedExtent& extent = ExtentAt(extent_id);
  if (!extent.is_listed) return;
  SlotClass& slot_class = classes[extent.class_index];
  uint32_t& head = slot_class.by_free_count[extent.free_count];
  if (extent.next != kNoExtent) ExtentAt(extent.next).previous = extent.previous;
  if (extent.previous != kNoExtent) {
    ExtentAt(extent.previous).next = extent.next;
  } else {
    head = extent.next;
  }
  if (head == kNoExtent) {
    slot_class.listed[extent.free_count / kWordBits] &=
        ~(uint64_t{1} << (extent.free_count % kWordBits));
  }
  extent.is_listed = false;
}

void SlotAllocator::State::SetState(uint32_t segment, SegmentState state) {
  --state_counts[static_cast<size_t>(segments[segment].state)];
  ++state_counts[static_cast<size_t>(state)];
  segments[segment].state = state;
  ++chunks_returned;
  MeasureRuns(segment);
}

void SlotAllocator::State::MeasureRuns(uint32_t segment) {
  const Segment& seg = segments[segment];
  uint32_t longest = 0;
  if (seg.state == SegmentState::kFree || seg.state == SegmentState::kAssigned) {
    uint32_t run = 0;
    for (const uint16_t owner : seg.chunk_owner) {
      run = owner == kNoChunk ? run + 1 : 0;
      longest = std::max(longest, run);
    }
  }
  longest_run[segment] = static_cast<uint16_t>(longest);
  if (longest >= missing_run_chunks) missing_run_chunks = 0xFFFFFFFF;
}

// First chunk of the lowest free run of at least `chunk_count`, which longest_run promises.
uint32_t SlotAllocator::State::FindRun(uint32_t segment, uint32_t chunk_count) const {
  const Segment& seg = segments[segment];
  uint32_t run = 0;
  for (uint32_t chunk = 0; chunk < chunks_per_segment; ++chunk) {
    run = seg.chunk_owner[chunk] == kNoChunk ? run + 1 : 0;
    if (run == chunk_count) return chunk + 1 - chunk_count;
  }
  TERRACE_CHECK(false, "longest_run said that a run of this length exists");
  return 0;
}

// Where the next extent of a class goes: a segment of its owner, else a free segment, else the
// segment whose longest run is the tightest fit.
uint32_t SlotAllocator::State::FindSegment(const SlotClass& slot_class) const {
  const uint32_t need = slot_class.chunk_count;
  const auto is_own = [&](uint32_t segment) {
    return segments[segment].state == SegmentState::kAssigned &&
           segment_owner[segment] == slot_class.owner;
  };
  if (slot_class.last_segment != kSegmentNone && longest_run[slot_class.last_segment] >= need &&
      is_own(slot_class.last_segment)) {
    return slot_class.last_segment;
  }
  uint32_t free_segment = kSegmentNone;
  uint32_t tightest = kSegmentNone;
  for (uint32_t segment = 0; segment < segments_max; ++segment) {
    if (longest_run[segment] < need) continue;
    if (segments[segment].state == SegmentState::kFree) {
      if (free_segment == kSegmentNone) free_segment = segment;
    } else if (is_own(segment)) {
      return segment;
    } else if (tightest == kSegmentNone || longest_run[segment] < longest_run[tightest]) {
      tightest = segment;
    }
  }
  return free_segment != kSegmentNone ? free_segment : tightest;
}

uint32_t SlotAllocator::State::Carve(uint32_t class_index) {
  SlotClass& slot_class = classes[class_index];
  if (slot_class.chunk_count < missing_run_chunks) {
    const uint32_t segment = FindSegment(slot_class);
    if (segment != kSegmentNone) {
      return CarveAt(class_index, segment, FindRun(segment, slot_class.chunk_count),
                     slot_class.chunk_count);
    }
    missing_run_chunks = slot_class.chunk_count;
  }
  return CarveLeftover(class_index);
}

uint32_t SlotAllocator::State::CarveAt(uint32_t class_index, uint32_t segment, uint32_t chunk,
                                       uint32_t chunk_count) {
  SlotClass& slot_class = classes[class_index];
  Segment& seg = segments[segment];
  CarvedExtent& extent = seg.extents[chunk];
  extent = CarvedExtent{};
  extent.class_index = class_index;
  extent.chunk_count = static_cast<uint16_t>(chunk_count);
  extent.slot_count = static_cast<uint16_t>(SlotsIn(chunk_count, slot_class.slot_bytes));
  extent.free_count = extent.slot_count;
  for (uint32_t c = chunk; c < chunk + chunk_count; ++c) {
    seg.chunk_owner[c] = static_cast<uint16_t>(chunk);
  }
  ++seg.extent_count;
  chunks_carved += chunk_count;
  slot_bytes_carved += extent.slot_count * slot_class.slot_bytes;
  waste_bytes += WasteBytes(chunk_count, slot_class.slot_bytes);
  if (seg.state == SegmentState::kFree) {
    segment_owner[segment] = slot_class.owner;
    SetState(segment, SegmentState::kAssigned);
  } else {
    MeasureRuns(segment);
  }
  slot_class.last_segment = segment;
  const uint32_t extent_id = ExtentId(segment, chunk);
  List(extent_id);
  return extent_id;
}

// A shorter extent in a run that no whole extent fits, if its slots fill it well: a 26 MiB extent
// leaves 22 MiB of a segment over, in which five of its six slots fit.
uint32_t SlotAllocator::State::CarveLeftover(uint32_t class_index) {
  const SlotClass& slot_class = classes[class_index];
  if (slot_class.leftover_missing_at == chunks_returned) return kNoExtent;
  uint32_t searched_count = 0;
  for (uint32_t i = 0; i < segments_max && searched_count < kSegmentsPerSearchMax; ++i) {
    const uint32_t segment = (leftover_from + i) % segments_max;
    if (longest_run[segment] * kExtentUnitBytes < slot_class.slot_bytes) continue;
    ++searched_count;
    const Segment& seg = segments[segment];
    for (uint32_t chunk = 0; chunk < chunks_per_segment;) {
      uint32_t run = 0;
      while (chunk + run < chunks_per_segment && seg.chunk_owner[chunk + run] == kNoChunk) ++run;
      const uint32_t slots = SlotsIn(run, slot_class.slot_bytes);
      if (slots > 0) {
        const uint64_t slots_bytes = slots * slot_class.slot_bytes;
        const auto chunks =
            static_cast<uint32_t>((slots_bytes + kExtentUnitBytes - 1) / kExtentUnitBytes);
        const uint64_t waste = chunks * kExtentUnitBytes - slots_bytes;
        if (waste * kLeftoverWasteDivisor <= chunks * kExtentUnitBytes) {
          leftover_from = segment;
          return CarveAt(class_index, segment, chunk, chunks);
        }
      }
      chunk += std::max(run, 1u);
    }
  }
  if (searched_count == kSegmentsPerSearchMax) {
    leftover_from = (leftover_from + kSegmentsPerSearchMax) % segments_max;
  } else {
    classes[class_index].leftover_missing_at = chunks_returned;
  }
  return kNoExtent;
}

void SlotAllocator::State::Uncarve(uint32_t extent_id) {
  const uint32_t segment = SegmentOf(extent_id);
  const uint32_t chunk = ChunkOf(extent_id);
  Segment& seg = segments[segment];
  CarvedExtent& extent = seg.extents[chunk];
  const uint64_t slot_bytes = classes[extent.class_index].slot_bytes;
  Unlist(extent_id);
  for (uint32_t c = chunk; c < chunk + extent.chunk_count; ++c) seg.chunk_owner[c] = kNoChunk;
  ++chunks_returned;
  chunks_carved -= extent.chunk_count;
  slot_bytes_carved -= extent.slot_count * slot_bytes;
  waste_bytes -= WasteBytes(extent.chunk_count, slot_bytes);
  extent = CarvedExtent{};
  --seg.extent_count;
  if (seg.extent_count == 0 && seg.state == SegmentState::kAssigned) {
    SetState(segment, SegmentState::kFree);
  } else {
    MeasureRuns(segment);
  }
}

// ---- compaction ----

// Walks the segment's items (extents and free chunks) with two ends: [first, end) is the shortest
// run of whole items from `first` on with room for an extent of the class.
void SlotAllocator::State::FindEmptiestWindow(uint32_t for_class, uint32_t segment,
                                              Window* best) const {
  const Segment& seg = segments[segment];
  if (seg.state != SegmentState::kAssigned) return;
  const uint32_t need = classes[for_class].chunk_count;
  const auto chunks_at = [&](uint32_t chunk) -> uint32_t {
    return seg.chunk_owner[chunk] == kNoChunk ? 1 : seg.extents[chunk].chunk_count;
  };
  const auto used_at = [&](uint32_t chunk) -> uint64_t {
    if (seg.chunk_owner[chunk] == kNoChunk) return 0;
    const CarvedExtent& extent = seg.extents[chunk];
    return extent.used_count() * classes[extent.class_index].slot_bytes;
  };
  uint32_t first = 0;
  uint32_t end = 0;
  uint64_t used = 0;
  while (end < chunks_per_segment) {
    if (seg.chunk_owner[end] != kNoChunk && seg.extents[end].class_index == for_class) {
      end += chunks_at(end);
      first = end;
      used = 0;
      continue;
    }
    used += used_at(end);
    end += chunks_at(end);
    while (end - first >= need) {
      const Window window{segment, first, end - first, used};
      if ((best->segment == kSegmentNone || window.IsEmptierThan(*best)) && IsMovable(window)) {
        *best = window;
      }
      used -= used_at(first);
      first += chunks_at(first);
    }
  }
}

// Only Sealed bytes can be moved or evicted; a writer or a fence holds the others in place.
bool SlotAllocator::State::IsMovable(const Window& window) const {
  const Segment& seg = segments[window.segment];
  for (uint32_t chunk = window.chunk; chunk < window.chunk + window.chunk_count; ++chunk) {
    const CarvedExtent& extent = seg.extents[chunk];
    for (uint32_t slot = 0; slot < extent.slot_count; ++slot) {
      if (extent.IsUsed(slot) &&
          Row(window.segment, chunk * kRowsPerChunk + slot).state != SlotState::kSealed) {
        return false;
      }
    }
  }
  return true;
}

void SlotAllocator::State::AppendSlots(uint32_t segment, uint32_t chunk,
                                       std::vector<SlotRef>* slots) const {
  const CarvedExtent& extent = segments[segment].extents[chunk];
  for (uint32_t slot = 0; slot < extent.slot_count; ++slot) {
    if (extent.IsUsed(slot)) slots->push_back(RefOf(segment, chunk, slot));
  }
}

// ---- the public face ----

SlotAllocator::SlotAllocator(const Options& options) : state_(std::make_unique<State>(options)) {}
SlotAllocator::~SlotAllocator() = default;

Result<uint32_t> SlotAllocator::AddClass(uint64_t slot_bytes, uint64_t owner) {
  State& s = *state_;
  if (slot_bytes == 0 || slot_bytes % kArenaPageBytes != 0) {
    return Status(StatusCode::kInvalid, "a slot is a positive multiple of 4 KiB");
  }
  if (slot_bytes > s.chunks_per_segment * kExtentUnitBytes) {
    return Status(StatusCode::kInvalid,
                  "a slot is larger than a segment: use fewer tokens a block");
  }
  if (s.classes.size() >= s.classes_max) {
    return Status(StatusCode::kNoSpace, "classes_max slot classes exist already");
  }
  SlotClass slot_class;
  slot_class.slot_bytes = slot_bytes;
  slot_class.owner = owner;
  slot_class.chunk_count = ExtentChunks(slot_bytes, s.chunks_per_segment);
  const uint32_t slots = SlotsIn(slot_class.chunk_count, slot_bytes);
  TERRACE_CHECK(slots > 0 && slots <= kSlotsPerExtentMax, "rows of an extent fit its first chunk");
  slot_class.by_free_count.assign(slots + 1, kNoExtent);
  s.classes.push_back(std::move(slot_class));
  return static_cast<uint32_t>(s.classes.size() - 1);
}

Result<SlotRef> SlotAllocator::Allocate(uint32_t class_index) {
  State& s = *state_;
  TERRACE_CHECK(class_index < s.classes.size(), "the class was added");
  SlotClass& slot_class = s.classes[class_index];
  const uint32_t fewest_free = slot_class.FewestFree();
  const uint32_t extent_id =
      fewest_free != 0 ? slot_class.by_free_count[fewest_free] : s.Carve(class_index);
  if (extent_id == kNoExtent) {
    return Status(StatusCode::kNoSpace, "no populated memory fits a slot of this size");
  }
  CarvedExtent& extent = s.ExtentAt(extent_id);
  uint32_t word = 0;
  while (extent.used[word] == ~uint64_t{0}) ++word;
  const uint32_t slot =
      word * kWordBits + static_cast<uint32_t>(std::countr_one(extent.used[word]));
  TERRACE_CHECK(slot < extent.slot_count, "a listed extent has a free slot");

  s.Unlist(extent_id);
  extent.used[word] |= uint64_t{1} << (slot % kWordBits);
  --extent.free_count;
  s.List(extent_id);
  const uint32_t segment = s.SegmentOf(extent_id);
  ++s.segments[segment].slots_used;
  ++s.slots_used;
  s.used_bytes += slot_class.slot_bytes;

  const SlotRef ref = s.RefOf(segment, s.ChunkOf(extent_id), slot);
  SlotRow& row = s.Row(segment, ref.row);
  TERRACE_CHECK(row.state == SlotState::kFree, "a free slot has a free row");
  row.state = SlotState::kReserved;
  return ref;
}

void SlotAllocator::Free(const SlotRef& slot) {
  State& s = *state_;
  TERRACE_CHECK(IsCurrent(slot), "only the present use of a slot can be freed");
  const uint32_t segment = slot.address.segment;
  const uint32_t extent_id = s.ExtentId(segment, slot.row / kRowsPerChunk);
  const uint32_t index = slot.row % kRowsPerChunk;
  CarvedExtent& extent = s.ExtentAt(extent_id);

  // A stale echo is believed only if it is exactly 2³² uses old.
  SlotRow& row = s.Row(segment, slot.row);
  TERRACE_CHECK(row.state != SlotState::kFree, "a slot in use has a row in use");
  const uint32_t next_generation = row.generation + 1;
  row = SlotRow{};
  row.generation = next_generation;

  s.Unlist(extent_id);
  extent.used[index / kWordBits] &= ~(uint64_t{1} << (index % kWordBits));
  ++extent.free_count;
  --s.segments[segment].slots_used;
  --s.slots_used;
  s.used_bytes -= s.classes[extent.class_index].slot_bytes;
  if (extent.free_count == extent.slot_count) {
    s.Uncarve(extent_id);
  } else {
    s.List(extent_id);
  }
}

bool SlotAllocator::IsCurrent(const SlotRef& slot) const {
  const CarvedExtent* extent = state_->FindExtent(slot);
  const uint32_t index = slot.row % kRowsPerChunk;
  if (extent == nullptr || index >= extent->slot_count || !extent->IsUsed(index)) return false;
  return state_->RefOf(slot.address.segment, slot.row / kRowsPerChunk, index) == slot;
}

SlotRow& SlotAllocator::row(const SlotRef& slot) {
  TERRACE_CHECK(state_->FindExtent(slot) != nullptr, "the slot lies in an extent");
  return state_->Row(slot.address.segment, slot.row);
}

const SlotRow& SlotAllocator::row(const SlotRef& slot) const {
  TERRACE_CHECK(state_->FindExtent(slot) != nullptr, "the slot lies in an extent");
  return state_->Row(slot.address.segment, slot.row);
}

void SlotAllocator::SegmentPopulated(uint32_t segment) {
  State& s = *state_;
  TERRACE_CHECK(segment < s.segments_max, "the segment is part of the arena");
  Segment& seg = s.segments[segment];
  TERRACE_CHECK(seg.state == SegmentState::kAbsent, "only an absent segment is populated");
  seg.chunk_owner.assign(s.chunks_per_segment, kNoChunk);
  seg.extents.assign(s.chunks_per_segment, CarvedExtent{});
  s.SetState(segment, SegmentState::kFree);
}

SegmentState SlotAllocator::segment_state(uint32_t segment) const {
  TERRACE_CHECK(segment < state_->segments_max, "the segment is part of the arena");
  return state_->segments[segment].state;
}

void SlotAllocator::BeginDrain(uint32_t segment) {
  State& s = *state_;
  TERRACE_CHECK(segment < s.segments_max, "the segment is part of the arena");
  Segment& seg = s.segments[segment];
  TERRACE_CHECK(seg.state == SegmentState::kAssigned || seg.state == SegmentState::kFree,
                "only a segment that holds or may hold slots is drained");
  for (uint32_t chunk = 0; chunk < s.chunks_per_segment; ++chunk) {
    if (seg.extents[chunk].chunk_count != 0) s.Unlist(s.ExtentId(segment, chunk));
  }
  s.SetState(segment, SegmentState::kDraining);
}

bool SlotAllocator::IsDrained(uint32_t segment) const {
  return segment_state(segment) == SegmentState::kDraining &&
         state_->segments[segment].slots_used == 0;
}

void SlotAllocator::SetSegmentState(uint32_t segment, SegmentState state) {
  State& s = *state_;
  TERRACE_CHECK(segment < s.segments_max, "the segment is part of the arena");
  Segment& seg = s.segments[segment];
  const bool is_step = (seg.state == SegmentState::kDraining && state == SegmentState::kRevoking &&
                        seg.slots_used == 0) ||
                       (seg.state == SegmentState::kRevoking && state == SegmentState::kPunching) ||
                       (seg.state == SegmentState::kPunching &&
                        (state == SegmentState::kAbsent || state == SegmentState::kFree));
  TERRACE_CHECK(is_step, "a drained segment is revoked, then punched, then absent");
  s.SetState(segment, state);
  if (state == SegmentState::kAbsent) {
    seg.chunk_owner = {};
    seg.extents = {};
  }
}

void SlotAllocator::SlotsInSegment(uint32_t segment, std::vector<SlotRef>* slots) const {
  const State& s = *state_;
  TERRACE_CHECK(segment < s.segments_max, "the segment is part of the arena");
  for (uint32_t chunk = 0; chunk < s.segments[segment].extents.size(); ++chunk) {
    s.AppendSlots(segment, chunk, slots);
  }
}

bool SlotAllocator::SlotsInEmptiestExtent(uint32_t for_class, std::vector<SlotRef>* slots) const {
  State& s = *state_;
  TERRACE_CHECK(for_class < s.classes.size(), "the class was added");
  State::Window best;
  const uint32_t segment_count = std::min(s.segments_max, kSegmentsPerSearchMax);
  for (uint32_t i = 0; i < segment_count; ++i) {
    s.FindEmptiestWindow(for_class, (s.search_from + i) % s.segments_max, &best);
  }
  s.search_from = (s.search_from + segment_count) % s.segments_max;
  if (best.segment == kSegmentNone) return false;
  for (uint32_t chunk = best.chunk; chunk < best.chunk + best.chunk_count; ++chunk) {
    s.AppendSlots(best.segment, chunk, slots);
  }
  return true;
}

uint64_t SlotAllocator::slot_bytes(uint32_t class_index) const {
  TERRACE_CHECK(class_index < state_->classes.size(), "the class was added");
  return state_->classes[class_index].slot_bytes;
}

uint64_t SlotAllocator::extent_bytes(uint32_t class_index) const {
  TERRACE_CHECK(class_index < state_->classes.size(), "the class was added");
  return state_->classes[class_index].chunk_count * kExtentUnitBytes;
}

uint32_t SlotAllocator::segment_count(SegmentState state) const {
  return state_->state_counts[static_cast<size_t>(state)];
}

SlotAllocator::Usage SlotAllocator::usage() const {
  const State& s = *state_;
  const uint64_t populated_segments = s.segments_max - segment_count(SegmentState::kAbsent) -
                                      segment_count(SegmentState::kPunching);
  Usage usage;
  usage.used_bytes = s.used_bytes;
  usage.free_slot_bytes = s.slot_bytes_carved - s.used_bytes;
  usage.waste_bytes = s.waste_bytes;
  usage.unassigned_bytes =
      (populated_segments * s.chunks_per_segment - s.chunks_carved) * kExtentUnitBytes;
  usage.slots_used = s.slots_used;
  return usage;
}

void SlotAllocator::CheckInvariants() const {
  const State& s = *state_;
  uint64_t used_bytes = 0, carved_bytes = 0, waste_bytes = 0, chunks_carved = 0, slots_used = 0;
  std::array<uint32_t, 6> state_counts = {};
  for (uint32_t segment = 0; segment < s.segments_max; ++segment) {
    const Segment& seg = s.segments[segment];
    ++state_counts[static_cast<size_t>(seg.state)];
    uint32_t segment_slots = 0, extent_count = 0;
    for (uint32_t chunk = 0; chunk < seg.extents.size(); ++chunk) {
      const CarvedExtent& extent = seg.extents[chunk];
      if (extent.chunk_count == 0) {
        TERRACE_CHECK(seg.chunk_owner[chunk] == kNoChunk || seg.chunk_owner[chunk] < chunk,
                      "a chunk belongs to an extent that begins at or before it");
        continue;
      }
      for (uint32_t c = chunk; c < chunk + extent.chunk_count; ++c) {
        TERRACE_CHECK(seg.chunk_owner[c] == chunk, "an extent owns its chunks, alone");
      }
      const uint64_t slot_bytes = s.classes[extent.class_index].slot_bytes;
      uint32_t used_count = 0;
      for (uint32_t slot = 0; slot < kSlotsPerExtentMax; ++slot) {
        const bool is_used = extent.IsUsed(slot);
        TERRACE_CHECK(!is_used || slot < extent.slot_count, "only slots that exist are used");
        const SlotState state = s.Row(segment, chunk * kRowsPerChunk + slot).state;
        TERRACE_CHECK(is_used == (state != SlotState::kFree), "row and bitmap agree");
        used_count += is_used ? 1 : 0;
      }
      TERRACE_CHECK(used_count == extent.used_count() && used_count > 0,
                    "an extent counts its slots and goes when it is empty");
      TERRACE_CHECK(
          extent.is_listed == (extent.free_count > 0 && seg.state == SegmentState::kAssigned),
          "an extent with free slots is listed unless it drains");
      used_bytes += used_count * slot_bytes;
      carved_bytes += extent.slot_count * slot_bytes;
      waste_bytes += extent.chunk_count * kExtentUnitBytes - extent.slot_count * slot_bytes;
      chunks_carved += extent.chunk_count;
      segment_slots += used_count;
      ++extent_count;
    }
    TERRACE_CHECK(segment_slots == seg.slots_used && extent_count == seg.extent_count,
                  "a segment counts its slots and extents");
    slots_used += segment_slots;
  }
  TERRACE_CHECK(used_bytes == s.used_bytes && slots_used == s.slots_used, "used slots add up");
  TERRACE_CHECK(carved_bytes == s.slot_bytes_carved && waste_bytes == s.waste_bytes &&
                    chunks_carved == s.chunks_carved &&
                    carved_bytes + waste_bytes == chunks_carved * kExtentUnitBytes,
                "used + free slot bytes + waste = bytes of all extents");
  TERRACE_CHECK(state_counts == s.state_counts, "segments are counted by state");
}

}  // namespace terrace

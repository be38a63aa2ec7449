#include "tiers/arena/extent_map.h"

#include <algorithm>
#include <bit>

#include "terrace/check.h"

namespace terrace {
namespace {

// A whole extent may waste one part in 50: 2 %.
constexpr uint64_t kWasteDivisor = 50;
// A shorter one, in a run that is no good to the class otherwise, one part in 6: over the mixes of
// tests/model/tiers/model_mix_test.cc this strands least, 1/24 half as much again.
constexpr uint64_t kLeftoverWasteDivisor = 6;

uint32_t SlotsIn(uint32_t chunk_count, uint64_t slot_bytes) {
  return static_cast<uint32_t>(chunk_count * kExtentUnitBytes / slot_bytes);
}

uint32_t ChunksFor(uint32_t slot_count, uint64_t slot_bytes) {
  return static_cast<uint32_t>(RoundUp(slot_count * slot_bytes, kExtentUnitBytes) /
                               kExtentUnitBytes);
}

// Example: 640 KiB slots waste 6.25 % of 2, 4, 6 and 8 MiB and nothing of 10 MiB: 5 chunks.
uint32_t ExtentChunks(uint64_t slot_bytes, uint32_t chunks_max) {
  uint32_t best = 0;
  uint64_t best_waste_bytes = 0;
  for (uint32_t chunks = ChunksFor(1, slot_bytes); chunks <= chunks_max; ++chunks) {
    const uint64_t waste_bytes = chunks * kExtentUnitBytes % slot_bytes;
    if (waste_bytes * kWasteDivisor <= chunks * kExtentUnitBytes) return chunks;
    if (best == 0 || waste_bytes * best < best_waste_bytes * chunks) {
      best = chunks;
      best_waste_bytes = waste_bytes;
    }
  }
  return best;
}

}  // namespace

ExtentShape::ExtentShape(uint32_t class_index, uint64_t slot_bytes, uint64_t owner,
                         uint32_t chunks_max)
    : class_index(class_index),
      slot_bytes(slot_bytes),
      owner(owner),
      chunk_count(ExtentChunks(slot_bytes, chunks_max)) {
  const uint32_t slots = SlotsIn(chunk_count, slot_bytes);
  TERRACE_CHECK(slots > 0 && slots <= kSlotsPerExtentMax, "rows of an extent fit its first chunk");
}

uint32_t ExtentShape::SlotsInLeftover(uint32_t run_chunks) const {
  const uint32_t slots = SlotsIn(run_chunks, slot_bytes);
  const uint64_t extent_bytes = ChunksFor(slots, slot_bytes) * kExtentUnitBytes;
  const uint64_t waste_bytes = extent_bytes - slots * slot_bytes;
  return waste_bytes * kLeftoverWasteDivisor <= extent_bytes ? slots : 0;
}

uint32_t ExtentShape::SlotsInRun(uint32_t run_chunks) const {
  return run_chunks / chunk_count * SlotsIn(chunk_count, slot_bytes) +
         SlotsInLeftover(run_chunks % chunk_count);
}

void CarvedExtent::SetUsed(uint32_t slot) {
  used[slot / 64] |= uint64_t{1} << (slot % 64);
  --free_count;
}

void CarvedExtent::SetFree(uint32_t slot) {
  used[slot / 64] &= ~(uint64_t{1} << (slot % 64));
  ++free_count;
}

uint32_t CarvedExtent::LowestFree() const {
  uint32_t word = 0;
  while (used[word] == ~uint64_t{0}) ++word;
  const uint32_t slot = word * 64 + static_cast<uint32_t>(std::countr_one(used[word]));
  TERRACE_CHECK(slot < slot_count, "an extent with free_count > 0 has a free slot");
  return slot;
}

bool ExtentRun::IsEmptierThan(const ExtentRun& other) const {
  const uint64_t mine = used_bytes * other.chunk_count;
  const uint64_t theirs = other.used_bytes * chunk_count;
  return mine != theirs ? mine < theirs : used_bytes < other.used_bytes;
}

ExtentMap::ExtentMap(uint64_t segment_bytes, uint32_t segments_max)
    : chunks_per_segment_(static_cast<uint32_t>(segment_bytes / kExtentUnitBytes)),
      segments_(segments_max),
      segment_owner_(segments_max),
      longest_run_(segments_max) {
  TERRACE_CHECK(segment_bytes >= kSegmentBytesMin && segment_bytes <= kSegmentBytesMax &&
                    segment_bytes % kExtentUnitBytes == 0,
                "a segment is 1 to 128 chunks of 2 MiB");
  TERRACE_CHECK(segments_max > 0, "an arena has an address space");
  state_counts_[static_cast<size_t>(SegmentState::kAbsent)] = segments_max;
}

const CarvedExtent* ExtentMap::Find(uint32_t segment, uint32_t chunk) const {
  if (segment >= segments_.size() || chunk >= segments_[segment].extents.size()) return nullptr;
  const CarvedExtent& extent = segments_[segment].extents[chunk];
  return extent.chunk_count == 0 ? nullptr : &extent;
}

void ExtentMap::CountAs(Segment* segment, SegmentState state) {
  --state_counts_[static_cast<size_t>(segment->state)];
  ++state_counts_[static_cast<size_t>(state)];
  segment->state = state;
}

void ExtentMap::SetState(uint32_t segment_index, SegmentState state) {
  Segment& segment = segments_[segment_index];
  if (segment.state == SegmentState::kAbsent) {
    segment.chunk_owner.assign(chunks_per_segment_, kNoChunk);
    segment.extents.assign(chunks_per_segment_, CarvedExtent{});
  }
  CountAs(&segment, state);
  if (state == SegmentState::kAbsent) {
    segment.chunk_owner = {};
    segment.extents = {};
  }
  NoteRuns(segment_index);
}

// ---- room ----

uint32_t ExtentMap::FreeRunAt(const Segment& segment, uint32_t chunk) const {
  uint32_t run = 0;
  while (chunk + run < chunks_per_segment_ && segment.chunk_owner[chunk + run] == kNoChunk) ++run;
  return run;
}

uint32_t ExtentMap::LongestRun(const Segment& segment) const {
  if (segment.state != SegmentState::kFree && segment.state != SegmentState::kAssigned) return 0;
  uint32_t longest = 0;
  for (uint32_t chunk = 0; chunk < chunks_per_segment_;) {
    const uint32_t run = FreeRunAt(segment, chunk);
    longest = std::max(longest, run);
    chunk += std::max(run, 1u);
  }
  return longest;
}

void ExtentMap::NoteRuns(uint32_t segment) {
  longest_run_[segment] = static_cast<uint16_t>(LongestRun(segments_[segment]));
  if (longest_run_[segment] >= missing_run_chunks_) missing_run_chunks_ = 0xFFFFFFFF;
  ++rooms_;
}

// First chunk of the shortest free run of at least `chunk_count`, the lowest of them.
uint32_t ExtentMap::FindTightestRun(uint32_t segment, uint32_t chunk_count) const {
  uint32_t tightest = 0;
  uint32_t tightest_run = 0xFFFFFFFF;
  for (uint32_t chunk = 0; chunk < chunks_per_segment_;) {
    const uint32_t run = FreeRunAt(segments_[segment], chunk);
    if (run >= chunk_count && run < tightest_run) {
      tightest_run = run;
      tightest = chunk;
    }
    chunk += std::max(run, 1u);
  }
  TERRACE_CHECK(tightest_run != 0xFFFFFFFF, "longest_run_ said that a run of this length exists");
  return tightest;
}

uint32_t ExtentMap::FindSegment(const ExtentShape& shape) const {
  const auto is_own = [&](uint32_t segment) {
    return segments_[segment].state == SegmentState::kAssigned &&
           segment_owner_[segment] == shape.owner;
  };
  if (shape.last_segment != kSegmentNone && is_own(shape.last_segment) &&
      longest_run_[shape.last_segment] >= shape.chunk_count) {
    return shape.last_segment;
  }
  uint32_t free_segment = kSegmentNone;
  uint32_t tightest = kSegmentNone;
  for (uint32_t segment = 0; segment < segments_.size(); ++segment) {
    if (longest_run_[segment] < shape.chunk_count) continue;
    if (segments_[segment].state == SegmentState::kFree) {
      if (free_segment == kSegmentNone) free_segment = segment;
    } else if (is_own(segment)) {
      return segment;
    } else if (tightest == kSegmentNone || longest_run_[segment] < longest_run_[tightest]) {
      tightest = segment;
    }
  }
  return free_segment != kSegmentNone ? free_segment : tightest;
}

uint32_t ExtentMap::Carve(ExtentShape* shape) {
  if (shape->chunk_count < missing_run_chunks_) {
    const uint32_t segment = FindSegment(*shape);
    if (segment != kSegmentNone) {
      const uint32_t chunk = FindTightestRun(segment, shape->chunk_count);
      return CarveAt(shape, segment, chunk, shape->chunk_count);
    }
    missing_run_chunks_ = shape->chunk_count;
  }
  return CarveLeftover(shape);
}

uint32_t ExtentMap::CarveAt(ExtentShape* shape, uint32_t segment_index, uint32_t chunk,
                            uint32_t chunk_count) {
  if (segments_[segment_index].state == SegmentState::kFree) {
    segment_owner_[segment_index] = shape->owner;
  }
  CarvedExtent extent;
  extent.slot_bytes = shape->slot_bytes;
  extent.class_index = shape->class_index;
  extent.chunk_count = static_cast<uint16_t>(chunk_count);
  Place(segment_index, chunk, extent);
  shape->last_segment = segment_index;
  return segment_index * chunks_per_segment_ + chunk;
}

void ExtentMap::Place(uint32_t segment_index, uint32_t chunk, const CarvedExtent& extent) {
  Segment& segment = segments_[segment_index];
  CarvedExtent& placed = segment.extents[chunk];
  placed = extent;
  placed.slot_count = static_cast<uint16_t>(SlotsIn(extent.chunk_count, extent.slot_bytes));
  placed.free_count = placed.slot_count;
  std::fill_n(segment.chunk_owner.begin() + chunk, extent.chunk_count,
              static_cast<uint16_t>(chunk));
  ++segment.extent_count;
  if (segment.state == SegmentState::kFree) CountAs(&segment, SegmentState::kAssigned);
  longest_run_[segment_index] = static_cast<uint16_t>(LongestRun(segment));
}

uint32_t ExtentMap::CarveAdopted(uint32_t segment_index, uint32_t chunk, uint32_t chunk_count,
                                 uint64_t slot_bytes) {
  const Segment& segment = segments_[segment_index];
  if (chunk_count == 0 || chunk >= chunks_per_segment_ ||
      chunk_count > chunks_per_segment_ - chunk || slot_bytes == 0) {
    return kExtentNone;
  }
  const uint64_t slot_count = chunk_count * kExtentUnitBytes / slot_bytes;
  if (slot_count == 0 || slot_count > kSlotsPerExtentMax) return kExtentNone;
  if (FreeRunAt(segment, chunk) < chunk_count) return kExtentNone;
  if (segment.state == SegmentState::kFree) segment_owner_[segment_index] = kOwnerNone;
  CarvedExtent extent;
  extent.slot_bytes = slot_bytes;
  extent.class_index = kClassNone;
  extent.chunk_count = static_cast<uint16_t>(chunk_count);
  Place(segment_index, chunk, extent);
  return segment_index * chunks_per_segment_ + chunk;
}

void ExtentMap::Claim(uint32_t extent_id, const ExtentShape& shape) {
  CarvedExtent& extent = at(extent_id);
  TERRACE_CHECK(extent.class_index == kClassNone && extent.slot_bytes == shape.slot_bytes,
                "an adopted extent gets its class once");
  extent.class_index = shape.class_index;
  uint64_t& owner = segment_owner_[SegmentOf(extent_id)];
  if (owner == kOwnerNone) owner = shape.owner;
}

// Example: 26 MiB extents of six slots leave 22 MiB of a segment over, in which five slots fit.
uint32_t ExtentMap::CarveLeftover(ExtentShape* shape) {
  if (shape->leftover_missing_at == rooms_) return kExtentNone;
  const uint32_t chunks_min = ChunksFor(1, shape->slot_bytes);
  uint32_t searched_count = 0;
  for (uint32_t i = 0; i < segments_.size() && searched_count < kSegmentsPerSearchMax; ++i) {
    const uint32_t segment = (leftover_from_ + i) % segments_max();
    if (longest_run_[segment] < chunks_min) continue;
    ++searched_count;
    for (uint32_t chunk = 0; chunk < chunks_per_segment_;) {
      const uint32_t run = FreeRunAt(segments_[segment], chunk);
      const uint32_t slots = shape->SlotsInLeftover(run);
      if (slots > 0) {
        leftover_from_ = segment;
        return CarveAt(shape, segment, chunk, ChunksFor(slots, shape->slot_bytes));
      }
      chunk += std::max(run, 1u);
    }
  }
  if (searched_count == kSegmentsPerSearchMax) {
    leftover_from_ = (leftover_from_ + kSegmentsPerSearchMax) % segments_max();
  } else {
    shape->leftover_missing_at = rooms_;
  }
  return kExtentNone;
}

void ExtentMap::Return(uint32_t extent_id) {
  Segment& segment = segments_[SegmentOf(extent_id)];
  CarvedExtent& extent = at(extent_id);
  TERRACE_CHECK(extent.used_count() == 0 && !extent.is_listed, "only an empty extent returns");
  std::fill_n(segment.chunk_owner.begin() + ChunkOf(extent_id), extent.chunk_count, kNoChunk);
  extent = CarvedExtent{};
  --segment.extent_count;
  if (segment.extent_count == 0 && segment.state == SegmentState::kAssigned) {
    CountAs(&segment, SegmentState::kFree);
  }
  NoteRuns(SegmentOf(extent_id));
}

// ---- compaction ----

ExtentRun ExtentMap::FindEmptiestRun(const ExtentShape& shape, const IsMovable& is_movable) {
  ExtentRun best;
  const uint32_t segment_count = std::min(segments_max(), kSegmentsPerSearchMax);
  for (uint32_t i = 0; i < segment_count; ++i) {
    FindEmptiestRunIn((emptiest_from_ + i) % segments_max(), shape, is_movable, &best);
  }
  emptiest_from_ = (emptiest_from_ + segment_count) % segments_max();
  return best;
}

// Two ends walk over whole extents and free chunks: [first, end) is kept as short as it can be
// while emptying it gives the class more slots than it has there. A run between the class's own
// extents counts too, or gaps too short for it would stay for ever.
void ExtentMap::FindEmptiestRunIn(uint32_t segment_index, const ExtentShape& shape,
                                  const IsMovable& is_movable, ExtentRun* best) const {
  const Segment& segment = segments_[segment_index];
  if (segment.state != SegmentState::kAssigned) return;
  ExtentRun run{.segment = segment_index};
  uint32_t own_slots = 0;
  const auto step = [&](uint32_t chunk, auto&& apply) -> uint32_t {
    if (segment.chunk_owner[chunk] == kNoChunk) return 1;
    const CarvedExtent& extent = segment.extents[chunk];
    apply(run.used_bytes, extent.used_bytes());
    if (extent.class_index == shape.class_index) apply(own_slots, extent.used_count());
    return extent.chunk_count;
  };
  const auto add = [](auto& sum, auto value) { sum += value; };
  const auto subtract = [](auto& sum, auto value) { sum -= value; };
  while (run.chunk + run.chunk_count < chunks_per_segment_) {
    run.chunk_count += step(run.chunk + run.chunk_count, add);
    while (run.chunk_count >= shape.chunk_count && shape.SlotsInRun(run.chunk_count) > own_slots) {
      if ((best->segment == kSegmentNone || run.IsEmptierThan(*best)) &&
          IsRunMovable(run, is_movable)) {
        *best = run;
      }
      const uint32_t dropped_chunks = step(run.chunk, subtract);
      run.chunk += dropped_chunks;
      run.chunk_count -= dropped_chunks;
    }
  }
}

bool ExtentMap::IsRunMovable(const ExtentRun& run, const IsMovable& is_movable) const {
  for (uint32_t chunk = run.chunk; chunk < run.chunk + run.chunk_count; ++chunk) {
    const CarvedExtent* extent = Find(run.segment, chunk);
    if (extent != nullptr && !is_movable(run.segment, chunk * kRowsPerChunk, *extent)) return false;
  }
  return true;
}

void ExtentMap::CheckInvariants() const {
  std::array<uint32_t, kSegmentStateCount> state_counts = {};
  for (uint32_t index = 0; index < segments_.size(); ++index) {
    const Segment& segment = segments_[index];
    ++state_counts[static_cast<size_t>(segment.state)];
    uint32_t extent_count = 0;
    for (uint32_t chunk = 0; chunk < segment.extents.size(); ++chunk) {
      const CarvedExtent& extent = segment.extents[chunk];
      const uint16_t owner = segment.chunk_owner[chunk];
      if (extent.chunk_count == 0) {
        TERRACE_CHECK(owner == kNoChunk ||
                          (owner < chunk && owner + segment.extents[owner].chunk_count > chunk),
                      "a chunk is free or lies in the extent that owns it");
        continue;
      }
      ++extent_count;
      for (uint32_t c = chunk; c < chunk + extent.chunk_count; ++c) {
        TERRACE_CHECK(segment.chunk_owner[c] == chunk, "an extent owns its chunks, alone");
      }
      TERRACE_CHECK(extent.used_count() > 0, "an extent goes when it is empty");
    }
    TERRACE_CHECK(extent_count == segment.extent_count, "a segment counts its extents");
    TERRACE_CHECK((segment.state == SegmentState::kFree) <= (extent_count == 0) &&
                      (segment.state == SegmentState::kAssigned) <= (extent_count > 0),
                  "a segment is assigned while it holds an extent");
    const bool is_absent = segment.state == SegmentState::kAbsent;
    TERRACE_CHECK(longest_run_[index] == (is_absent ? 0 : LongestRun(segment)),
                  "the longest free run is known");
    TERRACE_CHECK(longest_run_[index] < missing_run_chunks_, "a run said to be missing is");
  }
  TERRACE_CHECK(state_counts == state_counts_, "segments are counted by state");
}

}  // namespace terrace

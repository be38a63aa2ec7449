// ExtentMap: how the segments of an arena are carved. A segment is a row of 2 MiB chunks; an extent
// is a run of them that holds slots of one class. The map finds room for extents, takes them back,
// and finds the run whose emptying gains most. Which slots are in use it only remembers.
//
// Chunk c of a segment owns rows [c × 512, (c + 1) × 512) of its slot table, and slot k of an
// extent beginning at chunk c has row c × 512 + k: a row names its extent and slot without a
// search.
//
// THREADING: store thread. LIMITS: searches for compaction and for leftover runs look at no more
// than kSegmentsPerSearchMax segments a call and go on with the next ones.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "terrace/arena_layout.h"

namespace terrace {

enum class SegmentState : uint8_t { kAbsent, kFree, kAssigned, kDraining, kRevoking, kPunching };
inline constexpr size_t kSegmentStateCount = 6;

inline constexpr uint32_t kRowsPerChunk = static_cast<uint32_t>(kExtentUnitBytes / kArenaPageBytes);
// A slot ≤ 40 KiB wastes ≤ 2 % of a single chunk, and a larger one does so within 51 slots: the
// rows of an extent's slots fit its first chunk.
inline constexpr uint32_t kSlotsPerExtentMax = kRowsPerChunk;
inline constexpr uint32_t kSegmentsPerSearchMax = 64;
inline constexpr uint32_t kExtentNone = 0xFFFFFFFF;
inline constexpr uint32_t kClassNone = 0xFFFFFFFF;  // of an adopted extent nobody has claimed yet

// What the extents of one class are like, and where the last searches for it ended.
struct ExtentShape {
  // The smallest extent that wastes ≤ 2 %, or the one that wastes the smallest share.
  // REQUIRES: slot_bytes ≤ chunks_max × 2 MiB.
  ExtentShape(uint32_t class_index, uint64_t slot_bytes, uint64_t owner, uint32_t chunks_max);

  // Slots of the shorter extent that a run too short for a whole one is worth; 0 if it would waste
  // too much of it.
  uint32_t SlotsInLeftover(uint32_t run_chunks) const;
  // Slots that a free run of any length ends up holding.
  uint32_t SlotsInRun(uint32_t run_chunks) const;

  uint32_t class_index;
  uint64_t slot_bytes;
  uint64_t owner;
  uint32_t chunk_count = 0;
  uint32_t last_segment = kSegmentNone;       // where the last extent was carved
  uint64_t leftover_missing_at = UINT64_MAX;  // ExtentMap::rooms_ when no leftover run would do
};

struct CarvedExtent {
  uint64_t slot_bytes = 0;
  uint32_t class_index = 0;
  uint32_t previous = kExtentNone;  // neighbours in the class's list for this free_count
  uint32_t next = kExtentNone;
  uint16_t chunk_count = 0;  // 0: no extent begins at this chunk
  uint16_t slot_count = 0;
  uint16_t free_count = 0;
  bool is_listed = false;
  std::array<uint64_t, kSlotsPerExtentMax / 64> used = {};

  bool IsUsed(uint32_t slot) const { return (used[slot / 64] >> (slot % 64)) & 1; }
  void SetUsed(uint32_t slot);
  void SetFree(uint32_t slot);
  uint32_t LowestFree() const;  // REQUIRES: free_count > 0
  uint32_t used_count() const { return uint32_t{slot_count} - free_count; }
  uint64_t used_bytes() const { return used_count() * slot_bytes; }
  uint64_t waste_bytes() const { return chunk_count * kExtentUnitBytes - slot_count * slot_bytes; }
};

// A run of whole extents and free chunks.
struct ExtentRun {
  uint32_t segment = kSegmentNone;
  uint32_t chunk = 0;
  uint32_t chunk_count = 0;
  uint64_t used_bytes = 0;

  // Emptier by share; at equal shares the one that loses less.
  bool IsEmptierThan(const ExtentRun& other) const;
};

class ExtentMap {
 public:
  ExtentMap(uint64_t segment_bytes, uint32_t segments_max);

  uint32_t chunks_per_segment() const { return chunks_per_segment_; }
  uint32_t SegmentOf(uint32_t extent_id) const { return extent_id / chunks_per_segment_; }
  uint32_t ChunkOf(uint32_t extent_id) const { return extent_id % chunks_per_segment_; }
  CarvedExtent& at(uint32_t extent_id) {
    return segments_[SegmentOf(extent_id)].extents[ChunkOf(extent_id)];
  }
  // The extent that begins there, or nullptr.
  const CarvedExtent* Find(uint32_t segment, uint32_t chunk) const;

  SegmentState state(uint32_t segment) const { return segments_[segment].state; }
  uint32_t segment_count(SegmentState state) const {
    return state_counts_[static_cast<size_t>(state)];
  }
  // kAbsent → kFree makes the segment's chunks; → kAbsent forgets them.
  void SetState(uint32_t segment, SegmentState state);

  // An extent for the class, all slots free: in a segment of its owner, else in a free segment,
  // else where it fits most tightly, else a shorter one in a leftover run. kExtentNone if there is
  // no room.
  uint32_t Carve(ExtentShape* shape);
  // An extent a predecessor carved, of no class yet. kExtentNone if it does not fit the segment or
  // overlaps another one.
  uint32_t CarveAdopted(uint32_t segment, uint32_t chunk, uint32_t chunk_count,
                        uint64_t slot_bytes);
  // Gives an adopted extent to the class. REQUIRES: of no class, slots of that size.
  void Claim(uint32_t extent_id, const ExtentShape& shape);
  // REQUIRES: no slot in use, not listed.
  void Return(uint32_t extent_id);

  // The emptiest run whose emptying gains slots for the class; segment kSegmentNone if there is
  // none. `is_movable` judges the slots in use of the candidates: (segment, first row, extent).
  using IsMovable = std::function<bool(uint32_t, uint32_t, const CarvedExtent&)>;
  ExtentRun FindEmptiestRun(const ExtentShape& shape, const IsMovable& is_movable);

  // Chunks tile and run lengths are as the segments say; aborts otherwise.
  void CheckInvariants() const;

 private:
  struct Segment {
    SegmentState state = SegmentState::kAbsent;
    uint32_t extent_count = 0;
    std::vector<uint16_t> chunk_owner;  // first chunk of the covering extent, or kNoChunk
    std::vector<CarvedExtent> extents;  // by first chunk
  };
  static constexpr uint16_t kNoChunk = 0xFFFF;
  static constexpr uint64_t kOwnerNone = UINT64_MAX;  // of a segment with adopted extents only

  uint32_t CarveAt(ExtentShape* shape, uint32_t segment, uint32_t chunk, uint32_t chunk_count);
  void Place(uint32_t segment, uint32_t chunk, const CarvedExtent& extent);
  uint32_t CarveLeftover(ExtentShape* shape);
  uint32_t FindSegment(const ExtentShape& shape) const;
  uint32_t FindTightestRun(uint32_t segment, uint32_t chunk_count) const;
  uint32_t FreeRunAt(const Segment& segment, uint32_t chunk) const;
  uint32_t LongestRun(const Segment& segment) const;
  void NoteRuns(uint32_t segment);
  void CountAs(Segment* segment, SegmentState state);
  uint32_t segments_max() const { return static_cast<uint32_t>(segments_.size()); }
  void FindEmptiestRunIn(uint32_t segment, const ExtentShape& shape, const IsMovable& is_movable,
                         ExtentRun* best) const;
  bool IsRunMovable(const ExtentRun& run, const IsMovable& is_movable) const;

  const uint32_t chunks_per_segment_;
  std::vector<Segment> segments_;
  std::array<uint32_t, kSegmentStateCount> state_counts_ = {};
  // Keys of the search for room, apart so that a scan over all segments stays in a few cache lines.
  std::vector<uint64_t> segment_owner_;
  std::vector<uint16_t> longest_run_;  // free chunks in a row; 0 unless kFree or kAssigned
  // No run this long exists since room last appeared: spares a full arena the scan.
  uint32_t missing_run_chunks_ = 0xFFFFFFFF;
  uint64_t rooms_ = 0;          // times that room appeared
  uint32_t leftover_from_ = 0;  // where the next search for a leftover run begins
  uint32_t emptiest_from_ = 0;  // where the next search for the emptiest run begins
};

}  // namespace terrace

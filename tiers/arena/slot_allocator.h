// SlotAllocator: which bytes of a domain's arena belong to which slot. Pure bookkeeping: it never
// touches the arena, so it runs as well under simulation.
//
// A segment holds extents, an extent holds slots of one class (one member's slot size). The extent
// of a class is the smallest multiple of 2 MiB, at most a segment, that wastes at most 2 % behind
// its last slot (or the least wasteful one if none does); where none fits any more, a leftover run
// takes a shorter one. An empty extent returns to its segment. A segment serves one class's owner
// while other segments are free, so that a rank pins only its own. Slots come from the fullest
// extent, so that others empty.
//
// Segments: kAbsent → (populate) kFree → kAssigned → kDraining → kRevoking → (punch) kAbsent.
//
// THREADING: store thread. LIMITS: segments_max, classes_max.
// INVARIANT: used + free slot bytes + stranded bytes = bytes of all extents.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "terrace/arena_layout.h"
#include "terrace/status.h"
#include "tiers/arena/extent_map.h"
#include "tiers/arena/slot_table.h"

namespace terrace {

class SlotAllocator {
 public:
  struct Options {
    uint64_t segment_bytes = kSegmentBytesDefault;
    uint32_t segments_max = 0;
    uint32_t classes_max = 1 << 14;
    // SlotTableBytes(segment_bytes, segments_max). Generations persist; the rows of a segment are
    // kFree when it becomes populated.
    std::span<std::byte> slot_table;
    uint64_t table_seed = 0;  // of the rows' checks; the same for a successor
  };
  // A slot that a predecessor left in use.
  struct AdoptedSlot {
    SlotRef slot;
    // The row was torn, or at odds with others: kFenced now, and nothing is known of its bytes.
    bool is_torn = false;
  };
  struct Usage {
    uint64_t used_bytes = 0;        // slots handed out
    uint64_t free_slot_bytes = 0;   // slots of existing extents not handed out
    uint64_t waste_bytes = 0;       // behind the last slot of extents
    uint64_t unassigned_bytes = 0;  // populated and in no extent
    uint32_t slots_used = 0;
  };

  explicit SlotAllocator(const Options& options);
  ~SlotAllocator();

  // A class of slots: `owner` separates members that must not share segments while any are free.
  // kInvalid if slot_bytes is 0, no multiple of 4 KiB or larger than a segment; kNoSpace above
  // classes_max.
  Result<uint32_t> AddClass(uint64_t slot_bytes, uint64_t owner);

  // A slot for what `block` says, row state kReserved. kNoSpace when no populated memory fits:
  // evict, drain, or populate.
  Result<SlotRef> Allocate(uint32_t class_index, const SlotIdentity& block = {});
  // What the row of a slot in use says of its block has changed.
  void Amend(const SlotRef& slot, const SlotIdentity& block);
  // Gives the slot back and bumps its generation. REQUIRES: IsCurrent(slot), state ≠ kFree.
  void Free(const SlotRef& slot);
  // True if `slot` is the present use of a slot in use: the judge of everything a client echoes.
  bool IsCurrent(const SlotRef& slot) const;
  SlotRow& row(const SlotRef& slot);
  const SlotRow& row(const SlotRef& slot) const;

  // ---- what a predecessor left: before anything is allocated, in this order ----
  // Rebuilds the carving of all populated segments from the rows in use and appends their slots.
  // A segment whose rows contradict each other, which no kill can bring about, becomes one slot
  // that is kFenced: nothing in it is believed, and it is used again once that is freed.
  void Adopt(std::vector<AdoptedSlot>* slots);
  // The slot belongs to the class. False if it is of another class or size, or of a larger extent
  // than the class makes.
  bool Claim(const SlotRef& slot, uint32_t class_index);

  // The arena grows and shrinks.
  void SegmentPopulated(uint32_t segment);  // kAbsent → kFree
  SegmentState segment_state(uint32_t segment) const;
  void BeginDrain(uint32_t segment);       // kAssigned or kFree → kDraining: no new slots
  void EndDrain(uint32_t segment);         // kDraining → kAssigned, or kFree if nothing is in it
  bool IsDrained(uint32_t segment) const;  // kDraining and no slot in use
  // kDraining → kRevoking → kPunching → kAbsent
  void SetSegmentState(uint32_t segment, SegmentState state);
  uint32_t slots_used_in(uint32_t segment) const;
  // Appends slots in use in `segment`, for draining it: all of one extent after the other, from
  // `chunk` on, until there are `slot_count_min` of them. The chunk to go on from; 0 behind the
  // last.
  uint32_t SlotsInSegment(uint32_t segment, uint32_t chunk, uint32_t slot_count_min,
                          std::vector<SlotRef>* slots) const;
  // Compaction: the run of extents with the smallest share in use whose emptying gives `for_class`
  // more slots than it has there. Appends the run's slots in use and returns its bytes; 0 if there
  // is none. What share is worth emptying is the caller's to say. Only runs whose slots in use are
  // all kSealed count; a call looks at kSegmentsPerSearchMax segments, the next call at the next
  // ones.
  uint64_t SlotsInEmptiestExtent(uint32_t for_class, std::vector<SlotRef>* slots) const;

  uint64_t slot_bytes(uint32_t class_index) const;
  uint64_t extent_bytes(uint32_t class_index) const;
  uint32_t segment_count(SegmentState state) const;
  Usage usage() const;
  void CheckInvariants() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace

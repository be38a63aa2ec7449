// Where slots lie in the shared arena; what client and daemon must agree on byte for byte.
//
// An arena is one memfd per domain and NUMA node, cut in segments of equal size. Inside a segment,
// extents (multiples of 2 MiB) hold slots of one slot size. A slot never crosses a segment.
#pragma once

#include <cstdint>

#include "terrace/units.h"

namespace terrace {

inline constexpr uint64_t kArenaPageBytes = 4 * kKiB;
inline constexpr uint64_t kArenaHugePageBytes = 2 * kMiB;  // of an arena of MFD_HUGE_2MB
inline constexpr uint64_t kExtentUnitBytes = 2 * kMiB;
// unit of CUDA and io_uring registration
inline constexpr uint64_t kSegmentBytesDefault = 256 * kMiB;
inline constexpr uint64_t kSegmentBytesMax = 256 * kMiB;
inline constexpr uint64_t kSegmentBytesMin = kExtentUnitBytes;  // tests and tiny machines
inline constexpr uint32_t kSegmentNone = 0xFFFFFFFF;

// Rows of the slot table a segment owns: one per 4 KiB page, so that every possible slot has one.
inline constexpr uint32_t kSlotRowsPerSegmentMax =
    static_cast<uint32_t>(kSegmentBytesMax / kArenaPageBytes);
static_assert(kSlotRowsPerSegmentMax == 65536);

// Where a slot's bytes are: all that a reader under a lease needs. 8 bytes on the wire.
struct SlotAddress {
  uint32_t segment = kSegmentNone;  // kSegmentNone: this member has no bytes for this block
  uint32_t page = 0;                // offset in the segment in 4 KiB pages

  bool has_bytes() const { return segment != kSegmentNone; }
  friend bool operator==(const SlotAddress&, const SlotAddress&) = default;
};
static_assert(sizeof(SlotAddress) == 8);

// What a writer echoes at commit. The daemon judges it against its private slot table: `row` names
// the table row, `generation` the use of it. 16 bytes on the wire.
struct SlotRef {
  SlotAddress address;
  uint32_t row = 0;         // row of the slot table within the segment
  uint32_t generation = 0;  // bumped every time the row's slot is freed

  friend bool operator==(const SlotRef&, const SlotRef&) = default;
};
static_assert(sizeof(SlotRef) == 16);

}  // namespace terrace

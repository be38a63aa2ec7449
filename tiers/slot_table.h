// The slot table: one row for every place a slot can be, kept in daemon-private memory beside the
// arena (a memfd the clients never see), so that a successor of the daemon keeps generations and
// fences and can adopt Sealed blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "terrace/arena_layout.h"
#include "terrace/block_key.h"

namespace terrace {

enum class SlotState : uint8_t {
  kFree = 0,
  kReserved = 1,  // a WriteLease owns it
  kSealed = 2,
  kFilling = 3,  // a transfer writes it
  kFenced = 4,   // its writer or reader is gone or revoked, and not yet proven dead
};

struct SlotRow {
  uint32_t generation = 0;  // of the slot's present use; bumped at free
  SlotState state = SlotState::kFree;
  uint8_t member = 0;
  uint16_t parts_committed = 0;
  uint64_t holder = 0;  // session id of the fence's owner, or 0
  BlockKey key;
  CommitId commit_id = 0;
  Checksum checksum;       // XXH3-128 over the part roots; zero: not yet known
  uint64_t group_tag = 0;  // low half of the GroupId
};
inline constexpr size_t kSlotRowBytes = 64;
static_assert(sizeof(SlotRow) == kSlotRowBytes);

inline constexpr uint64_t SlotTableBytes(uint64_t segment_bytes, uint32_t segments_max) {
  return segment_bytes / kArenaPageBytes * segments_max * kSlotRowBytes;
}

}  // namespace terrace

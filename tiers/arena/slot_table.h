// The slot table: one row for every place a slot can be, kept in daemon-private memory beside the
// arena (a memfd the clients never see), so that a successor of the daemon keeps generations and
// fences, rebuilds how segments were carved, and can adopt Sealed blocks, each verified at its
// first use.
//
// A kill may come between any two stores, never within one, so the table is written in an order
// that a successor can rely on. A row is filled in while its state is still kFree, then its check,
// then the state; when the slot is freed the state goes first. A row in use whose check does not
// match is *torn*: nothing in it is believed but that its slot may still be written or read.
//
// The roots of a block's parts are not in the row, only a digest of them (`checksum`). A successor
// verifies a block without roots by computing all of them from the bytes, under seeds that bind
// Space, key, part and CommitId, folding them (FoldRoots) and comparing the result with the row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "terrace/arena_layout.h"
#include "terrace/block_key.h"
#include "tiers/block_meta.h"

namespace terrace {

enum class SlotState : uint8_t {
  kFree = 0,
  kReserved = 1,  // a WriteLease owns it
  kSealed = 2,
  kFilling = 3,  // a transfer writes it
  kFenced = 4,   // its writer or reader is gone or revoked, and not yet proven dead
};
inline constexpr uint8_t kSlotStateCount = 5;

inline constexpr uint8_t kSlotPinned = 1;   // SlotIdentity::flags
inline constexpr uint8_t kSlotNoStore = 2;  // never below DRAM

// What a slot's bytes are, in words that outlive the process.
struct SlotIdentity {
  BlockKey key;
  BlockKey parent;  // zero: a root
  CommitId commit_id = 0;
  uint64_t group_tag = 0;  // low half of the GroupId
  uint64_t event_hash = 0;
  uint64_t expires_at_s = 0;  // Unix seconds; 0: never
  uint32_t position = 0;      // in blocks from the root of its chain
  uint32_t writer_uid = 0;
  uint32_t recompute_ns_per_token = 0;
  uint8_t member = 0;
  uint8_t priority = 0;
  uint8_t flags = 0;
  uint8_t reserved = 0;

  friend bool operator==(const SlotIdentity&, const SlotIdentity&) = default;
};

// What a row says of a block, and what it says when it is read back.
inline SlotIdentity IdentityOf(const BlockDescription& block, uint32_t writer_uid) {
  const int flags = (block.is_pinned ? kSlotPinned : 0) | (block.is_no_store ? kSlotNoStore : 0);
  return {.key = block.key,
          .parent = block.parent,
          .commit_id = block.commit_id,
          .group_tag = block.group.low,
          .event_hash = block.event_hash,
          .expires_at_s = block.expires_at_s,
          .position = block.position,
          .writer_uid = writer_uid,
          .recompute_ns_per_token = block.recompute_ns_per_token,
          .member = static_cast<uint8_t>(block.member),
          .priority = block.priority,
          .flags = static_cast<uint8_t>(flags)};
}
BlockMeta MetaOf(const SlotIdentity& identity);

struct SlotRow {
  SlotState state = SlotState::kFree;
  uint8_t reserved[3] = {};
  uint32_t check = 0;       // RowCheck of what follows `checksum`
  uint64_t holder = 0;      // session id of the fence's owner, or 0
  Checksum checksum;        // FoldRoots of its member's part roots; zero: not yet known
  uint32_t generation = 0;  // of the slot's present use; bumped at free
  uint32_t slot_pages = 0;  // the slot's size, and how far its extent reaches: the carving
  uint16_t extent_chunks = 0;
  uint16_t reserved_2[3] = {};
  SlotIdentity block;
};
inline constexpr size_t kSlotRowBytes = 128;
static_assert(sizeof(SlotRow) == kSlotRowBytes);
inline constexpr size_t kSlotRowUncheckedBytes = 32;  // state to checksum
static_assert(offsetof(SlotRow, generation) == kSlotRowUncheckedBytes);

inline constexpr uint64_t SlotTableBytes(uint64_t segment_bytes, uint32_t segments_max) {
  return segment_bytes / kArenaPageBytes * segments_max * kSlotRowBytes;
}

// 32 bits of XXH3-64 over the row from `generation` on, under a seed of the arena and the place:
// a row that was copied elsewhere does not match either.
uint32_t RowCheck(const SlotRow& row, uint64_t table_seed, uint64_t row_index);

// XXH3-128 over a member's part roots in order, seeded with the CommitId.
Checksum FoldRoots(std::span<const Checksum> roots, CommitId commit_id);

}  // namespace terrace

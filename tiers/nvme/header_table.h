// The header table of a slab: where its slots lie, and one entry a slot that names the bytes in it.
// A slab holds slots of one shape (bytes and parts). Entries say everything a successor needs to
// serve the slot, and are sealed by a checksum keyed with the domain's secret: bytes that nobody of
// the domain's daemon wrote are not an entry. docs/DISK_FORMAT.md has the layout.
//
// Pure: encodes and decodes, no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "terrace/block_key.h"
#include "terrace/checksum.h"
#include "terrace/status.h"
#include "tiers/block_meta.h"
#include "tiers/crypto/key_ring.h"
#include "tiers/crypto/payload_seal.h"

namespace terrace {

inline constexpr uint64_t kSlabSectorBytes = 4096;
inline constexpr uint64_t kSlabPayloadAlignmentBytes = 64 * kKiB;
inline constexpr uint64_t kSlabTableOffsetBytes = kSlabSectorBytes;  // behind the superblock
// The end of the superblock's sector belongs to no seal: a disk that failed is tried there.
inline constexpr uint64_t kSlabProbeOffsetBytes = kSlabSectorBytes - 512;
inline constexpr uint64_t kSlabProbeBytes = 512;
inline constexpr uint32_t kSlabEntryBaseBytes = 256;
inline constexpr uint32_t kSlabEntryPartBytes = 16;
inline constexpr uint32_t kSlabFormatVersion = 1;

// The shape that all slots of a slab share.
struct SlabShape {
  uint64_t slot_bytes = 0;  // multiple of kSlabSectorBytes
  uint32_t part_count = 0;  // 1..kPartsPerSpaceMax

  friend auto operator<=>(const SlabShape&, const SlabShape&) = default;
};

// Where things lie in a slab of a shape. Entries never cross a sector: a sector holds
// kSlabSectorBytes / entry_bytes of them.
struct SlabGeometry {
  // kInvalid if not one slot fits.
  static Result<SlabGeometry> Of(const SlabShape& shape, uint64_t slab_bytes);

  uint64_t EntryOffsetBytes(uint32_t slot) const;
  uint64_t PayloadOffsetBytes(uint32_t slot) const;
  uint64_t table_bytes() const { return payload_offset_bytes - kSlabTableOffsetBytes; }

  SlabShape shape;
  uint64_t slab_bytes = 0;
  uint64_t payload_offset_bytes = 0;  // multiple of kSlabPayloadAlignmentBytes
  uint32_t slot_count = 0;
  uint32_t entry_bytes = 0;
  uint32_t entries_per_sector = 0;
};

struct SlabUuid {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const SlabUuid&, const SlabUuid&) = default;
};

// The first sector of a slab file.
struct SlabSuperblock {
  SlabUuid uuid;  // random, drawn when the slab takes its shape
  uint32_t slab_index = 0;
  SlabShape shape;
  uint64_t slab_bytes = 0;
};
// Writes exactly kSlabSectorBytes.
void EncodeSuperblock(const SlabSuperblock& superblock, const DomainSecret& secret,
                      std::span<std::byte> sector);
// kCorrupt unless it is this domain's superblock, whole, and of this version (kUnsupported for
// another version).
Result<SlabSuperblock> DecodeSuperblock(std::span<const std::byte> sector,
                                        const DomainSecret& secret);

enum class SlabEntryState : uint8_t {
  kFree = 0,  // the slot's last block left; generation still counts
  kUsed = 1,
  kQuarantined = 2,  // its bytes did not verify: not used again until fsck has looked
};

// How a payload is encrypted, and under which of the keys that its group has had.
struct SlabSeal : PayloadSeal {
  KeyId key_id = 0;

  friend bool operator==(const SlabSeal&, const SlabSeal&) = default;
};

// Of a BlockDescription is_no_store is not stored: such blocks never come here.
struct SlabEntry : BlockDescription {
  SlabEntryState state = SlabEntryState::kFree;
  uint8_t codec = 0;  // 0: raw
  uint32_t slot = 0;
  uint32_t generation = 0;
  uint64_t epoch = 0;  // order of writes in the domain; of two entries for one key the later holds
  uint64_t length_bytes = 0;
  std::optional<SlabSeal> seal;          // none: the payload is not encrypted
  std::vector<Checksum> part_checksums;  // shape.part_count of them when kUsed
};

// Writes geometry.entry_bytes. The checksum is keyed by the secret and bound to the slab's uuid and
// the slot: an entry in the wrong place is no entry.
void EncodeEntry(const SlabGeometry& geometry, const SlabUuid& uuid, const SlabEntry& entry,
                 const DomainSecret& secret, std::span<std::byte> bytes);
// kNotFound: all zero, never written. kCorrupt: anything else that is not an entry of this slot.
Status DecodeEntry(const SlabGeometry& geometry, const SlabUuid& uuid, uint32_t slot,
                   std::span<const std::byte> bytes, const DomainSecret& secret, SlabEntry* entry);
// The state and the key an entry claims, by a look at its bytes: its seal may not hold.
SlabEntryState ClaimedState(std::span<const std::byte> bytes);
BlockKey ClaimedKey(std::span<const std::byte> bytes);

}  // namespace terrace

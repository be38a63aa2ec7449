#include "tiers/nvme/header_table.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "terrace/check.h"
#include "terrace/space.h"
#include "tiers/record_fields.h"

namespace terrace {
namespace {

// Where the fields of an entry begin. docs/DISK_FORMAT.md has the same table.
struct EntryAt {
  static constexpr size_t kSeal = 0;  // over all that follows
  static constexpr size_t kMagic = 8;
  static constexpr size_t kVersion = 12;
  static constexpr size_t kState = 14;
  static constexpr size_t kPriority = 15;
  static constexpr size_t kCodec = 16;
  static constexpr size_t kFlags = 17;
  static constexpr size_t kMember = 18;
  static constexpr size_t kSlot = 20;
  static constexpr size_t kGeneration = 24;
  static constexpr size_t kPosition = 28;
  static constexpr size_t kRecompute = 32;
  static constexpr size_t kPartCount = 36;
  static constexpr size_t kEpoch = 40;
  static constexpr size_t kLength = 48;
  static constexpr size_t kCommit = 56;
  static constexpr size_t kEventHash = 64;
  static constexpr size_t kExpires = 72;
  static constexpr size_t kGroup = 80;
  static constexpr size_t kSpace = 96;
  static constexpr size_t kKey = 112;
  static constexpr size_t kParent = 128;
  static constexpr size_t kSalt = 144;  // zero where nothing is encrypted, as is the tag
  static constexpr size_t kTag = 176;
  static constexpr size_t kKeyId = 192;
  static constexpr size_t kReserved = 200;  // zero up to the checksums
  static constexpr size_t kParts = kSlabEntryBaseBytes;
};

struct SuperblockAt {
  static constexpr size_t kSeal = 0;  // over all that follows, up to the probe place
  static constexpr size_t kMagic = 8;
  static constexpr size_t kVersion = 16;
  static constexpr size_t kIndex = 20;
  static constexpr size_t kUuid = 24;
  static constexpr size_t kSlabBytes = 40;
  static constexpr size_t kSlotBytes = 48;
  static constexpr size_t kPartCount = 56;
  static constexpr size_t kEntryBytes = 60;
  static constexpr size_t kPayload = 64;
  static constexpr size_t kSlotCount = 72;
  static constexpr size_t kReserved = 76;  // zero up to the probe place
};
static_assert(SuperblockAt::kReserved <= 512, "no power loss tears what one 512 B sector holds");

constexpr uint32_t kEntryMagic = 0x45535254;               // "TRSE"
constexpr uint64_t kSuperblockMagic = 0x42414C5352524554;  // "TERRSLAB"
constexpr uint8_t kFlagPinned = 1;
constexpr uint8_t kFlagEncrypted = 2;
static_assert(EntryAt::kTag == EntryAt::kSalt + kCipherSaltBytes &&
              EntryAt::kKeyId == EntryAt::kTag + kCipherTagBytes);

// Zero is what an unwritten disk holds, and a bit is as likely to be there as not: eight at a time.
bool IsZero(std::span<const std::byte> bytes) {
  uint64_t any = 0;
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) any |= Get<uint64_t>(bytes, at);
  for (; at < bytes.size(); ++at) any |= Get<uint8_t>(bytes, at);
  return any == 0;
}

// The seal of an entry: the hash of its bytes, hashed again with the place they belong to.
uint64_t EntrySeal(const SlabUuid& uuid, uint32_t slot, std::span<const std::byte> bytes,
                   const DomainSecret& secret) {
  std::array<std::byte, 28> place;
  Put<uint64_t>(place, 0, KeyedHash64(secret, bytes.subspan(EntryAt::kMagic)));
  Put(place, 8, uuid.low);
  Put(place, 16, uuid.high);
  Put(place, 24, slot);
  return KeyedHash64(secret, place);
}

uint64_t SuperblockSeal(std::span<const std::byte> sector, const DomainSecret& secret) {
  return KeyedHash64(
      secret, sector.subspan(SuperblockAt::kMagic, kSlabProbeOffsetBytes - SuperblockAt::kMagic));
}

uint64_t PayloadOffsetOf(uint64_t slot_count, uint64_t entries_per_sector) {
  const uint64_t sectors = (slot_count + entries_per_sector - 1) / entries_per_sector;
  return RoundUp(kSlabTableOffsetBytes + sectors * kSlabSectorBytes, kSlabPayloadAlignmentBytes);
}

// Of what is not encrypted its place is zero.
bool DecodeSeal(std::span<const std::byte> bytes, uint8_t flags, SlabEntry* entry) {
  entry->seal.reset();
  if ((flags & kFlagEncrypted) == 0) {
    return IsZero(bytes.subspan(EntryAt::kSalt, EntryAt::kReserved - EntryAt::kSalt));
  }
  SlabSeal& seal = entry->seal.emplace();
  seal.salt = Get<CipherSalt>(bytes, EntryAt::kSalt);
  seal.tag = Get<CipherTag>(bytes, EntryAt::kTag);
  seal.key_id = Get<KeyId>(bytes, EntryAt::kKeyId);
  return entry->state == SlabEntryState::kUsed;
}

bool IsPlausible(const SlabGeometry& geometry, const SlabEntry& entry) {
  switch (entry.state) {
    case SlabEntryState::kFree:
    case SlabEntryState::kQuarantined:
      return true;
    case SlabEntryState::kUsed:
      return entry.member < kGroupMembersMax && entry.length_bytes > 0 &&
             entry.length_bytes <= geometry.shape.slot_bytes &&
             entry.part_checksums.size() == geometry.shape.part_count;
  }
  return false;
}

}  // namespace

Result<SlabGeometry> SlabGeometry::Of(const SlabShape& shape, uint64_t slab_bytes) {
  if (shape.slot_bytes == 0 || shape.slot_bytes % kSlabSectorBytes != 0) {
    return Status(StatusCode::kInvalid, "slots are whole sectors");
  }
  if (shape.part_count == 0 || shape.part_count > kPartsPerSpaceMax) {
    return Status(StatusCode::kInvalid, "a slot has between 1 and kPartsPerSpaceMax parts");
  }
  SlabGeometry geometry;
  geometry.shape = shape;
  geometry.slab_bytes = slab_bytes;
  geometry.entry_bytes = kSlabEntryBaseBytes + kSlabEntryPartBytes * shape.part_count;
  geometry.entries_per_sector = static_cast<uint32_t>(kSlabSectorBytes / geometry.entry_bytes);
  // As many slots as fit behind their own table. Example: 1 GiB of 1 MiB slots with one part has
  // 15 entries a sector, 69 sectors of table, payload from 320 KiB on, and 1,023 slots.
  uint64_t fitting = 0;
  uint64_t too_many = std::min<uint64_t>(slab_bytes / shape.slot_bytes, UINT32_MAX - 2) + 1;
  while (too_many - fitting > 1) {
    const uint64_t middle = (fitting + too_many) / 2;
    const uint64_t end_bytes =
        PayloadOffsetOf(middle, geometry.entries_per_sector) + middle * shape.slot_bytes;
    (end_bytes <= slab_bytes ? fitting : too_many) = middle;
  }
  if (fitting == 0) return Status(StatusCode::kInvalid, "not one slot fits in the slab");
  geometry.slot_count = static_cast<uint32_t>(fitting);
  geometry.payload_offset_bytes = PayloadOffsetOf(fitting, geometry.entries_per_sector);
  return geometry;
}

uint64_t SlabGeometry::EntryOffsetBytes(uint32_t slot) const {
  return kSlabTableOffsetBytes + slot / entries_per_sector * kSlabSectorBytes +
         uint64_t{slot % entries_per_sector} * entry_bytes;
}

uint64_t SlabGeometry::PayloadOffsetBytes(uint32_t slot) const {
  return payload_offset_bytes + slot * shape.slot_bytes;
}

void EncodeSuperblock(const SlabSuperblock& superblock, const DomainSecret& secret,
                      std::span<std::byte> sector) {
  TERRACE_CHECK(sector.size() == kSlabSectorBytes, "a superblock is one sector");
  const Result<SlabGeometry> geometry = SlabGeometry::Of(superblock.shape, superblock.slab_bytes);
  TERRACE_CHECK(geometry.ok(), "a slab holds at least one slot");
  std::ranges::fill(sector, std::byte{0});
  Put(sector, SuperblockAt::kMagic, kSuperblockMagic);
  Put(sector, SuperblockAt::kVersion, kSlabFormatVersion);
  Put(sector, SuperblockAt::kIndex, superblock.slab_index);
  Put(sector, SuperblockAt::kUuid, superblock.uuid.low);
  Put(sector, SuperblockAt::kUuid + 8, superblock.uuid.high);
  Put(sector, SuperblockAt::kSlabBytes, superblock.slab_bytes);
  Put(sector, SuperblockAt::kSlotBytes, superblock.shape.slot_bytes);
  Put(sector, SuperblockAt::kPartCount, superblock.shape.part_count);
  Put(sector, SuperblockAt::kEntryBytes, geometry.value().entry_bytes);
  Put(sector, SuperblockAt::kPayload, geometry.value().payload_offset_bytes);
  Put(sector, SuperblockAt::kSlotCount, geometry.value().slot_count);
  Put(sector, SuperblockAt::kSeal, SuperblockSeal(sector, secret));
}

Result<SlabSuperblock> DecodeSuperblock(std::span<const std::byte> sector,
                                        const DomainSecret& secret) {
  if (sector.size() != kSlabSectorBytes) {
    return Status(StatusCode::kCorrupt, "a superblock is one sector");
  }
  if (Get<uint64_t>(sector, SuperblockAt::kMagic) != kSuperblockMagic) {
    return Status(StatusCode::kCorrupt, "not a slab of Terrace");
  }
  if (Get<uint32_t>(sector, SuperblockAt::kVersion) != kSlabFormatVersion) {
    return Status(StatusCode::kUnsupported, "a slab of another format version",
                  Get<int32_t>(sector, SuperblockAt::kVersion));
  }
  if (Get<uint64_t>(sector, SuperblockAt::kSeal) != SuperblockSeal(sector, secret)) {
    return Status(StatusCode::kCorrupt, "damaged, or of a domain with another secret");
  }
  SlabSuperblock superblock;
  superblock.slab_index = Get<uint32_t>(sector, SuperblockAt::kIndex);
  superblock.uuid = {Get<uint64_t>(sector, SuperblockAt::kUuid),
                     Get<uint64_t>(sector, SuperblockAt::kUuid + 8)};
  superblock.slab_bytes = Get<uint64_t>(sector, SuperblockAt::kSlabBytes);
  superblock.shape = {.slot_bytes = Get<uint64_t>(sector, SuperblockAt::kSlotBytes),
                      .part_count = Get<uint32_t>(sector, SuperblockAt::kPartCount)};
  const Result<SlabGeometry> geometry = SlabGeometry::Of(superblock.shape, superblock.slab_bytes);
  if (!geometry.ok() ||
      geometry.value().entry_bytes != Get<uint32_t>(sector, SuperblockAt::kEntryBytes) ||
      geometry.value().payload_offset_bytes != Get<uint64_t>(sector, SuperblockAt::kPayload) ||
      geometry.value().slot_count != Get<uint32_t>(sector, SuperblockAt::kSlotCount) ||
      !IsZero(sector.subspan(SuperblockAt::kReserved,
                             kSlabProbeOffsetBytes - SuperblockAt::kReserved))) {
    return Status(StatusCode::kCorrupt,
                  "sealed, but of a geometry that this version does not make");
  }
  return superblock;
}

void EncodeEntry(const SlabGeometry& geometry, const SlabUuid& uuid, const SlabEntry& entry,
                 const DomainSecret& secret, std::span<std::byte> bytes) {
  TERRACE_CHECK(bytes.size() == geometry.entry_bytes, "an entry has the size its slab gives it");
  TERRACE_CHECK(entry.slot < geometry.slot_count, "an entry is of a slot of its slab");
  TERRACE_CHECK(entry.part_checksums.size() <= geometry.shape.part_count,
                "an entry has no more checksums than its slot has parts");
  std::ranges::fill(bytes, std::byte{0});
  Put(bytes, EntryAt::kMagic, kEntryMagic);
  Put(bytes, EntryAt::kVersion, static_cast<uint16_t>(kSlabFormatVersion));
  Put(bytes, EntryAt::kState, entry.state);
  Put(bytes, EntryAt::kPriority, entry.priority);
  Put(bytes, EntryAt::kCodec, entry.codec);
  const int flags = (entry.is_pinned ? kFlagPinned : 0) | (entry.seal ? kFlagEncrypted : 0);
  Put(bytes, EntryAt::kFlags, static_cast<uint8_t>(flags));
  Put(bytes, EntryAt::kMember, entry.member);
  Put(bytes, EntryAt::kSlot, entry.slot);
  Put(bytes, EntryAt::kGeneration, entry.generation);
  Put(bytes, EntryAt::kPosition, entry.position);
  Put(bytes, EntryAt::kRecompute, entry.recompute_ns_per_token);
  Put(bytes, EntryAt::kPartCount, static_cast<uint32_t>(entry.part_checksums.size()));
  Put(bytes, EntryAt::kEpoch, entry.epoch);
  Put(bytes, EntryAt::kLength, entry.length_bytes);
  Put(bytes, EntryAt::kCommit, entry.commit_id);
  Put(bytes, EntryAt::kEventHash, entry.event_hash);
  Put(bytes, EntryAt::kExpires, entry.expires_at_s);
  PutId(bytes, EntryAt::kGroup, entry.group);
  PutId(bytes, EntryAt::kSpace, entry.space);
  PutId(bytes, EntryAt::kKey, entry.key);
  PutId(bytes, EntryAt::kParent, entry.parent);
  if (entry.seal) {
    Put(bytes, EntryAt::kSalt, entry.seal->salt);
    Put(bytes, EntryAt::kTag, entry.seal->tag);
    Put(bytes, EntryAt::kKeyId, entry.seal->key_id);
  }
  for (size_t part = 0; part < entry.part_checksums.size(); ++part) {
    PutId(bytes, EntryAt::kParts + part * kSlabEntryPartBytes, entry.part_checksums[part]);
  }
  Put(bytes, EntryAt::kSeal, EntrySeal(uuid, entry.slot, bytes, secret));
}

Status DecodeEntry(const SlabGeometry& geometry, const SlabUuid& uuid, uint32_t slot,
                   std::span<const std::byte> bytes, const DomainSecret& secret, SlabEntry* entry) {
  if (bytes.size() != geometry.entry_bytes) {
    return Status(StatusCode::kCorrupt, "an entry has the size its slab gives it");
  }
  if (Get<uint32_t>(bytes, EntryAt::kMagic) != kEntryMagic) {
    if (IsZero(bytes)) return Status(StatusCode::kNotFound, "never written");
    return Status(StatusCode::kCorrupt, "not an entry");
  }
  if (Get<uint64_t>(bytes, EntryAt::kSeal) != EntrySeal(uuid, slot, bytes, secret)) {
    return Status(StatusCode::kCorrupt, "damaged, of another place, or under another secret");
  }
  entry->state = static_cast<SlabEntryState>(Get<uint8_t>(bytes, EntryAt::kState));
  entry->priority = Get<uint8_t>(bytes, EntryAt::kPriority);
  entry->codec = Get<uint8_t>(bytes, EntryAt::kCodec);
  const uint8_t flags = Get<uint8_t>(bytes, EntryAt::kFlags);
  entry->is_pinned = (flags & kFlagPinned) != 0;
  entry->member = Get<uint16_t>(bytes, EntryAt::kMember);
  entry->slot = Get<uint32_t>(bytes, EntryAt::kSlot);
  entry->generation = Get<uint32_t>(bytes, EntryAt::kGeneration);
  entry->position = Get<uint32_t>(bytes, EntryAt::kPosition);
  entry->recompute_ns_per_token = Get<uint32_t>(bytes, EntryAt::kRecompute);
  entry->epoch = Get<uint64_t>(bytes, EntryAt::kEpoch);
  entry->length_bytes = Get<uint64_t>(bytes, EntryAt::kLength);
  entry->commit_id = Get<uint64_t>(bytes, EntryAt::kCommit);
  entry->event_hash = Get<uint64_t>(bytes, EntryAt::kEventHash);
  entry->expires_at_s = Get<uint64_t>(bytes, EntryAt::kExpires);
  entry->group = GetId<GroupId>(bytes, EntryAt::kGroup);
  entry->space = GetId<SpaceId>(bytes, EntryAt::kSpace);
  entry->key = GetId<BlockKey>(bytes, EntryAt::kKey);
  entry->parent = GetId<BlockKey>(bytes, EntryAt::kParent);
  const uint32_t part_count = Get<uint32_t>(bytes, EntryAt::kPartCount);
  if (part_count > geometry.shape.part_count || entry->slot != slot ||
      Get<uint16_t>(bytes, EntryAt::kVersion) != kSlabFormatVersion ||
      (flags & ~(kFlagPinned | kFlagEncrypted)) != 0 ||
      !IsZero(bytes.subspan(EntryAt::kReserved, EntryAt::kParts - EntryAt::kReserved)) ||
      !IsZero(bytes.subspan(EntryAt::kParts + part_count * kSlabEntryPartBytes)) ||
      !DecodeSeal(bytes, flags, entry)) {
    return Status(StatusCode::kCorrupt, "sealed, but not as this version writes it");
  }
  entry->part_checksums.resize(part_count);
  for (size_t part = 0; part < part_count; ++part) {
    entry->part_checksums[part] =
        GetId<Checksum>(bytes, EntryAt::kParts + part * kSlabEntryPartBytes);
  }
  if (!IsPlausible(geometry, *entry)) {
    return Status(StatusCode::kCorrupt, "sealed, but it describes no block of this slab");
  }
  return Status::Ok();
}

SlabEntryState ClaimedState(std::span<const std::byte> bytes) {
  if (bytes.size() < kSlabEntryBaseBytes) return SlabEntryState::kFree;
  return Get<SlabEntryState>(bytes, EntryAt::kState);
}

BlockKey ClaimedKey(std::span<const std::byte> bytes) {
  if (bytes.size() < kSlabEntryBaseBytes) return {};
  return GetId<BlockKey>(bytes, EntryAt::kKey);
}

}  // namespace terrace

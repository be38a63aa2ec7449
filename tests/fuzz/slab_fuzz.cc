// Superblocks and slot entries of the NVMe tier, as they may lie on a drive: as they are, and with
// the seal made anew, so that what lies behind the seal is judged, too. The seal is computed here
// as docs/DISK_FORMAT.md says, not by the code under test.
#include <algorithm>
#include <array>
#include <optional>

#include "fuzz/fuzz.h"
#include "terrace/space.h"
#include "terrace/units.h"
#include "tiers/nvme/header_table.h"

namespace terrace::fuzz::slab {

constexpr SlabUuid kUuid{0x0123456789ABCDEF, 0xFEDCBA9876543210};
constexpr size_t kSealBytes = 8;
constexpr size_t kSuperblockFieldBytes = 76;  // behind them it is zero
constexpr uint64_t kHeapBytesMax = 8 * kKiB;  // of the checksums of kPartsPerSpaceMax parts

void PutSeal(uint64_t seal, std::span<std::byte> bytes) {
  std::memcpy(bytes.data(), &seal, sizeof(seal));
}

void SealSuperblock(std::span<std::byte> sector) {
  PutSeal(KeyedHash64(FuzzSecret(), sector.subspan(kSealBytes, kSlabProbeOffsetBytes - kSealBytes)),
          sector);
}

void SealEntry(uint32_t slot, std::span<std::byte> bytes) {
  std::array<std::byte, 28> place;
  const uint64_t hash = KeyedHash64(FuzzSecret(), bytes.subspan(kSealBytes));
  std::memcpy(place.data(), &hash, 8);
  std::memcpy(place.data() + 8, &kUuid.low, 8);
  std::memcpy(place.data() + 16, &kUuid.high, 8);
  std::memcpy(place.data() + 24, &slot, 4);
  PutSeal(KeyedHash64(FuzzSecret(), place), bytes);
}

// Slots lie behind the table and inside the slab, as wide as numbers may be.
void JudgeGeometry(const SlabGeometry& geometry) {
  Require(geometry.slot_count > 0 && geometry.entries_per_sector > 0, "a slab of no slots");
  const uint64_t last_end =
      geometry.EntryOffsetBytes(geometry.slot_count - 1) + geometry.entry_bytes;
  Require(last_end <= geometry.payload_offset_bytes, "the table reaches into the payload");
  const auto end_bytes =
      static_cast<unsigned __int128>(geometry.payload_offset_bytes) +
      static_cast<unsigned __int128>(geometry.slot_count) * geometry.shape.slot_bytes;
  Require(end_bytes <= geometry.slab_bytes, "slots reach beyond the slab");
}

void JudgeSuperblock(std::span<const std::byte> sector) {
  const Result<SlabSuperblock> read = DecodeSuperblock(sector, FuzzSecret());
  if (!read.ok()) {
    Require(read.code() == StatusCode::kCorrupt || read.code() == StatusCode::kUnsupported,
            "a superblock is refused as no reader expects");
    return;
  }
  const Result<SlabGeometry> geometry =
      SlabGeometry::Of(read.value().shape, read.value().slab_bytes);
  Require(geometry.ok(), "a superblock of no geometry was believed");
  JudgeGeometry(geometry.value());
  Bytes again(kSlabSectorBytes);
  EncodeSuperblock(read.value(), FuzzSecret(), again);
  Require(std::equal(again.begin() + kSealBytes, again.begin() + kSlabProbeOffsetBytes,
                     sector.begin() + kSealBytes),
          "a superblock that was believed is written in another way");
}

void JudgeEntry(const SlabGeometry& geometry, uint32_t slot, std::span<const std::byte> bytes) {
  (void)ClaimedKey(bytes);
  (void)ClaimedState(bytes);
  SlabEntry entry;
  const Status status = DecodeEntry(geometry, kUuid, slot, bytes, FuzzSecret(), &entry);
  const bool is_zero =
      std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
  if (!status.ok()) {
    Require(
        status.code() == (is_zero && bytes.size() == geometry.entry_bytes ? StatusCode::kNotFound
                                                                          : StatusCode::kCorrupt),
        "an entry is refused as no reader expects");
    return;
  }
  Require(entry.slot == slot && entry.part_checksums.size() <= geometry.shape.part_count,
          "an entry of another place was believed");
  if (entry.state == SlabEntryState::kUsed) {
    Require(entry.length_bytes > 0 && entry.length_bytes <= geometry.shape.slot_bytes &&
                entry.part_checksums.size() == geometry.shape.part_count &&
                entry.member < kGroupMembersMax,
            "a used entry that is believed describes no block of its slot");
  }
  Bytes again(geometry.entry_bytes);
  EncodeEntry(geometry, kUuid, entry, FuzzSecret(), again);
  Require(std::ranges::equal(again, bytes), "an entry that was believed is written in another way");
}

// [1: a superblock; its sector]
void TrySuperblock(Choices& choices, size_t input_bytes) {
  const std::span<const std::byte> given = choices.Rest();
  HeapMeter meter;
  (void)DecodeSuperblock(given, FuzzSecret());
  meter.RequireAtMost(0, 0, input_bytes);
  Bytes sector(kSlabSectorBytes);
  std::copy_n(given.begin(), std::min(given.size(), sector.size()), sector.begin());
  JudgeSuperblock(sector);
  SealSuperblock(sector);
  JudgeSuperblock(sector);
}

// [0; part count; slot; the entry's bytes]
void TryEntry(Choices& choices, size_t input_bytes) {
  const uint32_t part_count = 1 + choices.Below(kPartsPerSpaceMax);
  const auto geometry = SlabGeometry::Of({64 * kKiB, part_count}, 4 * kMiB);
  Require(geometry.ok(), "the target's own geometry");
  const uint32_t slot = choices.Byte() % geometry.value().slot_count;
  const std::span<const std::byte> given = choices.Rest();
  JudgeEntry(geometry.value(), slot, given);
  Bytes bytes(geometry.value().entry_bytes);
  std::copy_n(given.begin(), std::min(given.size(), bytes.size()), bytes.begin());
  JudgeEntry(geometry.value(), slot, bytes);
  SealEntry(slot, bytes);
  SlabEntry entry;
  {
    HeapMeter meter;
    (void)DecodeEntry(geometry.value(), kUuid, slot, bytes, FuzzSecret(), &entry);
    meter.RequireAtMost(kHeapBytesMax, 0, input_bytes);
  }
  JudgeEntry(geometry.value(), slot, bytes);
}

Seed EntrySeed(const std::string& name, uint32_t part_count, SlabEntryState state,
               const std::optional<SlabSeal>& seal = {}) {
  constexpr uint32_t kSlot = 5;
  const auto geometry = SlabGeometry::Of({64 * kKiB, part_count}, 4 * kMiB).value();
  SlabEntry entry;
  entry.state = state;
  entry.slot = kSlot;
  entry.generation = 7;
  entry.seal = seal;
  if (state == SlabEntryState::kUsed) {
    entry.is_pinned = true;
    entry.member = 3;
    entry.position = 11;
    entry.recompute_ns_per_token = 1300;
    entry.epoch = 17;
    entry.length_bytes = 8192;
    entry.commit_id = 0x1111222233334444;
    entry.expires_at_s = 1'900'000'000;
    entry.group = {1, 2};
    entry.space = {3, 4};
    entry.key = {5, 6};
    entry.parent = {7, 8};
    for (uint64_t part = 0; part < part_count; ++part) {
      entry.part_checksums.push_back({100 + part, 200 + part});
    }
  }
  Bytes bytes(geometry.entry_bytes);
  EncodeEntry(geometry, kUuid, entry, FuzzSecret(), bytes);
  ChoiceWriter writer;
  writer.Byte(0).Byte(static_cast<uint8_t>(part_count - 1)).Byte(kSlot).Append(bytes);
  return {name, writer.Take()};
}

Seed SuperblockSeed(const std::string& name, const SlabShape& shape, uint64_t slab_bytes) {
  Bytes sector(kSlabSectorBytes);
  EncodeSuperblock({kUuid, 9, shape, slab_bytes}, FuzzSecret(), sector);
  sector.resize(kSuperblockFieldBytes);  // the rest is zero
  ChoiceWriter writer;
  writer.Byte(1).Append(sector);
  return {name, writer.Take()};
}

std::vector<Seed> Seeds() {
  return {SuperblockSeed("superblock", {64 * kKiB, 40}, kGiB),
          SuperblockSeed("superblock_of_one_slot", {4096, kPartsPerSpaceMax}, 128 * kKiB),
          EntrySeed("entry_used", 2, SlabEntryState::kUsed),
          EntrySeed("entry_of_40_parts", 40, SlabEntryState::kUsed),
          EntrySeed("entry_encrypted", 2, SlabEntryState::kUsed,
                    SlabSeal{{.salt = {std::byte{1}}, .tag = {std::byte{2}}}, 3}),
          EntrySeed("entry_free", 2, SlabEntryState::kFree),
          EntrySeed("entry_quarantined", 2, SlabEntryState::kQuarantined),
          {"entry_unwritten", Bytes(3 + 288)}};
}

bool Run(std::span<const std::byte> input) {
  Choices choices(input);
  if (choices.Byte() % 2 == 1) {
    TrySuperblock(choices, input.size());
  } else {
    TryEntry(choices, input.size());
  }
  return true;
}

// PROMISE: T29 superblocks and entries of slabs
const Registration registration({"slab", Run, Seeds});

}  // namespace terrace::fuzz::slab

#include "tiers/nvme/header_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>

#include "terrace/space.h"

namespace terrace {
namespace {

DomainSecret SecretOf(uint8_t first) {
  DomainSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) {
    secret[i] = static_cast<std::byte>(first + i * 7);
  }
  return secret;
}

const DomainSecret kSecret = SecretOf(1);
constexpr SlabUuid kUuid{0x0123456789ABCDEF, 0xFEDCBA9876543210};
constexpr uint32_t kSlot = 5;

SlabGeometry GeometryOf(uint64_t slot_bytes, uint32_t part_count, uint64_t slab_bytes = kMiB) {
  return SlabGeometry::Of({slot_bytes, part_count}, slab_bytes).value();
}

SlabEntry ExampleEntry(uint32_t part_count) {
  SlabEntry entry;
  entry.state = SlabEntryState::kUsed;
  entry.priority = 50;
  entry.is_pinned = true;
  entry.member = 3;
  entry.slot = kSlot;
  entry.generation = 7;
  entry.position = 11;
  entry.recompute_ns_per_token = 1300;
  entry.epoch = 17;
  entry.length_bytes = 8192;
  entry.commit_id = 0x1111222233334444;
  entry.event_hash = 0x5555666677778888;
  entry.expires_at_s = 1'900'000'000;
  entry.group = {1, 2};
  entry.space = {3, 4};
  entry.key = {5, 6};
  entry.parent = {7, 8};
  for (uint64_t part = 0; part < part_count; ++part) {
    entry.part_checksums.push_back({100 + part, 200 + part});
  }
  return entry;
}

std::vector<std::byte> Encoded(const SlabGeometry& geometry, const SlabEntry& entry) {
  std::vector<std::byte> bytes(geometry.entry_bytes);
  EncodeEntry(geometry, kUuid, entry, kSecret, bytes);
  return bytes;
}

Status Decode(const SlabGeometry& geometry, std::span<const std::byte> bytes, SlabEntry* entry) {
  return DecodeEntry(geometry, kUuid, kSlot, bytes, kSecret, entry);
}

std::string Hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[static_cast<uint8_t>(byte) >> 4];
    text += kDigits[static_cast<uint8_t>(byte) & 15];
  }
  return text;
}

TEST(SlabGeometry, NothingOverlapsAndNoEntryCrossesASector) {
  for (const uint64_t slot_bytes : {4 * kKiB, 12 * kKiB, 64 * kKiB, 1098 * 4 * kKiB}) {
    for (const uint32_t part_count : {1u, 2u, 40u, 128u}) {
      for (const uint64_t slab_bytes : {8 * kMiB, 8 * kMiB + 4096, kGiB}) {
        const SlabGeometry geometry = GeometryOf(slot_bytes, part_count, slab_bytes);
        SCOPED_TRACE(testing::Message() << slot_bytes << " " << part_count << " " << slab_bytes);
        EXPECT_EQ(geometry.payload_offset_bytes % kSlabPayloadAlignmentBytes, 0u);
        uint64_t end_bytes = kSlabTableOffsetBytes;
        for (uint32_t slot = 0; slot < geometry.slot_count; ++slot) {
          const uint64_t at = geometry.EntryOffsetBytes(slot);
          ASSERT_GE(at, end_bytes);
          end_bytes = at + geometry.entry_bytes;
          ASSERT_EQ(at / kSlabSectorBytes, (end_bytes - 1) / kSlabSectorBytes);
        }
        EXPECT_LE(end_bytes, geometry.PayloadOffsetBytes(0));
        EXPECT_LE(geometry.PayloadOffsetBytes(geometry.slot_count - 1) + slot_bytes, slab_bytes);
        EXPECT_EQ(geometry.PayloadOffsetBytes(1) - geometry.PayloadOffsetBytes(0), slot_bytes);
      }
    }
  }
}

TEST(SlabGeometry, OneSlotMoreWouldNotFit) {
  for (const uint64_t slot_bytes : {4 * kKiB, 64 * kKiB, 640 * kKiB}) {
    const SlabGeometry geometry = GeometryOf(slot_bytes, 1, 64 * kMiB);
    const uint64_t slots = geometry.slot_count + 1;
    const uint64_t sectors =
        (slots + geometry.entries_per_sector - 1) / geometry.entries_per_sector;
    const uint64_t payload =
        RoundUp(kSlabTableOffsetBytes + sectors * kSlabSectorBytes, kSlabPayloadAlignmentBytes);
    EXPECT_GT(payload + slots * slot_bytes, geometry.slab_bytes);
  }
}

TEST(SlabGeometry, ImpossibleShapesAreRefused) {
  EXPECT_EQ(SlabGeometry::Of({4095, 1}, kMiB).code(), StatusCode::kInvalid);
  EXPECT_EQ(SlabGeometry::Of({0, 1}, kMiB).code(), StatusCode::kInvalid);
  EXPECT_EQ(SlabGeometry::Of({4096, 0}, kMiB).code(), StatusCode::kInvalid);
  EXPECT_EQ(SlabGeometry::Of({4096, kPartsPerSpaceMax + 1}, kMiB).code(), StatusCode::kInvalid);
  EXPECT_EQ(SlabGeometry::Of({kMiB, 1}, kMiB).code(), StatusCode::kInvalid);
  EXPECT_EQ(SlabGeometry::Of({kMiB - 64 * kKiB, 1}, kMiB).value().slot_count, 1u);
}

TEST(HeaderTable, SuperblockComesBackAndIsBoundToTheSecret) {
  const SlabSuperblock written{kUuid, 9, {64 * kKiB, 40}, kGiB};
  std::vector<std::byte> sector(kSlabSectorBytes);
  EncodeSuperblock(written, kSecret, sector);
  const Result<SlabSuperblock> read = DecodeSuperblock(sector, kSecret);
  ASSERT_TRUE(read.ok()) << read.status().what();
  EXPECT_EQ(read.value().uuid, written.uuid);
  EXPECT_EQ(read.value().slab_index, 9u);
  EXPECT_EQ(read.value().shape, written.shape);
  EXPECT_EQ(read.value().slab_bytes, kGiB);
  EXPECT_EQ(DecodeSuperblock(sector, SecretOf(2)).code(), StatusCode::kCorrupt);
  // All that is not zero lies in the first 512 bytes: a loss of power leaves the old or the new.
  EXPECT_TRUE(std::all_of(sector.begin() + 512, sector.end(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
  sector[16] = std::byte{2};
  EXPECT_EQ(DecodeSuperblock(sector, kSecret).code(), StatusCode::kUnsupported);
}

TEST(HeaderTable, EveryFlippedBitOfASuperblockIsNoticed) {
  std::vector<std::byte> sector(kSlabSectorBytes);
  EncodeSuperblock({kUuid, 9, {64 * kKiB, 40}, kGiB}, kSecret, sector);
  for (size_t bit = 0; bit < kSlabProbeOffsetBytes * 8; ++bit) {
    sector[bit / 8] ^= std::byte{1} << (bit % 8);
    ASSERT_FALSE(DecodeSuperblock(sector, kSecret).ok()) << bit;
    sector[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  sector[kSlabProbeOffsetBytes] = std::byte{1};
  EXPECT_TRUE(DecodeSuperblock(sector, kSecret).ok()) << "the probe place is under no seal";
}

TEST(HeaderTable, EntryComesBack) {
  for (const uint32_t part_count : {1u, 40u, 128u}) {
    const SlabGeometry geometry = GeometryOf(8 * kKiB, part_count);
    const SlabEntry written = ExampleEntry(part_count);
    SlabEntry read;
    ASSERT_TRUE(Decode(geometry, Encoded(geometry, written), &read).ok());
    EXPECT_EQ(read.state, written.state);
    EXPECT_EQ(read.priority, written.priority);
    EXPECT_EQ(read.codec, written.codec);
    EXPECT_EQ(read.is_pinned, written.is_pinned);
    EXPECT_EQ(read.member, written.member);
    EXPECT_EQ(read.slot, written.slot);
    EXPECT_EQ(read.generation, written.generation);
    EXPECT_EQ(read.position, written.position);
    EXPECT_EQ(read.recompute_ns_per_token, written.recompute_ns_per_token);
    EXPECT_EQ(read.epoch, written.epoch);
    EXPECT_EQ(read.length_bytes, written.length_bytes);
    EXPECT_EQ(read.commit_id, written.commit_id);
    EXPECT_EQ(read.event_hash, written.event_hash);
    EXPECT_EQ(read.expires_at_s, written.expires_at_s);
    EXPECT_EQ(read.group, written.group);
    EXPECT_EQ(read.space, written.space);
    EXPECT_EQ(read.key, written.key);
    EXPECT_EQ(read.parent, written.parent);
    EXPECT_EQ(read.part_checksums, written.part_checksums);
  }
}

TEST(HeaderTable, FreeEntryNamesNoBlock) {
  const SlabGeometry geometry = GeometryOf(8 * kKiB, 2);
  SlabEntry free;
  free.slot = kSlot;
  free.generation = 8;
  const std::vector<std::byte> bytes = Encoded(geometry, free);
  SlabEntry read = ExampleEntry(2);
  ASSERT_TRUE(Decode(geometry, bytes, &read).ok());
  EXPECT_EQ(read.state, SlabEntryState::kFree);
  EXPECT_EQ(read.generation, 8u);
  EXPECT_TRUE(read.key.is_zero() && read.parent.is_zero() && read.group.is_zero());
  EXPECT_TRUE(read.part_checksums.empty());
}

TEST(HeaderTable, UnwrittenEntryIsNotFound) {
  const SlabGeometry geometry = GeometryOf(8 * kKiB, 2);
  SlabEntry entry;
  const std::vector<std::byte> zero(geometry.entry_bytes);
  EXPECT_EQ(Decode(geometry, zero, &entry).code(), StatusCode::kNotFound);
}

TEST(HeaderTable, EveryFlippedBitOfAnEntryIsNoticed) {
  const SlabGeometry geometry = GeometryOf(8 * kKiB, 2);
  std::vector<std::byte> bytes = Encoded(geometry, ExampleEntry(2));
  SlabEntry entry;
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    ASSERT_EQ(Decode(geometry, bytes, &entry).code(), StatusCode::kCorrupt) << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EXPECT_TRUE(Decode(geometry, bytes, &entry).ok());
}

TEST(HeaderTable, EntryInAnotherPlaceOrUnderAnotherSecretIsNoEntry) {
  const SlabGeometry geometry = GeometryOf(8 * kKiB, 2);
  const std::vector<std::byte> bytes = Encoded(geometry, ExampleEntry(2));
  SlabEntry entry;
  EXPECT_EQ(DecodeEntry(geometry, kUuid, kSlot + 1, bytes, kSecret, &entry).code(),
            StatusCode::kCorrupt);
  EXPECT_EQ(
      DecodeEntry(geometry, {kUuid.low, kUuid.high + 1}, kSlot, bytes, kSecret, &entry).code(),
      StatusCode::kCorrupt);
  EXPECT_EQ(
      DecodeEntry(geometry, {kUuid.low + 1, kUuid.high}, kSlot, bytes, kSecret, &entry).code(),
      StatusCode::kCorrupt);
  const DomainSecret other = SecretOf(2);
  EXPECT_EQ(DecodeEntry(geometry, kUuid, kSlot, bytes, other, &entry).code(), StatusCode::kCorrupt);
  EXPECT_EQ(DecodeEntry(GeometryOf(8 * kKiB, 3), kUuid, kSlot, bytes, kSecret, &entry).code(),
            StatusCode::kCorrupt);
}

TEST(HeaderTable, SealedNonsenseIsNoEntry) {
  const SlabGeometry geometry = GeometryOf(8 * kKiB, 2);
  const auto code_of = [&](const SlabEntry& entry) {
    SlabEntry read;
    return Decode(geometry, Encoded(geometry, entry), &read).code();
  };
  SlabEntry entry = ExampleEntry(2);
  EXPECT_EQ(code_of(entry), StatusCode::kOk);
  entry.length_bytes = 8 * kKiB + 1;
  EXPECT_EQ(code_of(entry), StatusCode::kCorrupt);
  entry.length_bytes = 0;
  EXPECT_EQ(code_of(entry), StatusCode::kCorrupt);
  entry = ExampleEntry(1);
  EXPECT_EQ(code_of(entry), StatusCode::kCorrupt) << "a checksum is missing";
  entry = ExampleEntry(2);
  entry.state = static_cast<SlabEntryState>(3);
  EXPECT_EQ(code_of(entry), StatusCode::kCorrupt);
  entry = ExampleEntry(2);
  entry.member = kGroupMembersMax;
  EXPECT_EQ(code_of(entry), StatusCode::kCorrupt);
}

uint64_t SealOf(std::span<const std::byte> entry) {
  std::array<std::byte, 28> place;
  const uint64_t hash = KeyedHash64(kSecret, entry.subspan(8));
  std::memcpy(place.data(), &hash, 8);
  std::memcpy(place.data() + 8, &kUuid.low, 8);
  std::memcpy(place.data() + 16, &kUuid.high, 8);
  std::memcpy(place.data() + 24, &kSlot, 4);
  return KeyedHash64(kSecret, place);
}

TEST(HeaderTable, WhatTheDocumentSaysIsZeroIsZero) {
  const SlabGeometry geometry = GeometryOf(8 * kKiB, 2);
  SlabEntry entry = ExampleEntry(0);
  entry.state = SlabEntryState::kQuarantined;
  std::vector<std::byte> bytes = Encoded(geometry, entry);
  EXPECT_TRUE(Decode(geometry, bytes, &entry).ok());
  for (size_t at = 144; at < bytes.size(); ++at) {
    bytes[at] = std::byte{1};
    const uint64_t seal = SealOf(bytes);
    std::memcpy(bytes.data(), &seal, sizeof(seal));
    EXPECT_EQ(Decode(geometry, bytes, &entry).code(), StatusCode::kCorrupt) << at;
    bytes[at] = std::byte{0};
  }
  std::vector<std::byte> sector(kSlabSectorBytes);
  EncodeSuperblock({kUuid, 9, {8 * kKiB, 2}, kMiB}, kSecret, sector);
  for (size_t at = 76; at < kSlabProbeOffsetBytes; ++at) {
    sector[at] = std::byte{1};
    const uint64_t seal =
        KeyedHash64(kSecret, std::span(sector).subspan(8, kSlabProbeOffsetBytes - 8));
    std::memcpy(sector.data(), &seal, sizeof(seal));
    EXPECT_EQ(DecodeSuperblock(sector, kSecret).code(), StatusCode::kCorrupt) << at;
    sector[at] = std::byte{0};
  }
}

// PROMISE: T29 entries of slabs
TEST(HeaderTable, RandomBytesAreNoEntry) {
  const SlabGeometry geometry = GeometryOf(8 * kKiB, 2);
  std::mt19937_64 random(1);
  std::vector<std::byte> bytes = Encoded(geometry, ExampleEntry(2));
  SlabEntry entry;
  for (int round = 0; round < 10'000; ++round) {
    for (size_t at = 12; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(random());
    ASSERT_FALSE(Decode(geometry, bytes, &entry).ok());
  }
}

// The bytes themselves: a change here is a new kSlabFormatVersion.
TEST(HeaderTable, GoldenVectors) {
  const SlabGeometry geometry = GeometryOf(8 * kKiB, 1);
  const std::vector<std::byte> entry = Encoded(geometry, ExampleEntry(1));
  EXPECT_EQ(Hex(std::span(entry).first(144)),
            "d1ad78e0fa0d866a"  // seal
            "54525345"
            "0100"
            "01"
            "32"  // magic, version, state, priority
            "00"
            "01"
            "0300"  // codec, flags, member
            "05000000"
            "07000000"
            "0b000000"  // slot, generation, position
            "14050000"
            "01000000"                          // recompute cost, parts
            "1100000000000000"                  // epoch
            "0020000000000000"                  // length
            "4444333322221111"                  // commit id
            "8888777766665555"                  // event hash
            "00b33f7100000000"                  // expires
            "01000000000000000200000000000000"  // group
            "03000000000000000400000000000000"  // space
            "05000000000000000600000000000000"  // key
            "07000000000000000800000000000000"  // parent
  );
  EXPECT_EQ(Hex(std::span(entry).subspan(256)), "6400000000000000c800000000000000");
  std::vector<std::byte> sector(kSlabSectorBytes);
  EncodeSuperblock({kUuid, 9, {64 * kKiB, 40}, kGiB}, kSecret, sector);
  EXPECT_EQ(Hex(std::span(sector).first(80)),
            "4344fb3d581b8ea4"  // seal
            "54455252534c4142"
            "01000000"
            "09000000"                          // magic, version, slab index
            "efcdab89674523011032547698badcfe"  // uuid
            "0000004000000000"
            "0000010000000000"  // slab bytes, slot bytes
            "28000000"
            "80030000"  // parts, entry bytes
            "0000fd0000000000"
            "033f0000"
            "00000000"  // payload offset, slots
  );
}

}  // namespace
}  // namespace terrace

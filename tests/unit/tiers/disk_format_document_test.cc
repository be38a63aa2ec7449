// docs/DISK_FORMAT.md says where each field lies: so do the bytes that are written.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "test_paths.h"
#include "tiers/nvme/header_table.h"

namespace terrace {
namespace {

constexpr uint32_t kPartCount = 3;

struct Row {
  size_t offset = 0;
  size_t length = 0;
  std::string field;
  std::string meaning;
};

// The rows of the table below `heading`.
std::vector<Row> RowsBelow(const std::string& heading) {
  std::ifstream page(TERRACE_SOURCE_DIR "/docs/DISK_FORMAT.md");
  std::vector<Row> rows;
  std::string line;
  while (std::getline(page, line) && line != heading) {
  }
  while (std::getline(page, line) && !line.starts_with("#")) {
    if (!line.starts_with("| ") || line.starts_with("| offset")) continue;
    std::istringstream cells(line.substr(1));
    std::string offset, length, field, meaning;
    std::getline(cells, offset, '|');
    std::getline(cells, length, '|');
    std::getline(cells, field, '|');
    std::getline(cells, meaning, '|');
    rows.push_back(
        {std::stoul(offset), std::stoul(length), field.substr(1, field.size() - 2), meaning});
  }
  return rows;
}

void ExpectNoGaps(const std::vector<Row>& rows, size_t end) {
  size_t at = 0;
  for (const Row& row : rows) {
    EXPECT_EQ(row.offset, at) << row.field;
    at = row.offset + row.length;
  }
  EXPECT_EQ(at, end);
}

// Outside the seal.
std::set<size_t> ChangedBytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  std::set<size_t> changed;
  for (size_t at = 8; at < a.size(); ++at) {
    if (a[at] != b[at]) changed.insert(at);
  }
  return changed;
}

std::set<size_t> BytesOf(const Row& row, uint32_t count = 1) {
  std::set<size_t> bytes;
  for (size_t at = 0; at < row.length * count; ++at) bytes.insert(row.offset + at);
  return bytes;
}

void ExpectMagic(const Row& row, std::span<const std::byte> bytes) {
  const std::string magic(reinterpret_cast<const char*>(&bytes[row.offset]), row.length);
  EXPECT_TRUE(row.meaning.starts_with(" `") && row.meaning.ends_with("` "));
  EXPECT_EQ(row.meaning.substr(2, row.meaning.size() - 4), magic);
}

DomainSecret TheSecret() {
  DomainSecret secret{};
  secret[0] = std::byte{7};
  return secret;
}

// ---- entries ----

using Change = std::function<void(SlabEntry&)>;
const std::map<std::string, Change>& EntryChanges() {
  static const std::map<std::string, Change> changes = {
      {"state", [](SlabEntry& e) { e.state = SlabEntryState::kQuarantined; }},
      {"priority", [](SlabEntry& e) { e.priority = 0xFF; }},
      {"codec", [](SlabEntry& e) { e.codec = 0xFF; }},
      {"flags", [](SlabEntry& e) { e.is_pinned = true; }},
      {"member", [](SlabEntry& e) { e.member = 0xFFFF; }},
      {"slot", [](SlabEntry& e) { e.slot = 0x01010101; }},
      {"generation", [](SlabEntry& e) { e.generation = 0xFFFFFFFF; }},
      {"position", [](SlabEntry& e) { e.position = 0xFFFFFFFF; }},
      {"recompute", [](SlabEntry& e) { e.recompute_ns_per_token = 0xFFFFFFFF; }},
      {"part_count", [](SlabEntry& e) { e.part_checksums.resize(kPartCount - 1); }},
      {"epoch", [](SlabEntry& e) { e.epoch = UINT64_MAX; }},
      {"length", [](SlabEntry& e) { e.length_bytes = UINT64_MAX; }},
      {"commit_id", [](SlabEntry& e) { e.commit_id = UINT64_MAX; }},
      {"event_hash", [](SlabEntry& e) { e.event_hash = UINT64_MAX; }},
      {"expires", [](SlabEntry& e) { e.expires_at_s = UINT64_MAX; }},
      {"group",
       [](SlabEntry& e) {
         e.group = {UINT64_MAX, UINT64_MAX};
       }},
      {"space",
       [](SlabEntry& e) {
         e.space = {UINT64_MAX, UINT64_MAX};
       }},
      {"key",
       [](SlabEntry& e) {
         e.key = {UINT64_MAX, UINT64_MAX};
       }},
      {"parent",
       [](SlabEntry& e) {
         e.parent = {UINT64_MAX, UINT64_MAX};
       }},
      {"salt", [](SlabEntry& e) { e.seal->salt.fill(std::byte{0xFF}); }},
      {"tag", [](SlabEntry& e) { e.seal->tag.fill(std::byte{0xFF}); }},
      {"key_id", [](SlabEntry& e) { e.seal->key_id = UINT64_MAX; }},
      {"checksums",
       [](SlabEntry& e) {
         for (Checksum& one : e.part_checksums) one = {UINT64_MAX, UINT64_MAX};
       }},
  };
  return changes;
}

TEST(DiskFormatDocument, EntryFieldsLieWhereThePageSays) {
  // Slots enough for a number that fills its field; nothing is allocated for them.
  const SlabGeometry geometry =
      SlabGeometry::Of({.slot_bytes = 4096, .part_count = kPartCount}, uint64_t{1} << 38).value();
  const auto encode = [&](const SlabEntry& entry) {
    SlabGeometry wide = geometry;
    wide.slot_count = UINT32_MAX;
    std::vector<std::byte> bytes(geometry.entry_bytes);
    EncodeEntry(wide, {1, 2}, entry, TheSecret(), bytes);
    return bytes;
  };
  SlabEntry plain;
  plain.part_checksums.resize(kPartCount);
  plain.seal.emplace();
  const std::vector<std::byte> before = encode(plain);
  const std::vector<Row> rows = RowsBelow("### Entry");
  ASSERT_EQ(rows.size(), EntryChanges().size() + 4) << "seal, magic, version, zero and the fields";
  ExpectNoGaps(rows, kSlabEntryBaseBytes + kSlabEntryPartBytes);
  for (const Row& row : rows) {
    SCOPED_TRACE(row.field);
    if (row.field == "magic") ExpectMagic(row, before);
    if (row.field == "version") {
      uint16_t version = 0;
      std::memcpy(&version, &before[row.offset], sizeof version);
      EXPECT_EQ(std::stoul(row.meaning), version);
    }
    const auto change = EntryChanges().find(row.field);
    if (change == EntryChanges().end()) continue;
    SlabEntry changed = plain;
    change->second(changed);
    const std::set<size_t> expected = row.field == "part_count"
                                          ? std::set<size_t>{row.offset}
                                          : BytesOf(row, row.field == "checksums" ? kPartCount : 1);
    EXPECT_EQ(ChangedBytes(before, encode(changed)), expected);
  }
}

// ---- superblocks ----

TEST(DiskFormatDocument, SuperblockFieldsLieWhereThePageSays) {
  const auto encode = [](const SlabSuperblock& superblock) {
    std::vector<std::byte> bytes(kSlabSectorBytes);
    EncodeSuperblock(superblock, TheSecret(), bytes);
    return bytes;
  };
  const SlabSuperblock superblock{.uuid = {0x1111111111111111, 0x2222222222222222},
                                  .slab_index = 0x33333333,
                                  .shape = {.slot_bytes = 12288, .part_count = 5},
                                  .slab_bytes = uint64_t{7} << 30};
  const SlabGeometry geometry = SlabGeometry::Of(superblock.shape, superblock.slab_bytes).value();
  const std::map<std::string, uint64_t> values = {
      {"version", kSlabFormatVersion},
      {"slab_index", superblock.slab_index},
      {"slab_bytes", superblock.slab_bytes},
      {"slot_bytes", superblock.shape.slot_bytes},
      {"part_count", superblock.shape.part_count},
      {"entry_bytes", geometry.entry_bytes},
      {"payload_offset", geometry.payload_offset_bytes},
      {"slot_count", geometry.slot_count},
      {"zero", 0},
      {"probe", 0},
  };
  const std::vector<std::byte> bytes = encode(superblock);
  const std::vector<Row> rows = RowsBelow("### Superblock");
  ASSERT_EQ(rows.size(), values.size() + 3) << "seal, magic, uuid and the fields";
  ExpectNoGaps(rows, kSlabSectorBytes);
  for (const Row& row : rows) {
    SCOPED_TRACE(row.field);
    if (row.field == "magic") ExpectMagic(row, bytes);
    if (row.field == "uuid") {
      EXPECT_EQ(std::memcmp(&bytes[row.offset], &superblock.uuid, row.length), 0);
    }
    const auto value = values.find(row.field);
    if (value == values.end()) continue;
    uint64_t found = 0;
    for (size_t at = row.length; at > 0; --at) {
      if (at > 8) {
        EXPECT_EQ(bytes[row.offset + at - 1], std::byte{0});
      } else {
        found = found << 8 | static_cast<uint64_t>(bytes[row.offset + at - 1]);
      }
    }
    EXPECT_EQ(found, value->second);
  }
}

TEST(DiskFormatDocument, SealCoversWhatThePageSays) {
  std::vector<std::byte> sector(kSlabSectorBytes);
  EncodeSuperblock({.slab_index = 3,
                    .shape = {.slot_bytes = 65536, .part_count = 1},
                    .slab_bytes = uint64_t{1} << 30},
                   TheSecret(), sector);
  const std::vector<Row> rows = RowsBelow("### Superblock");
  ASSERT_FALSE(rows.empty());
  const Row& probe = rows.back();
  ASSERT_EQ(probe.field, "probe");
  for (size_t at = 0; at < sector.size(); ++at) {
    sector[at] ^= std::byte{1};
    EXPECT_EQ(DecodeSuperblock(sector, TheSecret()).ok(), at >= probe.offset) << at;
    sector[at] ^= std::byte{1};
  }
}

TEST(DiskFormatDocument, ExampleOfThePageIsRight) {
  const SlabGeometry geometry =
      SlabGeometry::Of({.slot_bytes = 1 << 20, .part_count = 1}, uint64_t{1} << 30).value();
  EXPECT_EQ(geometry.entry_bytes, 272u);
  EXPECT_EQ(geometry.entries_per_sector, 15u);
  EXPECT_EQ(geometry.payload_offset_bytes, 327'680u);
  EXPECT_EQ(geometry.slot_count, 1023u);
  EXPECT_EQ(geometry.EntryOffsetBytes(31), 4096u + 2 * 4096 + 272);
}

}  // namespace
}  // namespace terrace

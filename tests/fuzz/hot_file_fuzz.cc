// The file of `terrace export`: as it is, and with fingerprint and checksums made anew, so that
// what lies behind them is judged, too. They are made here as docs/HOT_SET_FORMAT.md says.
#include <algorithm>
#include <cstddef>
#include <string>

#include "fuzz/fuzz.h"
#include "terrace/domain_secret.h"
#include "terrace/units.h"
#include "tools/terrace/content/hot_file.h"

namespace terrace::fuzz::hot_file {

using tools::HotBlockHead;
using tools::HotFileHeader;
using tools::HotFileReader;
using tools::HotFileWriter;
using tools::HotRecordHeader;
using tools::HotRecordKind;

// A record of a group may claim what the largest has, and one of a block what the groups' largest
// has, before its bytes are there.
constexpr uint64_t kHeapBytesMax = 2 * kMiB;
constexpr uint64_t kHeapFactor = 64;
constexpr uint64_t kBlockBytesMax = 256 * kKiB;

uint64_t SeedOf(uint64_t created_unix_s, uint64_t place) {
  constexpr std::string_view kPurpose = "terrace hot set 1";
  Bytes message = BytesOfText(kPurpose);
  message.resize(kPurpose.size() + 16);
  std::memcpy(message.data() + kPurpose.size(), &created_unix_s, 8);
  std::memcpy(message.data() + kPurpose.size() + 8, &place, 8);
  return KeyedHash64(FuzzSecret(), message);
}

// Whole records only: what follows them stays as it is.
void Seal(Bytes* file) {
  HotFileHeader header;
  if (file->size() < sizeof(header)) return;
  std::memcpy(&header, file->data(), sizeof(header));
  DomainSecretFingerprint(FuzzSecret()).copy(header.fingerprint, sizeof(header.fingerprint));
  constexpr size_t kHeaderSealed = offsetof(HotFileHeader, checksum);
  header.checksum = ChecksumPart(std::as_bytes(std::span(&header, 1)).first(kHeaderSealed),
                                 SeedOf(header.created_unix_s, 0));
  std::memcpy(file->data(), &header, sizeof(header));
  uint64_t place = 0;
  for (size_t at = sizeof(header); file->size() - at >= sizeof(HotRecordHeader);) {
    HotRecordHeader record;
    std::memcpy(&record, file->data() + at, sizeof(record));
    const uint64_t left_bytes = file->size() - at - sizeof(record);
    if (record.body_bytes > left_bytes) return;
    constexpr size_t kRecordSealed = offsetof(HotRecordHeader, checksum);
    ChecksumStream sum(SeedOf(header.created_unix_s, ++place));
    sum.Append(std::span<const std::byte>(*file).subspan(at, kRecordSealed));
    sum.Append(std::span<const std::byte>(*file).subspan(at + sizeof(record), record.body_bytes));
    record.checksum = sum.Finish();
    std::memcpy(file->data() + at, &record, sizeof(record));
    at += sizeof(record) + record.body_bytes;
  }
}

struct Outcome {
  bool is_whole = false;
  HotFileHeader header;
  std::vector<SpaceGroupSpec> groups;
  std::vector<HotBlockHead> blocks;
  std::vector<Bytes> payloads;
  std::vector<size_t> groups_before;  // of each block
};

uint64_t LargestBlock(const std::vector<SpaceGroupSpec>& groups) {
  uint64_t bytes_max = 0;
  for (const SpaceGroupSpec& group : groups) {
    bytes_max = std::max(bytes_max, tools::PayloadBytes(group, group.local_member_mask()));
  }
  return bytes_max;
}

Outcome ReadAll(std::span<const std::byte> file) {
  Outcome outcome;
  std::span<const std::byte> rest = file;
  const HotFileReader* groups_of = nullptr;
  HotFileReader reader(FuzzSecret(), [&](std::span<std::byte> into) {
    // What follows may claim as many bytes as a block of these groups has: here the file ends.
    if (groups_of != nullptr && LargestBlock(groups_of->groups()) > kBlockBytesMax) rest = {};
    const size_t count = std::min(into.size(), rest.size());
    std::copy_n(rest.begin(), count, into.begin());
    rest = rest.subspan(count);
    return count;
  });
  groups_of = &reader;
  HotBlockHead head;
  std::span<const std::byte> payload;
  Status status = reader.Begin(&outcome.header);
  while (status.ok()) {
    status = reader.Next(&head, &payload);
    if (!status.ok()) break;
    Require(head.group < reader.groups().size(), "a block of no group");
    Require(payload.size() == tools::PayloadBytes(reader.groups()[head.group], head.member_mask),
            "a block of other bytes than its members have");
    outcome.blocks.push_back(head);
    outcome.payloads.emplace_back(payload.begin(), payload.end());
    outcome.groups_before.push_back(reader.groups().size());
  }
  outcome.is_whole = status.code() == StatusCode::kNotFound;
  Require(outcome.is_whole ? reader.why().empty()
                           : status.code() == StatusCode::kInvalid && !reader.why().empty(),
          "refused, and nobody says why");
  Require(!outcome.is_whole || rest.empty(), "whole, and something follows");
  outcome.groups = reader.groups();
  return outcome;
}

bool AreEqual(const HotBlockHead& left, const HotBlockHead& right) {
  HotBlockHead same = right;
  std::copy(std::begin(left.reserved), std::end(left.reserved), std::begin(same.reserved));
  return std::memcmp(&left, &same, sizeof(left)) == 0;
}

bool IsSameGroup(const SpaceGroupSpec& left, const SpaceGroupSpec& right) {
  const auto is_same_member = [](const SpaceGroupMember& one, const SpaceGroupMember& other) {
    return one.spec == other.spec && one.is_remote == other.is_remote;
  };
  return left.name == right.name && std::ranges::equal(left.members, right.members, is_same_member);
}

// What is whole, written again, is read as the same.
void JudgeWhole(const Outcome& outcome) {
  Bytes again;
  HotFileWriter writer(FuzzSecret(), [&again](std::span<const std::byte> bytes) {
    again.insert(again.end(), bytes.begin(), bytes.end());
    return true;
  });
  bool is_written = writer.Begin(outcome.header);
  size_t group = 0;
  for (size_t i = 0; i <= outcome.blocks.size(); ++i) {
    const size_t groups_before =
        i < outcome.blocks.size() ? outcome.groups_before[i] : outcome.groups.size();
    for (; group < groups_before; ++group) is_written &= writer.AddGroup(outcome.groups[group]);
    if (i < outcome.blocks.size()) {
      is_written &= writer.AddBlock(outcome.blocks[i], outcome.payloads[i]);
    }
  }
  Require(is_written && writer.End(), "what was read cannot be written");
  const Outcome read = ReadAll(again);
  Require(read.is_whole && read.payloads == outcome.payloads &&
              std::ranges::equal(read.groups, outcome.groups, IsSameGroup) &&
              std::ranges::equal(read.blocks, outcome.blocks, AreEqual),
          "what was written again says something else");
}

void Try(std::span<const std::byte> file) {
  Outcome outcome;
  {
    HeapMeter meter;
    outcome = ReadAll(file);
    meter.RequireAtMost(kHeapBytesMax, kHeapFactor, file.size());
  }
  if (outcome.is_whole) JudgeWhole(outcome);
}

SpaceSpec Space(uint32_t rank, uint32_t window_tokens) {
  SpaceSpec spec;
  spec.model = "m";
  spec.revision = "r";
  spec.dtype = "bf16";
  spec.layers = 2;
  spec.kv_heads = 1;
  spec.head_size = 64;
  spec.layout = "nhd";
  spec.block_tokens = 16;
  spec.tp_rank = rank;
  spec.tp_size = 2;
  spec.part_bytes = {30, 5};
  if (window_tokens > 0) {
    spec.attention = AttentionKind::kSliding;
    spec.window_tokens = window_tokens;
    spec.attention_group = 1;
  }
  return spec;
}

Bytes ExampleFile(uint32_t block_count) {
  Bytes file;
  HotFileWriter writer(FuzzSecret(), [&file](std::span<const std::byte> bytes) {
    file.insert(file.end(), bytes.begin(), bytes.end());
    return true;
  });
  HotFileHeader header{.created_unix_s = 1'700'000'000, .bytes_asked = 1 << 20};
  std::string_view("chat").copy(header.domain_name, sizeof(header.domain_name) - 1);
  bool is_written = writer.Begin(header);
  if (block_count > 0) {
    is_written &=
        writer.AddGroup({.name = "g", .members = {{.spec = Space(0, 0)}, {.spec = Space(1, 32)}}});
  }
  HotBlockHead head;
  for (uint32_t i = 0; i < block_count; ++i) {
    head.parent = head.key;
    head.key = {.low = i + 1, .high = 2};
    head.member_mask = i % 2 == 0 ? 1 : 3;
    head.position = i;
    head.priority = 35;
    const Bytes payload(i % 2 == 0 ? 35 : 70, std::byte{7});
    is_written &= writer.AddBlock(head, payload);
  }
  Require(is_written && writer.End(), "an example cannot be written");
  return file;
}

std::vector<Seed> Seeds() {
  Bytes cut = ExampleFile(2);
  cut.resize(cut.size() - 100);
  Bytes followed = ExampleFile(0);
  followed.push_back(std::byte{1});
  return {{"two_blocks", ExampleFile(2)},
          {"no_block", ExampleFile(0)},
          {"cut_off", std::move(cut)},
          {"something_follows", std::move(followed)}};
}

bool Run(std::span<const std::byte> input) {
  Bytes file(input.begin(), input.end());
  Try(file);
  Seal(&file);
  Try(file);
  return true;
}

// PROMISE: T29 files of hot sets
const Registration registration({"hot_file", Run, Seeds});

}  // namespace terrace::fuzz::hot_file

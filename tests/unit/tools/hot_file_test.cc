// The file of `terrace export`: what it is, byte for byte, and that nothing else is believed.
#include "tools/terrace/content/hot_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "terrace/domain_secret.h"
#include "test_paths.h"

namespace terrace::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;

DomainSecret Secret(uint8_t first = 3) {
  DomainSecret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = std::byte(7 * i + first);
  return secret;
}

SpaceSpec Space(uint32_t rank, uint32_t window_tokens = 0) {
  SpaceSpec spec;
  spec.model = "llama";
  spec.revision = "r1";
  spec.dtype = "bf16";
  spec.layers = 2;
  spec.kv_heads = 1;
  spec.head_size = 64;
  spec.layout = "nhd";
  spec.block_tokens = 16;
  spec.tp_rank = rank;
  spec.tp_size = 2;
  spec.part_bytes = {300, 50};
  if (window_tokens > 0) {
    spec.attention = AttentionKind::kSliding;
    spec.window_tokens = window_tokens;
    spec.attention_group = 1;
  }
  return spec;
}
SpaceGroupSpec Group() {
  return {.name = "llama", .members = {{.spec = Space(0)}, {.spec = Space(1, 32)}}};
}

Bytes Payload(uint64_t byte_count, uint32_t block) {
  Bytes bytes(byte_count);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(131 * i + i / 256 + 7 * block);
  return bytes;
}

// Two blocks of one prompt, of which the first has no bytes of the windowed member.
Bytes MakeFile(const DomainSecret& secret = Secret()) {
  Bytes file;
  HotFileWriter writer(secret, [&file](std::span<const std::byte> bytes) {
    file.insert(file.end(), bytes.begin(), bytes.end());
    return true;
  });
  HotFileHeader header{.created_unix_s = 1'700'000'000, .bytes_asked = 1 << 20};
  std::string_view("chat").copy(header.domain_name, sizeof(header.domain_name) - 1);
  EXPECT_TRUE(writer.Begin(header));
  EXPECT_TRUE(writer.AddGroup(Group()));
  HotBlockHead head{.key = {.low = 1, .high = 2},
                    .age_ms = 5'000,
                    .idle_ms = 1'000,
                    .member_mask = 1,
                    .hit_count = 4,
                    .expires_in_s = 60,
                    .priority = 35};
  EXPECT_TRUE(writer.AddBlock(head, Payload(350, 0)));
  head.parent = head.key;
  head.key = {.low = 3, .high = 4};
  head.member_mask = 3;
  head.position = 1;
  head.expires_in_s = 0;
  head.flags = kHotNoStore;
  EXPECT_TRUE(writer.AddBlock(head, Payload(700, 1)));
  EXPECT_TRUE(writer.End());
  return file;
}

struct Outcome {
  std::string why;  // empty: whole
  std::vector<HotBlockHead> blocks;
  std::vector<Bytes> payloads;
};
Outcome ReadFile(const Bytes& file, const DomainSecret& secret = Secret()) {
  size_t at = 0;
  HotFileReader reader(secret, [&](std::span<std::byte> bytes) {
    const size_t count = std::min(bytes.size(), file.size() - at);
    if (count > 0) std::memcpy(bytes.data(), file.data() + at, count);
    at += count;
    return count;
  });
  Outcome outcome;
  HotFileHeader header;
  HotBlockHead head;
  std::span<const std::byte> payload;
  Status status = reader.Begin(&header);
  while (status.ok()) {
    status = reader.Next(&head, &payload);
    if (!status.ok()) break;
    outcome.blocks.push_back(head);
    outcome.payloads.emplace_back(payload.begin(), payload.end());
  }
  outcome.why = status.code() == StatusCode::kNotFound ? "" : reader.why();
  EXPECT_TRUE(status.code() == StatusCode::kNotFound || !outcome.why.empty());
  return outcome;
}

TEST(HotFile, ReadsWhatItWrote) {
  const Outcome outcome = ReadFile(MakeFile());
  EXPECT_EQ(outcome.why, "");
  ASSERT_EQ(outcome.blocks.size(), 2u);
  EXPECT_EQ(outcome.payloads[0], Payload(350, 0));
  EXPECT_EQ(outcome.payloads[1], Payload(700, 1));
  EXPECT_EQ(outcome.blocks[1].parent, outcome.blocks[0].key);
  EXPECT_EQ(outcome.blocks[1].flags, kHotNoStore);
}

// docs/HOT_SET_FORMAT.md describes this file, which is kept as hex digits; a release that writes
// another has another version.
TEST(HotFile, IsTheGoldenFile) {
  const std::string path =
      std::string(TERRACE_SOURCE_DIR) + "/tests/unit/tools/golden/hot_set_1.hex";
  std::ifstream in(path);
  Bytes golden;
  for (std::string line; std::getline(in, line);) {
    for (size_t at = 0; at + 1 < line.size(); at += 2) {
      golden.push_back(std::byte(std::stoul(line.substr(at, 2), nullptr, 16)));
    }
  }
  const Bytes made = MakeFile();
  ASSERT_EQ(golden.size(), made.size()) << path;
  const auto [left, right] = std::mismatch(golden.begin(), golden.end(), made.begin());
  EXPECT_EQ(left - golden.begin(), std::ssize(golden)) << "the first byte that is another";
  EXPECT_EQ(ReadFile(golden).blocks.size(), 2u);
}

TEST(HotFile, CutOffAnywhereItIsRefusedAndSaysWhere) {
  const Bytes file = MakeFile();
  for (size_t length = 0; length < file.size(); ++length) {
    const Outcome outcome = ReadFile(Bytes(file.begin(), file.begin() + static_cast<long>(length)));
    ASSERT_THAT(outcome.why, AllOf(HasSubstr("at byte " + std::to_string(length)),
                                   HasSubstr("cut off"), HasSubstr("export it again")))
        << length;
    for (size_t i = 0; i < outcome.payloads.size(); ++i) {
      ASSERT_EQ(outcome.payloads[i], Payload(i == 0 ? 350 : 700, static_cast<uint32_t>(i)));
    }
  }
}

// Whatever byte has a bit that is another: no block is believed that is not the one that was
// written.
TEST(HotFile, AnyFlippedBitIsFoundBeforeItsBlockIsBelieved) {
  const Bytes file = MakeFile();
  const Outcome good = ReadFile(file);
  for (size_t bit = 0; bit < 8 * file.size(); bit += bit % 64 == 56 ? 1 : 7) {
    Bytes damaged = file;
    damaged[bit / 8] ^= std::byte(1u << bit % 8);
    const Outcome outcome = ReadFile(damaged);
    ASSERT_THAT(outcome.why, HasSubstr("at byte ")) << "bit " << bit;
    for (size_t i = 0; i < outcome.payloads.size(); ++i) {
      ASSERT_EQ(outcome.payloads[i], good.payloads[i]) << "bit " << bit;
      ASSERT_EQ(std::memcmp(&outcome.blocks[i], &good.blocks[i], sizeof(HotBlockHead)), 0) << bit;
    }
  }
}

TEST(HotFile, RecordsAreBelievedInTheirOwnPlaceOnly) {
  const Bytes file = MakeFile();
  // Header, group, block of 350, block of 700, end.
  const size_t group = sizeof(HotFileHeader);
  uint64_t group_bytes = 0;
  std::memcpy(&group_bytes, file.data() + group + 8, sizeof(group_bytes));
  const size_t first = group + sizeof(HotRecordHeader) + group_bytes;
  const size_t second = first + sizeof(HotRecordHeader) + sizeof(HotBlockHead) + 350;
  Bytes left_out(file.begin(), file.begin() + static_cast<long>(first));
  left_out.insert(left_out.end(), file.begin() + static_cast<long>(second), file.end());
  EXPECT_THAT(ReadFile(left_out).why, HasSubstr("wrong checksum"));
  Bytes twice(file.begin(), file.begin() + static_cast<long>(second));
  twice.insert(twice.end(), file.begin() + static_cast<long>(first), file.end());
  EXPECT_THAT(ReadFile(twice).why, HasSubstr("wrong checksum"));
  Bytes longer = file;
  longer.push_back(std::byte{0});
  EXPECT_THAT(ReadFile(longer).why, HasSubstr("behind the end"));
}

TEST(HotFile, AnotherDomainsFileAndWhatIsNoneAreNamed) {
  const std::string theirs = DomainSecretFingerprint(Secret(9)),
                    own = DomainSecretFingerprint(Secret());
  EXPECT_THAT(ReadFile(MakeFile(Secret(9))).why,
              AllOf(HasSubstr(theirs), HasSubstr(own), HasSubstr("secret_file")));
  EXPECT_THAT(ReadFile(Bytes(1000, std::byte{'x'})).why, HasSubstr("no file of `terrace export`"));
  Bytes newer = MakeFile();
  newer[8] = std::byte{2};
  EXPECT_THAT(ReadFile(newer).why, AllOf(HasSubstr("version 2"), HasSubstr("reads version 1")));
}

// Who knows the layout and not the secret makes no block.
TEST(HotFile, WithoutTheSecretNobodyMakesARecord) {
  Bytes forged = MakeFile(Secret(9));
  const Bytes good = MakeFile();
  std::copy_n(good.begin(), sizeof(HotFileHeader), forged.begin());
  const Outcome outcome = ReadFile(forged);
  EXPECT_THAT(outcome.why, HasSubstr("wrong checksum"));
  EXPECT_TRUE(outcome.blocks.empty());
}

TEST(HotFile, ARecordThatClaimsMuchTakesNoMemory) {
  Bytes file = MakeFile();
  const uint64_t huge = uint64_t{1} << 62;
  std::memcpy(file.data() + sizeof(HotFileHeader) + 8, &huge, sizeof(huge));
  EXPECT_THAT(ReadFile(file).why, HasSubstr("the limit here is"));
}

TEST(HotFile, NoiseIsRefused) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 400; ++round) {
    Bytes file = MakeFile();
    const size_t from = random() % file.size();
    for (size_t i = from; i < std::min(file.size(), from + 1 + random() % 64); ++i) {
      file[i] = std::byte(random());
    }
    const Outcome outcome = ReadFile(file);
    ASSERT_EQ(outcome.why.empty(), file == MakeFile()) << round;
  }
}

}  // namespace
}  // namespace terrace::tools

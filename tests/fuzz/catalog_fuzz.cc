// What a domain keeps in files and records beside slot entries (which are slab_fuzz.cc's): groups
// and the generations of their blocks on Redis, as they are and with the seal made anew; canonical
// texts of Spaces; and the domain's secret.
#include <iterator>
#include <string>

#include "daemon/persist/group_files.h"
#include "daemon/persist/kept_generations.h"
#include "fuzz/fuzz.h"
#include "terrace/domain_secret.h"
#include "terrace/space.h"
#include "terrace/units.h"

namespace terrace::fuzz::catalog {

constexpr std::string_view kSeal = "seal=";
constexpr size_t kSealLineBytes = kSeal.size() + 16 + 1;
// `members=64` is a few bytes, and 64 specs.
constexpr uint64_t kHeapBytesMax = 8 * kKiB + kGroupMembersMax * sizeof(SpaceGroupMember);
constexpr uint64_t kHeapFactor = 16;
constexpr size_t kToldBytesMax = 100;  // longer than any refusal but what it quotes

// As daemon/persist/group_files.cc begins by saying.
std::string Sealed(std::string_view content) {
  const uint64_t seal = KeyedHash64(FuzzSecret(), std::as_bytes(std::span(content)));
  return std::string(content) + std::string(kSeal) + ToHex(0, seal).substr(16) + "\n";
}

void JudgeGroup(std::string_view content) {
  SpaceGroupSpec spec;
  std::string why;
  HeapMeter meter;
  const Status status = ParseGroupFile(content, FuzzSecret(), &spec, &why);
  meter.RequireAtMost(kHeapBytesMax, kHeapFactor, content.size());
  if (!status.ok()) {
    Require(status.code() == StatusCode::kCorrupt || status.code() == StatusCode::kUnsupported,
            "a group's file is refused as no reader expects");
    Require(!why.empty() && spec.name.empty() && spec.members.empty(),
            "refused, and something was read");
    return;
  }
  Require(spec.Validate(&why).ok(), "a group that is none was believed");
  Require(FormatGroupFile(spec, FuzzSecret()) == content,
          "a group's file that was believed is written in another way");
}

void TryGroup(Choices& choices) {
  const std::string_view given = TextOf(choices.Rest());
  JudgeGroup(given);
  JudgeGroup(Sealed(given));
  if (given.size() >= kSealLineBytes) {
    JudgeGroup(Sealed(given.substr(0, given.size() - kSealLineBytes)));
  }
}

void TrySpace(Choices& choices) {
  const std::string_view text = TextOf(choices.Rest());
  SpaceSpec spec;
  std::string why;
  HeapMeter meter;
  const Status status = SpaceSpec::Parse(text, &spec, &why);
  meter.RequireAtMost(kHeapBytesMax, kHeapFactor, text.size());
  if (!status.ok()) {
    Require(status.code() == StatusCode::kInvalid && !why.empty() && spec == SpaceSpec(),
            "refused, and something was read");
    return;
  }
  Require(spec.CanonicalText() == text, "a Space that was read is written in another way");
  if (!spec.Validate(&why).ok()) return Require(!why.empty(), "refused, and nobody says why");
  Require(!spec.part_bytes.empty() && spec.part_bytes.size() <= kPartsPerSpaceMax, "of no parts");
  uint64_t end_bytes = 0;
  for (uint32_t part = 0; part < spec.part_bytes.size(); ++part) {
    const uint64_t offset_bytes = spec.part_offset_bytes(part);
    Require(offset_bytes >= end_bytes && offset_bytes % kPartAlignmentBytes == 0, "parts overlap");
    end_bytes = offset_bytes + spec.part_bytes[part];
  }
  Require(end_bytes <= spec.slot_bytes(), "parts reach beyond their slot");
}

void JudgeGenerations(std::string_view content) {
  HeapMeter meter;
  const auto read = ParseGenerations(content, FuzzSecret());
  meter.RequireAtMost(kHeapBytesMax, kHeapFactor, content.size());
  if (!read.ok()) {
    return Require(read.code() == StatusCode::kCorrupt, "refused as no reader expects");
  }
  Require(FormatGenerations(*read, FuzzSecret()) == content,
          "generations that were believed are written in another way");
}

void JudgePlace(std::string_view content) {
  HeapMeter meter;
  const auto read = ParsePlace(content, FuzzSecret());
  meter.RequireAtMost(kHeapBytesMax, kHeapFactor, content.size());
  Require(read.ok() || read.code() == StatusCode::kCorrupt, "refused as no reader expects");
}

void TryGenerations(Choices& choices) {
  std::string content(TextOf(choices.Rest()));
  JudgeGenerations(content);
  const uint64_t seal = KeyedHash64(FuzzSecret(), std::as_bytes(std::span(content)));
  const std::string sealed = content + "seal " + ToHex(0, seal).substr(16) + "\n";
  JudgeGenerations(sealed);
  JudgePlace(sealed);
}

void TrySecret(Choices& choices) {
  const std::string_view text = TextOf(choices.Rest());
  DomainSecret secret{};
  std::string why;
  if (!ParseDomainSecret(text, &secret, &why).ok()) {
    return Require(
        !why.empty() && (text.size() < kToldBytesMax || why.find(text) == std::string::npos),
        "refused, and nobody says why, or what may be a secret is told");
  }
  const std::string written = FormatDomainSecret(secret);  // a person may leave out the line's end
  Require(written == text || written == std::string(text) + '\n',
          "a secret that was read is written in another way");
}

constexpr void (*kTries[])(Choices&) = {TryGroup, TrySpace, TryGenerations, TrySecret};

SpaceSpec Space(uint32_t rank, uint32_t window_tokens) {
  SpaceSpec spec;
  spec.model = "a model %";
  spec.revision = "r";
  spec.dtype = "bf16";
  spec.quantisation = "terrace:fp8";
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

// Texts that are read, of what is refused then: each limit of a Space once.
std::vector<SpaceSpec> WrongSpaces() {
  std::vector<SpaceSpec> wrong(9, Space(0, 0));
  wrong[0].model = std::string(kSpaceStringBytesMax + 1, 'm');
  wrong[1].window_tokens = 5;
  wrong[2].attention = AttentionKind::kSliding;
  wrong[3].part_bytes = {0};
  wrong[4].part_bytes = {kSegmentBytesMax + 1};
  wrong[5].part_bytes = {kSegmentBytesMax, kSegmentBytesMax};
  wrong[6].part_bytes.clear();
  wrong[7].pp_rank = wrong[7].pp_size;
  wrong[8].block_tokens = 0;
  return wrong;
}
std::vector<SpaceGroupSpec> WrongGroups() {
  SpaceSpec other = Space(1, 0);
  other.block_tokens = 32;
  return {{.name = "", .members = {{.spec = Space(0, 0)}}},
          {.name = std::string(kGroupNameBytesMax + 1, 'g'), .members = {{.spec = Space(0, 0)}}},
          {.name = "\t", .members = {{.spec = Space(0, 0)}}},
          {.name = "none", .members = {}},
          {.name = "twice", .members = {{.spec = Space(0, 0)}, {.spec = Space(0, 0)}}},
          {.name = "windows", .members = {{.spec = Space(0, 32)}}},
          {.name = "sizes", .members = {{.spec = Space(0, 0)}, {.spec = other}}}};
}

std::vector<Seed> Seeds() {
  SpaceSpec plain = Space(0, 0);
  plain.quantisation.clear();
  const SpaceGroupSpec one{.name = "one", .members = {{.spec = plain}}};
  const SpaceGroupSpec two{
      .name = "llama3-70b",
      .members = {{.spec = Space(0, 0)}, {.spec = Space(1, 32), .is_remote = true}}};
  const std::string sealed = FormatGroupFile(two, FuzzSecret());
  const std::string generations = FormatGenerations(
      {.generations = {{.group = {1, 2}, .generation = 1'700'000'000, .is_owed = true},
                       {.group = {3, 4}, .generation = 5}},
       .erasures = {{.group = {3, 4}, .key = {5, 6}, .until_s = 1'800'000'000}}},
      FuzzSecret());
  const std::string place =
      FormatPlace({.names = 7, .ttl_s = 86'400, .endpoints = {8, UINT64_MAX}}, FuzzSecret());
  const auto seed = [](const std::string& name, uint8_t kind, std::string_view text) {
    return Seed{name, ChoiceWriter().Byte(kind).Append(text).Take()};
  };
  std::vector<Seed> seeds;
  for (const SpaceSpec& wrong : WrongSpaces()) {
    seeds.push_back(seed("wrong_space_" + std::to_string(seeds.size()), 1, wrong.CanonicalText()));
  }
  for (const SpaceGroupSpec& wrong : WrongGroups()) {
    const std::string text = FormatGroupFile(wrong, FuzzSecret());
    seeds.push_back(seed("wrong_group_" + std::to_string(seeds.size()), 0, text));
  }
  const std::vector<Seed> right = {
      seed("group", 0, FormatGroupFile(one, FuzzSecret())),
      seed("group_of_two", 0, sealed),
      seed("group_without_seal", 0, std::string_view(sealed).substr(0, sealed.size() - 22)),
      seed("group_of_another_version", 0, "terrace-group-2\nname=x\n"),
      seed("space", 1, plain.CanonicalText()),
      seed("space_windowed", 1, Space(1, 32).CanonicalText()),
      seed("generations", 2, generations.substr(0, generations.size() - 22)),
      seed("generations_sealed", 2, generations),
      seed("place", 2, place.substr(0, place.size() - 22)),
      seed("space_too_long", 1, std::string(kSpaceTextBytesMax + 1, 'x')),
      seed("secret", 3, FormatDomainSecret(FuzzSecret()))};
  seeds.insert(seeds.end(), right.begin(), right.end());
  return seeds;
}

bool Run(std::span<const std::byte> input) {
  Choices choices(input);
  kTries[choices.Below(std::size(kTries))](choices);
  return true;
}

// PROMISE: T29 files of groups and generations, Spaces, secrets
const Registration registration({"catalog", Run, Seeds});

}  // namespace terrace::fuzz::catalog

// What lies on a Redis server, and what a person or a server says where one is: manifests and
// generations (as they are, and with the seal made anew), presence bits' names, redirections, error
// words, endpoints.
#include <algorithm>
#include <array>
#include <iterator>
#include <string>

#include "fuzz/fuzz.h"
#include "terrace/units.h"
#include "tiers/redis/redis_format.h"
#include "tiers/redis/wire/redis_endpoint.h"
#include "tiers/redis/wire/redis_error.h"
#include "tiers/redis/wire/redis_slot.h"

namespace terrace::fuzz::redis_format {

constexpr size_t kSealBytes = 8;
// A manifest is held once more as it is decoded, in vectors that grow twofold.
constexpr uint64_t kHeapBytesMax = kKiB;
constexpr uint64_t kHeapFactor = 4;
constexpr size_t kErrorNumbers = 140;  // of the system, and some beyond

// As docs/REDIS_FORMAT.md says.
void SealManifest(uint64_t generation, std::span<std::byte> bytes) {
  if (bytes.size() < kSealBytes) return;
  uint64_t seal = KeyedHash64(FuzzSecret(), bytes.subspan(kSealBytes));
  if (generation != 0) {
    std::array<std::byte, 16> both;
    std::memcpy(both.data(), &seal, 8);
    std::memcpy(both.data() + 8, &generation, 8);
    seal = KeyedHash64(FuzzSecret(), both);
  }
  std::memcpy(bytes.data(), &seal, sizeof(seal));
}

void JudgeManifest(std::span<const std::byte> bytes, uint64_t generation) {
  HeapMeter meter;
  const Result<RedisManifest> read = DecodeManifest(bytes, FuzzSecret(), generation);
  meter.RequireAtMost(kHeapBytesMax, kHeapFactor, bytes.size());
  if (!read.ok()) {
    Require(read.code() == StatusCode::kCorrupt, "a manifest is refused as no reader expects");
    return;
  }
  uint64_t sum_bytes = read->tail.size();
  for (const RedisChunk& chunk : read->chunks) sum_bytes += chunk.length_bytes;
  Require(sum_bytes == read->length_bytes, "chunks that do not add up were believed");
  Require(std::ranges::equal(EncodeManifest(*read, FuzzSecret()), bytes),
          "a manifest that was believed is written in another way");
  RedisManifest told = ManifestOf(RecordOf(*read));
  told.write_id = read->write_id;
  told.length_bytes = read->length_bytes;
  told.chunks = read->chunks;
  told.tail = read->tail;
  told.generation = read->generation;
  told.encryption = read->encryption;
  Require(told == *read, "a manifest told as a block is another one");
  const RedisBlockName name{.group = read->group,
                            .space = read->space,
                            .key = read->key,
                            .position = read->position,
                            .generation = generation};
  Require(RedisKeyNames::PresenceBit(name) < kRedisPresenceBytes * 8, "a bit beyond its bitmap");
}

void TryManifest(Choices& choices) {
  const uint64_t generation = choices.Below(3);
  const std::span<const std::byte> given = choices.Rest();
  JudgeManifest(given, generation);
  Bytes sealed(given.begin(), given.end());
  SealManifest(generation, sealed);
  JudgeManifest(sealed, generation);
}

void TryGeneration(Choices& choices) {
  const GroupId group{choices.Byte(), 1};
  const std::string_view text = TextOf(choices.Rest());
  const Result<uint64_t> read = DecodeGeneration(text, group, FuzzSecret());
  if (read.ok()) {
    Require(EncodeGeneration(group, *read, FuzzSecret()) == text,
            "a generation that was believed is written in another way");
  }
  // The digits under a seal of their own.
  uint64_t generation = 0;
  std::memcpy(&generation, text.data(), std::min(text.size(), sizeof(generation)));
  const std::string written = EncodeGeneration(group, generation, FuzzSecret());
  const Result<uint64_t> back = DecodeGeneration(written, group, FuzzSecret());
  Require(back.ok() && *back == generation, "a generation does not come back");
  Require(!DecodeGeneration(written, {group.low + 1, 1}, FuzzSecret()).ok(),
          "another group's generation was believed");
}

// What of it a person is told.
void JudgeWords(std::string_view text) {
  const std::string said = FirstWordsOf(text);
  Require(said.size() <= kRedisSaidBytesMax && text.starts_with(said),
          "other words than were said");
  Require(std::ranges::all_of(said, [](char c) { return c >= ' ' && c <= '~' && c != '"'; }),
          "a person is told what is no text");
  const auto error_number = static_cast<int32_t>(text.size() % kErrorNumbers);
  for (const Status status :
       {Status(StatusCode::kIo, "trouble", error_number), Status(StatusCode::kBusy, "trouble")}) {
    const std::string told = RedisTroubleText(status, said);
    Require(told.starts_with("trouble") && told.find(said) != std::string::npos &&
                said.empty() == (told.find(" (it says: ") == std::string::npos),
            "trouble is told in other words");
  }
}

void TryError(Choices& choices) {
  const std::string_view text = TextOf(choices.Rest());
  const RedisError error = ClassifyRedisError(text);
  Require(!RedisErrorName(error).empty(), "an error without a name");
  Require(error != RedisError::kNone && !StatusOfRedisError(error).ok(), "an error that is none");
  Require(!(IsHardRedisError(error) && IsSoftRedisError(error)), "an error hard and soft");
  Require(StatusOfRedisError(RedisError::kNone).ok(), "no error is one");
  Require(!IsWriteRefusal(error) || StatusOfRedisError(error).code() == StatusCode::kNoSpace,
          "a refusal of writes is more than that");
  Require(!IsForeignRedisValue(error) || StatusOfRedisError(error).code() == StatusCode::kCorrupt,
          "what somebody else keeps is believed");
  JudgeWords(text);
  const Result<RedisRedirect> redirect = ParseRedisRedirect(text);
  Require(!redirect.ok() || IsRedirect(error), "a redirection that is none");
  if (!redirect.ok()) return;
  Require(redirect->slot < kRedisSlotCount && redirect->port > 0, "a redirection to nowhere");
}

void TryEndpoint(Choices& choices) {
  const std::string text(TextOf(choices.Rest()));
  std::string why;
  const Result<RedisEndpoint> read = ParseRedisEndpoint(text, &why);
  if (!read.ok()) {
    Require(read.code() == StatusCode::kInvalid && !why.empty(), "refused, and nobody says why");
    return;
  }
  const Result<RedisEndpoint> again = ParseRedisEndpoint(ToText(*read), &why);
  Require(again.ok() && *again == *read, "an endpoint does not come back");
}

constexpr void (*kTries[])(Choices&) = {TryManifest, TryGeneration, TryError, TryEndpoint};

RedisManifest Example(size_t part_count, size_t chunk_count, size_t tail_bytes) {
  RedisManifest manifest;
  manifest.group = {1, 2};
  manifest.space = {3, 4};
  manifest.key = {5, 6};
  manifest.parent = {7, 8};
  manifest.commit_id = 9;
  manifest.write_id = 10;
  manifest.position = 11;
  manifest.member = 1;
  for (uint64_t i = 0; i < part_count; ++i) manifest.part_checksums.push_back({i, i + 1});
  for (uint64_t i = 0; i < chunk_count; ++i) manifest.chunks.push_back({{i, i + 2}, 65'472});
  manifest.tail.resize(tail_bytes, std::byte{7});
  manifest.length_bytes = chunk_count * 65'472 + tail_bytes;
  return manifest;
}
Seed ManifestSeed(const std::string& name, const RedisManifest& manifest) {
  ChoiceWriter writer;
  writer.Byte(0).Byte(static_cast<uint8_t>(manifest.generation));
  writer.Append(EncodeManifest(manifest, FuzzSecret()));
  return {name, writer.Take()};
}

Seed TextSeed(const std::string& name, uint8_t kind, std::string_view text) {
  return {name, ChoiceWriter().Byte(kind).Append(text).Take()};
}

std::vector<Seed> Seeds() {
  RedisManifest of_generation = Example(1, 3, 0);
  of_generation.generation = 2;
  RedisManifest encrypted = Example(1, 0, 64);
  encrypted.encryption.emplace().key_id = 7;
  std::vector<Seed> seeds = {ManifestSeed("manifest", Example(2, 1, 64)),
                             ManifestSeed("manifest_of_a_generation", of_generation),
                             ManifestSeed("manifest_of_a_tail", Example(1, 0, 512)),
                             ManifestSeed("manifest_encrypted", encrypted)};
  seeds.push_back(
      {"generation",
       ChoiceWriter().Byte(1).Byte(4).Append(EncodeGeneration({4, 1}, 77, FuzzSecret())).Take()});
  seeds.push_back(TextSeed("moved", 2, "MOVED 3999 127.0.0.1:6381"));
  seeds.push_back(TextSeed("ask", 2, "ASK 16383 :1"));
  seeds.push_back(TextSeed("error_old_password", 2, "ERR invalid password"));
  seeds.push_back(TextSeed("error_quoted", 2, "OOM can't. Next \"x\" or 'y' or `z`"));
  for (const std::string word : {"NOREPLICAS", "READONLY", "MISCONF", "NOAUTH"}) {
    seeds.push_back(TextSeed("error_" + word, 2, word + " and why."));
  }
  seeds.push_back(TextSeed("error_of_arguments", 2, "ERR wrong number of arguments for 'get'"));
  seeds.push_back(TextSeed("error_of_a_script", 2, "ERR ACL failure in script"));
  for (const std::string word : {"OOM", "NONE"}) {
    seeds.push_back(TextSeed("error_of_a_script_" + word, 2,
                             "ERR Error running script (call to f_1): @user_script:1: -" + word +
                                 " command not allowed"));
  }
  seeds.push_back(TextSeed("error_ends", 2, "NOPERM of 'x"));
  seeds.push_back(TextSeed("error_of_one_word", 2, "ERR" + std::string(kRedisSaidBytesMax, 'x')));
  std::string long_error = "WRONGTYPE";
  for (int i = 0; i < 40; ++i) long_error += " (long";
  seeds.push_back(TextSeed("error_of_many_words", 2, long_error));
  seeds.push_back(TextSeed("endpoint", 3, "redis.example:6379"));
  seeds.push_back(TextSeed("endpoint_v6", 3, "[fe80::1]:6379"));
  seeds.push_back(TextSeed("endpoint_unix", 3, "unix:/run/redis.sock"));
  return seeds;
}

bool Run(std::span<const std::byte> input) {
  Choices choices(input);
  kTries[choices.Below(std::size(kTries))](choices);
  return true;
}

// PROMISE: T29 manifests, generations, errors and addresses of Redis
const Registration registration({"redis_format", Run, Seeds});

}  // namespace terrace::fuzz::redis_format

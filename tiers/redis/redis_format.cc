#include "tiers/redis/redis_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <iterator>
#include <system_error>
#include <utility>

#include "terrace/check.h"
#include "tiers/record_fields.h"
#include "tiers/redis/redis_chunks.h"

namespace terrace {
namespace {

// Where the fields of a manifest begin. docs/REDIS_FORMAT.md has the same table.
struct At {
  static constexpr size_t kSeal = 0;  // over all that follows
  static constexpr size_t kMagic = 8;
  static constexpr size_t kVersion = 12;
  static constexpr size_t kCodec = 14;
  static constexpr size_t kPriority = 15;
  static constexpr size_t kPosition = 16;
  static constexpr size_t kRecompute = 20;
  static constexpr size_t kLength = 24;
  static constexpr size_t kCommit = 32;
  static constexpr size_t kWrite = 40;
  static constexpr size_t kEventHash = 48;
  static constexpr size_t kExpires = 56;
  static constexpr size_t kGroup = 64;
  static constexpr size_t kSpace = 80;
  static constexpr size_t kKey = 96;
  static constexpr size_t kParent = 112;
  static constexpr size_t kMember = 128;
  static constexpr size_t kPartCount = 130;
  static constexpr size_t kChunkCount = 132;
  static constexpr size_t kTailLength = 134;
  static constexpr size_t kParts = 136;
  // Of what is encrypted; parts, chunks and tail follow then.
  static constexpr size_t kKeyId = 136;
  static constexpr size_t kSalt = 144;
  static constexpr size_t kTag = 176;
  static constexpr size_t kEncryptedParts = 192;
};
static_assert(At::kTag == At::kSalt + kCipherSaltBytes &&
              At::kEncryptedParts == At::kTag + kCipherTagBytes);
constexpr size_t kPartBytes = 16;
constexpr size_t kChunkBytes = 24;            // checksum, length, four zeros
constexpr uint32_t kMagic = 0x4D525254;       // "TRRM"
constexpr uint32_t kChunkSeed = 0x8000'0000;  // beside the numbers of parts
static_assert(kPartsPerSpaceMax < kChunkSeed);

std::string Hex64(uint64_t value) { return ToHex(0, value).substr(16); }

// What lies under a name of one generation is nothing under a name of another. The first generation
// has no name, as before there were any.
uint64_t SealOf(std::span<const std::byte> bytes, uint64_t generation, const DomainSecret& secret) {
  const uint64_t seal = KeyedHash64(secret, bytes);
  if (generation == 0) return seal;
  std::array<std::byte, 16> both{};
  Put(both, 0, seal);
  Put(both, 8, generation);
  return KeyedHash64(secret, both);
}

constexpr size_t kGenerationDigits = 20;  // of 2^64 - 1
constexpr std::string_view kGenerationTitle = "generation";

std::string SealOfGeneration(const GroupId& group, std::string_view digits,
                             const DomainSecret& secret) {
  std::vector<std::byte> bytes(16);
  PutId(bytes, 0, group);
  std::ranges::copy(std::as_bytes(std::span(kGenerationTitle)), std::back_inserter(bytes));
  std::ranges::copy(std::as_bytes(std::span(digits)), std::back_inserter(bytes));
  return Hex64(KeyedHash64(secret, bytes));
}

}  // namespace

std::vector<std::byte> EncodeManifest(const RedisManifest& manifest, const DomainSecret& secret) {
  TERRACE_CHECK(manifest.part_checksums.size() <= kPartsPerSpaceMax &&
                    manifest.chunks.size() <= kRedisChunksMax &&
                    manifest.tail.size() <= kRedisTailBytesMax,
                "a manifest beyond its limits");
  const size_t parts_at = manifest.encryption ? At::kEncryptedParts : At::kParts;
  const size_t chunks_at = parts_at + kPartBytes * manifest.part_checksums.size();
  const size_t tail_at = chunks_at + kChunkBytes * manifest.chunks.size();
  std::vector<std::byte> bytes(tail_at + manifest.tail.size());
  Put(bytes, At::kMagic, kMagic);
  Put(bytes, At::kVersion,
      static_cast<uint16_t>(manifest.encryption ? kRedisEncryptedVersion : kRedisFormatVersion));
  Put(bytes, At::kPriority, manifest.priority);
  Put(bytes, At::kPosition, manifest.position);
  Put(bytes, At::kRecompute, manifest.recompute_ns_per_token);
  Put(bytes, At::kLength, manifest.length_bytes);
  Put(bytes, At::kCommit, manifest.commit_id);
  Put(bytes, At::kWrite, manifest.write_id);
  Put(bytes, At::kEventHash, manifest.event_hash);
  Put(bytes, At::kExpires, manifest.expires_at_s);
  PutId(bytes, At::kGroup, manifest.group);
  PutId(bytes, At::kSpace, manifest.space);
  PutId(bytes, At::kKey, manifest.key);
  PutId(bytes, At::kParent, manifest.parent);
  Put(bytes, At::kMember, manifest.member);
  Put(bytes, At::kPartCount, static_cast<uint16_t>(manifest.part_checksums.size()));
  Put(bytes, At::kChunkCount, static_cast<uint16_t>(manifest.chunks.size()));
  Put(bytes, At::kTailLength, static_cast<uint16_t>(manifest.tail.size()));
  if (manifest.encryption) {
    Put(bytes, At::kKeyId, manifest.encryption->key_id);
    Put(bytes, At::kSalt, manifest.encryption->salt);
    Put(bytes, At::kTag, manifest.encryption->tag);
  }
  size_t at = parts_at;
  for (const Checksum& part : manifest.part_checksums) {
    PutId(bytes, at, part);
    at += kPartBytes;
  }
  for (const RedisChunk& chunk : manifest.chunks) {
    PutId(bytes, at, chunk.checksum);
    Put(bytes, at + 16, chunk.length_bytes);
    at += kChunkBytes;
  }
  std::ranges::copy(manifest.tail, bytes.begin() + static_cast<ptrdiff_t>(tail_at));
  Put(bytes, At::kSeal, SealOf(std::span(bytes).subspan(At::kMagic), manifest.generation, secret));
  return bytes;
}

Result<RedisManifest> DecodeManifest(std::span<const std::byte> bytes, const DomainSecret& secret,
                                     uint64_t generation) {
  const Status refused(StatusCode::kCorrupt, "not a manifest of this domain");
  if (bytes.size() < At::kParts ||
      Get<uint64_t>(bytes, At::kSeal) != SealOf(bytes.subspan(At::kMagic), generation, secret) ||
      Get<uint32_t>(bytes, At::kMagic) != kMagic || Get<uint8_t>(bytes, At::kCodec) != 0) {
    return refused;
  }
  const uint32_t version = Get<uint16_t>(bytes, At::kVersion);
  const bool is_encrypted = version == kRedisEncryptedVersion;
  const size_t parts_at = is_encrypted ? At::kEncryptedParts : At::kParts;
  if (!is_encrypted && version != kRedisFormatVersion) return refused;
  const size_t part_count = Get<uint16_t>(bytes, At::kPartCount);
  const size_t chunk_count = Get<uint16_t>(bytes, At::kChunkCount);
  const size_t tail_bytes = Get<uint16_t>(bytes, At::kTailLength);
  if (part_count > kPartsPerSpaceMax || chunk_count > kRedisChunksMax ||
      tail_bytes > kRedisTailBytesMax ||
      bytes.size() != parts_at + kPartBytes * part_count + kChunkBytes * chunk_count + tail_bytes) {
    return refused;
  }
  RedisManifest manifest;
  manifest.group = GetId<GroupId>(bytes, At::kGroup);
  manifest.space = GetId<SpaceId>(bytes, At::kSpace);
  manifest.key = GetId<BlockKey>(bytes, At::kKey);
  manifest.parent = GetId<BlockKey>(bytes, At::kParent);
  manifest.commit_id = Get<CommitId>(bytes, At::kCommit);
  manifest.write_id = Get<uint64_t>(bytes, At::kWrite);
  manifest.length_bytes = Get<uint64_t>(bytes, At::kLength);
  manifest.event_hash = Get<uint64_t>(bytes, At::kEventHash);
  manifest.expires_at_s = Get<uint64_t>(bytes, At::kExpires);
  manifest.position = Get<uint32_t>(bytes, At::kPosition);
  manifest.recompute_ns_per_token = Get<uint32_t>(bytes, At::kRecompute);
  manifest.member = Get<uint16_t>(bytes, At::kMember);
  manifest.priority = Get<uint8_t>(bytes, At::kPriority);
  if (is_encrypted) {
    RedisSeal& seal = manifest.encryption.emplace();
    seal.key_id = Get<KeyId>(bytes, At::kKeyId);
    seal.salt = Get<CipherSalt>(bytes, At::kSalt);
    seal.tag = Get<CipherTag>(bytes, At::kTag);
  }
  size_t at = parts_at;
  for (size_t i = 0; i < part_count; ++i, at += kPartBytes) {
    manifest.part_checksums.push_back(GetId<Checksum>(bytes, at));
  }
  uint64_t sum_bytes = tail_bytes;
  for (size_t i = 0; i < chunk_count; ++i, at += kChunkBytes) {
    const RedisChunk chunk{GetId<Checksum>(bytes, at), Get<uint32_t>(bytes, at + 16)};
    if (chunk.length_bytes == 0 || chunk.length_bytes > kRedisChunkBytesMax ||
        Get<uint32_t>(bytes, at + 20) != 0) {
      return refused;
    }
    sum_bytes += chunk.length_bytes;
    manifest.chunks.push_back(chunk);
  }
  if (sum_bytes != manifest.length_bytes) return refused;
  manifest.tail.assign(bytes.begin() + static_cast<ptrdiff_t>(at), bytes.end());
  manifest.generation = generation;
  return manifest;
}

std::string EncodeGeneration(const GroupId& group, uint64_t generation,
                             const DomainSecret& secret) {
  std::string digits = std::to_string(generation);
  digits.insert(0, kGenerationDigits - digits.size(), '0');
  return digits + ":" + SealOfGeneration(group, digits, secret);
}

Result<uint64_t> DecodeGeneration(std::string_view text, const GroupId& group,
                                  const DomainSecret& secret) {
  const Status refused(StatusCode::kCorrupt, "not a generation of this domain's group");
  if (text.size() != kGenerationDigits + 17 || text[kGenerationDigits] != ':') return refused;
  const std::string_view digits = text.substr(0, kGenerationDigits);
  if (text.substr(kGenerationDigits + 1) != SealOfGeneration(group, digits, secret)) return refused;
  uint64_t generation = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), generation);
  if (error != std::errc() || end != digits.end()) return refused;
  return generation;
}

Checksum RedisChunkChecksum(const DomainSecret& secret, const RedisManifest& manifest,
                            uint32_t index, std::span<const std::byte> bytes) {
  return ChecksumPart(bytes, ChecksumSeed(secret, {.space = manifest.space,
                                                   .key = manifest.key,
                                                   .commit_id = manifest.commit_id,
                                                   .part_index = kChunkSeed + index}));
}

RedisKeyNames::RedisKeyNames(const std::string& prefix, const DomainSecret& secret,
                             uint32_t version)
    : prefix_(prefix + std::to_string(version)), secret_(secret) {}

std::string RedisKeyNames::Tag(const RedisBlockName& name) const {
  std::array<std::byte, 60> run{};
  PutId(run, 0, name.group);
  PutId(run, 16, name.space);
  PutId(run, 32, name.run);
  Put(run, 48, name.position / kRedisRunBlocks);
  Put(run, 52, name.generation);
  const auto named = std::span(run).first(name.generation == 0 ? 52 : 60);
  return prefix_ + ":{" + Hex64(KeyedHash64(secret_, named)) + "}";
}

std::string RedisKeyNames::Manifest(const RedisBlockName& name) const {
  return Tag(name) + "m" + ToHex(name.key);
}

std::string RedisKeyNames::Chunk(const RedisBlockName& name, const RedisManifest& manifest,
                                 uint32_t index) const {
  return Tag(name) + "c" + Hex64(manifest.commit_id) + Hex64(manifest.write_id) + ":" +
         std::to_string(index);
}

std::vector<std::string> RedisKeyNames::Small(const RedisBlockName& name,
                                              size_t chunk_count) const {
  const std::string tag = Tag(name);
  const std::string key = ToHex(name.key);
  std::vector<std::string> keys;
  keys.reserve(1 + chunk_count);
  keys.push_back(tag + "m" + key);
  for (size_t i = 0; i < chunk_count; ++i) {
    keys.push_back(tag + "s" + key + ":" + std::to_string(i));
  }
  return keys;
}

std::string RedisKeyNames::Generation(const GroupId& group) const {
  std::vector<std::byte> bytes(16);
  PutId(bytes, 0, group);
  std::ranges::copy(std::as_bytes(std::span(kGenerationTitle)), std::back_inserter(bytes));
  return prefix_ + ":{" + Hex64(KeyedHash64(secret_, bytes)) + "}g";
}

std::string RedisKeyNames::Permission(const std::string& prefix, uint32_t version) {
  return prefix + std::to_string(version) + ":permission";
}

std::string RedisKeyNames::Look(const std::string& prefix, uint32_t version) {
  return prefix + std::to_string(version) + ":look";
}

std::string RedisKeyNames::Presence(const RedisBlockName& name) const { return Tag(name) + "p"; }

uint32_t RedisKeyNames::PresenceBit(const RedisBlockName& name) {
  return name.position % kRedisRunBlocks * kRedisPresenceBits +
         static_cast<uint32_t>(name.key.low % kRedisPresenceBits);
}

BlockRecord RecordOf(const RedisManifest& manifest) {
  BlockRecord record{manifest};
  record.part_checksums = manifest.part_checksums;
  return record;
}

RedisManifest ManifestOf(const BlockRecord& record) {
  RedisManifest manifest{record};
  manifest.part_checksums.assign(record.part_checksums.begin(), record.part_checksums.end());
  return manifest;
}

}  // namespace terrace

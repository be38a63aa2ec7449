// What a block looks like on a Redis server: the names of its keys and its manifest. The manifest
// says everything of a block and is sealed with the domain's secret; chunks are payload bytes and
// nothing else. docs/REDIS_FORMAT.md.
//
// Pure.
// LIMITS: kPartsPerSpaceMax parts, kRedisChunksMax chunks, kRedisTailBytesMax of a tail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/block_key.h"
#include "terrace/checksum.h"
#include "terrace/space.h"
#include "terrace/status.h"
#include "terrace/units.h"
#include "tiers/block_meta.h"
#include "tiers/crypto/key_ring.h"
#include "tiers/crypto/payload_seal.h"
#include "tiers/shared_name.h"
#include "tiers/tier.h"

namespace terrace {

inline constexpr uint32_t kRedisFormatVersion = 2;
// Of what is encrypted: its names are others, so whoever has no keys never sees it.
inline constexpr uint32_t kRedisEncryptedVersion = 3;
inline constexpr uint64_t kRedisTtlSecondsMax = 365 * 24 * 3600;  // redis.ttl_s may be set to
// The chunks of a block up to so long have names that whoever knows the block's can tell: it is
// written and read by one command.
inline constexpr uint64_t kRedisSmallBlockBytesMax = 128 * kKiB;
inline constexpr uint32_t kRedisSmallChunksMax = 4;
inline constexpr uint32_t kRedisChunksMax = 512;
// What is left of a block after its last chunk lies in the manifest itself, up to so many bytes.
inline constexpr uint32_t kRedisTailBytesMax = 512;
// A run's bitmap has so many bits a position: prompts that share a run's beginning and part inside
// it are told apart, mostly.
inline constexpr uint32_t kRedisPresenceBits = 32;
inline constexpr uint64_t kRedisPresenceBytes = kRedisRunBlocks * kRedisPresenceBits / 8;

struct RedisChunk {
  Checksum checksum;
  uint32_t length_bytes = 0;

  friend bool operator==(const RedisChunk&, const RedisChunk&) = default;
};

// How a block's payload is encrypted, and under which key of the ring.
struct RedisSeal : PayloadSeal {
  KeyId key_id = 0;

  friend bool operator==(const RedisSeal&, const RedisSeal&) = default;
};

// Of a BlockDescription pins are not stored: they are one host's.
struct RedisManifest : BlockDescription {
  uint64_t write_id = 0;  // of the one write that made these chunks, random
  uint64_t length_bytes = 0;
  std::vector<Checksum> part_checksums;  // the caller's, carried
  std::vector<RedisChunk> chunks;
  std::vector<std::byte> tail;          // chunks and tail add up to length_bytes
  uint64_t generation = 0;              // of its name; no field says it, its seal does
  std::optional<RedisSeal> encryption;  // none: as it is

  friend bool operator==(const RedisManifest&, const RedisManifest&) = default;
};

// REQUIRES: within the limits, lengths that add up.
std::vector<std::byte> EncodeManifest(const RedisManifest& manifest, const DomainSecret& secret);
// kCorrupt: nobody who knows the secret wrote these bytes for a name of that generation, or not for
// this format.
Result<RedisManifest> DecodeManifest(std::span<const std::byte> bytes, const DomainSecret& secret,
                                     uint64_t generation = 0);

// A group's generation as the server has it.
std::string EncodeGeneration(const GroupId& group, uint64_t generation, const DomainSecret& secret);
// kCorrupt: nobody who knows the secret wrote that for this group.
Result<uint64_t> DecodeGeneration(std::string_view text, const GroupId& group,
                                  const DomainSecret& secret);

// Of the bytes of chunk `index`: of another chunk, block or commit they are something else.
Checksum RedisChunkChecksum(const DomainSecret& secret, const RedisManifest& manifest,
                            uint32_t index, std::span<const std::byte> bytes);

// The names of one domain's keys. All of a run have one hash tag, which only who knows the secret
// can tell.
class RedisKeyNames {
 public:
  RedisKeyNames(const std::string& prefix, const DomainSecret& secret,
                uint32_t version = kRedisFormatVersion);

  std::string Manifest(const RedisBlockName& name) const;
  std::string Chunk(const RedisBlockName& name, const RedisManifest& manifest,
                    uint32_t index) const;
  // Of a small block: the manifest's, and one for each chunk.
  std::vector<std::string> Small(const RedisBlockName& name, size_t chunk_count) const;
  // Where a group's generation is said.
  std::string Generation(const GroupId& group) const;
  // Of no block: whoever may not look for it may not look for any.
  static std::string Permission(const std::string& prefix, uint32_t version);
  // Of nothing: written to learn whether a server takes writes.
  static std::string Look(const std::string& prefix, uint32_t version);
  std::string Presence(const RedisBlockName& name) const;
  // In the run's bitmap; two blocks of one position share it one time in kRedisPresenceBits.
  static uint32_t PresenceBit(const RedisBlockName& name);

 private:
  std::string Tag(const RedisBlockName& name) const;

  const std::string prefix_;  // with the version
  const DomainSecret secret_;
};

// What a manifest says of its block, and of a block what a manifest says.
BlockRecord RecordOf(const RedisManifest& manifest);
RedisManifest ManifestOf(const BlockRecord& record);

}  // namespace terrace

#include "tiers/redis/redis_payload.h"

#include <string_view>

#include "tiers/crypto/group_key.h"

namespace terrace {
namespace {

constexpr std::string_view kPayloadLabel = "terrace redis payload key 1";

}  // namespace

Status EncryptRedisPayload(const KeyRing& ring, const RandomFill& random,
                           std::span<const std::byte> from, std::span<std::byte> into,
                           RedisManifest* manifest) {
  RedisSeal seal;
  seal.key_id = ring.first();
  TERRACE_RETURN_IF_ERROR(random(seal.salt));
  const PayloadName name = NamePayload(*manifest, from.size(), manifest->part_checksums);
  Encrypt(DeriveKey(*ring.Find(seal.key_id), kPayloadLabel, seal.salt, name), name, from, into,
          &seal.tag);
  const std::span<const std::byte> tail = into.last(manifest->tail.size());
  manifest->tail.assign(tail.begin(), tail.end());
  manifest->encryption = seal;
  return Status::Ok();
}

Status DecryptRedisPayload(const KeyRing& ring, const RedisManifest& manifest,
                           std::span<std::byte> bytes) {
  const RedisSeal& seal = *manifest.encryption;
  const CipherKey* const key = ring.Find(seal.key_id);
  if (key == nullptr) return Status(StatusCode::kNotFound, "the ring has not the key");
  const PayloadName name = NamePayload(manifest, bytes.size(), manifest.part_checksums);
  return Decrypt(DeriveKey(*key, kPayloadLabel, seal.salt, name), name, bytes, seal.tag);
}

}  // namespace terrace

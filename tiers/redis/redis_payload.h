// The payload of a block on Redis, encrypted under a key of the ring: docs/REDIS_FORMAT.md.
//
// Pure. THREADING: any.
#pragma once

#include <cstddef>
#include <span>

#include "terrace/status.h"
#include "tiers/crypto/aead.h"
#include "tiers/crypto/key_ring.h"
#include "tiers/redis/redis_format.h"

namespace terrace {

// Encrypts `from` into `into` under the ring's first key; the manifest, which names the block, says
// how, and its tail is the end of that. kIo: no salt is to be had.
Status EncryptRedisPayload(const KeyRing& ring, const RandomFill& random,
                           std::span<const std::byte> from, std::span<std::byte> into,
                           RedisManifest* manifest);
// In place. kCorrupt: it is not what was stored, and zeros now. kNotFound: the ring has not the
// key. REQUIRES: manifest.encryption.
Status DecryptRedisPayload(const KeyRing& ring, const RedisManifest& manifest,
                           std::span<std::byte> bytes);

}  // namespace terrace

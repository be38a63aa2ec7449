// xxHash as Terrace calls it: XXH3 with the widest vector unit of the running machine. On x86-64
// the plain symbols of a distribution's libxxhash are compiled for SSE2; the dispatching ones,
// which this header puts in their place, choose AVX2 or AVX-512 at run time and compute the same
// function.
//
// Nothing else calls XXH3_…: Debian's libxxhash 0.8.1 returns from every hash of more than 240
// bytes with the upper halves of the vector registers in use (terrace/vector_state.h). Its AVX2 and
// AVX-512 loops end with a call of a local function that merges the accumulators, behind which
// g++ 12.2 takes them for cleared. tests/tidy.py holds callers to this.
#pragma once

#define XXH_STATIC_LINKING_ONLY  // XXH3_state_t by value: hashing never allocates
#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "terrace/vector_state.h"

// Messages are hashed as they lie in memory, and every format of Terrace is little-endian.
static_assert(std::endian::native == std::endian::little);

namespace terrace::xxh3 {

using Bytes = std::span<const std::byte>;

inline XXH128_hash_t Cleared(XXH128_hash_t hash) {
  hash.low64 = ClearUpperHalvesBehind(hash.low64);
  return hash;
}

inline uint64_t Hash64(Bytes bytes, Bytes secret) {
  return ClearUpperHalvesBehind(
      XXH3_64bits_withSecret(bytes.data(), bytes.size(), secret.data(), secret.size()));
}

inline uint64_t Hash64(Bytes bytes, uint64_t seed) {
  return ClearUpperHalvesBehind(XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed));
}

inline XXH128_hash_t Hash128(Bytes bytes) {
  return Cleared(XXH3_128bits(bytes.data(), bytes.size()));
}

inline XXH128_hash_t Hash128(Bytes bytes, Bytes secret) {
  return Cleared(XXH3_128bits_withSecret(bytes.data(), bytes.size(), secret.data(), secret.size()));
}

inline XXH128_hash_t Hash128(Bytes bytes, uint64_t seed) {
  return Cleared(XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed));
}

// A hash of 128 bits in pieces. `state` is raw memory, or has been started before.
inline void Start128(XXH3_state_t* state) {
  XXH3_INITSTATE(state);
  ClearUpperHalvesBehind(static_cast<int>(XXH3_128bits_reset(state)));
}

inline void Start128(XXH3_state_t* state, Bytes secret) {
  XXH3_INITSTATE(state);
  ClearUpperHalvesBehind(
      static_cast<int>(XXH3_128bits_reset_withSecret(state, secret.data(), secret.size())));
}

inline void Start128(XXH3_state_t* state, uint64_t seed) {
  XXH3_INITSTATE(state);
  ClearUpperHalvesBehind(static_cast<int>(XXH3_128bits_reset_withSeed(state, seed)));
}

inline void Append(XXH3_state_t* state, Bytes bytes) {
  ClearUpperHalvesBehind(static_cast<int>(XXH3_128bits_update(state, bytes.data(), bytes.size())));
}

inline XXH128_hash_t Finish128(const XXH3_state_t& state) {
  return Cleared(XXH3_128bits_digest(&state));
}

// The secret that XXH3 under `seed` uses for messages above 240 bytes.
inline void SecretOfSeed(std::span<std::byte, XXH3_SECRET_DEFAULT_SIZE> secret, uint64_t seed) {
  XXH3_generateSecret_fromSeed(secret.data(), seed);
  ClearUpperHalves();
}

}  // namespace terrace::xxh3

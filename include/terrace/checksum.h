// The checksum tree over one part of a block. A part is cut in 4 KiB leaves; each leaf is hashed
// with XXH3-64 under a seed, the root is XXH3-128 over the leaf hashes in order, under the same
// seed. The seed binds the bytes to their identity, so a right-looking block in the wrong place
// never verifies. Formulas and golden vectors: docs/PROTOCOL.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "terrace/block_key.h"
#include "terrace/units.h"

namespace terrace {

inline constexpr uint64_t kChecksumLeafBytes = 4 * kKiB;

// Overwrites memory that held a secret; no compiler leaves it out as a store that nobody reads.
inline void WipeMemory(void* begin, size_t size_bytes) { explicit_bzero(begin, size_bytes); }

// The domain's secret: keys and checksum seeds depend on it, tenants cannot probe each other. Each
// copy is overwritten when it ends, so that none is left in memory that somebody else is given.
inline constexpr size_t kDomainSecretBytes = 192;
struct DomainSecret : std::array<std::byte, kDomainSecretBytes> {
  DomainSecret() = default;  // DomainSecret{} is all zeros
  DomainSecret(const DomainSecret&) = default;
  DomainSecret& operator=(const DomainSecret&) = default;
  ~DomainSecret() { WipeMemory(data(), size()); }
};

struct PartIdentity {
  SpaceId space;
  BlockKey key;
  CommitId commit_id = 0;
  uint32_t part_index = 0;
};

// seed = XXH3_64_withSecret(space ‖ key ‖ commit_id ‖ part_index, secret), all little-endian, 44
// bytes.
uint64_t ChecksumSeed(const DomainSecret& secret, const PartIdentity& identity);

// XXH3_64_withSecret(bytes, secret): a seal that only holders of the secret can make. For small
// records that Terrace keeps for itself, e.g. on disk.
uint64_t KeyedHash64(const DomainSecret& secret, std::span<const std::byte> bytes);

// XXH3_64_withSeed(leaf, seed). REQUIRES: 0 < leaf.size() ≤ kChecksumLeafBytes.
uint64_t ChecksumLeaf(std::span<const std::byte> leaf, uint64_t seed);

// XXH3_128_withSeed over the hashes of all leaves, in order, as u64 little-endian. An empty part
// has the root of zero leaves.
Checksum ChecksumRoot(std::span<const uint64_t> leaf_hashes, uint64_t seed);

// Root of `part` in one pass, without allocation.
Checksum ChecksumPart(std::span<const std::byte> part, uint64_t seed);

// Incremental form of ChecksumPart for bytes that arrive in pieces; pieces need not align to
// leaves, but those that do are hashed where they lie. Never allocates.
class ChecksumStream {
 public:
  explicit ChecksumStream(uint64_t seed);
  ChecksumStream(const ChecksumStream&) = delete;
  ChecksumStream& operator=(const ChecksumStream&) = delete;

  void Append(std::span<const std::byte> piece);
  // Ends the stream. Call once.
  Checksum Finish();

 private:
  void AppendLeaf(std::span<const std::byte> leaf);

  alignas(64) std::array<std::byte, 576> root_state_;  // the hash library's own, over leaf hashes
  std::array<std::byte, 192> leaf_secret_;             // what XXH3 derives from seed_
  std::array<std::byte, kChecksumLeafBytes> leaf_;     // the begun leaf
  size_t leaf_bytes_ = 0;
  uint64_t seed_;
};

}  // namespace terrace

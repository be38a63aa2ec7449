// Turns tokens, or an engine's own block digests, into BlockKeys. Runs in the client: the daemon
// never sees tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "terrace/block_key.h"
#include "terrace/checksum.h"
#include "terrace/status.h"

namespace terrace {

// How keys are derived; fixed per domain.
//   kXxh3    XXH3-128 under the domain secret: fast, for domains whose clients trust each other.
//   kSha256  SHA-256 over (secret ‖ message) truncated to 128 bits: for a domain shared by tenants.
enum class KeyHash : uint8_t { kXxh3 = 0, kSha256 = 1 };

// The keys of one prompt, block by block:
//   key_i = H(key_{i−1} ‖ tokens of block i as u32 little-endian), key_{−1} = GroupId.
// Equality of key_i proves equality of the whole prefix up to block i.
class PrefixHasher {
 public:
  struct Options {
    KeyHash key_hash = KeyHash::kXxh3;
    GroupId group;
    uint32_t block_tokens = 0;  // tokens per block, > 0
  };
  PrefixHasher(const Options& options, const DomainSecret& secret);

  // Appends one key per *full* block of `tokens` (a trailing partial block has no key).
  // Returns the number of keys appended.
  size_t AppendKeys(std::span<const uint32_t> tokens, std::vector<BlockKey>* keys) const;

  // The key after `parent`, for a caller that grows a prompt block by block. `tokens` is exactly
  // one block. For the first block pass Root().
  BlockKey Next(const BlockKey& parent, std::span<const uint32_t> tokens) const;
  BlockKey Root() const;

  // Key for an engine's own digest of 16 to 32 opaque bytes: H(GroupId ‖ digest). kInvalid
  // otherwise.
  Result<BlockKey> FromDigest(std::span<const std::byte> digest) const;

  uint32_t block_tokens() const { return options_.block_tokens; }

 private:
  Options options_;
  DomainSecret secret_;
};

}  // namespace terrace

// Chunks: runs of blocks whose keys and values are used away from the prompt they were computed in,
// as a retrieved document is. Their keys name the chunk's own tokens and nothing before them, so
// they say less than prefix keys do, and live where no prefix key can be. Off unless an engine
// opens a group of Spaces of chunks (codec.h); which tokens to compute again is the engine's
// matter.
//
// THREADING: everything is a pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "terrace/checksum.h"
#include "terrace/prefix_hasher.h"
#include "terrace/status.h"

namespace terrace {

// The secret of a domain's chunk keys: SHA-256 of a label, a counter and the domain's secret, so
// that a chunk's key is a prefix's by chance alone, 2^−128, whatever the tokens.
DomainSecret ChunkSecret(const DomainSecret& secret);

// Keys of a chunk's blocks, chained from the chunk's first token on.
PrefixHasher ChunkHasher(const PrefixHasher::Options& options, const DomainSecret& secret);

inline constexpr size_t kChunkHeaderBytes = 64;

// What a block of a chunk says of itself, in a part of its own, the Space's first: where it stood
// when it was computed. Equal keys may have stood elsewhere; the first commit wins, so a reader
// believes this and not what it would have written.
struct ChunkHeader {
  uint32_t first_token_position = 0;  // of the block's first token in its own prompt
  uint32_t token_count = 0;           // 1..kBlockTokensMax
  uint64_t rope_digest = 0;           // RopeSpec::Digest() of the keys; 0: they have no positions

  // 64 bytes: "TCHK", u32 version 1, the fields in order, zeros.
  void Write(std::span<std::byte, kChunkHeaderBytes> bytes) const;
  // kCorrupt unless Write could have written it.
  static Result<ChunkHeader> Read(std::span<const std::byte> bytes);
  friend bool operator==(const ChunkHeader&, const ChunkHeader&) = default;
};

// How far a reader has to turn the keys to have the block begin at `first_token_position`; 0 for
// keys without positions. kUnsupported with `*why` if they were made by another rope than
// `rope_digest`'s, or the way is longer than positions go.
Result<int32_t> ChunkDelta(const ChunkHeader& header, uint32_t first_token_position,
                           uint64_t rope_digest, std::string* why);

}  // namespace terrace

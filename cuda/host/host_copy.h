// Copies between an engine's host memory and the arena. Bytes that the copying core will not read
// again bypass its caches: that is faster than memcpy, and the engine keeps its working set.
//
// THREADING: any thread; stores are globally ordered before the call returns, so a plain release
// store or a message on a socket publishes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "terrace/block_key.h"
#include "terrace/checksum.h"

namespace terrace {

// Copies `from` to `to`. REQUIRES: equal sizes, no overlap.
void CopyBytes(std::span<std::byte> to, std::span<const std::byte> from);

// Copies `from` to `to` and returns ChecksumPart(from, seed), reading memory once: what is
// hashed is in a cache since it was copied, or about to be copied from there. If `from` changes
// meanwhile, the copy is a mixture that verifies as such, or does not verify: who stores lets
// nobody change it.
// REQUIRES: equal sizes, no overlap. Fastest where `to` is aligned to 64 bytes, as slots are.
Checksum CopyAndChecksumPart(std::span<std::byte> to, std::span<const std::byte> from,
                             uint64_t seed);

// The same piece by piece, for a copy that may have to stop half-way. Every piece but the last is a
// multiple of kChecksumLeafBytes.
void CopyAndAppend(std::span<std::byte> to, std::span<const std::byte> from,
                   ChecksumStream* checksum);

// One of many runs of one copy: as CopyBytes, but runs of a few KiB bypass the caches too, since
// all of them together are large, and nothing is ordered until FenceRuns(). `next_from` is where
// the run after this one begins: it is asked for in time. REQUIRES: no overlap.
void CopyRun(std::byte* to, const std::byte* from, size_t byte_count, const std::byte* next_from);
void FenceRuns();

}  // namespace terrace

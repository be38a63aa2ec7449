// How a block is cut into values that a Redis server stores without waste. Its allocator (jemalloc)
// has classes of n·2^k bytes, n = 4…7, and rounds every value up to one, with 9 to 12 bytes of its
// own: a value of exactly 2^k bytes wastes a quarter. So each chunk fills a class but for a small
// reserve, and what remains is cut again until rounding it up costs next to nothing.
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "terrace/units.h"

namespace terrace {

inline constexpr uint64_t kRedisValueReserveBytes = 64;
// Larger values hold up other clients of the server longer; smaller ones cost more commands.
inline constexpr uint64_t kRedisChunkBytesMax = kMiB - kRedisValueReserveBytes;
inline constexpr uint64_t kRedisBlockBytesMax = 256 * kMiB;

// The lengths of the chunks of a block, in order; their sum is `block_bytes`. Empty for 0 and for
// more than kRedisBlockBytesMax. Example: 64 KiB → 65,472 + 64.
std::vector<uint32_t> CutIntoChunks(uint64_t block_bytes);

}  // namespace terrace

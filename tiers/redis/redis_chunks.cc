#include "tiers/redis/redis_chunks.h"

#include <algorithm>
#include <bit>

#include "terrace/check.h"

namespace terrace {
namespace {

// A rest whose rounding up costs no more than this part of the block is one chunk.
constexpr uint64_t kWasteDivisor = 64;
// What a key costs besides its value (name, object, two dictionary entries): cutting further must
// save more.
constexpr uint64_t kKeyBytes = 256;

// The distance between the classes around `bytes`. Above 4·2^k up to 8·2^k it is 2^k.
uint64_t ClassStep(uint64_t bytes) { return std::bit_floor(bytes) / 4; }

uint64_t ClassAtLeast(uint64_t bytes) { return RoundUp(bytes, ClassStep(bytes)); }
uint64_t ClassAtMost(uint64_t bytes) { return RoundDown(bytes, ClassStep(bytes)); }

}  // namespace

std::vector<uint32_t> CutIntoChunks(uint64_t block_bytes) {
  std::vector<uint32_t> chunks;
  if (block_bytes > kRedisBlockBytesMax) return chunks;
  const uint64_t waste_max_bytes = std::max(kKeyBytes, block_bytes / kWasteDivisor);
  uint64_t rest_bytes = block_bytes;
  while (rest_bytes > 0) {
    const uint64_t stored_bytes = rest_bytes + kRedisValueReserveBytes;
    uint64_t chunk_bytes = rest_bytes;
    if (rest_bytes > kRedisChunkBytesMax) {
      chunk_bytes = kRedisChunkBytesMax;
    } else if (ClassAtLeast(stored_bytes) - stored_bytes > waste_max_bytes) {
      chunk_bytes = ClassAtMost(stored_bytes) - kRedisValueReserveBytes;
    }
    TERRACE_CHECK(chunk_bytes > 0 && chunk_bytes <= rest_bytes, "chunks make up their block");
    chunks.push_back(static_cast<uint32_t>(chunk_bytes));
    rest_bytes -= chunk_bytes;
  }
  return chunks;
}

}  // namespace terrace

#include "tiers/redis/redis_chunks.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tiers/redis/redis_format.h"

namespace terrace {
namespace {

uint64_t SumOf(const std::vector<uint32_t>& chunks) {
  return std::accumulate(chunks.begin(), chunks.end(), uint64_t{0});
}

TEST(RedisChunks, EveryLengthAddsUpWithinTheLimits) {
  for (uint64_t bytes = 1; bytes <= kRedisBlockBytesMax; bytes = bytes * 9 / 8 + 1) {
    const std::vector<uint32_t> chunks = CutIntoChunks(bytes);
    EXPECT_EQ(SumOf(chunks), bytes);
    EXPECT_LE(chunks.size(), kRedisChunksMax);
    for (const uint32_t chunk : chunks) {
      EXPECT_GT(chunk, 0u);
      EXPECT_LE(chunk, kRedisChunkBytesMax);
    }
  }
}

TEST(RedisChunks, AMegabyteIsOneClassAndATail) {
  EXPECT_EQ(CutIntoChunks(kMiB), (std::vector<uint32_t>{1'048'512, 64}));
}

TEST(RedisChunks, NothingAndTooMuchAreNotCut) {
  EXPECT_TRUE(CutIntoChunks(0).empty());
  EXPECT_TRUE(CutIntoChunks(kRedisBlockBytesMax + 1).empty());
}

// A rest under the waste limit is not cut further: few commands a block.
TEST(RedisChunks, ABlockUpToAMegabyteIsFewChunks) {
  for (uint64_t bytes = 4 * kKiB; bytes <= kMiB; bytes += 4 * kKiB) {
    EXPECT_LE(CutIntoChunks(bytes).size(), 4u) << bytes;
  }
}

TEST(RedisChunks, ASmallBlockHasNoMoreThanItsLimit) {
  for (uint64_t bytes = 1; bytes <= kRedisSmallBlockBytesMax; ++bytes) {
    ASSERT_LE(CutIntoChunks(bytes).size(), kRedisSmallChunksMax) << bytes;
  }
}

}  // namespace
}  // namespace terrace

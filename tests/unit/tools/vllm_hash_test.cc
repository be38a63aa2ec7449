// Against hashes that vLLM's own code computed: tokens 1 to 32, blocks of 16.
#include "tools/terrace/trace/vllm_hash.h"

#include <gtest/gtest.h>

#include <numeric>

namespace terrace::tools {
namespace {

std::string Hex(const VllmHash& hash) {
  std::string text;
  for (const std::byte byte : hash) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::vector<uint32_t> Tokens(uint32_t count) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

TEST(VllmHash, SeedOfPythonhashseedZero) {
  EXPECT_EQ(Hex(VllmSeedHash("0")),
            "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e");
  const std::vector<VllmHash> hashes =
      VllmBlockHashes(Tokens(32), {.seed = "0", .block_tokens = 16});
  ASSERT_EQ(hashes.size(), 2u);
  EXPECT_EQ(Hex(hashes[0]), "202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea");
  EXPECT_EQ(Hex(hashes[1]), "4a0a393805c6d2f0ed831000d41bb65980336c4c04895d5e26470bbec927f5bf");
}

TEST(VllmHash, DefaultSeed) {
  EXPECT_EQ(Hex(VllmSeedHash(VllmHashOptions{}.seed)),
            "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0");
  const std::vector<VllmHash> hashes = VllmBlockHashes(Tokens(32), {.block_tokens = 16});
  ASSERT_EQ(hashes.size(), 2u);
  EXPECT_EQ(Hex(hashes[0]), "cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf7fd01682");
  EXPECT_EQ(Hex(hashes[1]), "2533ea50426b36e9e4d68296cac6bce8cf602e46957d0fe40b368b33d87bf3bf");
}

TEST(VllmHash, ExtraKeysAreTheFirstBlocks) {
  const VllmHashOptions plain{.seed = "0", .block_tokens = 16};
  VllmHashOptions salted = plain;
  salted.extra_keys = {"my-lora", "salt"};
  EXPECT_EQ(Hex(VllmBlockHashes(Tokens(16), salted)[0]),
            "3cb5da8ff533e81279746750a33a7a63701d6129abf088798fade02bb2ec3d57");
  EXPECT_NE(VllmBlockHashes(Tokens(32), salted)[1], VllmBlockHashes(Tokens(32), plain)[1]);
}

TEST(VllmHash, OnlyFullBlocksHaveOne) {
  EXPECT_EQ(VllmBlockHashes(Tokens(31), {.block_tokens = 16}).size(), 1u);
  EXPECT_TRUE(VllmBlockHashes(Tokens(15), {.block_tokens = 16}).empty());
}

}  // namespace
}  // namespace terrace::tools

#include "terrace/prefix_hasher.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>

#define XXH_INLINE_ALL  // compiled here for the build's plain instruction set: an independent route
#include <xxhash.h>

#include <cstring>
#include <random>
#include <vector>

#include "unit/include/example_space.h"

namespace terrace {
namespace {

// Token j is 100000j + 7 modulo 128256.
std::vector<uint32_t> ExampleTokens(size_t count) {
  std::vector<uint32_t> tokens(count);
  for (size_t j = 0; j < count; ++j) tokens[j] = static_cast<uint32_t>((100000 * j + 7) % 128256);
  return tokens;
}

std::vector<std::byte> ExampleDigest(size_t size) {
  std::vector<std::byte> digest(size);
  for (size_t i = 0; i < size; ++i) digest[i] = static_cast<std::byte>(i);
  return digest;
}

PrefixHasher ExampleHasher(KeyHash key_hash, uint32_t block_tokens) {
  return PrefixHasher(
      {.key_hash = key_hash, .group = ExampleGroup().Id(), .block_tokens = block_tokens},
      ExampleSecret());
}

struct GoldenKeys {
  KeyHash key_hash;
  uint32_t block_tokens;
  const char* keys[3];
};

TEST(PrefixHasher, KeysOfTokensAreTheGoldenVectors) {
  const GoldenKeys golden[] = {
      {KeyHash::kXxh3,
       16,
       {"eb124efe284874534f1186db58f7133a", "a2e964c520e304b14175f063e9956885",
        "6e686a9cc8b46b5142924035128a452d"}},
      {KeyHash::kXxh3,
       300,
       {"42fc6c95761483ea04fdc47a8ad63cba", "17e943571c63285db222514860d1e3e9",
        "b3f804480c9e72036792af1780e172f8"}},
      {KeyHash::kSha256,
       16,
       {"b112be08a5e8f64d9fb0fe2b5ecab581", "a6f8755dfa0e1241989ba5842582e04e",
        "9f99671e7933281ee020edf3aa61c7e3"}},
      {KeyHash::kSha256,
       300,
       {"7713154755e96467456cbdc888cd581e", "3e36d321ea1001c842d8d57e88e02494",
        "5da0fabed9b1e2f8c1f2f60842de14d6"}},
  };
  for (const GoldenKeys& expected : golden) {
    std::vector<BlockKey> keys;
    const PrefixHasher hasher = ExampleHasher(expected.key_hash, expected.block_tokens);
    ASSERT_EQ(hasher.AppendKeys(ExampleTokens(3 * expected.block_tokens), &keys), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(ToHex(keys[i]), expected.keys[i]);
  }
}

TEST(PrefixHasher, KeysOfEngineDigestsAreTheGoldenVectors) {
  const PrefixHasher xxh3 = ExampleHasher(KeyHash::kXxh3, 16);
  const PrefixHasher sha256 = ExampleHasher(KeyHash::kSha256, 16);
  EXPECT_EQ(ToHex(*xxh3.FromDigest(ExampleDigest(16))), "363e492c84494be03f9bd67d0429ac10");
  EXPECT_EQ(ToHex(*xxh3.FromDigest(ExampleDigest(32))), "590495321071b8f4ae55b25df62f1605");
  EXPECT_EQ(ToHex(*sha256.FromDigest(ExampleDigest(16))), "b6f3c353c5043bed67beea1c3cf6d373");
  EXPECT_EQ(ToHex(*sha256.FromDigest(ExampleDigest(32))), "075230c1c1e6144a173d24d3bb5f4931");
}

TEST(PrefixHasher, DigestOfAnotherLengthIsInvalid) {
  const PrefixHasher hasher = ExampleHasher(KeyHash::kXxh3, 16);
  for (const size_t size : {0, 1, 15, 33, 64}) {
    EXPECT_EQ(hasher.FromDigest(ExampleDigest(size)).code(), StatusCode::kInvalid) << size;
  }
  for (size_t size = 16; size <= 32; ++size) {
    EXPECT_TRUE(hasher.FromDigest(ExampleDigest(size)).ok()) << size;
  }
}

// Block sizes on both sides of where the message no longer fits one call.
TEST(PrefixHasher, KeyIsThePlainHashOfParentAndTokens) {
  const DomainSecret secret = ExampleSecret();
  std::mt19937_64 random(1);
  for (uint32_t block_tokens = 1; block_tokens < 1200; block_tokens += 1 + block_tokens / 16) {
    const BlockKey parent{.low = random(), .high = random()};
    std::vector<uint32_t> tokens(block_tokens);
    for (uint32_t& token : tokens) token = static_cast<uint32_t>(random());
    std::vector<std::byte> message(16 + 4 * tokens.size());
    std::memcpy(message.data(), &parent.low, 8);
    std::memcpy(message.data() + 8, &parent.high, 8);
    std::memcpy(message.data() + 16, tokens.data(), 4 * tokens.size());

    const XXH128_hash_t hash =
        XXH3_128bits_withSecret(message.data(), message.size(), secret.data(), secret.size());
    const BlockKey key = ExampleHasher(KeyHash::kXxh3, block_tokens).Next(parent, tokens);
    EXPECT_EQ(key.low, hash.low64) << block_tokens;
    EXPECT_EQ(key.high, hash.high64) << block_tokens;

    message.insert(message.begin(), secret.begin(), secret.end());
    uint64_t digest[4];
    ASSERT_EQ(EVP_Digest(message.data(), message.size(), reinterpret_cast<unsigned char*>(digest),
                         nullptr, EVP_sha256(), nullptr),
              1);
    const BlockKey sha_key = ExampleHasher(KeyHash::kSha256, block_tokens).Next(parent, tokens);
    EXPECT_EQ(sha_key.low, digest[0]) << block_tokens;
    EXPECT_EQ(sha_key.high, digest[1]) << block_tokens;
  }
}

TEST(PrefixHasher, OnlyFullBlocksHaveKeysAndTheyAreAppended) {
  const PrefixHasher hasher = ExampleHasher(KeyHash::kXxh3, 16);
  std::vector<BlockKey> keys = {BlockKey{.low = 1, .high = 2}};
  EXPECT_EQ(hasher.AppendKeys(ExampleTokens(15), &keys), 0u);
  EXPECT_EQ(hasher.AppendKeys(ExampleTokens(47), &keys), 2u);
  ASSERT_EQ(keys.size(), 3u);
  EXPECT_EQ(keys[0], (BlockKey{.low = 1, .high = 2}));
  const std::vector<uint32_t> tokens = ExampleTokens(32);
  EXPECT_EQ(keys[1], hasher.Next(hasher.Root(), std::span(tokens).first(16)));
  EXPECT_EQ(keys[2], hasher.Next(keys[1], std::span(tokens).last(16)));
}

TEST(PrefixHasher, HasherWithoutABlockSizeHasNoKeys) {
  std::vector<BlockKey> keys;
  EXPECT_EQ(ExampleHasher(KeyHash::kXxh3, 0).AppendKeys(ExampleTokens(64), &keys), 0u);
  EXPECT_TRUE(keys.empty());
}

// PROMISE: T37 keys
TEST(PrefixHasher, AnyChangeOfTokenGroupOrSecretChangesEveryLaterKey) {
  for (const KeyHash key_hash : {KeyHash::kXxh3, KeyHash::kSha256}) {
    const PrefixHasher::Options options{
        .key_hash = key_hash, .group = ExampleGroup().Id(), .block_tokens = 16};
    const std::vector<uint32_t> tokens = ExampleTokens(64);
    std::vector<BlockKey> keys;
    PrefixHasher(options, ExampleSecret()).AppendKeys(tokens, &keys);

    const auto expect_split_at = [&](size_t first_changed, const PrefixHasher& hasher,
                                     const std::vector<uint32_t>& other_tokens) {
      std::vector<BlockKey> other;
      hasher.AppendKeys(other_tokens, &other);
      for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(keys[i] == other[i], i < first_changed);
    };
    std::vector<uint32_t> other_tokens = tokens;
    other_tokens[33] ^= 1u << 31;
    expect_split_at(2, PrefixHasher(options, ExampleSecret()), other_tokens);

    PrefixHasher::Options other_options = options;
    other_options.group.high ^= 1;
    expect_split_at(0, PrefixHasher(other_options, ExampleSecret()), tokens);

    DomainSecret other_secret = ExampleSecret();
    for (std::byte& byte : other_secret) byte ^= std::byte{0x10};
    expect_split_at(0, PrefixHasher(options, other_secret), tokens);
  }
}

}  // namespace
}  // namespace terrace

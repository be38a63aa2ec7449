#include "terrace/chunk.h"

#include <gtest/gtest.h>

#include <set>

#include "unit/include/example_space.h"

namespace terrace {
namespace {

constexpr uint32_t kBlockTokens = 16;

PrefixHasher::Options OptionsOf(KeyHash key_hash) {
  return {.key_hash = key_hash, .group = ExampleGroup().Id(), .block_tokens = kBlockTokens};
}

std::vector<uint32_t> Tokens(uint32_t first, uint32_t count) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) tokens[i] = first + i * 17;
  return tokens;
}

TEST(Chunk, ItsKeysSayNothingOfWhatStoodBefore) {
  for (const KeyHash key_hash : {KeyHash::kXxh3, KeyHash::kSha256}) {
    const PrefixHasher hasher = ChunkHasher(OptionsOf(key_hash), ExampleSecret());
    std::vector<BlockKey> keys, again, longer;
    hasher.AppendKeys(Tokens(5, 64), &keys);
    hasher.AppendKeys(Tokens(5, 64), &again);
    hasher.AppendKeys(Tokens(5, 128), &longer);
    EXPECT_EQ(keys, again);
    EXPECT_TRUE(std::equal(keys.begin(), keys.end(), longer.begin()));
    std::vector<BlockKey> later;
    const std::vector<uint32_t> tokens = Tokens(5, 64);
    hasher.AppendKeys(std::span(tokens).subspan(16), &later);
    EXPECT_NE(later[0], keys[1]);  // within a chunk it matters what stood before
  }
}

TEST(Chunk, NoKeyIsAPrefixsKeyOfTheSameTokens) {
  for (const KeyHash key_hash : {KeyHash::kXxh3, KeyHash::kSha256}) {
    const PrefixHasher prefixes(OptionsOf(key_hash), ExampleSecret());
    const PrefixHasher chunks = ChunkHasher(OptionsOf(key_hash), ExampleSecret());
    std::set<BlockKey> seen;
    std::vector<BlockKey> keys;
    for (uint32_t first = 0; first < 200; ++first) {
      prefixes.AppendKeys(Tokens(first, 64), &keys);
      chunks.AppendKeys(Tokens(first, 64), &keys);
      // What is chained behind a key of the other kind is of neither.
      keys.push_back(chunks.Next(keys[keys.size() - 8], Tokens(first, kBlockTokens)));
      keys.push_back(prefixes.Next(keys[keys.size() - 2], Tokens(first, kBlockTokens)));
    }
    seen.insert(keys.begin(), keys.end());
    EXPECT_EQ(seen.size(), keys.size());
  }
}

TEST(Chunk, ItsSecretIsTheDomainsAndNotTheDomains) {
  const DomainSecret secret = ExampleSecret();
  EXPECT_NE(ChunkSecret(secret), secret);
  EXPECT_EQ(ChunkSecret(secret), ChunkSecret(secret));
  DomainSecret other = secret;
  other[100] ^= std::byte{1};
  EXPECT_NE(ChunkSecret(other), ChunkSecret(secret));
  // Every 32 bytes of it are others.
  const DomainSecret derived = ChunkSecret(secret);
  EXPECT_FALSE(std::equal(derived.begin(), derived.begin() + 32, derived.begin() + 32));
}

TEST(ChunkHeader, IsReadAsItWasWritten) {
  const ChunkHeader header = {
      .first_token_position = 4096, .token_count = 16, .rope_digest = 0x1122334455667788};
  std::array<std::byte, kChunkHeaderBytes> bytes;
  header.Write(bytes);
  const Result<ChunkHeader> read = ChunkHeader::Read(bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, header);
}

TEST(ChunkHeader, AnyOtherBytesAreRefused) {
  const ChunkHeader header = {.first_token_position = 1, .token_count = 16, .rope_digest = 2};
  std::array<std::byte, kChunkHeaderBytes> good;
  header.Write(good);
  for (size_t i = 0; i < good.size(); ++i) {
    const bool is_a_field = i >= 8 && i < 24;
    auto bytes = good;
    bytes[i] ^= std::byte{0x40};
    if (!is_a_field) {
      EXPECT_EQ(ChunkHeader::Read(bytes).code(), StatusCode::kCorrupt) << i;
    }
  }
  EXPECT_EQ(ChunkHeader::Read(std::span(good).first(63)).code(), StatusCode::kCorrupt);
  EXPECT_EQ(ChunkHeader::Read({}).code(), StatusCode::kCorrupt);
  auto empty = good;
  empty[12] = std::byte{0};
  EXPECT_EQ(ChunkHeader::Read(empty).code(), StatusCode::kCorrupt);
}

TEST(ChunkHeader, TheDeltaIsTheWayFromWhereItStood) {
  const ChunkHeader header = {.first_token_position = 1000, .token_count = 16, .rope_digest = 7};
  std::string why;
  EXPECT_EQ(*ChunkDelta(header, 1000, 7, &why), 0);
  EXPECT_EQ(*ChunkDelta(header, 3, 7, &why), -997);
  EXPECT_EQ(ChunkDelta(header, 3, 8, &why).code(), StatusCode::kUnsupported);
  EXPECT_NE(why.find("rope"), std::string::npos) << why;
  EXPECT_EQ(ChunkDelta(header, 0xFFFFFFFF, 7, &why).code(), StatusCode::kUnsupported);
  EXPECT_NE(why.find("4294967295"), std::string::npos) << why;
}

}  // namespace
}  // namespace terrace

#include "terrace/vector_state.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "terrace/checksum.h"
#include "terrace/chunk.h"
#include "terrace/prefix_hasher.h"
#include "terrace/space.h"
#include "vector_registers.h"

namespace terrace {
namespace {

using test::LeftInUse;

class VectorState : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::TellsVectorState()) GTEST_SKIP() << test::kNoVectorState;
  }
};

TEST_F(VectorState, WhatIsInUseIsSeenAndCleared) {
  if (!test::UseUpperHalves()) GTEST_SKIP() << "NOT TESTED: this CPU has no upper halves";
  EXPECT_NE(test::UpperHalvesInUse(), 0u);
  ClearUpperHalves();
  EXPECT_EQ(test::UpperHalvesInUse(), 0u);
  test::UseUpperHalves();
  EXPECT_EQ(ClearUpperHalvesBehind(uint64_t{7}), 7u);
  EXPECT_EQ(test::UpperHalvesInUse(), 0u);
}

// Sizes around every step of XXH3: 16, 128, 240, its inner buffer of 256, blocks of 1,024.
TEST_F(VectorState, NoHashLeavesUpperHalvesInUse) {
  DomainSecret secret{};
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = std::byte(i * 7 + 1);
  std::vector<std::byte> bytes(3 * kChecksumLeafBytes + 5, std::byte{3});
  for (const size_t size :
       {0u, 1u, 16u, 129u, 240u, 241u, 256u, 300u, 1024u, 1025u, 4096u, 12'293u}) {
    SCOPED_TRACE(size);
    const std::span<const std::byte> part = std::span(bytes).first(size);
    EXPECT_EQ(LeftInUse([&] { KeyedHash64(secret, part); }), 0u);
    EXPECT_EQ(LeftInUse([&] { ChecksumPart(part, 5); }), 0u);
    ChecksumStream stream(5);
    EXPECT_EQ(LeftInUse([&] { stream.Append(part); }), 0u);
    EXPECT_EQ(LeftInUse([&] { stream.Append(part); }), 0u);
    EXPECT_EQ(LeftInUse([&] { stream.Finish(); }), 0u);
    if (size > 0 && size <= kChecksumLeafBytes) {
      EXPECT_EQ(LeftInUse([&] { ChecksumLeaf(part, 5); }), 0u);
    }
    const std::vector<uint64_t> hashes(size, 9);
    EXPECT_EQ(LeftInUse([&] { ChecksumRoot(hashes, 5); }), 0u);
    const std::vector<uint32_t> tokens(size, 9);
    for (const KeyHash key_hash : {KeyHash::kXxh3, KeyHash::kSha256}) {
      const PrefixHasher::Options options{.key_hash = key_hash, .block_tokens = 16};
      EXPECT_EQ(LeftInUse([&] { PrefixHasher(options, secret).Next({}, tokens); }), 0u);
      EXPECT_EQ(LeftInUse([&] { ChunkHasher(options, secret).Next({}, tokens); }), 0u);
    }
    SpaceGroupSpec group;
    group.members.resize(1 + size / 16);
    group.members[0].spec.salt.assign(size, 'x');
    EXPECT_EQ(LeftInUse([&] { group.members[0].spec.Id(); }), 0u);
    EXPECT_EQ(LeftInUse([&] { group.Id(); }), 0u);
  }
}

}  // namespace
}  // namespace terrace

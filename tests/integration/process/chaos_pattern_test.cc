// The chaos checks see wrong bytes with these eyes.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "chaos/pattern.h"

namespace terrace::chaos {
namespace {

constexpr PatternName kName{{0x1111, 0x2222}, 0x3333, 1, 2};

std::vector<std::byte> Part(const PatternName& name) {
  std::vector<std::byte> part(30'001);
  FillPattern(name, part);
  return part;
}

TEST(ChaosPattern, IntactPartTellsItsName) {
  const auto part = Part(kName);
  EXPECT_EQ(ReadPatternName(part), kName);
  EXPECT_EQ(FirstWrongByte(part), kPatternIntact);
}

TEST(ChaosPattern, EveryFlippedBitIsSeen) {
  auto part = Part(kName);
  for (size_t at = 0; at < part.size(); at += 97) {
    part[at] ^= std::byte{0x10};
    EXPECT_TRUE(FirstWrongByte(part) != kPatternIntact || ReadPatternName(part) != kName) << at;
    part[at] ^= std::byte{0x10};
  }
  part.back() ^= std::byte{1};
  EXPECT_EQ(FirstWrongByte(part), 30'000u);
}

TEST(ChaosPattern, TornCopyOfAnotherCommitIsSeen) {
  PatternName other = kName;
  other.commit_id = 0x3334;
  auto torn = Part(kName);
  const auto theirs = Part(other);
  std::memcpy(torn.data() + 4096, theirs.data() + 4096, torn.size() - 4096);
  EXPECT_EQ(FirstWrongByte(torn), 4096u);
}

TEST(ChaosPattern, ShiftedCopyIsSeen) {
  auto shifted = Part(kName);
  const auto right = Part(kName);
  std::memcpy(shifted.data() + 4096, right.data() + 8192, 4096);
  EXPECT_EQ(FirstWrongByte(shifted), 4096u);
}

}  // namespace
}  // namespace terrace::chaos

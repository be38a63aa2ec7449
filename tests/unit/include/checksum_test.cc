#include "terrace/checksum.h"

#include <gtest/gtest.h>

#define XXH_INLINE_ALL  // compiled here for the build's plain instruction set: an independent route
#include <xxhash.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "unit/include/example_space.h"

namespace terrace {
namespace {

constexpr size_t kLeaf = kChecksumLeafBytes;

// Byte i is 131i + i/256 modulo 256.
std::vector<std::byte> ExamplePart(size_t size) {
  std::vector<std::byte> part(size);
  for (size_t i = 0; i < size; ++i) part[i] = static_cast<std::byte>(i * 131 + (i >> 8));
  return part;
}

std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

PartIdentity ExampleIdentity() {
  return PartIdentity{
      .space = ExampleSpace(0).Id(),
      .key = *ParseId<BlockKeyTag>("eb124efe284874534f1186db58f7133a"),
      .commit_id = 0x0123456789abcdef,
      .part_index = 1,
  };
}

TEST(Checksum, SeedIsTheGoldenVector) {
  EXPECT_EQ(ChecksumSeed(ExampleSecret(), ExampleIdentity()), 0xbd7b848a68e0cb0b);
}

TEST(Checksum, RootsAreTheGoldenVectors) {
  struct {
    size_t part_bytes;
    const char* root;
    const char* root_under_seed_zero;
  } golden[] = {
      {0, "3b87544af7aaa19c242c0d640657b00a", "99aa06d3014798d86001c324468d497f"},
      {1, "09831c3f62080840e8556915e8c45dbd", "e7fd9c6c7e46d858fd65f7b51cbcd866"},
      {240, "6ecb6977f097ec87f93f4416150d61f4", "f1a2658cb82abd72199afff35b6304ae"},
      {4095, "a2680c25b17d74aea6808688c588e3cd", "f4f6b734696747b1a9e1c2d459a7c173"},
      {4096, "a1fe77cf289294a2116890b91e94ca02", "49c8d2bcb887811f21f1ea34eaa18711"},
      {4097, "24fe7fd8d8ea0ebd2c28467f7d38b909", "2b6fb2d4967ab7d53d4d0c57b9c75ff7"},
      {122880, "39ea0ba784d50653ce76b1d2326b1071", "0b7042c27f295e7cd5b876122c8d7372"},
      {131072, "0aa395f683bc35b98ae9fbb5d740f4f4", "30d83e644218a20b614c7cf88e9e9391"},
      {327680, "1f12ed25734ae0a60e46b27318072b60", "3c33cad3200dfaca0e74e18a5effe080"},
  };
  for (const auto& expected : golden) {
    const std::vector<std::byte> part = ExamplePart(expected.part_bytes);
    EXPECT_EQ(ToHex(ChecksumPart(part, 0xbd7b848a68e0cb0b)), expected.root) << part.size();
    EXPECT_EQ(ToHex(ChecksumPart(part, 0)), expected.root_under_seed_zero) << part.size();
  }
}

TEST(Checksum, DispatchedHashIsThePlainHash) {
  std::mt19937_64 random(3);
  const std::vector<std::byte> bytes = RandomBytes(kLeaf + 64, 4);
  for (size_t size = 1; size <= kLeaf; size += 1 + size / 50) {
    const uint64_t seed = random();
    const auto leaf = std::span(bytes).subspan(random() % 64, size);
    EXPECT_EQ(ChecksumLeaf(leaf, seed), XXH3_64bits_withSeed(leaf.data(), leaf.size(), seed));
    const std::vector<uint64_t> hashes(size, seed);
    const XXH128_hash_t root = XXH3_128bits_withSeed(hashes.data(), 8 * hashes.size(), seed);
    EXPECT_EQ(ChecksumRoot(hashes, seed), (Checksum{.low = root.low64, .high = root.high64}));
  }
}

TEST(Checksum, PartIsTheRootOfItsLeaves) {
  for (const size_t size : {0, 1, 4095, 4096, 4097, 3 * 4096, 40 * 4096 + 17, 300 * 4096}) {
    const std::vector<std::byte> part = RandomBytes(size, size);
    std::vector<uint64_t> hashes;
    for (size_t at = 0; at < size; at += kLeaf) {
      const size_t leaf_bytes = std::min<size_t>(kLeaf, size - at);
      hashes.push_back(ChecksumLeaf(std::span(part).subspan(at, leaf_bytes), 42));
    }
    EXPECT_EQ(ChecksumPart(part, 42), ChecksumRoot(hashes, 42)) << size;
  }
}

TEST(Checksum, StreamInAnyPiecesEqualsOneShot) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    const uint64_t seed = round % 5 == 0 ? 0 : random();
    const std::vector<std::byte> part = RandomBytes(random() % (5 * kLeaf), random());
    ChecksumStream stream(seed);
    std::span<const std::byte> rest = part;
    while (!rest.empty()) {
      const size_t piece_bytes = random() % 3 == 0 ? random() % 64 : random() % (rest.size() + 1);
      const size_t taken_bytes = std::min(piece_bytes, rest.size());
      stream.Append(rest.first(taken_bytes));
      rest = rest.subspan(taken_bytes);
    }
    ASSERT_EQ(stream.Finish(), ChecksumPart(part, seed)) << "round " << round;
  }
}

// PROMISE: T12 checksums
TEST(Checksum, EveryBitFlipChangesTheRoot) {
  std::vector<std::byte> part = RandomBytes(2 * kLeaf + 100, 5);
  const Checksum root = ChecksumPart(part, 9);
  std::mt19937_64 random(6);
  for (int round = 0; round < 4000; ++round) {
    const size_t bit = round < 800 ? 2 * kLeaf * 8 + round : random() % (part.size() * 8);
    const std::byte mask{static_cast<uint8_t>(1u << bit % 8)};
    part[bit / 8] ^= mask;
    ASSERT_NE(ChecksumPart(part, 9), root) << "bit " << bit;
    part[bit / 8] ^= mask;
  }
  EXPECT_EQ(ChecksumPart(part, 9), root);
}

TEST(Checksum, SwappedMissingOrPaddedLeavesChangeTheRoot) {
  std::vector<std::byte> part = RandomBytes(4 * kLeaf, 8);
  const Checksum root = ChecksumPart(part, 9);
  EXPECT_NE(ChecksumPart(std::span(part).first(3 * kLeaf), 9), root);
  EXPECT_NE(ChecksumPart(std::span(part).first(part.size() - 1), 9), root);
  for (size_t first = 0; first < 4; ++first) {
    for (size_t second = first + 1; second < 4; ++second) {
      std::vector<std::byte> swapped = part;
      std::swap_ranges(swapped.begin() + first * kLeaf, swapped.begin() + (first + 1) * kLeaf,
                       swapped.begin() + second * kLeaf);
      EXPECT_NE(ChecksumPart(swapped, 9), root) << first << " and " << second;
    }
  }
  const std::vector<std::byte> zeros(kLeaf + 1);
  EXPECT_NE(ChecksumPart(std::span(zeros).first(kLeaf), 9),
            ChecksumPart(std::span(zeros).first(kLeaf - 1), 9));
  EXPECT_NE(ChecksumPart(zeros, 9), ChecksumPart(std::span(zeros).first(kLeaf), 9));
}

TEST(Checksum, EveryFieldOfTheIdentityAndTheSecretChangeTheSeedAndTheRoot) {
  const std::vector<std::byte> part = ExamplePart(kLeaf + 1);
  const uint64_t seed = ChecksumSeed(ExampleSecret(), ExampleIdentity());
  const std::function<void(DomainSecret&, PartIdentity&)> changes[] = {
      [](DomainSecret& secret, PartIdentity&) { secret[0] ^= std::byte{1}; },
      [](DomainSecret&, PartIdentity& identity) { identity.space.low ^= 1; },
      [](DomainSecret&, PartIdentity& identity) { identity.space.high ^= 1; },
      [](DomainSecret&, PartIdentity& identity) { identity.key.low ^= 1; },
      [](DomainSecret&, PartIdentity& identity) { identity.key.high ^= 1; },
      [](DomainSecret&, PartIdentity& identity) { identity.commit_id ^= 1; },
      [](DomainSecret&, PartIdentity& identity) { identity.part_index ^= 1; },
  };
  for (const auto& change : changes) {
    DomainSecret secret = ExampleSecret();
    PartIdentity identity = ExampleIdentity();
    change(secret, identity);
    const uint64_t other_seed = ChecksumSeed(secret, identity);
    EXPECT_NE(other_seed, seed) << "change " << &change - changes;
    EXPECT_NE(ChecksumPart(part, other_seed), ChecksumPart(part, seed));
  }
}

}  // namespace
}  // namespace terrace

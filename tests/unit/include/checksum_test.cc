#include "terrace/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace terrace {
namespace {

std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Checksum, StreamInAnyPiecesEqualsOneShot) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    const uint64_t seed = round % 5 == 0 ? 0 : random();
    const std::vector<std::byte> part = RandomBytes(random() % (5 * kChecksumLeafBytes), random());
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

TEST(Checksum, PartIsTheRootOfItsLeaves) {
  for (const size_t size : {0, 1, 4095, 4096, 4097, 3 * 4096, 40 * 4096 + 17, 300 * 4096}) {
    const std::vector<std::byte> part = RandomBytes(size, size);
    std::vector<uint64_t> hashes;
    for (size_t at = 0; at < size; at += kChecksumLeafBytes) {
      const size_t leaf_bytes = std::min<size_t>(kChecksumLeafBytes, size - at);
      hashes.push_back(ChecksumLeaf(std::span(part).subspan(at, leaf_bytes), 42));
    }
    EXPECT_EQ(ChecksumPart(part, 42), ChecksumRoot(hashes, 42)) << size;
  }
}

}  // namespace
}  // namespace terrace

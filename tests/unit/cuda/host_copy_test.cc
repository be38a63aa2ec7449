#include "cuda/host/host_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "terrace/checksum.h"
#include "terrace/units.h"

namespace terrace {
namespace {

constexpr size_t kLeaf = kChecksumLeafBytes;
constexpr size_t kMarginBytes = 128;
constexpr std::byte kUntouched{0xA5};

// A line-aligned buffer with margins that a copy must leave alone.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t room_bytes) : bytes_(room_bytes + 3 * kMarginBytes) {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    start_ = RoundUp(address + kMarginBytes, 64) - address;
  }

  std::span<std::byte> at(size_t shift, size_t size) {
    return std::span(bytes_).subspan(start_ + shift, size);
  }
  void Clear() { std::fill(bytes_.begin(), bytes_.end(), kUntouched); }
  bool IsUntouchedAround(std::span<const std::byte> copy) const {
    const auto* begin = bytes_.data();
    const auto* end = begin + bytes_.size();
    const auto is_untouched = [](std::byte byte) { return byte == kUntouched; };
    return std::all_of(begin, copy.data(), is_untouched) &&
           std::all_of(copy.data() + copy.size(), end, is_untouched);
  }

 private:
  std::vector<std::byte> bytes_;
  size_t start_ = 0;
};

// Sizes around zero, around one to three leaves, and around the size where streaming begins.
std::vector<size_t> Sizes() {
  std::vector<size_t> sizes = {0, 1, 2, 31, 63, 64, 65, 127, 128, 129, 240, 241};
  for (const size_t leaves : {1, 2, 3, 15, 16, 17, 19}) {
    for (const int more : {-129, -64, -1, 0, 1, 31, 64, 128}) {
      sizes.push_back(leaves * kLeaf + more);
    }
  }
  return sizes;
}

class HostCopy : public testing::Test {
 protected:
  static constexpr size_t kRoomBytes = 20 * kLeaf;

  void SetUp() override {
    std::mt19937_64 random(1);
    for (std::byte& byte : from_.at(0, kRoomBytes + 64)) byte = static_cast<std::byte>(random());
  }

  GuardedBuffer from_{kRoomBytes + 64};
  GuardedBuffer to_{kRoomBytes + 64};
};

TEST_F(HostCopy, CopiesExactlyTheBytesAtAnyAlignmentAndSize) {
  std::mt19937_64 random(2);
  for (const size_t size : Sizes()) {
    for (size_t to_shift = 0; to_shift < 64; ++to_shift) {
      const size_t from_shift = random() % 64;
      const auto from = from_.at(from_shift, size);
      const auto to = to_.at(to_shift, size);
      to_.Clear();
      CopyBytes(to, from);
      ASSERT_TRUE(std::equal(to.begin(), to.end(), from.begin()))
          << size << " bytes, to " << to_shift << ", from " << from_shift;
      ASSERT_TRUE(to_.IsUntouchedAround(to)) << size << " bytes, to " << to_shift;
    }
  }
}

TEST_F(HostCopy, FusedCopyCopiesExactlyTheBytesAndReturnsTheirChecksum) {
  std::mt19937_64 random(3);
  for (const size_t size : Sizes()) {
    for (const size_t to_shift : {0, 1, 31, 32, 63}) {
      const size_t from_shift = random() % 64;
      const uint64_t seed = random();
      const auto from = from_.at(from_shift, size);
      const auto to = to_.at(to_shift, size);
      to_.Clear();
      ASSERT_EQ(CopyAndChecksumPart(to, from, seed), ChecksumPart(from, seed)) << size << " bytes";
      ASSERT_TRUE(std::equal(to.begin(), to.end(), from.begin()))
          << size << " bytes, to " << to_shift << ", from " << from_shift;
      ASSERT_TRUE(to_.IsUntouchedAround(to)) << size << " bytes, to " << to_shift;
    }
  }
}

}  // namespace
}  // namespace terrace

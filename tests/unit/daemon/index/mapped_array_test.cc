#include "daemon/index/mapped_array.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace terrace {
namespace {

using Array = MappedArray<uint64_t>;
constexpr size_t kCount = 3 * Array::kHugePageBytes / sizeof(uint64_t);

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0;
  statm >> pages >> pages;
  return pages * 4096;
}

TEST(MappedArray, NamesEachHugePageOnceBeforeItIsReached) {
  Array array(kCount);
  constexpr size_t kSmallCount = Array::kSmallPageBytes / sizeof(uint64_t);
  constexpr size_t kHugeCount = Array::kHugePageBytes / sizeof(uint64_t);
  EXPECT_TRUE(array.TakeAhead(kSmallCount).empty());
  const auto first = array.TakeAhead(kSmallCount + 1);
  EXPECT_EQ(first.data(), reinterpret_cast<std::byte*>(&array[kSmallCount]));
  EXPECT_EQ(first.size(), Array::kHugePageBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.data()) % Array::kHugePageBytes, 0u);
  EXPECT_TRUE(array.TakeAhead(kSmallCount + kHugeCount).empty());
  // However many may be meant, there are no more than there are.
  const auto second = array.TakeAhead(10 * kCount);
  EXPECT_EQ(second.data(), first.data() + first.size());
  const auto last = array.TakeAhead(10 * kCount);
  EXPECT_EQ(last.data() + last.size(), reinterpret_cast<std::byte*>(&array[0] + kCount));
  EXPECT_TRUE(array.TakeAhead(10 * kCount).empty());
}

TEST(MappedArray, TakesNoMemoryForWhatIsNotThere) {
  Array small(100);
  EXPECT_TRUE(small.TakeAhead(1'000'000).empty());
  Array array(kCount);
  const uint64_t before_bytes = ResidentBytes();
  for (size_t i = 0; i < 1000; ++i) array[i] = i;
  EXPECT_LT(ResidentBytes() - before_bytes, Array::kSmallPageBytes / 2);
  EXPECT_EQ(array[kCount - 1], 0u);
}

}  // namespace
}  // namespace terrace

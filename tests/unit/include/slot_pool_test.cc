#include "src/slot_pool.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace terrace {
namespace {

TEST(SlotPool, TheNumberGivenBackLastIsGivenFirst) {
  SlotPool<int> pool;
  EXPECT_EQ(pool.Take(10), 0u);
  EXPECT_EQ(pool.Take(11), 1u);
  EXPECT_EQ(pool.Take(12), 2u);
  EXPECT_EQ(pool.Give(0), 10);
  EXPECT_EQ(pool.Give(2), 12);
  EXPECT_EQ(pool.next(), 2u);
  EXPECT_EQ(pool.Take(13), 2u);
  EXPECT_EQ(pool.Take(14), 0u);
  EXPECT_EQ(pool.next(), 3u);
  EXPECT_EQ(pool[0], 14);
  EXPECT_EQ(pool.count(), 3u);
}

TEST(SlotPool, WhatIsGivenBackIsNobodysAndHoldsNothing) {
  SlotPool<std::shared_ptr<int>> pool;
  const auto value = std::make_shared<int>(1);
  const uint32_t number = pool.Take(value);
  EXPECT_TRUE(pool.is_taken(number));
  (void)pool.Give(number);
  EXPECT_EQ(value.use_count(), 1);
  EXPECT_FALSE(pool.is_taken(number));
  EXPECT_FALSE(pool.is_taken(uint64_t{1} << 40));
  EXPECT_DEATH((void)pool.Give(number), "given back once");
}

TEST(SlotPool, VisitsWhatIsTakenByNumber) {
  SlotPool<int> pool;
  for (int value = 0; value < 5; ++value) (void)pool.Take(value);
  (void)pool.Give(1);
  (void)pool.Give(3);
  std::vector<int> seen;
  pool.ForEach([&](uint32_t, int& value) { seen.push_back(value); });
  EXPECT_EQ(seen, (std::vector<int>{0, 2, 4}));
}

}  // namespace
}  // namespace terrace

#include "src/spmc_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace terrace {
namespace {

TEST(SpmcQueue, GivesTheOldestFirstAndHoldsNoMoreThanItsCapacity) {
  SpmcQueue<int> queue(3);
  int taken = 0;
  EXPECT_FALSE(queue.Take(&taken));
  int next_put = 1, next_taken = 1;
  for (int lap = 0; lap < 5; ++lap) {
    while (queue.Put(next_put)) ++next_put;
    EXPECT_EQ(next_put - next_taken, 3);
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(queue.Take(&taken));
      EXPECT_EQ(taken, next_taken++);
    }
  }
}

TEST(SpmcQueue, KeepsNothingOfWhatWasTaken) {
  const auto counted = std::make_shared<int>();
  SpmcQueue<std::shared_ptr<int>> queue(2);
  EXPECT_TRUE(queue.Put(counted));
  std::shared_ptr<int> taken;
  EXPECT_TRUE(queue.Take(&taken));
  taken.reset();
  EXPECT_EQ(counted.use_count(), 1);
}

TEST(SpmcQueue, ManyThreadsTakeEachValueOnce) {
  constexpr uint64_t kThreads = 4, kValues = 100'000;
  SpmcQueue<uint64_t> queue(16);
  std::atomic<uint64_t> taken_count{0}, sum{0}, out_of_order{0};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      uint64_t before = 0, value = 0;
      while (taken_count < kValues) {
        if (!queue.Take(&value)) {
          std::this_thread::yield();
          continue;
        }
        if (value <= before) ++out_of_order;
        before = value;
        sum += value;
        ++taken_count;
      }
    });
  }
  for (uint64_t value = 1; value <= kValues; ++value) {
    while (!queue.Put(value)) std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken_count, kValues);
  EXPECT_EQ(sum, kValues * (kValues + 1) / 2);
  EXPECT_EQ(out_of_order, 0u);
}

}  // namespace
}  // namespace terrace

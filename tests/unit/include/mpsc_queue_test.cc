#include "src/mpsc_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(MpscQueue, GivesWhatWaitsOldestFirst) {
  MpscQueue<int> queue;
  int wakes = 0;
  const auto wake = [&wakes] { ++wakes; };
  std::vector<int> taken = {0};
  queue.Put(1, wake);
  EXPECT_EQ(wakes, 1);
  queue.Put(2, wake);
  queue.PutAll(std::vector<int>{3, 4}, wake);
  queue.PutAll({}, wake);
  EXPECT_EQ(wakes, 1) << "it has been woken, and has not taken since";
  queue.TakeAll(&taken);
  EXPECT_THAT(taken, ElementsAre(0, 1, 2, 3, 4));
  taken.clear();
  queue.TakeAll(&taken);
  EXPECT_THAT(taken, IsEmpty());
  queue.PutAll(std::vector<int>{5, 6}, wake);
  EXPECT_EQ(wakes, 2);
  queue.TakeAll(&taken);
  EXPECT_THAT(taken, ElementsAre(5, 6));
}

TEST(MpscQueue, WhoIsPushedAsideBeforeItWakesHoldsNobodyUp) {
  MpscQueue<int> queue;
  int wakes_of_others = 0;
  queue.Put(1, [&] { queue.Put(2, [&] { ++wakes_of_others; }); });
  EXPECT_EQ(wakes_of_others, 1) << "the first one may not come to it for long";
  queue.Put(3, [&] { ++wakes_of_others; });
  EXPECT_EQ(wakes_of_others, 1);
}

TEST(MpscQueue, DestroysWhatNobodyTakes) {
  const auto counted = std::make_shared<int>();
  {
    MpscQueue<std::shared_ptr<int>> left;
    left.Put(counted, [] {});
    left.Put(counted, [] {});
    EXPECT_EQ(counted.use_count(), 3);
  }
  EXPECT_EQ(counted.use_count(), 1);
  MpscQueue<std::shared_ptr<int>> closed;
  const auto nobody = [] { ADD_FAILURE() << "nobody is to be woken"; };
  closed.Put(counted, [] {});
  closed.Close();
  EXPECT_EQ(counted.use_count(), 1);
  closed.Put(counted, nobody);
  closed.PutAll(std::vector{counted, counted}, nobody);
  EXPECT_EQ(counted.use_count(), 1);
  std::vector<std::shared_ptr<int>> taken;
  closed.TakeAll(&taken);
  closed.Close();
  EXPECT_THAT(taken, IsEmpty());
}

// The thread that takes sleeps between: a value that nobody announces would never be taken.
TEST(MpscQueue, ManyThreadsLoseNothingAndEachKeepsItsOrder) {
  constexpr uint32_t kThreads = 4, kValues = 20'000;
  struct Value {
    uint32_t thread = 0, number = 0;
  };
  MpscQueue<Value> queue;
  std::atomic<uint32_t> wakes{0};
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&queue, &wakes, thread] {
      for (uint32_t number = 0; number < kValues; ++number) {
        queue.Put({thread, number}, [&wakes] {
          ++wakes;
          wakes.notify_one();
        });
      }
    });
  }
  std::array<uint32_t, kThreads> next{};
  std::vector<Value> taken;
  for (uint32_t total = 0; total < kThreads * kValues; total += taken.size()) {
    wakes.wait(0);
    wakes = 0;
    taken.clear();
    queue.TakeAll(&taken);
    for (const Value& value : taken) ASSERT_EQ(value.number, next[value.thread]++);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(std::ranges::all_of(next, [](uint32_t count) { return count == kValues; }));
}

}  // namespace
}  // namespace terrace

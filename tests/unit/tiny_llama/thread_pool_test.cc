#include "tiny_llama/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace terrace::tiny_llama {
namespace {

TEST(ThreadPool, RunsEachTaskOnceInLoopAfterLoop) {
  for (uint32_t threads : {1u, 2u, 5u}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.thread_count(), threads);
    for (uint32_t count : {0u, 1u, 4u, 97u, 1u, 3u}) {
      std::vector<std::atomic<int>> runs(count);
      pool.ForEach(count, [&](uint32_t task) { ++runs[task]; });
      for (uint32_t task = 0; task < count; ++task) EXPECT_EQ(runs[task], 1) << task;
    }
  }
}

TEST(ThreadPool, WhatTasksWroteIsThereWhenTheLoopEnds) {
  ThreadPool pool(3);
  std::vector<uint64_t> sums(64);  // not atomic: a loop that ended too early is a race
  for (uint64_t loop = 1; loop <= 500; ++loop) {
    pool.ForEach(64, [&](uint32_t task) { sums[task] += loop; });
    ASSERT_EQ(sums[loop % 64], loop * (loop + 1) / 2);
  }
}

}  // namespace
}  // namespace terrace::tiny_llama

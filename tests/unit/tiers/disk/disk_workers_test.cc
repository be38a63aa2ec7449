#include "tiers/disk/disk_workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace terrace {
namespace {

constexpr uint64_t kSoonUs = 30'000'000;

TEST(DiskWorkers, EachJobIsDoneWhetherTheyWorkOrSleep) {
  constexpr uint32_t kRounds = 2'000;
  DiskWorkers workers({.name = "some", .threads = 4});
  std::atomic<uint32_t> done_count{0};
  uint32_t given_count = 0;
  for (uint32_t round = 0; round < kRounds; ++round) {
    std::vector<DiskWorkers::Job> jobs;
    for (uint32_t i = 0; i <= round % 7; ++i) jobs.emplace_back([&] { ++done_count; });
    given_count += static_cast<uint32_t>(jobs.size());
    workers.Submit(&jobs);
    EXPECT_TRUE(jobs.empty());
    if (round % 3 != 0) continue;
    while (done_count != given_count) std::this_thread::yield();
  }
  while (done_count != given_count) std::this_thread::yield();
  EXPECT_TRUE(workers.Stop(kSoonUs));
}

// A job that lasts keeps no other from a thread that sleeps.
TEST(DiskWorkers, OneThatIsBusyLeavesTheRestToTheOthers) {
  DiskWorkers workers({.name = "some", .threads = 2});
  std::atomic<bool> may_end{false}, is_done{false};
  std::vector<DiskWorkers::Job> jobs;
  jobs.emplace_back([&] { may_end.wait(false); });
  workers.Submit(&jobs);
  jobs.emplace_back([&] {
    is_done = true;
    is_done.notify_one();
  });
  workers.Submit(&jobs);
  is_done.wait(false);
  may_end = true;
  may_end.notify_one();
  EXPECT_TRUE(workers.Stop(kSoonUs));
}

TEST(DiskWorkers, OneAloneKeepsTheOrderAndIsIdleBetween) {
  std::atomic<uint32_t> idle_count{0};
  std::vector<uint32_t> done;
  DiskWorkers workers({.name = "one", .on_idle = [&] { ++idle_count; }, .idle_us = 1'000});
  std::vector<DiskWorkers::Job> jobs;
  for (uint32_t i = 0; i < 100; ++i) jobs.emplace_back([&done, i] { done.push_back(i); });
  workers.Submit(&jobs);
  while (idle_count < 3) std::this_thread::yield();
  std::atomic<bool> is_done{false};
  jobs.emplace_back([&] { is_done = true; });
  workers.Submit(&jobs);
  while (!is_done) std::this_thread::yield();
  EXPECT_TRUE(workers.Stop(kSoonUs));
  ASSERT_EQ(done.size(), 100u);
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(done[i], i);
}

}  // namespace
}  // namespace terrace

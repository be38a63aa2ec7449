#include "daemon/shell/offload_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <functional>
#include <map>
#include <vector>

#include "terrace/checksum.h"

namespace terrace {
namespace {

class OffloadPoolTest : public testing::Test {
 protected:
  OffloadPool::Post PostHere() {
    return [this](std::function<void()> work) { asio::post(loop_, std::move(work)); };
  }
  OffloadPool::DoneCallback NoteDone() {
    return [this](OffloadId id, std::span<const Checksum> roots) {
      roots_[id].assign(roots.begin(), roots.end());
    };
  }
  ChecksumJob JobOf(OffloadId id) {
    return {.id = id, .parts = {{.bytes = bytes_, .seed = id}, {.bytes = bytes_, .seed = id + 1}}};
  }
  void RunUntil(const std::function<bool()>& is_over) {
    while (!is_over()) loop_.run_one();
  }

  asio::io_context loop_;
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(loop_);
  std::vector<std::byte> bytes_ = std::vector<std::byte>(65536, std::byte{7});
  std::map<OffloadId, std::vector<Checksum>> roots_;
};

TEST_F(OffloadPoolTest, EachJobsResultsComeBackOnceWhicheverThreadHadIt) {
  constexpr uint32_t kJobs = 500;
  OffloadPool pool({.threads = 3, .jobs_max = kJobs}, PostHere(), NoteDone());
  for (OffloadId id = 1; id <= kJobs; ++id) ASSERT_TRUE(pool.Submit(JobOf(id)).ok());
  EXPECT_EQ(pool.Submit(JobOf(kJobs + 1)).code(), StatusCode::kBusy);
  EXPECT_EQ(pool.jobs_refused(), 1u);
  RunUntil([&] { return pool.jobs_in_flight() == 0; });
  EXPECT_EQ(pool.jobs_taken(), kJobs);
  ASSERT_EQ(roots_.size(), kJobs);
  for (const auto& [id, roots] : roots_) {
    ASSERT_THAT(roots,
                testing::ElementsAre(ChecksumPart(bytes_, id), ChecksumPart(bytes_, id + 1)));
  }
  // Each that is given alone finds a thread that sleeps.
  for (OffloadId id = kJobs + 1; id < kJobs + 50; ++id) {
    ASSERT_TRUE(pool.Submit(JobOf(id)).ok());
    RunUntil([&] { return pool.jobs_in_flight() == 0; });
  }
}

TEST_F(OffloadPoolTest, WhatWaitsAtTheEndIsDropped) {
  OffloadPool pool({.threads = 2, .jobs_max = 100}, PostHere(), NoteDone());
  for (OffloadId id = 1; id <= 100; ++id) ASSERT_TRUE(pool.Submit(JobOf(id)).ok());
  pool.Stop();
  pool.Stop();
  EXPECT_TRUE(roots_.empty()) << "results are the store thread's, which has not run";
}

}  // namespace
}  // namespace terrace

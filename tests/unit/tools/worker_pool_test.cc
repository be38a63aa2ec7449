#include "tools/terrace/bench/worker_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace terrace::tools {
namespace {

using ::testing::HasSubstr;

// Worker 0 counts; others do what the round says.
class OddWorker : public Worker {
 public:
  explicit OddWorker(uint32_t index) : index_(index) {}
  void Run(const PhaseCommand& command, PhaseReport* report) override {
    report->op_count = command.op_count_max + index_;
    report->block_count = static_cast<uint64_t>(getpid());
    report->byte_count = 1000;
    report->busy_ns = 1'000'000'000;
    report->latencies.Add(100);
    if (index_ == 0) return;
    if (command.round == 1) report->Fail("round one is odd");
    if (command.round == 2) kill(getpid(), SIGKILL);
    if (command.round == 3) pause();
  }

 private:
  uint32_t index_;
};

std::unique_ptr<WorkerPool> StartPool(uint64_t phase_ms_max = 60'000) {
  std::string why;
  auto pool = WorkerPool::Start(
      {.worker_count = 2, .cpus = {}, .phase_ms_max = phase_ms_max},
      [](uint32_t index, std::string*) -> std::unique_ptr<Worker> {
        return std::make_unique<OddWorker>(index);
      },
      &why);
  EXPECT_NE(pool, nullptr) << why;
  return pool;
}

TEST(WorkerPool, WorkersAreOtherProcessesAndTheirReportsAddUp) {
  auto pool = StartPool();
  std::string why;
  for (uint64_t ops : {10ull, 20ull}) {
    ASSERT_TRUE(pool->Run({.op_count_max = ops}, &why)) << why;
    EXPECT_EQ(pool->Total().op_count, 2 * ops + 1);
    EXPECT_EQ(pool->Total().latencies.count(), 2u);
    EXPECT_EQ(pool->TotalBytesPerSecond(), 2000);
  }
  EXPECT_NE(pool->report(0).block_count, static_cast<uint64_t>(getpid()));
  EXPECT_NE(pool->report(0).block_count, pool->report(1).block_count);
}

TEST(WorkerPool, AFailedReportFailsThePhaseAndThePoolGoesOn) {
  auto pool = StartPool();
  std::string why;
  EXPECT_FALSE(pool->Run({.round = 1}, &why));
  EXPECT_EQ(why, "client process 2 of 2: round one is odd");
  EXPECT_TRUE(pool->Run({.round = 0}, &why));
}

TEST(WorkerPool, AWorkerThatDiesIsReportedWithItsSignal) {
  auto pool = StartPool();
  std::string why;
  EXPECT_FALSE(pool->Run({.round = 2}, &why));
  EXPECT_THAT(why, HasSubstr("client process 2 of 2: was ended by signal 9"));
  EXPECT_FALSE(pool->Run({.round = 0}, &why));
}

TEST(WorkerPool, AWorkerThatHangsIsEnded) {
  auto pool = StartPool(50);
  std::string why;
  EXPECT_FALSE(pool->Run({.round = 3}, &why));
  EXPECT_THAT(why, HasSubstr("no report within 50 ms"));
}

TEST(WorkerPool, AWorkerThatCannotBeMadeSaysWhy) {
  std::string why;
  auto pool = WorkerPool::Start(
      {.worker_count = 1, .cpus = {}, .phase_ms_max = 60'000},
      [](uint32_t, std::string* reason) -> std::unique_ptr<Worker> {
        *reason = "no daemon";
        return nullptr;
      },
      &why);
  ASSERT_NE(pool, nullptr);
  EXPECT_FALSE(pool->Run({}, &why));
  EXPECT_EQ(why, "client process 1 of 1: no daemon");
}

}  // namespace
}  // namespace terrace::tools

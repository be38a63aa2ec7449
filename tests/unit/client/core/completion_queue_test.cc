#include "client/core/completion_queue.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace terrace::client {
namespace {

constexpr int kSoonMs = 30'000;

bool IsSignalled(const CompletionQueue& queue, int within_ms = 0) {
  pollfd event{.fd = queue.event_fd(), .events = POLLIN};
  return poll(&event, 1, within_ms) == 1;
}

void PushOne(CompletionQueue* queue, uint64_t user_data) {
  while (!queue->Reserve()) std::this_thread::yield();
  ClientCompletion completion;
  completion.user_data = user_data;
  queue->Push(std::move(completion));
}

TEST(CompletionQueue, IsReadableWhileSomethingIsQueued) {
  CompletionQueue queue(4);
  ASSERT_TRUE(queue.Open().ok());
  EXPECT_FALSE(IsSignalled(queue));
  PushOne(&queue, 1);
  PushOne(&queue, 2);
  ClientCompletion taken;
  EXPECT_TRUE(IsSignalled(queue));
  EXPECT_TRUE(queue.Pop(&taken));
  EXPECT_EQ(taken.user_data, 1u);
  EXPECT_TRUE(IsSignalled(queue)) << "of the second";
  EXPECT_TRUE(queue.Pop(&taken));
  EXPECT_FALSE(IsSignalled(queue));
  EXPECT_FALSE(queue.Pop(&taken));
}

bool IsWoken(const CompletionQueue::Waiting& waiting) {
  pollfd event{.fd = waiting.fd(), .events = POLLIN};
  return poll(&event, 1, 0) == 1;
}

// Who waits for one that is on its way hears, too, that another thread has taken it, or that it
// does not come: also if that one looks once more, and takes its own signal back.
TEST(CompletionQueue, WhoWaitsIsWokenByWhatComesAndOnceNothingIsAwaited) {
  CompletionQueue queue(4);
  ASSERT_TRUE(queue.Open().ok());
  ClientCompletion taken;
  {
    const CompletionQueue::Waiting waiting(&queue);
    ASSERT_TRUE(queue.Reserve());
    EXPECT_FALSE(IsWoken(waiting));
    PushOne(&queue, 1);
    EXPECT_TRUE(IsWoken(waiting));
  }
  {
    const CompletionQueue::Waiting waiting(&queue);
    EXPECT_FALSE(IsWoken(waiting)) << "it sees for itself what is there";
    EXPECT_TRUE(queue.Pop(&taken));
    EXPECT_FALSE(queue.Pop(&taken));
    EXPECT_FALSE(IsWoken(waiting)) << "another one is awaited";
    queue.Unreserve();
    EXPECT_TRUE(IsWoken(waiting));
    EXPECT_FALSE(queue.Pop(&taken));
    EXPECT_TRUE(IsWoken(waiting));
  }
  const CompletionQueue::Waiting waiting(&queue);
  PushOne(&queue, 2);
  while (queue.Pop(&taken)) {
  }
  EXPECT_TRUE(IsWoken(waiting));
  EXPECT_FALSE(IsSignalled(queue)) << "who sleeps on event_fd is not told of nothing";
}

// Who sleeps on the descriptor until there is something takes everything, whoever else takes; and
// at the end, when nothing is found, it is not readable for ever.
TEST(CompletionQueue, NobodySleepsBesideSomethingAndNothingWakesForEver) {
  constexpr uint64_t kPushers = 2, kTakers = 2, kEach = 30'000;
  CompletionQueue queue(8);
  ASSERT_TRUE(queue.Open().ok());
  std::atomic<uint64_t> taken_count{0}, slept_through{0}, sum{0};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kPushers; ++i) {
    threads.emplace_back([&queue, i] {
      for (uint64_t n = 0; n < kEach; ++n) PushOne(&queue, i * kEach + n);
    });
  }
  for (uint64_t i = 0; i < kTakers; ++i) {
    threads.emplace_back([&] {
      ClientCompletion taken;
      while (taken_count < kPushers * kEach) {
        // The last one is taken by one of them: the other need not be woken for it.
        if (!IsSignalled(queue, 100) && !queue.is_empty()) {
          if (!IsSignalled(queue, kSoonMs) && !queue.is_empty()) ++slept_through;
        }
        while (queue.Pop(&taken)) {
          sum += taken.user_data;
          ++taken_count;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(slept_through, 0u);
  EXPECT_EQ(taken_count, kPushers * kEach);
  EXPECT_EQ(sum, kPushers * kEach * (kPushers * kEach - 1) / 2) << "each is taken once";
  ClientCompletion none;
  for (int looks = 0; looks < 3; ++looks) EXPECT_FALSE(queue.Pop(&none));
  EXPECT_FALSE(IsSignalled(queue));
}

// What was taken before its signal came leaves the descriptor readable until nothing is found.
TEST(CompletionQueue, ASignalThatComesTooLateIsTakenBack) {
  constexpr uint64_t kRounds = 20'000;
  CompletionQueue queue(4);
  ASSERT_TRUE(queue.Open().ok());
  std::atomic<uint64_t> taken_count{0}, pushed_count{0};
  std::thread pusher([&] {
    for (uint64_t round = 0; round < kRounds; ++round) {
      while (taken_count < round) std::this_thread::yield();
      PushOne(&queue, round);
      ++pushed_count;
    }
  });
  uint64_t left_readable = 0;
  ClientCompletion taken;
  for (uint64_t round = 0; round < kRounds; ++round) {
    while (!queue.Pop(&taken)) std::this_thread::yield();
    while (pushed_count == round) std::this_thread::yield();
    (void)queue.Pop(&taken);
    if (IsSignalled(queue)) ++left_readable;
    ++taken_count;
  }
  pusher.join();
  EXPECT_EQ(left_readable, 0u);
}

}  // namespace
}  // namespace terrace::client

#include "daemon/socket/send_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include "tests/stride.h"

namespace terrace {
namespace {

TEST(SendQueue, WhatGoesInComesOutInOrder) {
  std::mt19937_64 random(1);
  SendQueue queue;
  uint64_t appended = 0, popped = 0;
  for (uint64_t step = 0; step < 5'000 / test::Stride(); ++step) {
    std::vector<std::byte> bytes(random() % (SendQueue::kChunkBytes / 2));
    for (std::byte& byte : bytes) byte = std::byte(appended++ * 31 >> 3);
    queue.Append(bytes);
    while (queue.size_bytes() > 3 * SendQueue::kChunkBytes ||
           (step % 100 == 0 && appended > popped)) {
      const auto front = queue.Front();
      const size_t taken = 1 + random() % front.size();
      for (size_t i = 0; i < taken; ++i) ASSERT_EQ(front[i], std::byte(popped++ * 31 >> 3));
      queue.Pop(taken);
    }
    ASSERT_EQ(queue.size_bytes(), appended - popped);
  }
}

// A gigabyte passes through; never more than its backlog stays.
// PROMISE: T36 replies nobody reads
TEST(SendQueue, AReaderThatNeverCatchesUpCostsItsBacklogOnly) {
  SendQueue queue;
  const std::vector<std::byte> piece(30'001);
  queue.Append(piece);
  for (uint64_t i = 0; i < 33'000 / test::Stride(); ++i) {
    queue.Append(piece);
    for (size_t left = piece.size(); left > 0;) {
      const size_t step = std::min(left, queue.Front().size());
      queue.Pop(step);
      left -= step;
    }
    ASSERT_EQ(queue.size_bytes(), piece.size());
    ASSERT_LE(queue.chunk_count(), 2u);
  }
}

TEST(SendQueue, AnEmptyQueueHoldsNothing) {
  SendQueue queue;
  EXPECT_TRUE(queue.Front().empty());
  queue.Append(std::vector<std::byte>(5 * SendQueue::kChunkBytes));
  EXPECT_EQ(queue.chunk_count(), 5u);
  for (int i = 0; i < 5; ++i) queue.Pop(SendQueue::kChunkBytes);
  EXPECT_EQ(queue.chunk_count(), 0u);
  queue.Append(std::vector<std::byte>(1));
  queue.Clear();
  EXPECT_EQ(queue.size_bytes() + queue.chunk_count(), 0u);
}

}  // namespace
}  // namespace terrace

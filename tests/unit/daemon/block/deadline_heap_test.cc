#include "daemon/block/deadline_heap.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace terrace {
namespace {

TEST(DeadlineHeap, EqualDeadlinesComeInTheOrderTheyWereAdded) {
  DeadlineHeap heap;
  for (uint32_t id = 0; id < 10; ++id) heap.Add({.due_us = 5, .id = id});
  Deadline deadline;
  EXPECT_FALSE(heap.PopDue(4, &deadline));
  for (uint32_t id = 0; id < 10; ++id) {
    ASSERT_TRUE(heap.PopDue(5, &deadline));
    EXPECT_EQ(deadline.id, id);
  }
  EXPECT_EQ(heap.next_us(), kNever);
}

TEST(DeadlineHeap, AgreesWithASortedMapUnderAddsAndRemovals) {
  std::mt19937_64 random(11);
  DeadlineHeap heap;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> model;  // (due, order) → handle
  uint32_t order = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (model.empty() || random() % 3 != 0) {
      const uint64_t due_us = random() % 50;
      model[{due_us, order}] = heap.Add({.due_us = due_us, .id = order});
      ++order;
    } else if (random() % 2 == 0) {
      auto it = model.begin();
      std::advance(it, random() % model.size());
      heap.Remove(it->second);
      model.erase(it);
    } else {
      Deadline deadline;
      ASSERT_TRUE(heap.PopDue(model.begin()->first.first, &deadline));
      EXPECT_EQ(deadline.id, model.begin()->first.second);
      model.erase(model.begin());
    }
    ASSERT_EQ(heap.count(), model.size());
    ASSERT_EQ(heap.next_us(), model.empty() ? kNever : model.begin()->first.first);
  }
}

}  // namespace
}  // namespace terrace

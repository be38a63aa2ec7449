#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "daemon/policy/eviction/candidate_heap.h"
#include "daemon/policy/eviction/ghost_list.h"
#include "daemon/policy/eviction/lru.h"
#include "tests/stride.h"

namespace terrace {
namespace {

TEST(CandidateHeap, TheSmallestRankIsFirstAfterAnyChange) {
  std::mt19937_64 random(3);
  CandidateHeap heap;
  std::map<BlockId, CandidateHeap::Rank> model;
  for (uint64_t step = 0; step < 20'000 / test::Stride(); ++step) {
    const BlockId id = random() % 200;
    const CandidateHeap::Rank rank{static_cast<uint8_t>(random() % 3),
                                   step ^ (random() % 4096 << 20)};
    if (!model.contains(id)) {
      heap.Add(id, rank);
      model[id] = rank;
    } else if (random() % 2 == 0) {
      heap.Change(id, rank);
      model[id] = rank;
    } else {
      heap.Remove(id);
      model.erase(id);
    }
    BlockId first = kBlockNone;
    for (const auto& [other, other_rank] : model) {
      if (first == kBlockNone || other_rank < model[first]) first = other;
    }
    ASSERT_EQ(heap.first(), first) << "step " << step;
  }
}

struct Lru {
  void Insert(BlockId id, uint8_t priority = protocol::kPriorityDefault) {
    policy.OnInsert(id, {.priority = priority}, 0);
    policy.OnCandidate(id);
  }
  std::vector<BlockId> Order() {
    std::vector<BlockId> order;
    while (policy.Victim() != kBlockNone) {
      order.push_back(policy.Victim());
      policy.OnHeld(order.back());
      policy.OnErase(order.back());
    }
    return order;
  }
  LruPolicy policy;
};

TEST(Lru, TheTailOfARunLeavesBeforeItsHead) {
  Lru lru;
  for (const BlockId id : {0, 1, 2, 3, 4}) lru.Insert(id);
  lru.policy.OnTouch(std::vector<BlockId>{0, 1, 2}, {});
  EXPECT_EQ(lru.Order(), (std::vector<BlockId>{3, 4, 2, 1, 0}));
}

TEST(Lru, PriorityBeatsRecency) {
  Lru lru;
  lru.Insert(0, 50);
  lru.Insert(1, 10);
  lru.Insert(2, 90);
  lru.policy.SetPriority(2, 5);
  EXPECT_EQ(lru.Order(), (std::vector<BlockId>{2, 1, 0}));
}

TEST(Lru, WhatIsHeldIsNoVictimAndKeepsItsAge) {
  Lru lru;
  lru.Insert(0);
  lru.Insert(1);
  lru.policy.OnHeld(0);
  EXPECT_EQ(lru.policy.Victim(), 1u);
  lru.policy.OnCandidate(0);
  EXPECT_EQ(lru.policy.Victim(), 0u);
}

BlockKey KeyOf(uint64_t n) {
  return {.low = n * 0x9E3779B97F4A7C15u, .high = n * 0xD6E8FEB86659FD93u};
}

TEST(GhostList, TheOldestAreForgottenFirst) {
  GhostList ghosts;
  for (uint64_t key = 1; key <= 5; ++key) ghosts.Add(KeyOf(key));
  ghosts.Add(KeyOf(1));  // newest again
  ghosts.TrimTo(3);
  EXPECT_EQ(ghosts.count(), 3u);
  EXPECT_FALSE(ghosts.Remove(KeyOf(3)));
  EXPECT_TRUE(ghosts.Remove(KeyOf(1)));
  EXPECT_TRUE(ghosts.Remove(KeyOf(4)));
  EXPECT_EQ(ghosts.count(), 1u);
}

}  // namespace
}  // namespace terrace

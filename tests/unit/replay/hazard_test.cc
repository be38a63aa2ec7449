#include "daemon/eviction/hazard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "daemon/eviction/lru.h"
#include "daemon/eviction/policies.h"
#include "tests/unit/replay/synthetic_trace.h"
#include "tools/replay/optimum.h"
#include "tools/replay/replay_cache.h"

namespace terrace::tools {
namespace {

uint64_t Replay(const DenseTrace& trace, uint32_t capacity_blocks, EvictionPolicy& policy) {
  ReplayCache cache(trace, {.capacity_blocks = capacity_blocks}, policy);
  uint64_t hit_count = 0;
  for (size_t r = 0; r < trace.request_count(); ++r) hit_count += cache.Serve(r);
  return hit_count;
}

// Chats of a few blocks that come back every 40 s, among long prompts that never do.
Trace MakeChatsAmongScans() {
  Trace trace;
  trace.block_tokens = 16;
  uint64_t next_id = 1;
  std::vector<std::vector<uint64_t>> chats(10);
  for (uint32_t turn = 0; turn < 60; ++turn) {
    for (uint32_t chat = 0; chat < chats.size(); ++chat) {
      const uint64_t now_ms = (turn * 10 + chat) * 4000;
      chats[chat].push_back(next_id++);
      AddRequest(&trace, now_ms, chats[chat]);
      std::vector<uint64_t> scan(40);
      for (uint64_t& id : scan) id = next_id++;
      AddRequest(&trace, now_ms + 2000, scan);
    }
  }
  return trace;
}

TEST(HazardPolicy, ChatsStayWhileScansPassBy) {
  DenseTrace trace;
  std::string why;
  ASSERT_TRUE(trace.Build(MakeChatsAmongScans(), &why)) << why;
  LruPolicy lru;
  const uint64_t lru_hits = Replay(trace, 250, lru);
  HazardPolicy hazard({.capacity_blocks = 250});
  const uint64_t hits = Replay(trace, 250, hazard);
  const uint64_t optimum = CountOptimumHits(trace, NextUses(trace), 250, EvictionOrder::kLeafFirst);
  EXPECT_GT(hits - lru_hits, (optimum - lru_hits) / 2)
      << "lru " << lru_hits << ", hazard " << hits << ", optimum " << optimum;
}

TEST(HazardPolicy, LowerPriorityLeavesFirst) {
  HazardPolicy policy({.capacity_blocks = 8});
  const std::vector<uint8_t> priorities = {50, 10, 90, 10};
  for (BlockId id = 0; id < priorities.size(); ++id) {
    policy.OnInsert(id, {.key = {.low = id * 7919ull << 8}, .priority = priorities[id]}, id);
    policy.OnCandidate(id);
  }
  policy.SetPriority(0, 5);
  std::vector<uint8_t> order;
  for (BlockId victim = policy.Victim(); victim != kBlockNone; victim = policy.Victim()) {
    order.push_back(victim == 0 ? 5 : priorities[victim]);
    policy.OnHeld(victim);
    policy.OnErase(victim);
  }
  EXPECT_EQ(order, (std::vector<uint8_t>{5, 10, 10, 90}));
}

TEST(HazardModel, WhatComesBackRanksAboveWhatDoesNot) {
  HazardModel model;
  const ReuseTraits returns{.fresh = 1, .turn = 2};
  const ReuseTraits leaves{.fresh = 5, .turn = 1};
  for (int pass = 0; pass < 50; ++pass) {
    for (int i = 0; i < 20; ++i) {
      model.Observe(returns, 60'000'000, HazardModel::Outcome::kUsed);
      model.Observe(leaves, 600'000'000, HazardModel::Outcome::kWaits);
    }
    model.Fit();
  }
  for (uint32_t i = 0; i < HazardModel::kRefreshesPerShape; ++i) model.RefreshSome();
  const uint32_t age = HazardModel::AgeOf(5'000'000);
  EXPECT_GT(model.index(returns, age), 10 * model.index(leaves, age));
}

TEST(HazardModel, ASuccessorRanksAsItsPredecessorDid) {
  const ReuseTraits returns{.gap = 3, .reason = 1, .fresh = 1, .turn = 2};
  const ReuseTraits leaves{.fresh = 5, .turn = 1};
  HazardModel model;
  for (int pass = 0; pass < 50; ++pass) {
    for (int i = 0; i < 20; ++i) {
      model.Observe(returns, 60'000'000, HazardModel::Outcome::kUsed);
      model.Observe(leaves, 600'000'000, HazardModel::Outcome::kWaits);
    }
    model.Fit();
  }
  for (uint32_t i = 0; i < 2 * HazardModel::kRefreshesPerShape; ++i) model.RefreshSome();
  const std::vector<std::byte> learned = model.Learned();
  HazardModel fresh, successor;
  ASSERT_TRUE(successor.StartFrom(learned));
  for (const ReuseTraits& traits : {returns, leaves}) {
    for (uint32_t age = 0; age < HazardModel::kAges; ++age) {
      EXPECT_EQ(successor.index(traits, age), model.index(traits, age)) << age;
    }
    EXPECT_EQ(successor.ReuseChance(traits, 0, 90'000'000),
              model.ReuseChance(traits, 0, 90'000'000));
    EXPECT_NE(fresh.index(traits, 3), model.index(traits, 3));
  }
}

TEST(HazardModel, WhatNoModelSaidIsIgnored) {
  HazardModel model;
  const std::vector<std::byte> good = model.Learned();
  const float before = model.index({}, 3);
  std::vector<std::byte> bad(good.begin(), good.end() - 1);
  EXPECT_FALSE(model.StartFrom(bad));
  EXPECT_FALSE(model.StartFrom({}));
  bad = good;
  bad[4] ^= std::byte{1};  // another number of ages
  EXPECT_FALSE(model.StartFrom(bad));
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), 1e9f}) {
    bad = good;
    std::memcpy(bad.data() + bad.size() - sizeof(value), &value, sizeof(value));
    EXPECT_FALSE(model.StartFrom(bad));
  }
  EXPECT_EQ(model.index({}, 3), before);
  EXPECT_TRUE(model.StartFrom(good));
}

TEST(EvictionPolicies, EveryNamedOneReplaysRandomTraces) {
  for (const std::string_view name : EvictionPolicyNames()) {
    SCOPED_TRACE(name);
    for (uint32_t seed = 1; seed <= 10; ++seed) {
      DenseTrace trace;
      std::string why;
      ASSERT_TRUE(trace.Build(MakeRandomTrace(seed, 400), &why)) << why;
      const NextUses next_uses(trace);
      for (const uint32_t capacity_blocks : {1u, 3u, 17u, 90u, 100000u}) {
        const auto policy = MakeEvictionPolicy(name, capacity_blocks);
        EXPECT_LE(Replay(trace, capacity_blocks, *policy),
                  CountOptimumHits(trace, next_uses, capacity_blocks, EvictionOrder::kLeafFirst));
      }
    }
  }
  EXPECT_EQ(MakeEvictionPolicy("clairvoyance", 1), nullptr);
}

}  // namespace
}  // namespace terrace::tools

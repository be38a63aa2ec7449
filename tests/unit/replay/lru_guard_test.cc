#include "daemon/policy/eviction/lru_guard.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "daemon/policy/eviction/hazard.h"
#include "tests/unit/replay/synthetic_trace.h"
#include "tools/replay/lru_curve.h"
#include "tools/replay/replay_cache.h"

namespace terrace::tools {
namespace {

using Outcome = LruGuard::Outcome;

// One request that uses one block.
void Use(LruGuard* guard, uint32_t fingerprint, Outcome outcome) {
  guard->OnUse(fingerprint, outcome);
  guard->OnRequest(1);
}

TEST(LruGuard, TrustsAPolicyThatHitsWhatLruHits) {
  LruGuard guard(64);
  for (uint32_t i = 0; i < 10000; ++i) {
    Use(&guard, i % 50, i < 50 ? Outcome::kMiss : Outcome::kHit);
    ASSERT_FALSE(guard.is_overdrawn()) << "use " << i;
  }
}

TEST(LruGuard, IsOverdrawnByMissingWhatLruHitsUntilTheAllowanceHasPaid) {
  LruGuard guard(64);
  uint32_t lost_count = 0;
  for (uint32_t i = 0; !guard.is_overdrawn(); ++i) {
    ASSERT_LT(i, 1000u);
    Use(&guard, i % 50, Outcome::kMiss);
    lost_count += i >= 50 ? 1 : 0;
  }
  EXPECT_LT(lost_count, 20u) << "hits lost before the guard stepped in";
  uint32_t use_count = 0;
  while (guard.is_overdrawn()) {
    ASSERT_LT(++use_count, 10000u);
    Use(&guard, use_count % 50, Outcome::kHit);
  }
  EXPECT_GT(use_count, 200u) << "it is not trusted again at once";
}

// A lookup tells of a miss, and then the block comes: with the same request, or behind others.
TEST(LruGuard, AMissIsCountedOnceThoughItsBlockIsStored) {
  for (const bool is_at_once : {true, false}) {
    LruGuard guard(64);
    for (uint32_t i = 0; i < 10000; ++i) {  // LRU misses them all
      guard.OnUse(i % 200, Outcome::kMiss);
      if (!is_at_once) guard.OnRequest(1);
      guard.OnUse(i % 200, Outcome::kStored);
      guard.OnRequest(1);
      ASSERT_FALSE(guard.is_overdrawn()) << "use " << i << ", at once: " << is_at_once;
    }
  }
}

TEST(LruGuard, WhatIsMissedAndNeverStoredCounts) {
  LruGuard guard(64);
  uint32_t use_count = 0;
  while (!guard.is_overdrawn()) {
    ASSERT_LT(++use_count, 1000u);
    Use(&guard, use_count % 50, Outcome::kMiss);
  }
  EXPECT_LT(use_count, 100u);
}

TEST(LruGuard, WatchesATierThatTurnsOutSmallerThanItMightBe) {
  LruGuard guard(1000);
  guard.OnFull(10);
  // 20 blocks in turn: LRU of 10 misses every one, so nothing is lost by missing them.
  for (uint32_t i = 0; i < 5000; ++i) Use(&guard, i % 20, Outcome::kMiss);
  EXPECT_FALSE(guard.is_overdrawn());
}

// An hour of questions about documents, in which what is new never returns; then chats only, where
// what is new returns within a minute or two. What was learned first is wrong afterwards.
Trace MakeShiftingTraffic() {
  std::mt19937 random(1);
  const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
  uint64_t next_id = 1;
  const auto grow = [&](std::vector<uint64_t>* path, uint32_t count) {
    while (count-- > 0) path->push_back(next_id++);
  };
  std::vector<std::vector<uint64_t>> documents(100);
  for (auto& document : documents) grow(&document, 20 + below(60));
  std::multimap<uint64_t, std::vector<uint64_t>> requests;
  for (uint32_t i = 0; i < 2500; ++i) {
    std::vector<uint64_t> question = documents[below(100)];
    grow(&question, 1 + below(6));
    requests.emplace(below(3600'000), std::move(question));
  }
  for (uint32_t i = 0; i < 1000; ++i) {
    std::vector<uint64_t> chat;
    uint64_t now_ms = 3600'000 + below(3600'000);
    do {
      grow(&chat, 2 + below(11));
      requests.emplace(now_ms, chat);
      now_ms += below(120'000);
    } while (below(6) != 0);
  }
  Trace trace;
  trace.block_tokens = 16;
  for (const auto& [now_ms, path] : requests) AddRequest(&trace, now_ms, path);
  return trace;
}

TEST(LruGuard, KeepsHazardNearLruWhenTheTrafficTurnsRound) {
  DenseTrace trace;
  std::string why;
  ASSERT_TRUE(trace.Build(MakeShiftingTraffic(), &why)) << why;
  const LruCurve lru(trace);
  for (const uint32_t capacity_blocks : {600u, 1200u, 2400u}) {
    HazardPolicy hazard({.capacity_blocks = capacity_blocks});
    ReplayCache cache(trace, {.capacity_blocks = capacity_blocks}, hazard);
    uint64_t hit_count = 0;
    for (size_t r = 0; r < trace.request_count(); ++r) hit_count += cache.Serve(r);
    EXPECT_GT(static_cast<double>(hit_count) + 0.005 * static_cast<double>(trace.touch_count()),
              static_cast<double>(lru.HitsAt(capacity_blocks)))
        << capacity_blocks << " blocks";
  }
}

}  // namespace
}  // namespace terrace::tools

// A policy that is warm learns, decides and forgets without allocating.
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/policy/eviction/hazard.h"

// Sanitizers bring their own.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

#include "counted_allocations.h"

namespace terrace {
namespace {

// Prompts of two engines, stored in turns a step at a time; each is used again once, and leaves.
TEST(HazardAllocations, AWarmPolicyMakesNone) {
  constexpr uint32_t kPrompts = 16, kLength = 32, kStep = 8;
  HazardPolicy policy({.capacity_blocks = kPrompts * kLength});
  std::vector<BlockKey> keys(kPrompts * kLength);
  std::vector<BlockId> ids(kPrompts * kLength);
  uint64_t now_us = 1;
  const auto store = [&](uint32_t prompt, uint32_t first) {
    const BlockId id = prompt * kLength + first;
    for (BlockId i = id; i < id + kStep; ++i) {
      const BlockTraits traits{.key = keys[i], .parent = i % kLength == 0 ? kBlockNone : i - 1};
      if (i == id) policy.OnComing(std::span(keys).subspan(id, kStep), traits, 0, now_us);
      policy.OnInsert(i, traits, now_us);
    }
  };
  const auto leave = [&](uint32_t prompt) {
    for (BlockId i = (prompt + 1) * kLength; i-- > prompt * kLength;) {
      policy.OnCandidate(i);
      EXPECT_NE(policy.Victim(), kBlockNone);
      policy.OnHeld(i);
      policy.OnErase(i);
    }
  };
  const auto round = [&](uint32_t number) {
    const uint32_t first = number * 2 % kPrompts;
    for (uint32_t prompt = first; prompt < first + 2; ++prompt) {
      const std::span<const BlockId> path = std::span(ids).subspan(prompt * kLength, kLength);
      if (number * 2 >= kPrompts) {
        policy.OnTouch(path, {.now_us = now_us});
        leave(prompt);
      }
      for (BlockId i = prompt * kLength; i < (prompt + 1) * kLength; ++i) {
        ids[i] = i;
        keys[i].low = (number * keys.size() + i + 1) * 0x9E3779B97F4A7C15u;
      }
      policy.OnMissed(std::span(keys).subspan(prompt * kLength, kLength), {});
    }
    for (uint32_t step = 0; step < kLength; step += kStep, now_us += 100'000) {
      store(first, step);
      store(first + 1, step);
    }
  };
  uint32_t number = 0;
  while (number < 3000) round(number++);
  const uint64_t before = test::g_allocation_count;
  while (number < 3200) round(number++);
  EXPECT_EQ(test::g_allocation_count, before);
}

}  // namespace
}  // namespace terrace

#endif

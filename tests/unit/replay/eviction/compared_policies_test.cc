#include "tools/replay/eviction/compared_policies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <vector>

#include "tools/replay/eviction/frequency_sketch.h"

namespace terrace::tools {
namespace {

BlockKey KeyOf(uint64_t n) {
  return {.low = n * 0x9E3779B97F4A7C15u, .high = n * 0xD6E8FEB86659FD93u};
}

TEST(EvictionPolicies, LowerPriorityLeavesFirstUnderEveryOne) {
  for (const std::string_view name : ComparedPolicyNames()) {
    SCOPED_TRACE(name);
    const auto policy = MakeComparedPolicy(name, 100);
    std::vector<uint8_t> priorities = {50, 10, 90, 10, 35, 70};
    for (BlockId id = 0; id < priorities.size(); ++id) {
      policy->OnInsert(id, {.key = KeyOf(id + 1), .priority = priorities[id]}, id);
      policy->OnCandidate(id);
      for (BlockId use = id; use < 3; ++use) policy->OnTouch(std::vector<BlockId>{id}, {});
    }
    policy->SetPriority(0, 5);
    priorities[0] = 5;
    std::vector<uint8_t> order;
    for (BlockId victim = policy->Victim(); victim != kBlockNone; victim = policy->Victim()) {
      order.push_back(priorities[victim]);
      policy->OnHeld(victim);
      policy->OnErase(victim);
    }
    EXPECT_EQ(order, (std::vector<uint8_t>{5, 10, 10, 35, 70, 90}));
  }
}

// Chains of blocks with consecutive ids, used and made longer; the tips are candidates.
class Chains {
 public:
  static constexpr uint32_t kChains = 12;
  static constexpr uint32_t kBlocksMax = 40;  // of a chain

  explicit Chains(std::string_view policy) : policy_(MakeComparedPolicy(policy, 200)) {}

  void Use(uint32_t chain, uint32_t new_blocks, uint64_t now_us) {
    uint32_t& count = counts_[chain];
    std::vector<BlockId> run;
    for (uint32_t i = 0; i < count; ++i) run.push_back(chain * kBlocksMax + i);
    if (!run.empty()) policy_->OnTouch(run, {.now_us = now_us});
    if (count + new_blocks > kBlocksMax || new_blocks == 0) return;
    if (count > 0) policy_->OnHeld(run.back());
    for (const uint32_t end = count + new_blocks; count < end; ++count) {
      const BlockId id = chain * kBlocksMax + count;
      policy_->OnInsert(id,
                        {.key = KeyOf(id + 1),
                         .byte_count = 1,
                         .position = count,
                         .block_tokens = 16,
                         .parent = count > 0 ? id - 1 : kBlockNone},
                        now_us);
    }
    policy_->OnCandidate(chain * kBlocksMax + count - 1);
  }
  std::vector<BlockId> EvictOneByOne(uint32_t block_count) {
    std::vector<BlockId> gone;
    while (gone.size() < block_count && policy_->Victim() != kBlockNone) {
      const BlockId id = policy_->Victim();
      policy_->OnHeld(id);
      policy_->OnErase(id);
      gone.push_back(id);
      if (--counts_[id / kBlocksMax] > 0) policy_->OnCandidate(id - 1);
    }
    return gone;
  }
  std::vector<BlockId> EvictAtOnce(uint32_t block_count) {
    std::vector<BlockId> gone;
    while (gone.size() < block_count && policy_->Victim() != kBlockNone) {
      const BlockId last = policy_->Victim();
      uint32_t& count = counts_[last / kBlocksMax];
      const uint32_t most = std::min(count, block_count - static_cast<uint32_t>(gone.size()));
      const uint32_t erased =
          policy_->EraseVictims({.first = last + 1 - most, .block_count = most});
      for (BlockId id = last; id + erased > last; --id) gone.push_back(id);
      count -= erased;
      if (erased == most && count > 0) policy_->OnCandidate(last - most);
    }
    return gone;
  }

 private:
  std::unique_ptr<EvictionPolicy> policy_;
  std::array<uint32_t, kChains> counts_{};
};

TEST(EvictionPolicies, WhatLeavesAtOnceIsWhatWouldHaveLeftOneByOne) {
  for (const std::string_view name : ComparedPolicyNames()) {
    SCOPED_TRACE(name);
    Chains one_by_one(name);
    Chains at_once(name);
    std::mt19937_64 random(5);
    uint64_t now_us = 0;
    for (int step = 0; step < 2000; ++step) {
      now_us += random() % 3'000'000;
      const auto chain = static_cast<uint32_t>(random() % Chains::kChains);
      const auto new_blocks = static_cast<uint32_t>(random() % 20);
      one_by_one.Use(chain, new_blocks, now_us);
      at_once.Use(chain, new_blocks, now_us);
      const auto block_count = static_cast<uint32_t>(random() % 18);
      ASSERT_EQ(at_once.EvictAtOnce(block_count), one_by_one.EvictOneByOne(block_count)) << step;
    }
  }
}

TEST(EvictionPolicies, TheEndOfARequestIsNoUseOfItsTip) {
  for (const std::string_view name : {"arc", "gdsf", "lfu", "s3fifo", "sieve", "wtinylfu"}) {
    SCOPED_TRACE(name);
    const auto policy = MakeComparedPolicy(name, 4);
    for (BlockId id = 0; id < 4; ++id) {
      policy->OnInsert(id, {.key = KeyOf(id + 1), .byte_count = 1, .block_tokens = 16}, id);
      policy->OnCandidate(id);
    }
    const BlockId first = policy->Victim();
    for (int i = 0; i < 3; ++i) {
      policy->OnTouch(std::vector<BlockId>{first}, {.end_reason = protocol::EndReason::kEndOfTurn});
    }
    EXPECT_EQ(policy->Victim(), first);
    for (int i = 0; i < 3; ++i) policy->OnTouch(std::vector<BlockId>{first}, {});
    EXPECT_NE(policy->Victim(), first);
  }
}

TEST(FrequencySketch, NeverBelowTheTrueCountAndHalvedInTime) {
  FrequencySketch sketch(64);
  for (uint64_t key = 1; key <= 60; ++key) {
    for (uint64_t i = 0; i < key % 12; ++i) sketch.Count(KeyOf(key));
  }
  uint64_t excess = 0;
  for (uint64_t key = 1; key <= 60; ++key) {
    ASSERT_GE(sketch.FrequencyOf(KeyOf(key)), key % 12);
    excess += sketch.FrequencyOf(KeyOf(key)) - key % 12;
  }
  EXPECT_LT(excess, 100u);
  for (int i = 0; i < 640; ++i) sketch.Count(KeyOf(1000));
  EXPECT_LE(sketch.FrequencyOf(KeyOf(1000)), FrequencySketch::kFrequencyMax);
  EXPECT_LE(sketch.FrequencyOf(KeyOf(11)), 11u);
  EXPECT_GE(sketch.FrequencyOf(KeyOf(11)), 5u);
}

}  // namespace
}  // namespace terrace::tools

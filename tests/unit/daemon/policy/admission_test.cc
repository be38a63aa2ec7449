#include "daemon/policy/admission.h"

#include <gtest/gtest.h>

#include "daemon/policy/wear_governor.h"

namespace terrace {
namespace {

constexpr uint64_t kSecondUs = 1'000'000;
constexpr uint64_t kDayUs = 86400 * kSecondUs;
constexpr uint64_t kBlockBytes = 1 << 20;

std::unique_ptr<AdmissionPolicy> Make(std::string_view name,
                                      uint64_t write_bytes_per_day = WearGovernor::kUnlimited) {
  return MakeAdmissionPolicy(name,
                             {.capacity_blocks = 1000, .write_bytes_per_day = write_bytes_per_day});
}

BlockTraits TraitsOf(BlockId id, BlockId parent = kBlockNone) {
  return {.key = {.low = (id + 1) * 0x9E3779B97F4A7C15u, .high = id},
          .byte_count = kBlockBytes,
          .parent = parent};
}

bool Admits(AdmissionPolicy& policy, BlockId id, uint64_t now_us) {
  return policy.Admits(
      {.moment = AdmissionMoment::kEvicted, .id = id, .traits = TraitsOf(id), .now_us = now_us});
}

TEST(Admission, EveryNameMakesAPolicyAndNoOtherDoes) {
  for (const std::string_view name : AdmissionPolicyNames()) EXPECT_NE(Make(name), nullptr) << name;
  EXPECT_EQ(Make("everything"), nullptr);
}

TEST(Admission, HitWritesWhatWasUsedSinceItCame) {
  const auto policy = Make("hit");
  for (const BlockId id : {0u, 1u}) policy->OnInsert(id, TraitsOf(id), kSecondUs);
  const BlockId used[] = {0};
  policy->OnTouch(used, {.now_us = 2 * kSecondUs});
  EXPECT_TRUE(Admits(*policy, 0, 3 * kSecondUs));
  EXPECT_FALSE(Admits(*policy, 1, 3 * kSecondUs));
}

TEST(Admission, SecondUseRemembersWhatHadLeft) {
  const auto policy = Make("second_use");
  policy->OnInsert(0, TraitsOf(0), kSecondUs);
  policy->OnInsert(1, TraitsOf(1), 2 * kSecondUs);  // ends the request before it
  EXPECT_FALSE(Admits(*policy, 0, 3 * kSecondUs));
  policy->OnErase(0);
  policy->OnInsert(0, TraitsOf(0), 4 * kSecondUs);
  EXPECT_TRUE(Admits(*policy, 0, 5 * kSecondUs));
}

TEST(Admission, APathIsWrittenWholeOrNotAtAll) {
  const auto policy = Make("random", 1000 * kBlockBytes);
  uint32_t admitted_paths = 0;
  for (uint32_t path = 0; path < 200; ++path) {
    const uint64_t now_us = (path + 1) * 100 * kSecondUs;
    for (BlockId i = 0; i < 10; ++i) {
      const BlockId id = path * 10 + i;
      policy->OnInsert(id, TraitsOf(id, i == 0 ? kBlockNone : id - 1), now_us);
    }
    uint32_t admitted_count = 0;
    for (BlockId i = 10; i-- > 0;) admitted_count += Admits(*policy, path * 10 + i, now_us + 1);
    EXPECT_TRUE(admitted_count == 0 || admitted_count == 10) << admitted_count;
    admitted_paths += admitted_count == 10;
  }
  EXPECT_GT(admitted_paths, 10u);
  EXPECT_LT(admitted_paths, 190u);
}

TEST(Admission, WhatLiesBelowIsNeverCutOffFromItsHead) {
  const auto policy = Make("hit");
  policy->OnInsert(0, TraitsOf(0), kSecondUs);
  EXPECT_FALSE(Admits(*policy, 0, 2 * kSecondUs));
  EXPECT_TRUE(policy->Admits(
      {.id = 0, .traits = TraitsOf(0), .now_us = 3 * kSecondUs, .has_child_below = true}));
}

TEST(Admission, BlocksItWasNotToldOfAreJudgedToo) {
  const auto policy = Make("predicted");
  const BlockId run[] = {7, 8};
  policy->OnTouch(run, {.now_us = kSecondUs});
  policy->OnErase(7);
  Admits(*policy, 8, 2 * kSecondUs);
  policy->OnErase(8);
}

// Short prompts always come back, long ones never do.
TEST(Admission, PredictedLearnsWhatComesBack) {
  const auto policy = Make("predicted");
  BlockId next_id = 0;
  uint32_t short_count = 0;
  uint32_t long_count = 0;
  uint64_t now_us = 0;
  for (uint32_t round = 0; round < 600; ++round) {
    for (const uint32_t block_count : {1u, 64u}) {
      now_us += 5 * kSecondUs;
      const BlockId head = next_id;
      for (uint32_t i = 0; i < block_count; ++i, ++next_id) {
        policy->OnInsert(next_id, TraitsOf(next_id, i == 0 ? kBlockNone : next_id - 1), now_us);
      }
      now_us += 5 * kSecondUs;
      const bool is_admitted = Admits(*policy, next_id - 1, now_us);
      if (round >= 300) (block_count == 1 ? short_count : long_count) += is_admitted;
      if (block_count > 1) continue;
      now_us += 5 * kSecondUs;
      policy->OnTouch(std::span(&head, 1), {.now_us = now_us});
    }
  }
  EXPECT_GT(short_count, 270u);
  EXPECT_LT(long_count, 30u);
}

// ---- WearGovernor ----

struct Day {
  uint64_t written_bytes = 0;
  double worth_sum = 0;  // over the blocks written
};

// A day in which `blocks_per_second` ask, each of a worth of its own.
Day SpendADay(WearGovernor* governor, uint64_t start_us, uint32_t blocks_per_second) {
  Day day;
  uint64_t random = 1;
  for (uint64_t second = 0; second < 86400; ++second) {
    const uint64_t now_us = start_us + second * kSecondUs;
    for (uint32_t i = 0; i < blocks_per_second; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const float worth = static_cast<float>(random >> 40) * 0x1p-24f;
      governor->Ask(worth, kBlockBytes, now_us);
      if (!governor->Pays(worth)) continue;
      governor->Charge(kBlockBytes, now_us);
      day.written_bytes += kBlockBytes;
      day.worth_sum += worth;
    }
  }
  return day;
}

TEST(WearGovernor, HoldsADailyBudgetWithinTwoPercentWhateverAsks) {
  constexpr uint64_t kBudgetBytes = 20000 * kBlockBytes;
  WearGovernor governor(kBudgetBytes);
  for (uint32_t day = 0; day < 4; ++day) {
    const uint32_t blocks_per_second = 1 + 2 * day;
    const Day spent = SpendADay(&governor, day * kDayUs, blocks_per_second);
    EXPECT_LE(spent.written_bytes, kBudgetBytes * 102 / 100) << "day " << day;
    EXPECT_GE(spent.written_bytes, kBudgetBytes * 98 / 100) << "day " << day;
  }
}

TEST(WearGovernor, SpendsOnTheWorthiest) {
  WearGovernor governor(20000 * kBlockBytes);
  SpendADay(&governor, 0, 2);
  const Day spent = SpendADay(&governor, kDayUs, 2);
  const double mean_worth =
      spent.worth_sum * kBlockBytes / static_cast<double>(spent.written_bytes);
  EXPECT_GT(mean_worth, 0.85) << "of 172,800 blocks the best 20,000 are worth 0.94 on average";
}

TEST(WearGovernor, WritesEverythingWhileTheBudgetIsNotReached) {
  WearGovernor governor(100000 * kBlockBytes);
  SpendADay(&governor, 0, 1);
  EXPECT_EQ(SpendADay(&governor, kDayUs, 1).written_bytes, 86400 * kBlockBytes);
}

TEST(WearGovernor, WhatMustBeWrittenIsPaidForLater) {
  WearGovernor governor(1000 * kBlockBytes);
  governor.Ask(1, kBlockBytes, 0);
  governor.Charge(500 * kBlockBytes, kSecondUs);
  for (uint64_t hour = 1; hour < 12; ++hour) {
    governor.Ask(1, kBlockBytes, hour * 3600 * kSecondUs);
    EXPECT_FALSE(governor.Pays(1)) << "hour " << hour;
  }
  governor.Ask(1, kBlockBytes, 13 * 3600 * kSecondUs);
  EXPECT_TRUE(governor.Pays(1));
}

}  // namespace
}  // namespace terrace

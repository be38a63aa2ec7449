// The oracle of what a loss of power must leave: what a sync has had time to cover, since the drive
// was last handed it.
#include "sim/survival.h"

#include <gtest/gtest.h>

namespace terrace::sim {
namespace {

const Survival::Name kName{0, 1, BlockKey{}};
constexpr CommitId kCommit = 7;

Survival::Snapshot Having() { return {{kName, {.commit_id = kCommit, .is_persisted = true}}}; }

std::string AfterPowerLoss(Survival& survival, uint64_t now_us) {
  return survival.Judge({}, Ending::kPowerLoss, Survival::Promise::kSurvival, now_us);
}

TEST(Survival, WhatWasWrittenLongAgoOutlivesALossOfPower) {
  Survival survival;
  survival.Note(Having(), 1'000'000);
  survival.Note(Having(), 5'900'000);
  EXPECT_NE(AfterPowerLoss(survival, 6'000'000), "");
}

TEST(Survival, WhatWasWrittenAnewBetweenTwoLooksMayBeLost) {
  Survival survival;
  survival.Note(Having(), 1'000'000);
  survival.Written(kCommit, 5'800'000);
  survival.Note(Having(), 5'900'000);
  EXPECT_EQ(AfterPowerLoss(survival, 6'000'000), "");
}

TEST(Survival, WhatWasWrittenAnewOutlivesAKill) {
  Survival survival;
  survival.Note(Having(), 1'000'000);
  survival.Written(kCommit, 5'800'000);
  EXPECT_NE(survival.Judge({}, Ending::kKill, Survival::Promise::kSurvival, 6'000'000), "");
}

TEST(Survival, ThatAnotherBlockWasWrittenChangesNothing) {
  Survival survival;
  survival.Note(Having(), 1'000'000);
  survival.Written(kCommit + 1, 5'800'000);
  EXPECT_NE(AfterPowerLoss(survival, 6'000'000), "");
}

}  // namespace
}  // namespace terrace::sim

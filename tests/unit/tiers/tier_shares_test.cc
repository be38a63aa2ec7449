// Who may take how much of a tier, and who gives it back.
#include "tiers/tier_shares.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

using Lending = TierShares::Lending;

constexpr uint64_t kNowUs = 5'000'000;

// Of ten: the first two are guaranteed four each, the third nothing; no limits but the whole.
class TierSharesTest : public testing::Test {
 protected:
  // As one asks that repeats it.
  void AskFor(uint64_t us, uint32_t domain, uint64_t byte_count) {
    for (const uint64_t end_us = now_us_ + us; now_us_ < end_us; now_us_ += 1'000'000) {
      shares_.Ask(domain, byte_count, now_us_);
    }
  }
  // The one that is to give; none: 99.
  uint32_t Giver() const {
    uint32_t giver = 99;
    for (uint32_t domain = 0; domain < 3; ++domain) {
      if (!shares_.IsToGive(domain, now_us_)) continue;
      EXPECT_EQ(giver, 99u) << "one at a time";
      giver = domain;
    }
    return giver;
  }

  uint64_t now_us_ = kNowUs;
  TierShares shares_{Lending::kAll, 10, {{4, 10, 50}, {4, 10, 50}, {0, 10, 50}}};
};

TEST_F(TierSharesTest, WhatIsNotUsedIsLent) {
  EXPECT_TRUE(shares_.MayTake(0, 10, now_us_)) << "nobody else needs it";
  shares_.SetHeld(0, 7);
  EXPECT_EQ(shares_.stats(0, now_us_).borrowed_bytes, 3u);
  EXPECT_TRUE(shares_.MayTake(2, 3, now_us_));
  EXPECT_FALSE(shares_.MayTake(2, 4, now_us_)) << "there is no more";
  EXPECT_EQ(Giver(), 99u) << "nobody has asked";
}

TEST_F(TierSharesTest, ALimitHoldsWhateverIsFree) {
  shares_.Set(10, {{2, 5, 50}, {4, 10, 50}, {0, 10, 50}});
  shares_.SetHeld(0, 4);
  EXPECT_TRUE(shares_.MayTake(0, 1, now_us_));
  EXPECT_FALSE(shares_.MayTake(0, 2, now_us_));
  shares_.Ask(0, 2, now_us_);
  EXPECT_EQ(shares_.stats(0, now_us_).asked_bytes, 0u) << "room would not help";
  shares_.SetHeld(0, 6);
  EXPECT_TRUE(shares_.IsToGive(0, now_us_)) << "a limit was lowered";
  shares_.SetLeaving(0, 1);
  EXPECT_FALSE(shares_.IsToGive(0, now_us_));
}

TEST_F(TierSharesTest, ABorrowerGivesToWhoAsksWithinItsGuarantee) {
  shares_.SetHeld(2, 10);
  shares_.Ask(0, 4, now_us_);
  EXPECT_EQ(Giver(), 2u);
  EXPECT_TRUE(shares_.IsComing(0, now_us_));
  shares_.SetLeaving(2, 3);
  EXPECT_EQ(Giver(), 2u) << "that is not enough";
  shares_.SetLeaving(2, 4);
  EXPECT_EQ(Giver(), 99u);
  shares_.SetHeld(2, 6);
  shares_.SetLeaving(2, 0);
  EXPECT_FALSE(shares_.MayTake(2, 1, now_us_)) << "it is kept for who asked";
  EXPECT_TRUE(shares_.MayTake(0, 4, now_us_));
  shares_.SetHeld(0, 4);
  EXPECT_EQ(shares_.stats(0, now_us_).asked_bytes, 0u) << "it has it";
  EXPECT_FALSE(shares_.IsComing(0, now_us_));
}

TEST_F(TierSharesTest, WithinItsGuaranteeNobodyGives) {
  shares_.SetHeld(0, 4);
  shares_.SetHeld(1, 4);
  shares_.SetHeld(2, 2);
  shares_.Ask(2, 1, now_us_);
  EXPECT_EQ(Giver(), 99u);
  EXPECT_FALSE(shares_.IsComing(2, now_us_));
  shares_.Ask(0, 1, now_us_);
  EXPECT_EQ(Giver(), 99u) << "it would borrow, and nobody ranks below it";
}

TEST_F(TierSharesTest, TheLowestPriorityGivesFirstThenWhoHasBorrowedMost) {
  shares_.SetHeld(0, 5);
  shares_.SetHeld(2, 5);
  shares_.Ask(1, 1, now_us_);
  EXPECT_EQ(Giver(), 2u) << "five borrowed, against one";
  shares_.Set(10, {{4, 10, 10}, {4, 10, 50}, {0, 10, 50}});
  EXPECT_EQ(Giver(), 0u);
  shares_.Excuse(0, now_us_);
  EXPECT_EQ(Giver(), 2u) << "the first has nothing to give";
}

TEST_F(TierSharesTest, WhoWouldBorrowTakesFromALowerPriorityAlone) {
  shares_.Set(10, {{4, 10, 80}, {4, 10, 50}, {0, 10, 50}});
  shares_.SetHeld(0, 4);
  shares_.SetHeld(2, 6);
  shares_.Ask(0, 1, now_us_);
  EXPECT_EQ(Giver(), 2u);
  EXPECT_FALSE(shares_.IsComing(0, now_us_)) << "its own go meanwhile: it has no right to more";
  shares_.SetHeld(2, 5);
  EXPECT_FALSE(shares_.MayTake(2, 1, now_us_));
  EXPECT_TRUE(shares_.MayTake(1, 1, now_us_)) << "who is within its guarantee comes first";
  EXPECT_TRUE(shares_.MayTake(0, 1, now_us_));
}

TEST_F(TierSharesTest, WhatIsNotAskedForAgainIsForgotten) {
  shares_.SetHeld(2, 9);
  shares_.Ask(0, 2, now_us_);
  EXPECT_FALSE(shares_.MayTake(2, 1, now_us_));
  now_us_ += TierShares::kAskUs;
  EXPECT_TRUE(shares_.MayTake(2, 1, now_us_));
  EXPECT_EQ(Giver(), 99u);
}

TEST_F(TierSharesTest, WhoWaitsInVainMakesDoAndGoesOnAsking) {
  shares_.SetHeld(2, 10);
  AskFor(TierShares::kPatienceUs, 0, 1);
  EXPECT_FALSE(shares_.IsComing(0, now_us_));
  EXPECT_EQ(Giver(), 2u);
}

TEST_F(TierSharesTest, WhatIsAboveTheCapacityIsGivenBackUnasked) {
  shares_.SetHeld(0, 6);
  shares_.SetHeld(1, 5);
  EXPECT_EQ(Giver(), 0u);
  shares_.SetLeaving(0, 1);
  EXPECT_EQ(Giver(), 99u);
}

TEST_F(TierSharesTest, WhatIsAboveIsBeyondALimitOrTheCapacityAndNotWhatOthersAskFor) {
  const auto above = [this](uint32_t domain) { return shares_.stats(domain, now_us_).above_bytes; };
  shares_.SetHeld(0, 6);
  shares_.SetHeld(2, 4);
  shares_.Ask(1, 2, now_us_);
  EXPECT_NE(Giver(), 99u);
  EXPECT_EQ(above(0) + above(1) + above(2), 0u) << "it is borrowed, and goes back";
  shares_.Set(8, {{4, 8, 50}, {4, 8, 50}, {0, 8, 50}});
  EXPECT_EQ(above(0) + above(2), 2u);
  shares_.SetLeaving(2, 2);
  EXPECT_EQ(above(0) + above(2), 2u) << "until it has left";
  shares_.SetLeaving(2, 0);
  shares_.SetHeld(2, 2);
  EXPECT_EQ(above(0) + above(2), 0u);
  shares_.Set(8, {{4, 8, 50}, {4, 8, 50}, {0, 1, 50}});
  EXPECT_EQ(above(2), 1u);
}

TEST_F(TierSharesTest, ACapacityThatIsRaisedIsTakenAtOnce) {
  shares_.SetHeld(0, 10);
  EXPECT_FALSE(shares_.MayTake(0, 1, now_us_));
  shares_.Set(12, {{4, 12, 50}, {4, 12, 50}, {0, 12, 50}});
  EXPECT_TRUE(shares_.MayTake(0, 2, now_us_));
  EXPECT_FALSE(shares_.MayTake(0, 3, now_us_));
}

TEST(TierSharesUnlent, AGuaranteeIsKeptFree) {
  TierShares shares(Lending::kNothing, 10, {{4, 10, 50}, {0, 8, 50}});
  EXPECT_TRUE(shares.MayTake(1, 6, kNowUs));
  EXPECT_FALSE(shares.MayTake(1, 7, kNowUs));
  shares.SetHeld(0, 3);
  EXPECT_FALSE(shares.MayTake(1, 7, kNowUs)) << "six are left beside what is guaranteed";
  shares.SetHeld(1, 6);
  EXPECT_TRUE(shares.MayTake(0, 1, kNowUs));
  EXPECT_FALSE(shares.MayTake(0, 2, kNowUs));
}

}  // namespace
}  // namespace terrace

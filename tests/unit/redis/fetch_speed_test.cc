#include "tiers/redis/fetch_speed.h"

#include <gtest/gtest.h>

#include "tiers/disk/speed_doubt.h"

namespace terrace {
namespace {

constexpr uint64_t kBytes = 1'000'000;

class FetchSpeedTest : public testing::Test {
 protected:
  // One fetch after the other, of kBytes.
  void Fetch(uint64_t took_us) {
    const uint64_t begun_us = now_us_;
    speed_.OnFetchBegun(begun_us);
    now_us_ += took_us;
    speed_.OnFetchEnded(now_us_);
    speed_.OnFetched(begun_us, kBytes, now_us_);
  }
  uint64_t Predicted() const { return speed_.PredictUs(kBytes, now_us_); }

  FetchSpeed speed_;
  uint64_t now_us_ = 1'000'000'000;
};

TEST_F(FetchSpeedTest, AMiddlingServerIsTakenForOneThatNobodyMeasured) {
  EXPECT_EQ(Predicted(), 1'000u + 2'000u);
}

TEST_F(FetchSpeedTest, WhatWasMeasuredIsSoonBelieved) {
  for (int i = 0; i < 40; ++i) Fetch(50'000);
  EXPECT_NEAR(static_cast<double>(Predicted()), 51'000, 1'000);
  for (int i = 0; i < 60; ++i) Fetch(300);
  EXPECT_NEAR(static_cast<double>(Predicted()), 1'300, 100);
}

// Who is told that it is too slow does not ask, and would never learn that it no longer is.
TEST_F(FetchSpeedTest, ASlowServerIsBelievedLessWhileNobodyAsks) {
  Fetch(200'000);
  for (int i = 0; i < 40; ++i) Fetch(200'000);
  const uint64_t slow_us = Predicted();
  now_us_ += SpeedDoubt::kHoldsUs;
  EXPECT_EQ(Predicted(), slow_us);
  now_us_ += 1;
  EXPECT_NEAR(static_cast<double>(Predicted()), static_cast<double>(slow_us) / 2, 1'000);
  now_us_ += 7 * SpeedDoubt::kHalvesUs;
  EXPECT_LT(Predicted(), 3'500u) << "ten seconds later it is worth another try";
  now_us_ += 1'000 * SpeedDoubt::kHalvesUs;
  EXPECT_EQ(Predicted(), 3'000u);
  Fetch(200'000);
  EXPECT_NEAR(static_cast<double>(Predicted()), 201'000, 1'000) << "still slow, known at once";
}

// Others look for what nobody has, and are answered at once.
TEST_F(FetchSpeedTest, ProbesSayNothingOfBytes) {
  for (int i = 0; i < 40; ++i) Fetch(200'000);
  for (int second = 0; second < 12; ++second) {
    now_us_ += 1'000'000;
    speed_.OnProbed(now_us_ - 300, now_us_);
  }
  EXPECT_LT(Predicted(), 3'500u);
  Fetch(200'000);
  EXPECT_GT(Predicted(), 200'000u) << "one fetch is enough";
}

TEST_F(FetchSpeedTest, AFastServerStaysSo) {
  for (int i = 0; i < 60; ++i) Fetch(300);
  const uint64_t fast_us = Predicted();
  now_us_ += 3'600'000'000;
  EXPECT_EQ(Predicted(), fast_us);
}

TEST_F(FetchSpeedTest, AServerThatOwesAnswersAndIsSilentIsSlow) {
  for (int i = 0; i < 60; ++i) Fetch(300);
  const uint64_t fast_us = Predicted();
  speed_.OnFetchBegun(now_us_);
  now_us_ += 40'000;
  speed_.OnFetchBegun(now_us_);
  EXPECT_EQ(Predicted(), 40'000u);
  speed_.OnFetchEnded(now_us_);
  EXPECT_EQ(Predicted(), fast_us) << "it answers";
  now_us_ += 30'000;
  EXPECT_EQ(Predicted(), 30'000u);
  speed_.OnFetchEnded(now_us_);
  EXPECT_EQ(Predicted(), fast_us);
}

TEST_F(FetchSpeedTest, ADistantServersRoundTripIsCountedTwice) {
  for (int i = 0; i < 60; ++i) {
    speed_.OnProbed(now_us_, now_us_ + 20'000);
    now_us_ += 20'000;
  }
  EXPECT_NEAR(static_cast<double>(speed_.PredictUs(0, now_us_)), 40'000, 200);
}

}  // namespace
}  // namespace terrace

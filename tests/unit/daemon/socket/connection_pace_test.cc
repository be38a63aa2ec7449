#include "daemon/socket/connection_pace.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

constexpr uint64_t kNowUs = 5'000'000;

uint64_t Burst(ConnectionPace& pace, uint32_t uid, uint64_t now_us) {
  uint64_t count = 0;
  while (pace.Take(uid, now_us)) ++count;
  return count;
}

TEST(ConnectionPace, ABurstAndThenOneAPace) {
  ConnectionPace pace;
  EXPECT_EQ(Burst(pace, 1, kNowUs), ConnectionPace::kBurst);
  EXPECT_EQ(Burst(pace, 1, kNowUs + ConnectionPace::kPaceUs - 1), 0u);
  EXPECT_EQ(Burst(pace, 1, kNowUs + ConnectionPace::kPaceUs), 1u);
  EXPECT_EQ(Burst(pace, 1, kNowUs + 11 * ConnectionPace::kPaceUs), 10u);
}

TEST(ConnectionPace, WhoWaitsHasABurstAgainAndNoMore) {
  ConnectionPace pace;
  Burst(pace, 1, kNowUs);
  const uint64_t paid_us = ConnectionPace::kBurst * ConnectionPace::kPaceUs;
  EXPECT_EQ(Burst(pace, 1, kNowUs + 2 * paid_us), ConnectionPace::kBurst);
}

TEST(ConnectionPace, UsersDoNotPayForEachOther) {
  ConnectionPace pace;
  Burst(pace, 1, kNowUs);
  EXPECT_EQ(Burst(pace, 2, kNowUs), ConnectionPace::kBurst);
}

TEST(ConnectionPace, UsersWhoHavePaidAreForgottenAndOthersAreNot) {
  ConnectionPace pace;
  for (uint32_t uid = 0; uid < ConnectionPace::kUsersMax; ++uid) pace.Take(uid, kNowUs);
  EXPECT_EQ(pace.user_count(), ConnectionPace::kUsersMax);
  const uint64_t later_us = kNowUs + ConnectionPace::kPaceUs;
  Burst(pace, 7, later_us);
  EXPECT_EQ(pace.user_count(), 1u);
  for (uint32_t uid = 10'000; uid < 10'000 + 2 * ConnectionPace::kUsersMax; ++uid) {
    pace.Take(uid, later_us);
  }
  EXPECT_FALSE(pace.Take(7, later_us)) << "it has not paid yet";
}

}  // namespace
}  // namespace terrace

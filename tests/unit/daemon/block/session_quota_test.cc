#include "daemon/block/session_quota.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// How many more sessions of the owner there is room for; `*why` is what the next was told.
uint32_t TakeAll(SessionQuota* quota, const SessionQuota::Owner& owner, std::string* why) {
  bool is_extra = false;
  for (uint32_t count = 0;; ++count) {
    const Error taken = quota->Take(owner, &is_extra);
    if (taken.ok()) continue;
    EXPECT_EQ(taken.code(), StatusCode::kNoSpace);
    *why = taken.sentence();
    return count;
  }
}

constexpr SessionLimits kLimits{.sessions_max = 100,
                                .sessions_per_uid_max = 40,
                                .sessions_per_process_max = 10,
                                .operator_uid = 999};

TEST(SessionQuota, NeitherAProcessNorAUserNorADomainTakesAllThereIs) {
  SessionQuota quota(kLimits, 2);
  std::string why;
  EXPECT_EQ(TakeAll(&quota, {.domain_index = 0, .uid = 1, .pid = 11}, &why), 10u);
  EXPECT_THAT(why, AllOf(HasSubstr("process 11"), HasSubstr("sessions_per_process_max is 10")));
  EXPECT_EQ(TakeAll(&quota, {.domain_index = 0, .uid = 1, .pid = 0}, &why), 30u);
  EXPECT_THAT(why, AllOf(HasSubstr("uid 1"), HasSubstr("sessions_per_uid_max is 40")));
  EXPECT_EQ(TakeAll(&quota, {.domain_index = 0, .uid = 2, .pid = 0}, &why), 35u)
      << "25 of 100 are the other domain's";
  EXPECT_THAT(why, AllOf(HasSubstr("sessions_max is 100"), HasSubstr("keeps 25")));
  EXPECT_EQ(TakeAll(&quota, {.domain_index = 0, .uid = 3, .pid = 0}, &why), 0u);
  EXPECT_EQ(TakeAll(&quota, {.domain_index = 1, .uid = 1, .pid = 11}, &why), 10u)
      << "a user of another domain is another user";
  EXPECT_EQ(TakeAll(&quota, {.domain_index = 1, .uid = 1, .pid = 0}, &why), 15u);
}

TEST(SessionQuota, EachRefusalIsCountedUnderTheLimitThatWasMet) {
  SessionQuota quota(kLimits, 2);
  std::string why;
  TakeAll(&quota, {.domain_index = 0, .uid = 1, .pid = 11}, &why);
  TakeAll(&quota, {.domain_index = 0, .uid = 1, .pid = 0}, &why);
  for (int i = 0; i < 2; ++i) TakeAll(&quota, {.domain_index = 0, .uid = 2, .pid = 0}, &why);
  EXPECT_EQ(quota.refused(0), (SessionRefusals{1, 1, 2})) << "process, user, all";
  EXPECT_EQ(quota.refused(1), SessionRefusals{}) << "the other domain's";
}

TEST(SessionQuota, WhoCouldEndTheDaemonCanAlwaysLook) {
  SessionQuota quota(kLimits, 1);
  std::string why;
  for (uint32_t uid = 1; uid < 4; ++uid) TakeAll(&quota, {.uid = uid}, &why);
  EXPECT_EQ(TakeAll(&quota, {.uid = 5}, &why), 0u);
  bool is_extra = false;
  EXPECT_TRUE(quota.Take({.uid = 0}, &is_extra).ok());
  EXPECT_TRUE(is_extra);
  EXPECT_EQ(TakeAll(&quota, {.uid = 999}, &why), kOperatorSessionsMax - 1);
  quota.Give({.uid = 0}, true);
  EXPECT_EQ(TakeAll(&quota, {.uid = 0, .pid = 7}, &why), 1u);
}

TEST(SessionQuota, WhatEndsGivesItsPlaceBack) {
  SessionQuota quota(kLimits, 2);
  std::string why;
  const SessionQuota::Owner owner{.domain_index = 1, .uid = 1, .pid = 11};
  for (int round = 0; round < 20; ++round) {  // twice as many as there are places
    const uint32_t taken_count = TakeAll(&quota, owner, &why);
    EXPECT_EQ(taken_count, 10u) << round;
    for (uint32_t i = 0; i < taken_count; ++i) quota.Give(owner, false);
  }
  EXPECT_EQ(TakeAll(&quota, {.domain_index = 0, .uid = 1, .pid = 0}, &why), 40u);
  EXPECT_EQ(TakeAll(&quota, owner, &why), 10u);
}

}  // namespace
}  // namespace terrace

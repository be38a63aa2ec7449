// What the shared tier has lately said it has.
#include "daemon/transfer/shared_findings.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

constexpr uint64_t kLaterUs = SharedFindings::kBelievedUs;

SharedFindings::Place PlaceOf(uint64_t key) {
  SharedFindings::Place place;
  place.key.low = key;
  return place;
}

TEST(SharedFindings, AreBelievedForAMoment) {
  SharedFindings findings;
  ASSERT_TRUE(findings.Add(PlaceOf(1), {.position = 5}, 100));
  const SharedFinding* const found = findings.Find(PlaceOf(1), 99 + kLaterUs);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->position, 5U);
  EXPECT_EQ(findings.Find(PlaceOf(2), 100), nullptr);
  EXPECT_EQ(findings.Find(PlaceOf(1), 100 + kLaterUs), nullptr) << "nobody has expired it yet";
  EXPECT_EQ(findings.count(), 1U);
  findings.Expire(100 + kLaterUs);
  EXPECT_TRUE(findings.is_empty());
}

TEST(SharedFindings, LeaveSomeAtATime) {
  SharedFindings findings;
  for (uint64_t key = 0; key < SharedFindings::kCountMax; ++key) {
    ASSERT_TRUE(findings.Add(PlaceOf(key), {}, 0));
  }
  EXPECT_FALSE(findings.Add(PlaceOf(SharedFindings::kCountMax), {}, 0)) << "there is no room";
  EXPECT_EQ(findings.count(), SharedFindings::kCountMax);
  findings.Expire(kLaterUs);
  EXPECT_EQ(findings.count(), SharedFindings::kCountMax - SharedFindings::kExpiriesPerTickMax);
  findings.Expire(kLaterUs - 1);
  EXPECT_EQ(findings.count(), SharedFindings::kCountMax - SharedFindings::kExpiriesPerTickMax);
}

TEST(SharedFindings, WhatIsOldIsInNobodysWay) {
  SharedFindings findings;
  for (uint64_t key = 0; key < SharedFindings::kCountMax; ++key) {
    ASSERT_TRUE(findings.Add(PlaceOf(key), {}, 0));
  }
  for (uint64_t key = 0; key < SharedFindings::kCountMax; ++key) {
    ASSERT_TRUE(findings.Add(PlaceOf(SharedFindings::kCountMax + key), {}, kLaterUs));
  }
  EXPECT_EQ(findings.count(), SharedFindings::kCountMax);
}

TEST(SharedFindings, WhatWasUsedLeavesItsRoomAtOnce) {
  SharedFindings findings;
  for (uint64_t key = 0; key < SharedFindings::kCountMax; ++key) {
    ASSERT_TRUE(findings.Add(PlaceOf(key), {}, 0));
  }
  EXPECT_TRUE(findings.Add(PlaceOf(1), {}, 0)) << "it is known";
  findings.Forget(PlaceOf(1));
  EXPECT_TRUE(findings.Add(PlaceOf(SharedFindings::kCountMax), {}, 0));
  EXPECT_FALSE(findings.Add(PlaceOf(1), {}, 0));
}

TEST(SharedFindings, WhatIsFoundAgainIsBelievedAnew) {
  SharedFindings findings;
  ASSERT_TRUE(findings.Add(PlaceOf(1), {.position = 1}, 0));
  ASSERT_TRUE(findings.Add(PlaceOf(2), {.position = 2}, 0));
  findings.Forget(PlaceOf(1));
  EXPECT_EQ(findings.Find(PlaceOf(1), 0), nullptr);
  ASSERT_TRUE(findings.Add(PlaceOf(1), {.position = 3}, 10));
  ASSERT_TRUE(findings.Add(PlaceOf(2), {.position = 4}, 10));
  findings.Expire(kLaterUs);
  ASSERT_NE(findings.Find(PlaceOf(1), kLaterUs), nullptr);
  EXPECT_EQ(findings.Find(PlaceOf(1), kLaterUs)->position, 3U);
  ASSERT_NE(findings.Find(PlaceOf(2), kLaterUs), nullptr);
  EXPECT_EQ(findings.Find(PlaceOf(2), kLaterUs)->position, 4U);
  findings.Expire(10 + kLaterUs);
  EXPECT_TRUE(findings.is_empty());
}

}  // namespace
}  // namespace terrace

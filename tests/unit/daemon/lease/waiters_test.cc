// Pending requests, without a store.
#include "daemon/lease/waiters.h"

#include "unit/daemon/lease/lease_fixture.h"

namespace terrace {
namespace {

TEST(Waiters, ARequestIdIsPendingOnceASession) {
  LeaseWorld w;
  const PendingId first =
      w.waiters.Open({.kind = PendingKind::kWait, .session = 1, .request_id = 7});
  ASSERT_NE(first, kPendingNone);
  EXPECT_EQ(w.waiters.Open({.kind = PendingKind::kErasure, .session = 1, .request_id = 7}),
            kPendingNone);
  EXPECT_NE(w.waiters.Open({.kind = PendingKind::kWait, .session = 2, .request_id = 7}),
            kPendingNone);
  EXPECT_EQ(w.pending.CountOf(1), 1u);
  w.waiters.Drop(first);
  EXPECT_EQ(w.pending.CountOf(1), 0u);
  EXPECT_EQ(w.pending.Find(1, 7), kPendingNone);
}

TEST(Waiters, WhatWaitsForNothingIsOverWhenItIsArmed) {
  LeaseWorld w;
  const SessionIndex s = w.Open(1);
  const LeaseId lease = *w.manager.Open(LeaseKind::kRead, s, 0);
  const PendingId pending = w.waiters.Open({.session = 1, .request_id = 7, .lease = lease});
  EXPECT_FALSE(w.waiters.Arm(pending, w.clock.NowUs() + 1));
  EXPECT_EQ(w.pending.Find(1, 7), kPendingNone);
  EXPECT_TRUE(w.listener.completions.empty()) << "the reply said all";
  EXPECT_EQ(w.deadlines.count(), 1u) << "the session's";
}

TEST(Waiters, AnErasureIsAwaitedNoLongerThanItsDeadline) {
  LeaseWorld w;
  const PendingId pending =
      w.waiters.Open({.kind = PendingKind::kErasure, .session = 1, .request_id = 7});
  w.erasures.Arm(pending, w.domain.MarkErasures(), w.clock.NowUs() + 1'000);
  EXPECT_TRUE(w.listener.waits.empty());
  w.clock.Advance(1'000);
  w.RunDeadlines();
  ASSERT_EQ(w.listener.waits.size(), 1u);
  EXPECT_EQ(w.listener.waits[0].status, StatusCode::kBusy);
  EXPECT_EQ(w.pending.CountOf(1), 0u);
}

TEST(Waiters, ASessionThatLeavesIsToldNothing) {
  LeaseWorld w;
  const PendingId pending =
      w.waiters.Open({.kind = PendingKind::kErasure, .session = 1, .request_id = 7});
  w.erasures.Arm(pending, w.domain.MarkErasures(), w.clock.NowUs() + 1'000);
  w.waiters.DropAll(1, kLeaseNone);
  w.erasures.Step();
  w.clock.Advance(1'000);
  w.RunDeadlines();
  EXPECT_TRUE(w.listener.waits.empty());
  EXPECT_EQ(w.deadlines.count(), 0u);
}

}  // namespace
}  // namespace terrace

// How leases begin and end, without a store.
#include "daemon/lease/lease_manager.h"

#include "unit/daemon/lease/lease_fixture.h"

namespace terrace {
namespace {

TEST(LeaseKeeper, ALeaseWeighsUntilItHasEnded) {
  LeaseWorld w;
  const SessionIndex s = w.Open(1);
  const Result<LeaseId> lease = w.manager.Open(LeaseKind::kRead, s, 0);
  ASSERT_TRUE(lease.ok());
  EXPECT_GT(w.domain.lease_charge, 0u);
  EXPECT_EQ(w.sessions.at(s).lease_charge, w.domain.lease_charge);
  w.manager.Leave(*lease, s);
  EXPECT_GT(w.domain.lease_charge, 0u) << "its blocks are let go in turns";
  w.Run();
  EXPECT_EQ(w.domain.lease_charge, 0u);
  EXPECT_EQ(w.domain.leases.count(), 0u);
}

TEST(LeaseKeeper, ASessionHasNoMoreLeasesThanItMay) {
  LeaseWorld w({.leases_per_session_max = 2});
  const SessionIndex s = w.Open(1);
  const Result<LeaseId> first = w.manager.Open(LeaseKind::kRead, s, 0);
  ASSERT_TRUE(first.ok() && w.manager.Open(LeaseKind::kWrite, s, 0).ok());
  EXPECT_EQ(w.manager.Open(LeaseKind::kRead, s, 0).code(), StatusCode::kNoSpace);
  w.manager.Leave(*first, s);
  EXPECT_TRUE(w.manager.Open(LeaseKind::kRead, s, 0).ok());
}

TEST(LeaseKeeper, TheLastJoinerEndsALease) {
  LeaseWorld w;
  const SessionIndex a = w.Open(1), b = w.Open(2);
  const LeaseId lease = *w.manager.Open(LeaseKind::kRead, a, 0);
  ASSERT_TRUE(w.manager.Join(lease, b).ok());
  w.manager.Leave(lease, a);
  w.Run();
  EXPECT_EQ(w.domain.leases.count(), 1u);
  EXPECT_FALSE(w.manager.IsJoiner(lease, a));
  EXPECT_TRUE(w.manager.IsJoiner(lease, b));
  w.manager.Leave(lease, b);
  w.Run();
  EXPECT_EQ(w.domain.leases.count(), 0u);
}

TEST(LeaseKeeper, WhoAbortsForAllTellsTheOthers) {
  LeaseWorld w;
  const SessionIndex a = w.Open(1), b = w.Open(2);
  const LeaseId lease = *w.manager.Open(LeaseKind::kWrite, a, 0);
  const LeaseToken token = w.domain.leases.at(lease).token;
  w.domain.leases.GoLive(lease);
  ASSERT_TRUE(w.manager.Join(lease, b).ok());
  w.manager.AbortAll(lease, a);
  ASSERT_EQ(w.listener.revoked.size(), 1u);
  EXPECT_EQ(w.listener.revoked[0], std::pair(SessionId{2}, token));
  EXPECT_TRUE(w.manager.IsVoid(lease));
  w.manager.Leave(lease, b);  // its acknowledgement
  w.Run();
  EXPECT_EQ(w.domain.leases.count(), 0u);
}

TEST(LeaseKeeper, ASilentSessionsLeaseIsRevokedButForAJoinerThatSpeaks) {
  uint32_t told_count = 0;
  LeaseWorld w(
      {.lease_ttl_ms = 1'000, .on_silent = [&](uint32_t, SessionId session, uint32_t lease_count) {
         EXPECT_EQ(session, 1u);
         told_count += lease_count;
       }});
  const SessionIndex a = w.Open(1), b = w.Open(2);
  const LeaseId alone = *w.manager.Open(LeaseKind::kRead, a, 0);
  const LeaseId shared = *w.manager.Open(LeaseKind::kRead, a, 0);
  ASSERT_TRUE(w.manager.Join(shared, b).ok());
  w.clock.Advance(1'000'001);
  w.sessions.at(b).last_sign_us = w.clock.NowUs();
  EXPECT_EQ(w.RunDeadlines(), DeadlineKind::kSessionSilent);
  w.manager.OnSilence(a);
  EXPECT_TRUE(w.manager.IsVoid(alone));
  EXPECT_FALSE(w.manager.IsVoid(shared));
  EXPECT_EQ(told_count, 1u) << "the one that was revoked";
  EXPECT_EQ(w.sessions.at(a).revoked_leases, 1u);
  w.manager.Leave(alone, a);
  EXPECT_EQ(w.sessions.at(a).revoked_leases, 0u);
}

TEST(LeaseKeeper, WhoIsProvenDeadLeavesItsLeases) {
  LeaseWorld w;
  const SessionIndex a = w.Open(1);
  ASSERT_TRUE(w.manager.Open(LeaseKind::kWrite, a, 0).ok());
  w.sessions.at(a).is_hung_up = true;
  w.manager.OnHangUp(a);
  w.Run();
  EXPECT_EQ(w.domain.leases.count(), 1u) << "a hang-up only revokes";
  w.sessions.at(a).is_dead = true;
  w.manager.OnHangUp(a);
  w.Run();
  EXPECT_EQ(w.domain.leases.count(), 0u);
  EXPECT_EQ(w.sessions.Find(1), kSessionNone);
}

}  // namespace
}  // namespace terrace

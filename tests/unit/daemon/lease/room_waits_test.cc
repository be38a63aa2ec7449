// Who waits for memory, and for a turn to register it.
#include "daemon/lease/room_waits.h"

#include "daemon/lease/registration_turns.h"
#include "unit/daemon/lease/lease_fixture.h"

namespace terrace {
namespace {

TEST(RoomWaits, EachIsToldOnceWhenMemoryComesOrItsTimeIsOver) {
  LeaseWorld w;
  RoomWaits waits(w.domain);
  waits.Await(1, 10, w.clock.NowUs() + 1'000);
  waits.Await(2, 20, w.clock.NowUs() + 2'000);
  w.clock.Advance(1'000);
  Deadline due;
  ASSERT_TRUE(w.deadlines.PopDue(w.clock.NowUs(), &due));
  EXPECT_EQ(due.kind, DeadlineKind::kRoom);
  waits.OnDeadline(due.id);
  ASSERT_EQ(w.listener.seeks.size(), 1u);
  EXPECT_EQ(w.listener.seeks[0], std::pair(SessionId{1}, uint64_t{10}));
  waits.Wake();
  waits.Wake();
  ASSERT_EQ(w.listener.seeks.size(), 2u);
  EXPECT_EQ(w.listener.seeks[1], std::pair(SessionId{2}, uint64_t{20}));
  EXPECT_EQ(w.deadlines.count(), 0u);
}

TEST(RegistrationTurns, ComeOneAtATimeInTheOrderAsked) {
  RegistrationTurns turns;
  EXPECT_EQ(turns.Ask(1), 0u);
  EXPECT_EQ(turns.Next(0), 1u);
  EXPECT_EQ(turns.Ask(2), 1u);
  EXPECT_EQ(turns.Ask(3), 2u);
  EXPECT_EQ(turns.Ask(2), 1u) << "asked again, it keeps its place";
  EXPECT_EQ(turns.Next(1), 0u) << "the first has not ended";
  EXPECT_TRUE(turns.End(1));
  EXPECT_EQ(turns.Next(1), 2u);
  EXPECT_TRUE(turns.End(3)) << "it waits no longer";
  EXPECT_FALSE(turns.End(3));
  EXPECT_EQ(turns.taken_away_count(), 0u);
}

TEST(RegistrationTurns, AreTakenAwayOnlyForSomebodyWhoWaits) {
  RegistrationTurns turns;
  turns.Ask(1);
  ASSERT_EQ(turns.Next(0), 1u);
  EXPECT_EQ(turns.next_us(), kNever);
  turns.Ask(2);
  EXPECT_EQ(turns.next_us(), kRegistrationTurnUs);
  EXPECT_EQ(turns.Next(kRegistrationTurnUs), 2u);
  EXPECT_EQ(turns.taken_away_count(), 1u);
  EXPECT_FALSE(turns.End(1));
}

}  // namespace
}  // namespace terrace

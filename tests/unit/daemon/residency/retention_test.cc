// How long what a request asked for holds: priorities that end, and times to live that hits renew.
#include "block_world.h"
#include "terrace/protocol_retention.h"

namespace terrace {
namespace {

using protocol::Hints;

constexpr uint64_t kSecondUs = kUsPerSecond;

Hints PriorityFor(uint8_t priority, uint32_t seconds) {
  return {.ttl_s = seconds, .priority = priority, .flags = protocol::kHintTtlOfPriority};
}

class Retention : public testing::Test {
 protected:
  // Time passes, and timers go off that are due.
  void Pass(uint64_t us) {
    const uint64_t until_us = w.clock.NowUs() + us;
    while (w.deadlines.next_us() <= until_us) {
      w.clock.Advance(w.deadlines.next_us() - w.clock.NowUs());
      Deadline due;
      ASSERT_TRUE(w.deadlines.PopDue(w.clock.NowUs(), &due));
      ASSERT_EQ(due.kind, DeadlineKind::kBlockExpiry);
      w.r().lifecycle.Expire(due.id);
    }
    w.clock.Advance(until_us - w.clock.NowUs());
  }
  bool IsThere(uint64_t number) { return w.Find(number) != kBlockNone; }
  uint32_t PriorityOf(uint64_t number) { return w.block(w.Find(number)).priority; }

  BlockWorld w{{}};
};

TEST_F(Retention, APriorityThatEndsIsTheDefaultAgainAndTheBlockStays) {
  w.Put(1, kBlockNone, PriorityFor(80, 10));
  Pass(9 * kSecondUs);
  EXPECT_EQ(PriorityOf(1), 80u);
  Pass(2 * kSecondUs);
  EXPECT_EQ(PriorityOf(1), protocol::kPriorityDefault);
  Pass(1000 * kSecondUs);
  EXPECT_TRUE(IsThere(1));
  EXPECT_EQ(w.deadlines.count(), 0u);
}

// As TensorRT-LLM's TimedBlockTest (evictionPolicyTest.cpp): 80 for 3 against 50 for 8.
TEST_F(Retention, WhoseTimeIsOverFirstIsWorthLessFirst) {
  w.Put(1, kBlockNone, PriorityFor(80, 3));
  w.Put(2, kBlockNone, PriorityFor(50, 8));
  EXPECT_GT(PriorityOf(1), PriorityOf(2));
  Pass(5 * kSecondUs);
  EXPECT_LT(PriorityOf(1), PriorityOf(2));
  Pass(4 * kSecondUs);
  EXPECT_EQ(PriorityOf(1), PriorityOf(2));
}

TEST_F(Retention, APriorityThatIsSaidAnewHasItsNewTimeOrNone) {
  const BlockId id = w.Put(1, kBlockNone, PriorityFor(80, 10));
  Pass(5 * kSecondUs);
  w.r().hints.Apply(id, PriorityFor(90, 10));
  Pass(9 * kSecondUs);
  EXPECT_EQ(PriorityOf(1), 90u);
  w.r().hints.Apply(id, {.priority = 70});
  Pass(100 * kSecondUs);
  EXPECT_EQ(PriorityOf(1), 70u);
}

TEST_F(Retention, HitsRenewATimeToLiveThatCountsFromThem) {
  const BlockId id = w.Put(1, kBlockNone, {.ttl_s = 10, .flags = protocol::kHintTtlFromHits});
  const BlockId other = w.Put(2, kBlockNone, {.ttl_s = 10});
  for (int i = 0; i < 6; ++i) {
    Pass(8 * kSecondUs);
    ASSERT_TRUE(IsThere(1));
    w.r().hints.CountHit(id);
    if (i == 0) w.r().hints.CountHit(other);
  }
  EXPECT_FALSE(IsThere(2));
  Pass(10 * kSecondUs - 1);
  EXPECT_TRUE(IsThere(1));
  Pass(10 * kSecondUs / 8 + 1);
  EXPECT_FALSE(IsThere(1));
  EXPECT_EQ(w.deadlines.count(), 0u);
}

// A hit that moves the end by little leaves the record as it is.
TEST_F(Retention, HitsInARowMoveTheEndOnce) {
  const BlockId id = w.Put(1, kBlockNone, {.ttl_s = 80, .flags = protocol::kHintTtlFromHits});
  Pass(kSecondUs);
  w.r().hints.CountHit(id);
  const uint64_t ends_us = w.block(id).expires_us;
  EXPECT_EQ(ends_us, w.clock.NowUs() + 90 * kSecondUs);
  for (int i = 0; i < 10; ++i) {
    Pass(kSecondUs);
    w.r().hints.CountHit(id);
    EXPECT_EQ(w.block(id).expires_us, ends_us);
  }
  Pass(kSecondUs);
  w.r().hints.CountHit(id);
  EXPECT_GT(w.block(id).expires_us, ends_us);
}

TEST_F(Retention, APriorityAndABlockEndEachInItsTime) {
  const BlockId id = w.Put(1, kBlockNone, PriorityFor(80, 2));
  w.r().hints.Apply(id, {.ttl_s = 5});
  Pass(3 * kSecondUs);
  EXPECT_EQ(PriorityOf(1), protocol::kPriorityDefault);
  Pass(3 * kSecondUs);
  EXPECT_FALSE(IsThere(1));

  const BlockId ends_first = w.Put(2, kBlockNone, PriorityFor(80, 9));
  w.r().hints.Apply(ends_first, {.ttl_s = 5});
  Pass(6 * kSecondUs);
  EXPECT_FALSE(IsThere(2));
  EXPECT_EQ(w.deadlines.count(), 0u);
}

TEST_F(Retention, NothingIsLeftOfABlockThatHasGone) {
  const BlockId id = w.Put(1, kBlockNone, PriorityFor(80, 10));
  w.r().lifecycle.Erase(id, StatusCode::kNotFound);
  EXPECT_EQ(w.deadlines.count(), 0u);
  BlockId next = kBlockNone;
  for (uint64_t number = 2; next != id; ++number) {
    ASSERT_LT(number, 100u) << "its id is not used again";
    next = w.Put(number, kBlockNone, {.ttl_s = 100});
    EXPECT_EQ(w.deadlines.next_us(), w.clock.NowUs() + 100 * kSecondUs);
    if (next != id) w.r().lifecycle.Erase(next, StatusCode::kNotFound);
  }
}

}  // namespace
}  // namespace terrace

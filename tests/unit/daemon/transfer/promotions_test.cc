// Promotions and read-ahead, without a Store.
#include "daemon/transfer/promotions.h"

#include <gmock/gmock.h>

#include "mover_world.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A block below that a lease holds, as whoever asks for it does.
BlockId Asked(MoverWorld& w, uint64_t number, BlockId parent = kBlockNone) {
  const BlockId id = w.PutBelowOnly(number, parent);
  w.r().holds.Hold(id, HoldKind::kLease);
  w.Told();
  return id;
}

TEST(Promotions, BytesAreReadComparedAndThenReadable) {
  MoverWorld w;
  const BlockId id = Asked(w, 1);
  ASSERT_TRUE(w.mover.Promote(id, {.run = w.mover.NewRun()}).ok());
  w.mover.Step();
  ASSERT_EQ(w.tier().transfers.size(), 1u);
  EXPECT_EQ(w.tier().transfers[0].length_bytes, BlockWorld::kBytes);
  w.EndTransfer();
  EXPECT_THAT(w.Told(), IsEmpty()) << "not compared yet";
  w.EndCheck();
  EXPECT_THAT(w.Told(), ElementsAre("ready 1"));
  EXPECT_EQ(w.d().counters.promotions, 1u);
  EXPECT_TRUE(w.mover.is_idle());
}

TEST(Promotions, WhatIsNotWhatWasWrittenIsReadOnceMore) {
  MoverWorld w;
  const BlockId id = Asked(w, 1);
  ASSERT_TRUE(w.mover.Promote(id, {}).ok());
  w.mover.Step();
  w.EndTransfer();
  w.EndCheck(false);
  EXPECT_EQ(w.d().counters.reads_repeated, 1u);
  EXPECT_EQ(w.d().counters.blocks_corrupt, 0u);
  w.mover.Step();
  w.EndTransfer();
  w.EndCheck(true);
  EXPECT_THAT(w.Told(), ElementsAre("ready 1"));
  EXPECT_EQ(w.d().counters.reads_recovered, 1u);
}

TEST(Promotions, ACopyThatIsBadTwiceIsDroppedAndItsPlaceIsNotUsedAgain) {
  MoverWorld w;
  const BlockId id = Asked(w, 1);
  ASSERT_TRUE(w.mover.Promote(id, {}).ok());
  w.mover.Step();
  for (int i = 0; i < 2; ++i) {
    w.EndTransfer();
    w.EndCheck(false);
    w.mover.Step();
  }
  EXPECT_EQ(w.tier().quarantined.size(), 1u);
  EXPECT_EQ(w.d().counters.blocks_corrupt, 1u);
  EXPECT_EQ(w.Find(1), kBlockNone);
}

TEST(Promotions, ATierThatIsOffKeepsItsCopies) {
  MoverWorld w;
  const BlockId id = Asked(w, 1);
  ASSERT_TRUE(w.mover.Promote(id, {}).ok());
  w.mover.Step();
  w.tier().is_healthy = false;
  w.EndTransfer(StatusCode::kIo);
  EXPECT_THAT(w.Told(), ElementsAre("lost 1"));
  EXPECT_EQ(w.Find(1), id);
  EXPECT_EQ(w.block(id).lower[0].state, CopyState::kReady);
  EXPECT_EQ(w.mover.Promote(id, {}).code(), StatusCode::kNotFound) << "nothing can be read";
}

TEST(Promotions, WhatNobodyWantsAnyMoreIsNotBegun) {
  MoverWorld w;
  const BlockId id = Asked(w, 1);
  w.tier().queue_max = 0;
  ASSERT_TRUE(w.mover.Promote(id, {}).ok());
  w.mover.Step();
  EXPECT_TRUE(w.mover.has_work()) << "the tier's queue is full";
  w.r().holds.LetGo(id, HoldKind::kLease);
  w.tier().queue_max = 8;
  w.mover.Step();
  EXPECT_THAT(w.tier().transfers, IsEmpty());
  EXPECT_EQ(w.d().counters.promotions_cancelled, 1u);
  EXPECT_EQ(w.block(id).dram.state, CopyState::kNone);
}

TEST(Promotions, RunsAreReadInTheOrderTheyWereAskedFor) {
  MoverWorld w;
  const BlockId late = Asked(w, 1);
  const BlockId early = Asked(w, 2);
  w.tier().queue_max = 0;
  const uint64_t first_run = w.mover.NewRun();
  const uint64_t second_run = w.mover.NewRun();
  ASSERT_TRUE(w.mover.Promote(late, {.run = second_run}).ok());
  ASSERT_TRUE(w.mover.Promote(early, {.run = first_run}).ok());
  w.tier().queue_max = 8;
  w.mover.Step();
  ASSERT_EQ(w.tier().transfers.size(), 2u);
  w.EndTransfer();
  w.checked_number = 2;
  w.EndCheck();
  EXPECT_THAT(w.Told(), ElementsAre("ready 2"));
}

TEST(Promotions, StepsAreToldAsSoonAsTheyAreCompared) {
  MoverWorld w({.tier_count = 1, .part_count = 4});
  w.tier().can_read_ranges = true;
  const BlockId id = Asked(w, 1);
  ASSERT_GT(w.d().groups[0]->step_count(), 1u);
  ASSERT_TRUE(w.mover.Promote(id, {.run = 1, .is_by_parts = true}).ok());
  w.mover.Step();
  ASSERT_EQ(w.tier().transfers.size(), w.d().groups[0]->step_count());
  w.EndTransfer();
  w.EndCheck();
  EXPECT_THAT(w.Told(), ElementsAre("steps 1"));
  EXPECT_EQ(w.block(id).steps_in, 1u);
  while (!w.tier().transfers.empty()) {
    w.EndTransfer();
    w.EndCheck();
  }
  EXPECT_TRUE(w.block(id).dram.is_readable());
}

// ---- what waits ----

TEST(Promotions, BytesWaitUntilTheTierHasTakenThem) {
  MoverWorld w;
  const BlockId first = Asked(w, 1), second = Asked(w, 2);
  w.tier().queue_max = 1;
  ASSERT_TRUE(w.mover.Promote(first, {.run = w.mover.NewRun()}).ok());
  ASSERT_TRUE(w.mover.Promote(second, {.run = w.mover.NewRun()}).ok());
  EXPECT_EQ(w.mover.promotions().waiting_bytes(0), 2 * BlockWorld::kBytes);
  EXPECT_EQ(w.mover.promotions().WaitingBytesTo(first), BlockWorld::kBytes);
  EXPECT_EQ(w.mover.promotions().WaitingBytesTo(second), 2 * BlockWorld::kBytes);
  w.mover.Step();
  EXPECT_EQ(w.mover.promotions().waiting_bytes(0), BlockWorld::kBytes);
  EXPECT_EQ(w.mover.promotions().WaitingBytesTo(first), 0u) << "on its way";
  EXPECT_EQ(w.mover.promotions().WaitingBytesTo(second), BlockWorld::kBytes);
  w.EndTransfer();
  EXPECT_EQ(w.mover.promotions().waiting_bytes(0), 0u);
}

TEST(Promotions, BytesThatNobodyWantsAnyMoreDoNotWait) {
  MoverWorld w;
  const BlockId id = Asked(w, 1);
  w.tier().queue_max = 0;
  ASSERT_TRUE(w.mover.Promote(id, {}).ok());
  w.mover.Step();
  EXPECT_EQ(w.mover.promotions().waiting_bytes(0), BlockWorld::kBytes);
  w.r().holds.LetGo(id, HoldKind::kLease);
  w.tier().queue_max = 8;
  w.mover.Step();
  EXPECT_EQ(w.mover.promotions().waiting_bytes(0), 0u);
}

TEST(Promotions, OfAReadByPartsTheStepsThatHaveNotBegunWait) {
  MoverWorld w({.tier_count = 1, .part_count = 4});
  w.tier().can_read_ranges = true;
  w.tier().queue_max = 1;
  const BlockId id = Asked(w, 1);
  ASSERT_TRUE(w.mover.Promote(id, {.run = 1, .is_by_parts = true}).ok());
  EXPECT_EQ(w.mover.promotions().waiting_bytes(0), BlockWorld::kBytes);
  w.mover.Step();
  EXPECT_EQ(w.mover.promotions().waiting_bytes(0), BlockWorld::kBytes / 4 * 3);
  w.EndTransfer();
  w.EndCheck(false);  // what has not begun need not
  EXPECT_EQ(w.mover.promotions().waiting_bytes(0), 0u);
}

TEST(Promotions, WhatIsReadAheadWaitsForNobodyUntilItIsAskedFor) {
  MoverWorld w({.tier_count = 1, .read_ahead_blocks = 1});
  const BlockId first = w.PutBelow(1);
  const BlockId second = w.PutBelowOnly(2, first);
  w.tier().queue_max = 0;
  w.mover.ReadAheadOf(first);
  w.mover.Step();
  ASSERT_EQ(w.block(second).dram.state, CopyState::kFilling);
  EXPECT_EQ(w.mover.promotions().waiting_bytes(0), 0u);
  w.r().holds.Hold(second, HoldKind::kLease);
  w.mover.Reprioritize(second, {.run = w.mover.NewRun()});
  EXPECT_EQ(w.mover.promotions().waiting_bytes(0), BlockWorld::kBytes);
  EXPECT_EQ(w.mover.promotions().WaitingBytesTo(second), BlockWorld::kBytes);
  w.tier().queue_max = 8;
  w.mover.Step();
  EXPECT_EQ(w.mover.promotions().waiting_bytes(0), 0u);
}

TEST(ReadAheadQueue, GoesOnBelowWhatWasAskedForIntoFreeRoomOnly) {
  MoverWorld w({.tier_count = 1, .read_ahead_blocks = 2});
  const BlockId first = w.PutBelow(1);
  const BlockId second = w.PutBelowOnly(2, first);
  w.Told();
  w.mover.ReadAheadOf(first);
  w.mover.Step();
  EXPECT_EQ(w.d().counters.read_ahead_blocks, 1u);
  EXPECT_TRUE(w.block(second).is_read_ahead);
  w.EndTransfer();
  w.checked_number = 2;
  w.EndCheck();
  EXPECT_THAT(w.Told(), ElementsAre("ready 2"));
  EXPECT_EQ(w.d().readiness[second], kReadyForNone) << "nobody has asked for it yet";
  EXPECT_TRUE(w.r().dram.TakeReadAhead(second));
  EXPECT_FALSE(w.r().dram.TakeReadAhead(second));
}

TEST(ReadAheadQueue, NeverEvictsWhatWouldBeLost) {
  MoverWorld w({.tier_count = 1, .read_ahead_blocks = 1});
  const BlockId first = w.PutBelow(1);
  const BlockId second = w.PutBelowOnly(2, first);
  for (uint64_t i = 10; i < 10 + BlockWorld::kSlotCount - 1; ++i) w.Put(i);
  w.mover.ReadAheadOf(first);
  w.mover.Step();
  EXPECT_EQ(w.block(second).dram.state, CopyState::kNone);
  EXPECT_EQ(w.d().counters.blocks_evicted, 0u);
  EXPECT_FALSE(w.d().is_short());
}

}  // namespace
}  // namespace terrace

// Writes to the tiers below, and copies given up together, without a Store.
#include "daemon/transfer/write_back.h"

#include <gmock/gmock.h>

#include "mover_world.h"

namespace terrace {
namespace {

using ::testing::IsEmpty;

TEST(WriteBack, WhatIsSealedIsVerifiedAndThenWritten) {
  MoverWorld w;
  const BlockId id = w.Put(1);
  w.mover.OnSealed(id);
  EXPECT_THAT(w.tier().transfers, IsEmpty()) << "what a client says never meets a drive";
  ASSERT_EQ(w.offload.jobs.size(), 1u);
  w.EndCheck();
  ASSERT_EQ(w.tier().transfers.size(), 1u);
  EXPECT_TRUE(w.tier().transfers[0].is_write);
  w.EndTransfer();
  EXPECT_EQ(w.block(id).lower[0].state, CopyState::kReady);
  EXPECT_TRUE(w.mover.is_idle());
}

TEST(WriteBack, AParentIsWrittenBeforeItsChildren) {
  MoverWorld w;
  const BlockId parent = w.PutVerified(1);
  const BlockId child = w.PutVerified(2, parent);
  w.mover.OnSealed(child);
  EXPECT_THAT(w.tier().transfers, IsEmpty());
  w.mover.OnSealed(parent);
  ASSERT_EQ(w.tier().transfers.size(), 1u);
  EXPECT_EQ(w.tier().transfers[0].key, BlockWorld::Key(1));
  w.EndTransfer();
  ASSERT_EQ(w.tier().transfers.size(), 1u) << "its turn has come";
  EXPECT_EQ(w.tier().transfers[0].key, BlockWorld::Key(2));
}

TEST(WriteBack, WhatIsNotToBeStoredNeverIs) {
  MoverWorld w;
  protocol::Hints hints;
  hints.flags = protocol::kHintNoStore;
  const BlockId id = w.Put(1, kBlockNone, hints);
  EXPECT_FALSE(w.mover.Persist(id));
  w.mover.OnSealed(id);
  EXPECT_THAT(w.tier().transfers, IsEmpty());
}

TEST(WriteBack, WhatLeavesDramIsWrittenFirst) {
  MoverWorld w;
  const BlockId id = w.PutVerified(1);
  ASSERT_TRUE(w.mover.TryDemote(id));
  EXPECT_EQ(w.block(id).dram.state, CopyState::kDraining);
  w.mover.Step();
  w.EndTransfer();
  EXPECT_EQ(w.block(id).dram.state, CopyState::kNone);
  EXPECT_EQ(w.block(id).lower[0].state, CopyState::kReady);
  EXPECT_EQ(w.d().counters.demotions, 1u);
  EXPECT_FALSE(w.mover.TryDemote(id)) << "it is below already";
}

TEST(WriteBack, AWriteThatFailsLeavesTheCopyInDram) {
  MoverWorld w;
  const BlockId id = w.PutVerified(1);
  ASSERT_TRUE(w.mover.TryDemote(id));
  w.mover.Step();
  w.EndTransfer(StatusCode::kIo);
  EXPECT_EQ(w.block(id).dram.state, CopyState::kReady);
  EXPECT_EQ(w.block(id).lower[0].state, CopyState::kNone);
  EXPECT_EQ(w.d().counters.demotions_failed, 1u);
  EXPECT_EQ(w.tier().used_count, 0u);
}

TEST(WriteBack, ABlockThatIsErasedUnderAWriteStaysUntilThatEnds) {
  MoverWorld w;
  const BlockId id = w.PutVerified(1);
  w.mover.OnSealed(id);
  w.r().lifecycle.Erase(id, StatusCode::kNotFound);
  EXPECT_EQ(w.block(id).phase, BlockPhase::kErased);
  w.EndTransfer();
  EXPECT_EQ(w.block(id).phase, BlockPhase::kUnused);
  EXPECT_EQ(w.tier().used_count, 0u);
}

// The write ends before the lease does: from then on no transfer would end the draining.
TEST(WriteBack, ABlockThatIsErasedOnItsWayBelowDrainsNoLonger) {
  MoverWorld w;
  const BlockId id = w.PutVerified(1);
  ASSERT_TRUE(w.mover.TryDemote(id));
  w.mover.Step();
  w.r().holds.Hold(id, HoldKind::kLease);
  w.r().lifecycle.Erase(id, StatusCode::kNotFound);
  w.EndTransfer();
  EXPECT_EQ(w.block(id).phase, BlockPhase::kErased);
  EXPECT_EQ(w.block(id).dram.state, CopyState::kReady);
  EXPECT_EQ(w.block(id).job_count, 0u);
  EXPECT_EQ(w.tier().used_count, 0u);
  w.r().holds.LetGo(id, HoldKind::kLease);
  EXPECT_EQ(w.block(id).phase, BlockPhase::kUnused);
}

TEST(WriteBack, AFullTierGivesUpWhatIsLeastWanted) {
  MoverWorld w;
  w.tier().place_count = 1;
  w.PutBelowOnly(1);
  w.clock.Advance(1000);
  const BlockId id = w.PutVerified(2);
  w.mover.OnSealed(id);
  EXPECT_EQ(w.Find(1), kBlockNone);
  EXPECT_EQ(w.tier().transfers.size(), 1u);
}

// As much as in a turn.
bool Step(BatchDrops& drops, uint32_t writes_in_flight = 0) {
  uint32_t budget = BatchDrops::kTurnBudget;
  return drops.Step(0, writes_in_flight, &budget);
}

TEST(BatchDrops, GivesUpWhatTheTierNames) {
  MoverWorld w;
  const BlockId parent = w.PutBelow(1);
  const BlockId child = w.PutBelow(2, parent);
  BatchDrops drops(w.d(), w.evictor);
  w.tier().owners_to_drop = {parent};
  EXPECT_TRUE(drops.Begin(child, 0, 0));
  EXPECT_TRUE(drops.has_work(0));
  EXPECT_TRUE(Step(drops));
  EXPECT_EQ(w.tier().used_count, 0u) << "what hangs from it goes first";
  EXPECT_FALSE(drops.has_work(0));
}

TEST(BatchDrops, ABatchThatDroppedNothingIsNotTriedAgainBeforeATick) {
  MoverWorld w;
  const BlockId id = w.PutBelow(1);
  w.r().holds.Hold(id, HoldKind::kJob);
  BatchDrops drops(w.d(), w.evictor);
  w.tier().owners_to_drop = {id};
  EXPECT_TRUE(drops.Begin(id, 0, 0));
  EXPECT_TRUE(Step(drops));
  EXPECT_FALSE(drops.Begin(id, 0, 0));
  drops.Tick(0);
  EXPECT_TRUE(drops.Begin(id, 0, 0));
}

TEST(BatchDrops, WhatGoesBackWaitsForWritesUntilTheNextTick) {
  MoverWorld w;
  const BlockId id = w.PutBelow(1);
  BatchDrops drops(w.d(), w.evictor);
  drops.Tick(0);
  EXPECT_FALSE(drops.is_giving(0)) << "nobody asks";
  w.tier().owners_to_give = {id};
  drops.Tick(0);
  EXPECT_TRUE(drops.is_giving(0));
  EXPECT_FALSE(Step(drops, 1));
  EXPECT_EQ(w.tier().used_count, 1u);
  EXPECT_TRUE(drops.has_work(0));
  drops.Tick(0);
  EXPECT_TRUE(Step(drops, 1)) << "a drive that hangs keeps nothing from leaving";
  EXPECT_EQ(w.tier().used_count, 0u);
  EXPECT_FALSE(drops.is_giving(0));
}

TEST(BatchDrops, WhatIsHeldIsNamedToBeReadIntoMemory) {
  MoverWorld w;
  const BlockId id = w.PutBelow(1);
  w.r().holds.Hold(id, HoldKind::kJob);
  BatchDrops drops(w.d(), w.evictor);
  w.tier().owners_to_give = {id};
  drops.Tick(0);
  EXPECT_TRUE(Step(drops));
  EXPECT_EQ(drops.TakeHeld(), std::vector<BlockId>{id});
  EXPECT_TRUE(drops.TakeHeld().empty());
}

TEST(TransferJobs, NumbersAreUsedAgainAndATransferIsCountedOnce) {
  MoverWorld w;
  const BlockId id = w.PutBelow(1);
  TransferJobs jobs(w.d(), w.r().holds);
  const uint32_t number = jobs.Take(id, 0, TransferJobs::Direction::kRead);
  EXPECT_TRUE(w.d().IsHeld(id));
  EXPECT_FALSE(jobs.is_idle());
  ASSERT_TRUE(jobs.Begin(number));
  EXPECT_TRUE(jobs.HasBegunAll(number));
  const TransferJobs::Ended ended = jobs.OnTransferDone(w.tier().Take().id, Status::Ok());
  EXPECT_EQ(ended.number, number);
  EXPECT_EQ(jobs.Give(number).verdict, TransferVerdict::kGood);
  EXPECT_TRUE(jobs.is_idle());
  w.r().holds.LetGo(id, HoldKind::kJob);
  EXPECT_EQ(jobs.Take(id, 0, TransferJobs::Direction::kWrite), number);
  w.r().holds.LetGo(id, HoldKind::kJob);
}

TEST(TransferJobs, AFailureSaysWhatItMeansForTheCopy) {
  MoverWorld w;
  const BlockId id = w.PutBelow(1);
  TransferJobs jobs(w.d(), w.r().holds);
  const auto verdict_of = [&](StatusCode code, bool is_healthy) {
    w.tier().is_healthy = is_healthy;
    TransferJob job{.block = id};
    jobs.Fail(job, Status(code));
    EXPECT_TRUE(job.is_failed);
    return job.verdict;
  };
  EXPECT_EQ(verdict_of(StatusCode::kIo, true), TransferVerdict::kBad);
  EXPECT_EQ(verdict_of(StatusCode::kNotFound, true), TransferVerdict::kGone);
  EXPECT_EQ(verdict_of(StatusCode::kIo, false), TransferVerdict::kLater);
}

TEST(Verifier, AWriterWhoLiedLosesTheBlock) {
  MoverWorld w;
  const BlockId id = w.Put(1);
  w.verifier.Verify(id);
  EXPECT_TRUE(w.block(id).is_in_check);
  w.EndCheck(false);
  EXPECT_EQ(w.Find(1), kBlockNone);
  EXPECT_EQ(w.d().counters.blocks_refuted, 1u);
}

TEST(Verifier, AFullPoolMakesItWaitItsTurn) {
  MoverWorld w;
  const BlockId id = w.Put(1);
  w.offload.jobs_max = 0;
  w.verifier.Verify(id);
  EXPECT_TRUE(w.block(id).is_check_due);
  w.offload.jobs_max = 1;
  w.verifier.Step();
  EXPECT_TRUE(w.block(id).is_in_check);
  EXPECT_FALSE(w.block(id).is_check_due);
  w.EndCheck();
  EXPECT_TRUE(w.block(id).is_verified);
}

}  // namespace
}  // namespace terrace

// Copies that are moved within a tier, over a tier and checksums that the test answers.
#include "daemon/transfer/relocations.h"

#include <gtest/gtest.h>

#include "unit/daemon/residency/block_world.h"

namespace terrace {
namespace {

class RelocationsTest : public testing::Test, public BlockWorld {
 protected:
  RelocationsTest()
      : BlockWorld({.tier_count = 1}), evictor_(d(), r()), relocations_(d(), r(), evictor_) {}

  // In the tier alone, persisted, in a place that goes.
  BlockId PutToMove(uint64_t number, BlockId parent = kBlockNone) {
    const BlockId id = PutPersisted(number, parent);
    tier().owners_to_move.push_back(id);
    tier().positions_to_move.insert(ExtentOf(id).position);
    return id;
  }
  BlockId PutPersisted(uint64_t number, BlockId parent = kBlockNone) {
    const BlockId id = PutBelowOnly(number, parent);
    r().lower.EndPersist(id, block(id).commit_id, 0);
    clock.Advance(1);
    return id;
  }
  Extent ExtentOf(BlockId id) {
    return d().group_of(block(id)).extents().at(block(id).lower[0].row)[0];
  }
  void Tick(uint64_t us = 500'000) {
    clock.Advance(us);
    relocations_.Tick();
  }
  ScriptedTier::Transfer EndTransfer(StatusCode code = StatusCode::kOk) {
    const ScriptedTier::Transfer ended = tier().Take();
    relocations_.OnTransferDone(ended.id, Status(code));
    return ended;
  }
  void EndCheck(uint64_t number) {
    ASSERT_FALSE(offload.jobs.empty());
    const ChecksumJob job = std::move(offload.jobs.front());
    offload.jobs.erase(offload.jobs.begin());
    const std::vector<Checksum> roots(job.parts.size(), Checksum{number, 1});
    relocations_.OnChecksumsDone(job.id, roots);
  }
  // Read, compared and written: what is left is that it be durable.
  void Copy(uint64_t number) {
    Tick();
    EXPECT_FALSE(EndTransfer().is_write);
    EndCheck(number);
    const ScriptedTier::Transfer write = EndTransfer();
    EXPECT_TRUE(write.is_write && write.is_moved);
    EXPECT_EQ(write.key, Key(number));
  }

  Evictor evictor_;
  Relocations relocations_;
};

TEST_F(RelocationsTest, ABlockIsReadElsewhereOnceItsCopyThereIsDurable) {
  const BlockId id = PutToMove(1);
  const Extent before = ExtentOf(id);
  Copy(1);
  EXPECT_EQ(ExtentOf(id).position, before.position);
  EXPECT_EQ(tier().used_count, 2u);
  Tick();
  EXPECT_EQ(ExtentOf(id).position, before.position) << "a loss of power would lose both";
  EXPECT_TRUE(tier().transfers.empty()) << "nor is it copied twice";
  tier().moved_state = MovedState::kDurable;
  Tick();
  EXPECT_NE(ExtentOf(id).position, before.position);
  EXPECT_EQ(tier().used_count, 1u) << "the old place is free";
  EXPECT_EQ(block(id).job_count, 0u);
  EXPECT_EQ(d().counters.blocks_relocated, 1u);
  EXPECT_TRUE(r().lower.IsPersisted(id));
  EXPECT_TRUE(tier().amended.empty()) << "its record says what holds";
}

TEST_F(RelocationsTest, WhatARecordDoesNotSayYetIsWrittenAgain) {
  const BlockId id = PutToMove(1);
  Copy(1);
  r().hints.SetPinned(id);
  r().updates.Step();
  const size_t before = tier().amended.size();
  tier().moved_state = MovedState::kDurable;
  Tick();
  r().updates.Step();
  EXPECT_EQ(tier().amended.size(), before + 1);
}

TEST_F(RelocationsTest, BytesThatDoNotVerifyAreNotCopied) {
  const BlockId id = PutToMove(1);
  const Extent before = ExtentOf(id);
  Tick();
  EndTransfer();
  EndCheck(2);
  EXPECT_TRUE(tier().transfers.empty());
  EXPECT_EQ(tier().used_count, 1u);
  EXPECT_EQ(ExtentOf(id).position, before.position);
  EXPECT_EQ(block(id).job_count, 0u);
}

TEST_F(RelocationsTest, ATransferThatFailsAndACopyThatIsLostLeaveItWhereItIs) {
  const BlockId id = PutToMove(1);
  const Extent before = ExtentOf(id);
  Tick();
  EndTransfer(StatusCode::kIo);
  EXPECT_EQ(tier().used_count, 1u);
  Copy(1);
  tier().moved_state = MovedState::kLost;
  tier().owners_to_move.clear();
  Tick();
  EXPECT_EQ(tier().used_count, 1u);
  EXPECT_EQ(ExtentOf(id).position, before.position);
  EXPECT_EQ(block(id).job_count, 0u);
  EXPECT_EQ(d().counters.blocks_relocated, 0u);
}

TEST_F(RelocationsTest, OfABlockThatIsErasedMeanwhileNothingIsLeft) {
  for (const bool is_copied : {false, true}) {
    const BlockId id = PutToMove(1);
    if (is_copied) {
      Copy(1);
    } else {
      Tick();
    }
    tier().owners_to_move.clear();
    r().lifecycle.Erase(id, StatusCode::kNotFound);
    EXPECT_EQ(tier().used_count, 2u) << "it is being moved";
    if (!is_copied) EndTransfer();
    Tick();
    EXPECT_EQ(tier().used_count, 0u);
  }
}

TEST_F(RelocationsTest, WhoReadsItWhereItIsIsWaitedFor) {
  const BlockId id = PutToMove(1);
  const Extent before = ExtentOf(id);
  Copy(1);
  tier().moved_state = MovedState::kDurable;
  r().holds.Hold(id, HoldKind::kJob);
  Tick();
  EXPECT_EQ(ExtentOf(id).position, before.position);
  r().holds.LetGo(id, HoldKind::kJob);
  Tick();
  EXPECT_NE(ExtentOf(id).position, before.position);
}

TEST_F(RelocationsTest, TheLeastWantedMakesRoomWhereverItLies) {
  const BlockId cold = PutPersisted(1);
  const BlockId hot = PutToMove(2);
  tier().place_count = 2;
  Tick();
  EXPECT_EQ(Find(1), kBlockNone);
  ASSERT_EQ(tier().transfers.size(), 1u) << "and the other one moves to where it was";
  EXPECT_EQ(tier().transfers[0].extent.position, ExtentOf(hot).position);
  EXPECT_NE(cold, hot);
}

TEST_F(RelocationsTest, TheLeastWantedItselfIsNotMoved) {
  PutToMove(1);
  PutPersisted(2);
  tier().place_count = 2;
  Tick();
  EXPECT_TRUE(tier().transfers.empty());
  EXPECT_EQ(Find(1), kBlockNone);
  EXPECT_NE(Find(2), kBlockNone);
}

TEST_F(RelocationsTest, AQueueThatIsFullIsTriedAgain) {
  PutToMove(1);
  tier().queue_max = 0;
  Tick();
  EXPECT_TRUE(tier().transfers.empty());
  tier().queue_max = 64;
  offload.jobs_max = 0;
  Tick();
  EndTransfer();
  EXPECT_TRUE(offload.jobs.empty());
  offload.jobs_max = 64;
  tier().queue_max = 0;
  Tick();
  EndCheck(1);
  EXPECT_TRUE(tier().transfers.empty());
  tier().queue_max = 64;
  Tick();
  EXPECT_TRUE(EndTransfer().is_write);
}

TEST_F(RelocationsTest, WhatCannotBeMovedIsGivenAfterAWhile) {
  const BlockId id = PutToMove(1);
  r().hints.SetPinned(id);
  tier().place_count = 1;
  for (uint64_t us = 500'000; us < Relocations::kPatienceUs; us += 500'000) Tick();
  EXPECT_FALSE(tier().has_given_up_moving);
  Tick();
  EXPECT_TRUE(tier().has_given_up_moving);
}

TEST_F(RelocationsTest, NothingBeginsOnceItIsToStop) {
  PutToMove(1);
  relocations_.Stop();
  Tick();
  EXPECT_TRUE(tier().transfers.empty());
  EXPECT_FALSE(relocations_.has_work());
}

}  // namespace
}  // namespace terrace

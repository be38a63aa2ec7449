// Copies in DRAM and below, who may drop them and who holds them, without a Store.
#include <gmock/gmock.h>

#include "block_world.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;

TEST(DramCopies, SlotsAreTakenAllOrNone) {
  BlockWorld w({});
  for (uint64_t i = 1; i <= BlockWorld::kSlotCount; ++i) w.Put(i);
  const BlockId id = w.Reserve(99);
  uint32_t short_class = 7;
  EXPECT_EQ(w.r().dram.TakeSlots(id, 1, {}, &short_class).code(), StatusCode::kNoSpace);
  EXPECT_EQ(short_class, w.d().groups[0]->locals()[0].class_index);
  EXPECT_EQ(w.block(id).dram.state, CopyState::kNone);
  EXPECT_TRUE(w.d().is_short());
}

TEST(DramCopies, ReadAheadMakesNobodyShort) {
  BlockWorld w({});
  for (uint64_t i = 1; i <= BlockWorld::kSlotCount; ++i) w.Put(i);
  const BlockId id = w.Reserve(99);
  uint32_t short_class = 0;
  const FillFrom ahead{.source = FillSource::kTier, .is_ahead = true};
  EXPECT_FALSE(w.r().dram.TakeSlots(id, 1, ahead, &short_class).ok());
  EXPECT_FALSE(w.d().is_short());
}

TEST(DramCopies, APromotionThatFailsLeavesTheCopyBelow) {
  BlockWorld w({.tier_count = 1});
  const BlockId id = w.PutBelowOnly(1);
  w.Told();
  uint32_t short_class = 0;
  ASSERT_TRUE(w.r().dram.TakeSlots(id, 1, {.source = FillSource::kTier}, &short_class).ok());
  EXPECT_EQ(w.block(id).dram.state, CopyState::kFilling);
  w.r().dram.EndFill(id, false);
  EXPECT_THAT(w.Told(), ElementsAre("lost 1"));
  EXPECT_EQ(w.block(id).dram.state, CopyState::kNone);
  EXPECT_EQ(w.Find(1), id);
}

TEST(DramCopies, APromotionThatIsGoodIsVerifiedAndReadyForAll) {
  BlockWorld w({.tier_count = 1});
  const BlockId id = w.PutBelowOnly(1);
  w.Told();
  uint32_t short_class = 0;
  ASSERT_TRUE(w.r().dram.TakeSlots(id, 1, {.source = FillSource::kTier}, &short_class).ok());
  w.r().dram.StepsIn(id, 1);
  w.r().dram.EndFill(id, true);
  EXPECT_THAT(w.Told(), ElementsAre("steps 1", "ready 1"));
  EXPECT_TRUE(w.block(id).is_verified);
  EXPECT_EQ(w.d().readiness[id], kReadyForAll);
  EXPECT_EQ(w.block(id).steps_in, 0u) << "who waits for it again is told of no part before";
  w.r().dram.Doubt(id);
  EXPECT_NE(w.d().readiness[id], kReadyForAll);
}

TEST(DramCopies, SlotsThatAPredecessorServedAreFencedWhenTheyAreFreed) {
  BlockWorld w({});
  const BlockId id = w.Put(1);
  const SlotRef slot = w.d().slots_of(w.block(id))[0];
  w.d().inherited.Add(slot, w.d().slots);
  EXPECT_EQ(w.d().inherited.count(), 1u);
  EXPECT_GE(w.d().inherited.byte_count(), BlockWorld::kBytes);
  EXPECT_EQ(w.d().slots.row(slot).state, SlotState::kFenced);
  w.d().inherited.FreeLast(w.d().slots);
  EXPECT_EQ(w.d().inherited.byte_count(), 0u);
  EXPECT_FALSE(w.d().slots.IsCurrent(slot));
}

TEST(DramCopies, ADrainingCopyIsReadableAndNoCandidate) {
  BlockWorld w({});
  const BlockId id = w.Put(1);
  w.r().dram.SetDraining(id);
  EXPECT_TRUE(w.block(id).dram.is_readable());
  EXPECT_FALSE(w.block(id).is_dram_candidate());
  w.r().dram.ClearDraining(id);
  EXPECT_TRUE(w.block(id).is_dram_candidate());
}

TEST(LowerCopies, ExtentsAreTakenAllOrNone) {
  BlockWorld w({.tier_count = 1});
  const BlockId id = w.Put(1);
  w.tier().place_count = 0;
  uint32_t short_local = 9;
  EXPECT_EQ(w.r().lower.TakeExtents(id, 0, &short_local).code(), StatusCode::kNoSpace);
  EXPECT_EQ(short_local, 0u);
  EXPECT_EQ(w.block(id).lower[0].state, CopyState::kNone);
}

TEST(LowerCopies, AreCountedWhenTheyAreReadyAndWhenTheyPersist) {
  BlockWorld w({.tier_count = 1});
  const BlockId id = w.PutBelow(1);
  EXPECT_EQ(w.d().lower[0].block_count, 1u);
  EXPECT_FALSE(w.r().lower.IsPersisted(id));
  w.Told();
  w.r().lower.EndPersist(id, w.block(id).commit_id + 1, 0);
  EXPECT_FALSE(w.r().lower.IsPersisted(id)) << "of another commit";
  w.r().lower.EndPersist(id, w.block(id).commit_id, 0);
  EXPECT_TRUE(w.r().lower.IsPersisted(id));
  EXPECT_EQ(w.d().lower[0].persisted_block_count, 1u);
  EXPECT_THAT(w.Told(), ElementsAre("persisted 1"));
  w.r().lifecycle.DropLower(id, 0, DropReason::kNotWanted);
  EXPECT_EQ(w.d().lower[0].block_count, 0u);
  EXPECT_EQ(w.d().lower[0].persisted_block_count, 0u);
}

TEST(LowerCopies, WhatAJobHoldsLeavesTheTierWhenItEnds) {
  BlockWorld w({.tier_count = 1});
  const BlockId id = w.PutBelow(1);
  const ErasureMark mark = w.d().MarkErasures();
  w.r().holds.Hold(id, HoldKind::kJob);
  w.r().lifecycle.Erase(id, StatusCode::kNotFound);
  EXPECT_EQ(w.tier().used_count, 1u);
  ErasureMark later = w.d().MarkErasures();
  EXPECT_EQ(later.below, mark.below + 1);
  EXPECT_FALSE(w.d().IsGivenToTier(&later));
  w.r().holds.LetGo(id, HoldKind::kJob);
  EXPECT_EQ(w.tier().used_count, 0u);
  EXPECT_TRUE(w.d().IsGivenToTier(&later));
}

TEST(Candidates, AParentGoesAfterItsChildrenInEachTier) {
  BlockWorld w({.tier_count = 1});
  const BlockId parent = w.PutBelow(1);
  const BlockId child = w.PutBelow(2, parent);
  EXPECT_FALSE(w.block(parent).is_dram_candidate());
  EXPECT_FALSE(w.block(parent).is_lower_candidate(0));
  EXPECT_TRUE(w.block(child).is_dram_candidate());
  w.r().lifecycle.DropDram(child);
  EXPECT_TRUE(w.block(parent).is_dram_candidate());
  EXPECT_FALSE(w.block(parent).is_lower_candidate(0));
}

TEST(Candidates, APinKeepsMemoryButNotBorrowedMemory) {
  BlockWorld w({});
  const BlockId id = w.Put(1);
  w.r().hints.SetPinned(id);
  EXPECT_FALSE(w.r().candidates.MayDropDram(id));
  EXPECT_TRUE(w.r().candidates.MayLeaveDram(id));
  w.r().hints.ClearPinned(id);
  EXPECT_TRUE(w.block(id).is_dram_candidate());
}

TEST(BlockHolds, WhatIsHeldIsNoCandidate) {
  BlockWorld w({});
  const BlockId id = w.Put(1);
  for (const HoldKind kind : {HoldKind::kLease, HoldKind::kJob}) {
    w.r().holds.Hold(id, kind);
    EXPECT_TRUE(w.d().IsHeld(id));
    EXPECT_FALSE(w.block(id).is_dram_candidate());
    w.r().holds.LetGo(id, kind);
    EXPECT_TRUE(w.block(id).is_dram_candidate());
  }
}

TEST(BlockHolds, AFencedBlockIsCountedOnce) {
  BlockWorld w({});
  const BlockId id = w.Put(1);
  w.r().holds.Hold(id, HoldKind::kFence);
  w.r().holds.Hold(id, HoldKind::kFence);
  EXPECT_EQ(w.d().fenced_bytes, BlockWorld::kBytes);
  w.r().holds.LetGo(id, HoldKind::kFence);
  EXPECT_EQ(w.d().fenced_bytes, BlockWorld::kBytes);
  w.r().holds.LetGo(id, HoldKind::kFence);
  EXPECT_EQ(w.d().fenced_bytes, 0u);
}

TEST(BlockHolds, APathIsHeldAndLetGoAsARange) {
  BlockWorld w({});
  const BlockId first = w.Put(1);
  const BlockId second = w.Put(2, first);
  const std::vector<BlockId> path{first, second};
  w.r().holds.HoldPath(path);
  EXPECT_EQ(w.d().index.pin_count(second), 1u);
  EXPECT_FALSE(w.block(second).is_dram_candidate());
  w.r().holds.LetGoPath({.first = first, .block_count = 2});
  EXPECT_EQ(w.d().index.pin_count(first), 0u);
  EXPECT_TRUE(w.block(second).is_dram_candidate());
}

TEST(RecordUpdates, WhatChangesIsWrittenOnceTheCopyIsThere) {
  BlockWorld w({.tier_count = 1});
  const BlockId id = w.Put(1);
  w.r().hints.SetPinned(id);
  EXPECT_FALSE(w.r().updates.has_work()) << "its first record will say so";
  uint32_t short_local = 0;
  ASSERT_TRUE(w.r().lower.TakeExtents(id, 0, &short_local).ok());
  w.r().hints.ClearPinned(id);
  EXPECT_FALSE(w.r().updates.has_work()) << "it is being written";
  w.r().lower.EndFill(id, 0, true);
  ASSERT_TRUE(w.r().updates.has_work());
  w.r().hints.SetPinned(id);
  w.r().updates.Step();
  ASSERT_EQ(w.tier().amended.size(), 1u) << "both changes in one";
  EXPECT_TRUE(w.tier().amended[0].is_pinned);
  EXPECT_FALSE(w.r().updates.has_work());
}

TEST(RecordUpdates, WhatHasGoneIsPassedOver) {
  BlockWorld w({.tier_count = 1});
  const BlockId id = w.PutBelow(1);
  w.r().updates.Note(id);
  w.r().lifecycle.DropLower(id, 0, DropReason::kNotWanted);
  w.r().updates.Step();
  EXPECT_TRUE(w.tier().amended.empty());
}

TEST(BlockHints, ALaterHintChangesPriorityAndTheRowsOfItsSlots) {
  BlockWorld w({});
  const BlockId id = w.Put(1);
  protocol::Hints hints;
  hints.priority = 90;
  hints.flags = protocol::kHintNoStore;
  w.r().hints.Apply(id, hints);
  EXPECT_EQ(w.block(id).priority, 90);
  EXPECT_TRUE(w.block(id).is_no_store);
  const SlotRow& row = w.d().slots.row(w.d().slots_of(w.block(id))[0]);
  EXPECT_EQ(row.block.priority, 90);
  EXPECT_TRUE(row.block.flags & kSlotNoStore);
}

TEST(Evictor, MakesRoomOfWhatWasUsedLongestAgo) {
  BlockWorld w({});
  Evictor evictor(w.d(), w.r());
  for (uint64_t i = 1; i <= BlockWorld::kSlotCount; ++i) {
    w.Put(i);
    w.clock.Advance(1000);
  }
  const BlockId id = w.Reserve(99);
  ASSERT_TRUE(evictor.TakeSlots(id, 1).ok());
  EXPECT_EQ(w.Find(1), kBlockNone);
  EXPECT_NE(w.Find(2), kBlockNone);
}

TEST(Evictor, HasNoRoomWhenEverythingIsHeld) {
  BlockWorld w({});
  Evictor evictor(w.d(), w.r());
  for (uint64_t i = 1; i <= BlockWorld::kSlotCount; ++i) {
    w.r().holds.Hold(w.Put(i), HoldKind::kLease);
  }
  EXPECT_EQ(evictor.TakeSlots(w.Reserve(99), 1).code(), StatusCode::kNoSpace);
}

}  // namespace
}  // namespace terrace

// Slabs come, change and go: in which order, and when not.
#include "tiers/nvme/slab_lifecycle.h"

#include <algorithm>

#include "unit/tiers/nvme/slab_parts_fixture.h"

namespace terrace {
namespace {

using Ops = std::vector<DiskOp>;

class SlabLifecycleTest : public SlabPartsTest {
 protected:
  // Of both disks; then nothing more fits.
  void FillCapacity(const SlabShape& shape) {
    AddOpen(shape, 0);
    AddOpen(shape, 1);
  }
  std::vector<uint32_t> Leaving() {
    std::vector<uint32_t> owners;
    while (lifecycle_.AppendLeaving(SlabWay::kGiven, &owners)) {
    }
    return owners;
  }
  // Answers steps of the near disk, one after the other, until none is left.
  Ops AnswerSteps() {
    Ops ops;
    while (!near_.asked.empty()) {
      ops.push_back(near_.asked.front().op);
      near_.Answer();
    }
    return ops;
  }
};

TEST_F(SlabLifecycleTest, ASlabTakesBlocksOnceItsFileIsThere) {
  reports_.WantRoom();
  ASSERT_TRUE(lifecycle_.MakeRoom(Class(kLarge)));
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kCreate});
  EXPECT_EQ(near_.asked[0].name, "slab-0.terrace");
  EXPECT_EQ(near_.asked[0].length_bytes, kSlabBytes);
  const auto superblock = DecodeSuperblock(near_.bytes[0], secret_);
  ASSERT_TRUE(superblock.ok());
  EXPECT_EQ(superblock->shape, kLarge);
  EXPECT_EQ(classes_.Pick(Class(kLarge)), nullptr);
  EXPECT_FALSE(slabs_.FindPlace(0).has_value());
  EXPECT_EQ(rooms_, 0);
  near_.Answer();
  EXPECT_EQ(classes_.Pick(Class(kLarge)), slabs_.At(0));
  EXPECT_EQ(slabs_[0].uuid, superblock->uuid);
  EXPECT_TRUE(slabs_.FindPlace(0).has_value());
  EXPECT_TRUE(slabs_[0].unsynced.is_sync_due()) << "its superblock";
  EXPECT_EQ(rooms_, 1);
}

TEST_F(SlabLifecycleTest, RoomThatIsComingIsAskedForOnce) {
  EXPECT_TRUE(lifecycle_.MakeRoom(Class(kLarge)));
  EXPECT_TRUE(lifecycle_.MakeRoom(Class(kLarge)));
  EXPECT_EQ(near_.asked.size() + far_.asked.size(), 1u);
}

TEST_F(SlabLifecycleTest, CapacityCountsFilesThatAreLeftAlone) {
  slabs_.LeaveAlone(0, 0, kSlabBytes + 1);
  EXPECT_FALSE(lifecycle_.MakeRoom(Class(kLarge)));
  EXPECT_TRUE(near_.asked.empty() && far_.asked.empty());
}

TEST_F(SlabLifecycleTest, AFileThatCannotBeMadeIsNoSlabAndIsTriedLater) {
  reports_.WantRoom();
  classes_.SetWanting(Class(kLarge), true);
  SwitchOff(1);
  ASSERT_TRUE(lifecycle_.MakeRoom(Class(kLarge)));
  near_.Answer(Status(StatusCode::kIo, "no space", ENOSPC));
  EXPECT_EQ(slabs_.At(0), nullptr);
  EXPECT_EQ(slabs_.file_bytes_total(), 0u);
  EXPECT_FALSE(classes_.IsRoomComing(Class(kLarge)));
  EXPECT_EQ(rooms_, 1) << "who waits may evict";
  lifecycle_.LookAfterAll();
  EXPECT_TRUE(near_.asked.empty()) << "not at once";
  now_us_ += DiskHealth::kCreateBackoffMinUs;
  lifecycle_.LookAfterAll();
  EXPECT_EQ(near_.ops(), Ops{DiskOp::kCreate});
}

TEST_F(SlabLifecycleTest, AStepThatNeverBeganIsBegunAtTheNextLook) {
  ASSERT_TRUE(lifecycle_.MakeRoom(Class(kLarge)));
  near_.Answer(Status(StatusCode::kBusy, "given up"));
  ASSERT_NE(slabs_.At(0), nullptr);
  EXPECT_TRUE(near_.asked.empty());
  lifecycle_.LookAfterAll();
  EXPECT_EQ(near_.ops(), Ops{DiskOp::kCreate});
}

// A loss of power between any two steps leaves the old slab, empty, or the new one.
TEST_F(SlabLifecycleTest, AClearedTableIsOnTheDriveBeforeTheSuperblockSaysSo) {
  FillCapacity(kLarge);
  const SlabUuid old_uuid = slabs_[0].uuid;
  ASSERT_TRUE(lifecycle_.MakeRoom(Class(kSmall)));
  EXPECT_FALSE(slabs_.FindPlace(0).has_value()) << "nobody reads a table that is being cleared";
  uint64_t cleared_bytes = 0;
  const uint64_t table_bytes = Class(kSmall).geometry().table_bytes();
  while (near_.ops() == Ops{DiskOp::kWrite}) {
    EXPECT_EQ(near_.asked[0].offset_bytes, kSlabTableOffsetBytes + cleared_bytes);
    EXPECT_TRUE(std::ranges::all_of(near_.bytes[0], [](std::byte b) { return b == std::byte{}; }));
    cleared_bytes += near_.bytes[0].size();
    near_.Answer();
  }
  EXPECT_EQ(cleared_bytes, table_bytes) << "all of it, and no more";
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kSync});
  near_.Answer();
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kWriteTable});
  EXPECT_EQ(near_.asked[0].offset_bytes, 0u);
  const auto superblock = DecodeSuperblock(near_.bytes[0], secret_);
  ASSERT_TRUE(superblock.ok());
  EXPECT_EQ(superblock->shape, kSmall);
  EXPECT_FALSE(superblock->uuid == old_uuid) << "old entries are no entries of the new slab";
  near_.Answer();
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kSync});
  EXPECT_EQ(classes_.Pick(Class(kSmall)), nullptr) << "the superblock is not on the drive yet";
  near_.Answer();
  EXPECT_EQ(classes_.Pick(Class(kSmall)), slabs_.At(0));
  EXPECT_EQ(slabs_[0].uuid, superblock->uuid);
}

TEST_F(SlabLifecycleTest, AReshapeWhoseSyncFailsClearsAllOfTheTableAgain) {
  FillCapacity(kLarge);
  ASSERT_TRUE(lifecycle_.MakeRoom(Class(kSmall)));
  while (near_.ops() == Ops{DiskOp::kWrite}) near_.Answer();
  near_.Answer(kDriveFails);
  EXPECT_TRUE(near_.asked.empty()) << "not at once";
  lifecycle_.LookAfterAll();
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kWrite});
  EXPECT_EQ(near_.asked[0].offset_bytes, kSlabTableOffsetBytes);
  EXPECT_EQ(AnswerSteps(), (Ops{DiskOp::kWrite, DiskOp::kWrite, DiskOp::kSync, DiskOp::kWriteTable,
                                DiskOp::kSync}));
  EXPECT_EQ(classes_.Pick(Class(kSmall)), slabs_.At(0));
}

TEST_F(SlabLifecycleTest, NoSlabTakesAnotherShapeWhileAnythingOfItIsInUse) {
  FillCapacity(kLarge);
  SwitchOff(1);
  NvmeSlab& slab = slabs_[0];
  slab.slots.SetState(3, SlabSlotState::kQuarantined);
  EXPECT_FALSE(lifecycle_.MakeRoom(Class(kSmall))) << "its entry would be cleared";
  slab.slots.PushFree(3);
  slab.unsynced.Require();
  slab.unsynced.Begin(slab.slots, now_us_, true);
  EXPECT_FALSE(lifecycle_.MakeRoom(Class(kSmall))) << "a sync is under way";
  slab.unsynced.End(slab.slots);
  slab.unsynced.ForgetCovered();
  const uint32_t slot = StoreBlock(slab, 7);
  EXPECT_FALSE(lifecycle_.MakeRoom(Class(kSmall))) << "somebody has a slot";
  near_.Answer();
  FreeBlock(slab, slot);
  EXPECT_FALSE(lifecycle_.MakeRoom(Class(kSmall))) << "the table may name a block";
  near_.Answer();
  EXPECT_FALSE(lifecycle_.MakeRoom(Class(kSmall))) << "the drive may";
  EndErasure(slab, slot);
  EXPECT_TRUE(lifecycle_.MakeRoom(Class(kSmall)));
  EXPECT_EQ(slab.phase, SlabPhase::kReshaping);
}

TEST_F(SlabLifecycleTest, ASlabThatDrainsTakesAnotherShapeOnceItIsEmpty) {
  FillCapacity(kLarge);
  const uint32_t slot = StoreBlock(slabs_[0], 7);
  StoreBlock(slabs_[1], 8);
  near_.Answer();
  ASSERT_EQ(lifecycle_.DrainFor(Class(kSmall)), slabs_.At(0));
  EXPECT_EQ(lifecycle_.DrainFor(Class(kSmall)), slabs_.At(0)) << "one at a time";
  EXPECT_FALSE(lifecycle_.MakeRoom(Class(kSmall))) << "who has a slot may keep it";
  FreeBlock(slabs_[0], slot);
  EXPECT_TRUE(lifecycle_.MakeRoom(Class(kSmall))) << "nobody has";
  EXPECT_FALSE(lifecycle_.MakeRoom(Class({64 * kKiB, 1}))) << "it is for others";
  near_.Answer();
  EXPECT_EQ(slabs_[0].phase, SlabPhase::kDraining) << "the drive may still name the block";
  EndErasure(slabs_[0], slot);
  lifecycle_.LookAfterAll();
  EXPECT_EQ(slabs_[0].phase, SlabPhase::kReshaping);
  AnswerSteps();
  EXPECT_EQ(classes_.Pick(Class(kSmall)), slabs_.At(0));
}

TEST_F(SlabLifecycleTest, ASlabThatDoesNotDrainTakesBlocksAgain) {
  FillCapacity(kLarge);
  StoreBlock(slabs_[0], 7);
  StoreBlock(slabs_[1], 8);
  near_.Answer();
  ASSERT_EQ(lifecycle_.DrainFor(Class(kSmall)), slabs_.At(0));
  NvmeSlab& slab = slabs_[0];
  now_us_ += kDrainUs;
  lifecycle_.LookAfterAll();
  EXPECT_EQ(slab.phase, SlabPhase::kDraining);
  ++now_us_;
  lifecycle_.LookAfterAll();
  EXPECT_EQ(slab.phase, SlabPhase::kActive) << "long enough";
}

TEST_F(SlabLifecycleTest, ASlabWhoseFileIsGoneIsGivenUpAndGoesWithItsLastOwner) {
  NvmeSlab& slab = AddOpen(kLarge);
  const uint32_t slot = StoreBlock(slab, 7);
  near_.Answer();
  lifecycle_.GiveUp(slab);
  EXPECT_EQ(slab.phase, SlabPhase::kRetiring);
  EXPECT_EQ(slab.slots[slot].state, SlabSlotState::kLost);
  EXPECT_EQ(slabs_.file_bytes_total(), 0u) << "another slab may come";
  EXPECT_EQ(classes_.Pick(Class(kLarge)), nullptr);
  entries_.Write();
  lifecycle_.GiveUp(slab);
  EXPECT_EQ(slabs_.file_bytes_total(), 0u) << "counted once";
  near_.Answer();
  lifecycle_.LookAfterAll();
  EXPECT_TRUE(near_.asked.empty()) << "somebody still has a slot";
  slab.slots.EndGeneration(slot);
  slab.slots.SetState(slot, SlabSlotState::kQuarantined);
  lifecycle_.LookAfterAll();
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kRemove});
  erasures_.BeginInherited(slab);
  near_.Answer();
  EXPECT_EQ(slabs_.At(0), nullptr);
  EXPECT_EQ(open_erasures(), 0u) << "nobody finds what was in it";
}

// What is called persisted there is not any more, and the others are looked at.
TEST_F(SlabLifecycleTest, OwnersOfASlabWhoseFileIsGoneLeaveAndTheDisksOthersAreSynced) {
  NvmeSlab& slab = AddOpen(kLarge);
  NvmeSlab& other = AddOpen(kLarge);
  StoreBlock(slab, 7);
  near_.Answer();
  EXPECT_FALSE(other.unsynced.is_sync_due());
  lifecycle_.GiveUp(slab);
  EXPECT_TRUE(other.unsynced.is_sync_due());
  std::vector<uint32_t> owners;
  EXPECT_FALSE(lifecycle_.AppendLeaving(SlabWay::kGiven, &owners));
  EXPECT_EQ(owners, std::vector<uint32_t>{7});
}

TEST_F(SlabLifecycleTest, AReshapedSlabWhoseFileIsGoneGoes) {
  FillCapacity(kLarge);
  ASSERT_TRUE(lifecycle_.MakeRoom(Class(kSmall)));
  while (near_.ops() == Ops{DiskOp::kWrite}) near_.Answer();
  near_.Answer(kFileIsGone);
  EXPECT_EQ(slabs_[0].phase, SlabPhase::kRemoving);
  EXPECT_FALSE(classes_.IsRoomComing(Class(kSmall)));
  lifecycle_.LookAfterAll();
  EXPECT_EQ(AnswerSteps(), Ops{DiskOp::kRemove});
  EXPECT_EQ(slabs_.At(0), nullptr);
}

TEST_F(SlabLifecycleTest, ASectorThatCouldNotBeReadIsClearedBeforeItsSlotsAreFree) {
  NvmeSlab& slab = AddOpen(kLarge);
  for (uint32_t slot = 0; slot < slab.slots.count(); ++slot) {
    slab.slots.SetState(slot, SlabSlotState::kQuarantined);
  }
  slab.unread_sectors = {0};
  slab.clear_attempts_left = 2;
  lifecycle_.LookAfterAll();
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kWriteTable});
  EXPECT_EQ(near_.asked[0].offset_bytes, kSlabTableOffsetBytes);
  EXPECT_EQ(near_.bytes[0], std::vector<std::byte>(kSlabSectorBytes));
  near_.Answer(kDriveFails);
  EXPECT_EQ(slab.slots.free_count(), 0u);
  lifecycle_.LookAfterAll();
  near_.Answer();
  EXPECT_EQ(slab.slots.free_count(), slab.slots.count());
  EXPECT_TRUE(slab.unread_sectors.empty());
  EXPECT_TRUE(slab.unsynced.is_sync_due());
}

TEST_F(SlabLifecycleTest, ASectorThatCannotBeClearedIsGivenUp) {
  NvmeSlab& slab = AddOpen(kLarge);
  slab.slots.SetState(2, SlabSlotState::kQuarantined);
  slab.unread_sectors = {0};
  slab.clear_attempts_left = 1;
  lifecycle_.LookAfterAll();
  near_.Answer(kDriveFails);
  lifecycle_.LookAfterAll();
  EXPECT_TRUE(near_.asked.empty());
  EXPECT_EQ(slab.slots[2].state, SlabSlotState::kQuarantined);
}

TEST_F(SlabLifecycleTest, ASuperblockThatMayBeLostIsWrittenAsItWas) {
  NvmeSlab& slab = AddOpen(kLarge);
  slab.is_superblock_due = true;
  lifecycle_.LookAfterAll();
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kWriteTable});
  const auto superblock = DecodeSuperblock(near_.bytes[0], secret_);
  ASSERT_TRUE(superblock.ok());
  EXPECT_EQ(superblock->uuid, slab.uuid) << "its entries are still its entries";
  near_.Answer();
  EXPECT_FALSE(slab.is_superblock_due);
  EXPECT_TRUE(slab.unsynced.is_sync_due());
}

TEST_F(SlabLifecycleTest, NoStepIsTakenOnADiskThatIsOff) {
  NvmeSlab& slab = AddOpen(kLarge);
  slab.is_superblock_due = true;
  SwitchOff(0);
  lifecycle_.LookAfterAll();
  EXPECT_TRUE(near_.asked.empty());
  disks_.OnProbe(0, Status::Ok());
  lifecycle_.LookAfterAll();
  EXPECT_EQ(near_.ops(), Ops{DiskOp::kWriteTable});
}

TEST_F(SlabLifecycleTest, ASlotIsFreedOnceAndNotBeforeTheTableSaysSo) {
  NvmeSlab& slab = AddOpen(kLarge);
  const uint32_t slot = StoreBlock(slab, 7);
  EXPECT_DEATH(lifecycle_.FreeSlot(slab, slot), "before it is");
  EXPECT_DEATH(lifecycle_.FreeSlot(slab, slot + 1), "freed once");
}

TEST_F(SlabLifecycleTest, ASlabIsWholeSectors) {
  EXPECT_DEATH(SlabLifecycle({.slab_bytes = kSlabSectorBytes + 1},
                             {disks_, slabs_, classes_, entries_, erasures_, reports_, shares_}),
               "whole sectors");
}

// ---- shares ----

TEST_F(SlabLifecycleTest, ASlabGoesBackToWhoAsksWithinItsGuarantee) {
  NvmeSlab& old = AddOpen(kLarge, 0);
  NvmeSlab& young = AddOpen(kLarge, 1);
  StoreBlock(old, 6);
  const uint32_t slot = StoreBlock(young, 7);
  far_.Answer();
  lifecycle_.LookAfterAll();
  EXPECT_EQ(young.phase, SlabPhase::kActive) << "nobody asks";
  shares_.Ask(1, kSlabBytes, now_us_);
  lifecycle_.LookAfterAll();
  EXPECT_EQ(young.phase, SlabPhase::kRetiring) << "of two that are almost empty the younger";
  EXPECT_EQ(old.phase, SlabPhase::kActive);
  EXPECT_EQ(Leaving(), std::vector<uint32_t>{7});
  EXPECT_EQ(shares_.stats(0, now_us_).leaving_bytes, kSlabBytes);
  lifecycle_.LookAfterAll();
  EXPECT_EQ(old.phase, SlabPhase::kActive) << "one is enough";
  EXPECT_FALSE(lifecycle_.MakeRoom(Class(kSmall))) << "it is kept for who asked";

  FreeBlock(young, slot);
  far_.Answer();
  EXPECT_TRUE(Leaving().empty());
  EXPECT_TRUE(far_.asked.empty()) << "a successor might find the block";
  EndErasure(young, slot);
  lifecycle_.LookAfterAll();
  ASSERT_EQ(far_.ops(), Ops{DiskOp::kRemove});
  EXPECT_FALSE(shares_.MayTake(1, kSlabBytes, now_us_));
  far_.Answer();
  EXPECT_EQ(slabs_.At(1), nullptr);
  EXPECT_TRUE(shares_.MayTake(1, kSlabBytes, now_us_));
  EXPECT_EQ(shares_.stats(0, now_us_).held_bytes, kSlabBytes);
  EXPECT_EQ(shares_.stats(0, now_us_).leaving_bytes, 0u);
}

// Nobody waits for that room: what lies there is kept elsewhere.
TEST_F(SlabLifecycleTest, WhatGoesForGoodIsMovedUntilThatIsGivenUp) {
  AddOpen(kLarge, 0);
  NvmeSlab& young = AddOpen(kLarge, 1);
  StoreBlock(slabs_[0], 6);
  StoreBlock(young, 7);
  shares_.Set(kSlabBytes, {{kSlabBytes, kSlabBytes}, {0, kSlabBytes}});
  lifecycle_.LookAfterAll();
  ASSERT_EQ(young.phase, SlabPhase::kRetiring);
  EXPECT_TRUE(Leaving().empty());
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<uint32_t> owners;
    EXPECT_FALSE(lifecycle_.AppendLeaving(SlabWay::kMoved, &owners));
    EXPECT_EQ(owners, std::vector<uint32_t>{7});
  }
  lifecycle_.GiveUpMoving();
  EXPECT_EQ(Leaving(), std::vector<uint32_t>{7});
  std::vector<uint32_t> owners;
  EXPECT_FALSE(lifecycle_.AppendLeaving(SlabWay::kMoved, &owners));
  EXPECT_TRUE(owners.empty());
}

TEST_F(SlabLifecycleTest, OwnersOfAllSlabsThatAreMovedAreNamedInOnePass) {
  for (uint32_t i = 0; i < 4; ++i) AddOpen(kLarge, i % 2);
  for (uint32_t i = 0; i < 4; ++i) StoreBlock(*classes_.Pick(Class(kLarge)), i);
  shares_.Set(kSlabBytes, {{kSlabBytes, kSlabBytes}, {0, kSlabBytes}});
  for (int i = 0; i < 3; ++i) lifecycle_.LookAfterAll();
  std::vector<uint32_t> owners;
  EXPECT_TRUE(lifecycle_.AppendLeaving(SlabWay::kMoved, &owners));
  EXPECT_TRUE(lifecycle_.AppendLeaving(SlabWay::kMoved, &owners));
  EXPECT_FALSE(lifecycle_.AppendLeaving(SlabWay::kMoved, &owners));
  EXPECT_EQ(owners.size(), 3u);
}

TEST_F(SlabLifecycleTest, OwnersOfASlabThatGoesAreNamedSomeAtATime) {
  NvmeSlab& slab = AddOpen(kSmall, 0);
  constexpr uint32_t kCount = SlabLifecycle::kLeavingSlotsMax + 5;
  ASSERT_GE(slab.slots.count(), kCount);
  for (uint32_t owner = 0; owner < kCount; ++owner) StoreBlock(slab, owner);
  shares_.SetHeld(1, kSlabBytes);
  shares_.Ask(1, kSlabBytes, now_us_);
  shares_.Set(2 * kSlabBytes, {{0, 2 * kSlabBytes}, {2 * kSlabBytes, 2 * kSlabBytes}});
  lifecycle_.LookAfterAll();
  ASSERT_EQ(slab.phase, SlabPhase::kRetiring);
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<uint32_t> owners;
    bool has_more = true;
    for (uint32_t calls = 0; has_more; ++calls) {
      const size_t before = owners.size();
      has_more = lifecycle_.AppendLeaving(SlabWay::kGiven, &owners);
      ASSERT_LE(owners.size() - before, SlabLifecycle::kLeavingSlotsMax);
      ASSERT_LE(calls, slab.slots.count() / SlabLifecycle::kLeavingSlotsMax);
    }
    EXPECT_EQ(owners.size(), kCount) << "all of them, once, and again in the next pass";
  }
}

TEST_F(SlabLifecycleTest, TheEmptierSlabIsGiven) {
  NvmeSlab& emptier = AddOpen(kLarge, 0);
  NvmeSlab& fuller = AddOpen(kLarge, 1);
  for (uint32_t owner = 0; owner < 4; ++owner) StoreBlock(fuller, owner);
  shares_.Ask(1, kSlabBytes, now_us_);
  lifecycle_.LookAfterAll();
  EXPECT_EQ(emptier.phase, SlabPhase::kRemoving);
  EXPECT_EQ(fuller.phase, SlabPhase::kActive);
}

TEST_F(SlabLifecycleTest, OfSlabsAlikeOneOfTheDiskThatKeepsMostIsGiven) {
  constexpr uint64_t kAll = 4 * kSlabBytes;
  shares_.Set(kAll, {{0, kAll}, {0, kAll}});
  for (const uint32_t disk : {0, 0, 0, 1}) AddOpen(kLarge, disk);
  shares_.Set(2 * kSlabBytes, {{0, 2 * kSlabBytes}, {0, 2 * kSlabBytes}});
  lifecycle_.LookAfterAll();
  lifecycle_.LookAfterAll();
  lifecycle_.LookAfterAll();
  EXPECT_EQ(near_.asked.size(), 2u);
  EXPECT_TRUE(far_.asked.empty()) << "it has one, and keeps it";
  EXPECT_EQ(shares_.stats(0, now_us_).above_bytes, 2 * kSlabBytes) << "they are still there";
}

TEST_F(SlabLifecycleTest, WhoIsWithinItsGuaranteeIsToldThatRoomComes) {
  shares_.SetHeld(1, 2 * kSlabBytes);
  EXPECT_TRUE(lifecycle_.MakeRoom(Class(kLarge)));
  EXPECT_TRUE(near_.asked.empty() && far_.asked.empty());
  EXPECT_TRUE(shares_.IsToGive(1, now_us_));
  classes_.SetWanting(Class(kLarge), true);
  shares_.SetHeld(1, kSlabBytes);
  lifecycle_.LookAfterAll();
  EXPECT_EQ(near_.ops(), Ops{DiskOp::kCreate});
}

TEST_F(SlabLifecycleTest, WhoWaitsForRoomInVainIsToldThatThereIsNone) {
  shares_.SetHeld(1, 2 * kSlabBytes);
  const uint64_t end_us = now_us_ + TierShares::kPatienceUs;
  for (; now_us_ < end_us; now_us_ += 1'000'000) {
    ASSERT_TRUE(lifecycle_.MakeRoom(Class(kLarge)));
  }
  EXPECT_FALSE(lifecycle_.MakeRoom(Class(kLarge)));
}

TEST_F(SlabLifecycleTest, WhoHasNoSlabThatCouldGoIsExcused) {
  slabs_.LeaveAlone(0, 0, 2 * kSlabBytes);
  shares_.Ask(1, kSlabBytes, now_us_);
  ASSERT_TRUE(shares_.IsToGive(0, now_us_));
  lifecycle_.LookAfterAll();
  EXPECT_FALSE(shares_.IsToGive(0, now_us_));
}

TEST_F(SlabLifecycleTest, ALimitThatWasLoweredIsReachedSlabBySlab) {
  AddOpen(kLarge, 0);
  AddOpen(kLarge, 1);
  shares_.Set(2 * kSlabBytes, {{kSlabBytes, kSlabBytes}, {kSlabBytes, 2 * kSlabBytes}});
  lifecycle_.LookAfterAll();
  EXPECT_EQ(far_.ops(), Ops{DiskOp::kRemove});
  far_.Answer();
  lifecycle_.LookAfterAll();
  EXPECT_TRUE(near_.asked.empty()) << "it has what it may";
}

}  // namespace
}  // namespace terrace

// What a sync covers, and what is believed after one that failed.
#include "tiers/nvme/slab_syncs.h"

#include "unit/tiers/nvme/slab_parts_fixture.h"

namespace terrace {
namespace {

using Ops = std::vector<DiskOp>;
constexpr uint64_t kIntervalUs = 1000;

class SlabSyncsTest : public SlabPartsTest {
 protected:
  void OnRequestDone(const NvmeRequest& request, Status status) override {
    if (request.kind == NvmeRequestKind::kSync) syncs_.OnSyncDone(request, status);
  }
  // The interval has passed.
  void Sync() {
    now_us_ += kIntervalUs;
    syncs_.BeginDue();
  }
  void SyncWell() {
    Sync();
    near_.AnswerAt(near_.asked.size() - 1);
  }

  // A block that was copied here from another slab.
  uint32_t MoveIn(uint32_t owner) {
    const uint32_t slot = classes_.Take(slab_);
    slab_.slots.SetOwner(slot, owner);
    BlockRecord record;
    record.key = {owner, 1};
    record.part_checksums = checksum_;
    entries_.Hold(slab_, slot, ExtentOf(slab_, slot), record);
    slab_.moved_in.Add(slab_.slots, slot);
    slab_.unsynced.Require();
    return slot;
  }

  SlabSyncs syncs_{kIntervalUs, {disks_, slabs_, entries_, erasures_, lifecycle_, reports_}};
  NvmeSlab& slab_ = AddOpen(kLarge);
};

TEST_F(SlabSyncsTest, OnlyWhatWasWrittenIsSyncedOnceAnIntervalAndOneAtATime) {
  Sync();
  EXPECT_TRUE(near_.asked.empty()) << "nothing was written";
  slab_.unsynced.Require();
  syncs_.BeginDue();
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kSync});
  EXPECT_EQ(near_.asked[0].file, slab_.file);
  slab_.unsynced.Require();
  Sync();
  EXPECT_EQ(near_.asked.size(), 1u) << "one is under way";
  near_.Answer();
  syncs_.BeginDue();
  EXPECT_EQ(near_.asked.size(), 1u);
  near_.Answer();
  slab_.unsynced.Require();
  now_us_ += kIntervalUs - 1;
  syncs_.BeginDue();
  EXPECT_TRUE(near_.asked.empty()) << "too early";
  ++now_us_;
  syncs_.BeginDue();
  EXPECT_EQ(near_.asked.size(), 1u);
}

TEST_F(SlabSyncsTest, AnErasureEndsWithASyncThatBeganBehindItsEntry) {
  const uint32_t slot = StoreBlock(slab_, 7);
  near_.Answer();
  FreeBlock(slab_, slot);
  ASSERT_EQ(open_erasures(), 1u);
  Sync();
  ASSERT_EQ(near_.ops(), (Ops{DiskOp::kWriteTable, DiskOp::kSync}));
  near_.Answer();  // the entry arrives while a sync is under way that may not cover it
  near_.Answer();
  EXPECT_EQ(open_erasures(), 1u);
  Sync();
  EXPECT_EQ(open_erasures(), 1u) << "begun is not done";
  near_.Answer();
  EXPECT_EQ(open_erasures(), 0u);
}

TEST_F(SlabSyncsTest, AnEntryThatIsWrittenAgainMeanwhileIsNotCovered) {
  const uint32_t slot = StoreBlock(slab_, 7);
  near_.Answer();
  FreeBlock(slab_, slot);
  near_.Answer();
  Sync();
  entries_.MarkDirty(slab_, slot);
  entries_.Write();
  near_.Answer();  // the sync
  EXPECT_EQ(open_erasures(), 1u) << "what is being written may be torn";
  near_.Answer();
  SyncWell();
  EXPECT_EQ(open_erasures(), 0u);
}

TEST_F(SlabSyncsTest, AfterAFailedSyncNothingSinceTheLastGoodOneIsBelieved) {
  const uint32_t good = StoreBlock(slab_, 1);
  near_.Answer();
  SyncWell();
  const uint32_t covered = StoreBlock(slab_, 2);
  near_.Answer();
  Sync();
  const uint32_t since = StoreBlock(slab_, 3);
  near_.AnswerAt(1);
  near_.Answer(kDriveFails);
  EXPECT_EQ(slab_.slots[good].state, SlabSlotState::kUsed);
  EXPECT_EQ(slab_.slots[covered].state, SlabSlotState::kLost);
  EXPECT_EQ(slab_.slots[since].state, SlabSlotState::kLost);
  entries_.Write();
  ASSERT_EQ(near_.asked.size(), 3u) << "two entries, and the superblock";
  size_t quarantined = 0;
  for (size_t i = 0; i < near_.asked.size(); ++i) {
    if (near_.asked[i].offset_bytes == 0) continue;
    const uint32_t slot =
        near_.asked[i].offset_bytes == slab_.geometry.EntryOffsetBytes(covered) ? covered : since;
    quarantined +=
        EntryOf(slab_, slot, near_.bytes[i]).state == SlabEntryState::kQuarantined ? 1 : 0;
  }
  EXPECT_EQ(quarantined, 2u);
}

TEST_F(SlabSyncsTest, AFailedSyncEndsNoErasureAndTheEntryIsWrittenAnew) {
  const uint32_t slot = StoreBlock(slab_, 1);
  near_.Answer();
  FreeBlock(slab_, slot);
  near_.Answer();
  Sync();
  near_.Answer(kDriveFails);
  EXPECT_EQ(open_erasures(), 1u);
  EXPECT_TRUE(slab_.slots[slot].has(kEntryInFlight | kEntryDirty));
  while (!near_.asked.empty()) near_.Answer();
  SyncWell();
  EXPECT_EQ(open_erasures(), 0u);
}

TEST_F(SlabSyncsTest, AnEntryOnItsWayWhenASyncFailsIsWrittenOnceMore) {
  const uint32_t slot = StoreBlock(slab_, 1);
  slab_.unsynced.Require();
  Sync();
  near_.AnswerAt(1, kDriveFails);
  EXPECT_EQ(slab_.slots[slot].state, SlabSlotState::kUsed) << "it comes behind the failure";
  EXPECT_TRUE(slab_.slots[slot].has(kEntryDirty));
}

TEST_F(SlabSyncsTest, ASyncThatNeverBeganCoversNothingAndLosesNothing) {
  const uint32_t slot = StoreBlock(slab_, 1);
  near_.Answer();
  FreeBlock(slab_, slot);
  near_.Answer();
  Sync();
  near_.Answer(Status(StatusCode::kBusy, "given up"));
  EXPECT_EQ(open_erasures(), 1u);
  EXPECT_FALSE(slab_.is_superblock_due);
  SyncWell();
  EXPECT_EQ(open_erasures(), 0u);
}

TEST_F(SlabSyncsTest, OfAFileThatIsGoneNobodyFindsAnythingAgain) {
  const uint32_t slot = StoreBlock(slab_, 1);
  const uint32_t kept = StoreBlock(slab_, 2);
  near_.Answer();
  near_.Answer();
  FreeBlock(slab_, slot);
  near_.Answer();
  erasures_.BeginInherited(slab_);
  Sync();
  near_.Answer(kFileIsGone);
  EXPECT_TRUE(slab_.is_gone);
  EXPECT_EQ(open_erasures(), 0u);
  EXPECT_EQ(slab_.slots[kept].state, SlabSlotState::kLost);
}

TEST_F(SlabSyncsTest, WhatWasMovedInIsNamedOnceASyncHasCoveredIt) {
  const uint32_t slot = MoveIn(1);
  const uint32_t freed = MoveIn(2);
  Sync();
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kSync}) << "its entry is not written before";
  const uint32_t late = MoveIn(3);
  slab_.slots.EndGeneration(freed);
  classes_.Free(slab_, freed);
  near_.Answer();
  EXPECT_EQ(slab_.slots[slot].state, SlabSlotState::kUsed);
  EXPECT_EQ(slab_.slots[late].state, SlabSlotState::kTaken);
  EXPECT_EQ(slab_.slots[freed].state, SlabSlotState::kFree);
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kWriteTable});
  EXPECT_EQ(EntryOf(slab_, slot, near_.bytes[0]).key.high, 1u);
  near_.Answer();
  SyncWell();
  EXPECT_EQ(slab_.slots[late].state, SlabSlotState::kUsed);
}

TEST_F(SlabSyncsTest, WhatWasMovedInIsLostWithASyncThatFailsAndWaitsForOneThatWasNeverBegun) {
  const uint32_t slot = MoveIn(1);
  Sync();
  near_.Answer(Status(StatusCode::kBusy, "given up"));
  EXPECT_EQ(slab_.slots[slot].state, SlabSlotState::kTaken);
  Sync();
  const uint32_t late = MoveIn(2);
  near_.Answer(kDriveFails);
  EXPECT_EQ(slab_.slots[slot].state, SlabSlotState::kLost);
  EXPECT_EQ(slab_.slots[late].state, SlabSlotState::kLost);
}

TEST_F(SlabSyncsTest, SlabsThatNothingIsWrittenToAreSyncedOnceFilesOfTheirDiskAreGone) {
  near_.removed_count = 1;
  Sync();
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kSync});
  near_.Answer(kFileIsGone);
  EXPECT_TRUE(slab_.is_gone);
}

TEST_F(SlabSyncsTest, WhatTheLastDaemonErasedEndsWithTheFirstWholeSync) {
  erasures_.BeginInherited(slab_);
  slab_.unsynced.Require();
  slab_.unread_sectors = {0};
  slab_.clear_attempts_left = 1;
  Sync();
  near_.Answer();  // the sync, as of before the sector was cleared
  EXPECT_EQ(open_erasures(), 1u) << "a sector is still to be cleared";
  ASSERT_EQ(near_.ops(), Ops{DiskOp::kWriteTable});
  near_.Answer();
  SyncWell();
  EXPECT_EQ(open_erasures(), 0u);
}

TEST_F(SlabSyncsTest, AFailedFirstSyncPutsEveryEntryOfTheSlabInDoubt) {
  const uint32_t slot = StoreBlock(slab_, 7);
  near_.Answer();
  SyncWell();
  erasures_.BeginInherited(slab_);
  slab_.unsynced.Require();
  Sync();
  near_.Answer(kDriveFails);
  EXPECT_EQ(doubted_, std::vector<uint32_t>{7}) << "its owner alone knows what to say";
  EXPECT_EQ(slab_.slots[slot].state, SlabSlotState::kUsed);
  EXPECT_EQ(slab_.slots.doubted_count(), slab_.slots.count());
  while (!near_.asked.empty()) near_.Answer();  // free slots' entries and the superblock
  EXPECT_EQ(slab_.slots.doubted_count(), 1u);
  SyncWell();
  EXPECT_EQ(open_erasures(), 1u) << "the owner has not answered";
  BlockRecord record;
  record.part_checksums = checksum_;
  entries_.Hold(slab_, slot, ExtentOf(slab_, slot), record);
  entries_.MarkDirty(slab_, slot);
  entries_.Write();
  near_.Answer();
  SyncWell();
  EXPECT_EQ(open_erasures(), 0u);
}

TEST_F(SlabSyncsTest, NeitherADiskThatIsOffNorAHalfMadeSlabIsSynced) {
  slab_.unsynced.Require();
  SwitchOff(0);
  Sync();
  EXPECT_TRUE(near_.asked.empty());
  disks_.OnProbe(0, Status::Ok());
  slab_.phase = SlabPhase::kReshaping;
  Sync();
  EXPECT_TRUE(near_.asked.empty());
  EXPECT_DEATH(syncs_.LoseUnsynced(slab_), "of another shape");
}

}  // namespace
}  // namespace terrace

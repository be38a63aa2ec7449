// Entries that a start put out of use, and erasures that find them there.
#include "tiers/nvme/left_entries.h"

#include "unit/tiers/nvme/slab_parts_fixture.h"

namespace terrace {
namespace {

constexpr GroupId kOne{1, 9};
constexpr GroupId kOther{1, 10};  // of the same low half

class LeftEntriesTest : public SlabPartsTest {
 protected:
  static constexpr uint32_t kPerGroup = 4;  // slots 0 to 3 are kOne's, 4 to 7 kOther's

  LeftEntriesTest() {
    NvmeSlab& slab = slabs_.Add(0, 0, disks_.disk(0).NewFile(), kSlabBytes);
    slab.TakeShape(Class(kLarge).geometry(), {5, 6});
    for (uint32_t slot = 0; slot < 2 * kPerGroup; ++slot) {
      slab.slots.RestoreGeneration(slot, 30);
      slab.slots.SetFlags(slot, kEntryNamed, 0);
      slab.slots.SetState(slot, SlabSlotState::kQuarantined);
      SlabEntry entry;
      entry.slot = slot;
      entry.group = slot < kPerGroup ? kOne : kOther;
      entry.position = slot % kPerGroup;
      entry.key = KeyAt(entry.position);
      left_.Add(slab, entry, /*is_locked=*/slot < kPerGroup);
    }
    left_.EndRestore();
    classes_.Open(slab);
    slabs_.Publish(slab);
  }
  // Both groups have it.
  static BlockKey KeyAt(uint32_t position) { return {100 - position, 1}; }
  NvmeSlab& slab() { return slabs_[0]; }
  // Slots that are being erased.
  std::vector<uint32_t> Erasing() {
    std::vector<uint32_t> slots;
    for (uint32_t slot = 0; slot < slab().slots.count(); ++slot) {
      if (slab().slots[slot].state == SlabSlotState::kErasing) slots.push_back(slot);
    }
    return slots;
  }
  bool EraseMarked(uint32_t budget = 100) { return left_.EraseMarked(&budget, &taken_); }

  LeftEntries left_{{slabs_, classes_, entries_, erasures_}};
  UnindexedTaken taken_;
};

using Slots = std::vector<uint32_t>;

TEST_F(LeftEntriesTest, AnErasureByKeyHasEndedWhenTheTableSaysSoForGood) {
  left_.EraseKey(kOne, KeyAt(2), &taken_);
  EXPECT_EQ(Erasing(), Slots{2});
  EXPECT_EQ(open_erasures(), 1u);
  ASSERT_EQ(near_.asked.size(), 1u);
  const SlabEntry entry = EntryOf(slab(), 2, near_.bytes[0]);
  EXPECT_EQ(entry.state, SlabEntryState::kFree);
  EXPECT_EQ(entry.generation, 31u);
  near_.Answer();
  EXPECT_EQ(open_erasures(), 1u);
  EndErasure(slab(), 2);
  EXPECT_EQ(open_erasures(), 0u);
  EXPECT_EQ(slab().slots[2].state, SlabSlotState::kFree);
  EXPECT_EQ(taken_.block_count, 1u);
  EXPECT_EQ(taken_.byte_count, kLarge.slot_bytes);
  EXPECT_EQ(left_.count(), 7u);
  EXPECT_EQ(left_.locked_bytes(), 3 * kLarge.slot_bytes);
}

TEST_F(LeftEntriesTest, AKeyIsOfOneGroupOrOfAll) {
  left_.EraseKey(kOther, KeyAt(1), &taken_);
  EXPECT_EQ(Erasing(), Slots{5});
  left_.EraseKey(std::nullopt, KeyAt(1), &taken_);
  EXPECT_EQ(Erasing(), (Slots{1, 5}));
  left_.EraseKey(GroupId{7, 7}, KeyAt(2), &taken_);
  left_.EraseKey(std::nullopt, {7, 7}, &taken_);
  EXPECT_EQ(Erasing(), (Slots{1, 5}));
  EXPECT_EQ(taken_.block_count, 2u);
}

TEST_F(LeftEntriesTest, AGroupGoesFromAPositionOnOrWhole) {
  left_.Mark(kOne, 3);
  EXPECT_TRUE(Erasing().empty());
  EXPECT_TRUE(EraseMarked());
  EXPECT_EQ(Erasing(), Slots{3});
  left_.Mark(kOther, 0);
  EXPECT_TRUE(EraseMarked());
  EXPECT_EQ(Erasing(), (Slots{3, 4, 5, 6, 7}));
  EXPECT_EQ(taken_.block_count, 5u);
}

TEST_F(LeftEntriesTest, WhatLiesDeeperThanAKeyThatIsLeftMayContinueIt) {
  left_.MarkBelow(kOther, KeyAt(1));
  left_.MarkBelow(std::nullopt, {7, 7});
  EXPECT_TRUE(EraseMarked());
  EXPECT_EQ(Erasing(), (Slots{6, 7}));
}

TEST_F(LeftEntriesTest, StepsTakeAFewEachAndMarkingTheSameAgainBeginsNothing) {
  left_.Mark(std::nullopt, 0);
  for (uint32_t count = 3; count < 8; count += 3) {
    EXPECT_FALSE(EraseMarked(3));
    left_.Mark(std::nullopt, 0);
    EXPECT_EQ(Erasing().size(), count);
  }
  EXPECT_TRUE(EraseMarked(3));
  EXPECT_EQ(Erasing().size(), 8u);
  EXPECT_EQ(left_.count(), 0u);
  EXPECT_EQ(left_.locked_bytes(), 0u);
  left_.Mark(std::nullopt, 0);
  EXPECT_TRUE(EraseMarked(0));
}

TEST_F(LeftEntriesTest, MembersOfABlockGoTogetherAndCountOnce) {
  LeftEntries left{{slabs_, classes_, entries_, erasures_}};
  for (uint16_t member = 0; member < 2; ++member) {
    SlabEntry entry;
    entry.slot = member;
    entry.group = kOne;
    entry.key = {1, 1};
    entry.member = member;
    left.Add(slab(), entry, false);
  }
  left.EndRestore();
  left.EraseKey(kOne, {1, 1}, &taken_);
  EXPECT_EQ(Erasing(), (Slots{0, 1}));
  EXPECT_EQ(taken_.block_count, 1u);
}

// A check has found it, and has its entry written as free: that may not have reached the drive.
TEST_F(LeftEntriesTest, WhatACheckFreesMeanwhileIsWaitedFor) {
  slab().slots.EndGeneration(2);
  classes_.Erase(slab(), 2);
  entries_.MarkDirty(slab(), 2);
  left_.EraseKey(kOne, KeyAt(2), &taken_);
  EXPECT_EQ(taken_.block_count, 0u);
  EXPECT_EQ(slab().slots[2].generation, 31u);
  EXPECT_EQ(open_erasures(), 1u);
  near_.Answer();
  EndErasure(slab(), 2);
  EXPECT_EQ(open_erasures(), 0u);
}

TEST_F(LeftEntriesTest, ASlabOnItsWayOutIsWaitedForAndTheNextOfItsNumberIsAnothers) {
  classes_.Close(slab());
  slab().phase = SlabPhase::kRetiring;
  lifecycle_.LookAfter(slab());
  ASSERT_EQ(near_.ops(), std::vector<DiskOp>{DiskOp::kRemove});
  left_.EraseKey(kOne, KeyAt(2), &taken_);
  EXPECT_EQ(open_erasures(), 1u) << "the file is still there";
  near_.Answer();
  EXPECT_EQ(open_erasures(), 0u);
  NvmeSlab& next = AddOpen(kLarge);
  ASSERT_EQ(next.index, 0u);
  left_.Mark(std::nullopt, 0);
  EXPECT_TRUE(EraseMarked());
  EXPECT_TRUE(Erasing().empty());
  EXPECT_EQ(taken_.block_count, 0u);
}

}  // namespace
}  // namespace terrace

#include "tiers/nvme/slab_slots.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace terrace {
namespace {

constexpr uint64_t kSlotBytes = 4096;

class SlabSlotsTest : public testing::Test {
 protected:
  SlabSlotsTest() { slots_.TakeShape(4, kSlotBytes); }
  uint32_t TakeAndUse() {
    const uint32_t slot = slots_.Take();
    slots_.SetOwner(slot, 7);
    slots_.SetState(slot, SlabSlotState::kUsed);
    return slot;
  }
  void Free(uint32_t slot) {
    slots_.EndGeneration(slot);
    slots_.SetState(slot, SlabSlotState::kErasing);
    slots_.PushFree(slot);
  }

  SlotTotals totals_;
  SlabSlots slots_{&totals_};
};

TEST_F(SlabSlotsTest, FreshOnesComeFirstAndThenTheOneFreedLongestAgo) {
  for (uint32_t slot = 0; slot < 3; ++slot) EXPECT_EQ(TakeAndUse(), slot);
  Free(2);
  Free(0);
  EXPECT_EQ(slots_.Take(), 3u);
  EXPECT_EQ(slots_.Take(), 2u);
  EXPECT_EQ(slots_.Take(), 0u);
  EXPECT_EQ(slots_.free_count(), 0u);
}

TEST_F(SlabSlotsTest, RestoredOnesArePassedOver) {
  slots_.SetState(0, SlabSlotState::kUsed);
  slots_.SetState(1, SlabSlotState::kQuarantined);
  EXPECT_EQ(slots_.Take(), 2u);
}

TEST_F(SlabSlotsTest, EveryUseHasAnotherGenerationOverShapesToo) {
  EXPECT_EQ(TakeAndUse(), 0u);
  const uint32_t first = slots_[0].generation;
  Free(0);
  EXPECT_EQ(slots_[0].generation, first + 1);
  slots_.TakeShape(8, 2 * kSlotBytes);
  for (uint32_t slot = 0; slot < 8; ++slot) EXPECT_GT(slots_[slot].generation, first + 1);
}

TEST_F(SlabSlotsTest, GenerationsThatNobodySawAreAboveThoseSomebodyDid) {
  slots_.RestoreGeneration(2, 40);
  slots_.RaiseUnseenGenerations();
  EXPECT_EQ(slots_[2].generation, 40u);
  EXPECT_EQ(slots_[0].generation, 41u);
}

TEST_F(SlabSlotsTest, CountsAndTotalsAreThoseOfTheStates) {
  using enum SlabSlotState;
  std::mt19937_64 random(5);
  for (int step = 0; step < 10'000; ++step) {
    const auto slot = static_cast<uint32_t>(random() % slots_.count());
    switch (slots_[slot].state) {
      case kFree:
        if (random() % 8 == 0)
          slots_.SetState(slot, kQuarantined);
        else
          (void)slots_.Take();
        break;
      case kTaken:
        random() % 2 == 0 ? slots_.SetState(slot, kUsed) : slots_.PushFree(slot);
        break;
      case kUsed:
        slots_.SetState(slot, std::array{kErasing, kSuspect, kLost}[random() % 3]);
        break;
      case kErasing:
        slots_.PushFree(slot);
        break;
      case kLost:
        slots_.SetState(slot, kQuarantined);
        break;
      case kSuspect:
        random() % 2 == 0 ? slots_.SetState(slot, kQuarantined) : slots_.PushFree(slot);
        break;
      case kQuarantined:
        random() % 2 == 0 ? slots_.SetState(slot, kSuspect) : slots_.PushFree(slot);
        break;
    }
    std::array<uint32_t, 7> counts{};
    for (uint32_t i = 0; i < slots_.count(); ++i) ++counts[static_cast<size_t>(slots_[i].state)];
    const auto count = [&](SlabSlotState state) { return counts[static_cast<size_t>(state)]; };
    const uint32_t with_owner = count(kTaken) + count(kUsed) + count(kLost);
    ASSERT_EQ(slots_.free_count(), count(kFree));
    ASSERT_EQ(slots_.erasing_count(), count(kErasing));
    ASSERT_EQ(slots_.quarantined_count(), count(kQuarantined));
    ASSERT_EQ(slots_.owned_count(), with_owner + count(kSuspect));
    ASSERT_EQ(totals_.used_bytes, with_owner * kSlotBytes);
    ASSERT_EQ(totals_.suspect_bytes, count(kSuspect) * kSlotBytes);
    ASSERT_EQ(totals_.quarantined_bytes, count(kQuarantined) * kSlotBytes);
  }
}

TEST_F(SlabSlotsTest, ASlabIsEmptyWhenNobodyHasASlotAndNoEntryIsOnItsWay) {
  EXPECT_TRUE(slots_.is_empty());
  slots_.SetFlags(1, kEntryDirty | kEntryNamed, 0);
  EXPECT_FALSE(slots_.is_empty());
  slots_.SetFlags(1, kEntryInFlight, kEntryDirty);
  EXPECT_TRUE(slots_.has_work());
  slots_.SetFlags(1, 0, kEntryInFlight);
  EXPECT_TRUE(slots_.is_empty()) << "what the table may name is no work";
  TakeAndUse();
  EXPECT_FALSE(slots_.is_empty());
}

TEST_F(SlabSlotsTest, WhatIsQuarantinedGoesFromTheTotalsWithItsSlab) {
  slots_.SetState(3, SlabSlotState::kQuarantined);
  EXPECT_EQ(totals_.quarantined_bytes, kSlotBytes);
  slots_.Forget();
  EXPECT_EQ(totals_.quarantined_bytes, 0u);
}

using SlabSlotsDeathTest = SlabSlotsTest;

TEST_F(SlabSlotsDeathTest, NothingIsHandedOutThatTheTableStillNames) {
  const uint32_t slot = TakeAndUse();
  EXPECT_DEATH(slots_.PushFree(slot), "before it is");
  slots_.SetState(slot, SlabSlotState::kLost);
  EXPECT_DEATH(slots_.SetState(slot, SlabSlotState::kErasing), "goes the way");
  EXPECT_DEATH(slots_.TakeShape(4, kSlotBytes), "when it is empty");
}

TEST_F(SlabSlotsDeathTest, WhatIsInFlightIsNotFreed) {
  const uint32_t slot = slots_.Take();
  slots_.BeginTransfer(slot);
  EXPECT_DEATH(slots_.EndGeneration(slot), "in flight");
  slots_.EndTransfer(slot);
  EXPECT_DEATH(slots_.EndTransfer(slot), "ends once");
}

}  // namespace
}  // namespace terrace

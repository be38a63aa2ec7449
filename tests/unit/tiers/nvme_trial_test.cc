// Slots whose bytes did not verify: who was wrong, the drive or somebody else, is found out by
// trying.
#include "tiers/nvme/nvme_tier.h"
#include "unit/tiers/nvme_tier_fixture.h"

namespace terrace {
namespace {

class NvmeTrialTest : public NvmeTierTest {
 protected:
  NvmeTrialTest() { options_.tier.capacity_bytes = kSlabBytes; }
  // The positions of all slots that can still be had.
  std::set<uint64_t> TakeAll() {
    std::set<uint64_t> positions;
    for (Result<Extent> extent = TryAllocate(kLength); extent.ok(); extent = TryAllocate(kLength)) {
      positions.insert(extent->position);
    }
    return positions;
  }
  // Reads bring what was there before the last write.
  void BreakDrive() { rig_->disk().SetRate(DiskFault::kStaleRead, kAlways); }
  Extent StoreAndQuarantine(uint64_t key) {
    const Extent extent = Store(key);
    tier().Quarantine(extent);
    rig_->Settle();
    return extent;
  }
};

TEST_F(NvmeTrialTest, SlotOfWhichTheDriveKeepsWhatItIsGivenIsFreeAgain) {
  const Extent extent = Store(1);
  tier().Quarantine(extent);
  EXPECT_EQ(tier().stats().suspect_bytes, kLength);
  EXPECT_EQ(tier().stats().used_bytes, 0u);
  EXPECT_TRUE(tier().has_erasures_pending());
  rig_->Settle();
  EXPECT_EQ(tier().stats().suspect_bytes, 0u);
  EXPECT_EQ(tier().stats().quarantined_bytes, 0u);
  EXPECT_EQ(tier().stats().places_recovered, 1u);
  EXPECT_FALSE(tier().has_erasures_pending());
  EXPECT_TRUE(tier().is_quiet());
  EXPECT_TRUE(TakeAll().contains(extent.position));
}

TEST_F(NvmeTrialTest, SlotIsNobodysWhileItIsTried) {
  const Extent extent = Store(1);
  tier().Quarantine(extent);
  EXPECT_FALSE(TakeAll().contains(extent.position));
  EXPECT_EQ(tier().Read(900, extent, Bytes(kLength, 0)).code(), StatusCode::kGone);
}

TEST_F(NvmeTrialTest, SlotThatTheDriveDoesNotKeepIsNotHandedOutEvenByASuccessor) {
  const Extent extent = Store(1);
  BreakDrive();
  tier().Quarantine(extent);
  rig_->Settle();
  rig_->disk().HealAll();
  EXPECT_EQ(tier().stats().quarantined_bytes, kLength);
  EXPECT_EQ(tier().stats().suspect_bytes, 0u);
  rig_->Settle();
  Restart();
  EXPECT_EQ(tier().stats().quarantined_bytes, kLength);
  EXPECT_TRUE(found_.empty());
  EXPECT_FALSE(TakeAll().contains(extent.position));
}

TEST_F(NvmeTrialTest, SlotThatCannotBeReadBackIsQuarantined) {
  tier().Quarantine(Store(1));
  rig_->disk().SetRate(DiskFault::kReadFails, kAlways);
  rig_->Drain();
  rig_->disk().HealAll();
  EXPECT_EQ(tier().stats().quarantined_bytes, kLength);
}

TEST_F(NvmeTrialTest, DaemonThatEndsDuringATrialHasLostNothing) {
  for (int steps = 0; steps < 12; ++steps) {
    const Extent extent = Store(1);
    tier().Quarantine(extent);
    for (int i = 0; i < steps; ++i) rig_->Step();
    rig_->KillProcess();
    Start();
    EXPECT_EQ(tier().stats().quarantined_bytes, 0u) << steps;
    if (found_.contains(1)) tier().Free(found_.at(1).extent);  // its bytes may not verify any more
    rig_->Settle();
    EXPECT_EQ(TakeAll().size(), kSlotsPerSlab) << steps;
    Restart();
  }
}

TEST_F(NvmeTrialTest, TrialWaitsForADiskThatIsOff) {
  const Extent extent = Store(1);
  rig_->disk().SetRate(DiskFault::kReadFails, kAlways);
  rig_->disk().SetRate(DiskFault::kWriteFails, kAlways);
  for (uint32_t i = 0; i < options_.tier.failures_max; ++i) {
    ASSERT_TRUE(tier().Read(++transfer_, extent, Bytes(kLength, 0)).ok());
    rig_->Drain();
  }
  ASSERT_FALSE(tier().stats().is_healthy);
  tier().Quarantine(extent);
  rig_->Settle();
  EXPECT_EQ(tier().stats().suspect_bytes, kLength) << "nothing is known of the slot yet";
  rig_->disk().HealAll();
  rig_->Settle();
  EXPECT_EQ(tier().stats().suspect_bytes, 0u);
  EXPECT_EQ(tier().stats().quarantined_bytes, 0u);
}

TEST_F(NvmeTrialTest, TrialDuringWhichTheDiskGoesOffIsNoVerdict) {
  const Extent kept = Store(1), extent = Store(2);
  tier().Quarantine(extent);
  rig_->disk().SetRate(DiskFault::kStuck, kAlways);
  rig_->Step();  // its entry is written, and the trial begins
  rig_->disk().HealAll();
  rig_->disk().SetRate(DiskFault::kReadFails, kAlways);
  for (uint32_t i = 0; i < options_.tier.failures_max; ++i) {
    ASSERT_TRUE(tier().Read(++transfer_, kept, Bytes(kLength, 0)).ok());
  }
  rig_->Drain();
  ASSERT_FALSE(tier().stats().is_healthy);
  rig_->disk().ReleaseStuck();
  rig_->Advance(1'000);
  rig_->Drain();
  EXPECT_EQ(tier().stats().quarantined_bytes, 0u);
  EXPECT_EQ(tier().stats().suspect_bytes, kLength) << "it is tried again";
  rig_->disk().HealAll();
  rig_->Settle();
  EXPECT_EQ(tier().stats().suspect_bytes, 0u);
  EXPECT_EQ(tier().stats().places_recovered, 1u);
}

TEST_F(NvmeTrialTest, QuarantinedSlotIsGivenBackOnceTheDriveKeepsItAgain) {
  BreakDrive();
  const Extent extent = StoreAndQuarantine(1);
  ASSERT_EQ(tier().stats().quarantined_bytes, kLength);
  const auto slot = static_cast<uint32_t>(extent.position);
  std::vector<bool> answers;
  const auto note = [&](bool is_free) { answers.push_back(is_free); };
  tier().inspector().TryQuarantined(extent.shard, slot, note);
  rig_->Settle();
  EXPECT_EQ(answers, std::vector<bool>{false});
  EXPECT_EQ(tier().stats().quarantined_bytes, kLength);
  rig_->disk().HealAll();
  tier().inspector().TryQuarantined(extent.shard, slot, note);
  rig_->Settle();
  EXPECT_EQ(answers, (std::vector<bool>{false, true}));
  EXPECT_EQ(tier().stats().quarantined_bytes, 0u);
  Restart();
  EXPECT_EQ(tier().stats().quarantined_bytes, 0u);
  EXPECT_TRUE(TakeAll().contains(extent.position));
}

TEST_F(NvmeTrialTest, WhoeverAskedForATrialDoesNotWaitForADiskThatIsOff) {
  BreakDrive();
  const Extent extent = StoreAndQuarantine(1);
  rig_->disk().HealAll();
  const Extent kept = Store(2);
  rig_->disk().SetRate(DiskFault::kReadFails, kAlways);
  rig_->disk().SetRate(DiskFault::kWriteFails, kAlways);
  for (uint32_t i = 0; i < options_.tier.failures_max; ++i) {
    ASSERT_TRUE(tier().Read(++transfer_, kept, Bytes(kLength, 0)).ok());
    rig_->Drain();
  }
  ASSERT_FALSE(tier().stats().is_healthy);
  std::vector<bool> answers;
  tier().inspector().TryQuarantined(extent.shard, static_cast<uint32_t>(extent.position),
                                    [&](bool is_free) { answers.push_back(is_free); });
  rig_->Settle();
  EXPECT_EQ(answers, std::vector<bool>{false});
  rig_->disk().HealAll();
  rig_->Settle();
  EXPECT_EQ(answers, std::vector<bool>{false});
  EXPECT_EQ(tier().stats().places_recovered, 1u) << "it was tried all the same";
}

TEST_F(NvmeTrialTest, NothingIsWrittenToASlabThatGoes) {
  BreakDrive();
  const Extent extent = StoreAndQuarantine(1);
  options_.tier.capacity_bytes = kSlabBytes / 2;
  Restart();
  ASSERT_EQ(tier().stats().quarantined_bytes, kLength);
  tier().Tick();  // its file is being removed
  std::vector<bool> answers;
  tier().inspector().RewriteAsFree(extent.shard, kSlotsPerSlab - 1);
  tier().inspector().TryQuarantined(extent.shard, static_cast<uint32_t>(extent.position),
                                    [&](bool is_free) { answers.push_back(is_free); });
  EXPECT_EQ(answers, std::vector<bool>{false});
  EXPECT_TRUE(tier().has_erasures_pending()) << "until it has gone";
  rig_->Settle();
  EXPECT_EQ(media_[0].used_bytes(), 0u);
  EXPECT_EQ(tier().stats().quarantined_bytes, 0u);
  EXPECT_TRUE(tier().is_quiet());
}

// It has records of slots that are out of use, too; one of a slab that is not there disproves it
// all.
TEST_F(NvmeTrialTest, TheCatalogHearsOfSlotsOutOfUseWhenTheirSlabGoes) {
  TierShares shares(TierShares::Lending::kAll, kSlabBytes, {{kSlabBytes, kSlabBytes}});
  options_.tier.shares = &shares;
  Catalog catalog;
  options_.tier.catalog = &catalog;
  Start();
  BreakDrive();
  const Extent extent = Store(1);
  const std::pair place(extent.shard, static_cast<uint32_t>(extent.position));
  tier().OnCataloged(place.first, place.second);
  tier().Quarantine(extent);
  rig_->Settle();
  ASSERT_EQ(tier().stats().quarantined_bytes, kLength);
  tier().OnCataloged(place.first, place.second);
  catalog.told.clear();
  shares.Set(0, {{0, 0}});
  rig_->Settle();
  ASSERT_EQ(media_[0].used_bytes(), 0u);
  EXPECT_EQ(catalog.told, (std::vector<std::pair<uint32_t, uint32_t>>{place}));
  std::vector<std::byte> entry;
  EXPECT_EQ(tier().ReadEntryNow(place.first, place.second, &entry).code(), StatusCode::kNotFound);
  rig_.reset();
}

TEST_F(NvmeTrialTest, SlotThatSomebodyHasIsNotTried) {
  const Extent extent = Store(1);
  std::vector<bool> answers;
  tier().inspector().TryQuarantined(extent.shard, static_cast<uint32_t>(extent.position),
                                    [&](bool is_free) { answers.push_back(is_free); });
  rig_->Settle();
  EXPECT_EQ(answers, std::vector<bool>{false});
  ExpectLoads(extent, 1);
}

}  // namespace
}  // namespace terrace

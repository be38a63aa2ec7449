// Disks that fail, fill up, hang and come back; files that are not what they should be.
#include <cerrno>

#include "tiers/nvme/nvme_tier.h"
#include "unit/tiers/nvme_tier_fixture.h"

namespace terrace {
namespace {

class NvmeTierFaultTest : public NvmeTierTest {
 protected:
  // Reads of `extent` fail until its disk is switched off.
  void BreakByReading(const Extent& extent, sim::SimDisk& disk) {
    disk.SetRate(DiskFault::kReadFails, kAlways);
    disk.SetRate(DiskFault::kWriteFails, kAlways);
    for (uint32_t i = 0; i < options_.tier.failures_max; ++i) {
      ASSERT_TRUE(tier().Read(++transfer_, extent, Bytes(extent.length_bytes, 0)).ok()) << i;
      rig_->Drain();
      EXPECT_EQ(done_[transfer_].code(), StatusCode::kIo);
    }
  }
  std::string NotesOfRestart() {
    Restart();
    std::string all;
    for (const std::string& note : rig_->notes()) all += note + "\n";
    return all;
  }
};

// ---- off and on ----

// PROMISE: T14 off, and on again
TEST_F(NvmeTierFaultTest, FailuresInARowSwitchTheDiskOffAndAProbeOnAgain) {
  const Extent extent = Store(42);
  BreakByReading(extent, rig_->disk());
  EXPECT_FALSE(tier().stats().is_healthy);
  EXPECT_EQ(tier().stats().failed_transfers, options_.tier.failures_max);
  EXPECT_EQ(tier().Read(900, extent, Bytes(kLength, 0)).code(), StatusCode::kUnsupported);
  EXPECT_EQ(tier().Allocate(0, kLength, 1).code(), StatusCode::kUnsupported);
  ASSERT_EQ(tier().troubles().size(), 1u);
  EXPECT_STREQ(tier().troubles()[0].operation, "read");
  EXPECT_EQ(tier().troubles()[0].error, EIO);
  EXPECT_EQ(tier().troubles()[0].failures_in_row, options_.tier.failures_max);
  rig_->Settle();
  EXPECT_FALSE(tier().stats().is_healthy) << "probes fail";
  EXPECT_NE(tier().troubles()[0].probe_error, 0);
  rig_->disk().HealAll();
  rooms_ = 0;
  rig_->Settle();
  EXPECT_TRUE(tier().stats().is_healthy);
  EXPECT_TRUE(tier().troubles().empty());
  EXPECT_EQ(rooms_, 1);
  ExpectLoads(extent, 42);
}

TEST_F(NvmeTierFaultTest, FailuresBetweenSuccessesSwitchNothingOff) {
  const Extent extent = Store(42);
  for (uint32_t i = 0; i < 3 * options_.tier.failures_max; ++i) {
    rig_->disk().SetRate(DiskFault::kReadFails, i % 4 == 0 ? 0 : kAlways);
    ASSERT_TRUE(tier().Read(++transfer_, extent, Bytes(kLength, 0)).ok());
    rig_->Drain();
  }
  EXPECT_TRUE(tier().stats().is_healthy);
}

TEST_F(NvmeTierFaultTest, ProbeThatReadsSomethingElseKeepsTheDiskOff) {
  const Extent extent = Store(42);
  BreakByReading(extent, rig_->disk());
  rig_->disk().HealAll();
  rig_->disk().SetRate(DiskFault::kStaleRead, kAlways);
  rig_->Settle();
  EXPECT_FALSE(tier().stats().is_healthy);
  rig_->disk().HealAll();
  rig_->Settle();
  EXPECT_TRUE(tier().stats().is_healthy);
}

TEST_F(NvmeTierFaultTest, OtherDisksGoOn) {
  media_.resize(2);
  Start();
  std::vector<Extent> extents;
  for (uint64_t key = 1; key <= 8; ++key) extents.push_back(Store(key));
  const auto is_on_first = [&](const Extent& extent) {
    return media_[0].Has("slab-" + std::to_string(extent.shard) + ".terrace");
  };
  BreakByReading(*std::ranges::find_if(extents, is_on_first), rig_->disk(0));
  EXPECT_TRUE(tier().stats().is_healthy);
  for (uint64_t key = 1; key <= 8; ++key) {
    if (is_on_first(extents[key - 1])) {
      EXPECT_EQ(tier().Read(900, extents[key - 1], Bytes(kLength, 0)).code(),
                StatusCode::kUnsupported);
    } else {
      ExpectLoads(extents[key - 1], static_cast<int>(key));
    }
  }
  for (uint64_t key = 20; key < 30; ++key) EXPECT_FALSE(is_on_first(Store(key)));
}

TEST_F(NvmeTierFaultTest, WhatWasFreedWhileTheDiskWasOffIsErasedAfterwards) {
  const Extent extent = Store(42);
  Store(43);
  BreakByReading(extent, rig_->disk());
  tier().Free(extent);
  rig_->Settle();
  EXPECT_TRUE(tier().has_erasures_pending());
  rig_->disk().HealAll();
  rig_->Settle();
  EXPECT_FALSE(tier().has_erasures_pending());
  Restart();
  EXPECT_FALSE(found_.contains(42));
  EXPECT_TRUE(found_.contains(43));
}

TEST_F(NvmeTierFaultTest, StuckRequestSwitchesTheDiskOffAndKeepsItsSlot) {
  const Extent extent = Store(42);
  rig_->disk().SetRate(DiskFault::kStuck, kAlways);
  ASSERT_TRUE(tier().Read(++transfer_, extent, Bytes(kLength, 0)).ok());
  rig_->disk().HealAll();
  const TransferId stuck = transfer_;
  rig_->Advance(29'000'000);
  tier().Tick();
  EXPECT_TRUE(tier().stats().is_healthy);
  rig_->Advance(2'000'000);
  tier().Tick();
  EXPECT_FALSE(tier().stats().is_healthy);
  EXPECT_EQ(tier().stats().stuck_transfers, 1u);
  EXPECT_EQ(tier().stats().transfers_in_flight, 1u);
  rig_->disk().ReleaseStuck();
  rig_->Settle();
  EXPECT_TRUE(done_.at(stuck).ok()) << "it was answered after all";
  EXPECT_TRUE(tier().stats().is_healthy);
  EXPECT_EQ(tier().stats().stuck_transfers, 0u);
}

TEST_F(NvmeTierFaultTest, RequestThatNeverEndsSwitchesTheDiskOffOnce) {
  const Extent extent = Store(42);
  const Extent other = Store(43);
  rig_->disk().SetRate(DiskFault::kStuck, kAlways);
  ASSERT_TRUE(tier().Read(++transfer_, extent, Bytes(kLength, 0)).ok());
  rig_->disk().HealAll();
  rig_->Advance(31'000'000);
  tier().Tick();
  EXPECT_FALSE(tier().stats().is_healthy);
  for (int second = 0; second < 60; ++second) {
    rig_->Advance(1'000'000);
    tier().Tick();
    EXPECT_EQ(tier().stats().is_healthy, second >= 5) << second;
  }
  ExpectLoads(other, 43);
  EXPECT_EQ(tier().stats().stuck_transfers, 1u) << "it is still told";
  EXPECT_EQ(tier().stats().transfers_in_flight, 1u) << "its memory is still the drive's";
}

// ---- full queues, full file systems ----

TEST_F(NvmeTierFaultTest, EntriesWaitWhileTheQueueIsFull) {
  const Extent extent = Allocate();
  ASSERT_TRUE(BeginWrite(extent, 42).ok());
  rig_->disk().SetRate(DiskFault::kBusy, kAlways);
  rig_->Settle();
  EXPECT_TRUE(done_[transfer_].ok()) << "the copy is readable";
  EXPECT_TRUE(persisted_.empty());
  EXPECT_EQ(tier().Read(900, extent, Bytes(kLength, 0)).code(), StatusCode::kBusy);
  rig_->disk().HealAll();
  rig_->Settle();
  EXPECT_EQ(persisted_.size(), 1u);
}

TEST_F(NvmeTierFaultTest, EntryThatFailsIsWrittenAgain) {
  const Extent extent = Allocate();
  ASSERT_TRUE(BeginWrite(extent, 42).ok());
  while (done_.empty()) rig_->Step();
  rig_->disk().SetRate(DiskFault::kWriteFails, kAlways);
  tier().Amend(extent, RecordOf(42));
  rig_->Drain();
  rig_->Advance(100'000);
  tier().Tick();
  rig_->Drain();
  rig_->disk().HealAll();
  rig_->Settle();
  EXPECT_EQ(persisted_.size(), 1u);
  Restart();
  EXPECT_TRUE(found_.contains(42));
}

TEST_F(NvmeTierFaultTest, FullFileSystemIsNoFailureAndIsTriedAgain) {
  media_[0].SetCapacityBytes(kSlabBytes + kSlabBytes / 2);
  uint32_t taken = 0;
  while (TryAllocate().ok()) ++taken;
  EXPECT_EQ(taken, kSlotsPerSlab);
  EXPECT_TRUE(tier().stats().is_healthy);
  EXPECT_EQ(tier().Allocate(0, kLength, 1).code(), StatusCode::kNoSpace);
  EXPECT_EQ(media_[0].Names().size(), 1u) << "nothing half made is left";
  ASSERT_EQ(tier().troubles().size(), 1u);
  EXPECT_FALSE(tier().troubles()[0].is_off);
  EXPECT_EQ(tier().troubles()[0].error, ENOSPC);
  for (int second = 0; second < 60; ++second) {
    rig_->Advance(1'000'000);
    tier().Tick();
  }
  EXPECT_TRUE(tier().stats().is_healthy) << "ENOSPC never switches off";
  media_[0].SetCapacityBytes(10 * kSlabBytes);
  rooms_ = 0;
  for (int second = 0; second < 11; ++second) {
    rig_->Advance(1'000'000);
    tier().Tick();
  }
  EXPECT_GE(rooms_, 1) << "within ten seconds";
  EXPECT_TRUE(tier().troubles().empty());
  EXPECT_TRUE(tier().Allocate(0, kLength, 1).ok());
}

TEST_F(NvmeTierFaultTest, FailedCreationLeavesNoRoomButTheWaitersHear) {
  rig_->disk().SetRate(DiskFault::kCreateFails, kAlways);
  EXPECT_EQ(tier().Allocate(0, kLength, 1).code(), StatusCode::kBusy);
  rig_->Drain();
  EXPECT_EQ(rooms_, 1) << "room is not coming: ask again";
  EXPECT_EQ(tier().Allocate(0, kLength, 1).code(), StatusCode::kNoSpace);
  rig_->disk().HealAll();
  rig_->Settle();
  EXPECT_TRUE(TryAllocate().ok());
}

TEST_F(NvmeTierFaultTest, FileThatVanishesWhileItIsMadeCostsNoRoom) {
  rig_->disk().SetRate(DiskFault::kCreateVanishes, kAlways);
  EXPECT_EQ(tier().Allocate(0, kLength, 1).code(), StatusCode::kBusy);
  rig_->Drain();
  EXPECT_EQ(rooms_, 1) << "room is not coming: ask again";
  EXPECT_EQ(tier().Allocate(0, kLength, 1).code(), StatusCode::kNoSpace);
  rig_->disk().HealAll();
  rig_->Settle();
  uint32_t taken = 0;
  while (TryAllocate().ok()) ++taken;
  EXPECT_EQ(taken, 4 * kSlotsPerSlab);
}

// ---- syncs ----

TEST_F(NvmeTierFaultTest, AfterAFailedSyncWhatItCoveredIsGivenUp) {
  const Extent before = Store(1);
  const Extent freed = Store(2);
  const Extent extent = Allocate();
  ASSERT_TRUE(BeginWrite(extent, 3).ok());
  tier().Free(freed);
  rig_->Drain();
  EXPECT_EQ(persisted_.back(), (std::tuple<uint32_t, CommitId, uint32_t>{3, 300, 3}));
  rig_->disk().SetRate(DiskFault::kSyncFails, kAlways);
  rig_->Advance(1'100'000);
  tier().Tick();
  rig_->Drain();
  rig_->disk().HealAll();
  EXPECT_EQ(tier().Read(900, extent, Bytes(kLength, 0)).code(), StatusCode::kIo);
  ExpectLoads(before, 1);
  EXPECT_TRUE(tier().stats().is_healthy);
  tier().Free(extent);
  rig_->Settle();
  EXPECT_EQ(tier().stats().quarantined_bytes, kLength) << "the slot is not trusted again";
  rig_->PowerLoss();
  Start();
  EXPECT_EQ(found_.size(), 1u) << "neither the lost block nor the one freed before";
  EXPECT_TRUE(found_.contains(1));
}

// What the last daemon freed may be free in the page cache alone, and that may just have been lost.
TEST_F(NvmeTierFaultTest, FailedFirstSyncBringsNothingBackThatTheLastDaemonFreed) {
  const Extent freed = Store(1);
  for (uint64_t key = 2; key <= 4; ++key) Store(key);
  tier().Free(freed);
  rig_->Drain();
  Restart();
  ASSERT_EQ(found_.size(), 3u);
  rig_->disk().SetRate(DiskFault::kSyncFails, kAlways);
  rig_->Advance(1'100'000);
  tier().Tick();
  rig_->Drain();
  rig_->disk().HealAll();
  std::ranges::sort(doubted_);
  EXPECT_EQ(doubted_, (std::vector<uint32_t>{2, 3, 4}));
  rig_->Settle();
  EXPECT_TRUE(tier().has_erasures_pending()) << "under a block there may be another's entry";
  for (const uint32_t owner : doubted_) tier().Amend(found_.at(owner).extent, RecordOf(owner));
  rig_->Settle();
  EXPECT_FALSE(tier().has_erasures_pending());
  for (uint64_t key = 2; key <= 4; ++key) {
    ExpectLoads(found_.at(key).extent, static_cast<int>(key));
  }
  rig_->PowerLoss();
  Start();
  EXPECT_EQ(found_.size(), 3u);
  EXPECT_FALSE(found_.contains(1));
}

// PROMISE: T10 how much is not yet synced
TEST_F(NvmeTierFaultTest, SyncsCoverEntriesOnceASecond) {
  Store(1);
  EXPECT_EQ(media_[0].unsynced_writes(), 0u);
  const Extent extent = Allocate();
  ASSERT_TRUE(BeginWrite(extent, 2).ok());
  rig_->Drain();
  EXPECT_GT(media_[0].unsynced_writes(), 0u);
  rig_->Advance(500'000);
  tier().Tick();
  rig_->Advance(1'000'000);
  tier().Tick();
  rig_->Drain();
  EXPECT_EQ(media_[0].unsynced_writes(), 0u);
}

// ---- files that are not what they should be ----

TEST_F(NvmeTierFaultTest, SlabOfAnotherDomainIsLeftAlone) {
  Store(1);
  std::vector<std::byte> before(kSlabBytes), after(kSlabBytes);
  options_.tier.secret = sim::SecretFrom(2);
  const std::string notes = NotesOfRestart();
  EXPECT_NE(notes.find("slab-0.terrace"), std::string::npos) << notes;
  EXPECT_TRUE(found_.empty());
  media_[0].Peek("slab-0.terrace", 0, before);
  uint32_t taken = 0;
  while (TryAllocate().ok()) ++taken;
  EXPECT_EQ(taken, 3 * kSlotsPerSlab) << "its file counts";
  media_[0].Peek("slab-0.terrace", 0, after);
  EXPECT_EQ(before, after);
  options_.tier.secret = sim::SecretFrom(1);
  Restart();
  EXPECT_TRUE(found_.contains(1));
}

// PROMISE: T28 slabs of another version
TEST_F(NvmeTierFaultTest, SlabOfAnotherVersionIsLeftAloneAndNamed) {
  Store(1);
  rig_->KillProcess();
  media_[0].FlipBit("slab-0.terrace", 16, 1);
  EXPECT_NE(NotesOfRestart().find("another format version"), std::string::npos);
  EXPECT_TRUE(found_.empty());
}

TEST_F(NvmeTierFaultTest, RenamedShortAndDoubledSlabsAreLeftAlone) {
  Store(1);
  rig_->Settle();
  std::vector<std::byte> bytes(kSlabBytes);
  media_[0].Peek("slab-0.terrace", 0, bytes);
  media_[0].Poke("slab-2.terrace", 0, bytes);
  media_[0].Poke("slab-3.terrace", 0, std::span(bytes).first(kSlabBytes / 2));
  media_.push_back(media_[0]);
  media_[1].Remove("slab-2.terrace");
  media_[1].Remove("slab-3.terrace");
  const std::string notes = NotesOfRestart();
  EXPECT_NE(notes.find("slab-2.terrace on disk 0 is left alone: it is slab 0, renamed"),
            std::string::npos)
      << notes;
  EXPECT_NE(notes.find("slab-3.terrace"), std::string::npos) << notes;
  EXPECT_NE(notes.find("another disk has a slab of this number"), std::string::npos) << notes;
  EXPECT_EQ(found_.size(), 1u);
  ExpectLoads(found_.at(1).extent, 1);
}

TEST_F(NvmeTierFaultTest, UnfinishedSlabIsRemoved) {
  const std::vector<std::byte> zeros(kSlabBytes);
  media_[0].Poke("slab-0.terrace", 0, zeros);
  media_[0].Poke("slab-1.terrace", 0, std::span(zeros).first(100));
  EXPECT_NE(NotesOfRestart().find("never finished"), std::string::npos);
  rig_->Settle();
  EXPECT_TRUE(media_[0].Names().empty());
  Store(1);
}

TEST_F(NvmeTierFaultTest, FilesOfOtherNamesAreNotTouched) {
  const std::vector<std::byte> bytes(5000, std::byte{1});
  for (const char* name : {"slab-.terrace", "slab-01.terrace", "slab-1.terrace.old", "lock",
                           "slab-70000.terrace", "slab-1x.terrace", "slab--1.terrace"}) {
    media_[0].Poke(name, 0, bytes);
  }
  EXPECT_EQ(NotesOfRestart(), "");
  Store(1);
  EXPECT_EQ(media_[0].Names().size(), 8u);
}

TEST_F(NvmeTierFaultTest, VanishedFileCostsItsBlocksOnly) {
  std::vector<Extent> extents;
  for (uint64_t key = 1; key <= 2 * kSlotsPerSlab; ++key) extents.push_back(Store(key));
  rig_->KillProcess();
  media_[0].Remove("slab-0.terrace");
  Start();
  EXPECT_EQ(found_.size(), kSlotsPerSlab);
  for (const auto& [key, found] : found_) ExpectLoads(found.extent, static_cast<int>(key));
}

// What cannot be read cannot be erased either, so it must not be found again by a later start.
TEST_F(NvmeTierFaultTest, SectorOfATableThatCannotBeReadIsClearedBeforeItsSlotsAreUsed) {
  constexpr uint64_t kSmall = 4 * kKiB;
  constexpr uint64_t kSpoilt = 15;  // entries a sector
  for (uint64_t key = 1; key <= 3 * kSpoilt; ++key) Store(key, kSmall);
  rig_->KillProcess();
  media_[0].Spoil("slab-0.terrace", 2 * kSlabSectorBytes, kSlabSectorBytes);
  Start();
  EXPECT_EQ(found_.size(), 2 * kSpoilt) << "the sectors beside it can be read";
  EXPECT_EQ(tier().restore().counts().entries_corrupt, kSpoilt);
  EXPECT_EQ(tier().restore().counts().entries_unread, kSpoilt);
  EXPECT_EQ(tier().stats().quarantined_bytes, kSpoilt * kSmall);
  EXPECT_TRUE(tier().has_erasures_pending());
  rig_->Settle();
  EXPECT_FALSE(tier().has_erasures_pending());
  EXPECT_EQ(tier().stats().quarantined_bytes, 0u);
  rig_->PowerLoss();
  Start();
  EXPECT_EQ(found_.size(), 2 * kSpoilt);
  EXPECT_EQ(tier().restore().counts().entries_corrupt, 0u);
  uint64_t key = 100;
  while (TryAllocate(kSmall).ok()) ++key;
  const uint32_t slots_per_slab = SlabGeometry::Of({kSmall, 1}, kSlabBytes).value().slot_count;
  EXPECT_EQ(key - 100, 4 * slots_per_slab - 2 * kSpoilt);
}

TEST_F(NvmeTierFaultTest, SectorThatCannotBeWrittenEitherIsGivenUp) {
  const Extent extent = Store(1);
  rig_->KillProcess();
  media_[0].Spoil("slab-0.terrace", kSlabSectorBytes, kSlabSectorBytes);
  Start();
  rig_->disk().SetRate(DiskFault::kWriteFails, kAlways);
  rig_->Settle();
  rig_->disk().HealAll();
  rig_->Settle();
  EXPECT_FALSE(tier().has_erasures_pending());
  EXPECT_TRUE(tier().stats().is_healthy);
  EXPECT_EQ(tier().stats().quarantined_bytes, kSlotsPerSlab * extent.length_bytes);
}

TEST_F(NvmeTierFaultTest, TableThatIsUnreadableThroughoutIsLeftToALaterStart) {
  options_.tier.slab_bytes = 8 * kMiB;
  options_.tier.capacity_bytes = 8 * kMiB;
  Start();
  for (uint64_t key = 1; key <= 3; ++key) Store(key, 4 * kKiB);
  rig_->KillProcess();
  media_[0].Spoil("slab-0.terrace", kSlabSectorBytes, (kUnreadSectorsMax + 1) * kSlabSectorBytes);
  Start();
  EXPECT_TRUE(found_.empty());
  EXPECT_GT(tier().restore().counts().entries_unread, kUnreadSectorsMax * 15);
  rig_->Settle();
  EXPECT_FALSE(tier().has_erasures_pending());
  rig_->KillProcess();
  media_[0].Heal("slab-0.terrace");
  Start();
  EXPECT_EQ(found_.size(), 3u) << "it may have been the cable";
}

// A catalog is disproved half-way: what it has given so far stays with those who have it.
TEST_F(NvmeTierFaultTest, ScanAfterTheCatalogLeavesSlotsWithTheirOwners) {
  const Extent stored = Store(7);
  std::vector<std::byte> entry;
  ASSERT_TRUE(tier().ReadEntryNow(stored.shard, 0, &entry).ok());
  rig_->KillProcess();
  media_[0].FlipBit("slab-0.terrace", kSlabTableOffsetBytes + 100, 1);
  rig_ = std::make_unique<NvmeRig>(std::vector{&media_[0]}, options_, this);
  ASSERT_TRUE(tier().restore().OpenSlabs(&rig_->notes()).ok());
  Extent extent;
  const auto adopt = [&](const BlockRecord&, const Extent& restored) {
    extent = restored;
    return 7u;
  };
  ASSERT_TRUE(tier().restore().RestoreEntry(stored.shard, 0, entry, adopt).ok());
  ASSERT_TRUE(tier().restore().Scan(adopt).ok());
  tier().restore().Finish();
  ExpectLoads(extent, 7);
  tier().Free(extent);
  rig_->Settle();
  EXPECT_EQ(tier().stats().used_bytes, 0u);
  EXPECT_EQ(tier().stats().quarantined_bytes, 0u);
}

// PROMISE: T39 answers of the tier
TEST_F(NvmeTierFaultTest, NotesAndAnswersHoldNoSecrets) {
  Store(1);
  options_.tier.secret = sim::SecretFrom(2);
  for (const char c : NotesOfRestart()) EXPECT_TRUE(c == '\n' || (c >= ' ' && c < 127));
}

TEST_F(NvmeTierFaultTest, PredictionGrowsWithTheQueueAndFollowsTheDrive) {
  options_.disk.queue_max = 64;
  Start();
  const Extent extent = Store(1);
  const uint64_t idle_us = tier().PredictReadUs(kLength);
  for (int i = 0; i < 32; ++i) {
    ASSERT_TRUE(tier().Read(++transfer_, extent, Bytes(kLength, 0)).ok());
  }
  EXPECT_GT(tier().PredictReadUs(kLength), idle_us + 32 * kLength / 10'000);
  rig_->Drain();
  EXPECT_LT(tier().PredictReadUs(kLength), 1000u);
}

}  // namespace
}  // namespace terrace

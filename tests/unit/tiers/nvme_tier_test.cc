#include "tiers/nvme/nvme_tier.h"

#include "unit/tiers/nvme_tier_fixture.h"

namespace terrace {
namespace {

using Persisted = std::vector<std::tuple<uint32_t, CommitId, uint32_t>>;

// ---- copies of what is here already ----

TEST_F(NvmeTierTest, ACopyIsFoundByASuccessorOnceItIsDurableAndToldToNobody) {
  const Extent from = Store(1);
  for (const bool is_durable : {false, true}) {
    persisted_.clear();
    const Extent to = Allocate();
    BlockRecord record = RecordOf(1);
    record.is_moved = true;
    ASSERT_TRUE(tier().Write(++transfer_, to, record, Bytes(kLength, 1)).ok());
    rig_->Drain();
    EXPECT_TRUE(done_[transfer_].ok());
    EXPECT_EQ(tier().StateOfMoved(to), MovedState::kComing);
    if (is_durable) {
      rig_->Advance(options_.tier.sync_interval_us);
      tier().Tick();
      rig_->Drain();
      std::vector<std::byte> entry;
      const auto slot = static_cast<uint32_t>(to.position);
      ASSERT_TRUE(tier().ReadEntryNow(to.shard, slot, &entry).ok());
      EXPECT_EQ(entry[14], std::byte{1}) << "used";
      EXPECT_EQ(tier().StateOfMoved(to), MovedState::kComing) << "no sync has covered its entry";
      rig_->Settle();
      EXPECT_EQ(tier().StateOfMoved(to), MovedState::kDurable);
      ExpectLoads(to, 1);
    }
    EXPECT_TRUE(persisted_.empty());
    Restart();
    ASSERT_TRUE(found_.contains(1));
    EXPECT_EQ(found_[1].extent.position, is_durable ? to.position : from.position);
    ExpectLoads(found_[1].extent, 1);
  }
}

TEST_F(NvmeTierTest, ACopyThatIsFreedBeforeItIsDurableLeavesNothing) {
  Store(1);
  const Extent to = Allocate();
  BlockRecord record = RecordOf(1);
  record.is_moved = true;
  ASSERT_TRUE(tier().Write(++transfer_, to, record, Bytes(kLength, 1)).ok());
  rig_->Drain();
  tier().Free(to);
  EXPECT_EQ(tier().StateOfMoved(to), MovedState::kLost);
  rig_->Settle();
  EXPECT_EQ(tier().stats().used_bytes, kLength);
  EXPECT_FALSE(tier().has_erasures_pending());
}

// ---- room ----

TEST_F(NvmeTierTest, RoomIsMadeInTheBackgroundAndAnnounced) {
  EXPECT_EQ(tier().Allocate(0, kLength, 1).code(), StatusCode::kBusy);
  EXPECT_EQ(tier().Allocate(0, kLength, 1).code(), StatusCode::kBusy) << "one slab, not two";
  rig_->Drain();
  EXPECT_EQ(rooms_, 1);
  EXPECT_EQ(media_[0].used_bytes(), kSlabBytes);
  EXPECT_TRUE(tier().Allocate(0, kLength, 1).ok());
}

TEST_F(NvmeTierTest, NextSlabIsMadeBeforeTheLastSlotIsGone) {
  Allocate();
  uint32_t taken = 1;
  while (media_[0].used_bytes() == kSlabBytes && taken < kSlotsPerSlab) {
    ASSERT_TRUE(tier().Allocate(0, kLength, 1).ok());
    ++taken;
    rig_->Drain();
  }
  EXPECT_EQ(media_[0].used_bytes(), 2 * kSlabBytes);
  EXPECT_EQ(kSlotsPerSlab - taken, 3u) << "less than a quarter is free";
}

TEST_F(NvmeTierTest, CapacityIsHard) {
  uint32_t taken = 0;
  while (TryAllocate().ok()) ++taken;
  EXPECT_EQ(taken, 4 * kSlotsPerSlab);
  EXPECT_EQ(media_[0].used_bytes(), options_.tier.capacity_bytes);
  EXPECT_EQ(tier().Allocate(0, kLength, 1).code(), StatusCode::kNoSpace);
  EXPECT_EQ(tier().Allocate(0, 2 * kLength, 1).code(), StatusCode::kNoSpace) << "another shape";
  EXPECT_EQ(tier().stats().used_bytes, taken * kLength);
  EXPECT_EQ(tier().stats().capacity_bytes, 4 * kSlabBytes);
}

TEST_F(NvmeTierTest, WhereNoMoreFilesMayBeOpenItStaysAsItIsAndSaysSo) {
  options_.disk.files_max = 2;
  Start();
  for (uint64_t key = 1; key <= 2 * kSlotsPerSlab; ++key) {
    EXPECT_EQ(tier().stats().is_at_files_limit, media_[0].used_bytes() == 2 * kSlabBytes);
    Store(key);
  }
  EXPECT_EQ(tier().Allocate(0, kLength, 1).code(), StatusCode::kNoSpace);
  EXPECT_EQ(media_[0].used_bytes(), 2 * kSlabBytes) << "of four that it may have";
  EXPECT_EQ(tier().stats().files_open, 2u);
  EXPECT_EQ(tier().troubles().size(), 0u) << "the drive is well";

  options_.disk.files_max = 1;
  Restart();
  EXPECT_EQ(found_.size(), kSlotsPerSlab);
  EXPECT_EQ(tier().stats().left_alone_bytes, kSlabBytes);
  EXPECT_EQ(tier().stats().share.held_bytes, 2 * kSlabBytes);
  EXPECT_EQ(tier().stats().files_open, 1u);
  options_.tier.capacity_bytes = 2 * kSlabBytes;
  Restart();
  EXPECT_TRUE(tier().stats().is_at_files_limit) << "it may not grow, but has more than it can open";

  options_.disk.files_max = 2;
  Restart();
  EXPECT_EQ(found_.size(), 2 * kSlotsPerSlab) << "nothing was lost";
  EXPECT_FALSE(tier().stats().is_at_files_limit) << "it is as large as it may be";

  options_.disk.files_max = 0;
  Restart();
  EXPECT_TRUE(found_.empty());
  EXPECT_TRUE(tier().stats().is_at_files_limit) << "no file at all is a limit, too";
}

TEST_F(NvmeTierTest, ImpossibleExtentsAreInvalid) {
  EXPECT_EQ(tier().Allocate(0, 0, 1).code(), StatusCode::kInvalid);
  EXPECT_EQ(tier().Allocate(0, 4097, 1).code(), StatusCode::kInvalid);
  EXPECT_EQ(tier().stats().too_large_bytes, 0u);
  EXPECT_EQ(tier().Allocate(0, kSlabBytes, 1).code(), StatusCode::kInvalid);
  EXPECT_EQ(tier().stats().too_large_bytes, kSlabBytes) << "a person can mend that";
  EXPECT_EQ(tier().Allocate(0, kLength, 0).code(), StatusCode::kInvalid);
  EXPECT_EQ(tier().Allocate(0, kLength, 129).code(), StatusCode::kInvalid);
}

TEST_F(NvmeTierTest, OldestFreedSlotIsReusedFirst) {
  options_.tier.capacity_bytes = kSlabBytes;
  Start();
  std::vector<Extent> extents;
  for (uint64_t key = 1; key <= kSlotsPerSlab; ++key) extents.push_back(Store(key));
  for (const size_t freed : {7, 2, 11}) {
    tier().Free(extents[freed]);
    rig_->Settle();
  }
  for (const size_t freed : {7, 2, 11}) EXPECT_EQ(Allocate().position, extents[freed].position);
}

TEST_F(NvmeTierTest, SlotIsNotReusedBeforeItsEntrySaysFree) {
  options_.tier.capacity_bytes = kSlabBytes;
  Start();
  std::vector<Extent> extents;
  for (uint64_t key = 1; key <= kSlotsPerSlab; ++key) extents.push_back(Store(key));
  tier().Free(extents[3]);
  EXPECT_EQ(tier().Allocate(0, kLength, 1).code(), StatusCode::kBusy);
  rooms_ = 0;
  rig_->Drain();
  EXPECT_EQ(rooms_, 1);
  const Extent again = tier().Allocate(0, kLength, 1).value();
  EXPECT_EQ(again.position, extents[3].position);
  EXPECT_EQ(again.generation, extents[3].generation + 1);
  std::vector<std::byte> entry;
  ASSERT_TRUE(tier().ReadEntryNow(again.shard, static_cast<uint32_t>(again.position), &entry).ok());
  EXPECT_EQ(entry[14], std::byte{0}) << "free";
}

TEST_F(NvmeTierTest, SlabsSpreadOverDisksAndBlocksGoWhereLeastIsInFlight) {
  media_.resize(3);
  options_.tier.capacity_bytes = 12 * kSlabBytes;
  Start();
  std::vector<Extent> extents;
  for (uint64_t key = 1; key <= 6 * kSlotsPerSlab; ++key) extents.push_back(Store(key));
  for (const SimMedium& medium : media_) {
    EXPECT_NEAR(static_cast<double>(medium.used_bytes()), 2.5 * kSlabBytes, kSlabBytes);
  }
  for (const Extent& extent : extents) tier().Free(extent);
  rig_->Settle();
  std::map<uint32_t, int> disks;
  for (uint64_t key = 500; key < 506; ++key) {
    const Extent extent = tier().Allocate(0, kLength, 1).value();
    ASSERT_TRUE(BeginWrite(extent, key).ok());
    for (uint32_t disk = 0; disk < 3; ++disk) {
      disks[disk] += media_[disk].Has("slab-" + std::to_string(extent.shard) + ".terrace");
    }
  }
  EXPECT_EQ(disks, (std::map<uint32_t, int>{{0, 2}, {1, 2}, {2, 2}}));
}

// ---- shapes ----

TEST_F(NvmeTierTest, EmptySlabTakesAnotherShapeAndItsOldExtentsAreGone) {
  options_.tier.capacity_bytes = kSlabBytes;
  Start();
  const Extent first = Store(1);
  tier().Free(first);
  rig_->Settle();
  const Extent other = Store(2, 4 * kKiB);
  EXPECT_EQ(other.shard, first.shard);
  EXPECT_EQ(media_[0].used_bytes(), kSlabBytes);
  tier().Free(other);
  rig_->Settle();
  const Extent again = Allocate();
  EXPECT_EQ(again.position, first.position);
  EXPECT_NE(again, first) << "generations go on over shapes";
  EXPECT_EQ(tier().Read(99, first, Bytes(kLength, 0)).code(), StatusCode::kGone);
}

TEST_F(NvmeTierTest, PoorShapeIsToldWhoseBlocksToDropForASlab) {
  uint64_t key = 1;
  while (true) {
    const Result<Extent> extent = TryAllocate();
    if (!extent.ok()) break;
    ASSERT_TRUE(BeginWrite(*extent, key++).ok());
    rig_->Drain();
  }
  rig_->Settle();
  std::map<uint32_t, Extent> by_owner;
  Restart();
  for (const auto& [found_key, found] : found_) {
    by_owner[static_cast<uint32_t>(found_key)] = found.extent;
  }
  tier().Free(by_owner.at(20));  // its slab is the emptiest now
  rig_->Settle();
  std::vector<uint32_t> owners;
  tier().AppendOwnersToDrop(kLength, 1, &owners);
  EXPECT_TRUE(owners.empty()) << "single blocks of the own shape will do";
  EXPECT_EQ(tier().Allocate(0, 4 * kKiB, 1).code(), StatusCode::kNoSpace);
  tier().AppendOwnersToDrop(4 * kKiB, 1, &owners);
  EXPECT_EQ(owners.size(), kSlotsPerSlab - 1);
  const uint32_t slab = by_owner.at(owners[0]).shard;
  for (const uint32_t owner : owners) EXPECT_EQ(by_owner.at(owner).shard, slab);
  EXPECT_EQ(slab, by_owner.at(20).shard) << "the emptiest";
  EXPECT_EQ(tier().Allocate(0, kLength, 1).code(), StatusCode::kNoSpace)
      << "a slab that drains takes no blocks";
  std::vector<uint32_t> again;
  tier().AppendOwnersToDrop(4 * kKiB, 1, &again);
  EXPECT_EQ(again, owners) << "the same slab until it is empty";
  for (const uint32_t owner : owners) tier().Free(by_owner.at(owner));
  rig_->Settle();
  EXPECT_EQ(Store(1000, 4 * kKiB).shard, slab);
}

TEST_F(NvmeTierTest, SlabThatDoesNotDrainTakesBlocksAgain) {
  options_.tier.capacity_bytes = kSlabBytes;
  Start();
  Store(1);
  EXPECT_EQ(tier().Allocate(0, 4 * kKiB, 1).code(), StatusCode::kNoSpace);
  std::vector<uint32_t> owners;
  tier().AppendOwnersToDrop(4 * kKiB, 1, &owners);
  EXPECT_EQ(owners, std::vector<uint32_t>{1});
  EXPECT_EQ(tier().Allocate(0, kLength, 1).code(), StatusCode::kNoSpace);
  rig_->Advance(31'000'000);
  tier().Tick();
  EXPECT_TRUE(tier().Allocate(0, kLength, 1).ok());
}

// ---- entries ----

TEST_F(NvmeTierTest, BlockOutlivesTheProcess) {
  const Extent extent = Store(42);
  EXPECT_EQ(persisted_, (Persisted{{42, 4200, 3}}));
  Restart();
  ASSERT_EQ(found_.size(), 1u);
  const auto& [record, restored] = found_.at(42);
  EXPECT_EQ(restored, extent);
  EXPECT_EQ(record.group, (GroupId{1, 1}));
  EXPECT_EQ(record.space, (SpaceId{2, 2}));
  EXPECT_EQ(record.key, (BlockKey{42, 7}));
  EXPECT_EQ(record.parent, (BlockKey{41, 7}));
  EXPECT_EQ(record.commit_id, 4200u);
  EXPECT_EQ(record.event_hash, 126u);
  EXPECT_EQ(record.expires_at_s, 1042u);
  EXPECT_EQ(record.position, 5u);
  EXPECT_EQ(record.recompute_ns_per_token, 9u);
  EXPECT_EQ(record.member, 3u);
  EXPECT_EQ(record.priority, 50u);
  ExpectLoads(restored, 42);
  EXPECT_EQ(tier().stats().used_bytes, kLength);
}

TEST_F(NvmeTierTest, FreedBlockStaysFreed) {
  const Extent extent = Store(42);
  tier().Free(extent);
  EXPECT_TRUE(tier().has_erasures_pending());
  rig_->Settle();
  EXPECT_FALSE(tier().has_erasures_pending());
  Restart();
  EXPECT_TRUE(found_.empty());
  EXPECT_EQ(tier().stats().used_bytes, 0u);
}

TEST_F(NvmeTierTest, LatestOfManyAmendmentsHolds) {
  const Extent extent = Store(42);
  BlockRecord record = RecordOf(42);
  for (uint8_t priority = 1; priority <= 20; ++priority) {
    record.priority = priority;
    tier().Amend(extent, record);
    if (priority % 3 == 0) rig_->Step();
  }
  record.is_pinned = true;
  tier().Amend(extent, record);
  rig_->Settle();
  EXPECT_EQ(persisted_.size(), 1u) << "at most once a write";
  Restart();
  EXPECT_TRUE(found_.at(42).record.is_pinned);
  EXPECT_EQ(found_.at(42).record.priority, 20);
}

TEST_F(NvmeTierTest, FreeingOvertakesAnEntryThatIsBeingWritten) {
  const Extent extent = Allocate();
  ASSERT_TRUE(BeginWrite(extent, 42).ok());
  while (done_.empty()) rig_->Step();
  rig_->tier().Free(extent);  // the entry is on its way
  rig_->Settle();
  EXPECT_TRUE(persisted_.empty());
  EXPECT_FALSE(tier().has_erasures_pending());
  Restart();
  EXPECT_TRUE(found_.empty());
}

TEST_F(NvmeTierTest, LiveSlotIsNeverOverwritten) {
  const Extent extent = Store(42);
  EXPECT_EQ(BeginWrite(extent, 43).code(), StatusCode::kInvalid);
  ExpectLoads(extent, 42);
}

class RecordingCatalog : public ExtentCatalog {
 public:
  void OnEntryWritten(uint32_t slab, uint32_t slot) override { told.push_back({slab, slot}); }
  std::vector<std::pair<uint32_t, uint32_t>> told;
};

TEST_F(NvmeTierTest, PersistedAndErasedMeanThatTheCatalogKnows) {
  RecordingCatalog catalog;
  options_.tier.catalog = &catalog;
  Start();
  const Extent extent = Store(42);
  const auto slot = static_cast<uint32_t>(extent.position);
  EXPECT_TRUE(persisted_.empty());
  ASSERT_EQ(catalog.told, (std::vector<std::pair<uint32_t, uint32_t>>{{extent.shard, slot}}));
  std::vector<std::byte> entry;
  EXPECT_TRUE(tier().ReadEntryNow(extent.shard, slot, &entry).ok());
  tier().OnCataloged(extent.shard, slot);
  tier().OnCataloged(extent.shard, slot);
  EXPECT_EQ(persisted_, (Persisted{{42, 4200, 3}}));
  tier().Free(extent);
  rig_->Settle();
  EXPECT_EQ(catalog.told.size(), 2u);
  EXPECT_TRUE(tier().has_erasures_pending());
  tier().OnCataloged(extent.shard, slot);
  EXPECT_FALSE(tier().has_erasures_pending());
  tier().OnCataloged(77, 0);  // of no slab
  tier().OnCataloged(extent.shard, 1'000'000);
}

TEST_F(NvmeTierTest, CatalogAnswerThatIsOvertakenEndsNoErasure) {
  RecordingCatalog catalog;
  options_.tier.catalog = &catalog;
  Start();
  const Extent extent = Store(42);
  tier().Free(extent);  // its entry is being written when the answer to the first one comes
  tier().OnCataloged(extent.shard, static_cast<uint32_t>(extent.position));
  EXPECT_TRUE(persisted_.empty());
  EXPECT_TRUE(tier().has_erasures_pending());
  rig_->Settle();
  tier().OnCataloged(extent.shard, static_cast<uint32_t>(extent.position));
  EXPECT_FALSE(tier().has_erasures_pending());
}

// An amended entry that arrives after the catalog was marked complete would be news to it.
TEST_F(NvmeTierTest, IsNotQuietWhileAnEntryIsOnItsWayToTableOrCatalog) {
  Catalog catalog;
  options_.tier.catalog = &catalog;
  Restart();
  const auto answer = [&] {
    for (const auto& [slab, slot] : std::exchange(catalog.told, {})) tier().OnCataloged(slab, slot);
  };
  const Extent extent = Store(1);
  EXPECT_FALSE(tier().is_quiet());
  answer();
  EXPECT_TRUE(tier().is_quiet());
  tier().Amend(extent, RecordOf(1));
  EXPECT_FALSE(tier().has_erasures_pending());
  EXPECT_EQ(tier().stats().transfers_in_flight, 0u);
  EXPECT_FALSE(tier().is_quiet()) << "it is being written";
  rig_->Drain();
  EXPECT_FALSE(tier().is_quiet()) << "the catalog has the old one";
  answer();
  EXPECT_TRUE(tier().is_quiet());
  tier().Free(extent);
  EXPECT_FALSE(tier().is_quiet());
  rig_->Settle();
  answer();
  EXPECT_TRUE(tier().is_quiet());
}

TEST_F(NvmeTierTest, ErasureEndsWhenASyncCoversIt) {
  const Extent first = Store(42);
  const Extent second = Store(43);
  const uint64_t begun = tier().erasures().begun;
  tier().Free(first);
  rig_->Drain();
  std::vector<std::byte> entry;
  ASSERT_TRUE(tier().ReadEntryNow(first.shard, static_cast<uint32_t>(first.position), &entry).ok());
  EXPECT_EQ(entry[14], std::byte{0}) << "written, but perhaps in the page cache alone";
  EXPECT_TRUE(tier().has_erasures_pending());
  rig_->Advance(1'100'000);
  tier().Tick();
  tier().Free(second);  // not covered by the sync that has begun
  rig_->Drain();
  EXPECT_EQ(tier().erasures().begun, begun + 2);
  EXPECT_EQ(tier().erasures().ended, begun + 1);
  rig_->Settle();
  EXPECT_EQ(tier().erasures().ended, begun + 2);
}

// The last daemon freed it and was killed before a sync: the table says so, the drive may not.
TEST_F(NvmeTierTest, WhatTheLastDaemonErasedIsDurableAfterTheFirstSync) {
  const Extent extent = Store(42);
  tier().Free(extent);
  rig_->Drain();
  Restart();
  EXPECT_TRUE(found_.empty());
  EXPECT_TRUE(tier().has_erasures_pending());
  rig_->Settle();
  EXPECT_FALSE(tier().has_erasures_pending());
  rig_->PowerLoss();
  Start();
  EXPECT_TRUE(found_.empty());
}

TEST_F(NvmeTierTest, EntriesAreReadBackOneByOne) {
  const Extent extent = Store(42);
  std::vector<std::byte> entry;
  EXPECT_EQ(tier().ReadEntryNow(extent.shard, 9, &entry).code(), StatusCode::kNotFound);
  EXPECT_EQ(tier().ReadEntryNow(extent.shard, 999, &entry).code(), StatusCode::kNotFound);
  EXPECT_EQ(tier().ReadEntryNow(9, 0, &entry).code(), StatusCode::kNotFound);
  EXPECT_TRUE(
      tier().ReadEntryNow(extent.shard, static_cast<uint32_t>(extent.position), &entry).ok());
}

// ---- restoring ----

TEST_F(NvmeTierTest, CatalogAndScanRestoreTheSame) {
  std::map<uint64_t, Extent> stored;
  for (uint64_t key = 1; key <= 25; ++key) stored[key] = Store(key);
  for (const uint64_t key : {3, 9, 17}) {
    tier().Free(stored.at(key));
    stored.erase(key);
  }
  rig_->Settle();
  std::map<std::pair<uint32_t, uint32_t>, std::vector<std::byte>> records;
  for (uint32_t slab = 0; slab < 4; ++slab) {
    for (uint32_t slot = 0; slot < kSlotsPerSlab; ++slot) {
      std::vector<std::byte> entry;
      if (tier().ReadEntryNow(slab, slot, &entry).ok()) records[{slab, slot}] = entry;
    }
  }
  Restart();
  const std::map<uint64_t, Found> scanned = found_;
  rig_->KillProcess();
  rig_ = std::make_unique<NvmeRig>(std::vector{&media_[0]}, options_, this);
  found_.clear();
  const SlabRestore::Sink sink = [this](const BlockRecord& record, const Extent& extent) {
    found_[record.key.low] = {record, extent};
    return static_cast<uint32_t>(record.key.low);
  };
  ASSERT_TRUE(tier().restore().OpenSlabs(&rig_->notes()).ok());
  for (const auto& [place, entry] : records) {
    ASSERT_TRUE(tier().restore().RestoreEntry(place.first, place.second, entry, sink).ok());
  }
  EXPECT_EQ(tier().restore().RestoreEntry(99, 0, records.begin()->second, sink).code(),
            StatusCode::kNotFound);  // a slab that is no more
  tier().restore().Finish();
  ASSERT_EQ(found_.size(), stored.size());
  for (const auto& [key, found] : found_) {
    EXPECT_EQ(found.extent, scanned.at(key).extent);
    EXPECT_EQ(found.extent, stored.at(key));
    EXPECT_EQ(found.record.commit_id, scanned.at(key).record.commit_id);
  }
  EXPECT_EQ(tier().stats().used_bytes, stored.size() * kLength);
  ExpectLoads(found_.at(5).extent, 5);
}

TEST_F(NvmeTierTest, OfTwoEntriesForOneKeyTheLaterWriteHolds) {
  for (const uint64_t newer_first : {0, 1}) {
    media_.assign(1, SimMedium());
    Start();
    const Extent first = Store(newer_first ? 2 : 1);
    const Extent second = Store(newer_first ? 1 : 2);
    // Give both entries key 1, each sealed in its own place.
    const SlabGeometry geometry = SlabGeometry::Of({kLength, 1}, kSlabBytes).value();
    std::vector<std::byte> sector(kSlabSectorBytes), bytes(geometry.entry_bytes);
    media_[0].Peek("slab-0.terrace", 0, sector);
    const SlabUuid uuid = DecodeSuperblock(sector, options_.tier.secret)->uuid;
    for (const Extent& extent : {first, second}) {
      const auto slot = static_cast<uint32_t>(extent.position);
      SlabEntry entry;
      media_[0].Peek("slab-0.terrace", geometry.EntryOffsetBytes(slot), bytes);
      ASSERT_TRUE(DecodeEntry(geometry, uuid, slot, bytes, options_.tier.secret, &entry).ok());
      entry.key = {1, 7};
      if (newer_first) entry.epoch = 1000 - entry.epoch;
      EncodeEntry(geometry, uuid, entry, options_.tier.secret, bytes);
      media_[0].Poke("slab-0.terrace", geometry.EntryOffsetBytes(slot), bytes);
    }
    Restart();
    ASSERT_EQ(found_.size(), 1u);
    EXPECT_EQ(found_.at(1).extent, newer_first ? first : second);
    EXPECT_EQ(found_.at(1).record.commit_id, 200u);
    EXPECT_TRUE(tier().has_erasures_pending()) << "the older one is erased";
    rig_->Settle();
    Restart();
    EXPECT_EQ(found_.size(), 1u);
    EXPECT_EQ(tier().restore().counts().entries_used, 1u);
  }
}

TEST_F(NvmeTierTest, LaterDaemonsWriteHigherEpochs) {
  Store(1);
  Restart();
  const uint64_t before = found_.at(1).record.epoch;
  Store(2);
  Restart();
  EXPECT_GT(found_.at(2).record.epoch, before);
}

TEST_F(NvmeTierTest, UnwantedBlockIsFreedOnDiskToo) {
  Store(1);
  rig_->KillProcess();
  rig_ = std::make_unique<NvmeRig>(std::vector{&media_[0]}, options_, this);
  ASSERT_TRUE(rig_->Restore([](const BlockRecord&, const Extent&) { return kOwnerNone; }).ok());
  EXPECT_EQ(tier().stats().used_bytes, 0u);
  rig_->Settle();
  Restart();
  EXPECT_TRUE(found_.empty());
}

TEST_F(NvmeTierTest, SlabsAboveASmallerCapacityGo) {
  for (uint64_t key = 1; key <= 4 * kSlotsPerSlab; ++key) Store(key);
  options_.tier.capacity_bytes = 2 * kSlabBytes;
  Restart();
  EXPECT_EQ(found_.size(), 2 * kSlotsPerSlab);
  EXPECT_EQ(rig_->notes().size(), 2u);
  rig_->Settle();
  EXPECT_EQ(media_[0].used_bytes(), 2 * kSlabBytes);
  ExpectLoads(found_.begin()->second.extent, static_cast<int>(found_.begin()->first));
}

}  // namespace
}  // namespace terrace

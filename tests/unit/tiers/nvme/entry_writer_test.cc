#include "tiers/nvme/entry_writer.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>

#include "unit/tiers/nvme/fake_disk.h"

namespace terrace {
namespace {

using Slots = std::vector<uint32_t>;

class FakeCatalog final : public ExtentCatalog {
 public:
  void OnEntryWritten(uint32_t, uint32_t slot) override { told.push_back(slot); }
  Slots told;
};

class EntryWriterTest : public testing::Test, public DiskListener, public EntryListener {
 protected:
  EntryWriterTest() {
    slab_.TakeShape(SlabGeometry::Of({4 * kKiB, 1}, kMiB).value(), {5, 6});
    slab_.phase = SlabPhase::kActive;
  }
  void OnDiskDone(uint64_t tag, Status status) override {
    writer_.OnWritten(disks_.Finish(tag, status), status);
    writer_.Write();
  }
  void OnEntrySettled(NvmeSlab&, uint32_t slot) override { settled_.push_back(slot); }
  void OnEntryCataloged(NvmeSlab&, uint32_t slot,
                        const std::optional<WrittenBlock>& persisted) override {
    cataloged_.push_back(slot);
    if (persisted) persisted_.push_back(persisted->commit_id);
  }
  Extent ExtentOf(uint32_t slot) const {
    return {.position = slot,
            .length_bytes = 4 * kKiB,
            .shard = slab_.index,
            .generation = slab_.slots[slot].generation};
  }
  BlockRecord RecordOf(CommitId commit_id) {
    BlockRecord record;
    record.key = {commit_id, 1};
    record.commit_id = commit_id;
    record.part_checksums = checksum_;
    return record;
  }
  // A block whose payload has arrived.
  uint32_t StoreBlock(CommitId commit_id) {
    const uint32_t slot = slab_.slots.Take();
    writer_.HoldNew(slab_, slot, ExtentOf(slot), RecordOf(commit_id));
    slab_.slots.SetState(slot, SlabSlotState::kUsed);
    writer_.MarkDirty(slab_, slot);
    writer_.Write();
    return slot;
  }
  SlabEntry Asked(size_t at, uint32_t slot) const {
    SlabEntry entry;
    EXPECT_TRUE(
        DecodeEntry(slab_.geometry, slab_.uuid, slot, disk_.bytes[at], secret_, &entry).ok());
    return entry;
  }

  DomainSecret secret_{};
  std::array<Checksum, 1> checksum_ = {Checksum{11, 12}};
  FakeDisk disk_{2};
  FakeCatalog catalog_;
  NvmeDisks disks_{
      {.disks = {&disk_}, .now_us = [] { return uint64_t{1}; }, .health = {}, .stuck_us = 1000},
      this};
  SlabSet slabs_{1};
  NvmeSlab& slab_ = slabs_.Add(0, 0, 0, kMiB);
  EntryWriter writer_{{.secret = secret_, .catalog = &catalog_}, disks_, slabs_, *this};
  Slots settled_, cataloged_;
  std::vector<CommitId> persisted_;
};

TEST_F(EntryWriterTest, ABlockIsPersistedOnceTableAndCatalogKnow) {
  const uint32_t slot = StoreBlock(42);
  ASSERT_EQ(disk_.asked.size(), 1u);
  EXPECT_EQ(disk_.asked[0].offset_bytes, slab_.geometry.EntryOffsetBytes(slot));
  EXPECT_EQ(Asked(0, slot).commit_id, 42u);
  writer_.OnCataloged(0, slot);
  EXPECT_TRUE(persisted_.empty()) << "an answer to nothing";
  disk_.Answer();
  EXPECT_EQ(settled_, (Slots{slot}));
  EXPECT_EQ(catalog_.told, (Slots{slot}));
  EXPECT_TRUE(persisted_.empty());
  writer_.OnCataloged(0, slot);
  writer_.OnCataloged(0, slot);
  EXPECT_EQ(persisted_, (std::vector<CommitId>{42}));
  EXPECT_FALSE(writer_.is_held(slab_, slot));
}

TEST_F(EntryWriterTest, TheLatestDecisionWinsWithOneWriteInFlight) {
  const uint32_t slot = StoreBlock(1);
  for (uint8_t priority = 10; priority < 15; ++priority) {
    BlockRecord record = RecordOf(1);
    record.priority = priority;
    writer_.Hold(slab_, slot, ExtentOf(slot), record);
    writer_.MarkDirty(slab_, slot);
    writer_.Write();
  }
  ASSERT_EQ(disk_.asked.size(), 1u);
  disk_.Answer();
  ASSERT_EQ(disk_.asked.size(), 1u);
  EXPECT_EQ(Asked(0, slot).priority, 14u);
  EXPECT_TRUE(settled_.empty()) << "something newer is on its way";
  disk_.Answer();
  EXPECT_EQ(settled_, (Slots{slot}));
  EXPECT_TRUE(disk_.asked.empty());
}

TEST_F(EntryWriterTest, CatalogsAnswerIsOvertakenByALaterWrite) {
  const uint32_t slot = StoreBlock(1);
  disk_.Answer();
  writer_.Hold(slab_, slot, ExtentOf(slot), RecordOf(1));
  writer_.MarkDirty(slab_, slot);
  writer_.OnCataloged(0, slot);
  EXPECT_TRUE(cataloged_.empty());
  writer_.Write();
  disk_.Answer();
  writer_.OnCataloged(0, slot);
  EXPECT_EQ(persisted_, (std::vector<CommitId>{1})) << "once, of the write that began it";
}

TEST_F(EntryWriterTest, WhatSlotsAreNobodysSaysSo) {
  const uint32_t slot = StoreBlock(1);
  disk_.Answer();
  writer_.Drop(slab_, slot);
  slab_.slots.EndGeneration(slot);
  slab_.slots.SetState(slot, SlabSlotState::kErasing);
  writer_.MarkDirty(slab_, slot);
  writer_.Write();
  EXPECT_EQ(Asked(0, slot).state, SlabEntryState::kFree);
  EXPECT_EQ(Asked(0, slot).generation, slab_.slots[slot].generation);
  EXPECT_TRUE(slab_.slots[slot].has(kEntryNamed)) << "until it is written";
  disk_.Answer();
  EXPECT_FALSE(slab_.slots[slot].has(kEntryNamed));
  slab_.slots.SetState(1, SlabSlotState::kQuarantined);
  writer_.MarkDirty(slab_, 1);
  writer_.Write();
  EXPECT_EQ(Asked(0, 1).state, SlabEntryState::kQuarantined);
}

TEST_F(EntryWriterTest, AFailedEntryWaitsForTheNextTick) {
  const uint32_t slot = StoreBlock(1);
  disk_.Answer(Status(StatusCode::kIo, "the drive", EIO));
  EXPECT_TRUE(disk_.asked.empty()) << "not at once";
  writer_.Resume();
  writer_.Write();
  ASSERT_EQ(disk_.asked.size(), 1u);
  disk_.Answer();
  EXPECT_EQ(settled_, (Slots{slot}));
}

TEST_F(EntryWriterTest, AFullQueueKeepsTheRestInOrder) {
  for (CommitId commit_id = 1; commit_id <= 4; ++commit_id) StoreBlock(commit_id);
  EXPECT_EQ(disk_.asked.size(), 2u);
  while (!disk_.asked.empty()) disk_.Answer();
  EXPECT_EQ(settled_, (Slots{0, 1, 2, 3}));
}

TEST_F(EntryWriterTest, LaterWritesHaveHigherEpochsThanAnyThatWasSeen) {
  writer_.RaiseEpoch(100);
  writer_.RaiseEpoch(7);
  const uint32_t slot = StoreBlock(1);
  EXPECT_EQ(Asked(0, slot).epoch, 101u);
}

TEST_F(EntryWriterTest, AnEntryNamesTheBlockThatHasTheSlotOnly) {
  const uint32_t slot = slab_.slots.Take();
  Extent extent = ExtentOf(slot);
  ++extent.generation;
  EXPECT_DEATH(writer_.Hold(slab_, slot, extent, RecordOf(1)), "that has the slot");
}

}  // namespace
}  // namespace terrace

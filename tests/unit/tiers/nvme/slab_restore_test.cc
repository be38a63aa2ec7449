// What a start makes of what lies on the disks: whole, torn, foreign, doubled, unreadable.
#include "tiers/nvme/slab_restore.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "tiers/nvme/left_entries.h"
#include "unit/tiers/nvme/slab_parts_fixture.h"

namespace terrace {
namespace {

using Bytes = std::vector<std::byte>;
using Keys = std::vector<uint64_t>;

class SlabRestoreTest : public SlabPartsTest {
 protected:
  static constexpr SlabUuid kUuid{5, 6};

  SlabRestoreTest() { Reset(2 * kSlabBytes); }
  void Reset(uint64_t capacity_bytes, const std::set<std::string>& outdated_files = {}) {
    restore_ = std::make_unique<SlabRestore>(
        SlabRestore::Options{
            .secret = secret_, .capacity_bytes = capacity_bytes, .outdated_files = outdated_files},
        SlabRestore::Neighbours{disks_, slabs_, classes_, entries_, erasures_, left_});
  }
  // A file as a daemon left it, with an empty table.
  Bytes& AddFile(uint32_t index, const SlabShape& shape = kLarge) {
    Bytes& file = near_.files["slab-" + std::to_string(index) + ".terrace"];
    file.resize(kSlabBytes);
    EncodeSuperblock({.uuid = kUuid, .slab_index = index, .shape = shape, .slab_bytes = kSlabBytes},
                     secret_, std::span(file).first(kSlabSectorBytes));
    return file;
  }
  SlabEntry Entry(uint32_t slot, uint64_t key, uint64_t epoch = 1) const {
    SlabEntry entry;
    entry.state = SlabEntryState::kUsed;
    entry.slot = slot;
    entry.generation = 3;
    entry.epoch = epoch;
    entry.length_bytes = geometry_.shape.slot_bytes;
    entry.key = {key, 1};
    entry.part_checksums = {checksum_[0]};
    return entry;
  }
  std::span<std::byte> PlaceIn(Bytes& file, uint32_t slot) const {
    return std::span(file).subspan(geometry_.EntryOffsetBytes(slot), geometry_.entry_bytes);
  }
  void Put(Bytes& file, const SlabEntry& entry) const {
    EncodeEntry(geometry_, kUuid, entry, secret_, PlaceIn(file, entry.slot));
  }
  void Open() { ASSERT_TRUE(restore_->OpenSlabs(&notes_).ok()); }
  void OpenAndScan() {
    Open();
    ASSERT_TRUE(restore_->Scan(Sink()).ok());
    restore_->Finish();
  }
  // Its owner is the key, unless `owners_` says something else.
  SlabRestore::Sink Sink() {
    return [this](const BlockRecord& record, const Extent& extent) {
      offered_.push_back(record.key.low);
      extents_[record.key.low] = extent;
      const auto found = owners_.find(record.key.low);
      return found == owners_.end() ? static_cast<uint32_t>(record.key.low) : found->second;
    };
  }
  const SlabSlot& Slot(uint32_t slot) const { return slabs_[0].slots[slot]; }

  const SlabGeometry geometry_ = SlabGeometry::Of(kLarge, kSlabBytes).value();
  LeftEntries left_{{slabs_, classes_, entries_, erasures_}};
  std::unique_ptr<SlabRestore> restore_;
  std::vector<std::string> notes_;
  Keys offered_;  // to the sink, in order
  std::map<uint64_t, Extent> extents_;
  std::map<uint64_t, uint32_t> owners_;
};

TEST_F(SlabRestoreTest, AWholeEntryIsOfferedAndItsSlotIsItsOwners) {
  Put(AddFile(0), Entry(4, 42));
  OpenAndScan();
  EXPECT_EQ(offered_, Keys{42});
  EXPECT_EQ(Slot(4).state, SlabSlotState::kUsed);
  EXPECT_EQ(Slot(4).owner, 42u);
  EXPECT_EQ(slabs_.Find(extents_.at(42)), slabs_.At(0));
  EXPECT_TRUE(Slot(4).has(kEntryNamed));
  EXPECT_EQ(slabs_[0].phase, SlabPhase::kActive);
  EXPECT_EQ(restore_->counts().entries_kept, 1u);
}

// Every byte of an entry may be the one that did not arrive.
TEST_F(SlabRestoreTest, ATornEntryIsOfferedToNobodyAndItsSlotIsGivenToNobody) {
  Bytes& file = AddFile(0);
  uint32_t torn_count = 0;
  for (uint32_t slot = 0; slot + 1 < geometry_.slot_count; ++slot, ++torn_count) {
    Put(file, Entry(slot, 100 + slot));
    const size_t kept_bytes = geometry_.entry_bytes * slot / geometry_.slot_count;
    const std::span<std::byte> place = PlaceIn(file, slot);
    if (slot % 2 == 0) {
      std::ranges::fill(place.subspan(kept_bytes), std::byte{0xA5});  // its end is another's
    } else {
      place[kept_bytes] ^= std::byte{1};
    }
  }
  OpenAndScan();
  EXPECT_TRUE(offered_.empty());
  EXPECT_EQ(restore_->counts().entries_corrupt, torn_count);
  EXPECT_EQ(slabs_[0].slots.quarantined_count(), torn_count);
  ASSERT_EQ(classes_.Pick(Class(kLarge)), slabs_.At(0));
  EXPECT_EQ(classes_.Take(slabs_[0]), geometry_.slot_count - 1);
  EXPECT_EQ(classes_.Pick(Class(kLarge)), nullptr);
}

TEST_F(SlabRestoreTest, AnEntryOfAnotherPlaceIsNoEntry) {
  Bytes& file = AddFile(0);
  Put(file, Entry(1, 42));
  std::ranges::copy(PlaceIn(file, 1), PlaceIn(file, 2).begin());
  OpenAndScan();
  EXPECT_EQ(offered_, Keys{42});
  EXPECT_EQ(Slot(2).state, SlabSlotState::kQuarantined);
}

TEST_F(SlabRestoreTest, OfTwoEntriesForOneKeyTheLaterWriteHoldsAndTheOtherIsErased) {
  Bytes& file = AddFile(0);
  Put(file, Entry(1, 42, 9));
  Put(file, Entry(2, 42, 8));
  Put(file, Entry(3, 43, 7));
  OpenAndScan();
  EXPECT_EQ(offered_, (Keys{42, 43}));
  EXPECT_EQ(Slot(1).owner, 42u);
  EXPECT_EQ(Slot(2).state, SlabSlotState::kErasing);
  entries_.Write();
  ASSERT_EQ(near_.asked.size(), 1u);
  EXPECT_EQ(EntryOf(slabs_[0], 2, near_.bytes[0]).state, SlabEntryState::kFree);
  EXPECT_EQ(restore_->counts().entries_used, 3u);
  EXPECT_EQ(restore_->counts().entries_kept, 2u);
}

TEST_F(SlabRestoreTest, MembersOfOneBlockAreNoDoubles) {
  Bytes& file = AddFile(0);
  for (uint16_t member = 0; member < 2; ++member) {
    SlabEntry entry = Entry(member, 42, 1 + member);
    entry.member = member;
    Put(file, entry);
  }
  OpenAndScan();
  EXPECT_EQ(offered_, (Keys{42, 42}));
}

TEST_F(SlabRestoreTest, WhatNobodyWantsIsErasedAndWhatNobodyKnowsStays) {
  Bytes& file = AddFile(0);
  Put(file, Entry(1, 41));
  Put(file, Entry(2, 42));
  owners_ = {{41, kOwnerNone}, {42, kOwnerUnknown}};
  OpenAndScan();
  EXPECT_EQ(Slot(1).state, SlabSlotState::kErasing);
  EXPECT_GT(Slot(1).generation, 3u) << "an extent of before is gone";
  EXPECT_EQ(Slot(2).state, SlabSlotState::kQuarantined);
  EXPECT_FALSE(Slot(2).has(kEntryDirty)) << "its entry stays as it is";
  EXPECT_EQ(restore_->counts().entries_left, 1u);
}

TEST_F(SlabRestoreTest, WhatNobodyKnowsIsFoundByAnErasureWhereverItWasReadFrom) {
  Bytes& file = AddFile(0);
  Put(file, Entry(1, 41));
  Put(file, Entry(2, 42));
  Put(file, Entry(3, 43));
  owners_ = {{41, kOwnerUnknown}, {42, kOwnerUnknown}};
  Open();
  const Bytes record(PlaceIn(file, 1).begin(), PlaceIn(file, 1).end());
  ASSERT_TRUE(restore_->RestoreEntry(0, 1, record, Sink()).ok());
  ASSERT_TRUE(restore_->Scan(Sink()).ok());
  restore_->Finish();
  EXPECT_EQ(left_.count(), 2u);
  UnindexedTaken taken;
  for (const uint64_t key : {41, 42, 43}) left_.EraseKey(GroupId{}, {key, 1}, &taken);
  EXPECT_EQ(taken.block_count, 2u);
  EXPECT_EQ(Slot(1).state, SlabSlotState::kErasing);
  EXPECT_EQ(Slot(2).state, SlabSlotState::kErasing);
  EXPECT_EQ(Slot(3).state, SlabSlotState::kUsed);
}

TEST_F(SlabRestoreTest, GenerationsAndEpochsGoOnAboveAllThatWereSeen) {
  Bytes& file = AddFile(0);
  SlabEntry free = Entry(1, 0);
  free.state = SlabEntryState::kFree;
  free.generation = 70;
  Put(file, free);
  Put(file, Entry(2, 42, 900));
  OpenAndScan();
  EXPECT_EQ(Slot(1).generation, 70u);
  EXPECT_GT(Slot(5).generation, 70u) << "its entry was not seen";
  const uint32_t slot = StoreBlock(slabs_[0], 7);
  EXPECT_EQ(EntryOf(slabs_[0], slot, near_.bytes.at(0)).epoch, 901u);
}

TEST_F(SlabRestoreTest, QuarantineOutlivesTheDaemon) {
  SlabEntry entry = Entry(1, 0);
  entry.state = SlabEntryState::kQuarantined;
  Put(AddFile(0), entry);
  OpenAndScan();
  EXPECT_EQ(Slot(1).state, SlabSlotState::kQuarantined);
  EXPECT_EQ(restore_->counts().entries_corrupt, 0u);
}

TEST_F(SlabRestoreTest, ASectorThatCannotBeReadCostsItsEntriesAndIsToBeCleared) {
  Bytes& file = AddFile(0, kSmall);
  const SlabGeometry geometry = SlabGeometry::Of(kSmall, kSlabBytes).value();
  SlabEntry entry = Entry(0, 42);
  entry.length_bytes = kSmall.slot_bytes;
  entry.slot = geometry.entries_per_sector;  // the second sector's first
  EncodeEntry(geometry, kUuid, entry, secret_,
              std::span(file).subspan(geometry.EntryOffsetBytes(entry.slot), geometry.entry_bytes));
  near_.bad_offsets = {kSlabTableOffsetBytes};
  OpenAndScan();
  EXPECT_EQ(offered_, Keys{42});
  EXPECT_EQ(restore_->counts().entries_unread, geometry.entries_per_sector);
  EXPECT_EQ(slabs_[0].unread_sectors, std::vector<uint32_t>{0});
  EXPECT_TRUE(slabs_[0].wants_clearing());
  EXPECT_EQ(Slot(0).state, SlabSlotState::kQuarantined);
}

// A table is read twice. What only the first time could read is not served, and would come back.
TEST_F(SlabRestoreTest, ASectorThatCannotBeReadTheSecondTimeIsToBeClearedToo) {
  Put(AddFile(0), Entry(1, 41));
  Put(AddFile(1), Entry(1, 42));
  Open();
  const auto sink = [&, take = Sink()](const BlockRecord& record, const Extent& extent) {
    near_.bad_offsets = {kSlabTableOffsetBytes};  // the first slab's has been read
    return take(record, extent);
  };
  ASSERT_TRUE(restore_->Scan(sink).ok());
  restore_->Finish();
  EXPECT_EQ(offered_, Keys{41});
  EXPECT_EQ(slabs_[1].slots[1].state, SlabSlotState::kQuarantined);
  EXPECT_EQ(slabs_[1].unread_sectors, std::vector<uint32_t>{0});
  EXPECT_TRUE(slabs_[1].wants_clearing());
}

TEST_F(SlabRestoreTest, SectorsThatCannotBeReadAreInOrderWheneverThatWasSeen) {
  Put(AddFile(0), Entry(1, 41));
  AddFile(1, kSmall);
  const uint64_t third = kSlabTableOffsetBytes + 2 * kSlabSectorBytes;
  near_.bad_offsets = {third};
  Open();
  const auto sink = [&](const BlockRecord&, const Extent&) {
    near_.bad_offsets = {kSlabTableOffsetBytes, third};
    return 41u;
  };
  ASSERT_TRUE(restore_->Scan(sink).ok());
  restore_->Finish();
  EXPECT_EQ(slabs_[1].unread_sectors, (std::vector<uint32_t>{0, 2}));
  EXPECT_TRUE(slabs_[1].IsUnread(0));
}

TEST_F(SlabRestoreTest, ATableThatIsUnreadableThroughoutIsLeftAsItIs) {
  AddFile(0, kSmall);
  for (uint64_t sector = 0; sector <= kUnreadSectorsMax; ++sector) {
    near_.bad_offsets.insert(kSlabTableOffsetBytes + sector * kSlabSectorBytes);
  }
  OpenAndScan();
  EXPECT_FALSE(slabs_[0].unread_sectors.empty());
  EXPECT_FALSE(slabs_[0].wants_clearing());
}

TEST_F(SlabRestoreTest, WhatIsNotAWholeSlabOfOursIsLeftAloneNamedAndCounts) {
  AddFile(0)[20] ^= std::byte{1};                               // torn superblock
  near_.files["slab-2.terrace"] = AddFile(1);                   // renamed
  near_.files["slab-1.terrace"].resize(kSlabBytes - 4096);      // cut
  near_.files["slab-007.terrace"] = Bytes(4096, std::byte{9});  // no name of ours
  Open();
  EXPECT_EQ(slabs_.all().size(), 0u);
  EXPECT_EQ(notes_.size(), 3u);
  EXPECT_EQ(slabs_.file_bytes(0), 3 * kSlabBytes - 4096);
  EXPECT_EQ(slabs_.FreeIndex(), 3u) << "their numbers are taken";
  restore_->Finish();
  EXPECT_EQ(open_erasures(), 0u);
}

TEST_F(SlabRestoreTest, WhatMissedAnErasureIsLeftAloneThoughItCanBeReadByNow) {
  Reset(2 * kSlabBytes, {"/fake/slab-0.terrace"});
  Put(AddFile(0), Entry(1, 41));
  Put(AddFile(1), Entry(1, 42));
  OpenAndScan();
  EXPECT_EQ(offered_, Keys{42});
  EXPECT_EQ(restore_->left_files(), std::vector<std::string>{"/fake/slab-0.terrace"});
  EXPECT_EQ(slabs_.file_bytes(0), 2 * kSlabBytes) << "it counts";
  EXPECT_EQ(slabs_.FreeIndex(), 2u) << "its number is taken";
}

TEST_F(SlabRestoreTest, OfTwoSlabsOfOneNumberTheFirstDiskHolds) {
  far_.files["slab-0.terrace"] = AddFile(0);
  Open();
  EXPECT_EQ(slabs_[0].disk, 0u);
  EXPECT_EQ(notes_.size(), 1u);
  EXPECT_EQ(slabs_.file_bytes(1), kSlabBytes);
}

TEST_F(SlabRestoreTest, ASlabThatWasNeverFinishedIsRemoved) {
  near_.files["slab-0.terrace"] = Bytes(kSlabBytes);
  near_.files["slab-1.terrace"] = Bytes(100);
  Open();
  EXPECT_EQ(slabs_[0].phase, SlabPhase::kRemoving);
  EXPECT_EQ(slabs_[1].phase, SlabPhase::kRemoving);
  EXPECT_EQ(notes_.size(), 2u);
}

TEST_F(SlabRestoreTest, SlabsAboveTheCapacityAreEmptiedTheHighestNumberFirst) {
  Reset(kSlabBytes);
  Put(AddFile(0), Entry(1, 41));
  Put(AddFile(1), Entry(1, 42));
  OpenAndScan();
  EXPECT_EQ(offered_, Keys{41});
  EXPECT_EQ(slabs_[0].phase, SlabPhase::kActive);
  EXPECT_EQ(slabs_[1].phase, SlabPhase::kRetiring);
  EXPECT_EQ(slabs_[1].slots[1].state, SlabSlotState::kErasing) << "its block is freed";
}

// Nothing of it is cleared: what its sectors name is erased once the file has gone.
TEST_F(SlabRestoreTest, OfOneThatIsRetiringWhatCannotBeReadIsNotErasedByASync) {
  Reset(0);
  Put(AddFile(0), Entry(1, 41));
  near_.bad_offsets = {kSlabTableOffsetBytes};
  OpenAndScan();
  EXPECT_EQ(slabs_[0].phase, SlabPhase::kRetiring);
  EXPECT_TRUE(slabs_[0].wants_clearing());
  EXPECT_EQ(open_erasures(), 1u);
}

TEST_F(SlabRestoreTest, ARecordThatTheTableDoesNotHaveDisprovesTheCatalogAndChangesNothing) {
  Bytes& file = AddFile(0);
  Put(file, Entry(1, 41));
  Open();
  Bytes torn(geometry_.entry_bytes);
  EncodeEntry(geometry_, kUuid, Entry(1, 42), secret_, torn);
  torn[100] ^= std::byte{1};
  EXPECT_EQ(restore_->RestoreEntry(0, 1, torn, Sink()).code(), StatusCode::kCorrupt);
  EXPECT_EQ(restore_->RestoreEntry(0, geometry_.slot_count, torn, Sink()).code(),
            StatusCode::kNotFound);
  EXPECT_EQ(restore_->RestoreEntry(7, 1, torn, Sink()).code(), StatusCode::kNotFound);
  EXPECT_TRUE(offered_.empty());
  EXPECT_EQ(Slot(1).state, SlabSlotState::kFree);
  EXPECT_EQ(restore_->counts().entries_corrupt, 0u);
}

TEST_F(SlabRestoreTest, ATornRecordThatTheTableHasTooIsATornEntry) {
  Bytes& file = AddFile(0);
  Put(file, Entry(1, 41));
  PlaceIn(file, 1)[100] ^= std::byte{1};
  Open();
  const Bytes record(PlaceIn(file, 1).begin(), PlaceIn(file, 1).end());
  EXPECT_TRUE(restore_->RestoreEntry(0, 1, record, Sink()).ok());
  EXPECT_TRUE(offered_.empty());
  EXPECT_EQ(Slot(1).state, SlabSlotState::kQuarantined);
}

TEST_F(SlabRestoreTest, AScanBehindTheCatalogLeavesSlotsWithTheirOwners) {
  Bytes& file = AddFile(0);
  Put(file, Entry(1, 41));
  Put(file, Entry(2, 42));
  Open();
  const Bytes record(PlaceIn(file, 1).begin(), PlaceIn(file, 1).end());
  ASSERT_TRUE(restore_->RestoreEntry(0, 1, record, Sink()).ok());
  ASSERT_TRUE(restore_->RestoreEntry(0, 1, record, Sink()).ok()) << "twice is once";
  ASSERT_TRUE(restore_->Scan(Sink()).ok());
  EXPECT_EQ(offered_, (Keys{41, 42}));
  EXPECT_EQ(Slot(1).owner, 41u);
}

TEST_F(SlabRestoreTest, WhatTheLastDaemonErasedIsAnErasureUntilTheFirstSync) {
  AddFile(0);
  AddFile(1);
  OpenAndScan();
  EXPECT_EQ(open_erasures(), 2u);
  EXPECT_TRUE(slabs_[0].unsynced.is_sync_due());
  restore_->Finish();
  EXPECT_EQ(erasures_.progress().begun, 2u);
}

}  // namespace
}  // namespace terrace

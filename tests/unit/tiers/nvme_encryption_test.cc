// NvmeTier with encryption on: what lies on the drive, who may read it, and after what.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "sim/group_keys.h"
#include "unit/tiers/nvme_tier_fixture.h"

namespace terrace {
namespace {

class NvmeEncryptionTest : public NvmeTierTest {
 protected:
  void SetUp() override {
    options_.tier.encryption = keys_.encryption();
    NvmeTierTest::SetUp();
  }
  void StartWith(const PayloadEncryption& encryption) {
    rig_->KillProcess();
    options_.tier.encryption = encryption;
    Start();
  }
  std::vector<std::byte> File(const std::string& name) {
    std::vector<std::byte> bytes(media_[0].LengthBytes(name));
    media_[0].Peek(name, 0, bytes);
    return bytes;
  }
  // Whether 32 bytes of `value` in a row lie anywhere on the drive.
  bool IsOnDrive(int value) {
    const std::vector<std::byte> window(32, static_cast<std::byte>(value));
    for (const std::string& name : media_[0].Names()) {
      const std::vector<std::byte> bytes = File(name);
      if (std::search(bytes.begin(), bytes.end(), window.begin(), window.end()) != bytes.end()) {
        return true;
      }
    }
    return false;
  }
  SlabEntry EntryAt(uint32_t slab, uint32_t slot) {
    std::vector<std::byte> bytes;
    EXPECT_TRUE(tier().ReadEntryNow(slab, slot, &bytes).ok());
    SlabEntry entry;
    const auto geometry = SlabGeometry::Of({kLength, 1}, kSlabBytes).value();
    std::vector<std::byte> sector(4096);
    media_[0].Peek("slab-" + std::to_string(slab) + ".terrace", 0, sector);
    const SlabUuid uuid = DecodeSuperblock(sector, options_.tier.secret).value().uuid;
    EXPECT_TRUE(DecodeEntry(geometry, uuid, slot, bytes, options_.tier.secret, &entry).ok());
    return entry;
  }

  sim::SimGroupKeys keys_{7};
};

TEST_F(NvmeEncryptionTest, NothingOfABlockLiesOnTheDriveAndItIsReadBack) {
  const Extent extent = Store(42);
  EXPECT_FALSE(IsOnDrive(42));
  ExpectLoads(extent, 42);
  EXPECT_FALSE(tier().reads_ranges());
  EXPECT_EQ(tier().ReadRange(++transfer_, extent, 0, Bytes(4096, 0)).code(),
            StatusCode::kUnsupported);
  StartWith({});
  EXPECT_TRUE(tier().reads_ranges());
  Store(43);
  EXPECT_TRUE(IsOnDrive(43)) << "the scan would find what is plain";
}

TEST_F(NvmeEncryptionTest, BlocksComeBackAfterAKillAndAfterAnAmendment) {
  const Extent first = Store(1);
  const Extent second = Store(2);
  BlockRecord record = RecordOf(2);
  record.priority = 99;
  tier().Amend(second, record);
  rig_->Settle();
  Restart();
  ASSERT_EQ(found_.size(), 2u);
  EXPECT_EQ(found_[2].record.priority, 99);
  EXPECT_EQ(found_[1].extent, first);
  ExpectLoads(found_[1].extent, 1);
  ExpectLoads(found_[2].extent, 2);
}

TEST_F(NvmeEncryptionTest, ABlockAmendedWhileItIsWrittenKeepsItsSeal) {
  const Extent extent = Allocate();
  ASSERT_TRUE(BeginWrite(extent, 3).ok());
  BlockRecord record = RecordOf(3);
  record.is_pinned = true;
  tier().Amend(extent, record);
  rig_->Settle();
  Restart();
  EXPECT_TRUE(found_[3].record.is_pinned);
  ExpectLoads(found_[3].extent, 3);
}

TEST_F(NvmeEncryptionTest, EachWriteHasASaltOfItsOwn) {
  std::set<CipherSalt> salts;
  for (uint64_t round = 0; round < 40; ++round) {
    const Extent extent = Store(5);  // the same block, again and again
    const SlabEntry entry = EntryAt(extent.shard, static_cast<uint32_t>(extent.position));
    ASSERT_TRUE(entry.seal.has_value());
    salts.insert(entry.seal->salt);
    tier().Free(extent);
    rig_->Settle();
  }
  EXPECT_EQ(salts.size(), 40u);
}

TEST_F(NvmeEncryptionTest, ACopyIsEncryptedAnewAndASuccessorReadsIt) {
  const Extent from = Store(8);
  const Extent to = Allocate();
  BlockRecord record = RecordOf(8);
  record.is_moved = true;
  ASSERT_TRUE(tier().Write(++transfer_, to, record, Bytes(kLength, 8)).ok());
  rig_->Settle();
  ASSERT_EQ(tier().StateOfMoved(to), MovedState::kDurable);
  const SlabEntry before = EntryAt(from.shard, static_cast<uint32_t>(from.position));
  const SlabEntry after = EntryAt(to.shard, static_cast<uint32_t>(to.position));
  ASSERT_TRUE(before.seal && after.seal);
  EXPECT_NE(before.seal->salt, after.seal->salt);
  tier().Free(from);
  rig_->Settle();
  EXPECT_FALSE(IsOnDrive(8));
  Restart();
  ASSERT_TRUE(found_.contains(8));
  ExpectLoads(found_[8].extent, 8);
}

TEST_F(NvmeEncryptionTest, BytesThatWereChangedOnTheDriveAreCorruptAndWiped) {
  const Extent extent = Store(6);
  const auto geometry = SlabGeometry::Of({kLength, 1}, kSlabBytes).value();
  media_[0].FlipBit("slab-0.terrace",
                    geometry.PayloadOffsetBytes(static_cast<uint32_t>(extent.position)) + 777, 3);
  const std::span<std::byte> into = Bytes(kLength, 255);
  EXPECT_EQ(Load(extent, into).code(), StatusCode::kCorrupt);
  EXPECT_EQ(std::ranges::count(into, std::byte{0}), static_cast<ptrdiff_t>(kLength));
}

// Everything that names a payload: an entry under the domain's secret that says something else of
// it does not make its bytes somebody else's.
TEST_F(NvmeEncryptionTest, AnEntryThatSaysSomethingElseOfThePayloadIsCorrupt) {
  const Extent extent = Store(6);
  const auto slot = static_cast<uint32_t>(extent.position);
  const SlabEntry good = EntryAt(extent.shard, slot);
  const std::vector<std::function<void(SlabEntry*)>> changes = {
      [](SlabEntry* e) { ++e->space.low; },
      [](SlabEntry* e) { ++e->key.low; },
      [](SlabEntry* e) { ++e->commit_id; },
      [](SlabEntry* e) { ++e->member; },
      [](SlabEntry* e) { ++e->part_checksums[0].low; },
      [](SlabEntry* e) { e->seal->salt[3] ^= std::byte{1}; },
      [](SlabEntry* e) { e->seal->tag[3] ^= std::byte{1}; },
      [](SlabEntry*) {}};
  const auto geometry = SlabGeometry::Of({kLength, 1}, kSlabBytes).value();
  std::vector<std::byte> sector(4096);
  media_[0].Peek("slab-0.terrace", 0, sector);
  const SlabUuid uuid = DecodeSuperblock(sector, options_.tier.secret).value().uuid;
  for (size_t i = 0; i < changes.size(); ++i) {
    SlabEntry entry = good;
    changes[i](&entry);
    std::vector<std::byte> bytes(geometry.entry_bytes);
    EncodeEntry(geometry, uuid, entry, options_.tier.secret, bytes);
    rig_->KillProcess();
    media_[0].Poke("slab-0.terrace", geometry.EntryOffsetBytes(slot), bytes);
    Start();
    ASSERT_EQ(found_.size(), 1u) << i;
    const Status status = Load(found_.begin()->second.extent, Bytes(kLength, 255));
    EXPECT_EQ(status.code(), i + 1 == changes.size() ? StatusCode::kOk : StatusCode::kCorrupt) << i;
  }
}

TEST_F(NvmeEncryptionTest, WithoutTheKeyNothingIsReadAndNothingIsLost) {
  Store(1);
  Store(2);
  for (const bool has_keys : {false, true}) {
    keys_.is_locked = true;
    StartWith(has_keys ? keys_.encryption() : PayloadEncryption{});
    EXPECT_TRUE(found_.empty());
    EXPECT_EQ(tier().restore().counts().entries_locked, 2u);
    EXPECT_EQ(tier().stats().left_alone_bytes, 2 * kLength);
    if (has_keys) {
      EXPECT_EQ(BeginWrite(Allocate(), 9).code(), StatusCode::kGone);
    } else {
      Store(9);  // beside them
    }
    rig_->Settle();
    keys_.is_locked = false;
  }
  StartWith(keys_.encryption());
  ASSERT_TRUE(found_.contains(1) && found_.contains(2));
  ExpectLoads(found_[1].extent, 1);
  ExpectLoads(found_[2].extent, 2);
  EXPECT_EQ(tier().stats().left_alone_bytes, 0u);
}

TEST_F(NvmeEncryptionTest, WhatIsErasedWithoutTheKeyDoesNotComeBackWithIt) {
  for (const uint64_t key : {1, 2, 3}) Store(key);
  keys_.is_locked = true;
  StartWith(PayloadEncryption{});
  ASSERT_TRUE(tier().has_left());
  UnindexedTaken taken;
  tier().EraseLeftKey(RecordOf(1).group, RecordOf(2).key, &taken);
  EXPECT_TRUE(tier().has_erasures_pending());
  EXPECT_EQ(tier().stats().left_alone_bytes, 2 * kLength);
  rig_->Settle();
  EXPECT_FALSE(tier().has_erasures_pending());
  rig_->PowerLoss();
  keys_.is_locked = false;
  StartWith(keys_.encryption());
  EXPECT_FALSE(found_.contains(2));
  ASSERT_TRUE(found_.contains(1) && found_.contains(3));
  ExpectLoads(found_[3].extent, 3);
  keys_.is_locked = true;
  StartWith(keys_.encryption());
  tier().MarkLeft(std::nullopt, 0);
  uint32_t budget = 100;
  EXPECT_TRUE(tier().EraseLeft(&budget, &taken));
  EXPECT_EQ(taken.block_count, 3u);
  rig_->Settle();
  rig_->PowerLoss();
  keys_.is_locked = false;
  StartWith(keys_.encryption());
  EXPECT_TRUE(found_.empty());
}

TEST_F(NvmeEncryptionTest, PlainBlocksAreGivenUpUnlessTheyAreToBeServed) {
  StartWith({});
  Store(1);
  PayloadEncryption serving = keys_.encryption();
  serving.is_plain_served = true;
  StartWith(serving);
  ASSERT_TRUE(found_.contains(1));
  ExpectLoads(found_[1].extent, 1);
  Store(2);
  StartWith(keys_.encryption());
  EXPECT_FALSE(found_.contains(1));
  ASSERT_TRUE(found_.contains(2));
  EXPECT_EQ(tier().restore().counts().entries_plain, 1u);
  rig_->Settle();
  StartWith({});
  EXPECT_FALSE(found_.contains(1)) << "its entry is gone";
}

TEST_F(NvmeEncryptionTest, BlocksOfADestroyedKeyAreGoneAtOnceAndForGood) {
  const Extent extent = Store(1);
  keys_.Destroy(RecordOf(1).group);
  EXPECT_EQ(Load(extent, Bytes(kLength, 255)).code(), StatusCode::kGone);
  const Extent next = Store(2);  // under the group's next key
  ExpectLoads(next, 2);
  Restart();
  EXPECT_FALSE(found_.contains(1)) << "no entry of before comes back under another key";
  EXPECT_EQ(tier().restore().counts().entries_dead, 1u);
  ExpectLoads(found_[2].extent, 2);
}

TEST_F(NvmeEncryptionTest, WithoutRandomBytesNothingIsWritten) {
  PayloadEncryption encryption = keys_.encryption();
  encryption.random = [](std::span<std::byte>) { return Status(StatusCode::kIo, "none", EIO); };
  StartWith(encryption);
  EXPECT_EQ(BeginWrite(Allocate(), 1).code(), StatusCode::kIo);
}

}  // namespace
}  // namespace terrace

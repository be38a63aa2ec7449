// A lower tier that makes room, is off, reads badly, or has to be told something new.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store_fixture.h"

namespace terrace {
namespace {

using World = StoreWorld;
constexpr uint32_t kAlways = 1'000'000;
constexpr uint8_t kDram = 1 << 1, kNvme = 1 << 2;

class Background : public ::testing::Test {
 protected:
  void PutBelow(uint64_t chain, uint32_t count = 4) {
    w.Put(s, group, World::Keys(count, chain));
    w.Advance(100'000);
  }
  // Pushes everything else out of DRAM.
  void Flood() {
    for (int i = 0; i < 2; ++i) PutBelow(next_chain_++);
  }
  uint64_t next_chain_ = 50;
  protocol::QueriedBlock Queried(uint64_t chain, uint32_t index = 0) {
    std::vector<protocol::QueriedBlock> blocks;
    const std::vector<BlockKey> keys = {World::Keys(index + 1, chain)[index]};
    EXPECT_TRUE(w.store->operators().Query(w.Query(s, group, keys), &blocks).ok());
    return blocks[0];
  }
  uint64_t used_bytes() { return w.tiers[0]->stats().used_bytes; }

  World w{{.lower_tier_count = 1}};
  SessionId s = w.Open();
  uint32_t group = w.OpenSimple(s);
};

TEST_F(Background, AWriteWaitsForRoomThatIsBeingMadeAndEvictsNobody) {
  PutBelow(1);
  w.faults[0]->SetRate(sim::Fault::kMakesRoom, kAlways);
  w.Put(s, group, World::Keys(2, 2));
  w.Advance(10'000);
  EXPECT_EQ(w.faults[0]->struck(sim::Fault::kMakesRoom), 1u);  // not asked again and again
  EXPECT_EQ(Queried(2).tier_mask, kDram);
  EXPECT_EQ(used_bytes(), 4 * kSlotBytes);
  w.faults[0]->SetRate(sim::Fault::kMakesRoom, 0);
  w.Advance(10'000);
  EXPECT_EQ(Queried(2).tier_mask, kDram);
  w.faults[0]->ReleaseHung();  // says that there is room
  w.Advance(10'000);
  EXPECT_EQ(Queried(2, 1).tier_mask, kDram | kNvme);
  EXPECT_EQ(Queried(1).tier_mask & kNvme, kNvme);
}

// PROMISE: T14 what readers are told
TEST_F(Background, WhatIsInATierThatIsOffIsAMissUntilItIsBack) {
  PutBelow(1);
  Flood();
  ASSERT_EQ(Queried(1).tier_mask, kNvme);
  w.faults[0]->SwitchOff();
  w.Advance(600'000);
  const auto keys = World::Keys(4, 1);
  EXPECT_EQ(w.MatchCount(s, group, keys), 0u);
  EXPECT_EQ(w.Acquire(s, group, keys).reply.block_count, 0u);
  EXPECT_TRUE(w.listener.completions.empty());
  w.faults[0]->SwitchOn();
  w.Advance(600'000);
  EXPECT_EQ(w.MatchCount(s, group, keys), 4u);
  const AcquireResult got = w.Acquire(s, group, keys);
  w.Advance(100'000);
  ASSERT_EQ(got.slots.size(), 4u);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(w.Holds(s, group, keys[i], 0, got.slots[i]));
}

TEST_F(Background, AReadThatADeadTierRefusesLosesNoCopy) {
  PutBelow(1);
  Flood();
  w.faults[0]->SwitchOff();
  const auto keys = World::Keys(4, 1);
  EXPECT_EQ(w.MatchCount(s, group, keys), 4u);  // nobody has noticed yet
  EXPECT_EQ(w.Acquire(s, group, keys).reply.block_count, 0u);
  EXPECT_EQ(w.MatchCount(s, group, keys), 0u);
  w.faults[0]->SwitchOn();
  w.Advance(600'000);
  EXPECT_EQ(w.MatchCount(s, group, keys), 4u);
  EXPECT_EQ(w.Stats().blocks_corrupt, 0u);
}

TEST_F(Background, WhatIsOutOfReachIsStoredAnew) {
  PutBelow(1);
  Flood();
  w.faults[0]->SwitchOff();
  w.Advance(600'000);
  EXPECT_EQ(w.Put(s, group, World::Keys(4, 1)), 4u);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(4, 1)), 4u);
  EXPECT_EQ(Queried(1).tier_mask, kDram);
  w.faults[0]->SwitchOn();
  w.Advance(600'000);
  EXPECT_EQ(Queried(1).tier_mask, kDram | kNvme);
}

TEST_F(Background, BytesThatDoNotMatchAndSectorsThatCannotBeReadAreNotUsedAgain) {
  for (const sim::Fault fault : {sim::Fault::kReadFlipsBit, sim::Fault::kReadFails}) {
    PutBelow(1, 1);
    Flood();
    ASSERT_EQ(Queried(1).tier_mask, kNvme);
    const uint64_t used_before = used_bytes();
    const uint64_t quarantined_before = w.tiers[0]->stats().quarantined_bytes;
    w.faults[0]->SetRate(fault, kAlways);
    w.Acquire(s, group, World::Keys(1, 1));
    w.Advance(100'000);
    w.faults[0]->SetRate(fault, 0);
    EXPECT_EQ(used_bytes(), used_before - kSlotBytes);
    EXPECT_EQ(w.tiers[0]->stats().quarantined_bytes, quarantined_before + kSlotBytes);
    EXPECT_EQ(w.MatchCount(s, group, World::Keys(1, 1)), 0u);
  }
  EXPECT_EQ(w.Stats().blocks_corrupt, 1u);
}

TEST_F(Background, PinsPrioritiesAndExpiryOfABlockBelowReachItsRecord) {
  PutBelow(1, 1);
  PutBelow(2, 1);
  PutBelow(3, 1);
  protocol::PinReply pinned;
  const auto first = World::Keys(1, 1);
  ASSERT_TRUE(w.store->operators().Pin(w.Query(s, group, first), &pinned).ok());
  const auto second = World::Keys(1, 2), third = World::Keys(1, 3);
  KeysQuery touch = w.Query(s, group, second);
  touch.hints.priority = 77;
  ASSERT_TRUE(w.store->leases().Touch(touch).ok());
  touch = w.Query(s, group, third);
  touch.hints.ttl_s = 1;
  ASSERT_TRUE(w.store->leases().Touch(touch).ok());
  w.Advance(100'000);
  EXPECT_EQ(w.Restart()[0].blocks, 3u);
  s = w.Open();
  group = w.OpenSimple(s);
  EXPECT_TRUE(Queried(1).flags & protocol::kQueriedPinned);
  EXPECT_EQ(Queried(2).priority, 77);
  w.Advance(2'000'000);
  EXPECT_EQ(w.MatchCount(s, group, third), 0u);
  // And back again.
  KeysQuery unpin = w.Query(s, group, first, protocol::kPinClear);
  ASSERT_TRUE(w.store->operators().Pin(unpin, &pinned).ok());
  w.Advance(100'000);
  w.Restart();
  s = w.Open();
  group = w.OpenSimple(s);
  EXPECT_FALSE(Queried(1).flags & protocol::kQueriedPinned);
}

TEST_F(Background, WhatIsErasedLeavesTheTierBelowAtOnceWhoeverStillReadsIt) {
  PutBelow(1);
  const AcquireResult held = w.Acquire(s, group, World::Keys(4, 1));
  EXPECT_EQ(held.reply.block_count, 4u);
  w.Reset(s, group);
  EXPECT_EQ(used_bytes(), 0u);
  EXPECT_TRUE(w.Holds(s, group, World::Keys(1, 1)[0], 0, held.slots[0]));
  w.Release(s, held.reply.token);
}

// ---- places that come in slabs of one length ----

// Two slabs of eight places each. A slab takes another length when nothing is in it.
class SlabTier final : public sim::MemoryTier {
 public:
  static constexpr size_t kPlaces = 8;
  explicit SlabTier(const Options& options) : MemoryTier(options) {}

  Result<Extent> Allocate(uint32_t domain_index, uint64_t length_bytes,
                          uint32_t part_count) override {
    for (Slab& slab : slabs_) {
      if (slab.owners.empty()) slab.length_bytes = length_bytes;
      if (slab.length_bytes != length_bytes || slab.owners.size() == kPlaces) continue;
      const Result<Extent> extent = MemoryTier::Allocate(domain_index, length_bytes, part_count);
      slab.owners[extent->position] = kOwnerNone;
      return extent;
    }
    return Status(StatusCode::kNoSpace, "every slab is full, or of another length");
  }
  void Free(const Extent& extent) override {
    for (Slab& slab : slabs_) slab.owners.erase(extent.position);
    MemoryTier::Free(extent);
  }
  Status Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
               std::span<const std::byte> from) override {
    for (Slab& slab : slabs_) {
      if (slab.owners.contains(extent.position)) slab.owners[extent.position] = record.owner;
    }
    return MemoryTier::Write(transfer_id, extent, record, from);
  }
  void AppendOwnersToDrop(uint64_t length_bytes, uint32_t, std::vector<uint32_t>* owners) override {
    ++asked_count;
    for (const Slab& slab : slabs_) {
      if (slab.length_bytes == length_bytes) return;  // it has its share
    }
    for (const auto& [position, owner] : slabs_[0].owners) owners->push_back(owner);
  }
  uint32_t asked_count = 0;  // whom to drop

 private:
  struct Slab {
    uint64_t length_bytes = 0;
    std::map<uint64_t, uint32_t> owners;  // by position
  };
  Slab slabs_[2];
};

class Slabs : public ::testing::Test {
 protected:
  static WorldOptions Options() {
    WorldOptions options{.segments_max = 4, .lower_tier_count = 1};
    options.make_tier = [](const sim::MemoryTier::Options& tier) {
      return std::make_unique<SlabTier>(tier);
    };
    return options;
  }
  uint32_t OpenHalf() {
    SpaceSpec half = TestSpace(0);
    half.part_bytes = {kSlotBytes / 2};
    return w.OpenGroup(s, TestGroup("half", {half}));
  }
  uint32_t CountBelow(uint32_t of_group, uint64_t chain, uint32_t count) {
    std::vector<protocol::QueriedBlock> blocks;
    const auto keys = World::Keys(count, chain);
    EXPECT_TRUE(w.store->operators().Query(w.Query(s, of_group, keys), &blocks).ok());
    uint32_t below = 0;
    for (const auto& block : blocks) below += (block.tier_mask & kNvme) != 0 ? 1 : 0;
    return below;
  }

  World w{Options()};
  SessionId s = w.Open();
  uint32_t group = w.OpenSimple(s);
};

TEST_F(Slabs, CopiesThatHoldASlabOfAnotherShapeAreGivenUpTogether) {
  for (uint64_t chain = 1; chain < 3; ++chain) {
    w.Put(s, group, World::Keys(8, chain));
    w.Advance(100'000);
  }
  EXPECT_EQ(CountBelow(group, 1, 8) + CountBelow(group, 2, 8), 16u);
  const uint32_t half = OpenHalf();
  w.Put(s, half, World::Keys(2, 3));
  w.Advance(100'000);
  EXPECT_EQ(CountBelow(half, 3, 2), 2u);
  EXPECT_EQ(CountBelow(group, 1, 8) + CountBelow(group, 2, 8), 8u);
}

TEST_F(Slabs, WhatIsPinnedKeepsItsSlabAndTheWriteIsGivenUp) {
  for (uint64_t chain = 1; chain < 3; ++chain) {
    const auto keys = World::Keys(8, chain);
    KeysQuery query = w.Query(s, group, keys);
    query.hints.flags = protocol::kHintPin;
    w.CommitAll(s, group, keys, w.Reserve(query), World::Checksums::kClient,
                protocol::kCommitRelease);
    w.Advance(100'000);
  }
  EXPECT_EQ(CountBelow(group, 1, 8) + CountBelow(group, 2, 8), 16u);
  const uint32_t half = OpenHalf();
  w.Put(s, half, World::Keys(2, 3));
  w.Advance(1'200'000);
  EXPECT_EQ(CountBelow(half, 3, 2), 0u);
  EXPECT_EQ(CountBelow(group, 1, 8) + CountBelow(group, 2, 8), 16u);
  EXPECT_LE(static_cast<SlabTier&>(*w.tiers[0]).asked_count, 4u);
}

TEST_F(Slabs, AShapeThatHasItsShareEvictsItsOwnWhoeverIsLessWantedElsewhere) {
  const uint32_t half = OpenHalf();
  w.Put(s, group, World::Keys(8, 1));
  w.Advance(100'000);
  w.Put(s, half, World::Keys(8, 3));
  w.Advance(100'000);
  EXPECT_EQ(CountBelow(group, 1, 8) + CountBelow(half, 3, 8), 16u);
  w.Put(s, half, World::Keys(2, 4));
  w.Advance(100'000);
  EXPECT_EQ(CountBelow(half, 4, 2), 2u);
  EXPECT_EQ(CountBelow(half, 3, 8), 6u);
  EXPECT_GE(CountBelow(group, 1, 8), 6u);  // one try each, to see whether it helps
}

}  // namespace
}  // namespace terrace

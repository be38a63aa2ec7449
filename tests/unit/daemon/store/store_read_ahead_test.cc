// Promotions that nobody asked for yet.
#include <gtest/gtest.h>

#include "store_fixture.h"

namespace terrace {
namespace {

using World = StoreWorld;

constexpr uint32_t kAhead = 3;
constexpr uint8_t kDram = 1 << 1;

// A chain of eight blocks that lies below only, in DRAM of eight slots which others have filled.
class ReadAhead : public ::testing::Test {
 protected:
  void Put(const std::vector<BlockKey>& keys) {
    w.Put(s, group, keys);
    w.Advance(100'000);
  }
  void Flood() {
    for (uint64_t chain = 50; chain < 52; ++chain) Put(World::Keys(kSlotsPerSegment / 2, chain));
  }
  void SetUp() override {
    Put(chain);
    Flood();
  }
  // Asks for the first `count` blocks, waits, and lets go.
  void Load(uint32_t count) {
    const AcquireResult got = w.Acquire(s, group, First(count));
    EXPECT_EQ(got.reply.block_count, count);
    w.Advance(100'000);
    for (uint32_t i = 0; i < got.reply.block_count; ++i) {
      EXPECT_TRUE(w.Holds(s, group, chain[i], 0, got.slots[i]));
    }
    w.Release(s, got.reply.token);
  }
  std::vector<BlockKey> First(uint32_t count) const {
    return {chain.begin(), chain.begin() + count};
  }
  uint32_t CountInDram(const std::vector<BlockKey>& keys) {
    std::vector<protocol::QueriedBlock> blocks;
    EXPECT_TRUE(w.store->operators().Query(w.Query(s, group, keys), &blocks).ok());
    return static_cast<uint32_t>(std::ranges::count_if(
        blocks, [](const auto& block) { return (block.tier_mask & kDram) != 0; }));
  }

  World w{{.lower_tier_count = 1, .read_ahead_blocks = kAhead}};
  SessionId s = w.Open();
  uint32_t group = w.OpenSimple(s);
  std::vector<BlockKey> chain = World::Keys(kSlotsPerSegment, 1);
};

TEST_F(ReadAhead, TheNextBlocksOfAChainAreThereWhenTheyAreAskedFor) {
  Load(2);
  EXPECT_EQ(CountInDram(chain), 2 + kAhead);
  EXPECT_EQ(w.Stats().read_ahead_blocks, kAhead);
  EXPECT_EQ(w.Stats().read_ahead_used, 0u);
  const AcquireResult got = w.Acquire(s, group, First(2 + kAhead));
  ASSERT_EQ(got.spans.size(), 1u);
  EXPECT_EQ(got.spans[0].state, protocol::SpanState::kReady);
  EXPECT_EQ(w.Stats().read_ahead_used, kAhead);
}

// A reader that goes on is ahead of nothing if only promotions counted.
TEST_F(ReadAhead, GoesOnWhereWhatWasReadAheadIsUsed) {
  Load(2);
  Load(2 + kAhead);
  EXPECT_EQ(CountInDram(chain), chain.size());
  EXPECT_EQ(w.Stats().read_ahead_blocks, chain.size() - 2);
}

TEST_F(ReadAhead, BlocksThatWereThereReadNothingAhead) {
  Load(2);
  Load(2);
  EXPECT_EQ(w.Stats().read_ahead_blocks, kAhead);
}

TEST_F(ReadAhead, APrefixThatEndsBeforeTheLastKeyReadsNothingAhead) {
  std::vector<BlockKey> keys = First(2);
  keys.push_back({.low = 999, .high = 9});
  const AcquireResult got = w.Acquire(s, group, keys);
  EXPECT_EQ(got.reply.block_count, 2u);
  w.Advance(100'000);
  EXPECT_EQ(w.Stats().read_ahead_blocks, 0u);
}

TEST_F(ReadAhead, WhereChainsPartTheOneUsedLastIsRead) {
  std::vector<BlockKey> other = First(2);
  for (const BlockKey& key : World::Keys(2, 7)) other.push_back(key);
  Put(other);
  Flood();
  Load(2);
  EXPECT_EQ(CountInDram({other[2], other[3]}), 2u);
  EXPECT_EQ(CountInDram({chain[2]}), 0u);
}

// One copy is as good as none if it is the only one: nothing is written for what nobody asked for.
TEST_F(ReadAhead, EvictsCleanCopiesOnly) {
  w.faults[0]->SetRate(sim::Fault::kWriteFails, 1'000'000);
  for (uint64_t dirty = 60; dirty < 62; ++dirty) Put(World::Keys(kSlotsPerSegment / 2, dirty));
  Load(2);
  EXPECT_EQ(w.Stats().read_ahead_blocks, 0u);
}

TEST_F(ReadAhead, IsGivenUpWhereRoomIsShort) {
  const AcquireResult held = w.Acquire(s, group, World::Keys(kSlotsPerSegment / 2, 50));
  EXPECT_EQ(held.reply.block_count, kSlotsPerSegment / 2);
  const AcquireResult more = w.Acquire(s, group, World::Keys(2, 51));
  EXPECT_EQ(more.reply.block_count, 2u);
  Load(2);
  EXPECT_EQ(w.Stats().read_ahead_blocks, 0u);
  EXPECT_EQ(CountInDram(chain), 2u);
}

// It was asked for while it was on its way: nobody reads it twice, nobody gives it up.
TEST_F(ReadAhead, WhatIsOnItsWayIsSharedWithWhoeverAsks) {
  const AcquireResult first = w.Acquire(s, group, First(2));
  w.holds_checksums = true;
  w.Advance(10'000);
  w.holds_transfers = true;
  w.holds_checksums = false;
  const AcquireResult second = w.Acquire(s, group, First(2 + kAhead));
  EXPECT_EQ(second.reply.block_count, 2 + kAhead);
  w.holds_transfers = false;
  w.Advance(100'000);
  EXPECT_EQ(w.Stats().promotions, w.Stats().read_ahead_blocks + 2);
  EXPECT_GE(w.Stats().read_ahead_used, kAhead);
  for (uint32_t i = 0; i < 2 + kAhead; ++i) {
    EXPECT_TRUE(w.Holds(s, group, chain[i], 0, second.slots[i]));
  }
}

TEST_F(ReadAhead, BadBytesAreAMissWheneverTheyAreRead) {
  w.tiers[0]->FlipBit(chain[3], 0);
  Load(2);
  EXPECT_EQ(w.Stats().blocks_corrupt, 1u);
  EXPECT_EQ(w.MatchCount(s, group, chain), 3u);
}

}  // namespace
}  // namespace terrace

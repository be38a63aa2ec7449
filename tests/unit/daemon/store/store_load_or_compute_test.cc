// What an engine is promised of what lies below DRAM, and when.
#include <gtest/gtest.h>

#include "store_fixture.h"

namespace terrace {
namespace {

using protocol::SpanState;
using World = StoreWorld;

constexpr uint8_t kDram = 1 << 1;

// Chains of blocks of 16 tokens below a DRAM of eight slots. A block takes the tier 66 µs, and it
// says 400 µs of latency.
class LoadOrCompute : public ::testing::Test {
 protected:
  explicit LoadOrCompute(WorldOptions options = {})
      : w([&options] {
          options.lower_tier_count = 1;
          return options;
        }()) {}

  void PutBelow(const std::vector<BlockKey>& keys) {
    w.Put(s, group, keys);
    w.Advance(100'000);
  }
  // Pushes everything else out of DRAM.
  void Flood() {
    for (uint64_t chain = 50; chain < 52; ++chain) PutBelow(World::Keys(4, chain));
  }
  // Brings blocks to DRAM.
  void Load(const std::vector<BlockKey>& keys) {
    const AcquireResult got = w.Acquire(s, group, keys);
    EXPECT_EQ(got.reply.block_count, keys.size());
    w.Advance(100'000);
    w.Release(s, got.reply.token);
  }
  AcquireResult Ask(const std::vector<BlockKey>& keys, uint32_t us_per_block) {
    KeysQuery query = w.Query(s, group, keys);
    query.hints.recompute_ns_per_token = us_per_block * 1000 / 16;
    return w.Acquire(query);
  }
  uint32_t CountInDram(const std::vector<BlockKey>& keys) {
    std::vector<protocol::QueriedBlock> blocks;
    EXPECT_TRUE(w.store->operators().Query(w.Query(s, group, keys), &blocks).ok());
    return static_cast<uint32_t>(std::ranges::count_if(
        blocks, [](const auto& block) { return (block.tier_mask & kDram) != 0; }));
  }
  static std::vector<BlockKey> First(const std::vector<BlockKey>& keys, size_t count) {
    return {keys.begin(), keys.begin() + static_cast<ptrdiff_t>(count)};
  }

  World w;
  SessionId s = w.Open();
  uint32_t group = w.OpenSimple(s);
};

TEST_F(LoadOrCompute, WhatIsComputedSoonerThanItComesIsNotPromised) {
  const auto keys = World::Keys(4);
  PutBelow(keys);
  Flood();
  EXPECT_EQ(Ask(keys, 160).reply.block_count, 0u) << "640 µs against 663";
  EXPECT_EQ(Ask(keys, 170).reply.block_count, 4u);
}

TEST_F(LoadOrCompute, WhatCannotComeInTimeIsNotBegunWhateverItWouldCost) {
  const auto keys = World::Keys(4);
  PutBelow(keys);
  Flood();
  KeysQuery query = w.Query(s, group, keys);
  for (const uint32_t ns_per_token : {0u, 1'000'000u}) {
    query.hints.recompute_ns_per_token = ns_per_token;
    query.hints.deadline_us = 465;
    EXPECT_EQ(w.Acquire(query).reply.block_count, 0u) << "466 µs for one";
    EXPECT_EQ(w.Stats().promotions, 0u);
  }
  query.hints.deadline_us = 590;
  EXPECT_EQ(w.Acquire(query).reply.block_count, 2u) << "532 µs, and 598 for three";
}

// A group's engines may differ, and who says nothing may have none.
TEST_F(LoadOrCompute, NobodyIsHeldToWhatAnotherOneSaid) {
  const auto keys = World::Keys(4);
  PutBelow(keys);
  Flood();
  EXPECT_EQ(Ask(World::Keys(4, 51), 1).reply.block_count, 4u);  // ready: its word is the group's
  EXPECT_EQ(w.Acquire(s, group, keys).reply.block_count, 4u);
}

TEST_F(LoadOrCompute, WhatIsReadyBeforeItIsPromised) {
  const auto keys = World::Keys(8);
  PutBelow(keys);
  Flood();
  Load(First(keys, 3));
  const AcquireResult got = Ask(keys, 10);
  EXPECT_EQ(got.reply.block_count, 3u);
  ASSERT_EQ(got.spans.size(), 1u);
  EXPECT_EQ(got.spans[0].state, SpanState::kReady);
}

TEST_F(LoadOrCompute, WhatIsReadyBehindABlockThatHasToComeIsWorthItsWait) {
  const auto keys = World::Keys(8);
  PutBelow(keys);
  Flood();
  const auto tail = std::vector<BlockKey>(keys.begin() + 1, keys.end());
  KeysQuery query = w.Query(s, group, tail);
  query.first_position = 1;
  query.parent = keys[0];
  const AcquireResult held = w.Acquire(query);
  ASSERT_EQ(held.reply.block_count, 7u);
  w.Advance(100'000);
  ASSERT_EQ(CountInDram(tail), 7u);
  EXPECT_EQ(Ask(First(keys, 1), 100).reply.block_count, 0u) << "466 µs for one";
  EXPECT_EQ(Ask(keys, 100).reply.block_count, 8u) << "466 µs for eight";
}

TEST_F(LoadOrCompute, OnlyOneOfWhatWasLeftIsReadWhereNothingIsReadAhead) {
  const auto keys = World::Keys(4);
  PutBelow(keys);
  Flood();
  EXPECT_EQ(Ask(keys, 10).reply.block_count, 0u);
  w.Advance(100'000);
  EXPECT_EQ(CountInDram(keys), 1u) << "so that the tier's speed is known";
  EXPECT_EQ(w.Stats().read_ahead_blocks, 1u);
}

class LoadOrComputeWithReadAhead : public LoadOrCompute {
 protected:
  LoadOrComputeWithReadAhead() : LoadOrCompute({.read_ahead_blocks = 3}) {}
};

// What is sealed is not stored again: it would be computed whenever it is asked for.
TEST_F(LoadOrComputeWithReadAhead, WhatWasLeftIsThereForTheNextOne) {
  const auto keys = World::Keys(6);
  PutBelow(keys);
  Flood();
  for (uint32_t ready_count = 0; ready_count <= 6; ready_count += 3) {
    const AcquireResult got = Ask(keys, 10);
    EXPECT_EQ(got.reply.block_count, ready_count);
    w.Advance(100'000);
    if (ready_count > 0) w.Release(s, got.reply.token);
  }
  EXPECT_EQ(w.Stats().promotions, 6u);
}

TEST_F(LoadOrComputeWithReadAhead, WhatWasLeftEvictsNothingThatIsUsed) {
  const auto keys = World::Keys(4);
  PutBelow(keys);
  Flood();
  std::vector<AcquireResult> held;
  for (uint64_t chain = 50; chain < 52; ++chain) {
    held.push_back(w.Acquire(s, group, World::Keys(4, chain)));
  }
  EXPECT_EQ(Ask(keys, 10).reply.block_count, 0u);
  w.Advance(100'000);
  EXPECT_EQ(CountInDram(keys), 0u);
  for (uint64_t chain = 50; chain < 52; ++chain) EXPECT_EQ(CountInDram(World::Keys(4, chain)), 4u);
}

TEST_F(LoadOrCompute, APrefetchWaitsForNothingAndBringsAll) {
  const auto keys = World::Keys(4);
  PutBelow(keys);
  Flood();
  KeysQuery query = w.Query(s, group, keys);
  query.hints.recompute_ns_per_token = 1;
  PrefixMatch fetched;
  EXPECT_TRUE(w.store->prefixes().Prefetch(&fetched).Step(query).ok());
  EXPECT_EQ(fetched.reply.block_count, 4u);
  w.Advance(100'000);
  EXPECT_EQ(CountInDram(keys), 4u);
}

// The first two blocks are ready, and of no use by themselves: what waiting saves is all eight. And
// the windowed member has bytes for two of the six that come.
TEST(LoadOrComputeWindows, WhatIsOfNoUseAloneIsComputedWithTheRest) {
  World w({.segments_max = 4, .lower_tier_count = 1});
  const SessionId s = w.Open();
  const uint32_t group =
      w.OpenGroup(s, TestGroup("hybrid", {TestSpace(0), TestSpace(1, /*window_blocks=*/2)}));
  const auto keys = World::Keys(8);
  const ReserveResult reserved = w.Reserve(s, group, keys);
  ASSERT_EQ(reserved.slots.size(), 16u);
  std::vector<protocol::CommitEntry> entries;
  for (uint32_t i = 0; i < 8; ++i) {
    for (uint32_t m = 0; m < 2; ++m) {
      auto entry =
          w.Write(s, group, keys[i], i, m, reserved.keys[i].commit_id, reserved.slots[2 * i + m])
              .entry;
      if (m == 1 && i < 6) {
        entry.flags = protocol::kCommitAbsent;
        entry.part_count = 0;
      }
      entries.push_back(entry);
    }
  }
  EXPECT_EQ(w.Commit(s, {.token = reserved.reply.token}, entries).reply.sealed_count, 8u);
  w.Release(s, reserved.reply.token);
  w.Advance(100'000);
  const uint32_t other = w.OpenGroup(s, TestGroup("other", {TestSpace(0)}));
  for (uint64_t chain = 50; chain < 54; ++chain) {
    w.Put(s, other, World::Keys(8, chain));
    w.Advance(100'000);
  }
  const auto head = std::vector<BlockKey>(keys.begin(), keys.begin() + 2);
  PrefixMatch fetched;
  EXPECT_TRUE(w.store->prefixes().Prefetch(&fetched).Step(w.Query(s, group, head)).ok());
  w.Advance(100'000);
  const PrefixMatch match = w.Match(s, group, keys);
  ASSERT_EQ(match.spans.size(), 2u);
  ASSERT_EQ(match.spans[1].first_block, 2u);
  EXPECT_EQ(match.spans[1].eta_us, w.tiers[0]->PredictReadUs(8 * kSlotBytes));
  KeysQuery query = w.Query(s, group, keys);
  query.hints.recompute_ns_per_token = 130'000 / 16;  // six take 780 µs, eight 1,040
  EXPECT_EQ(match.spans[1].eta_us, 925u);
  EXPECT_EQ(w.Acquire(query).reply.block_count, 8u);
}

// ---- when ----

TEST_F(LoadOrCompute, AMatchSaysWhenTheLastBlockOfASpanWouldBeThere) {
  const auto keys = World::Keys(4);
  PutBelow(keys);
  Flood();
  const PrefixMatch match = w.Match(s, group, keys);
  ASSERT_EQ(match.spans.size(), 1u);
  EXPECT_EQ(match.spans[0].eta_us, w.tiers[0]->PredictReadUs(4 * kSlotBytes));
}

TEST_F(LoadOrCompute, WhoJoinsIsToldWhenBlocksAreThere) {
  const auto keys = World::Keys(4);
  PutBelow(keys);
  Flood();
  w.holds_transfers = true;
  const AcquireResult got = w.Acquire(s, group, keys);
  const AcquireResult joined = w.JoinRead(w.Open(), group, got.reply.token);
  ASSERT_EQ(joined.spans.size(), 1u);
  EXPECT_EQ(joined.spans[0].state, SpanState::kComing);
  EXPECT_GE(joined.spans[0].eta_us, 4 * 65u);
  w.holds_transfers = false;
}

class LoadOrComputeWithAShortQueue : public LoadOrCompute {
 protected:
  LoadOrComputeWithAShortQueue()
      : LoadOrCompute({.make_tier = [](sim::MemoryTier::Options tier) {
          tier.queue_max = 2;
          return std::make_unique<sim::MemoryTier>(tier);
        }}) {}
};

TEST_F(LoadOrComputeWithAShortQueue, WhatOthersWaitForComesFirst) {
  const auto keys = World::Keys(4), more = World::Keys(2, 2);
  PutBelow(keys);
  PutBelow(more);
  Flood();
  w.holds_transfers = true;
  const AcquireResult first = w.Acquire(s, group, keys);
  ASSERT_EQ(first.reply.block_count, 4u);
  ASSERT_EQ(w.tiers[0]->stats().transfers_in_flight, 2u);
  const uint64_t last_us = w.tiers[0]->PredictReadUs(4 * kSlotBytes);
  EXPECT_EQ(w.Match(s, group, more).spans[0].eta_us, last_us) << "two wait before the two";
  const AcquireResult second = w.Acquire(s, group, more);
  ASSERT_EQ(second.spans.size(), 1u);
  EXPECT_EQ(second.spans[0].eta_us, last_us);
  // Who wants what comes sooner is not told of what comes later.
  const AcquireResult third = w.Acquire(s, group, First(keys, 3));
  ASSERT_EQ(third.spans.size(), 1u);
  EXPECT_EQ(third.spans[0].eta_us, w.tiers[0]->PredictReadUs(kSlotBytes)) << "one waits before it";
  w.holds_transfers = false;
  w.Advance(100'000);
  EXPECT_EQ(w.Match(s, group, more).spans[0].state, SpanState::kReady);
}

TEST_F(LoadOrComputeWithAShortQueue, WhatNobodyWaitsForAnyMoreDelaysNobody) {
  const auto keys = World::Keys(4), more = World::Keys(2, 2);
  PutBelow(keys);
  PutBelow(more);
  Flood();
  w.holds_transfers = true;
  const AcquireResult first = w.Acquire(s, group, keys);
  w.Release(s, first.reply.token);
  w.holds_transfers = false;
  w.Advance(100'000);
  EXPECT_EQ(w.Match(s, group, more).spans[0].eta_us, w.tiers[0]->PredictReadUs(2 * kSlotBytes));
}

}  // namespace
}  // namespace terrace

// Promotion, demotion and persistence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "daemon/residency/evictor.h"
#include "daemon/transfer/batch_drops.h"
#include "store_fixture.h"
#include "terrace/protocol_admin.h"

namespace terrace {
namespace {

using protocol::SpanState;
using World = StoreWorld;

class Tiers : public ::testing::Test {
 protected:
  // Stores a chain and lets it settle below.
  void PutBelow(uint64_t chain, uint32_t count = 4) {
    w.Put(s, group, World::Keys(count, chain));
    w.Advance(100'000);
  }
  // Pushes everything else out of DRAM.
  void Flood() {
    for (uint64_t chain = 50; chain < 52; ++chain) PutBelow(chain);
  }
  uint8_t TierMask(const BlockKey& key) {
    std::vector<protocol::QueriedBlock> blocks;
    const std::vector<BlockKey> keys = {key};
    EXPECT_TRUE(w.store->operators().Query(w.Query(s, group, keys), &blocks).ok());
    return blocks[0].tier_mask;
  }
  uint8_t TierMask(uint64_t chain, uint32_t index) {
    return TierMask(World::Keys(index + 1, chain)[index]);
  }
  static constexpr uint8_t kDram = 1 << 1, kNvme = 1 << 2;

  World w{{.lower_tier_count = 1}};
  SessionId s = w.Open();
  uint32_t group = w.OpenSimple(s);
};

TEST_F(Tiers, SealedBlocksAreWrittenThrough) {
  PutBelow(1);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(TierMask(1, i), kDram | kNvme);
  EXPECT_EQ(w.tiers[0]->stats().used_bytes, 4 * kSlotBytes);
}

TEST_F(Tiers, AnEvictedBlockIsPromotedByteForByte) {
  PutBelow(1);
  Flood();
  EXPECT_EQ(TierMask(1, 0), kNvme);
  const auto keys = World::Keys(4, 1);
  const KeysQuery query = w.Query(s, group, keys);
  const AcquireResult got = w.Acquire(query);
  EXPECT_EQ(got.reply.block_count, 4u);
  ASSERT_EQ(got.spans.size(), 1u);
  EXPECT_EQ(got.spans[0].state, SpanState::kComing);
  EXPECT_EQ(got.spans[0].tier, TierKind::kNvme);
  EXPECT_GT(got.spans[0].eta_us, 0u);
  w.Advance(100'000);
  uint32_t ready_count = 0;
  for (const auto& told : w.listener.completions) {
    EXPECT_EQ(told.request_id, query.request_id);
    EXPECT_EQ(told.status, StatusCode::kOk);
    EXPECT_EQ(told.completion.first_block, ready_count);  // prefix order, whatever overtook what
    ready_count += told.completion.block_count;
    EXPECT_EQ(told.is_last(), ready_count == 4);
  }
  EXPECT_EQ(ready_count, 4u);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(w.Holds(s, group, keys[i], 0, got.slots[i]));
  EXPECT_EQ(w.Stats().promotions, 4u);
}

// Where the daemon sees a page of its own, what it read there from a drive is right for it alone.
TEST_F(Tiers, WhatLiesOnAPageThatClientsDoNotHaveIsNotReady) {
  PutBelow(1);
  Flood();
  const auto keys = World::Keys(4, 1);
  const KeysQuery query = w.Query(s, group, keys);
  const AcquireResult got = w.Acquire(query);
  ASSERT_EQ(got.reply.block_count, 4u);
  sim::PlainArena& arena = *w.arenas[0];
  arena.lost = arena.SegmentBase(got.slots[2].segment) + got.slots[2].page * kArenaPageBytes +
               kSlotBytes - 1;
  w.Advance(100'000);
  uint32_t ready_count = 0;
  for (const auto& told : w.listener.completions) {
    if (told.status == StatusCode::kOk) ready_count += told.completion.block_count;
  }
  EXPECT_EQ(ready_count, 2u);
  EXPECT_NE(w.listener.completions.back().status, StatusCode::kOk);
}

// Otherwise the reads that a cancelled prompt had queued would delay the next one's.
TEST(TiersWithAShortQueue, ReadsThatNobodyWaitsForAnyMoreAreNotBegun) {
  WorldOptions options{.lower_tier_count = 1};
  options.make_tier = [](sim::MemoryTier::Options tier) {
    tier.queue_max = 2;
    return std::make_unique<sim::MemoryTier>(tier);
  };
  World w(options);
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = World::Keys(4, 1);
  for (const uint64_t chain : {1, 50, 51}) {
    w.Put(s, group, World::Keys(4, chain));
    w.Advance(100'000);
  }
  const uint64_t read_before = w.tiers[0]->stats().read_bytes;
  w.holds_transfers = true;
  const AcquireResult first = w.Acquire(s, group, keys);
  ASSERT_EQ(first.reply.block_count, 4u);
  w.Advance(10'000);
  ASSERT_EQ(w.tiers[0]->stats().transfers_in_flight, 2u);
  EXPECT_EQ(w.Release(s, first.reply.token), StatusCode::kOk);
  w.Advance(10'000);
  w.holds_transfers = false;
  w.Advance(100'000);
  EXPECT_EQ(w.tiers[0]->stats().read_bytes - read_before, 2 * kSlotBytes);
  EXPECT_EQ(w.Stats().promotions, 2u);
  EXPECT_EQ(w.Stats().promotions_cancelled, 2u);
  EXPECT_EQ(w.Stats().promotions_failed, 0u);
  const AcquireResult again = w.Acquire(s, group, keys);
  w.Advance(100'000);
  ASSERT_EQ(again.reply.block_count, 4u);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(w.Holds(s, group, keys[i], 0, again.slots[i]));
}

// A second one who wants them keeps them going.
TEST(TiersWithAShortQueue, ReadsThatSomebodyElseWaitsForAreBegun) {
  WorldOptions options{.lower_tier_count = 1};
  options.make_tier = [](sim::MemoryTier::Options tier) {
    tier.queue_max = 1;
    return std::make_unique<sim::MemoryTier>(tier);
  };
  World w(options);
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = World::Keys(4, 1);
  for (const uint64_t chain : {1, 50, 51}) {
    w.Put(s, group, World::Keys(4, chain));
    w.Advance(100'000);
  }
  w.holds_transfers = true;
  const AcquireResult first = w.Acquire(s, group, keys);
  const AcquireResult second = w.Acquire(w.Open(), group, keys);
  w.Advance(1'000);
  w.Release(s, first.reply.token);
  w.Advance(1'000);
  w.holds_transfers = false;
  w.Advance(100'000);
  EXPECT_EQ(w.Stats().promotions, 4u);
  EXPECT_EQ(w.Stats().promotions_cancelled, 0u);
  EXPECT_EQ(second.reply.block_count, 4u);
}

TEST_F(Tiers, ManyWhoWantABlockShareOnePromotion) {
  PutBelow(1);
  Flood();
  const SessionId other = w.Open();
  const auto first = w.Acquire(s, group, World::Keys(4, 1));
  const auto second = w.Acquire(other, group, World::Keys(4, 1));
  EXPECT_EQ(second.spans[0].state, SpanState::kComing);
  EXPECT_EQ(first.slots, second.slots);
  w.Advance(100'000);
  EXPECT_EQ(w.Stats().promotions, 4u);
  uint32_t last_count = 0;
  for (const auto& told : w.listener.completions) last_count += told.is_last() ? 1 : 0;
  EXPECT_EQ(last_count, 2u);
}

TEST_F(Tiers, AtTheDeadlineWhatIsNotThereLeavesTheLease) {
  PutBelow(1);
  Flood();
  w.holds_transfers = true;
  const auto keys = World::Keys(4, 1);
  KeysQuery query = w.Query(s, group, keys);
  query.hints.deadline_us = 5'000;
  const AcquireResult got = w.Acquire(query);
  w.Advance(4'900);
  EXPECT_TRUE(w.listener.completions.empty());
  w.Advance(200);
  ASSERT_EQ(w.listener.completions.size(), 1u);
  EXPECT_EQ(w.listener.completions[0].status, StatusCode::kBusy);
  EXPECT_EQ(w.listener.completions[0].completion.first_block, 0u);
  EXPECT_TRUE(w.listener.completions[0].is_last());
  EXPECT_EQ(w.Stats().pinned_count, 0u);
  // The transfers go on, and the blocks are there for the next one.
  w.holds_transfers = false;
  w.Advance(100'000);
  EXPECT_EQ(w.listener.completions.size(), 1u);
  EXPECT_EQ(TierMask(1, 3), kDram | kNvme);
}

TEST_F(Tiers, BytesThatDoNotMatchTruncateThePrefixAndAreDroppedOnce) {
  PutBelow(1);
  Flood();
  const AcquireResult warm = w.Acquire(s, group, World::Keys(2, 1));
  w.Advance(100'000);
  w.listener.completions.clear();
  w.faults[0]->SetRate(sim::Fault::kReadFlipsBit, 1'000'000);
  const auto got = w.Acquire(s, group, World::Keys(4, 1));
  EXPECT_EQ(got.reply.block_count, 4u);
  w.Advance(100'000);
  // Never an error reply, never a wrong byte: the prefix ends at the first bad block.
  ASSERT_FALSE(w.listener.completions.empty());
  for (const auto& told : w.listener.completions) {
    EXPECT_EQ(told.status, StatusCode::kNotFound);
  }
  EXPECT_EQ(w.listener.completions.back().completion.first_block, 2u);
  EXPECT_TRUE(w.listener.completions.back().is_last());
  EXPECT_EQ(w.Stats().promotions_failed, 2u);
  EXPECT_EQ(w.Stats().blocks_corrupt, 2u);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(4, 1)), 2u);
  EXPECT_EQ(w.Stats().pinned_count, 2u);
  EXPECT_EQ(w.Put(s, group, World::Keys(4, 1)), 2u);
}

TEST_F(Tiers, AFailedReadIsAMissAndAFailedWriteLeavesTheDramCopy) {
  w.faults[0]->SetRate(sim::Fault::kWriteFails, 1'000'000);
  PutBelow(1);
  EXPECT_EQ(TierMask(1, 0), kDram);
  EXPECT_EQ(w.tiers[0]->stats().used_bytes, 0u);
  w.faults[0]->SetRate(sim::Fault::kWriteFails, 0);
  PutBelow(2);
  Flood();
  w.faults[0]->SetRate(sim::Fault::kReadFails, 1'000'000);
  w.Acquire(s, group, World::Keys(4, 2));
  w.Advance(100'000);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(4, 2)), 0u);
  EXPECT_EQ(w.Stats().blocks_corrupt, 0u);
}

TEST_F(Tiers, AFullQueueIsTriedAgain) {
  PutBelow(1);
  Flood();
  w.faults[0]->SetRate(sim::Fault::kBusy, 1'000'000);
  w.Acquire(s, group, World::Keys(4, 1));
  w.Advance(10'000);
  EXPECT_TRUE(w.listener.completions.empty());
  w.faults[0]->SetRate(sim::Fault::kBusy, 0);
  w.Advance(100'000);
  EXPECT_TRUE(w.listener.completions.back().is_last());
  EXPECT_EQ(w.listener.completions.back().status, StatusCode::kOk);
}

TEST_F(Tiers, AKeyThatComesTwiceIsPromotedOnce) {
  PutBelow(1);
  Flood();
  std::vector<BlockKey> keys = World::Keys(2, 1);
  keys.push_back(keys[0]);
  const AcquireResult got = w.Acquire(s, group, keys, protocol::kKeysFlat);
  EXPECT_EQ(got.reply.block_count, 3u);
  EXPECT_EQ(got.slots[0], got.slots[2]);
  w.Advance(100'000);
  EXPECT_EQ(w.Stats().promotions, 2u);
  EXPECT_TRUE(w.listener.completions.back().is_last());
  EXPECT_EQ(w.Release(s, got.reply.token), StatusCode::kOk);
  EXPECT_EQ(w.Stats().pinned_count, 0u);
}

TEST_F(Tiers, MakingRoomForAPromotionDoesNotDropWhatItReads) {
  World two{{.lower_tier_count = 2, .lower_capacity_bytes = 8 * kSlotBytes}};
  const SessionId t = two.Open();
  const uint32_t g = two.OpenSimple(t);
  const auto wanted = World::Keys(1, 1);
  two.Put(t, g, wanted);
  two.Put(t, g, World::Keys(7, 2));
  two.Advance(100'000);
  // Both tiers are full, `wanted` being what they would drop first. Now DRAM fills with blocks that
  // are nowhere else.
  for (const auto& fault : two.faults) fault->SwitchOff();
  for (uint64_t chain = 11; chain < 11 + kSlotsPerSegment; ++chain) {
    EXPECT_EQ(two.Put(t, g, World::Keys(1, chain)), 1u);
    two.Run();
  }
  for (const auto& fault : two.faults) fault->SwitchOn();
  const AcquireResult got = two.Acquire(t, g, wanted);
  two.Advance(100'000);
  EXPECT_EQ(two.Stats().promotions_failed, 0u);
  ASSERT_EQ(got.reply.block_count, 1u);
  EXPECT_TRUE(two.Holds(t, g, wanted[0], 0, got.slots[0]));
  EXPECT_EQ(two.Stats().demotions, Evictor::kDemotionsPerBlockMax);
}

TEST_F(Tiers, PrefetchPromotesAndHoldsNothing) {
  PutBelow(1);
  Flood();
  const auto keys = World::Keys(4, 1);
  const KeysQuery query = w.Query(s, group, keys);
  PrefixMatch result;
  ASSERT_TRUE(w.store->prefixes().Prefetch(&result).Step(query).ok());
  EXPECT_EQ(result.reply.block_count, 4u);
  EXPECT_EQ(w.Stats().pinned_count, 4u);
  w.Advance(100'000);
  EXPECT_EQ(w.Stats().pinned_count, 0u);
  EXPECT_EQ(w.Stats().lease_count, 0u);
  EXPECT_EQ(TierMask(1, 3), kDram | kNvme);
  EXPECT_TRUE(w.listener.completions.back().is_last());
}

TEST_F(Tiers, WithoutRoomThePrefixIsTruncated) {
  PutBelow(1);
  Flood();
  const AcquireResult blocker = w.Acquire(s, group, World::Keys(4, 50));
  const AcquireResult other = w.Acquire(s, group, World::Keys(2, 51));
  w.Advance(100'000);
  const AcquireResult got = w.Acquire(s, group, World::Keys(4, 1));
  EXPECT_EQ(got.reply.block_count, 2u);
}

TEST_F(Tiers, NoStoreBlocksNeverLeaveDram) {
  const auto keys = World::Keys(2, 1);
  KeysQuery query = w.Query(s, group, keys);
  query.hints.flags = protocol::kHintNoStore;
  w.CommitAll(s, group, keys, w.Reserve(query), World::Checksums::kClient,
              protocol::kCommitRelease);
  w.Advance(100'000);
  EXPECT_EQ(TierMask(1, 0), kDram);
  EXPECT_EQ(w.tiers[0]->stats().used_bytes, 0u);
}

TEST_F(Tiers, UncheckedBytesStayInDramUntilChecked) {
  const auto keys = World::Keys(1, 1);
  w.holds_checksums = true;
  const ReserveResult reserved = w.Reserve(s, group, keys);
  w.CommitAll(s, group, keys, reserved, World::Checksums::kDaemon);
  w.Advance(100'000);
  EXPECT_EQ(w.tiers[0]->stats().used_bytes, 0u);
  w.holds_checksums = false;
  w.Advance(100'000);
  EXPECT_EQ(TierMask(1, 0), kDram | kNvme);
}

TEST_F(Tiers, AChildGoesBelowAfterItsParentOnly) {
  w.holds_checksums = true;
  const auto parent = World::Keys(1, 1);
  w.CommitAll(s, group, parent, w.Reserve(s, group, parent), World::Checksums::kDaemon,
              protocol::kCommitRelease);
  EXPECT_EQ(w.Put(s, group, World::Keys(2, 1)), 1u);
  w.Advance(100'000);
  EXPECT_EQ(TierMask(1, 1), kDram);
  w.holds_checksums = false;
  w.Advance(100'000);
  EXPECT_EQ(TierMask(1, 0), kDram | kNvme);
  EXPECT_EQ(TierMask(1, 1), kDram | kNvme);
}

TEST_F(Tiers, AHungUpSessionWaitsForNothing) {
  w.holds_transfers = true;
  const SessionId left = w.Open();
  const auto keys = World::Keys(3, 1);
  w.Put(s, group, keys);
  const KeysQuery query = w.Query(left, group, keys);
  EXPECT_EQ(*w.store->operators().Wait().Step(query), Progress::kFollows);
  w.store->sessions().HangUp(left);
  w.holds_transfers = false;
  w.Advance(100'000);
  EXPECT_TRUE(w.listener.waits.empty());
}

// A successor that does not know the group cannot read its blocks.
TEST_F(Tiers, NothingIsPersistedBeforeTheSpecOfItsGroup) {
  w.group_files.state_of_kept = GroupFiles::State::kComing;
  const auto keys = World::Keys(3, 1);
  w.Put(s, group, keys);
  w.Advance(3'000'000);
  EXPECT_EQ(w.Stats().lower_tiers[0].block_count, 0u);
  w.group_files.state_of_kept = GroupFiles::State::kKept;
  w.Advance(3'000'000);
  EXPECT_EQ(w.Stats().lower_tiers[0].persisted_block_count, 3u);
}

TEST(TiersOfGroups, ABlockThatWaitsForTheSpecOfItsGroupHoldsUpNoOther) {
  World w{{.segments_max = 2, .lower_tier_count = 1}};
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const SpaceGroupSpec slow = TestGroup("slow", {TestSpace(3)});
  w.group_files.coming = {slow.Id()};
  const uint32_t slow_group = w.OpenGroup(s, slow);
  ASSERT_EQ(w.Put(s, slow_group, World::Keys(3, 2)), 3u);
  w.Put(s, group, World::Keys(3, 1));
  w.Advance(100'000);
  EXPECT_EQ(w.Stats().lower_tiers[0].persisted_block_count, 3u);
  w.group_files.coming.clear();
  w.store->events().OnGroupFilesChanged(0);
  w.Advance(100'000);
  EXPECT_EQ(w.Stats().lower_tiers[0].persisted_block_count, 6u) << "no tick was needed";
}

TEST_F(Tiers, AGroupWhoseSpecCannotBeWrittenIsTriedAgainWhenItIsOpened) {
  w.group_files.state_of_kept = GroupFiles::State::kFailed;
  w.Put(s, group, World::Keys(3, 1));
  w.Advance(3'000'000);
  EXPECT_EQ(w.Stats().lower_tiers[0].block_count, 0u);
  const size_t asked_count = w.group_files.kept.size();
  EXPECT_EQ(w.OpenSimple(s), group);
  EXPECT_EQ(w.group_files.kept.size(), asked_count + 1);
  w.group_files.state_of_kept = GroupFiles::State::kKept;
  w.Put(s, group, World::Keys(3, 2));
  w.Advance(3'000'000);
  EXPECT_EQ(w.Stats().lower_tiers[0].persisted_block_count, 6u);
}

// Whoever writes the files tries again: no engine has to open its group anew.
TEST_F(Tiers, BlocksOfAGroupThatCouldNotBeKeptFollowOnceItIs) {
  w.group_files.state_of_kept = GroupFiles::State::kFailed;
  w.Put(s, group, World::Keys(3, 1));
  w.Put(s, group, World::Keys(3, 2));
  w.Advance(3'000'000);
  EXPECT_EQ(w.Stats().lower_tiers[0].block_count, 0u);
  EXPECT_EQ(w.Stats().lower_tiers[0].writes_queued, 0u) << "a stop does not wait for them";
  protocol::DrainReply left;
  w.store->operators().AddLeft(0, &left);
  EXPECT_EQ(left.unwritten_blocks, 2u) << "who stops the daemon loses their chains";
  EXPECT_EQ(left.is_done, 0u);
  w.group_files.state_of_kept = GroupFiles::State::kKept;
  w.store->events().OnGroupFilesChanged(0);
  w.Advance(100'000);
  EXPECT_EQ(w.Stats().lower_tiers[0].persisted_block_count, 6u);
  left = {};
  w.store->operators().AddLeft(0, &left);
  EXPECT_EQ(left.unwritten_blocks, 0u);
  EXPECT_EQ(left.is_done, 1u);
}

TEST_F(Tiers, WaitAnswersWhenAllIsPersisted) {
  w.holds_transfers = true;
  const auto keys = World::Keys(3, 1);
  w.Put(s, group, keys);
  const KeysQuery query = w.Query(s, group, keys);
  EXPECT_EQ(*w.store->operators().Wait().Step(query), Progress::kFollows);
  w.Advance(1'000);
  EXPECT_TRUE(w.listener.waits.empty());
  w.holds_transfers = false;
  w.Advance(100'000);
  ASSERT_EQ(w.listener.waits.size(), 1u);
  EXPECT_EQ(w.listener.waits[0].status, StatusCode::kOk);
  EXPECT_EQ(w.listener.waits[0].request_id, query.request_id);
  const KeysQuery again = w.Query(s, group, keys);
  EXPECT_EQ(*w.store->operators().Wait().Step(again), Progress::kDone);
  const auto unknown = World::Keys(1, 9);
  EXPECT_EQ(w.store->operators().Wait().Step(w.Query(s, group, unknown)).code(),
            StatusCode::kNotFound);
}

TEST_F(Tiers, WaitEndsAtItsDeadlineOrWhenAKeyGoes) {
  w.holds_transfers = true;
  const auto keys = World::Keys(1, 1);
  w.Put(s, group, keys);
  KeysQuery query = w.Query(s, group, keys);
  query.hints.deadline_us = 1'000;
  EXPECT_EQ(*w.store->operators().Wait().Step(query), Progress::kFollows);
  w.Advance(2'000);
  ASSERT_EQ(w.listener.waits.size(), 1u);
  EXPECT_EQ(w.listener.waits[0].status, StatusCode::kBusy);
  KeysQuery second = w.Query(s, group, keys);
  EXPECT_EQ(*w.store->operators().Wait().Step(second), Progress::kFollows);
  w.Reset(s, group);
  ASSERT_EQ(w.listener.waits.size(), 2u);
  EXPECT_EQ(w.listener.waits[1].status, StatusCode::kNotFound);
}

TEST_F(Tiers, EraseUnderATransferWaitsForItsEnd) {
  w.holds_transfers = true;
  w.Put(s, group, World::Keys(2, 1));
  w.Run();
  w.Reset(s, group);
  EXPECT_EQ(w.Stats().slot_bytes_used, 2 * kSlotBytes);
  w.holds_transfers = false;
  w.Advance(100'000);
  EXPECT_EQ(w.Stats().slot_bytes_used, 0u);
  EXPECT_EQ(w.tiers[0]->stats().used_bytes, 0u);
}

TEST_F(Tiers, AFullTierForgetsItsOwnTails) {
  World small{{.lower_tier_count = 1, .lower_capacity_bytes = 12 * kSlotBytes}};
  const SessionId t = small.Open();
  const uint32_t g = small.OpenSimple(t);
  for (uint64_t chain = 1; chain <= 6; ++chain) {
    EXPECT_EQ(small.Put(t, g, World::Keys(4, chain)), 4u);
    small.Advance(100'000);
  }
  EXPECT_LE(small.tiers[0]->stats().used_bytes, 12 * kSlotBytes);
  EXPECT_EQ(small.MatchCount(t, g, World::Keys(4, 6)), 4u);
  EXPECT_EQ(small.MatchCount(t, g, World::Keys(4, 5)), 4u);
  EXPECT_LT(small.MatchCount(t, g, World::Keys(4, 1)), 4u);
}

// ---- room that goes back to other domains ----

// Wants places back, some at a time.
class GivingTier final : public sim::MemoryTier {
 public:
  using MemoryTier::MemoryTier;
  bool AppendOwnersToGive(std::vector<uint32_t>* owners) override {
    const size_t end = std::min(next_ + named_at_once, to_give.size());
    while (next_ < end) owners->push_back(to_give[next_++]);
    if (next_ < to_give.size()) return true;
    next_ = 0;
    return false;
  }
  Status Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
               std::span<const std::byte> from) override {
    written.push_back(record.owner);
    if (written.size() == 1) first_ = extent;
    return MemoryTier::Write(transfer_id, extent, record, from);
  }
  void Free(const Extent& extent) override {
    ++freed_count;
    has_freed_first |= extent.position == first_.position && !written.empty();
    MemoryTier::Free(extent);
  }
  std::vector<uint32_t> written;  // owners, in order
  std::vector<uint32_t> to_give;
  size_t named_at_once = 5;
  uint64_t freed_count = 0;
  bool has_freed_first = false;  // what was written first

 private:
  size_t next_ = 0;
  Extent first_;
};

class TiersThatGive : public ::testing::Test {
 protected:
  explicit TiersThatGive(uint64_t write_us = 0) : write_us_(write_us) {}

  WorldOptions OptionsOf(uint32_t segment_count) {
    WorldOptions options{.domain_count = 2,
                         .segments_max = segment_count,
                         .lower_tier_count = 1,
                         .lower_capacity_bytes = 256 * kSlotBytes};
    options.make_tier = [this](sim::MemoryTier::Options made) {
      if (write_us_ > 0) made.latency_us_min = made.latency_us_max = write_us_;
      auto giving = std::make_unique<GivingTier>(made);
      tiers.push_back(giving.get());
      return giving;
    };
    return options;
  }
  void MakeWorld(uint32_t segment_count) {
    world.emplace(OptionsOf(segment_count));
    s = world->Open();
    group = world->OpenSimple(s);
  }
  GivingTier& tier() { return *tiers[0]; }
  uint64_t BlocksBelow() { return world->Stats().lower_tiers[0].block_count; }

  const uint64_t write_us_;
  std::vector<GivingTier*> tiers;
  std::optional<World> world;
  SessionId s = 0;
  uint32_t group = 0;
};

TEST_F(TiersThatGive, WhatIsPinnedLeavesTooAndStaysWhereItHasAnotherCopy) {
  MakeWorld(1);
  World& w = *world;
  const auto keys = World::Keys(4);
  const auto pinned = World::Keys(2);
  w.Put(s, group, keys);
  w.Put(s, group, World::Keys(2, 2));
  w.Advance(100'000);
  protocol::PinReply pins;
  ASSERT_TRUE(w.store->operators().Pin(w.Query(s, group, pinned), &pins).ok());
  ASSERT_EQ(BlocksBelow(), 6u);
  tier().to_give = {tier().written[0]};  // the first of a chain: what hangs from it goes with it
  w.Advance(1'000'000);
  EXPECT_EQ(BlocksBelow(), 2u) << "of the other chain";
  EXPECT_EQ(w.MatchCount(s, group, keys), 4u) << "DRAM has them";
  EXPECT_EQ(tier().stats().used_bytes, 2 * kSlotBytes);
}

TEST_F(TiersThatGive, WhatWouldBeLostWithDescendantsInMemoryIsReadThereFirst) {
  MakeWorld(1);
  World& w = *world;
  const auto keys = World::Keys(2);
  w.Put(s, group, World::Keys(1));
  for (const uint64_t chain : {50, 51}) {
    w.Put(s, group, World::Keys(4, chain));
    w.Advance(100'000);
  }
  ASSERT_EQ(w.Put(s, group, keys, {.flags = protocol::kHintNoStore}), 1u) << "the first is below";
  w.Advance(100'000);
  const uint64_t before = BlocksBelow();
  tier().to_give = {tier().written[0]};
  w.Advance(2'000'000);
  EXPECT_EQ(BlocksBelow(), before - 1);
  EXPECT_TRUE(tier().has_freed_first);
  EXPECT_EQ(w.MatchCount(s, group, keys), 2u);
}

// All of DRAM is below no tier, so that nothing there makes room for what comes up.
TEST_F(TiersThatGive, WhatCannotBeReadIntoMemoryLeavesWithItsDescendants) {
  MakeWorld(1);
  World& w = *world;
  const auto keys = World::Keys(3);
  w.Put(s, group, World::Keys(1));
  for (const uint64_t chain : {50, 51}) {
    w.Put(s, group, World::Keys(4, chain));
    w.Advance(100'000);
  }
  ASSERT_EQ(w.Put(s, group, keys, {.flags = protocol::kHintNoStore}), 2u) << "the first is below";
  for (uint64_t chain = 60; chain < 66; ++chain) {
    w.Put(s, group, World::Keys(1, chain), {.flags = protocol::kHintNoStore});
  }
  ASSERT_EQ(w.MatchCount(s, group, keys), 3u);
  tier().to_give = {tier().written[0]};
  w.Advance(2'000'000);
  EXPECT_TRUE(tier().has_freed_first);
  EXPECT_EQ(w.MatchCount(s, group, keys), 0u);
}

// A write takes longer than it is between two of them.
class SlowTiersThatGive : public TiersThatGive {
 protected:
  SlowTiersThatGive() : TiersThatGive(300'000) {}
};

TEST_F(SlowTiersThatGive, AWriterThatNeverRestsKeepsNoPlace) {
  MakeWorld(8);
  World& w = *world;
  const BlockKey first = World::Keys(1)[0];
  w.Put(s, group, {first});
  w.Advance(1'000'000);
  tier().to_give = {tier().written[0]};
  for (uint64_t i = 1; i <= 30 && !tier().has_freed_first; ++i) {
    w.Put(s, group, {first, World::Keys(1, 100 + i)[0]});
    w.Advance(100'000);
  }
  EXPECT_TRUE(tier().has_freed_first) << "though it always has a child that is being written";
  EXPECT_GT(tier().written.size(), 5u);
}

TEST_F(TiersThatGive, ATurnDropsSoManyOverAllDomains) {
  MakeWorld(1);
  World& w = *world;
  const SessionId other = w.Open(1);
  const uint32_t group_of_other = w.OpenSimple(other);
  constexpr uint64_t kChains = 25;
  for (uint64_t chain = 1; chain <= kChains; ++chain) {
    w.Put(s, group, World::Keys(4, chain));
    w.Put(other, group_of_other, World::Keys(4, chain));
    w.Advance(50'000);
  }
  for (GivingTier* giving : tiers) {
    ASSERT_EQ(giving->written.size(), 4 * kChains);
    giving->to_give = giving->written;
    giving->named_at_once = giving->written.size();
  }
  uint64_t turn_count = 0;
  const auto freed = [this] { return tiers[0]->freed_count + tiers[1]->freed_count; };
  const uint64_t end_us = w.clock.NowUs() + 2'000'000;
  while (w.clock.NowUs() < end_us) {
    w.clock.AdvanceTo(std::max(w.store->events().NextTimerUs(), w.clock.NowUs() + 1));
    const uint64_t before = freed();
    w.store->events().OnTimer();
    turn_count += freed() > before;
    ASSERT_LE(freed() - before, BatchDrops::kPerTurnMax);
    for (const auto& below : w.tiers) below->RunUntil(w.clock.NowUs());
  }
  EXPECT_EQ(freed(), 2 * 4 * kChains);
  EXPECT_GE(turn_count, 2 * 4 * kChains / BatchDrops::kPerTurnMax);
}

// Without a word of its own a block lives as long as its domain says.
TEST(DefaultTimeToLive, IsThatOfBlocksWhoseRequestNamesNone) {
  World w;
  StoreOptions tuned = w.made;
  tuned.domains[0].ttl_default_s = 60;
  w.store->Retune(tuned);
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto plain = World::Keys(1, 1), longer = World::Keys(1, 2);
  w.Put(s, group, plain);
  w.Put(s, group, longer, {.ttl_s = 600});
  w.Advance(59'000'000);
  EXPECT_EQ(w.MatchCount(s, group, plain), 1u);
  w.Advance(2'000'000);
  EXPECT_EQ(w.MatchCount(s, group, plain), 0u);
  EXPECT_EQ(w.MatchCount(s, group, longer), 1u);
  EXPECT_EQ(w.Stats().blocks_expired, 1u);
  tuned.domains[0].ttl_default_s = 0;
  w.store->Retune(tuned);
  w.Put(s, group, plain);
  w.Advance(3600'000'000);
  EXPECT_EQ(w.MatchCount(s, group, plain), 1u) << "until room is needed";
}

}  // namespace
}  // namespace terrace

// How blocks are born and leave, without a Store.
#include "daemon/residency/lifecycle.h"

#include <gmock/gmock.h>

#include "block_world.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Lifecycle, IsReservedThenSealedThenGone) {
  BlockWorld w({});
  const BlockId id = w.Reserve(1);
  EXPECT_EQ(w.block(id).phase, BlockPhase::kReserved);
  EXPECT_EQ(w.d().reserved_count, 1u);
  uint32_t short_class = 0;
  ASSERT_TRUE(w.r().dram.TakeSlots(id, 1, {}, &short_class).ok());
  w.r().lifecycle.Seal(id, 1);
  EXPECT_EQ(w.block(id).phase, BlockPhase::kSealed);
  EXPECT_EQ(w.d().reserved_count, 0u);
  EXPECT_THAT(w.Told(), ElementsAre("ready 1"));
  w.r().lifecycle.Erase(id, StatusCode::kNotFound);
  EXPECT_THAT(w.Told(), ElementsAre("lost 1"));
  EXPECT_EQ(w.block(id).phase, BlockPhase::kUnused);
  EXPECT_EQ(w.Find(1), kBlockNone);
  EXPECT_EQ(w.d().slots.usage().slots_used, 0u);
}

TEST(Lifecycle, RootsThatAreAllThereAreKnownWhenItIsSealed) {
  BlockWorld w({.part_count = 2});
  const BlockId whole = w.Put(1);
  EXPECT_TRUE(w.block(whole).has_roots);
  const BlockId half = w.Reserve(2);
  uint32_t short_class = 0;
  ASSERT_TRUE(w.r().dram.TakeSlots(half, 1, {}, &short_class).ok());
  w.d().roots_of(w.block(half))[0] = {1, 1};
  w.r().lifecycle.Seal(half, 1);
  EXPECT_FALSE(w.block(half).has_roots);
}

TEST(Lifecycle, WhatSomebodyHoldsIsReclaimedWhenHeLetsGo) {
  BlockWorld w({});
  const BlockId id = w.Put(1);
  w.r().holds.Hold(id, HoldKind::kLease);
  w.r().holds.Hold(id, HoldKind::kFence);
  w.r().lifecycle.Erase(id, StatusCode::kNotFound);
  EXPECT_EQ(w.Find(1), kBlockNone);
  EXPECT_EQ(w.block(id).phase, BlockPhase::kErased);
  w.r().holds.LetGo(id, HoldKind::kLease);
  EXPECT_EQ(w.d().slots.usage().slots_used, 1u) << "a fence stands";
  w.r().holds.LetGo(id, HoldKind::kFence);
  EXPECT_EQ(w.block(id).phase, BlockPhase::kUnused);
  EXPECT_EQ(w.d().slots.usage().slots_used, 0u);
}

TEST(Lifecycle, WhyAKeyIsNoLongerThereIsRemembered) {
  BlockWorld w({});
  const BlockId id = w.Put(1);
  {
    const EraseCauseScope scope(w.d(), protocol::MissCause::kOperator);
    w.r().lifecycle.Erase(id, StatusCode::kNotFound);
  }
  const ForgottenKeys::Entry* const entry = w.d().forgotten.Find(0, BlockWorld::Key(1));
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->cause, protocol::MissCause::kOperator);
  w.r().lifecycle.Erase(w.Reserve(2), StatusCode::kGone);
  EXPECT_EQ(w.d().forgotten.Find(0, BlockWorld::Key(2)), nullptr) << "nobody ever found it";
}

TEST(Lifecycle, ATailLeavesAtOnceAndWhatItHungFromMayGoNext) {
  BlockWorld w({});
  BlockId parent = kBlockNone;
  std::vector<BlockId> chain;
  for (uint64_t i = 1; i <= 4; ++i) chain.push_back(parent = w.Put(i, parent));
  EXPECT_TRUE(w.block(chain[3]).is_dram_candidate());
  EXPECT_FALSE(w.block(chain[0]).is_dram_candidate());
  w.r().holds.Hold(chain[0], HoldKind::kJob);
  EXPECT_EQ(w.r().lifecycle.DropTail({.first = chain[0], .block_count = 4}), 3u);
  EXPECT_EQ(w.d().counters.blocks_evicted, 3u);
  for (uint64_t i = 2; i <= 4; ++i) EXPECT_EQ(w.Find(i), kBlockNone);
  EXPECT_EQ(w.block(chain[0]).dram_children, 0u);
  w.r().holds.LetGo(chain[0], HoldKind::kJob);
  EXPECT_TRUE(w.block(chain[0]).is_dram_candidate());
  EXPECT_EQ(w.d().slots.usage().slots_used, 1u);
}

TEST(Lifecycle, AboveOtherTiersBlocksGoOneByOne) {
  BlockWorld w({.tier_count = 1});
  const BlockId first = w.Put(1);
  w.Put(2, first);
  EXPECT_EQ(w.r().lifecycle.DropTail({.first = first, .block_count = 2}), 0u)
      << "each may be below as well";
}

TEST(Lifecycle, TheLastCopyTakesTheBlockAlong) {
  BlockWorld w({.tier_count = 1});
  const BlockId id = w.PutBelow(1);
  w.Told();
  w.r().lifecycle.DropDram(id);
  EXPECT_EQ(w.Find(1), id);
  EXPECT_THAT(w.Told(), IsEmpty());
  w.r().lifecycle.DropLower(id, 0, DropReason::kNotWanted);
  EXPECT_EQ(w.Find(1), kBlockNone);
  EXPECT_THAT(w.Told(), ElementsAre("lost 1"));
  EXPECT_EQ(w.tier().used_count, 0u);
}

TEST(Lifecycle, BadBytesBelowAreAMissForTheirOwnReason) {
  BlockWorld w({.tier_count = 1});
  const BlockId id = w.PutBelowOnly(1);
  w.r().lifecycle.DropLower(id, 0, DropReason::kBadBytes);
  EXPECT_EQ(w.tier().quarantined.size(), 1u);
  EXPECT_EQ(w.d().forgotten.Find(0, BlockWorld::Key(1))->cause, protocol::MissCause::kCorrupt);
}

TEST(Lifecycle, TimeToLiveEndsIt) {
  BlockWorld w({});
  protocol::Hints hints;
  hints.ttl_s = 10;
  const BlockId id = w.Put(1, kBlockNone, hints);
  EXPECT_NE(w.block(id).expiry, kHandleNone);
  EXPECT_FALSE(w.r().candidates.IsExpired(id));
  w.clock.Advance(10'000'000);
  EXPECT_TRUE(w.r().candidates.IsExpired(id));
  w.deadlines.Remove(w.block(id).expiry);
  w.r().lifecycle.Expire(id);
  EXPECT_EQ(w.Find(1), kBlockNone);
  EXPECT_EQ(w.d().counters.blocks_expired, 1u);
}

BlockRecord RecordOf(uint64_t number, std::span<const Checksum> roots, const SpaceId& space) {
  BlockRecord record;
  record.space = space;
  record.key = BlockWorld::Key(number);
  record.commit_id = 99;
  record.event_hash = 5;
  record.priority = 50;
  record.is_pinned = true;
  record.part_checksums = roots;
  return record;
}

TEST(Lifecycle, ACopyThatOutlivedTheProcessIsABlockAgain) {
  BlockWorld w({.tier_count = 1});
  const Checksum root{1, 2};
  const SpaceId space = w.d().groups[0]->locals()[0].space;
  w.tier().used_count = 1;
  const Extent extent{.position = 9, .length_bytes = BlockWorld::kBytes};
  const BlockId id = w.r().lifecycle.Restore(0, 0, RecordOf(1, {&root, 1}, space), extent);
  ASSERT_NE(id, kBlockNone);
  EXPECT_EQ(w.r().lifecycle.Restore(0, 0, RecordOf(1, {&root, 1}, space), extent), kBlockNone)
      << "a member comes once";
  ASSERT_TRUE(w.r().lifecycle.KeepIfWhole(id, 0));
  w.r().lifecycle.EndRestore(id, 0);
  EXPECT_TRUE(w.block(id).lower[0].is_readable());
  EXPECT_EQ(w.block(id).commit_id, 99u);
  EXPECT_TRUE(w.block(id).is_pinned);
  EXPECT_TRUE(w.r().lower.IsPersisted(id));
}

TEST(Lifecycle, ARestoredBlockThatIsNotWholeWasNeverThere) {
  BlockWorld w({.tier_count = 1});
  const Checksum root{1, 2};
  const SpaceId space = w.d().groups[0]->locals()[0].space;
  const BlockRecord wrong = RecordOf(1, {}, space);
  EXPECT_EQ(w.r().lifecycle.Restore(0, 0, wrong, {.length_bytes = BlockWorld::kBytes}), kBlockNone)
      << "without checksums it is not believed";
  EXPECT_EQ(w.r().lifecycle.Restore(0, 0, RecordOf(1, {&root, 1}, space), {.length_bytes = 4096}),
            kBlockNone)
      << "nor in a place of another size";
  EXPECT_EQ(w.Find(1), kBlockNone);
}

}  // namespace
}  // namespace terrace

// What outlives a store: blocks in the persistent tier, found again by its successor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store_fixture.h"

namespace terrace {
namespace {

using World = StoreWorld;

class Restored : public ::testing::Test {
 protected:
  void PutBelow(uint64_t chain, uint32_t count = 4) {
    w.Put(s, group, World::Keys(count, chain));
    w.Advance(100'000);
  }
  RestoreSummary Restart() {
    const RestoreSummary summary = w.Restart()[0];
    s = w.Open();
    return summary;
  }
  protocol::QueriedBlock Queried(const BlockKey& key) {
    std::vector<protocol::QueriedBlock> blocks;
    const std::vector<BlockKey> keys = {key};
    EXPECT_TRUE(w.store->operators().Query(w.Query(s, group, keys), &blocks).ok());
    return blocks[0];
  }

  World w{{.lower_tier_count = 1}};
  SessionId s = w.Open();
  uint32_t group = w.OpenSimple(s);
};

TEST_F(Restored, APersistedChainIsServedByteForByteByASuccessor) {
  PutBelow(1);
  const RestoreSummary summary = Restart();
  EXPECT_EQ(summary.blocks, 4u);
  EXPECT_EQ(summary.copies_dropped, 0u);
  EXPECT_EQ(w.Stats().group_count, 1u);
  group = w.OpenSimple(s);
  EXPECT_EQ(w.Stats().group_count, 1u);  // it is the restored one
  const auto keys = World::Keys(4, 1);
  EXPECT_EQ(w.MatchCount(s, group, keys), 4u);
  const AcquireResult got = w.Acquire(s, group, keys);
  EXPECT_EQ(got.reply.block_count, 4u);
  w.Advance(100'000);
  EXPECT_EQ(w.Stats().promotions, 4u);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(w.Holds(s, group, keys[i], 0, got.slots[i]));
  EXPECT_TRUE(Queried(keys[3]).flags & protocol::kQueriedPersisted);
}

TEST_F(Restored, ARecordInDoubtIsWrittenAnew) {
  PutBelow(1);
  for (const BlockKey& key : World::Keys(4, 1)) w.tiers[0]->ForgetRecord(key, 0);
  for (uint32_t id = 0; id < 4; ++id) w.store->events().OnRecordInDoubt(0, id);
  w.Advance(10'000);  // nobody has to come by
  EXPECT_EQ(Restart().blocks, 4u);
}

TEST_F(Restored, ChainsAreLinkedAgainSoThatTailsLeaveFirst) {
  PutBelow(1);
  Restart();
  group = w.OpenSimple(s);
  ListResult listed;
  const protocol::ListRequest request = {.group_handle = group, .entry_count_max = 16};
  ASSERT_TRUE(w.store->operators().List(s, request, &listed).Step().ok());
  ASSERT_EQ(listed.entries.size(), 4u);
  for (const protocol::ListEntry& entry : listed.entries) {
    EXPECT_EQ(entry.child_count, entry.position < 3 ? 1u : 0u);
    EXPECT_EQ(entry.parent.is_zero(), entry.position == 0);
  }
  const auto head = World::Keys(1, 1);
  const protocol::EvictReply evicted = w.Evict(w.Query(s, group, head));
  EXPECT_EQ(evicted.block_count, 0u);  // it has a child
  EXPECT_EQ(evicted.skipped_count, 1u);
}

TEST_F(Restored, WhatABlockIsWorthOutlivesTheProcess) {
  KeysQuery query = w.Query(s, group, {});
  const auto keys = World::Keys(1, 7);
  query.keys = keys;
  query.hints.priority = 90;
  query.hints.flags = protocol::kHintPin;
  const ReserveResult reserved = w.Reserve(query);
  w.CommitAll(s, group, keys, reserved, World::Checksums::kClient, protocol::kCommitRelease);
  w.Advance(100'000);
  Restart();
  group = w.OpenSimple(s);
  EXPECT_EQ(Queried(keys[0]).priority, 90);
  EXPECT_TRUE(Queried(keys[0]).flags & protocol::kQueriedPinned);
}

TEST_F(Restored, AnExpiredBlockIsNotRestoredAndALivingOneExpiresInTime) {
  for (const uint32_t ttl_s : {1u, 5u}) {
    const auto keys = World::Keys(1, ttl_s);
    KeysQuery query = w.Query(s, group, keys);
    query.hints.ttl_s = ttl_s;
    w.CommitAll(s, group, keys, w.Reserve(query), World::Checksums::kClient,
                protocol::kCommitRelease);
  }
  w.Advance(100'000);
  w.holds_transfers = true;
  w.clock.Advance(1'500'000);  // the process is gone when the first one expires
  const RestoreSummary summary = Restart();
  w.holds_transfers = false;
  EXPECT_EQ(summary.blocks, 1u);
  EXPECT_EQ(summary.copies_dropped, 1u);
  group = w.OpenSimple(s);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(1, 5)), 1u);
  w.Advance(5'000'000);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(1, 5)), 0u);
  EXPECT_EQ(w.tiers[0]->stats().used_bytes, 0u);
}

TEST(RestoredGroup, ABlockWithoutAllItsFullMembersIsDropped) {
  World w{{.segments_max = 2, .lower_tier_count = 1}};
  SessionId s = w.Open();
  const SpaceGroupSpec pair = TestGroup("pair", {TestSpace(0), TestSpace(1)});
  const auto keys = World::Keys(2, 3);
  EXPECT_EQ(w.Put(s, w.OpenGroup(s, pair), keys), 2u);
  w.Advance(100'000);
  w.tiers[0]->ForgetRecord(keys[1], 1);
  const RestoreSummary summary = w.Restart()[0];
  EXPECT_EQ(summary.blocks, 1u);
  EXPECT_EQ(summary.copies_dropped, 1u);
  w.Advance(10'000);
  EXPECT_EQ(w.tiers[0]->stats().used_bytes, 2 * kSlotBytes);
  s = w.Open();
  EXPECT_EQ(w.MatchCount(s, w.OpenGroup(s, pair), keys), 1u);
}

TEST(RestoredGroup, AWindowedMemberMayBeMissing) {
  World w{{.segments_max = 2, .lower_tier_count = 1}};
  SessionId s = w.Open();
  const SpaceGroupSpec hybrid = TestGroup("hybrid", {TestSpace(0), TestSpace(0, 1)});
  const auto keys = World::Keys(2, 3);
  EXPECT_EQ(w.Put(s, w.OpenGroup(s, hybrid), keys), 2u);
  w.Advance(100'000);
  w.tiers[0]->ForgetRecord(keys[0], 1);
  EXPECT_EQ(w.Restart()[0].blocks, 2u);
  s = w.Open();
  const uint32_t group = w.OpenGroup(s, hybrid);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(1, 3)), 0u);  // its window is not complete
  EXPECT_EQ(w.MatchCount(s, group, keys), 2u);
}

TEST_F(Restored, CopiesOfNoKnownGroupAreNotWanted) {
  PutBelow(1);
  w.group_files.kept.clear();
  const RestoreSummary summary = Restart();
  EXPECT_EQ(summary.blocks, 0u);
  EXPECT_EQ(summary.copies_dropped, 4u);
  w.Advance(10'000);
  EXPECT_EQ(w.tiers[0]->stats().used_bytes, 0u);
}

TEST_F(Restored, WhatWasEvictedDoesNotComeBack) {
  PutBelow(1);
  const auto keys = World::Keys(4, 1);
  EXPECT_EQ(w.Evict(w.Query(s, group, keys)).block_count, 4u);
  w.Advance(10'000);  // the erasures are through
  EXPECT_EQ(Restart().blocks, 0u);
}

TEST_F(Restored, MoreThanTheIndexHoldsIsDropped) {
  World small{{.lower_tier_count = 1, .blocks_max = 8}};
  SessionId session = small.Open();
  small.Put(session, small.OpenSimple(session), World::Keys(8, 1));
  small.Advance(100'000);
  small.options().blocks_max = 5;
  EXPECT_EQ(small.Restart()[0].blocks, 5u);
}

TEST_F(Restored, AnotherSpecUnderARestoredNameIsRefusedWhileItsBlocksAreThere) {
  PutBelow(1);
  Restart();
  SpaceGroupSpec other = TestGroup("simple", {TestSpace(0)});
  other.members[0].spec.revision = "r2";
  OpenedGroup group;
  const Error opened = w.store->sessions().OpenGroup(s, other, &group);
  EXPECT_EQ(opened.code(), StatusCode::kInvalid);
  EXPECT_THAT(opened.sentence(), testing::HasSubstr("revision"));
}

// ---- persisted ----

TEST_F(Restored, ABlockIsPersistedWhenItsRecordIsNotWhenItsBytesAreWritten) {
  const auto keys = World::Keys(1, 1);
  w.Put(s, group, keys);
  ASSERT_TRUE(w.offload.RunOne(w.store.get()));  // it is verified
  // Its bytes are below; its record is on its way.
  while (!(Queried(keys[0]).tier_mask & (1 << 2))) {
    w.clock.AdvanceTo(w.tiers[0]->NextCompletionUs());
    w.tiers[0]->RunUntil(w.clock.NowUs());
  }
  EXPECT_FALSE(Queried(keys[0]).flags & protocol::kQueriedPersisted);
  const KeysQuery query = w.Query(s, group, keys);
  EXPECT_EQ(*w.store->operators().Wait().Step(query), Progress::kFollows);
  EXPECT_TRUE(w.listener.waits.empty());
  w.Advance(10'000);
  ASSERT_EQ(w.listener.waits.size(), 1u);
  EXPECT_EQ(w.listener.waits[0].status, StatusCode::kOk);
  EXPECT_TRUE(Queried(keys[0]).flags & protocol::kQueriedPersisted);
}

}  // namespace
}  // namespace terrace

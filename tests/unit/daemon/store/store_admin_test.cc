// Operators' verbs: Query, Pin, Evict, Reset, List.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "store_fixture.h"

namespace terrace {
namespace {

using World = StoreWorld;

class Admin : public ::testing::Test {
 protected:
  protocol::EvictReply Evict(uint32_t group_index, const std::vector<BlockKey>& keys,
                             uint32_t flags) {
    protocol::EvictReply reply;
    EvictOperation evict = w.store->operators().Evict(&reply);
    const KeysQuery query = w.Query(s, group_index, keys, flags);
    Progress progress = Progress::kStays;
    while (progress == Progress::kStays) {
      progress = *evict.Step(query);
      w.Check();
    }
    return reply;
  }
  // More than a segment has room for.
  void PutAll(const std::vector<BlockKey>& keys) {
    for (size_t i = 0; i < keys.size() && w.MatchCount(s, group, keys) < keys.size(); ++i) {
      w.Put(s, group, keys);
      w.Run();
    }
    ASSERT_EQ(w.MatchCount(s, group, keys), keys.size());
  }
  // In one operation, so many keys a step.
  protocol::EvictReply EvictInPieces(const std::vector<BlockKey>& keys, size_t piece,
                                     uint32_t flags) {
    protocol::EvictReply reply;
    EvictOperation evict = w.store->operators().Evict(&reply);
    KeysQuery query = w.Query(s, group, keys, flags);
    query.key_count_of_request = static_cast<uint32_t>(keys.size());
    for (size_t first = 0; first < keys.size(); first += piece) {
      query.keys = std::span(keys).subspan(first, std::min(piece, keys.size() - first));
      for (Progress progress = Progress::kStays; progress == Progress::kStays;) {
        progress = *evict.Step(query);
        w.Check();
      }
    }
    return reply;
  }
  std::vector<protocol::ListEntry> List(uint32_t group_index, const BlockKey& root, uint32_t page) {
    std::vector<protocol::ListEntry> all;
    protocol::ListRequest request{
        .group_handle = group_index, .entry_count_max = page, .root = root};
    do {
      const ListResult listed = ListOnce(request);
      EXPECT_LE(listed.entries.size(), page);
      all.insert(all.end(), listed.entries.begin(), listed.entries.end());
      request.cursor = listed.reply.cursor;
    } while (request.cursor != 0);
    return all;
  }
  ListResult ListOnce(const protocol::ListRequest& request) {
    ListResult result;
    ListOperation list = w.store->operators().List(s, request, &result);
    while (*list.Step() != Progress::kDone) w.Check();
    return result;
  }
  // Stores `count` blocks of `chain` behind its block `from`.
  void Branch(uint32_t group_index, const std::vector<BlockKey>& keys, const BlockKey& parent,
              uint32_t first_position) {
    KeysQuery query = w.Query(s, group_index, keys);
    query.parent = parent;
    query.first_position = first_position;
    w.CommitAll(s, group_index, keys, w.Reserve(query), World::Checksums::kClient,
                protocol::kCommitRelease);
  }

  World w{{.segments_max = 4}};
  SessionId s = w.Open();
  uint32_t group = w.OpenSimple(s);
};

TEST_F(Admin, EvictTakesKeysTailFirstAndSkipsWhatIsHeld) {
  const auto keys = World::Keys(6);
  w.Put(s, group, keys);
  const AcquireResult held = w.Acquire(s, group, World::Keys(3));
  const auto dry = Evict(group, keys, protocol::kEvictDryRun);
  EXPECT_EQ(dry.block_count, 3u);
  EXPECT_EQ(dry.byte_count, 3 * kSlotBytes);
  EXPECT_EQ(dry.skipped_count, 3u);
  EXPECT_EQ(w.MatchCount(s, group, keys), 6u);
  const auto wet = Evict(group, keys, 0);
  EXPECT_EQ(wet.block_count, 3u);
  EXPECT_EQ(wet.skipped_count, 3u);
  EXPECT_EQ(w.MatchCount(s, group, keys), 3u);
}

TEST_F(Admin, EvictOfASubtreeLeavesTheOthers) {
  const auto trunk = World::Keys(3);
  w.Put(s, group, trunk);
  Branch(group, World::Keys(3, 2), trunk[1], 2);
  const auto reply = Evict(group, {trunk[2]}, protocol::kEvictSubtree);
  EXPECT_EQ(reply.block_count, 1u);
  EXPECT_EQ(Evict(group, {trunk[1]}, protocol::kEvictSubtree).block_count, 4u);
  EXPECT_EQ(w.Stats().block_count, 1u);
}

// A block in the chain ended by its time to live, or its bytes were wrong; an engine that computes
// it again has hits on what continues it.
TEST_F(Admin, EvictOfASubtreeTakesWhatLiesBehindABlockThatIsGone) {
  const auto chain = World::Keys(8), other = World::Keys(3, 2);
  for (const uint32_t gone : {2u, 4u}) {
    PutAll(chain);
    PutAll(other);
    const std::vector<BlockKey> lost = {chain[gone]};
    KeysQuery ends = w.Query(s, group, lost);
    ends.hints.ttl_s = 1;
    ASSERT_TRUE(w.store->leases().Touch(ends).ok());
    w.Advance(3 * kUsPerSecond);
    ASSERT_EQ(w.Stats().block_count, 10u);
    for (const uint32_t flags : {protocol::kEvictDryRun, 0u}) {
      const auto reply = Evict(group, {chain[2]}, protocol::kEvictSubtree | flags);
      EXPECT_EQ(reply.block_count, 5u) << gone;
    }
    EXPECT_EQ(w.MatchCount(s, group, chain), 2u);
    EXPECT_EQ(w.MatchCount(s, group, other), 3u) << "its root has its parents";
    EXPECT_EQ(w.Stats().block_count, 5u);
    Evict(group, {}, protocol::kEvictSubtree);
  }
}

// A key is of one group: where it is found, what has lost its parent in others stays.
TEST_F(Admin, EvictOfASubtreeInAllGroupsLeavesTheOthersOrphans) {
  const uint32_t other = w.OpenGroup(s, TestGroup("other", {TestSpace(1)}));
  const auto chain = World::Keys(3), cut = World::Keys(4, 2);
  w.Put(s, group, chain);
  w.Put(s, other, cut);
  const std::vector<BlockKey> lost = {cut[0]};
  KeysQuery ends = w.Query(s, other, lost);
  ends.hints.ttl_s = 1;
  ASSERT_TRUE(w.store->leases().Touch(ends).ok());
  w.Advance(3 * kUsPerSecond);
  ASSERT_EQ(w.Stats().block_count, 6u);
  for (const uint32_t flags : {protocol::kEvictDryRun, 0u}) {
    const auto reply = Evict(kAllGroups, {chain[1]}, protocol::kEvictSubtree | flags);
    EXPECT_EQ(reply.block_count, 2u);
  }
  EXPECT_EQ(w.Stats().block_count, 4u);
  const auto of_nobody = World::Keys(1, 3);
  EXPECT_EQ(Evict(kAllGroups, of_nobody, protocol::kEvictSubtree).block_count, 3u)
      << "they may continue it";
}

TEST_F(Admin, EvictSkipsWhatASubtreeNeeds) {
  const auto trunk = World::Keys(3);
  w.Put(s, group, trunk);
  const auto branch = World::Keys(2, 2);
  Branch(group, branch, trunk[0], 1);
  std::vector<BlockKey> path = {trunk[0], branch[0], branch[1]};
  const AcquireResult held = w.Acquire(s, group, path);
  ASSERT_EQ(held.reply.block_count, 3u);
  for (const uint32_t flags : {protocol::kEvictDryRun, 0u}) {
    const auto reply = Evict(kAllGroups, {}, protocol::kEvictSubtree | flags);
    EXPECT_EQ(reply.block_count, 2u);
    EXPECT_EQ(reply.skipped_count, 3u);
  }
  EXPECT_EQ(w.Stats().block_count, 3u);
}

// What is counted is what goes: a key given twice, or below another one, is one block.
TEST_F(Admin, EvictCountsNoBlockTwice) {
  const auto keys = World::Keys(4);
  w.Put(s, group, keys);
  std::vector<BlockKey> twice = {keys[2], keys[3], keys[3], keys[2]};
  for (const uint32_t subtree : {protocol::kEvictSubtree, 0u}) {
    const auto dry = Evict(group, twice, subtree | protocol::kEvictDryRun);
    EXPECT_EQ(dry.block_count, 2u);
    EXPECT_EQ(dry.byte_count, 2 * kSlotBytes);
  }
  const auto again = Evict(group, twice, protocol::kEvictSubtree | protocol::kEvictDryRun);
  EXPECT_EQ(again.block_count, 2u) << "one dry run knows nothing of another's";
  EXPECT_EQ(Evict(group, twice, 0).block_count, 2u);
  EXPECT_EQ(w.Stats().block_count, 2u);
}

// As a session asks: in pieces, of one operation.
TEST_F(Admin, EvictCountsNoBlockTwiceHoweverItsKeysAreCut) {
  const auto keys = World::Keys(24);
  PutAll(keys);
  protocol::PinReply pinned;
  ASSERT_TRUE(w.store->operators().Pin(w.Query(s, group, {keys[9]}), &pinned).ok());
  std::vector<BlockKey> tail_first(keys.rbegin(), keys.rend());
  for (const uint32_t subtree : {protocol::kEvictSubtree, 0u}) {
    for (const auto& order : {keys, tail_first}) {
      for (const size_t piece : {1u, 7u, 24u}) {
        // Without descendants keys of a chain come tail first, piece by piece.
        if (subtree == 0 && order == tail_first && piece > 1) continue;
        if (subtree == 0 && order == keys && piece < 24) continue;
        const auto dry = EvictInPieces(order, piece, subtree | protocol::kEvictDryRun);
        EXPECT_EQ(dry.block_count, 14u) << piece;
        EXPECT_EQ(dry.byte_count, 14 * kSlotBytes) << piece;
        EXPECT_EQ(dry.skipped_count, 10u) << piece;
      }
    }
  }
  const auto wet = EvictInPieces(keys, 7, protocol::kEvictSubtree);
  EXPECT_EQ(wet.block_count, 14u);
  EXPECT_EQ(wet.byte_count, 14 * kSlotBytes);
  EXPECT_EQ(wet.skipped_count, 10u) << "each that stays once";
  EXPECT_EQ(EvictInPieces(keys, 7, protocol::kEvictSubtree).skipped_count, 10u)
      << "one request knows nothing of another's";
  EXPECT_EQ(w.Stats().block_count, 10u);
}

// A key of a branch, then one above it: what stays in the branch keeps what is above.
TEST_F(Admin, ADryRunOfPiecesKeepsWhatABranchNeeds) {
  const auto trunk = World::Keys(4);
  w.Put(s, group, trunk);
  const auto branch = World::Keys(3, 2);
  Branch(group, branch, trunk[1], 2);
  protocol::PinReply pinned;
  ASSERT_TRUE(w.store->operators().Pin(w.Query(s, group, {branch[1]}), &pinned).ok());
  const std::vector<BlockKey> keys = {branch[1], trunk[3], trunk[1], branch[0], trunk[0]};
  for (const uint32_t flags : {protocol::kEvictDryRun, 0u}) {
    const auto reply = EvictInPieces(keys, 1, protocol::kEvictSubtree | flags);
    EXPECT_EQ(reply.block_count, 3u) << "two of the trunk, one of the branch";
    EXPECT_EQ(reply.skipped_count, 4u);
  }
  EXPECT_EQ(w.Stats().block_count, 4u);
}

// What came below a block after that was counted, and stays, does not make it count again.
TEST_F(Admin, ADryRunCountsABlockOnceThatGetsAChildMeanwhile) {
  const auto trunk = World::Keys(2);
  w.Put(s, group, trunk);
  const auto late = World::Keys(1, 2);
  const std::vector<BlockKey> keys = {trunk[1], late[0], trunk[1]};
  protocol::EvictReply reply;
  EvictOperation evict = w.store->operators().Evict(&reply);
  KeysQuery query = w.Query(s, group, keys, protocol::kEvictSubtree | protocol::kEvictDryRun);
  query.key_count_of_request = 3;
  query.keys = std::span(keys).first(1);
  ASSERT_EQ(*evict.Step(query), Progress::kGoesOn);
  Branch(group, late, trunk[1], 2);
  protocol::PinReply pinned;
  ASSERT_TRUE(w.store->operators().Pin(w.Query(s, group, late), &pinned).ok());
  query.keys = std::span(keys).subspan(1);
  ASSERT_EQ(*evict.Step(query), Progress::kDone);
  EXPECT_EQ(reply.block_count, 1u);
  EXPECT_EQ(reply.skipped_count, 1u);
}

TEST_F(Admin, DryRunsSideBySideNoteNothingOfEachOther) {
  const auto chain = World::Keys(4);
  w.Put(s, group, chain);
  const std::vector<BlockKey> keys(2, chain[2]);
  std::vector<protocol::EvictReply> replies(2);
  std::vector<EvictOperation> evicts;
  for (protocol::EvictReply& reply : replies) {
    evicts.push_back(w.store->operators().Evict(&reply));
  }
  KeysQuery query = w.Query(s, group, keys, protocol::kEvictSubtree | protocol::kEvictDryRun);
  query.key_count_of_request = 2;
  query.keys = std::span(keys).first(1);
  for (EvictOperation& evict : evicts) ASSERT_EQ(*evict.Step(query), Progress::kGoesOn);
  for (EvictOperation& evict : evicts) ASSERT_EQ(*evict.Step(query), Progress::kDone);
  for (const protocol::EvictReply& reply : replies) EXPECT_EQ(reply.block_count, 2u);
}

TEST_F(Admin, EvictOfKeysCountsWhatStaysOnce) {
  const auto keys = World::Keys(4);
  w.Put(s, group, keys);
  protocol::PinReply pinned;
  ASSERT_TRUE(w.store->operators().Pin(w.Query(s, group, {keys[1]}), &pinned).ok());
  const std::vector<BlockKey> twice = {keys[2], keys[3], keys[1], keys[1], keys[2]};
  for (const uint32_t flags : {protocol::kEvictDryRun, 0u}) {
    const auto reply = Evict(group, twice, flags);
    EXPECT_EQ(reply.block_count, 2u);
    EXPECT_EQ(reply.skipped_count, 1u) << "what goes at its second key does not stay";
  }
}

// What stays is looked at once: below a key that was given before, nothing is again.
TEST_F(Admin, EvictTakesStepsByKeysAndNotByTheirSquare) {
  const auto chain = World::Keys(24);
  PutAll(chain);
  protocol::PinReply pinned;
  ASSERT_TRUE(w.store->operators().Pin(w.Query(s, group, {chain.back()}), &pinned).ok());
  std::vector<BlockKey> keys;
  for (int i = 0; i < 40; ++i) keys.insert(keys.end(), chain.begin(), chain.end());
  for (const uint32_t flags : {protocol::kEvictDryRun, 0u}) {
    protocol::EvictReply reply;
    EvictOperation evict = w.store->operators().Evict(&reply);
    const KeysQuery query = w.Query(s, group, keys, protocol::kEvictSubtree | flags);
    uint32_t step_count = 1;
    while (*evict.Step(query) == Progress::kStays) ++step_count;
    EXPECT_EQ(reply.block_count, 0u);
    EXPECT_EQ(reply.skipped_count, 24u);
    // Of the walk two a key, and two a block.
    EXPECT_EQ(step_count, (2 * 40 * 24 + 2 * 24) / protocol::kBlocksPerTurnMax + 1);
  }
}

TEST_F(Admin, ADeadlineEndsAnEvict) {
  const auto keys = World::Keys(8);
  w.Put(s, group, keys);
  for (const uint32_t subtree : {protocol::kEvictSubtree, 0u}) {
    for (const uint32_t deadline_us : {0u, 1000u}) {
      protocol::EvictReply reply;
      EvictOperation evict = w.store->operators().Evict(&reply);
      KeysQuery query = w.Query(s, group, keys, subtree | protocol::kEvictDryRun);
      query.hints.deadline_us = deadline_us;
      query.keys = query.keys.subspan(4);
      query.key_count_of_request = 8;
      ASSERT_EQ(*evict.Step(query), Progress::kGoesOn);
      w.Advance(999);
      query.keys = std::span(keys).subspan(2, 2);
      ASSERT_EQ(*evict.Step(query), Progress::kGoesOn) << "its time is not up";
      // Without a deadline there is none, not even the one that others wait by.
      w.Advance(deadline_us == 0 ? 2'000'000 : 1);
      query.keys = std::span(keys).first(2);
      const Result<Progress> last = evict.Step(query);
      EXPECT_EQ(last.status().code(), deadline_us == 0 ? StatusCode::kOk : StatusCode::kBusy);
      EXPECT_EQ(reply.block_count, deadline_us == 0 ? 8u : 6u);
    }
  }
}

TEST_F(Admin, PinnedBlocksStayUntilUnpinned) {
  const auto keys = World::Keys(4);
  w.Put(s, group, keys);
  protocol::PinReply pinned;
  EXPECT_TRUE(w.store->operators().Pin(w.Query(s, group, keys), &pinned).ok());
  EXPECT_EQ(pinned.block_count, 4u);
  EXPECT_TRUE(w.store->operators().Pin(w.Query(s, group, keys), &pinned).ok()) << "twice is once";
  EXPECT_EQ(w.Stats().engine_pinned_blocks, 4u);
  EXPECT_EQ(w.Stats().engine_pinned_bytes, 4 * kSlotBytes);
  EXPECT_EQ(Evict(group, keys, 0).skipped_count, 4u);
  const auto many = World::Keys(4 * kSlotsPerSegment, 2);
  w.Put(s, group, many);
  w.Run();
  w.Put(s, group, many);
  EXPECT_EQ(w.MatchCount(s, group, keys), 4u);
  EXPECT_TRUE(
      w.store->operators().Pin(w.Query(s, kAllGroups, keys, protocol::kPinClear), &pinned).ok());
  EXPECT_EQ(w.Stats().engine_pinned_bytes, 0u);
  EXPECT_EQ(Evict(group, keys, 0).block_count, 4u);
}

TEST_F(Admin, APinWithATimeToLiveEndsWithTheBlock) {
  const auto keys = World::Keys(4);
  w.Put(s, group, keys);
  protocol::PinReply pinned;
  KeysQuery query = w.Query(s, group, keys);
  query.hints.ttl_s = 5;
  EXPECT_TRUE(w.store->operators().Pin(query, &pinned).ok());
  EXPECT_EQ(pinned.block_count, 4u);
  w.Advance(4'999'999);
  w.Run();
  EXPECT_EQ(Evict(group, keys, 0).skipped_count, 4u);
  w.Advance(1);
  w.Run();
  EXPECT_EQ(w.MatchCount(s, group, keys), 0u);
  EXPECT_EQ(w.Stats().blocks_expired, 4u);
  EXPECT_EQ(w.Stats().engine_pinned_blocks, 0u) << "what is gone is pinned no longer";
}

TEST_F(Admin, ResetForgetsLeasedBlocksToo) {
  const auto keys = World::Keys(4);
  w.Put(s, group, keys);
  const AcquireResult held = w.Acquire(s, group, keys);
  const auto more = World::Keys(2, 2);
  const ReserveResult reserved = w.Reserve(s, group, more);
  EXPECT_EQ(*w.store->operators().Reset(s, group).Step(), Progress::kDone);
  w.Check();
  EXPECT_EQ(w.Stats().block_count, 0u);
  EXPECT_EQ(w.CommitAll(s, group, more, reserved).entries[0], StatusCode::kGone);
  EXPECT_EQ(w.Stats().slot_bytes_used, 6 * kSlotBytes);
  w.Release(s, held.reply.token);
  w.Release(s, reserved.reply.token);
  EXPECT_EQ(w.Stats().slot_bytes_used, 0u);
}

TEST_F(Admin, ListWalksEveryTreeParentsFirst) {
  const auto trunk = World::Keys(5);
  w.Put(s, group, trunk);
  w.Run();
  Branch(group, World::Keys(3, 2), trunk[1], 2);
  w.Put(s, group, World::Keys(2, 3));
  for (const uint32_t page : {1u, 3u, 1000u}) {
    const auto entries = List(kAllGroups, {}, page);
    ASSERT_EQ(entries.size(), 10u) << page;
    std::map<uint64_t, size_t> place;
    for (size_t i = 0; i < entries.size(); ++i) place[entries[i].key.low] = i;
    for (const auto& entry : entries) {
      if (entry.position == 0) continue;
      ASSERT_TRUE(place.contains(entry.parent.low));
      EXPECT_LT(place[entry.parent.low], place[entry.key.low]);
    }
  }
  const auto below = List(group, trunk[1], 2);
  EXPECT_EQ(below.size(), 7u);
  EXPECT_EQ(below[0].key, trunk[1]);
  EXPECT_EQ(below[0].child_count, 2u);
}

TEST_F(Admin, AListGoesOnWhenItsPlaceIsEvicted) {
  w.Put(s, group, World::Keys(4, 1));
  w.Put(s, group, World::Keys(4, 2));
  protocol::ListRequest request{.group_handle = group, .entry_count_max = 4};
  const ListResult first = ListOnce(request);
  ASSERT_EQ(first.entries.size(), 4u);
  // The walk stands on the last entry it gave.
  const uint64_t first_chain = first.entries[3].key.low / 100'000;
  Evict(group, World::Keys(4, first_chain), 0);
  request.cursor = first.reply.cursor;
  request.entry_count_max = 100;
  const ListResult second = ListOnce(request);
  EXPECT_EQ(second.entries.size(), 4u);
  EXPECT_EQ(second.reply.cursor, 0u);
}

TEST_F(Admin, AnUnknownCursorIsGone) {
  ListResult result;
  const protocol::ListRequest request{.group_handle = group, .entry_count_max = 1, .cursor = 77};
  EXPECT_EQ(w.store->operators().List(s, request, &result).Step().code(), StatusCode::kGone);
}

TEST_F(Admin, QuerySaysWhatABlockIs) {
  const auto keys = World::Keys(2);
  w.Put(s, group, World::Keys(1));
  const ReserveResult reserved = w.Reserve(s, group, keys);
  const AcquireResult held = w.Acquire(s, group, World::Keys(1));
  std::vector<protocol::QueriedBlock> blocks;
  ASSERT_TRUE(w.store->operators().Query(w.Query(s, group, World::Keys(3)), &blocks).ok());
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0].state, protocol::BlockState::kSealed);
  EXPECT_EQ(blocks[0].tier_mask, 1u << static_cast<uint8_t>(TierKind::kDram));
  EXPECT_EQ(blocks[0].lease_count, 1u);
  EXPECT_EQ(blocks[1].state, protocol::BlockState::kReserved);
  EXPECT_EQ(blocks[1].commit_id, reserved.keys[1].commit_id);
  EXPECT_EQ(blocks[1].tier_mask, 0u);
  EXPECT_EQ(blocks[2].state, protocol::BlockState::kAbsent);
}

TEST_F(Admin, WaitNeedsAPersistentTier) {
  const auto keys = World::Keys(1);
  w.Put(s, group, keys);
  EXPECT_EQ(w.store->operators().Wait().Step(w.Query(s, group, keys)).code(),
            StatusCode::kUnsupported);
}

}  // namespace
}  // namespace terrace

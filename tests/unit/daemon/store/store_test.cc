#include "daemon/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store_fixture.h"

namespace terrace {
namespace {

using protocol::SpanState;
using World = StoreWorld;

TEST(Store, CommittedBlocksAreReadBackByAnotherSession) {
  World w;
  const SessionId writer = w.Open(), reader = w.Open();
  const uint32_t group = w.OpenSimple(writer);
  const auto keys = World::Keys(4);
  EXPECT_EQ(w.MatchCount(reader, group, keys), 0u);
  EXPECT_EQ(w.Put(writer, group, keys), 4u);

  const AcquireResult got = w.Acquire(reader, group, World::Keys(6));
  EXPECT_EQ(got.reply.block_count, 4u);
  EXPECT_EQ(got.reply.token_count, 64u);
  ASSERT_EQ(got.spans.size(), 1u);
  EXPECT_EQ(got.spans[0].state, SpanState::kReady);
  ASSERT_EQ(got.slots.size(), 4u);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(w.Holds(reader, group, keys[i], 0, got.slots[i]));
  }
  EXPECT_EQ(w.Release(reader, got.reply.token), StatusCode::kOk);
  EXPECT_EQ(w.Release(reader, got.reply.token), StatusCode::kGone);
}

TEST(Store, ReservedBlocksAreSeenByNobodyBeforeTheirLastPart) {
  World w({.segments_max = 2});
  const SessionId s = w.Open();
  const uint32_t group = w.OpenGroup(s, TestGroup("tp2", {TestSpace(0, 0, 2), TestSpace(1, 0, 2)}));
  const auto keys = World::Keys(1);
  const ReserveResult reserved = w.Reserve(s, group, keys);
  ASSERT_EQ(reserved.slots.size(), 2u);
  const auto first =
      w.Write(s, group, keys[0], 0, 0, reserved.keys[0].commit_id, reserved.slots[0]);
  const auto second =
      w.Write(s, group, keys[0], 0, 1, reserved.keys[0].commit_id, reserved.slots[1]);
  const protocol::CommitRequest request{.token = reserved.reply.token};
  EXPECT_EQ(w.Commit(s, request, {first.entry}).reply.sealed_count, 0u);
  auto half = second.entry;
  half.part_count = 1;
  EXPECT_EQ(w.Commit(s, request, {half}).reply.sealed_count, 0u);
  EXPECT_EQ(w.MatchCount(s, group, keys), 0u);
  half.part_first = 1;
  EXPECT_EQ(w.Commit(s, request, {half}).reply.sealed_count, 1u);
  EXPECT_EQ(w.MatchCount(s, group, keys), 1u);
}

TEST(Store, ASecondWriterIsToldWhoWasFirst) {
  World w;
  const SessionId a = w.Open(), b = w.Open();
  const uint32_t group = w.OpenSimple(a);
  const auto keys = World::Keys(2);
  const ReserveResult first = w.Reserve(a, group, keys);
  w.Advance(3'000);
  ReserveResult second = w.Reserve(b, group, keys);
  EXPECT_TRUE(second.reply.token.is_zero());
  EXPECT_EQ(World::CodeOf(second.keys[0]), StatusCode::kBusy);
  EXPECT_EQ(second.keys[0].writer_age_ms, 3u);
  w.CommitAll(a, group, keys, first);
  second = w.Reserve(b, group, keys);
  EXPECT_EQ(World::CodeOf(second.keys[1]), StatusCode::kExists);
}

// PROMISE: T37 blocks of another domain
TEST(Store, WhatAForeignDomainHoldsIsNotFound) {
  World w({.domain_count = 2});
  const SessionId a = w.Open(0), b = w.Open(1);
  const uint32_t group = w.OpenSimple(a);
  EXPECT_EQ(w.OpenSimple(b), group);
  const auto keys = World::Keys(2);
  w.Put(a, group, keys);
  EXPECT_EQ(w.MatchCount(b, group, keys), 0u);
  const AcquireResult got = w.Acquire(a, group, keys);
  JoinResult joined;
  EXPECT_EQ(w.Join({.session = b, .request = {.token = got.reply.token}}, &joined).code(),
            StatusCode::kNotFound);
  EXPECT_EQ(w.Release(b, got.reply.token), StatusCode::kGone);
  EXPECT_EQ(w.Put(b, group, keys), 2u);
}

TEST(Store, AChainStopsAtTheFirstKeyWithoutRoom) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const ReserveResult reserved = w.Reserve(s, group, World::Keys(kSlotsPerSegment + 3));
  EXPECT_EQ(reserved.slots.size(), kSlotsPerSegment);
  for (uint32_t i = 0; i < reserved.keys.size(); ++i) {
    EXPECT_EQ(World::CodeOf(reserved.keys[i]),
              i < kSlotsPerSegment ? StatusCode::kOk : StatusCode::kNoSpace);
  }
}

TEST(Store, ARequestLargerThanTheCacheKeepsItsHead) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = World::Keys(3 * kSlotsPerSegment);
  EXPECT_EQ(w.Put(s, group, keys), kSlotsPerSegment);
  EXPECT_EQ(w.Put(s, group, keys), 0u);
  EXPECT_EQ(w.MatchCount(s, group, keys), kSlotsPerSegment);
}

TEST(Store, EvictionTakesTheTailOfTheLeastRecentlyUsedChain) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  w.Put(s, group, World::Keys(4, 1));
  w.Put(s, group, World::Keys(4, 2));
  const AcquireResult used = w.Acquire(s, group, World::Keys(4, 1));
  w.Release(s, used.reply.token);
  EXPECT_EQ(w.Put(s, group, World::Keys(2, 3)), 2u);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(4, 1)), 4u);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(4, 2)), 2u);
}

TEST(Store, PinnedBlockIsNeverAVictim) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  w.Put(s, group, World::Keys(kSlotsPerSegment));
  const AcquireResult held = w.Acquire(s, group, World::Keys(kSlotsPerSegment));
  EXPECT_EQ(w.Put(s, group, World::Keys(1, 2)), 0u);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(kSlotsPerSegment)), kSlotsPerSegment);
  w.Release(s, held.reply.token);
  EXPECT_EQ(w.Put(s, group, World::Keys(1, 2)), 1u);
}

TEST(Store, LowerPrioritiesGoFirstHoweverRecent) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto put = [&](uint64_t chain, uint8_t priority) {
    const auto keys = World::Keys(4, chain);
    KeysQuery query = w.Query(s, group, keys);
    query.hints.priority = priority;
    const ReserveResult reserved = w.Reserve(query);
    w.CommitAll(s, group, keys, reserved, World::Checksums::kClient, protocol::kCommitRelease);
  };
  put(1, 90);
  put(2, 10);
  w.Put(s, group, World::Keys(3, 3));
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(4, 1)), 4u);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(4, 2)), 1u);
}

// Puts blocks World::Keys(6) of two members, the second of which has bytes for those in `present`.
void PutSix(World& w, SessionId s, uint32_t group, const std::vector<uint32_t>& present) {
  const auto keys = World::Keys(6);
  const ReserveResult reserved = w.Reserve(s, group, keys);
  ASSERT_EQ(reserved.slots.size(), 12u);
  std::vector<protocol::CommitEntry> entries;
  for (uint32_t i = 0; i < 6; ++i) {
    for (uint32_t m = 0; m < 2; ++m) {
      auto entry =
          w.Write(s, group, keys[i], i, m, reserved.keys[i].commit_id, reserved.slots[2 * i + m])
              .entry;
      if (m == 1 && std::find(present.begin(), present.end(), i) == present.end()) {
        entry.flags = protocol::kCommitAbsent;
        entry.part_count = 0;
      }
      entries.push_back(entry);
    }
  }
  EXPECT_EQ(w.Commit(s, {.token = reserved.reply.token}, entries).reply.sealed_count, 6u);
  w.Release(s, reserved.reply.token);
  w.Run();
}

TEST(Store, AMatchNeedsEveryWindowWhole) {
  World w({.segments_max = 4});
  const SessionId s = w.Open();
  const uint32_t group =
      w.OpenGroup(s, TestGroup("hybrid", {TestSpace(0), TestSpace(1, /*window_blocks=*/2)}));
  const auto keys = World::Keys(6);
  PutSix(w, s, group, {1, 2, 4});
  // p = 3: its window is blocks 1 and 2. p = 5 would need block 3, too.
  EXPECT_EQ(w.MatchCount(s, group, keys), 3u);
  const AcquireResult got = w.Acquire(s, group, keys);
  EXPECT_EQ(got.reply.block_count, 3u);
  ASSERT_EQ(got.slots.size(), 6u);
  EXPECT_FALSE(got.slots[1].has_bytes());
  EXPECT_TRUE(got.slots[3].has_bytes());
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(1)), 0u);
}

// Puts six blocks of which the second member, of chunks, has bytes for those in `present`.
uint32_t OpenChunked(World& w, SessionId s, uint32_t chunk_tokens,
                     const std::vector<uint32_t>& present) {
  SpaceSpec chunked = TestSpace(1, /*window_blocks=*/1);
  chunked.attention = AttentionKind::kChunked;
  chunked.window_tokens = chunk_tokens;
  const uint32_t group = w.OpenGroup(s, TestGroup("chunks", {TestSpace(0), chunked}));
  PutSix(w, s, group, present);
  return group;
}

TEST(Store, OfAChunkedMemberAMatchNeedsTheNextTokensChunk) {
  World w({.segments_max = 4});
  const SessionId s = w.Open();
  const uint32_t group = OpenChunked(w, s, 3 * 16, {0, 3});
  std::vector<uint32_t> counts;
  for (uint32_t n = 1; n <= 6; ++n) counts.push_back(w.MatchCount(s, group, World::Keys(n)));
  EXPECT_EQ(counts, (std::vector<uint32_t>{1, 1, 3, 4, 4, 6}));
  EXPECT_EQ(w.Acquire(s, group, World::Keys(5)).reply.block_count, 4u);
}

TEST(Store, AChunkThatBeginsWithinABlockNeedsThatBlock) {
  World w({.segments_max = 4});
  const SessionId s = w.Open();
  // Chunks begin at tokens 40 and 80: within block 2, and with block 5.
  const uint32_t group = OpenChunked(w, s, 40, {0, 3, 4});
  std::vector<uint32_t> counts;
  for (uint32_t n = 1; n <= 6; ++n) counts.push_back(w.MatchCount(s, group, World::Keys(n)));
  EXPECT_EQ(counts, (std::vector<uint32_t>{1, 1, 1, 1, 5, 5}));
}

TEST(Store, ChunksAreCountedFromTheBeginningOfThePrompt) {
  World w({.segments_max = 4});
  const SessionId s = w.Open();
  const uint32_t group = OpenChunked(w, s, 3 * 16, {0, 3, 4, 5});
  const auto keys = World::Keys(6);
  // What the asker has itself needs nothing of the daemon: of [1, 2) nothing is there, and behind
  // [1, 3) a chunk begins.
  for (const uint32_t end : {2u, 3u}) {
    const std::vector<BlockKey> asked(keys.begin() + 1, keys.begin() + end);
    KeysQuery query = w.Query(s, group, asked);
    query.parent = keys[0];
    query.first_position = 1;
    EXPECT_EQ(w.Acquire(query).reply.block_count, end == 2 ? 0u : 2u);
    PrefixMatch match;
    EXPECT_TRUE(w.store->prefixes().Match(&match).Step(query).ok());
    EXPECT_EQ(match.reply.block_count, end == 2 ? 0u : 2u);
  }
}

TEST(Store, UnderPressureAWindowedMemberKeepsItsWindowOnly) {
  // Sixteen slots for the full member, eight for the windowed one.
  World w({.segments_max = 3});
  const SessionId s = w.Open();
  const uint32_t group =
      w.OpenGroup(s, TestGroup("hybrid", {TestSpace(0), TestSpace(1, /*window_blocks=*/2)}));
  const auto first = World::Keys(8);
  EXPECT_EQ(w.Put(s, group, first), 8u);
  w.Run();
  auto all = World::Keys(12);
  EXPECT_EQ(w.Put(s, group, all), 4u);
  EXPECT_EQ(w.MatchCount(s, group, all), 12u);
  // The first eight blocks alone still end in a whole window; the first three do not.
  EXPECT_EQ(w.MatchCount(s, group, first), 8u);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(3)), 0u);
  EXPECT_EQ(w.Stats().blocks_evicted, 0u);
}

TEST(Store, ARemoteMemberMakesTheMatchABound) {
  World w;
  const SessionId s = w.Open();
  SpaceGroupSpec spec = TestGroup("two hosts", {TestSpace(0), TestSpace(1)});
  spec.members[1].is_remote = true;
  const uint32_t group = w.OpenGroup(s, spec);
  EXPECT_EQ(w.Put(s, group, World::Keys(2)), 2u);
  const PrefixMatch match = w.Match(s, group, World::Keys(2));
  EXPECT_EQ(match.reply.block_count, 2u);
  EXPECT_EQ(match.reply.flags, protocol::kMatchIsBound);
}

TEST(Store, ACommitIsJudgedEntryByEntry) {
  World w;
  const SessionId s = w.Open(), other = w.Open();
  const uint32_t group = w.OpenGroup(s, TestGroup("parts", {TestSpace(0, 0, 4)}));
  const auto keys = World::Keys(2);
  const ReserveResult reserved = w.Reserve(s, group, keys);
  const auto good =
      w.Write(s, group, keys[0], 0, 0, reserved.keys[0].commit_id, reserved.slots[0]).entry;
  std::vector<protocol::CommitEntry> entries(8, good);
  entries[0].key_index = 2;
  entries[1].member = 1;
  entries[2].generation += 1;
  entries[3].segment = 5;
  entries[4].row += 1;
  entries[5].flags = protocol::kCommitAbsent;
  entries[7].part_count = 1;
  const CommitResult result = w.Commit(s, {.token = reserved.reply.token}, entries);
  EXPECT_THAT(result.entries,
              ::testing::ElementsAre(StatusCode::kInvalid, StatusCode::kInvalid, StatusCode::kGone,
                                     StatusCode::kGone, StatusCode::kGone, StatusCode::kInvalid,
                                     StatusCode::kOk, StatusCode::kExists));
  EXPECT_EQ(result.reply.sealed_count, 1u);
  CommitResult refused;
  EXPECT_EQ(
      w.store->storing().Commit(other, {.token = reserved.reply.token}, {}, {}, &refused).code(),
      StatusCode::kGone);
}

TEST(Store, APartIsCommittedOnceAndNeverBesideItsAbsence) {
  World w({.segments_max = 4});
  const SessionId s = w.Open();
  const uint32_t group = w.OpenGroup(
      s, TestGroup("hybrid", {TestSpace(0, 0, 4), TestSpace(1, /*window_blocks=*/1, 2)}));
  const auto keys = World::Keys(2);
  const ReserveResult reserved = w.Reserve(s, group, keys);
  const auto full = [&](uint16_t part_first, uint16_t part_count) {
    auto entry =
        w.Write(s, group, keys[0], 0, 0, reserved.keys[0].commit_id, reserved.slots[0]).entry;
    entry.part_first = part_first;
    entry.part_count = part_count;
    return entry;
  };
  const auto windowed = [&](uint32_t key, uint16_t part_count, uint16_t flags) {
    auto entry = w.Write(s, group, keys[key], key, 1, reserved.keys[key].commit_id,
                         reserved.slots[2 * key + 1])
                     .entry;
    entry.part_count = part_count;
    entry.flags = flags;
    return entry;
  };
  const CommitResult result =
      w.Commit(s, {.token = reserved.reply.token},
               {full(0, 2), full(1, 2), full(0, 5), windowed(0, 1, 0),
                windowed(0, 0, protocol::kCommitAbsent), windowed(1, 0, protocol::kCommitAbsent),
                windowed(1, 2, 0), windowed(1, 0, protocol::kCommitAbsent)});
  EXPECT_THAT(result.entries,
              ::testing::ElementsAre(StatusCode::kOk, StatusCode::kExists, StatusCode::kInvalid,
                                     StatusCode::kOk, StatusCode::kInvalid, StatusCode::kOk,
                                     StatusCode::kExists, StatusCode::kExists));
  EXPECT_EQ(result.reply.sealed_count, 0u);
}

TEST(Store, ASessionsLeasesHoldSoManyBlocks) {
  World w({.segments_max = 2, .lease_blocks_per_session_max = 4});
  const SessionId s = w.Open(), other = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = World::Keys(6);
  const ReserveResult reserved = w.Reserve(s, group, keys);
  EXPECT_EQ(reserved.slots.size(), 4u);
  EXPECT_EQ(World::CodeOf(reserved.keys[4]), StatusCode::kNoSpace);
  EXPECT_EQ(w.Reserve(s, group, World::Keys(1, 2)).slots.size(), 0u) << "over all its leases";
  w.CommitAll(s, group, keys, reserved, World::Checksums::kClient, protocol::kCommitRelease);
  EXPECT_EQ(w.Put(other, group, {keys[4], keys[5]}), 2u);
  const AcquireResult got = w.Acquire(s, group, keys);
  EXPECT_EQ(got.reply.block_count, 4u);
  EXPECT_EQ(w.Acquire(s, group, keys).reply.block_count, 0u);
  EXPECT_EQ(w.Acquire(other, group, keys).reply.block_count, 4u);
  w.Release(s, got.reply.token);
  w.Run();
  EXPECT_EQ(w.Acquire(s, group, keys).reply.block_count, 4u);
}

TEST(Store, AnEchoOfAnEarlierUseOfTheSlotIsGone) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = World::Keys(1);
  const ReserveResult first = w.Reserve(s, group, keys);
  const SlotRef stale = first.slots[0];
  EXPECT_TRUE(w.store->storing().Abort(s, first.reply.token, {}).ok());
  const ReserveResult second = w.Reserve(s, group, keys);
  ASSERT_EQ(second.slots[0].address, stale.address);
  EXPECT_NE(second.keys[0].commit_id, first.keys[0].commit_id);
  const auto entry = w.Write(s, group, keys[0], 0, 0, 1, stale).entry;
  const CommitResult result = w.Commit(s, {.token = second.reply.token}, {entry});
  EXPECT_EQ(result.entries[0], StatusCode::kGone);
}

TEST(Store, BytesNobodyCheckedAreServedToTheirOwnUidOnly) {
  World w;
  const SessionId writer = w.Open(0, 7), same = w.Open(0, 7), other = w.Open(0, 8);
  const uint32_t group = w.OpenSimple(writer);
  const auto keys = World::Keys(2);
  w.holds_checksums = true;
  const ReserveResult reserved = w.Reserve(writer, group, keys);
  w.CommitAll(writer, group, keys, reserved, World::Checksums::kDaemon);
  EXPECT_EQ(w.MatchCount(same, group, keys), 2u);
  EXPECT_EQ(w.Match(other, group, keys).spans[0].state, SpanState::kComing);
  w.holds_checksums = false;
  w.Run();
  EXPECT_EQ(w.Match(other, group, keys).spans[0].state, SpanState::kReady);
}

TEST(Store, AMismatchAtTheFirstServeTakesTheBlockOutAtOnce) {
  World w;
  const SessionId writer = w.Open(), reader = w.Open();
  const uint32_t group = w.OpenSimple(writer);
  const auto keys = World::Keys(3);
  w.Put(writer, group, keys);
  const AcquireResult before = w.Acquire(writer, group, keys);
  w.Address(writer, before.slots[1])[77] ^= std::byte{1};
  w.Run();
  EXPECT_EQ(w.Stats().blocks_corrupt, 0u);  // its own writer's reads check nothing

  const AcquireResult got = w.Acquire(reader, group, keys);
  EXPECT_EQ(got.reply.block_count, 3u);
  w.Run();
  EXPECT_EQ(w.Stats().blocks_corrupt, 1u);
  EXPECT_EQ(w.MatchCount(reader, group, keys), 1u);
  // The slot stays until both readers have let go.
  const uint64_t used_bytes = w.Stats().slot_bytes_used;
  w.Release(reader, got.reply.token);
  EXPECT_EQ(w.Stats().slot_bytes_used, used_bytes);
  w.Release(writer, before.reply.token);
  EXPECT_EQ(w.Stats().slot_bytes_used, used_bytes - kSlotBytes);
}

TEST(Store, AFullChecksumQueueOnlyPutsTheCheckOff) {
  World w;
  const SessionId writer = w.Open(), reader = w.Open();
  const uint32_t group = w.OpenSimple(writer);
  const auto keys = World::Keys(2);
  w.Put(writer, group, keys);
  w.offload.jobs_max = 0;
  w.Release(reader, w.Acquire(reader, group, keys).reply.token);
  w.Run();
  EXPECT_EQ(w.Stats().checksums_verified, 0u);
  w.offload.jobs_max = 8;
  w.Release(reader, w.Acquire(reader, group, keys).reply.token);
  w.Run();
  EXPECT_EQ(w.Stats().checksums_verified, 2u);
}

TEST(Store, ExpiredBlocksAreMissesAndTheirKeysAreFree) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = World::Keys(3);
  KeysQuery query = w.Query(s, group, keys);
  query.hints.ttl_s = 10;
  w.CommitAll(s, group, keys, w.Reserve(query), World::Checksums::kClient,
              protocol::kCommitRelease);
  w.Advance(9'900'000);
  EXPECT_EQ(w.MatchCount(s, group, keys), 3u);
  w.clock.Advance(200'000);  // before any timer ran
  EXPECT_EQ(w.MatchCount(s, group, keys), 0u);
  EXPECT_EQ(w.Put(s, group, World::Keys(1)), 1u);
  w.Run();
  EXPECT_EQ(w.Stats().block_count, 1u);
  EXPECT_EQ(w.Stats().blocks_expired, 3u);
}

TEST(Store, TooShortAPrefixIsAnsweredByNothing) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = World::Keys(3);
  w.Put(s, group, keys);
  KeysQuery query = w.Query(s, group, keys);
  query.hints.min_tokens = 49;
  const AcquireResult none = w.Acquire(query);
  EXPECT_EQ(none.reply.block_count, 0u);
  EXPECT_TRUE(none.reply.token.is_zero());
  EXPECT_EQ(w.Stats().lease_count, 0u);
  query.hints.min_tokens = 48;
  EXPECT_EQ(w.Acquire(query).reply.block_count, 3u);
}

TEST(Store, AGroupNobodyUsesGivesItsPlaceToAnother) {
  World w;
  for (uint32_t i = 0; i < 300; ++i) {  // groups_max is 256
    const SessionId s = w.Open();
    const uint32_t group = w.OpenGroup(s, TestGroup(std::to_string(i), {TestSpace(0)}));
    EXPECT_EQ(w.Put(s, group, World::Keys(1, i + 1)), 1u);
    w.Reset(s, group);
    w.store->sessions().ProofOfDeath(s);
    w.Run();
  }
  EXPECT_EQ(w.Stats().group_count, 256u);
}

TEST(Store, AKeyOfTwoGroupsIsTwoBlocks) {
  World w({.segments_max = 2});
  const SessionId s = w.Open();
  const uint32_t first = w.OpenGroup(s, TestGroup("first", {TestSpace(0)}));
  const uint32_t second = w.OpenGroup(s, TestGroup("second", {TestSpace(0)}));
  EXPECT_EQ(w.Put(s, first, World::Keys(1)), 1u);
  EXPECT_EQ(w.MatchCount(s, second, World::Keys(1)), 0u);
  EXPECT_EQ(w.Put(s, second, World::Keys(1)), 1u);
  protocol::PinReply pinned;
  const auto keys = World::Keys(1);
  EXPECT_TRUE(w.store->operators().Pin(w.Query(s, kAllGroups, keys), &pinned).ok());
  EXPECT_EQ(pinned.block_count, 2u);
}

TEST(Store, BlocksWaitingForTheirChecksumsCanBeEvicted) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  w.offload.jobs_max = 0;
  const auto keys = World::Keys(kSlotsPerSegment);
  w.CommitAll(s, group, keys, w.Reserve(s, group, keys), World::Checksums::kDaemon,
              protocol::kCommitRelease);
  EXPECT_EQ(w.Put(s, group, World::Keys(4, 2)), 4u);
  w.offload.jobs_max = 8;
  w.Advance(10'000);
  EXPECT_EQ(w.MatchCount(w.Open(0, 99), group, keys), kSlotsPerSegment - 4);
}

TEST(Store, ATimeToLiveThatEndsBeforeTheSealEndsTheBlock) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = World::Keys(1);
  KeysQuery query = w.Query(s, group, keys);
  query.hints.ttl_s = 1;
  const ReserveResult reserved = w.Reserve(query);
  w.Advance(1'500'000);
  w.CommitAll(s, group, keys, reserved);
  w.Run();
  EXPECT_EQ(w.Stats().block_count, 0u);
}

TEST(Store, TheSameNameWithAnotherSpecIsRefusedInWords) {
  World w;
  const SessionId s = w.Open();
  w.OpenGroup(s, TestGroup("g", {TestSpace(0)}));
  SpaceGroupSpec other = TestGroup("g", {TestSpace(0)});
  other.members[0].spec.layers = 5;
  OpenedGroup group;
  const Error opened = w.store->sessions().OpenGroup(s, other, &group);
  EXPECT_EQ(opened.code(), StatusCode::kInvalid);
  EXPECT_THAT(opened.sentence(), ::testing::HasSubstr("layers '4', not '5'"));
}

// The members fill their segments in step, so a block finds a segment for the first of them alone.
TEST(Store, AGroupOfTwoMembersGrowsIntoItsLastSegment) {
  constexpr uint32_t kSegments = 8;
  World w({.segments_max = kSegments});
  const SessionId s = w.Open();
  const uint32_t group = w.OpenGroup(s, TestGroup("tp2", {TestSpace(0), TestSpace(1)}));
  for (uint32_t chain = 1; chain <= 2 * kSegments; ++chain) {
    EXPECT_EQ(w.Put(s, group, World::Keys(kSlotsPerSegment / 2, chain)), kSlotsPerSegment / 2);
    w.Run();
  }
  EXPECT_EQ(w.Stats().segments_populated, kSegments);
  EXPECT_EQ(w.Stats().block_count, kSegments * kSlotsPerSegment / 2);
}

}  // namespace
}  // namespace terrace

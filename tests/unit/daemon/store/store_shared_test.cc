// What hosts give each other through a shared tier: whole, checked, and no more than is wanted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/memory_shared_tier.h"
#include "unit/daemon/store/store_fixture.h"

namespace terrace {
namespace {

WorldOptions OnServer(sim::MemorySharedTier& tier, uint32_t member_count, TierShares* shares,
                      uint64_t window_us) {
  WorldOptions options;
  options.segments_max = member_count;
  options.shared.tier = &tier;
  options.shared.shares = shares;
  options.shared.window_us = window_us;
  return options;
}

// One host: a store of its own, on a server that others share.
struct SharingHost {
  explicit SharingHost(sim::SharedServer& server, uint32_t member_count = 1,
                       TierShares* shares = nullptr, uint64_t window_us = 0)
      : tier(server), world(OnServer(tier, member_count, shares, window_us)) {
    tier.SetListener(&world.store->events().shared_listener(0));
    session = world.Open();
    std::vector<SpaceSpec> spaces;
    for (uint32_t rank = 0; rank < member_count; ++rank) spaces.push_back(TestSpace(rank));
    group = world.OpenGroup(session, TestGroup("simple", spaces));
  }

  void Run() {
    world.Run();
    while (tier.RunOne()) world.Run();
  }
  uint32_t Put(const std::vector<BlockKey>& keys) {
    const uint32_t sealed = world.Put(session, group, keys);
    Run();
    return sealed;
  }
  // Asks the server, as a session does, then acquires.
  AcquireResult Acquire(const std::vector<BlockKey>& keys, protocol::Hints hints = {}) {
    KeysQuery query = world.Query(session, group, keys);
    query.hints = hints;
    uint64_t end_us = 0;
    if (world.store->prefixes().Seek(query, &end_us).code() == StatusCode::kBusy) {
      EXPECT_TRUE(tier.RunOne());
    }
    return world.Acquire(query);
  }
  DomainStats stats() const { return world.store->Stats()[0]; }
  uint32_t LocalCount(const std::vector<BlockKey>& keys) {
    return world.MatchCount(session, group, keys);
  }
  StatusCode last_completion() const { return world.listener.completions.back().status; }

  sim::MemorySharedTier tier;
  StoreWorld world;
  SessionId session = 0;
  uint32_t group = 0;
};

TEST(StoreShared, WhatAnotherHostStoredIsServedAndBecomesLocal) {
  sim::SharedServer server;
  SharingHost a(server), b(server);
  const auto keys = StoreWorld::Keys(6);
  ASSERT_EQ(a.Put(keys), 6u);
  EXPECT_EQ(server.blocks.size(), 6u);
  EXPECT_EQ(b.LocalCount(keys), 0u) << "a Match is local";
  const AcquireResult acquired = b.Acquire(keys);
  ASSERT_EQ(acquired.reply.block_count, 6u);
  EXPECT_EQ(acquired.spans[0].state, protocol::SpanState::kComing);
  EXPECT_EQ(acquired.spans[0].tier, TierKind::kRedis);
  b.Run();
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_TRUE(b.world.Holds(b.session, b.group, keys[i], 0, acquired.slots[i]));
  }
  EXPECT_EQ(b.LocalCount(keys), 6u);
  EXPECT_EQ(b.world.Acquire(b.session, b.group, keys).spans[0].state, protocol::SpanState::kReady);
  EXPECT_EQ(b.stats().shared->blocks_fetched, 6u);
  EXPECT_EQ(b.stats().shared->blocks_stored + b.stats().shared->blocks_existing, 0u)
      << "it is not given back";
}

TEST(StoreShared, BytesThatAreNotThoseOfTheirChecksumsAreAMiss) {
  sim::SharedServer server;
  SharingHost a(server), b(server);
  const auto keys = StoreWorld::Keys(3);
  ASSERT_EQ(a.Put(keys), 3u);
  for (auto& [place, stored] : server.blocks) {
    if (stored.record.key == keys[1]) stored.bytes[77] ^= std::byte{1};
  }
  const AcquireResult acquired = b.Acquire(keys);
  ASSERT_EQ(acquired.reply.block_count, 3u);
  b.Run();
  EXPECT_EQ(b.last_completion(), StatusCode::kNotFound);
  EXPECT_EQ(b.LocalCount(keys), 1u) << "the prefix ends there";
  EXPECT_EQ(b.stats().blocks_corrupt, 1u);
}

TEST(StoreShared, RootsThatAreNotThereAreAMiss) {
  sim::SharedServer server;
  SharingHost a(server), b(server);
  const auto keys = StoreWorld::Keys(1);
  ASSERT_EQ(a.Put(keys), 1u);
  server.blocks.begin()->second.roots[0] = {};
  ASSERT_EQ(b.Acquire(keys).reply.block_count, 1u);
  b.Run();
  EXPECT_EQ(b.LocalCount(keys), 0u) << "bytes are believed because of their checksums only";
}

TEST(StoreShared, WhatHasExpiredIsAMissThoughItIsStillThere) {
  sim::SharedServer server;
  SharingHost a(server), b(server);
  const auto keys = StoreWorld::Keys(1);
  ASSERT_EQ(a.Put(keys), 1u);
  server.blocks.begin()->second.record.expires_at_s = b.world.clock.UnixSeconds();
  ASSERT_EQ(b.Acquire(keys).reply.block_count, 1u);
  b.Run();
  EXPECT_EQ(b.LocalCount(keys), 0u);
  server.blocks.begin()->second.record.expires_at_s = b.world.clock.UnixSeconds() + 60;
  SharingHost c(server);
  ASSERT_EQ(c.Acquire(keys).reply.block_count, 1u);
  c.Run();
  EXPECT_EQ(c.LocalCount(keys), 1u);
}

TEST(StoreShared, MembersOfTwoCommitsMakeNoBlock) {
  sim::SharedServer server, other_server;
  SharingHost a(server, 2), b(other_server, 2), c(server, 2);
  const auto keys = StoreWorld::Keys(1);
  ASSERT_EQ(a.Put(keys), 1u);
  ASSERT_EQ(b.Put(StoreWorld::Keys(1, 9)), 1u);  // equal seeds draw equal commits: not the first
  other_server.blocks.clear();
  ASSERT_EQ(b.Put(keys), 1u);
  ASSERT_EQ(server.blocks.size(), 2u);
  // Each host won one member.
  server.blocks.begin()->second = other_server.blocks.begin()->second;
  ASSERT_NE(server.blocks.begin()->second.record.commit_id,
            std::next(server.blocks.begin())->second.record.commit_id);
  ASSERT_EQ(c.Acquire(keys).reply.block_count, 1u);
  c.Run();
  EXPECT_EQ(c.last_completion(), StatusCode::kNotFound);
  EXPECT_EQ(c.LocalCount(keys), 0u);
  EXPECT_TRUE(server.blocks.empty()) << "nobody could store it whole while it is there";
}

TEST(StoreShared, WhatNobodyWaitsForIsNotFetched) {
  sim::SharedServer server;
  SharingHost a(server), b(server);
  const auto keys = StoreWorld::Keys(4);
  ASSERT_EQ(a.Put(keys), 4u);
  KeysQuery query = b.world.Query(b.session, b.group, keys);
  uint64_t end_us = 0;
  ASSERT_EQ(b.world.store->prefixes().Seek(query, &end_us).code(), StatusCode::kBusy);
  b.Run();
  b.tier.is_full = true;  // fetches have to wait
  const AcquireResult acquired = b.world.Acquire(query);
  ASSERT_EQ(acquired.reply.block_count, 4u);
  EXPECT_EQ(b.world.Release(b.session, acquired.reply.token), StatusCode::kOk);
  b.tier.is_full = false;
  b.world.Advance(2'000'000);
  b.Run();
  EXPECT_EQ(b.tier.fetch_count, 0u);
  EXPECT_EQ(b.stats().shared->blocks_cancelled, 4u);
  EXPECT_EQ(b.stats().slot_bytes_used, 0u);
  EXPECT_EQ(b.stats().block_count, 0u);
}

TEST(StoreShared, WhatFindsNoRoomEndsThePrefix) {
  sim::SharedServer server;
  SharingHost a(server), b(server);
  const auto keys = StoreWorld::Keys(6, 1), held = StoreWorld::Keys(kSlotsPerSegment - 2, 2);
  ASSERT_EQ(a.Put(keys), 6u);
  ASSERT_EQ(b.Put(held), held.size());
  ASSERT_EQ(b.world.Acquire(b.session, b.group, held).reply.block_count, held.size());
  const AcquireResult acquired = b.Acquire(keys);
  EXPECT_EQ(acquired.reply.block_count, 2u);
  b.Run();
  EXPECT_EQ(b.LocalCount(keys), 2u);
  EXPECT_EQ(b.stats().block_count, held.size() + 2) << "of the others nothing is left";
}

TEST(StoreShared, WhatIsThereNoMoreEndsThePrefix) {
  sim::SharedServer server;
  SharingHost a(server), b(server);
  const auto keys = StoreWorld::Keys(4);
  ASSERT_EQ(a.Put(keys), 4u);
  ASSERT_EQ(b.Acquire(keys).reply.block_count, 4u);
  std::erase_if(server.blocks,
                [&](const auto& block) { return block.second.record.key == keys[2]; });
  b.Run();
  EXPECT_EQ(b.LocalCount(keys), 2u);
  EXPECT_EQ(b.stats().shared->blocks_missed, 1u);
}

TEST(StoreShared, AQuestionThatIsNotAnsweredInTimeIsAMissAndTheAnswerServesTheNext) {
  sim::SharedServer server;
  SharingHost a(server), b(server);
  const auto keys = StoreWorld::Keys(2);
  ASSERT_EQ(a.Put(keys), 2u);
  const KeysQuery query = b.world.Query(b.session, b.group, keys);
  uint64_t end_us = 0;
  ASSERT_EQ(b.world.store->prefixes().Seek(query, &end_us).code(), StatusCode::kBusy);
  b.world.Advance(SharedUse().seek_us);
  EXPECT_EQ(b.stats().shared->seeks_late, 1u);
  EXPECT_EQ(b.world.store->prefixes().Seek(query, &end_us).code(), StatusCode::kOk)
      << "the time is spent";
  EXPECT_EQ(b.world.Acquire(query).reply.block_count, 0u);
  b.Run();
  EXPECT_EQ(b.Acquire(keys).reply.block_count, 2u);
  b.Run();
  EXPECT_EQ(b.LocalCount(keys), 2u);
}

TEST(StoreShared, ABlockBeingGivenIsNoVictim) {
  sim::SharedServer server;
  SharingHost a(server);
  const auto first = StoreWorld::Keys(kSlotsPerSegment, 1), second = StoreWorld::Keys(4, 2);
  ASSERT_EQ(a.world.Put(a.session, a.group, first), kSlotsPerSegment);  // all are on their way
  EXPECT_EQ(a.world.Put(a.session, a.group, second), 0u) << "their slots are being read";
  a.Run();
  EXPECT_EQ(server.blocks.size(), kSlotsPerSegment);
  EXPECT_EQ(a.Put(second), 4u);
}

TEST(StoreShared, WhatHasLeftDramBeforeItsTurnIsNotGiven) {
  sim::SharedServer server;
  SharingHost a(server);
  a.tier.is_away = true;
  ASSERT_EQ(a.Put(StoreWorld::Keys(kSlotsPerSegment, 1)), kSlotsPerSegment);
  ASSERT_EQ(a.Put(StoreWorld::Keys(kSlotsPerSegment, 2)), kSlotsPerSegment);
  a.tier.is_away = false;
  a.world.Advance(1'000'000);
  a.Run();
  EXPECT_EQ(a.stats().shared->blocks_outdated, kSlotsPerSegment);
  EXPECT_EQ(server.blocks.size(), kSlotsPerSegment);
}

TEST(StoreShared, WhatIsThereIsNotGivenTwice) {
  sim::SharedServer server;
  SharingHost a(server);
  const auto keys = StoreWorld::Keys(3);
  ASSERT_EQ(a.Put(keys), 3u);
  ASSERT_EQ(a.Acquire(keys).reply.block_count, 3u);
  a.Run();
  EXPECT_EQ(a.stats().shared->blocks_stored, 3u);
  EXPECT_EQ(a.stats().shared->blocks_existing, 0u);
}

// ---- what is to be forgotten ----

void Reset(SharingHost& host) {
  host.world.Reset(host.session, host.group);
  host.Run();
}

void EvictAll(SharingHost& host, uint32_t flags = 0) {
  host.world.Evict(host.world.Query(host.session, kAllGroups, {}, protocol::kEvictSubtree | flags));
  host.Run();
}

TEST(StoreShared, WhatAResetErasedDoesNotComeBackFromTheShelf) {
  sim::SharedServer server;
  SharingHost a(server), b(server);
  const auto keys = StoreWorld::Keys(6);
  ASSERT_EQ(a.Put(keys), 6u);
  a.world.Advance(1);
  Reset(a);
  EXPECT_EQ(a.Acquire(keys).reply.block_count, 0u);
  EXPECT_EQ(b.Acquire(keys).reply.block_count, 0u) << "nor for whoever hears of it";
  // From here on they share again.
  a.world.Advance(1);
  ASSERT_EQ(a.Put(keys), 6u);
  EXPECT_EQ(b.Acquire(keys).reply.block_count, 6u);
}

TEST(StoreShared, WhatWasEvictedAltogetherDoesNotComeBackFromTheShelf) {
  sim::SharedServer server;
  SharingHost a(server);
  const auto keys = StoreWorld::Keys(6);
  ASSERT_EQ(a.Put(keys), 6u);
  a.world.Advance(1);
  EvictAll(a, protocol::kEvictDryRun);
  EXPECT_TRUE(server.generations.empty() || server.generations.begin()->second == 0);
  EvictAll(a);
  EXPECT_EQ(a.Acquire(keys).reply.block_count, 0u);
}

// By filters: to the end, as an operator's request does.
uint64_t EvictWhere(SharingHost& host, const protocol::EvictWhereRequest& request) {
  protocol::EvictReply reply;
  EvictWhereOperation evict =
      host.world.store->operators().EvictWhere(host.session, request, &reply);
  Result<Progress> progress = evict.Step();
  while (progress.ok() && *progress != Progress::kDone) progress = evict.Step();
  EXPECT_TRUE(progress.ok());
  host.Run();
  return reply.block_count;
}
constexpr auto kOfRedis = static_cast<uint8_t>(TierKind::kRedis);

TEST(StoreShared, AFilterLeavesTheServerAloneUnlessItSaysEverywhere) {
  sim::SharedServer server;
  SharingHost a(server);
  const auto keys = StoreWorld::Keys(6);
  ASSERT_EQ(a.Put(keys), 6u);
  a.world.Advance(10'000);
  EXPECT_EQ(EvictWhere(a, {.idle_ms_min = 5}), 6u);
  EXPECT_EQ(a.LocalCount(keys), 0u);
  EXPECT_EQ(server.blocks.size(), 6u);
  ASSERT_EQ(a.Acquire(keys).reply.block_count, 6u) << "it is found there again";
  a.Run();
  a.world.store->sessions().HangUp(a.session);
  a.world.store->sessions().ProofOfDeath(a.session);
  a.session = a.world.Open();
  a.group = a.world.OpenSimple(a.session);
  a.world.Advance(10'000);
  EXPECT_EQ(EvictWhere(a, {.idle_ms_min = 5, .flags = protocol::kEvictWhereShared}), 6u);
  EXPECT_TRUE(server.blocks.empty());
}

TEST(StoreShared, OfTheServerAloneWhatIsHereStays) {
  sim::SharedServer server;
  SharingHost a(server);
  const auto keys = StoreWorld::Keys(6);
  ASSERT_EQ(a.Put(keys), 6u);
  a.world.Advance(10'000);
  EXPECT_EQ(EvictWhere(a, {.idle_ms_min = 60'000, .tier = kOfRedis}), 0u);
  EXPECT_EQ(
      EvictWhere(a, {.idle_ms_min = 5, .flags = protocol::kEvictWhereDryRun, .tier = kOfRedis}),
      6u);
  EXPECT_EQ(server.blocks.size(), 6u);
  EXPECT_EQ(EvictWhere(a, {.idle_ms_min = 5, .tier = kOfRedis}), 6u);
  EXPECT_TRUE(server.blocks.empty());
  EXPECT_EQ(a.LocalCount(keys), 6u);
}

// Of blocks, too, that the host which says so has never seen.
TEST(StoreShared, WithoutAnAgeTheServerForgetsTheGroup) {
  sim::SharedServer server;
  SharingHost a(server), b(server), c(server);
  const auto keys = StoreWorld::Keys(6);
  ASSERT_EQ(a.Put(keys), 6u);
  EvictWhere(b, {.tier = kOfRedis});
  EXPECT_EQ(c.Acquire(keys).reply.block_count, 0u);
  EXPECT_EQ(a.LocalCount(keys), 6u);
}

// PROMISE: T03 erasures of groups as a whole, by filters
TEST(StoreShared, WithNeitherATierNorAnAgeTheServerForgetsWhatIsEvicted) {
  for (const bool is_of_one_group : {true, false}) {
    sim::SharedServer server;
    SharingHost a(server), b(server), c(server);
    const auto keys = StoreWorld::Keys(6);
    ASSERT_EQ(a.Put(keys), 6u);
    protocol::EvictWhereRequest request{.flags = protocol::kEvictWhereDryRun};
    if (is_of_one_group) request.group = TestGroup("simple", {TestSpace(0)}).Id();
    EvictWhere(b, request);
    EXPECT_EQ(b.Acquire(keys).reply.block_count, 6u) << "a dry run leaves it";
    b.Run();
    request.flags = 0;
    EvictWhere(b, request);
    EXPECT_EQ(c.Acquire(keys).reply.block_count, 0u);
    EXPECT_EQ(a.LocalCount(keys), 6u);
  }
}

TEST(StoreShared, BlocksThatAreEvictedByNameAreErasedOnTheShelf) {
  sim::SharedServer server;
  SharingHost a(server);
  const auto keys = StoreWorld::Keys(6);
  ASSERT_EQ(a.Put(keys), 6u);
  const std::vector<BlockKey> last(keys.begin() + 4, keys.end());
  EXPECT_EQ(a.world.Evict(a.world.Query(a.session, a.group, last)).block_count, 2u);
  a.Run();
  EXPECT_EQ(server.blocks.size(), 4u);
  EXPECT_EQ(a.LocalCount(keys), 4u);
  // A server that is away is told later.
  a.tier.is_away = true;
  const std::vector<BlockKey> third(keys.begin() + 3, keys.begin() + 4);
  a.world.Run();
  EXPECT_EQ(a.world.Evict(a.world.Query(a.session, a.group, third)).block_count, 1u);
  a.tier.is_away = false;
  a.world.Advance(1'000'000);
  a.Run();
  EXPECT_EQ(a.Acquire(keys).reply.block_count, 3u) << "what is here";
  EXPECT_EQ(server.blocks.size(), 3u);
  EXPECT_EQ(server.generations.begin()->second, 0u) << "and not of more than was named";
}

// PROMISE: T03 erasures of what only a server has
TEST(StoreShared, WhatOnlyTheServerHasIsErasedThereUnderWhateverNameItHas) {
  sim::SharedServer server;
  SharingHost a(server), b(server);
  const auto keys = StoreWorld::Keys(6);
  ASSERT_EQ(a.Put(keys), 6u);
  // The end of a prompt, which does not say where it stands; one block, in every group.
  const std::vector<BlockKey> end(keys.begin() + 4, keys.end()),
      one(keys.begin() + 3, keys.begin() + 4);
  EXPECT_EQ(b.world.Evict(b.world.Query(b.session, b.group, end)).block_count, 0u);
  b.Run();
  EXPECT_EQ(server.blocks.size(), 4u);
  EXPECT_EQ(b.world.Evict(b.world.Query(b.session, kAllGroups, one)).block_count, 0u);
  b.Run();
  EXPECT_EQ(server.blocks.size(), 3u);
  // Of a whole prompt of which a part is here.
  const std::vector<BlockKey> head(keys.begin(), keys.begin() + 1);
  EXPECT_EQ(b.Acquire(head).reply.block_count, 1u);
  b.Run();
  b.world.Evict(b.world.Query(b.session, b.group, keys, protocol::kEvictDryRun));
  b.Run();
  EXPECT_EQ(server.blocks.size(), 3u);
  EXPECT_EQ(
      b.world.Evict(b.world.Query(b.session, b.group, keys, protocol::kEvictSubtree)).skipped_count,
      1u)
      << "what is leased stays";
  b.Run();
  EXPECT_EQ(server.blocks.size(), 1u) << "and the others are gone";
}

// PROMISE: T03 stores under way
TEST(StoreShared, ABlockThatIsErasedWhileItIsGivenDoesNotComeBack) {
  sim::SharedServer server;
  SharingHost a(server), b(server);
  const auto keys = StoreWorld::Keys(3);
  ASSERT_EQ(a.world.Put(a.session, a.group, keys), 3u);
  a.world.Run();
  ASSERT_GT(a.stats().shared->stores_under_way, 0u);
  EXPECT_EQ(a.world.Evict(a.world.Query(a.session, a.group, keys)).block_count, 3u);
  a.Run();
  EXPECT_TRUE(server.blocks.empty());
  EXPECT_EQ(a.Acquire(keys).reply.block_count, 0u);
  ASSERT_EQ(a.Put(keys), 3u) << "and is given anew";
  EXPECT_EQ(b.Acquire(keys).reply.block_count, 3u);
}

TEST(StoreShared, AShelfThatWasAwayDuringAResetBringsNothingBack) {
  sim::SharedServer server;
  SharingHost a(server);
  const auto keys = StoreWorld::Keys(6);
  ASSERT_EQ(a.Put(keys), 6u);
  a.tier.is_away = true;
  a.world.Advance(1);
  Reset(a);
  a.tier.is_away = false;
  EXPECT_EQ(a.Acquire(keys).reply.block_count, 0u) << "it has not been told yet";
  a.world.Advance(1'000'000);
  a.Run();
  EXPECT_EQ(a.Acquire(keys).reply.block_count, 0u) << "it has";
  EXPECT_EQ(server.generations.begin()->second, 1u);
  ASSERT_EQ(a.Put(keys), 6u);
  EXPECT_EQ(a.stats().shared->blocks_stored, 12u);
}

// Whenever it is found: its bytes were here before the group was forgotten.
TEST(StoreShared, WhatWasKeptOfAGroupThatOthersHadForgottenIsNotGivenAgain) {
  for (const bool is_group_open : {true, false}) {
    sim::SharedServer server;
    SharingHost host(server);
    const auto keys = StoreWorld::Keys(6);
    ASSERT_EQ(host.Put(keys), 6u);
    ASSERT_EQ(server.blocks.size(), 6u);
    const SpaceGroupSpec spec = TestGroup("simple", {TestSpace(0)});
    if (!is_group_open) host.world.group_files.kept.clear();
    host.world.RestartWarm();
    SharedTierListener& listener = host.world.store->events().shared_listener(0);
    host.tier.SetListener(&listener);
    server.blocks.clear();
    listener.OnSharedForgotten(spec.Id());
    host.session = host.world.Open();
    host.group = host.world.OpenGroup(host.session, spec);
    host.Run();
    EXPECT_EQ(host.LocalCount(keys), 6u) << "another host's order is of the server";
    EXPECT_EQ(server.blocks.size(), 0u) << is_group_open;
    host.world.clock.Advance(1);
    EXPECT_EQ(host.Put(StoreWorld::Keys(3, 9)), 3u);
    EXPECT_EQ(server.blocks.size(), 3u) << "what is new is given";
  }
}

TEST(StoreShared, WhatAnotherHostStillHasIsNotGivenAgain) {
  sim::SharedServer server;
  SharingHost a(server), b(server);
  const auto keys = StoreWorld::Keys(6);
  b.tier.is_away = true;
  ASSERT_EQ(b.Put(keys), 6u);  // and has not been given
  Reset(a);
  b.tier.is_away = false;
  for (int i = 0; i < 3; ++i) {
    b.world.Advance(1'000'000);
    EXPECT_EQ(b.Acquire(keys).reply.block_count, 6u) << "it was not b who had it erased";
    b.Run();
  }
  EXPECT_EQ(a.Acquire(keys).reply.block_count, 0u);
  EXPECT_EQ(server.blocks.size(), 0u);
  const auto fresh = StoreWorld::Keys(2, 2);
  ASSERT_EQ(b.Put(fresh), 2u);
  EXPECT_EQ(a.Acquire(fresh).reply.block_count, 2u) << "what it computes from there on is";
}

TEST(StoreShared, ABlockThatIsErasedWhileItWaitsForTheShelfIsNotGiven) {
  sim::SharedServer server;
  SharingHost a(server);
  const auto keys = StoreWorld::Keys(6);
  a.tier.is_full = true;  // jobs begin, and no store does
  ASSERT_EQ(a.Put(keys), 6u);
  a.world.Advance(1);
  Reset(a);
  a.tier.is_full = false;
  a.world.Advance(1'000'000);
  a.Run();
  EXPECT_EQ(server.blocks.size(), 0u);
  EXPECT_EQ(a.Acquire(keys).reply.block_count, 0u);
}

TEST(StoreShared, AnErasureHasEndedWhenASuccessorWouldKnowOfIt) {
  sim::SharedServer server;
  SharingHost a(server);
  ASSERT_EQ(a.Put(StoreWorld::Keys(2)), 2u);
  a.tier.is_kept = false;
  Reset(a);
  EXPECT_EQ(a.world.store->operators().AwaitErasures(a.session, 77).code(), StatusCode::kBusy);
  a.tier.is_kept = true;
  EXPECT_TRUE(a.world.store->operators().AwaitErasures(a.session, 78).ok());
}

// ---- shares ----

TEST(StoreShared, NoMoreIsGivenThanTheDomainsShareWithinTheTimeItIsKept) {
  constexpr uint64_t kHourUs = 3600 * kUsPerSecond;
  TierShares shares(TierShares::Lending::kNothing, 100 * kSlotBytes,
                    {{.guaranteed_bytes = 0, .max_bytes = 3 * kSlotBytes}});
  sim::SharedServer server;
  SharingHost a(server, 1, &shares, kHourUs);
  const auto keys = StoreWorld::Keys(5);
  ASSERT_EQ(a.Put(keys), 5u);
  EXPECT_EQ(server.blocks.size(), 3u);
  EXPECT_EQ(a.stats().shared->blocks_over_quota, 2u);
  EXPECT_EQ(a.stats().shared->share.held_bytes, 3 * kSlotBytes);
  a.world.Advance(kHourUs / 2);
  a.Put(StoreWorld::Keys(1, 2));
  EXPECT_EQ(server.blocks.size(), 3u);
  a.world.Advance(kHourUs / 2 + kHourUs / 20);
  EXPECT_EQ(a.stats().shared->share.held_bytes, 0u) << "it is older than the server keeps it";
  // What is served is offered again: what a server may have dropped since, and what had no room.
  for (int i = 0; i < 2; ++i) {
    a.world.Release(a.session, a.world.Acquire(a.session, a.group, keys).reply.token);
    a.Run();
  }
  EXPECT_EQ(a.stats().shared->blocks_existing, 3u);
  EXPECT_EQ(server.blocks.size(), 5u);
}

TEST(StoreShared, WhatOtherHostsHaveGivenCostsNoShare) {
  TierShares shares(TierShares::Lending::kNothing, 100 * kSlotBytes,
                    {{.guaranteed_bytes = 0, .max_bytes = 2 * kSlotBytes}});
  sim::SharedServer server;
  SharingHost a(server), b(server, 1, &shares, 3600 * kUsPerSecond);
  const auto keys = StoreWorld::Keys(4);
  ASSERT_EQ(a.Put(keys), 4u);
  ASSERT_EQ(b.Put(keys), 4u);
  b.world.Advance(1'000'000);
  EXPECT_EQ(b.stats().shared->share.held_bytes, 0u);
}

}  // namespace
}  // namespace terrace

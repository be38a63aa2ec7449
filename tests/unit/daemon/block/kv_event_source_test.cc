// What routers are told is what the host can serve.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>

#include "daemon/policy/eviction/policies.h"
#include "tests/unit/daemon/store/store_fixture.h"

namespace terrace {
namespace {

using World = StoreWorld;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

uint64_t HashOf(const BlockKey& key) { return key.low ^ 0x5555; }

// A bit per KvEventMedium.
uint8_t MediaOf(uint8_t tier_mask) {
  const auto bit = [&](TierKind kind) { return (tier_mask >> static_cast<uint32_t>(kind)) & 1; };
  return static_cast<uint8_t>(bit(TierKind::kDram) | bit(TierKind::kNvme) << 1 |
                              bit(TierKind::kHbm) << 2 | bit(TierKind::kRedis) << 3);
}

// Believes what it is told.
class Router final : public KvEventSink {
 public:
  uint32_t StreamOf(uint32_t, const SpaceGroupSpec& spec) override {
    for (uint32_t i = 0; i < models.size(); ++i) {
      if (models[i] == spec.name) return i;
    }
    models.push_back(spec.name);
    return static_cast<uint32_t>(models.size() - 1);
  }
  void EndStream(uint32_t stream) override { ended.push_back(stream); }
  void Publish(std::span<const KvEvent> told) override {
    if (told[0].kind == KvEvent::Kind::kAllBegins) return Begin();
    if (told[0].kind == KvEvent::Kind::kAllEnds) return End();
    for (const KvEvent& event : told) Believe(event);
    if (told[0].kind == KvEvent::Kind::kRemoved) {
      removed_at_once_max = std::max(removed_at_once_max, told.size());
    }
  }
  void Begin() {
    places_of.clear();
    is_anew = true;
  }
  void End() {
    EXPECT_TRUE(is_anew) << "what ends has begun";
    is_anew = false;
    ++anew_count;
  }
  void Believe(const KvEvent& event) {
    events.push_back(event);
    const uint8_t bit = 1 << static_cast<uint32_t>(event.medium);
    uint8_t& places = places_of[event.hash];
    if (event.kind == KvEvent::Kind::kStored) {
      EXPECT_FALSE(places & bit) << "what is stored was not: routers count";
      places |= bit;
    } else {
      EXPECT_TRUE(places & bit) << "what is removed was stored";
      places &= ~bit;
    }
    if (places == 0) places_of.erase(event.hash);
  }
  bool HasRoom(size_t event_count) const override { return event_count <= room; }

  std::vector<std::string> models;
  std::vector<uint32_t> ended;
  std::vector<KvEvent> events;
  std::map<uint64_t, uint8_t> places_of;  // a bit per KvEventMedium
  bool is_anew = false;
  uint32_t anew_count = 0;
  size_t removed_at_once_max = 0;
  size_t room = SIZE_MAX;
};

class KvEvents : public ::testing::Test {
 protected:
  explicit KvEvents(WorldOptions options = {.lower_tier_count = 1,
                                            .lower_capacity_bytes = 4 * kMiB})
      : w([&] {
          options.kv_events = &router;
          return options;
        }()) {}
  uint32_t Put(const std::vector<BlockKey>& keys) {
    std::vector<uint64_t> hashes;
    for (const BlockKey& key : keys) hashes.push_back(HashOf(key));
    KeysQuery query = w.Query(s, group, keys);
    query.event_hashes = hashes;
    const ReserveResult reserved = w.Reserve(query);
    uint32_t sealed_count = 0;
    if (!reserved.reply.token.is_zero()) {
      sealed_count =
          w.CommitAll(s, group, keys, reserved, World::Checksums::kClient, protocol::kCommitRelease)
              .reply.sealed_count;
    }
    w.Advance(100'000);
    return sealed_count;
  }
  // As Query tells it.
  std::map<uint64_t, uint8_t> Served(uint64_t chain_count, uint32_t block_count) {
    std::map<uint64_t, uint8_t> served;
    for (uint64_t chain = 1; chain <= chain_count; ++chain) {
      const std::vector<BlockKey> keys = World::Keys(block_count, chain);
      std::vector<protocol::QueriedBlock> blocks;
      EXPECT_TRUE(w.store->operators().Query(w.Query(s, group, keys), &blocks).ok());
      for (uint32_t i = 0; i < blocks.size(); ++i) {
        const uint8_t places = MediaOf(blocks[i].tier_mask);
        if (places != 0) served[HashOf(keys[i])] = places;
      }
    }
    return served;
  }

  Router router;
  World w;
  SessionId s = w.Open();
  uint32_t group = w.OpenSimple(s);
};

TEST_F(KvEvents, AChainIsToldInOrderWithItsParents) {
  const std::vector<BlockKey> keys = World::Keys(3, 1);
  ASSERT_EQ(Put(keys), 3u);
  ASSERT_GE(router.events.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(router.events[i].hash, HashOf(keys[i]));
    EXPECT_EQ(router.events[i].parent_hash, i == 0 ? 0 : HashOf(keys[i - 1]));
    EXPECT_EQ(router.events[i].medium, KvEventMedium::kDram);
  }
  EXPECT_THAT(router.models, ElementsAre("simple"));
}

TEST_F(KvEvents, NothingIsToldOfAnUnsealedBlockOrOneWithoutAHash) {
  const std::vector<BlockKey> keys = World::Keys(2, 1);
  const std::vector<uint64_t> hashes = {1, 2};
  KeysQuery query = w.Query(s, group, keys);
  query.event_hashes = hashes;
  const ReserveResult reserved = w.Reserve(query);
  ASSERT_EQ(w.Put(s, group, World::Keys(2, 2)), 2u);
  w.Advance(100'000);
  EXPECT_THAT(router.events, IsEmpty());
  ASSERT_TRUE(w.store->storing().Abort(s, reserved.reply.token, {}).ok());
  EXPECT_THAT(router.events, IsEmpty());
}

TEST_F(KvEvents, RoutersBelieveWhatIsServed) {
  constexpr uint32_t kChains = 12, kBlocks = 5;
  std::mt19937 random(11);
  for (int step = 0; step < 300; ++step) {
    const uint64_t chain = 1 + random() % kChains;
    switch (random() % 8) {
      case 0: {
        const std::vector<BlockKey> keys = World::Keys(1 + random() % kBlocks, chain);
        w.Evict(w.Query(s, group, keys));
        break;
      }
      case 1:
      case 2: {
        const AcquireResult used = w.Acquire(s, group, World::Keys(kBlocks, chain));
        w.Advance(50'000);
        if (used.reply.block_count > 0) w.Release(s, used.reply.token);
        break;
      }
      default:
        Put(World::Keys(1 + random() % kBlocks, chain));
    }
    w.Advance(random() % 100'000);
    ASSERT_EQ(router.places_of, Served(kChains, kBlocks)) << step;
  }
  EXPECT_GT(router.events.size(), 300u);
}

TEST_F(KvEvents, ASuccessorTellsWhatThePredecessorLeft) {
  ASSERT_EQ(Put(World::Keys(4, 1)), 4u);
  ASSERT_EQ(Put(World::Keys(4, 2)), 4u);
  router.places_of.clear();
  w.RestartWarm();
  s = w.Open();
  group = w.OpenSimple(s);
  std::map<uint64_t, uint8_t> both;
  for (const uint64_t chain : {1, 2}) {
    for (const BlockKey& key : World::Keys(4, chain)) both[HashOf(key)] = 3;
  }
  EXPECT_EQ(router.places_of, both);
  // Verified at first use, and told of no second time.
  router.events.clear();
  const AcquireResult used = w.Acquire(s, group, World::Keys(4, 1));
  w.Advance(100'000);
  EXPECT_EQ(used.reply.block_count, 4u);
  EXPECT_THAT(router.events, IsEmpty());
}

TEST_F(KvEvents, WhoForgotIsToldOfEveryBlockAnewWhenThereIsRoom) {
  for (uint64_t chain = 1; chain <= 3; ++chain) Put(World::Keys(2, chain));
  const std::map<uint64_t, uint8_t> before = router.places_of;
  ASSERT_EQ(before.size(), 6u);
  router.room = 0;
  w.store->events().RepublishKvEvents();
  w.Advance(1'000'000);
  EXPECT_THAT(router.places_of, IsEmpty());
  // What comes and goes meanwhile is told with the rest, once.
  Put(World::Keys(2, 4));
  w.Evict(w.Query(s, group, World::Keys(2, 1)));
  router.room = 8;  // enough for a block, not for a turn
  Put(World::Keys(2, 5));
  EXPECT_THAT(router.places_of, IsEmpty());
  EXPECT_TRUE(router.is_anew);
  router.room = SIZE_MAX;
  w.Advance(1'000'000);
  EXPECT_EQ(router.places_of, Served(5, 2));
  EXPECT_EQ(router.places_of.size(), 8u);
  EXPECT_EQ(router.anew_count, 1u);
}

TEST_F(KvEvents, WithoutRoomWhatComesIsToldLaterAndWhatGoesAtOnce) {
  Put(World::Keys(2, 1));
  router.events.clear();
  router.room = 0;
  Put(World::Keys(2, 2));
  Put(World::Keys(2, 3));
  w.Advance(1'000'000);
  EXPECT_THAT(router.events, IsEmpty());
  w.Evict(w.Query(s, group, World::Keys(2, 1)));
  w.Evict(w.Query(s, group, World::Keys(2, 2)));
  EXPECT_THAT(router.places_of, IsEmpty()) << "what was never told is not taken back";
  EXPECT_EQ(router.events.size(), 4u) << "two blocks of two media";
  w.Check();
  router.room = SIZE_MAX;
  w.Advance(1'000'000);
  EXPECT_EQ(router.places_of, Served(3, 2));
  EXPECT_EQ(router.places_of.size(), 2u);
}

TEST_F(KvEvents, ADomainThatServesNothingIsToldToHaveNothingUntilItServesAgain) {
  for (const auto mode : {protocol::ServingMode::kDraining, protocol::ServingMode::kBypassed}) {
    for (uint64_t chain = 1; chain <= 3; ++chain) Put(World::Keys(2, chain));
    ASSERT_EQ(router.places_of.size(), 6u);
    w.store->operators().SetServing(0, mode);
    w.Advance(10'000);
    EXPECT_THAT(router.places_of, IsEmpty());
    w.Evict(w.Query(s, group, World::Keys(2, 1)));
    w.Advance(1'000'000);
    w.Check();
    EXPECT_THAT(router.places_of, IsEmpty());
    w.store->operators().SetServing(0, protocol::ServingMode::kServing);
    w.Advance(10'000);
    EXPECT_EQ(router.places_of, Served(3, 2));
    EXPECT_EQ(router.places_of.size(), 4u);
    w.Check();
  }
}

TEST_F(KvEvents, WithoutRoomADomainThatServesNothingIsToldToHaveNothingLater) {
  for (uint64_t chain = 1; chain <= 3; ++chain) Put(World::Keys(2, chain));
  router.room = 0;
  w.store->operators().SetServing(0, protocol::ServingMode::kBypassed);
  w.Advance(10'000);
  w.Check();
  EXPECT_EQ(router.places_of.size(), 6u);
  w.store->events().RepublishKvEvents();
  router.room = SIZE_MAX;
  w.Advance(10'000);
  EXPECT_THAT(router.places_of, IsEmpty());
  w.Check();
}

TEST_F(KvEvents, WhatATierHasThatIsOffIsNotTold) {
  Put(World::Keys(4, 1));
  const std::map<uint64_t, uint8_t> before = router.places_of;
  w.faults[0]->SwitchOff();
  w.Advance(600'000);
  for (const auto& [hash, places] : router.places_of) EXPECT_EQ(places, 1) << "DRAM alone";
  EXPECT_EQ(router.places_of.size(), 4u);
  w.Check();
  w.faults[0]->SwitchOn();
  w.Advance(600'000);
  EXPECT_EQ(router.places_of, before);
  w.Check();
}

class KvEventsOfFewGroups : public KvEvents {
 protected:
  KvEventsOfFewGroups() : KvEvents({.groups_max = 1}) {}
};

TEST_F(KvEventsOfFewGroups, AGroupWhosePlaceIsTakenGivesItsStreamBack) {
  EXPECT_THAT(router.ended, IsEmpty());
  w.store->sessions().ProofOfDeath(s);
  w.Advance(10'000);
  s = w.Open();
  group = w.OpenGroup(s, TestGroup("other", {TestSpace(0)}));
  EXPECT_THAT(router.models, ElementsAre("simple", "other"));
  EXPECT_THAT(router.ended, ElementsAre(0));
}

// DRAM alone: what makes room for a prompt leaves as tails of others.
class KvEventsOfDram : public KvEvents, public ::testing::WithParamInterface<std::string_view> {
 protected:
  KvEventsOfDram() : KvEvents({.segments_max = 8, .eviction_policy = std::string(GetParam())}) {}
};

TEST_P(KvEventsOfDram, EveryBlockOfATailThatLeavesIsTold) {
  constexpr uint32_t kChains = 24, kBlocks = 16;
  Put(World::Keys(kBlocks, kChains + 1));  // as much as is populated: a segment is half a chain
  for (uint64_t chain = 1; chain <= kChains; ++chain) {
    ASSERT_EQ(Put(World::Keys(kBlocks, chain)), kBlocks) << "chain " << chain;
  }
  const uint64_t removed_count = std::ranges::count(
      router.events, KvEvent::Kind::kRemoved, [](const KvEvent& event) { return event.kind; });
  const uint64_t evicted_count = w.Stats().blocks_evicted;
  EXPECT_GE(evicted_count, (kChains - 4) * kBlocks);
  EXPECT_EQ(removed_count, evicted_count);
  EXPECT_EQ(router.places_of, Served(kChains + 1, kBlocks));
  EXPECT_GT(router.removed_at_once_max, 1u) << "no tail left";
}

INSTANTIATE_TEST_SUITE_P(EveryPolicy, KvEventsOfDram,
                         ::testing::ValuesIn(EvictionPolicyNames().begin(),
                                             EvictionPolicyNames().end()),
                         [](const auto& policy) { return std::string(policy.param); });

}  // namespace
}  // namespace terrace

// What routers are told of the tier that hosts share: what this host knows to be there, whether the
// block is here or not, and never for ever.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "sim/memory_shared_tier.h"
#include "unit/daemon/store/store_fixture.h"

namespace terrace {
namespace {

constexpr uint64_t kWindowUs = 80 * kUsPerSecond;
constexpr uint8_t kHere = 1, kThere = 8;

uint64_t HashOf(const BlockKey& key) { return key.low ^ 0x5555; }

// Believes what it is told, and counts, as routers do.
class Router final : public KvEventSink {
 public:
  uint32_t StreamOf(uint32_t, const SpaceGroupSpec&) override { return 0; }
  void EndStream(uint32_t) override {}
  void Publish(std::span<const KvEvent> told) override {
    for (const KvEvent& event : told) {
      if (event.kind == KvEvent::Kind::kAllBegins) {
        places_of.clear();
      } else if (event.kind != KvEvent::Kind::kAllEnds) {
        Believe(event);
      }
    }
  }
  bool HasRoom(size_t) const override { return has_room; }
  uint8_t At(const BlockKey& key) const {
    const auto found = places_of.find(HashOf(key));
    return found == places_of.end() ? 0 : found->second;
  }

  std::map<uint64_t, uint8_t> places_of;  // a bit per KvEventMedium; none is 0
  std::map<uint64_t, uint64_t> parent_of;
  bool has_room = true;

 private:
  void Believe(const KvEvent& event) {
    const uint8_t bit = 1 << static_cast<uint32_t>(event.medium);
    uint8_t& places = places_of[event.hash];
    const bool is_stored = event.kind == KvEvent::Kind::kStored;
    EXPECT_NE((places & bit) != 0, is_stored) << "a router counts what it is told";
    places ^= bit;
    if (is_stored && event.medium == KvEventMedium::kShared) {
      parent_of[event.hash] = event.parent_hash;
    }
    if (places == 0) places_of.erase(event.hash);
  }
};

struct Host {
  explicit Host(sim::SharedServer& server, uint32_t copies_max = SharedCopies::kCopiesMax)
      : tier(server), world([&] {
          WorldOptions options;
          options.segments_max = 2;
          options.kv_events = &router;
          options.shared = {.tier = &tier, .window_us = kWindowUs, .copies_max = copies_max};
          return options;
        }()) {
    tier.SetListener(&world.store->events().shared_listener(0));
    session = world.Open();
    group = world.OpenSimple(session);
  }
  void Run() {
    world.Run();
    while (tier.RunOne()) world.Run();
  }
  void Advance(uint64_t us) {
    world.Advance(us);
    Run();
  }
  void Put(const std::vector<BlockKey>& keys) {
    std::vector<uint64_t> hashes;
    for (const BlockKey& key : keys) hashes.push_back(HashOf(key));
    KeysQuery query = world.Query(session, group, keys);
    query.event_hashes = hashes;
    const ReserveResult reserved = world.Reserve(query);
    if (!reserved.reply.token.is_zero()) {
      world.CommitAll(session, group, keys, reserved, StoreWorld::Checksums::kClient,
                      protocol::kCommitRelease);
    }
    Run();
  }
  void Use(const std::vector<BlockKey>& keys) {
    const KeysQuery query = world.Query(session, group, keys);
    uint64_t end_us = 0;
    if (world.store->prefixes().Seek(query, &end_us).code() == StatusCode::kBusy) Run();
    const AcquireResult used = world.Acquire(query);
    Run();
    if (!used.reply.token.is_zero()) world.Release(session, used.reply.token);
    Run();
  }
  // They leave this host, and no other.
  void DropHere() {
    world.Advance(1'000'000);
    protocol::EvictReply reply;
    const protocol::EvictWhereRequest request{.idle_ms_min = 1};
    EvictWhereOperation evict = world.store->operators().EvictWhere(session, request, &reply);
    Result<Progress> progress = evict.Step();
    while (progress.ok() && *progress != Progress::kDone) progress = evict.Step();
    Run();
  }
  // As Query tells it.
  std::map<uint64_t, uint8_t> Told(uint64_t chain_count, uint32_t block_count) {
    std::map<uint64_t, uint8_t> told;
    for (uint64_t chain = 1; chain <= chain_count; ++chain) {
      const std::vector<BlockKey> keys = StoreWorld::Keys(block_count, chain);
      std::vector<protocol::QueriedBlock> blocks;
      EXPECT_TRUE(world.store->operators().Query(world.Query(session, group, keys), &blocks).ok());
      for (uint32_t i = 0; i < blocks.size(); ++i) {
        const uint8_t places = ((blocks[i].tier_mask >> 1) & 1) | (blocks[i].tier_mask & 8);
        if (places != 0) told[HashOf(keys[i])] = places;
      }
    }
    return told;
  }

  Router router;
  sim::MemorySharedTier tier;
  StoreWorld world;
  SessionId session = 0;
  uint32_t group = 0;
};

TEST(StoreSharedEvents, WhatIsGivenIsToldOfUntilTheServerMayHaveDroppedIt) {
  sim::SharedServer server;
  Host a(server);
  const auto keys = StoreWorld::Keys(2);
  a.Put(keys);
  EXPECT_EQ(a.router.At(keys[0]), kHere | kThere);
  EXPECT_EQ(a.router.parent_of.at(HashOf(keys[1])), HashOf(keys[0]));
  a.Advance(kWindowUs - 1'000'000);
  EXPECT_EQ(a.router.At(keys[1]), kHere | kThere);
  a.Advance(1'100'000);
  EXPECT_EQ(a.router.At(keys[1]), kHere);
  // Served, it is given again: the server has it still, nobody knows how long.
  a.Use(keys);
  EXPECT_EQ(a.router.At(keys[1]), kHere | kThere);
  a.Advance(kWindowUs / 8 + 1'000'000);
  EXPECT_EQ(a.router.At(keys[1]), kHere);
  server.blocks.clear();
  a.Use(keys);
  EXPECT_EQ(server.blocks.size(), 2u) << "what it has dropped it is given anew";
}

TEST(StoreSharedEvents, WhatHasLeftThisHostIsStillThere) {
  sim::SharedServer server;
  Host a(server);
  const auto keys = StoreWorld::Keys(3);
  a.Put(keys);
  a.DropHere();
  for (const BlockKey& key : keys) EXPECT_EQ(a.router.At(key), kThere);
  EXPECT_EQ(a.router.places_of, a.Told(1, 3));
  a.Use(keys);
  for (const BlockKey& key : keys) EXPECT_EQ(a.router.At(key), kHere | kThere);
}

TEST(StoreSharedEvents, ADomainThatServesNothingIsToldToHaveNothingThere) {
  sim::SharedServer server;
  Host a(server);
  a.Put(StoreWorld::Keys(3));
  a.DropHere();
  a.Put(StoreWorld::Keys(2, 2));
  const std::map<uint64_t, uint8_t> before = a.router.places_of;
  EXPECT_EQ(before, a.Told(2, 3));
  a.world.store->operators().SetServing(0, protocol::ServingMode::kBypassed);
  a.Advance(10'000);
  EXPECT_TRUE(a.router.places_of.empty());
  a.world.store->events().RepublishKvEvents();
  a.Advance(10'000);
  EXPECT_TRUE(a.router.places_of.empty());
  a.world.store->operators().SetServing(0, protocol::ServingMode::kServing);
  a.Advance(10'000);
  EXPECT_EQ(a.router.places_of, before);
}

TEST(StoreSharedEvents, WhatOthersHaveGivenIsToldOfOnceItCame) {
  sim::SharedServer server;
  Host a(server), b(server);
  const auto keys = StoreWorld::Keys(2);
  a.Put(keys);
  EXPECT_EQ(b.router.At(keys[0]), 0);
  b.Use(keys);
  EXPECT_EQ(b.router.At(keys[1]), kHere | kThere);
}

TEST(StoreSharedEvents, WhatAFetchOrAQuestionMissesIsTakenBack) {
  sim::SharedServer server;
  Host a(server);
  const auto keys = StoreWorld::Keys(3);
  a.Put(keys);
  a.DropHere();
  // Found, and gone when it is fetched.
  const KeysQuery query = a.world.Query(a.session, a.group, keys);
  uint64_t end_us = 0;
  ASSERT_EQ(a.world.store->prefixes().Seek(query, &end_us).code(), StatusCode::kBusy);
  a.Run();
  std::erase_if(server.blocks,
                [&](const auto& block) { return block.second.record.key == keys[1]; });
  const AcquireResult used = a.world.Acquire(query);
  a.Run();
  if (!used.reply.token.is_zero()) a.world.Release(a.session, used.reply.token);
  EXPECT_EQ(a.router.At(keys[0]), kHere | kThere);
  EXPECT_EQ(a.router.At(keys[1]), 0);
  // Not even found.
  server.blocks.clear();
  a.DropHere();
  a.Advance(2'000'000);
  EXPECT_EQ(a.router.At(keys[0]), kThere) << "nobody has asked";
  a.Use(keys);
  EXPECT_EQ(a.router.At(keys[0]), 0);
}

TEST(StoreSharedEvents, WhatIsErasedThereIsTakenBack) {
  sim::SharedServer server;
  Host a(server);
  const auto one = StoreWorld::Keys(2, 1), two = StoreWorld::Keys(2, 2),
             three = StoreWorld::Keys(2, 3);
  for (const auto& keys : {one, two, three}) a.Put(keys);
  a.world.Evict(a.world.Query(a.session, a.group, one));
  a.Run();
  EXPECT_EQ(a.router.At(one[0]), 0);
  a.DropHere();
  a.world.Evict(a.world.Query(a.session, a.group, two));  // that nobody here has
  a.Run();
  EXPECT_EQ(a.router.At(two[0]), 0);
  EXPECT_EQ(a.router.At(three[1]), kThere);
  a.world.Reset(a.session, a.group);
  a.Run();
  EXPECT_TRUE(a.router.places_of.empty());
  EXPECT_TRUE(a.Told(3, 2).empty());
}

TEST(StoreSharedEvents, AStoreThatEndsBehindAnErasureIsNotToldOf) {
  sim::SharedServer server;
  Host a(server);
  const auto keys = StoreWorld::Keys(1);
  a.Put(keys);
  a.Advance(kWindowUs + 1'000'000);
  const KeysQuery query = a.world.Query(a.session, a.group, keys);
  const AcquireResult used = a.world.Acquire(query);  // given again, and not answered yet
  a.world.Run();
  a.world.Release(a.session, used.reply.token);
  protocol::EvictReply reply;
  const protocol::EvictWhereRequest request{.idle_ms_min = 1,
                                            .tier = static_cast<uint8_t>(TierKind::kRedis)};
  a.world.clock.Advance(2'000);
  EvictWhereOperation evict = a.world.store->operators().EvictWhere(a.session, request, &reply);
  while (*evict.Step() != Progress::kDone) {
  }
  EXPECT_EQ(reply.block_count, 1u);
  a.Run();
  EXPECT_EQ(a.router.At(keys[0]), kHere);
}

TEST(StoreSharedEvents, OfAServerThatIsAwayNothingIsToldUntilItHasAnsweredOfEachBlock) {
  sim::SharedServer server;
  Host a(server);
  const auto keys = StoreWorld::Keys(2, 1), gone = StoreWorld::Keys(2, 2);
  a.Put(gone);
  a.DropHere();
  a.Put(keys);
  EXPECT_EQ(a.router.At(gone[0]), kThere);
  a.tier.is_away = true;
  a.Advance(1'000'000);
  EXPECT_EQ(a.router.places_of,
            (std::map<uint64_t, uint8_t>{{HashOf(keys[0]), kHere}, {HashOf(keys[1]), kHere}}));
  a.tier.is_away = false;
  a.Advance(1'000'000);
  EXPECT_EQ(a.router.At(keys[0]), kHere) << "it may have come back empty";
  a.Use(keys);
  a.Use(gone);
  EXPECT_EQ(a.router.At(keys[0]), kHere | kThere);
  EXPECT_EQ(a.router.At(gone[1]), kHere | kThere);
}

TEST(StoreSharedEvents, OfMoreThanCanBeKnownTheOldestAreTakenBack) {
  sim::SharedServer server;
  Host a(server, 4);
  for (uint64_t chain = 1; chain <= 5; ++chain) a.Put(StoreWorld::Keys(2, chain));
  EXPECT_EQ(a.router.At(StoreWorld::Keys(2, 1)[0]), kHere);
  EXPECT_EQ(a.router.At(StoreWorld::Keys(2, 5)[1]), kHere | kThere);
  EXPECT_EQ(a.router.places_of, a.Told(5, 2));
}

TEST(StoreSharedEvents, RoutersBelieveWhatQueryTells) {
  constexpr uint32_t kChains = 12, kBlocks = 3;
  sim::SharedServer server;
  Host a(server, 24), b(server);
  std::mt19937 random(7);
  uint64_t shared_count = 0;
  for (int step = 0; step < 600; ++step) {
    const auto keys = StoreWorld::Keys(1 + random() % kBlocks, 1 + random() % kChains);
    switch (random() % 16) {
      case 0:
        a.world.Evict(a.world.Query(a.session, a.group, keys));
        break;
      case 1:
        a.DropHere();
        break;
      case 2:
        a.tier.is_away = random() % 2 == 0;
        break;
      case 3:
        if (random() % 4 == 0) server.blocks.clear();
        break;
      case 4:
        a.router.has_room = !a.router.has_room;
        break;
      case 5:
        a.world.store->events().RepublishKvEvents();
        break;
      case 6:
        if (random() % 8 == 0) a.world.Reset(a.session, a.group);
        break;
      case 7:
        b.Put(keys);
        break;
      case 8:
        a.Advance(random() % (kWindowUs / 4));
        break;
      case 9:
      case 10:
      case 11:
        a.Use(keys);
        break;
      default:
        a.Put(keys);
    }
    a.Advance(random() % 600'000);
    if (!a.router.has_room) continue;
    a.Advance(600'000);
    ASSERT_EQ(a.router.places_of, a.Told(kChains, kBlocks)) << step;
    for (const auto& [hash, places] : a.router.places_of) shared_count += places == kThere;
  }
  EXPECT_GT(shared_count, 50u) << "of blocks that are there alone";
}

}  // namespace
}  // namespace terrace

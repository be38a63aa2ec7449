// Growth of arenas, borrowing between domains, and taking memory back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "store_fixture.h"

namespace terrace {
namespace {

using World = StoreWorld;

uint32_t Populated(World& w, uint32_t domain) {
  uint32_t count = 0;
  const uint32_t segments_max = w.Stats(domain).segments_max;
  for (uint32_t i = 0; i < segments_max; ++i) count += w.arenas[domain]->IsPopulated(i) ? 1 : 0;
  return count;
}

TEST(Arena, SaysOfWhichPagesEachDomainsMemoryIs) {
  World w({.domain_count = 2, .segments_max = 4});
  w.arenas[0]->page_bytes = kArenaHugePageBytes;
  w.arenas[1]->page_bytes = kArenaPageBytes;
  EXPECT_EQ(w.Stats(0).arena_page_bytes, kArenaHugePageBytes);
  EXPECT_EQ(w.Stats(1).arena_page_bytes, kArenaPageBytes);
}

TEST(Arena, WhatIsAheadGrowsWithWhatIsUsed) {
  World w({.segments_max = 8});
  EXPECT_TRUE(w.store->is_ready());
  EXPECT_EQ(Populated(w, 0), 1u);
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  w.Put(s, group, World::Keys(1));
  w.Run();
  EXPECT_EQ(Populated(w, 0), 1u + 2u);
  w.Put(s, group, World::Keys(2 * kSlotsPerSegment));
  w.Run();
  EXPECT_EQ(Populated(w, 0), 2u + 3u);
}

// A Reserve of more than there is while more is on its way.
struct ShortReserve {
  explicit ShortReserve(uint8_t by_verb) : keys(World::Keys(2 * kSlotsPerSegment)) {
    session = w.Open();
    query = w.Query(session, w.OpenSimple(session), keys);
    query.hints.by_verb = by_verb;
    w.holds_arena = true;
    EXPECT_TRUE(reserve.Step(query).ok());
  }
  size_t told_count() const { return w.listener.seeks.size(); }
  // As the session does: with the keys that were not answered.
  void GoOn() {
    query.parent = keys[result.keys.size() - 1];
    query.first_position = static_cast<uint32_t>(result.keys.size());
    query.keys = std::span(keys).subspan(result.keys.size());
    EXPECT_TRUE(reserve.Step(query).ok());
  }
  size_t ok_count() const {
    return static_cast<size_t>(std::ranges::count(
        result.keys, static_cast<uint8_t>(StatusCode::kOk), &protocol::ReservedKey::status));
  }

  World w{WorldOptions{.segments_max = 2}};
  std::vector<BlockKey> keys;
  SessionId session = 0;
  KeysQuery query;
  ReserveResult result;
  ReserveOperation reserve = w.store->storing().Reserve(&result);
};

TEST(Arena, AReserveWaitsForMemoryThatIsBeingPopulated) {
  ShortReserve on(10);
  EXPECT_TRUE(on.result.awaits_room);
  EXPECT_EQ(on.result.keys.size(), kSlotsPerSegment);
  on.w.Advance(100'000);
  EXPECT_EQ(on.told_count(), 0u);
  on.w.holds_arena = false;
  on.w.Run();
  ASSERT_EQ(on.told_count(), 1u);
  EXPECT_EQ(on.w.listener.seeks[0], std::pair(on.session, on.query.request_id));
  on.GoOn();
  EXPECT_FALSE(on.result.awaits_room);
  EXPECT_EQ(on.ok_count(), 2u * kSlotsPerSegment);
  on.w.Advance(1'000'000);
  EXPECT_EQ(on.told_count(), 1u);
  EXPECT_EQ(on.w.Stats().reserve_no_space, 0u);
}

TEST(Arena, AReserveWaitsForMemoryNoLongerThanItMay) {
  ShortReserve on(2);
  EXPECT_TRUE(on.result.awaits_room);
  on.w.Advance(2 * protocol::kRoomWaitUnitUs);
  EXPECT_EQ(on.told_count(), 1u);
  on.GoOn();
  EXPECT_FALSE(on.result.awaits_room);
  EXPECT_EQ(on.ok_count(), kSlotsPerSegment);
  EXPECT_EQ(on.w.Stats().reserve_no_space, kSlotsPerSegment);
}

TEST(Arena, NobodysBlocksGoWhileMemoryIsComing) {
  World w({.segments_max = 2});
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  w.holds_arena = true;
  const auto first = World::Keys(kSlotsPerSegment, 1), second = World::Keys(4, 2);
  EXPECT_EQ(w.Put(s, group, first), kSlotsPerSegment);
  KeysQuery query = w.Query(s, group, second);
  query.hints.by_verb = 1;
  ReserveResult result;
  ReserveOperation reserve = w.store->storing().Reserve(&result);
  EXPECT_EQ(*reserve.Step(query), Progress::kAwaits);
  EXPECT_TRUE(result.awaits_room);
  w.Advance(protocol::kRoomWaitUnitUs);
  EXPECT_EQ(*reserve.Step(query), Progress::kDone);
  EXPECT_EQ(w.Stats().blocks_evicted, 0u);
  EXPECT_EQ(w.Stats().reserve_no_space, 4u);
  w.holds_arena = false;
  w.Run();
  EXPECT_EQ(w.Put(s, group, second), 4u);
  EXPECT_EQ(w.MatchCount(s, group, first), kSlotsPerSegment);
}

TEST(Arena, AReserveThatMayNotWaitDoesNot) {
  ShortReserve on(0);
  EXPECT_FALSE(on.result.awaits_room);
  EXPECT_EQ(on.ok_count(), kSlotsPerSegment);
}

// A policy that lets newcomers pass by does so when all room is there.
TEST(Arena, WhatWasJustStoredStaysWhileItGrows) {
  for (const char* policy : {"lru", "hazard"}) {
    SCOPED_TRACE(policy);
    World w({.segments_max = 4, .eviction_policy = policy});
    const SessionId s = w.Open();
    const uint32_t group = w.OpenSimple(s);
    w.Put(s, group, World::Keys(1));
    w.Run();
    w.holds_arena = true;  // from now on no more memory comes
    for (uint64_t chain = 1; chain <= 3 * kSlotsPerSegment; ++chain) {
      w.Advance(1'000);
      w.Put(s, group, World::Keys(1, chain));
    }
    for (uint64_t chain = 101; chain <= 110; ++chain) {
      w.Advance(1'000);
      const auto keys = World::Keys(kSlotsPerSegment, chain);
      EXPECT_EQ(w.Put(s, group, keys), kSlotsPerSegment);
      EXPECT_EQ(w.MatchCount(s, group, keys), kSlotsPerSegment);
      if (chain == 101) continue;
      EXPECT_EQ(w.MatchCount(s, group, World::Keys(kSlotsPerSegment, chain - 1)), kSlotsPerSegment);
    }
    EXPECT_GE(w.Stats(0).blocks_evicted, 10 * kSlotsPerSegment);  // and there was too little
  }
}

TEST(Arena, AFailedPopulateIsTriedAgain) {
  World w({.segments_max = 2});
  w.holds_arena = true;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  w.Put(s, group, World::Keys(1));
  w.Run();
  sim::PlainArena::Work work;
  ASSERT_TRUE(w.arenas[0]->TakeWork(&work));
  EXPECT_EQ(w.Stats(0).arena_shortage, "");
  w.store->events().OnSegmentPopulated(0, work.segment, Status(StatusCode::kIo, "", 12));
  w.Run();
  EXPECT_FALSE(w.arenas[0]->has_work());
  EXPECT_EQ(w.Stats(0).arena_shortage, "there is none left");
  w.Advance(1'100'000);
  EXPECT_TRUE(w.arenas[0]->has_work());
  EXPECT_EQ(w.Stats(0).arena_shortage, "there is none left") << "until there is some";
  w.holds_arena = false;
  w.Run();
  EXPECT_EQ(w.Stats(0).arena_shortage, "");
}

TEST(Arena, BorrowedSegmentsComeBackThroughTheWholeProtocol) {
  World w({.domain_count = 2,
           .segments_max = 4,
           .segments_guaranteed = 2,
           .segments_lent_max = 2,
           .segments_total = 4});
  const SessionId a = w.Open(0), a2 = w.Open(0);
  const uint32_t group_a = w.OpenSimple(a);
  for (uint32_t i = 0; i < 3; ++i) {
    w.Put(a, group_a, World::Keys(kSlotsPerSegment, i + 1));
    w.Run();
  }
  EXPECT_EQ(Populated(w, 0), 3u);
  EXPECT_EQ(Populated(w, 1), 1u);
  const auto last = World::Keys(kSlotsPerSegment, 3);
  const AcquireResult held = w.Acquire(a, group_a, last);
  // It may have mapped what it was told of; another, which never was told of a slot, has not.
  EXPECT_EQ(w.OpenSimple(a2), group_a);
  w.Release(a2, w.Acquire(a2, group_a, last).reply.token);
  w.Open(0);

  // Domain 1 needs its second segment.
  const SessionId b = w.Open(1);
  const uint32_t group_b = w.OpenSimple(b);
  EXPECT_EQ(w.Put(b, group_b, World::Keys(kSlotsPerSegment)), kSlotsPerSegment);
  w.Put(b, group_b, World::Keys(1, 2));
  w.Run();
  ASSERT_EQ(w.listener.segment_revokes.size(), 2u);  // each session of domain 0 that had slots
  const uint32_t segment = w.listener.segment_revokes[0].second;
  EXPECT_EQ(w.MatchCount(a, group_a, last), kSlotsPerSegment);  // leased blocks stay
  EXPECT_EQ(Populated(w, 0), 3u);  // nothing is punched before all have unmapped

  EXPECT_TRUE(w.store->sessions().Unmapped(a, segment).ok());
  w.Run();
  EXPECT_EQ(Populated(w, 0), 3u);
  w.store->sessions().HangUp(a2);
  w.Run();
  EXPECT_EQ(Populated(w, 0), 3u);
  w.store->sessions().ProofOfDeath(a2);
  w.Run();
  EXPECT_EQ(Populated(w, 0), 2u);
  EXPECT_EQ(Populated(w, 1), 2u);
  EXPECT_EQ(w.Put(b, group_b, World::Keys(4, 3)), 4u);
}

// Its threads may still copy, though its connection ended before the segment was asked for.
TEST(Arena, AHungUpSessionHasTheSegmentMappedUntilItIsDead) {
  World w({.domain_count = 2,
           .segments_max = 4,
           .segments_guaranteed = 2,
           .segments_lent_max = 2,
           .segments_total = 4});
  const SessionId a = w.Open(0), b = w.Open(1);
  const uint32_t group_a = w.OpenSimple(a), group_b = w.OpenSimple(b);
  for (uint32_t i = 0; i < 3; ++i) {
    w.Put(a, group_a, World::Keys(kSlotsPerSegment, i + 1));
    w.Run();
  }
  w.store->sessions().HangUp(a);
  w.Put(b, group_b, World::Keys(kSlotsPerSegment));
  w.Put(b, group_b, World::Keys(1, 2));
  w.Advance(1'000'000);
  EXPECT_EQ(Populated(w, 0), 3u);
  EXPECT_EQ(Populated(w, 1), 1u);
  w.store->sessions().ProofOfDeath(a);
  w.Run();
  EXPECT_EQ(Populated(w, 0), 2u);
  EXPECT_EQ(Populated(w, 1), 2u);
}

TEST(Arena, TheBorrowerGivesBackNotWhoeverIsShortToo) {
  World w({.domain_count = 3,
           .segments_max = 6,
           .segments_guaranteed = 2,
           .segments_lent_max = 2,
           .segments_total = 6});
  const SessionId a = w.Open(0), b = w.Open(1), c = w.Open(2);
  const uint32_t group_a = w.OpenSimple(a), group_b = w.OpenSimple(b), group_c = w.OpenSimple(c);
  for (uint32_t i = 0; i < 4; ++i) {
    w.Put(a, group_a, World::Keys(kSlotsPerSegment, i + 1));
    w.Run();
  }
  ASSERT_EQ(Populated(w, 0), 4u);
  EXPECT_EQ(w.Put(b, group_b, World::Keys(4)), 4u);
  w.Put(c, group_c, World::Keys(kSlotsPerSegment));
  w.Put(c, group_c, World::Keys(1, 2));
  w.Advance(100'000);
  ASSERT_FALSE(w.listener.segment_revokes.empty());
  for (const auto& [session, segment] : w.listener.segment_revokes) EXPECT_EQ(session, a);
  EXPECT_EQ(w.MatchCount(b, group_b, World::Keys(4)), 4u);
}

TEST(Arena, ADrainWaitsForLeases) {
  World w({.domain_count = 2,
           .segments_max = 4,
           .segments_guaranteed = 2,
           .segments_lent_max = 2,
           .segments_total = 4});
  const SessionId a = w.Open(0), b = w.Open(1);
  const uint32_t group_a = w.OpenSimple(a), group_b = w.OpenSimple(b);
  std::vector<LeaseToken> tokens;
  for (uint32_t i = 0; i < 3; ++i) {
    w.Put(a, group_a, World::Keys(kSlotsPerSegment, i + 1));
    tokens.push_back(w.Acquire(a, group_a, World::Keys(kSlotsPerSegment, i + 1)).reply.token);
    w.Run();
  }
  w.Put(b, group_b, World::Keys(kSlotsPerSegment));
  w.Advance(100'000);
  EXPECT_TRUE(w.listener.segment_revokes.empty());
  for (const LeaseToken& token : tokens) w.Release(a, token);
  w.Advance(100'000);
  ASSERT_EQ(w.listener.segment_revokes.size(), 1u);
  EXPECT_TRUE(w.store->sessions().Unmapped(a, w.listener.segment_revokes[0].second).ok());
  w.Run();
  EXPECT_EQ(Populated(w, 1), 2u);
}

TEST(Arena, APinHoldsNoBorrowedMemory) {
  World w({.domain_count = 2,
           .segments_max = 4,
           .segments_guaranteed = 2,
           .segments_lent_max = 2,
           .segments_total = 4});
  const SessionId a = w.Open(0), b = w.Open(1);
  const uint32_t group_a = w.OpenSimple(a), group_b = w.OpenSimple(b);
  for (uint32_t i = 0; i < 3; ++i) {
    const auto keys = World::Keys(kSlotsPerSegment, i + 1);
    w.Put(a, group_a, keys);
    protocol::PinReply pinned;
    ASSERT_TRUE(w.store->operators().Pin(w.Query(a, group_a, keys), &pinned).ok());
    ASSERT_EQ(pinned.block_count, kSlotsPerSegment);
    w.Run();
  }
  w.Put(b, group_b, World::Keys(kSlotsPerSegment));
  w.Put(b, group_b, World::Keys(1, 2));
  w.Advance(100'000);
  ASSERT_EQ(w.listener.segment_revokes.size(), 1u);
  EXPECT_TRUE(w.store->sessions().Unmapped(a, w.listener.segment_revokes[0].second).ok());
  w.Run();
  EXPECT_EQ(Populated(w, 1), 2u);
  uint32_t left = 0;
  for (uint32_t i = 0; i < 3; ++i) {
    left += w.MatchCount(a, group_a, World::Keys(kSlotsPerSegment, i + 1));
  }
  EXPECT_EQ(left, 2 * kSlotsPerSegment) << "within the guarantee a pin holds";
}

TEST(Arena, WithinItsGuaranteeNothingIsTakenFromADomain) {
  World w({.domain_count = 2, .segments_max = 4, .segments_guaranteed = 1, .segments_total = 2});
  const SessionId a = w.Open(0), b = w.Open(1);
  const uint32_t group_a = w.OpenSimple(a), group_b = w.OpenSimple(b);
  w.Put(a, group_a, World::Keys(kSlotsPerSegment));
  w.Put(b, group_b, World::Keys(3 * kSlotsPerSegment));
  w.Advance(1'000'000);
  EXPECT_TRUE(w.listener.segment_revokes.empty());
  EXPECT_EQ(w.MatchCount(a, group_a, World::Keys(kSlotsPerSegment)), kSlotsPerSegment);
}

// The whole is to have so many from now on.
void Retotal(World& w, uint32_t segments_total) {
  StoreOptions tuned = w.made;
  tuned.segments_total = segments_total;
  w.store->Retune(tuned);
}

TEST(Arena, IsNotShortOfWhatItIsToHaveNoLonger) {
  World w({.segments_max = 2, .segments_total = 2});
  const SessionId s = w.Open();
  w.holds_arena = true;
  w.Put(s, w.OpenSimple(s), World::Keys(1));
  w.Run();
  sim::PlainArena::Work work;
  ASSERT_TRUE(w.arenas[0]->TakeWork(&work)) << "a second one";
  w.store->events().OnSegmentPopulated(0, work.segment, Status(StatusCode::kIo, "", 12));
  EXPECT_NE(w.Stats(0).arena_shortage, "");
  Retotal(w, 1);
  w.Advance(1'100'000);
  EXPECT_FALSE(w.arenas[0]->has_work());
  EXPECT_EQ(w.Stats(0).arena_shortage, "");
  Retotal(w, 2);
  EXPECT_TRUE(w.arenas[0]->has_work());
  EXPECT_EQ(w.Stats(0).arena_shortage, "") << "it has not failed since";
}

// Clients let go of what they are asked for, until nothing more is asked; how many there were.
uint32_t LetGo(World& w) {
  uint32_t count = 0;
  for (bool is_asked = true; is_asked;) {
    w.Advance(100'000);
    const auto asked = std::exchange(w.listener.segment_revokes, {});
    is_asked = !asked.empty();
    count += static_cast<uint32_t>(asked.size());
    for (const auto& [session, segment] : asked) {
      EXPECT_TRUE(w.store->sessions().Unmapped(session, segment).ok());
    }
  }
  return count;
}

TEST(LessMemory, IsTakenBackAndComesAgain) {
  World w({.segments_max = 24});
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  for (uint32_t i = 0; i < 24; ++i) {
    w.Put(s, group, World::Keys(kSlotsPerSegment, i + 1));
    w.Run();
  }
  ASSERT_EQ(Populated(w, 0), 24u);
  Retotal(w, 3);
  EXPECT_EQ(LetGo(w), 21u);
  EXPECT_EQ(Populated(w, 0), 3u);
  EXPECT_EQ(w.Stats().segments_leaving, 0u);
  uint32_t left = 0;
  for (uint32_t i = 0; i < 24; ++i) {
    left += w.MatchCount(s, group, World::Keys(kSlotsPerSegment, i + 1));
  }
  EXPECT_EQ(left, 3 * kSlotsPerSegment);
  w.Put(s, group, World::Keys(kSlotsPerSegment, 100));
  w.Run();
  EXPECT_EQ(Populated(w, 0), 3u) << "new blocks take the place of others";
  Retotal(w, 6);
  for (uint32_t i = 0; i < 4; ++i) {
    w.Put(s, group, World::Keys(kSlotsPerSegment, 200 + i));
    w.Run();
  }
  EXPECT_EQ(Populated(w, 0), 6u);
}

TEST(LessMemory, IsTakenFromWhoHasMoreThanItsGuarantee) {
  World w({.domain_count = 2, .segments_max = 8, .segments_guaranteed = 2, .segments_total = 8});
  const SessionId a = w.Open(0), b = w.Open(1);
  const uint32_t group_a = w.OpenSimple(a), group_b = w.OpenSimple(b);
  for (uint32_t i = 0; i < 6; ++i) {
    w.Put(a, group_a, World::Keys(kSlotsPerSegment, i + 1));
    w.Run();
  }
  w.Put(b, group_b, World::Keys(kSlotsPerSegment));
  w.Run();
  Retotal(w, 4);
  LetGo(w);
  EXPECT_EQ(Populated(w, 0), 2u) << "what the other is guaranteed is kept free";
  EXPECT_EQ(w.MatchCount(b, group_b, World::Keys(kSlotsPerSegment)), kSlotsPerSegment);
  w.Put(b, group_b, World::Keys(2 * kSlotsPerSegment, 2));
  w.Run();
  EXPECT_EQ(Populated(w, 1), 2u);
}

TEST(LessMemory, WaitsForALeaseAndForAStoppedClientAlone) {
  World w({.segments_max = 3});
  const SessionId a = w.Open(), b = w.Open();
  const uint32_t group = w.OpenSimple(a);
  w.OpenSimple(b);
  for (uint32_t i = 0; i < 3; ++i) {
    w.Put(a, group, World::Keys(kSlotsPerSegment, i + 1));
    w.Put(b, group, World::Keys(1, 50 + i));
    w.Run();
  }
  std::vector<LeaseToken> tokens;
  for (uint32_t i = 0; i < 3; ++i) {
    const auto held = w.Acquire(a, group, World::Keys(kSlotsPerSegment, i + 1));
    tokens.push_back(held.reply.token);
  }
  Retotal(w, 1);
  w.Advance(1'000'000);
  EXPECT_EQ(Populated(w, 0), 3u);
  for (const LeaseToken& token : tokens) {
    if (!token.is_zero()) w.Release(a, token);
  }
  w.Advance(100'000);
  const auto asked = std::exchange(w.listener.segment_revokes, {});
  ASSERT_EQ(asked.size(), 4u) << "each of two sessions, for each of two segments";
  for (const auto& [session, segment] : asked) {
    if (session != a) continue;
    EXPECT_TRUE(w.store->sessions().Unmapped(a, segment).ok());
  }
  w.Advance(1'000'000);
  EXPECT_EQ(Populated(w, 0), 3u);
  EXPECT_EQ(w.Stats().segments_leaving, 2u);
  w.store->sessions().HangUp(b);
  w.store->sessions().ProofOfDeath(b);
  w.Run();
  EXPECT_EQ(Populated(w, 0), 1u);
}

// A group whose blocks take a page each, so that a segment holds kPagesPerSegment.
constexpr uint32_t kPagesPerSegment = 512;

uint32_t OpenTiny(World& w, SessionId session) {
  SpaceSpec tiny = TestSpace(0);
  tiny.part_bytes = {4 * kKiB};
  return w.OpenGroup(session, TestGroup("tiny", {tiny}));
}

void PutAll(World& w, SessionId session, uint32_t group, const std::vector<BlockKey>& keys) {
  for (int i = 0; i < 20 && w.MatchCount(session, group, keys) < keys.size(); ++i) {
    w.Put(session, group, keys);
    w.Run();
  }
  ASSERT_EQ(w.MatchCount(session, group, keys), keys.size());
}

TEST(LessMemory, IsTakenFromOneLongChainByItsEnd) {
  World w({.segments_max = 8});
  const SessionId s = w.Open();
  const uint32_t group = OpenTiny(w, s);
  const auto chain = World::Keys(7 * kPagesPerSegment + 400);
  PutAll(w, s, group, chain);
  ASSERT_EQ(Populated(w, 0), 8u);
  Retotal(w, 3);
  EXPECT_EQ(LetGo(w), 5u);
  EXPECT_EQ(Populated(w, 0), 3u);
  EXPECT_GE(w.MatchCount(s, group, chain), 2 * kPagesPerSegment) << "its beginning stays";
}

// Longer than a step may drop, and longer than it may look at.
TEST(LessMemory, WhatHangsOnASegmentIsDroppedFromWhereTheStepBeforeEnded) {
  World w({.segments_max = 8});
  const SessionId s = w.Open();
  const uint32_t group = OpenTiny(w, s);
  const auto others = World::Keys(kPagesPerSegment - 30, 2);
  PutAll(w, s, group, others);
  const auto chain = World::Keys(30 + 6 * kPagesPerSegment + 300);
  // No faster than segments are populated, or the others make room for it.
  for (size_t length = 30; length < chain.size(); length += 100) {
    PutAll(w, s, group, {chain.begin(), chain.begin() + static_cast<ptrdiff_t>(length)});
  }
  PutAll(w, s, group, chain);
  ASSERT_EQ(Populated(w, 0), 8u);
  ASSERT_EQ(w.Evict(w.Query(s, group, others)).block_count, others.size())
      << "the segment that the beginning lies in is the emptiest now";
  Retotal(w, 7);
  w.Advance(500'000);
  EXPECT_EQ(LetGo(w), 1u) << "before another segment would go instead";
  EXPECT_EQ(w.MatchCount(s, group, chain), 0u);
}

// A segment in which a beginning lies that all share would take all along.
TEST(LessMemory, WhatAllShareStaysAsLongAsAnythingElseDoes) {
  World w({.segments_max = 6});
  const SessionId s = w.Open();
  const uint32_t group = OpenTiny(w, s);
  const auto shared = World::Keys(10);
  PutAll(w, s, group, shared);
  uint32_t before = 0, after = 0;
  std::vector<std::vector<BlockKey>> chains;
  for (uint64_t i = 0; i < 60; ++i) {
    chains.push_back(shared);
    const auto own = World::Keys(50, 2 + i);
    chains.back().insert(chains.back().end(), own.begin(), own.end());
    PutAll(w, s, group, chains.back());
  }
  ASSERT_EQ(Populated(w, 0), 6u);
  for (const auto& chain : chains) before += w.MatchCount(s, group, chain);
  Retotal(w, 3);
  LetGo(w);
  ASSERT_EQ(Populated(w, 0), 3u);
  for (const auto& chain : chains) after += w.MatchCount(s, group, chain);
  EXPECT_EQ(before, 60 * 60u);
  EXPECT_GT(after, before / 3);
}

TEST(LessMemory, WhatIsHeldKeepsNothingElseInItsSegment) {
  World w({.segments_max = 2});
  const SessionId s = w.Open();
  const uint32_t group = OpenTiny(w, s);
  constexpr uint32_t kHeldCount = 200;
  const uint32_t rest_count = kPagesPerSegment - kHeldCount;
  for (const uint64_t i : {0, 1}) {
    PutAll(w, s, group, World::Keys(kHeldCount, 1 + i));
    PutAll(w, s, group, World::Keys(rest_count, 11 + i));
    w.Acquire(s, group, World::Keys(kHeldCount, 1 + i));
  }
  ASSERT_EQ(Populated(w, 0), 2u);
  Retotal(w, 1);
  w.Advance(100'000);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(rest_count, 11)) +
                w.MatchCount(s, group, World::Keys(rest_count, 12)),
            rest_count)
      << "of one segment all goes that may, and of the other nothing";
}

TEST(LessMemory, AnotherSegmentGoesWhereOneIsHeld) {
  World w({.segments_max = 4});
  const SessionId s = w.Open();
  const uint32_t group = OpenTiny(w, s);
  for (uint64_t i = 0; i < 3; ++i) PutAll(w, s, group, World::Keys(kPagesPerSegment, 1 + i));
  const auto held = World::Keys(8, 9);
  PutAll(w, s, group, held);
  const AcquireResult lease = w.Acquire(s, group, held);
  ASSERT_EQ(Populated(w, 0), 4u);
  Retotal(w, 1);
  LetGo(w);
  EXPECT_EQ(Populated(w, 0), 2u) << "the emptiest is held";
  w.Advance(1'100'000);
  LetGo(w);
  EXPECT_EQ(Populated(w, 0), 1u);
  EXPECT_EQ(w.MatchCount(s, group, held), held.size());
  EXPECT_EQ(w.Stats().segments_leaving, 0u);
  // The one that was given up serves.
  EXPECT_EQ(w.Put(s, group, World::Keys(16, 20)), 16u);
  w.Release(s, lease.reply.token);
}

TEST(Arena, AThinlyUsedExtentGivesWayToSlotsOfAnotherSize) {
  World w({.segments_max = 2});
  const SessionId s = w.Open();
  const uint32_t small = w.OpenSimple(s);
  w.Put(s, small, World::Keys(kSlotsPerSegment, 1));
  w.Run();
  w.Put(s, small, World::Keys(kSlotsPerSegment, 2));
  w.Run();
  SpaceSpec big = TestSpace(0);
  big.part_bytes = {1 * kMiB};
  const uint32_t group = w.OpenGroup(s, TestGroup("big", {big}));
  EXPECT_EQ(w.Put(s, group, World::Keys(2, 3)), 2u);
  // One extent of small slots had to go, not both.
  EXPECT_EQ(w.MatchCount(s, small, World::Keys(kSlotsPerSegment, 1)) +
                w.MatchCount(s, small, World::Keys(kSlotsPerSegment, 2)),
            kSlotsPerSegment);
}

// ---- priorities of borrowers ----

// Three domains with a segment each, and three more that nobody is guaranteed.
class Priorities : public ::testing::Test {
 protected:
  void Rank(std::vector<uint32_t> priorities) {
    StoreOptions tuned = w.made;
    for (size_t i = 0; i < priorities.size(); ++i) {
      tuned.domains[i].borrow_priority = priorities[i];
    }
    w.store->Retune(tuned);
    w.Run();
  }
  void Fill(SessionId session, uint32_t group, uint32_t segment_count) {
    for (uint32_t i = 0; i < segment_count; ++i) {
      w.Put(session, group, World::Keys(kSlotsPerSegment, ++chain_));
      w.Run();
    }
  }
  void LetAllGo() {
    for (const auto& [session, segment] : std::exchange(w.listener.segment_revokes, {})) {
      EXPECT_TRUE(w.store->sessions().Unmapped(session, segment).ok());
      w.Run();
    }
  }

  World w{{.domain_count = 3, .segments_max = 6, .segments_guaranteed = 1, .segments_total = 6}};
  uint64_t chain_ = 0;
};

TEST_F(Priorities, TheLowestOfTwoBorrowersGivesFirst) {
  const SessionId a = w.Open(0), b = w.Open(1), c = w.Open(2);
  const uint32_t group_a = w.OpenSimple(a), group_b = w.OpenSimple(b), group_c = w.OpenSimple(c);
  StoreOptions tuned = w.made;
  tuned.domains[0].segments_guaranteed = 3;
  tuned.domains[1].segments_guaranteed = 2;
  w.store->Retune(tuned);
  w.Run();
  Fill(a, group_a, 3);
  Fill(b, group_b, 2);
  Fill(c, group_c, 1);
  ASSERT_EQ(Populated(w, 0), 3u);
  ASSERT_EQ(Populated(w, 1), 2u);
  StoreOptions less = w.made;  // each is guaranteed one: the first has borrowed more
  less.domains[1].borrow_priority = 20;
  less.domains[0].borrow_priority = less.domains[2].borrow_priority = 50;
  less.segments_total = 5;
  w.store->Retune(less);
  w.Run();
  LetAllGo();
  EXPECT_EQ(Populated(w, 0), 3u);
  EXPECT_EQ(Populated(w, 1), 1u);
}

TEST_F(Priorities, WhoIsShortHasALowerOneGive) {
  const SessionId a = w.Open(0), b = w.Open(1);
  const uint32_t group_a = w.OpenSimple(a), group_b = w.OpenSimple(b);
  Fill(a, group_a, 5);
  ASSERT_EQ(Populated(w, 0), 4u) << "all but what the others are guaranteed";
  Fill(b, group_b, 2);
  EXPECT_TRUE(w.listener.segment_revokes.empty()) << "nobody ranks below it";
  Rank({50, 60, 50});
  Fill(b, group_b, 2);
  ASSERT_EQ(w.listener.segment_revokes.size(), 1u);
  LetAllGo();
  EXPECT_EQ(Populated(w, 1), 2u);
  EXPECT_EQ(Populated(w, 0), 3u);
}

}  // namespace
}  // namespace terrace

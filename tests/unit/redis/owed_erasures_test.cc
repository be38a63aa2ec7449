// What was erased here and may be on a server yet.
#include "tiers/redis/owed_erasures.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace terrace {
namespace {

using Scope = OwedErasures::Scope;

constexpr uint64_t kLifeUs = 3600 * kUsPerSecond;

RedisBlockName NameOf(uint64_t key, uint64_t group = 1, uint64_t space = 1) {
  return {.group = {group, 0},
          .space = {space, 0},
          .key = {key, key},
          .run = {key / 64 * 64 + 1'000'000, 0},
          .position = static_cast<uint32_t>(key % 64 + 64)};
}

OwedErasures::Times At(uint64_t now_us) {
  return {.now_us = now_us,
          .until_us = now_us + kLifeUs,
          .until_s = 1'000'000,
          .until_s_untold = 9'000'000};
}

// A server that works, long enough for whatever a predecessor sent.
struct Settled {
  Settled() { owed.NoteReady(0); }
  std::vector<RedisBlockName> Take(uint64_t now_us, size_t names_max = 100) {
    return owed.TakeDue(now_us, names_max, [](const RedisBlockName&) { return true; });
  }
  // Every question is answered at once, until there is none.
  void EraseAll(uint64_t now_us) {
    while (true) {
      const std::vector<RedisBlockName> names = Take(now_us);
      if (names.empty()) return;
      for (const RedisBlockName& name : names) owed.EndAsked(name, true, now_us);
    }
  }

  OwedErasures owed;
  uint64_t now_us = 10 * kUsPerSecond;
};

TEST(OwedErasures, ABlockIsOwedUntilTheServerHasErasedIt) {
  Settled s;
  EXPECT_FALSE(s.owed.IsOwed(NameOf(1)));
  ASSERT_TRUE(s.owed.Add(NameOf(1), Scope::kName, At(s.now_us)));
  EXPECT_TRUE(s.owed.IsOwed(NameOf(1)));
  EXPECT_TRUE(s.owed.IsOwed(NameOf(1, 1, 2))) << "its other members, too";
  EXPECT_FALSE(s.owed.IsOwed(NameOf(2)));
  EXPECT_FALSE(s.owed.IsOwed(NameOf(1, 2))) << "of another group";
  ASSERT_EQ(s.Take(s.now_us), std::vector{NameOf(1)});
  EXPECT_TRUE(s.Take(s.now_us).empty()) << "it is asked once at a time";
  s.owed.EndAsked(NameOf(1), false, s.now_us);
  EXPECT_TRUE(s.owed.IsOwed(NameOf(1)));
  EXPECT_TRUE(s.Take(s.now_us).empty()) << "not again at once";
  ASSERT_EQ(s.Take(s.now_us + OwedErasures::kRetryUs).size(), 1u);
  EXPECT_EQ(s.owed.names_owed(), 1u);
  s.owed.EndAsked(NameOf(1), true, s.now_us);
  EXPECT_FALSE(s.owed.IsOwed(NameOf(1)));
  EXPECT_EQ(s.owed.names_owed(), 0u);
}

TEST(OwedErasures, OneQuestionIsOfOneGroupAndOfWhatMayBeAsked) {
  Settled s;
  for (uint64_t key = 1; key <= 6; ++key) {
    ASSERT_TRUE(s.owed.Add(NameOf(key, key % 2), Scope::kName, At(s.now_us)));
  }
  const auto is_not_five = [](const RedisBlockName& name) { return name.key.low != 5; };
  EXPECT_EQ(s.owed.TakeDue(s.now_us, 100, is_not_five), (std::vector{NameOf(1, 1), NameOf(3, 1)}));
  EXPECT_EQ(s.Take(s.now_us, 2).size(), 2u);
  s.EraseAll(s.now_us);
  EXPECT_EQ(s.owed.names_owed(), 4u) << "those that are being asked";
}

// A store whose end is not known may come behind the first answer.
TEST(OwedErasures, WhatMayComeLateIsErasedTwice) {
  OwedErasures fresh;
  Settled s;
  s.owed.NoteLost(NameOf(1));
  ASSERT_TRUE(s.owed.Add(NameOf(1), Scope::kName, At(s.now_us)));
  ASSERT_TRUE(s.owed.Add(NameOf(2), Scope::kName, At(s.now_us)));
  ASSERT_TRUE(s.owed.Add(NameOf(3), Scope::kName, At(s.now_us)));
  s.owed.NoteLost(NameOf(3));  // it was under way
  s.EraseAll(s.now_us);
  EXPECT_TRUE(s.owed.IsOwed(NameOf(1)));
  EXPECT_FALSE(s.owed.IsOwed(NameOf(2)));
  EXPECT_TRUE(s.owed.IsOwed(NameOf(3)));
  s.EraseAll(s.now_us + OwedErasures::kSettleUs - 1);
  EXPECT_TRUE(s.owed.IsOwed(NameOf(1)));
  s.EraseAll(s.now_us + OwedErasures::kSettleUs);
  EXPECT_FALSE(s.owed.IsOwed(NameOf(1)));
  EXPECT_FALSE(s.owed.IsOwed(NameOf(3)));
  // Of a predecessor nobody knows what was under way.
  ASSERT_TRUE(fresh.Add(NameOf(1), Scope::kName, At(5)));
  fresh.NoteReady(10);
  const auto any = [](const RedisBlockName&) { return true; };
  fresh.EndAsked(fresh.TakeDue(20, 1, any).at(0), true, 20);
  EXPECT_TRUE(fresh.IsOwed(NameOf(1)));
  fresh.EndAsked(fresh.TakeDue(20 + OwedErasures::kSettleUs, 1, any).at(0), true, 20);
  EXPECT_FALSE(fresh.IsOwed(NameOf(1)));
}

TEST(OwedErasures, OnlyTheLastLostStoresAreRemembered) {
  Settled s;
  for (uint64_t key = 0; key <= OwedErasures::kLostMax; ++key) s.owed.NoteLost(NameOf(key));
  for (const uint64_t key : {uint64_t{0}, uint64_t{1}}) {
    ASSERT_TRUE(s.owed.Add(NameOf(key), Scope::kName, At(s.now_us)));
  }
  s.EraseAll(s.now_us);
  EXPECT_FALSE(s.owed.IsOwed(NameOf(0)));
  EXPECT_TRUE(s.owed.IsOwed(NameOf(1)));
}

// The server may have done it before another host stored the block, and its answer be on the way.
TEST(OwedErasures, WhatIsErasedAgainWhileItIsAskedIsAskedAgain) {
  for (const Scope scope : {Scope::kName, Scope::kKey}) {
    Settled s;
    ASSERT_TRUE(s.owed.Add(NameOf(1), scope, At(s.now_us)));
    const std::vector<RedisBlockName> asked = s.Take(s.now_us);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(s.owed.Add(NameOf(1), scope, At(s.now_us)));
    for (const RedisBlockName& name : asked) s.owed.EndAsked(name, true, s.now_us);
    EXPECT_TRUE(s.owed.IsOwed(NameOf(1)));
    ASSERT_EQ(s.Take(s.now_us), asked) << "at once";
    for (const RedisBlockName& name : asked) s.owed.EndAsked(name, true, s.now_us);
    EXPECT_FALSE(s.owed.IsOwed(NameOf(1)));
    EXPECT_TRUE(s.Take(s.now_us).empty()) << "once, however often it was erased";
  }
}

TEST(OwedErasures, ABlockIsOneWhateverNamesItHas) {
  Settled s;
  ASSERT_TRUE(s.owed.Add(NameOf(1), Scope::kKey, At(s.now_us)));
  ASSERT_TRUE(s.owed.Add(NameOf(2), Scope::kName, At(s.now_us)));
  ASSERT_TRUE(s.owed.Add(NameOf(2, 1, 2), Scope::kName, At(s.now_us)));
  EXPECT_EQ(s.owed.names_owed(), 4u);
  EXPECT_EQ(s.owed.blocks_owed(), 2u);
  s.EraseAll(s.now_us);
  EXPECT_EQ(s.owed.blocks_owed(), 0u) << "of one that is remembered by its key, too";
}

TEST(OwedErasures, WhatIsErasedAgainIsAskedNoSoonerForThatWhereItMayComeLate) {
  Settled s;
  s.owed.NoteLost(NameOf(1));
  ASSERT_TRUE(s.owed.Add(NameOf(1), Scope::kName, At(s.now_us)));
  s.EraseAll(s.now_us);
  ASSERT_TRUE(s.owed.Add(NameOf(1), Scope::kName, At(s.now_us)));
  EXPECT_TRUE(s.Take(s.now_us).empty());
  s.EraseAll(s.now_us + OwedErasures::kSettleUs);
  EXPECT_FALSE(s.owed.IsOwed(NameOf(1)));
}

TEST(OwedErasures, ByKeyItIsOwedUnderEveryNameUntilItIsErasedUnderThat) {
  Settled s;
  const RedisBlockName name = NameOf(5);
  RedisBlockName guess = name, flat = name;
  guess.run = {777, 7};
  guess.position = 3;
  flat.run = flat.key;
  flat.position = 0;
  ASSERT_TRUE(s.owed.Add(guess, Scope::kKey, At(s.now_us)));
  EXPECT_EQ(s.Take(s.now_us), (std::vector{guess, flat})) << "what is in no chain is its own run";
  s.owed.EndAsked(guess, true, s.now_us);
  s.owed.EndAsked(flat, true, s.now_us);
  EXPECT_FALSE(s.owed.IsOwed(guess));
  EXPECT_TRUE(s.owed.IsOwed(name)) << "nobody has named it yet";
  s.owed.Name(name, s.now_us);
  s.owed.Name(name, s.now_us);
  ASSERT_EQ(s.Take(s.now_us), std::vector{name});
  s.owed.EndAsked(name, true, s.now_us);
  EXPECT_FALSE(s.owed.IsOwed(name));
  EXPECT_TRUE(s.owed.IsOwed(NameOf(5, 1, 2)));
  // Erased again it is owed again.
  ASSERT_TRUE(s.owed.Add(name, Scope::kName, At(s.now_us)));
  EXPECT_TRUE(s.owed.IsOwed(name));
  s.owed.Age(s.now_us + kLifeUs - 1, 0);
  EXPECT_TRUE(s.owed.IsOwed(NameOf(5, 1, 2)));
  s.owed.Age(s.now_us + kLifeUs, 0);
  EXPECT_TRUE(s.owed.IsOwed(NameOf(5, 1, 2))) << "a name of it is not told yet";
  s.EraseAll(s.now_us);
  s.owed.Age(s.now_us + kLifeUs, 0);
  EXPECT_FALSE(s.owed.IsOwed(NameOf(5, 1, 2))) << "by now no server has anything of before";
  EXPECT_EQ(s.owed.names_owed(), 0u);
}

// Hosts need not agree how long a block may stay on the server.
TEST(OwedErasures, WhatTheServerWasNotToldOfIsOwedHoweverLongItTakes) {
  Settled s;
  ASSERT_TRUE(s.owed.Add(NameOf(1), Scope::kName, At(s.now_us)));
  s.owed.Age(s.now_us + 100 * kLifeUs, 0);
  EXPECT_TRUE(s.owed.IsOwed(NameOf(1)));
  ASSERT_EQ(s.owed.TakeKept(1).size(), 1u);
  EXPECT_EQ(s.owed.TakeKept(2).front().until_s, 9'000'000u);
  s.EraseAll(s.now_us + 100 * kLifeUs);
  EXPECT_FALSE(s.owed.IsOwed(NameOf(1)));
}

TEST(OwedErasures, WhatWasStoredAnewIsOwedNoMore) {
  Settled s;
  ASSERT_TRUE(s.owed.Add(NameOf(1), Scope::kKey, At(s.now_us)));
  s.owed.NoteStored(NameOf(1));
  EXPECT_TRUE(s.owed.IsOwed(NameOf(1))) << "that may be what was there before";
  EXPECT_EQ(s.owed.TakeKept(1).front().until_s, 9'000'000u);
  s.EraseAll(s.now_us);
  EXPECT_TRUE(s.owed.is_changed());
  EXPECT_EQ(s.owed.TakeKept(2).front().until_s, 1'000'000u) << "told: not for so long";
  s.owed.NoteStored(NameOf(1, 1, 2));
  EXPECT_EQ(s.owed.TakeKept(3).size(), 1u) << "nobody has erased it under that name";
  s.owed.NoteStored(NameOf(1));
  EXPECT_TRUE(s.owed.is_changed());
  EXPECT_TRUE(s.owed.TakeKept(4).empty()) << "a successor would erase what is new";
}

// ---- what is kept ----

TEST(OwedErasures, AnErasureIsSafeWhenTheServerHasDoneItOrASuccessorKnows) {
  Settled s;
  EXPECT_TRUE(s.owed.AreSafe(s.owed.begun()));
  ASSERT_TRUE(s.owed.Add(NameOf(1), Scope::kName, At(s.now_us)));
  const uint64_t first = s.owed.begun();
  ASSERT_TRUE(s.owed.Add(NameOf(2), Scope::kName, At(s.now_us)));
  EXPECT_TRUE(s.owed.AreSafe(first - 1));
  EXPECT_FALSE(s.owed.AreSafe(first));
  EXPECT_FALSE(s.owed.is_changed()) << "the server may do it in a moment";
  ASSERT_EQ(s.Take(s.now_us, 1), std::vector{NameOf(1)});
  s.owed.EndAsked(NameOf(1), true, s.now_us);
  EXPECT_TRUE(s.owed.AreSafe(first));
  EXPECT_FALSE(s.owed.AreSafe(s.owed.begun()));
  s.owed.Age(s.now_us + 1000, 1001);
  EXPECT_FALSE(s.owed.is_changed());
  s.owed.Age(s.now_us + 1001, 1001);
  EXPECT_TRUE(s.owed.is_changed());
  EXPECT_EQ(s.owed.TakeKept(7), (std::vector<KeptErasure>{{{1, 0}, {2, 2}, 9'000'000}}));
  EXPECT_FALSE(s.owed.is_changed());
  EXPECT_FALSE(s.owed.AreSafe(s.owed.begun()));
  s.owed.OnKept(6);
  EXPECT_FALSE(s.owed.AreSafe(s.owed.begun()));
  s.owed.OnKept(7);
  EXPECT_TRUE(s.owed.AreSafe(s.owed.begun()));
  // Erased again: it is kept already.
  ASSERT_TRUE(s.owed.Add(NameOf(2), Scope::kName, At(s.now_us)));
  EXPECT_TRUE(s.owed.AreSafe(s.owed.begun()));
  s.EraseAll(s.now_us);
  EXPECT_TRUE(s.owed.is_changed()) << "a successor need not know it any more";
  EXPECT_TRUE(s.owed.TakeKept(8).empty());
}

TEST(OwedErasures, WhoErasesAgainWaitsForWhatWasErasedBefore) {
  Settled s;
  ASSERT_TRUE(s.owed.Add(NameOf(1), Scope::kName, At(s.now_us)));
  const uint64_t first = s.owed.begun();
  ASSERT_TRUE(s.owed.Add(NameOf(1), Scope::kName, At(s.now_us)));
  EXPECT_FALSE(s.owed.AreSafe(first));
  EXPECT_FALSE(s.owed.AreSafe(s.owed.begun()));
  s.EraseAll(s.now_us);
  EXPECT_TRUE(s.owed.AreSafe(s.owed.begun()));
}

TEST(OwedErasures, WhatFailsAndWhatIsErasedByKeyIsKept) {
  Settled s;
  ASSERT_TRUE(s.owed.Add(NameOf(1), Scope::kKey, At(s.now_us)));
  EXPECT_TRUE(s.owed.is_changed());
  EXPECT_EQ(s.owed.TakeKept(1).size(), 1u);
  ASSERT_TRUE(s.owed.Add(NameOf(2), Scope::kName, At(s.now_us)));
  for (const RedisBlockName& name : s.Take(s.now_us)) s.owed.EndAsked(name, false, s.now_us);
  EXPECT_TRUE(s.owed.is_changed());
  EXPECT_EQ(s.owed.TakeKept(2).size(), 2u);
}

TEST(OwedErasures, WhatAPredecessorKeptIsOwedByKey) {
  Settled s;
  s.owed.Restore({{1, 0}, {5, 5}, 1'000'000}, At(s.now_us));
  EXPECT_TRUE(s.owed.IsOwed(NameOf(5)));
  EXPECT_TRUE(s.owed.AreSafe(s.owed.begun()));
  EXPECT_EQ(s.owed.TakeKept(1).size(), 1u) << "for the next one, too";
  s.owed.Name(NameOf(5), s.now_us);
  s.EraseAll(s.now_us);
  EXPECT_FALSE(s.owed.IsOwed(NameOf(5)));
}

// ---- in any group ----

TEST(OwedErasures, InAnyGroupItIsOwedByKeyInEachThatItIsAskedForIn) {
  Settled s;
  const std::vector<BlockKey> keys{{5, 5}, {6, 6}, {5, 5}};
  EXPECT_EQ(s.owed.CountNewInAnyGroup(keys), 2u) << "a key that is named twice is one";
  ASSERT_TRUE(s.owed.AddInAnyGroup(keys[0], At(s.now_us)));
  EXPECT_EQ(s.owed.CountNewInAnyGroup(keys), 1u);
  EXPECT_EQ(s.owed.names_owed(), 0u) << "no server can be told of a group that nobody names";
  EXPECT_FALSE(s.owed.AreSafe(s.owed.begun()));
  ASSERT_EQ(s.owed.TakeKept(1).size(), 1u);
  s.owed.OnKept(1);
  EXPECT_TRUE(s.owed.AreSafe(s.owed.begun()));
  for (const uint64_t group : {1, 2}) {
    EXPECT_TRUE(s.owed.IsOwed(NameOf(5, group)));
    EXPECT_FALSE(s.owed.IsOwed(NameOf(6, group)));
    s.owed.Name(NameOf(5, group), s.now_us);
    EXPECT_EQ(s.Take(s.now_us).size(), 1u);
    s.owed.EndAsked(NameOf(5, group), true, s.now_us);
    EXPECT_FALSE(s.owed.IsOwed(NameOf(5, group)));
    EXPECT_TRUE(s.owed.IsOwed(NameOf(5, group, 2))) << "its other members are not erased yet";
    s.owed.NoteStored(NameOf(5, group));
    EXPECT_FALSE(s.owed.IsOwed(NameOf(5, group))) << "what is new is not erased again";
    EXPECT_FALSE(s.owed.IsOwed(NameOf(5, group, 2)));
    EXPECT_EQ(s.owed.names_owed(), 0u);
  }
  EXPECT_TRUE(s.owed.IsOwed(NameOf(5, 3)));
  s.owed.Age(s.now_us + kLifeUs, 0);
  EXPECT_FALSE(s.owed.IsOwed(NameOf(5, 3)));
  EXPECT_FALSE(s.owed.IsOwed(NameOf(5, 1, 2)));
  EXPECT_EQ(s.owed.in_any_group_count(), 0u);
  EXPECT_TRUE(s.owed.TakeKept(2).empty());
}

TEST(OwedErasures, WhatWasStoredAnewSinceItWasErasedInAnyGroupASuccessorLeavesAlone) {
  Settled s;
  ASSERT_TRUE(s.owed.AddInAnyGroup({5, 5}, At(s.now_us)));
  s.owed.Name(NameOf(5, 1), s.now_us);
  s.EraseAll(s.now_us);
  s.owed.NoteStored(NameOf(5, 1));
  EXPECT_TRUE(s.owed.is_changed());
  const std::vector<KeptErasure> kept = s.owed.TakeKept(1);
  ASSERT_EQ(kept.size(), 2u);
  Settled successor;
  for (const bool is_of_any : {true, false}) {
    for (const KeptErasure& one : kept) {
      if (one.group.is_zero() == is_of_any) successor.owed.Restore(one, At(s.now_us));
    }
  }
  EXPECT_FALSE(successor.owed.IsOwed(NameOf(5, 1)));
  successor.owed.Name(NameOf(5, 1), s.now_us);
  EXPECT_TRUE(successor.Take(s.now_us).empty());
  EXPECT_TRUE(successor.owed.IsOwed(NameOf(5, 2)));
  ASSERT_TRUE(successor.owed.AddInAnyGroup({5, 5}, At(s.now_us)));
  EXPECT_TRUE(successor.owed.IsOwed(NameOf(5, 1))) << "erased once more";
  successor.owed.Name(NameOf(5, 1), s.now_us);
  EXPECT_EQ(successor.Take(s.now_us).size(), 1u);
  // Without what it is about it says nothing.
  OwedErasures alone;
  alone.Restore({{1, 0}, {5, 5}, 0}, At(s.now_us));
  EXPECT_TRUE(alone.TakeKept(1).empty());
}

TEST(OwedErasures, EverythingOfGroupsThatNobodyHasNamedIsOneMore) {
  Settled s;
  EXPECT_FALSE(s.owed.has_all_in_any_group());
  for (uint64_t key = 0; key < OwedErasures::kInAnyGroupMax; ++key) {
    ASSERT_TRUE(s.owed.AddInAnyGroup({key, 1}, At(s.now_us)));
  }
  ASSERT_TRUE(s.owed.AddInAnyGroup({}, At(s.now_us)));
  EXPECT_TRUE(s.owed.has_all_in_any_group());
  Settled successor;
  for (const KeptErasure& one : s.owed.TakeKept(1)) successor.owed.Restore(one, At(s.now_us));
  EXPECT_TRUE(successor.owed.has_all_in_any_group());
  successor.owed.Age(s.now_us + kLifeUs, 0);
  EXPECT_FALSE(successor.owed.has_all_in_any_group());
}

// Who makes up names of what is owed fills the room for these alone.
TEST(OwedErasures, NamesThatAreMadeUpLeaveRoomForErasures) {
  Settled s;
  constexpr uint64_t kKeys = 2 * OwedErasures::kNamesAskedMax / OwedErasures::kNamesOfBlockMax;
  for (uint64_t key = 1; key <= kKeys; ++key) {
    ASSERT_TRUE(s.owed.Add(NameOf(key), Scope::kKey, At(s.now_us)));
    for (uint64_t space = 2; space < OwedErasures::kNamesOfBlockMax + 10; ++space) {
      s.owed.Name(NameOf(key, 1, space), s.now_us);
    }
    EXPECT_LE(s.owed.names_owed(), key * OwedErasures::kNamesOfBlockMax);
  }
  EXPECT_LE(s.owed.names_owed(), OwedErasures::kNamesAskedMax + 2 * kKeys);
  EXPECT_TRUE(s.owed.IsOwed(NameOf(1, 1, 1'000'000))) << "out of reach";
  EXPECT_TRUE(s.owed.Add(NameOf(kKeys + 1), Scope::kName, At(s.now_us)));
}

TEST(OwedErasures, InAnyGroupAgainItIsOwedAgain) {
  Settled s;
  ASSERT_TRUE(s.owed.Add(NameOf(5, 1), Scope::kKey, At(s.now_us)));
  s.EraseAll(s.now_us);
  EXPECT_FALSE(s.owed.IsOwed(NameOf(5, 1)));
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_TRUE(s.owed.AddInAnyGroup({5, 5}, At(s.now_us)));
    EXPECT_TRUE(s.owed.IsOwed(NameOf(5, 1))) << turn;
    s.owed.Name(NameOf(5, 1), s.now_us);
    EXPECT_TRUE(s.owed.IsOwed(NameOf(5, 1))) << turn;
    s.EraseAll(s.now_us);
    EXPECT_FALSE(s.owed.IsOwed(NameOf(5, 1))) << turn;
  }
}

TEST(OwedErasures, AGroupThatIsForgottenIsOwedWhatIsErasedInAnyOne) {
  Settled s;
  for (uint64_t key = 1; key <= 3; ++key) {
    ASSERT_TRUE(s.owed.AddInAnyGroup({key, key}, At(s.now_us)));
  }
  ASSERT_TRUE(s.owed.Add(NameOf(9, 2), Scope::kName, At(s.now_us)));
  EXPECT_EQ(s.owed.LargestGroup(), (GroupId{2, 0})) << "only a group can be forgotten";
  s.owed.ReplaceGroup({2, 0}, 1);
  EXPECT_TRUE(s.owed.IsOwed(NameOf(1, 2)));
  EXPECT_EQ(s.owed.in_any_group_count(), 3u);
}

TEST(OwedErasures, WhatAPredecessorKeptOfAnyGroupIsOwedInEach) {
  Settled s;
  s.owed.Restore({{1, 0}, {5, 5}, 1'000'000}, At(s.now_us));
  s.owed.Restore({{0, 0}, {5, 5}, 1'000'000}, At(s.now_us));
  s.owed.Restore({{0, 0}, {5, 5}, 1'000'000}, At(s.now_us));
  EXPECT_EQ(s.owed.in_any_group_count(), 1u);
  for (const uint64_t group : {1, 2}) {
    EXPECT_TRUE(s.owed.IsOwed(NameOf(5, group)));
    s.owed.Name(NameOf(5, group), s.now_us);
    s.EraseAll(s.now_us);
    EXPECT_FALSE(s.owed.IsOwed(NameOf(5, group)));
  }
  EXPECT_EQ(s.owed.TakeKept(1).size(), 3u) << "of any group, and of both";
  for (uint64_t key = 0; key < OwedErasures::kBlocksMax; ++key) {
    s.owed.Restore({{0, 0}, {key, 1}, 1'000'000}, At(s.now_us));
  }
  EXPECT_EQ(s.owed.in_any_group_count(), OwedErasures::kInAnyGroupMax);
}

TEST(OwedErasures, ByKeyAgainItIsOwedUnderEveryNameItHasHad) {
  Settled s;
  RedisBlockName guess = NameOf(5);
  guess.run = {777, 7};
  ASSERT_TRUE(s.owed.Add(NameOf(5), Scope::kKey, At(s.now_us)));
  s.EraseAll(s.now_us);
  ASSERT_TRUE(s.owed.Add(guess, Scope::kKey, At(s.now_us)));
  EXPECT_TRUE(s.owed.IsOwed(NameOf(5))) << "somebody may have stored it anew in the meantime";
  s.EraseAll(s.now_us);
  EXPECT_FALSE(s.owed.IsOwed(NameOf(5)));
}

// ---- groups ----

TEST(OwedErasures, AGroupThatIsForgottenOwesNothing) {
  Settled s;
  for (uint64_t key = 1; key <= 3; ++key) {
    ASSERT_TRUE(s.owed.Add(NameOf(key, 1), Scope::kName, At(s.now_us)));
    ASSERT_TRUE(s.owed.Add(NameOf(key, 2), Scope::kName, At(s.now_us)));
  }
  ASSERT_TRUE(s.owed.Add(NameOf(4, 2), Scope::kName, At(s.now_us)));
  EXPECT_EQ(s.owed.LargestGroup(), (GroupId{2, 0}));
  s.owed.ReplaceGroup({2, 0}, 9);
  EXPECT_FALSE(s.owed.IsOwed(NameOf(1, 2)));
  EXPECT_TRUE(s.owed.IsOwed(NameOf(1, 1)));
  EXPECT_EQ(s.owed.names_owed(), 3u);
  s.EraseAll(s.now_us);
  EXPECT_FALSE(s.owed.AreSafe(s.owed.begun())) << "a successor does not know of the group yet";
  s.owed.OnKept(9);
  EXPECT_TRUE(s.owed.AreSafe(s.owed.begun()));
  EXPECT_EQ(s.owed.names_owed(), 0u);
}

TEST(OwedErasures, ThereIsRoomForSoManyAndMoreIsSaid) {
  Settled s;
  uint64_t key = 0;
  while (s.owed.Add(NameOf(++key), Scope::kName, At(s.now_us))) {
  }
  EXPECT_EQ(key, OwedErasures::kBlocksMax + 1);
  EXPECT_TRUE(s.owed.Add(NameOf(1), Scope::kName, At(s.now_us))) << "it is there already";
  s.EraseAll(s.now_us);
  EXPECT_EQ(s.owed.names_owed(), 0u);
  EXPECT_TRUE(s.owed.Add(NameOf(key), Scope::kName, At(s.now_us)));
  // Of one block, under many names.
  for (uint64_t space = 2; space < 2 * OwedErasures::kNamesMax; ++space) {
    s.owed.Name(NameOf(key, 1, space), s.now_us);
    if (s.owed.names_owed() == 100) break;
  }
  EXPECT_EQ(s.owed.names_owed(), 100u);
}

// What a successor would read says that nothing of it is owed.
TEST(OwedErasures, WhatWasStoredAnewAndIsErasedAgainIsNotSafeForWhatWasKeptOfBefore) {
  for (const Scope scope : {Scope::kName, Scope::kKey}) {
    Settled s;
    ASSERT_TRUE(s.owed.AddInAnyGroup(NameOf(5).key, At(s.now_us)));
    s.owed.Name(NameOf(5), s.now_us);
    s.EraseAll(s.now_us);
    s.owed.NoteStored(NameOf(5));
    (void)s.owed.TakeKept(1);
    s.owed.OnKept(1);
    ASSERT_FALSE(s.owed.IsOwed(NameOf(5)));
    ASSERT_TRUE(s.owed.Add(NameOf(5), scope, At(s.now_us)));
    EXPECT_FALSE(s.owed.AreSafe(s.owed.begun()));
    s.EraseAll(s.now_us);
    EXPECT_FALSE(s.owed.AreSafe(s.owed.begun())) << "a successor would believe other names of it";
    const std::vector<KeptErasure> kept = s.owed.TakeKept(2);
    s.owed.OnKept(2);
    EXPECT_TRUE(s.owed.AreSafe(s.owed.begun()));
    EXPECT_TRUE(std::ranges::all_of(kept, [](const auto& one) { return one.until_s != 0; }));
  }
}

}  // namespace
}  // namespace terrace

// What operators rule over what is kept: evicting by filters, pins that have a name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "store_fixture.h"
#include "terrace/protocol_operator.h"

namespace terrace {
namespace {

using World = StoreWorld;

class Rule : public ::testing::Test {
 protected:
  explicit Rule(const WorldOptions& options) : w(options) {}
  Rule() : Rule({.segments_max = 4}) {}

  protocol::EvictReply EvictWhere(const protocol::EvictWhereRequest& request,
                                  StatusCode expected = StatusCode::kOk) {
    protocol::EvictReply reply;
    EvictWhereOperation evict = w.store->operators().EvictWhere(s, request, &reply);
    Result<Progress> progress = evict.Step();
    while (progress.ok() && *progress != Progress::kDone) progress = evict.Step();
    EXPECT_EQ(progress.status().code(), expected);
    w.Check();
    return reply;
  }
  static protocol::EvictWhereRequest OfTier(protocol::TierKind tier, uint32_t flags = 0) {
    return {.flags = flags, .tier = static_cast<uint8_t>(tier)};
  }
  // A dry run and a real one say the same.
  protocol::EvictReply EvictTwice(protocol::EvictWhereRequest request) {
    request.flags |= protocol::kEvictWhereDryRun;
    const uint64_t before = w.Stats().block_count;
    const protocol::EvictReply dry = EvictWhere(request);
    EXPECT_EQ(w.Stats().block_count, before) << "a dry run changes nothing";
    request.flags &= ~protocol::kEvictWhereDryRun;
    const protocol::EvictReply wet = EvictWhere(request);
    EXPECT_EQ(dry.block_count, wet.block_count);
    EXPECT_EQ(dry.byte_count, wet.byte_count);
    EXPECT_EQ(dry.skipped_count, wet.skipped_count);
    return wet;
  }
  NamedPinResult Pin(protocol::NamedPinRequest request, const std::string& name,
                     const std::vector<BlockKey>& keys, StatusCode expected = StatusCode::kOk) {
    request.key_count = static_cast<uint32_t>(keys.size());
    NamedPinResult result;
    const Status status = w.store->operators().NamedPin(
        {.session = s, .name = name, .request = request}, keys, 0, &result);
    EXPECT_EQ(status.code(), expected);
    w.Check();
    return result;
  }
  NamedPinResult Set(const std::string& name, const std::vector<BlockKey>& keys,
                     uint64_t cap_bytes = kGiB, uint32_t ttl_s = 0) {
    return Pin({.cap_bytes = cap_bytes, .ttl_s = ttl_s, .action = protocol::PinAction::kSet}, name,
               keys);
  }
  NamedPinResult Clear(const std::string& name, StatusCode expected = StatusCode::kOk) {
    return Pin({.action = protocol::PinAction::kClear}, name, {}, expected);
  }
  std::vector<std::string> Names(const std::vector<BlockKey>& keys = {}) {
    std::vector<std::string> names;
    for (const auto& entry : Pin({}, "", keys).entries) names.emplace_back(entry.name);
    return names;
  }
  // Other blocks than any that DRAM has room for.
  void Flood() {
    for (int round = 0; round < 2; ++round) {
      w.Put(s, group, World::Keys(4 * kSlotsPerSegment, 90 + round));
      w.Run();
    }
  }
  uint8_t TierMask(const BlockKey& key) {
    std::vector<protocol::QueriedBlock> blocks;
    const std::vector<BlockKey> keys = {key};
    EXPECT_TRUE(w.store->operators().Query(w.Query(s, group, keys), &blocks).ok());
    return blocks[0].tier_mask;
  }

  World w;
  SessionId s = w.Open();
  uint32_t group = w.OpenSimple(s);
};

class RuleWithTiers : public Rule {
 protected:
  RuleWithTiers() : Rule({.segments_max = 4, .lower_tier_count = 1}) {}
  static constexpr uint8_t kDram = 1 << 1, kNvme = 1 << 2;
};

TEST_F(Rule, ACapBelowWhatAPinKeepsIsRefused) {
  const auto keys = World::Keys(4, 1);
  w.Put(s, group, keys);
  Set("some", keys);
  const protocol::NamedPinRequest less{.cap_bytes = kSlotBytes,
                                       .action = protocol::PinAction::kSet};
  Pin(less, "some", {}, StatusCode::kNoSpace);
  Set("some", {}, 4 * kSlotBytes);
  EXPECT_EQ(Pin({}, "", {}).entries[0].cap_bytes, 4 * kSlotBytes);
}

// ---- EvictWhere ----

TEST_F(Rule, OnlyWhatWasNotUsedForSoLongLeaves) {
  const auto old = World::Keys(4, 1), fresh = World::Keys(3, 2);
  w.Put(s, group, old);
  w.Advance(7'200 * kUsPerSecond);
  w.Put(s, group, fresh);
  const auto reply = EvictTwice({.idle_ms_min = 3'600'000});
  EXPECT_EQ(reply.block_count, 4u);
  EXPECT_EQ(reply.byte_count, 4 * kSlotBytes);
  EXPECT_EQ(reply.skipped_count, 0u);
  EXPECT_EQ(w.MatchCount(s, group, old), 0u);
  EXPECT_EQ(w.MatchCount(s, group, fresh), 3u);
}

// Used is used, whenever it was stored.
TEST_F(Rule, AUseMakesABlockYoung) {
  const auto keys = World::Keys(4, 1);
  w.Put(s, group, keys);
  w.Advance(7'200 * kUsPerSecond);
  w.Release(s, w.Acquire(s, group, World::Keys(2, 1)).reply.token);
  EXPECT_EQ(EvictTwice({.idle_ms_min = 3'600'000}).block_count, 2u);
  EXPECT_EQ(w.MatchCount(s, group, keys), 2u);
}

TEST_F(Rule, DryRunsSideBySideNoteNothingOfEachOther) {
  SpaceSpec tiny = TestSpace(0);
  tiny.part_bytes = {4 * kKiB};
  const uint32_t many = w.OpenGroup(s, TestGroup("tiny", {tiny}));
  const auto chain = World::Keys(protocol::kBlocksPerTurnMax + 400);
  for (int i = 0; i < 8 && w.MatchCount(s, many, chain) < chain.size(); ++i) {
    w.Put(s, many, chain);
    w.Run();
  }
  protocol::PinReply pinned;
  const size_t kept_count = chain.size() / 2;
  const BlockKey last_kept = chain[kept_count - 1];
  ASSERT_TRUE(w.store->operators().Pin(w.Query(s, many, {last_kept}), &pinned).ok());
  struct Run {
    protocol::EvictWhereRequest request{.flags = protocol::kEvictWhereDryRun};
    uint64_t goes = 0, skipped = 0;
    protocol::EvictReply reply{};
    std::optional<EvictWhereOperation> evict{};
  };
  std::vector<Run> runs(3);
  runs[0].request.idle_ms_min = 3'600'000;
  runs[1].goes = runs[2].goes = chain.size() - kept_count;
  runs[1].skipped = runs[2].skipped = kept_count;
  for (Run& run : runs) {
    run.evict.emplace(w.store->operators().EvictWhere(s, run.request, &run.reply));
  }
  for (bool is_done = false; !is_done;) {
    for (Run& run : runs) is_done = *run.evict->Step() == Progress::kDone;
  }
  for (const Run& run : runs) {
    EXPECT_EQ(run.reply.block_count, run.goes);
    EXPECT_EQ(run.reply.skipped_count, run.skipped);
  }
}

TEST_F(Rule, OneGroupsBlocksAloneLeave) {
  const uint32_t other = w.OpenGroup(s, TestGroup("other", {TestSpace(0)}));
  const auto keys = World::Keys(4, 1);
  w.Put(s, group, keys);
  w.Put(s, other, World::Keys(2, 2));
  const GroupId other_id = TestGroup("other", {TestSpace(0)}).Id();
  EXPECT_EQ(EvictTwice({.group = other_id}).block_count, 2u);
  EXPECT_EQ(w.MatchCount(s, group, keys), 4u);
  EvictWhere({.group = {.low = 1, .high = 2}}, StatusCode::kNotFound);
}

TEST_F(Rule, WhatIsHeldOrContinuedByWhatStaysIsSkipped) {
  const auto keys = World::Keys(6, 1);
  w.Put(s, group, keys);
  const AcquireResult held = w.Acquire(s, group, World::Keys(3, 1));
  ASSERT_EQ(held.reply.block_count, 3u);
  const auto reply = EvictTwice({});
  EXPECT_EQ(reply.block_count, 3u);
  EXPECT_EQ(reply.skipped_count, 3u);
}

TEST_F(RuleWithTiers, ACopyLeavesItsTierAndTheBlockStays) {
  const auto keys = World::Keys(4, 1);
  w.Put(s, group, keys);
  w.Advance(100'000);
  ASSERT_EQ(TierMask(keys[3]), kDram | kNvme);
  const auto reply = EvictTwice(OfTier(protocol::TierKind::kDram));
  EXPECT_EQ(reply.block_count, 4u);
  EXPECT_EQ(reply.byte_count, 4 * kSlotBytes);
  for (const BlockKey& key : keys) EXPECT_EQ(TierMask(key), kNvme);
  EXPECT_EQ(w.MatchCount(s, group, keys), 4u);
}

TEST_F(RuleWithTiers, FromBelowCopiesLeaveAndReadersKeepDram) {
  const auto keys = World::Keys(4, 1);
  w.Put(s, group, keys);
  w.Advance(100'000);
  EXPECT_EQ(EvictTwice(OfTier(protocol::TierKind::kNvme)).block_count, 4u);
  for (const BlockKey& key : keys) EXPECT_EQ(TierMask(key), kDram);
  w.Advance(100'000);
  EXPECT_EQ(w.tiers[0]->stats().used_bytes, 0u);
}

// The last copy of a block takes the block along.
TEST_F(RuleWithTiers, ABlockWithoutAnotherCopyIsGone) {
  const auto keys = World::Keys(4, 1);
  w.Put(s, group, keys);
  w.Advance(100'000);
  EvictWhere(OfTier(protocol::TierKind::kDram));
  EXPECT_EQ(EvictTwice(OfTier(protocol::TierKind::kNvme)).block_count, 4u);
  EXPECT_EQ(w.Stats().block_count, 0u);
  EXPECT_EQ(EvictTwice(OfTier(protocol::TierKind::kNvme)).block_count, 0u);
}

// A block of which a child stays in the tier has to stay there, a block whose child lies elsewhere
// only if it has no other copy.
TEST_F(RuleWithTiers, WhatAChildNeedsStaysInTheTier) {
  const auto keys = World::Keys(5, 1);
  w.Put(s, group, keys);
  w.Advance(100'000);
  const AcquireResult held = w.Acquire(s, group, World::Keys(3, 1));
  ASSERT_EQ(held.reply.block_count, 3u);
  const auto reply = EvictTwice(OfTier(protocol::TierKind::kDram));
  EXPECT_EQ(reply.block_count, 2u);
  EXPECT_EQ(reply.skipped_count, 3u);
  EXPECT_EQ(TierMask(keys[2]), kDram | kNvme);
  EXPECT_EQ(TierMask(keys[3]), kNvme);
}

TEST_F(Rule, ATierThatThereIsNotIsSaidSo) {
  for (const auto tier :
       {protocol::TierKind::kHbm, protocol::TierKind::kNvme, protocol::TierKind::kRedis}) {
    EvictWhere(OfTier(tier), StatusCode::kUnsupported);
  }
}

// ---- NamedPin ----

TEST_F(Rule, NamedPinsKeepBlocksUntilTheyAreCleared) {
  const auto keys = World::Keys(4, 1);
  w.Put(s, group, keys);
  const auto set = Set("system", keys);
  ASSERT_EQ(set.entries.size(), 1u);
  EXPECT_EQ(set.entries[0].block_count, 4u);
  EXPECT_EQ(set.entries[0].byte_count, 4 * kSlotBytes);
  EXPECT_EQ(EvictTwice({}).skipped_count, 4u);
  Flood();
  EXPECT_EQ(w.MatchCount(s, group, keys), 4u);
  EXPECT_EQ(Clear("system").entries[0].block_count, 4u);
  w.Run();
  EXPECT_TRUE(Names().empty());
  Flood();
  EXPECT_EQ(w.MatchCount(s, group, keys), 0u) << "an ended pin keeps nothing";
  Clear("system", StatusCode::kNotFound);
}

TEST_F(Rule, AtTheCapTheTailIsLeftOut) {
  const auto keys = World::Keys(4, 1);
  w.Put(s, group, keys);
  const auto set = Set("small", keys, 3 * kSlotBytes);
  EXPECT_EQ(set.entries[0].block_count, 3u);
  EXPECT_EQ(set.reply.left_out_count, 1u);
  Flood();
  EXPECT_EQ(w.MatchCount(s, group, keys), 3u);
}

TEST_F(Rule, APinEndsWithItsTimeAndItsBlocksStay) {
  const auto keys = World::Keys(4, 1);
  w.Put(s, group, keys);
  EXPECT_EQ(Set("brief", keys, kGiB, 60).entries[0].expires_in_s, 61u);
  w.Advance(59 * kUsPerSecond);
  EXPECT_THAT(Names(), ::testing::ElementsAre("brief"));
  w.Advance(2 * kUsPerSecond);
  EXPECT_TRUE(Names().empty());
  EXPECT_EQ(w.MatchCount(s, group, keys), 4u) << "the pin ends, not the block";
  EXPECT_EQ(EvictTwice({}).block_count, 4u);
}

TEST_F(Rule, ABlockOfTwoNamesStaysUntilBothHaveEnded) {
  const auto keys = World::Keys(4, 1);
  w.Put(s, group, keys);
  Set("a", keys);
  Set("b", {keys[0], keys[1]});
  EXPECT_THAT(Names({keys[0]}), ::testing::ElementsAre("a", "b"));
  EXPECT_THAT(Names({keys[3]}), ::testing::ElementsAre("a"));
  Clear("a");
  w.Run();
  Flood();
  EXPECT_EQ(w.MatchCount(s, group, keys), 2u);
  Clear("b");
  w.Run();
  EXPECT_EQ(EvictWhere({}).skipped_count, 0u);
}

TEST_F(Rule, TheSameNameAgainAddsAndItsTermsHoldForAll) {
  const auto keys = World::Keys(4, 1);
  w.Put(s, group, keys);
  Set("more", {keys[0]}, kGiB, 5);
  EXPECT_EQ(Set("more", keys).entries[0].block_count, 4u);
  w.Advance(10 * kUsPerSecond);
  const auto listed = Pin({}, "", {});
  ASSERT_EQ(listed.entries.size(), 1u) << "the first time to live is no more";
  EXPECT_EQ(listed.entries[0].expires_in_s, 0u);
}

TEST_F(Rule, WhatLeavesTheCacheLeavesItsPins) {
  const auto keys = World::Keys(4, 1);
  w.Put(s, group, keys);
  Set("a", keys);
  w.Reset(s, group);
  EXPECT_EQ(Pin({}, "", {}).entries[0].block_count, 0u);
  EXPECT_EQ(Pin({}, "", {}).entries[0].byte_count, 0u);
  // The ids are others' now.
  w.Put(s, group, World::Keys(4, 2));
  Clear("a");
  w.Run();
  EXPECT_EQ(EvictTwice({}).block_count, 4u);
}

TEST_F(Rule, KeysWithoutABlockAreCounted) {
  w.Put(s, group, World::Keys(2, 1));
  EXPECT_EQ(Set("a", World::Keys(5, 1)).reply.missing_count, 3u);
}

TEST_F(Rule, ThereAreOnlySoManyNames) {
  for (uint32_t i = 0; i < protocol::kNamedPinsMax; ++i) Set("pin" + std::to_string(i), {});
  Pin({.cap_bytes = 1, .action = protocol::PinAction::kSet}, "more", {}, StatusCode::kNoSpace);
  Clear("pin7");
  w.Run();
  Set("more", {});
  EXPECT_EQ(Names().size(), protocol::kNamedPinsMax);
}

TEST_F(RuleWithTiers, APinnedBlockLeavesNoTier) {
  const auto keys = World::Keys(4, 1);
  w.Put(s, group, keys);
  w.Advance(100'000);
  Set("a", keys);
  EXPECT_EQ(EvictTwice(OfTier(protocol::TierKind::kDram)).skipped_count, 4u);
  EXPECT_EQ(EvictTwice(OfTier(protocol::TierKind::kNvme)).skipped_count, 4u);
}

// It is in no record: a successor that nobody told would keep the blocks for ever.
TEST_F(RuleWithTiers, PinsEndWithTheDaemonAndTheirBlocksDoNot) {
  const auto keys = World::Keys(4, 1);
  w.Put(s, group, keys);
  w.Advance(100'000);
  Set("a", keys);
  w.Advance(100'000);
  w.Restart();
  s = w.Open();
  group = w.OpenSimple(s);
  EXPECT_TRUE(Names().empty());
  EXPECT_EQ(w.MatchCount(s, group, keys), 4u);
  EXPECT_EQ(EvictTwice({}).block_count, 4u);
}

}  // namespace
}  // namespace terrace

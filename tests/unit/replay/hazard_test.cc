#include "daemon/policy/eviction/hazard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "daemon/policy/eviction/lru.h"
#include "tests/unit/replay/synthetic_trace.h"
#include "tools/replay/eviction/compared_policies.h"
#include "tools/replay/optimum.h"
#include "tools/replay/replay_cache.h"

namespace terrace::tools {
namespace {

BlockKey KeyOf(uint64_t id) { return {.low = (id + 1) * 0x9E3779B97F4A7C15u}; }

uint64_t Replay(const DenseTrace& trace, uint32_t capacity_blocks, EvictionPolicy& policy) {
  ReplayCache cache(trace, {.capacity_blocks = capacity_blocks}, policy);
  uint64_t hit_count = 0;
  for (size_t r = 0; r < trace.request_count(); ++r) hit_count += cache.Serve(r);
  return hit_count;
}

// Chats of a few blocks that come back every 40 s, among long prompts that never do.
Trace MakeChatsAmongScans() {
  Trace trace;
  trace.block_tokens = 16;
  uint64_t next_id = 1;
  std::vector<std::vector<uint64_t>> chats(10);
  for (uint32_t turn = 0; turn < 60; ++turn) {
    for (uint32_t chat = 0; chat < chats.size(); ++chat) {
      const uint64_t now_ms = (turn * 10 + chat) * 4000;
      chats[chat].push_back(next_id++);
      AddRequest(&trace, now_ms, chats[chat]);
      std::vector<uint64_t> scan(40);
      for (uint64_t& id : scan) id = next_id++;
      AddRequest(&trace, now_ms + 2000, scan);
    }
  }
  return trace;
}

TEST(HazardPolicy, ChatsStayWhileScansPassBy) {
  DenseTrace trace;
  std::string why;
  ASSERT_TRUE(trace.Build(MakeChatsAmongScans(), &why)) << why;
  LruPolicy lru;
  const uint64_t lru_hits = Replay(trace, 250, lru);
  HazardPolicy hazard({.capacity_blocks = 250});
  const uint64_t hits = Replay(trace, 250, hazard);
  const uint64_t optimum = CountOptimumHits(trace, NextUses(trace), 250, EvictionOrder::kLeafFirst);
  EXPECT_GT(hits - lru_hits, (optimum - lru_hits) / 2)
      << "lru " << lru_hits << ", hazard " << hits << ", optimum " << optimum;
}

TEST(HazardPolicy, LowerPriorityLeavesFirst) {
  HazardPolicy policy({.capacity_blocks = 8});
  const std::vector<uint8_t> priorities = {50, 10, 90, 10};
  for (BlockId id = 0; id < priorities.size(); ++id) {
    policy.OnInsert(id, {.key = {.low = id * 7919ull << 8}, .priority = priorities[id]}, id);
    policy.OnCandidate(id);
  }
  policy.SetPriority(0, 5);
  std::vector<uint8_t> order;
  for (BlockId victim = policy.Victim(); victim != kBlockNone; victim = policy.Victim()) {
    order.push_back(victim == 0 ? 5 : priorities[victim]);
    policy.OnHeld(victim);
    policy.OnErase(victim);
  }
  EXPECT_EQ(order, (std::vector<uint8_t>{5, 10, 10, 90}));
}

// `path` comes in, as one request.
void Insert(HazardPolicy* policy, std::span<const BlockId> path, BlockId parent, uint64_t now_us) {
  for (const BlockId id : path) {
    policy->OnInsert(id, {.key = KeyOf(id), .parent = parent}, now_us);
    parent = id;
  }
  policy->OnCandidate(path.back());
}

TEST(HazardPolicy, WhatItsChainLeftBehindGoesFirst) {
  HazardPolicy policy({.capacity_blocks = 32});
  const std::vector<BlockId> path = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<BlockId> older = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
  Insert(&policy, older, kBlockNone, 0);
  Insert(&policy, path, kBlockNone, 1'000'000);
  EXPECT_EQ(policy.Victim(), older.back());
  policy.OnTouch(std::span(path).first(6), {.now_us = 2'000'000});
  Insert(&policy, std::vector<BlockId>{20, 21}, path[5], 2'000'000);
  EXPECT_EQ(policy.TraitsOf(path.back()).fork, 2);
  EXPECT_EQ(policy.TraitsOf(path[5]).fork, 0);
  EXPECT_EQ(policy.TraitsOf(21).fork, 0);
  EXPECT_EQ(policy.Victim(), path.back());
  policy.OnTouch(path, {.now_us = 3'000'000});  // it goes on there after all
  EXPECT_EQ(policy.TraitsOf(path.back()).fork, 0);
}

TEST(HazardPolicy, APromptThatManyShareLeavesNothingBehind) {
  HazardPolicy policy({.capacity_blocks = 32});
  const std::vector<BlockId> path = {0, 1, 2, 3, 4, 5};
  Insert(&policy, path, kBlockNone, 0);
  const auto branch_off = [&](BlockId first, uint64_t now_us) {
    policy.OnTouch(std::span(path).first(2), {.now_us = now_us});
    Insert(&policy, std::vector<BlockId>{first, first + 1}, path[1], now_us);
  };
  branch_off(10, 1'000'000);
  EXPECT_EQ(policy.TraitsOf(path.back()).fork, 1) << "left before its middle";
  branch_off(20, 2'000'000);
  EXPECT_EQ(policy.TraitsOf(11).fork, 0);
}

TEST(HazardPolicy, WhatPassedByIsKnownWhenItReturns) {
  HazardPolicy policy({.capacity_blocks = 32});
  const std::vector<BlockId> path = {0, 1, 2};
  Insert(&policy, path, kBlockNone, 0);
  for (BlockId id = 3; id-- > 0;) {  // before the next request
    policy.OnHeld(id);
    policy.OnErase(id);
    if (id > 0) policy.OnCandidate(id - 1);
  }
  Insert(&policy, std::vector<BlockId>{10, 11}, kBlockNone, 1'000'000);
  EXPECT_FALSE(policy.HasReturned(11));
  Insert(&policy, path, kBlockNone, 60'000'000);
  EXPECT_TRUE(policy.HasReturned(path.back()));
  EXPECT_EQ(policy.TraitsOf(path.back()).turn, 1);
}

// A policy's own choice, of which nobody asks what would pass by.
class Unasked final : public EvictionPolicy {
 public:
  explicit Unasked(EvictionPolicy& policy) : policy_(policy) {}
  void OnInsert(BlockId id, const BlockTraits& traits, uint64_t now_us) override {
    policy_.OnInsert(id, traits, now_us);
  }
  void OnTouch(std::span<const BlockId> run, const TouchContext& context) override {
    policy_.OnTouch(run, context);
  }
  void OnErase(BlockId id) override { policy_.OnErase(id); }
  void OnCandidate(BlockId id) override { policy_.OnCandidate(id); }
  void OnHeld(BlockId id) override { policy_.OnHeld(id); }
  BlockId Victim() const override { return policy_.Victim(); }
  void SetPriority(BlockId id, uint8_t priority) override { policy_.SetPriority(id, priority); }

 private:
  EvictionPolicy& policy_;
};

TEST(HazardPolicy, WhatRanksBelowAllThatIsThereNeedNotCome) {
  DenseTrace trace;
  std::string why;
  ASSERT_TRUE(trace.Build(MakeChatsAmongScans(), &why)) << why;
  HazardPolicy unasked({.capacity_blocks = 250}), asked({.capacity_blocks = 250});
  Unasked all_come(unasked);
  const uint64_t hits_if_all_come = Replay(trace, 250, all_come);
  ReplayCache cache(trace, {.capacity_blocks = 250}, asked);
  uint64_t hits = 0;
  for (size_t r = 0; r < trace.request_count(); ++r) hits += cache.Serve(r);
  EXPECT_GT(cache.passed_by_count(), 1'000u) << "scans";
  EXPECT_GE(hits, hits_if_all_come * 95 / 100) << "of a cache in which all come, and leave at once";
}

TEST(HazardPolicy, WhatPassedByBeforeItCameIsKnownWhenItReturns) {
  HazardPolicy policy({.capacity_blocks = 32});
  const std::vector<BlockKey> keys = {KeyOf(0), KeyOf(1), KeyOf(2)};
  policy.OnComing(keys, {.key = keys[0]}, 0, 0);
  policy.OnInsert(0, {.key = keys[0]}, 0);  // and no more
  policy.OnCandidate(0);
  EXPECT_EQ(policy.TraitsOf(0).fresh, 2) << "of three, though one has come";
  Insert(&policy, std::vector<BlockId>{10, 11}, kBlockNone, 1'000'000);
  policy.OnTouch(std::vector<BlockId>{0}, {.now_us = 60'000'000});
  policy.OnComing(std::span(keys).subspan(1), {.key = keys[1], .parent = 0}, 0, 60'000'000);
  policy.OnInsert(1, {.key = keys[1], .parent = 0}, 60'000'000);
  EXPECT_TRUE(policy.HasReturned(1));
  EXPECT_EQ(policy.TraitsOf(1).turn, 1);
  EXPECT_EQ(policy.TraitsOf(1).fresh, 0) << "none of it is new";
}

TEST(HazardPolicy, WhatIsToldOfInPartsIsCountedOnce) {
  HazardPolicy whole({.capacity_blocks = 32}), parts({.capacity_blocks = 32});
  std::vector<BlockKey> keys;
  for (BlockId id = 0; id < 7; ++id) keys.push_back(KeyOf(id));
  whole.OnComing(keys, {.key = keys[0]}, 0, 1);
  parts.OnComing(std::span(keys).first(4), {.key = keys[0]}, 3, 1);
  for (BlockId id = 0; id < 7; ++id) {
    const BlockTraits traits{.key = keys[id], .parent = id == 0 ? kBlockNone : id - 1};
    if (id == 4) parts.OnComing(std::span(keys).subspan(4), traits, 0, 1);
    whole.OnInsert(id, traits, 1);
    parts.OnInsert(id, traits, 1);
  }
  EXPECT_EQ(parts.TraitsOf(6).fresh, whole.TraitsOf(6).fresh);
  EXPECT_EQ(parts.TraitsOf(6).depth, whole.TraitsOf(6).depth);
  EXPECT_EQ(parts.TraitsOf(6).turn, whole.TraitsOf(6).turn);
  EXPECT_EQ(parts.last_request(0).index, parts.last_request(6).index);
}

// Prompts of which an engine stores a little at a time, and whose rest it keeps to itself.
TEST(HazardPolicy, WhatIsBehindThoseThatPassByCountsForTheGuard) {
  const auto rounds_until_by_age = [&](bool is_told, bool is_stored) {
    HazardPolicy policy({.capacity_blocks = 64});
    std::vector<BlockKey> keys;
    for (uint64_t id = 0; id < 40; ++id) keys.push_back(KeyOf(id));
    uint32_t round = 0;
    for (; policy.MayPassBy() && round < 200; ++round) {
      const uint64_t now_us = round * 1'000'000;
      if (is_told) policy.OnMissed(keys, {});
      if (is_stored) policy.OnComing(std::span(keys).first(1), {.key = keys[0]}, 0, now_us);
    }
    return round;
  };
  EXPECT_LT(2 * rounds_until_by_age(true, true), rounds_until_by_age(false, true));
  EXPECT_EQ(rounds_until_by_age(true, false), 200u) << "nobody offered any of it";
}

// An engine tells of its first step, and its lookup has told of all: that is what is known of it.
TEST(HazardPolicy, ARequestIsAsLongAsWhatItsLookupMissed) {
  HazardPolicy whole({.capacity_blocks = 256}), steps({.capacity_blocks = 256});
  std::vector<BlockKey> keys;
  for (uint64_t id = 0; id < 100; ++id) keys.push_back(KeyOf(id));
  whole.OnComing(keys, {.key = keys[0]}, 0, 1);
  steps.OnMissed(keys, {});
  for (BlockId id = 0; id < 100; ++id) {
    const BlockTraits traits{.key = keys[id], .parent = id == 0 ? kBlockNone : id - 1};
    if (id % 10 == 0) steps.OnComing(std::span(keys).subspan(id, 10), traits, 0, 1);
    whole.OnInsert(id, traits, 1);
    steps.OnInsert(id, traits, 1);
    ASSERT_EQ(steps.TraitsOf(id).fresh, whole.TraitsOf(id).fresh) << id;
    ASSERT_EQ(steps.TraitsOf(id).depth, whole.TraitsOf(id).depth) << id;
    ASSERT_EQ(steps.last_request(0).index, steps.last_request(id).index);
  }
}

// Several engines store in turns, a step each.
TEST(HazardPolicy, RequestsWhoseStepsComeInTurnsAreOneEach) {
  constexpr BlockId kLength = 40, kStep = 4;
  HazardPolicy policy({.capacity_blocks = 1024});
  const auto keys_of = [&](BlockId prompt) {
    std::vector<BlockKey> keys;
    for (BlockId id = 0; id < kLength; ++id) keys.push_back(KeyOf(prompt * kLength + id));
    return keys;
  };
  const auto step = [&](BlockId prompt, BlockId first, uint64_t now_us) {
    const std::vector<BlockKey> keys = keys_of(prompt);
    for (BlockId i = first; i < first + kStep; ++i) {
      const BlockId id = prompt * kLength + i;
      const BlockTraits traits{.key = keys[i], .parent = i == 0 ? kBlockNone : id - 1};
      if (i == first) policy.OnComing(std::span(keys).subspan(first, kStep), traits, 0, now_us);
      policy.OnInsert(id, traits, now_us);
    }
  };
  for (BlockId prompt = 0; prompt < 3; ++prompt) policy.OnMissed(keys_of(prompt), {});
  for (BlockId first = 0; first < kLength; first += kStep) {
    for (BlockId prompt = 0; prompt < 3; ++prompt) step(prompt, first, 1'000'000 * (first + 1));
  }
  for (BlockId prompt = 0; prompt < 3; ++prompt) {
    const BlockId head = prompt * kLength, tip = head + kLength - 1;
    EXPECT_EQ(policy.last_request(head).index, policy.last_request(tip).index) << prompt;
    EXPECT_EQ(policy.TraitsOf(tip).turn, 0) << "its own steps are no turns";
    EXPECT_EQ(policy.TraitsOf(tip).gap, 0);
  }
  // Those that are never gone on with are given up one by one, and their numbers used again.
  for (BlockId prompt = 3; prompt < 3000; ++prompt) {
    policy.OnMissed(keys_of(prompt), {});
    step(prompt, 0, 100'000'000 + prompt);
    for (BlockId i = kStep; i-- > 0;) policy.OnErase(prompt * kLength + i);
  }
  policy.OnMissed(keys_of(3000), {});
  step(3000, 0, 200'000'000);
  EXPECT_LT(policy.last_request(3000 * kLength).index, 100u);
}

TEST(HazardPolicy, APausedRequestKeepsItsNumberUntilItEnds) {
  HazardPolicy policy({.capacity_blocks = 256});
  const auto begin = [&](BlockId id, uint32_t length) {  // one block now, the rest later
    std::vector<BlockKey> keys;
    for (uint32_t i = 0; i < length; ++i) keys.push_back(KeyOf(id + i));
    policy.OnMissed(keys, {});
    policy.OnComing(std::span(keys).first(1), {.key = keys[0]}, 0, 1'000'000 + id);
    policy.OnInsert(id, {.key = keys[0]}, 1'000'000 + id);
    return policy.last_request(id).index;
  };
  const auto go_on = [&](BlockId id) {
    const BlockTraits traits{.key = KeyOf(id), .parent = id - 1};
    policy.OnComing(std::span(&traits.key, 1), traits, 0, 2'000'000);
    policy.OnInsert(id, traits, 2'000'000);
    return policy.last_request(id).index;
  };
  const uint32_t first = begin(0, 10);
  const uint32_t second = begin(100, 10);
  policy.OnErase(0);  // nothing is its own any more, and more of it may come
  for (BlockId id = 200; id < 210; ++id) EXPECT_NE(begin(id, 1), first) << "taken twice";
  EXPECT_EQ(go_on(101), second);
  EXPECT_NE(begin(300, 1), second);
  // Its engine says that it is over: what comes behind is another one's.
  const BlockId tip = 101;
  policy.OnTouch(std::span(&tip, 1),
                 {.now_us = 3'000'000, .end_reason = protocol::EndReason::kEndOfTurn});
  EXPECT_NE(go_on(102), second);
}

// What LRU would have hit is owed once, also by engines that store in turns.
TEST(HazardPolicy, TheGuardChargesAMissOnceHoweverItsStepsCome) {
  constexpr BlockId kPrompts = 4, kLength = 20, kStep = 5;
  const auto rounds_until_by_age = [&](bool in_turns) {
    HazardPolicy policy({.capacity_blocks = 2048});
    for (BlockId id = 0; id < 1500; ++id) {
      policy.OnInsert(10'000 + id, {.key = KeyOf(1'000'000 + id)}, 1);
    }
    std::vector<BlockKey> keys;
    for (BlockId id = 0; id < kPrompts * kLength; ++id) keys.push_back(KeyOf(id));
    uint64_t now_us = 1;
    const auto store = [&](BlockId prompt, BlockId first) {
      const BlockId id = prompt * kLength + first;
      policy.OnComing(std::span(keys).subspan(id, kStep),
                      {.key = keys[id], .parent = first == 0 ? kBlockNone : id - 1}, 0, now_us);
      for (BlockId i = 0; i < kStep; ++i) {
        const BlockId parent = first + i == 0 ? kBlockNone : id + i - 1;
        policy.OnInsert(id + i, {.key = keys[id + i], .parent = parent}, now_us);
      }
    };
    const auto look_up = [&](BlockId prompt) {
      policy.OnMissed(std::span(keys).subspan(prompt * kLength, kLength), {});
    };
    uint32_t round = 0;
    for (; policy.MayPassBy() && round < 100; ++round, now_us += 1'000'000) {
      for (BlockId prompt = 0; in_turns && prompt < kPrompts; ++prompt) look_up(prompt);
      for (BlockId i = 0; i < kPrompts * kLength; i += kStep) {
        const BlockId turn = i / kStep, step_count = kLength / kStep;
        const BlockId prompt = in_turns ? turn % kPrompts : turn / step_count;
        const BlockId step = in_turns ? turn / kPrompts : turn % step_count;
        if (!in_turns && step == 0) look_up(prompt);
        store(prompt, step * kStep);
      }
      for (BlockId id = kPrompts * kLength; id-- > 0;) policy.OnErase(id);
    }
    return round;
  };
  EXPECT_NEAR(rounds_until_by_age(true), rounds_until_by_age(false), 1);
  EXPECT_LT(rounds_until_by_age(false), 100u);
}

// Of a prompt that passed by, the next turn of its chain is a return, though its tip lay far behind
// the step that was told of; another question about the same document is none.
TEST(HazardPolicy, WhatPassedByEndsWhereItsLookupEnded) {
  const auto prompt_of = [&](uint64_t question, uint64_t length) {
    std::vector<BlockKey> keys;
    for (uint64_t id = 0; id < 30; ++id) keys.push_back(KeyOf(id));  // the document
    while (keys.size() < length) keys.push_back(KeyOf(1000 * question + keys.size()));
    return keys;
  };
  const auto is_return = [&](const std::vector<BlockKey>& next, size_t told_max) {
    HazardPolicy policy({.capacity_blocks = 256});
    const auto ask = [&](const std::vector<BlockKey>& keys, uint64_t now_us) {
      const size_t told = std::min(told_max, keys.size());
      policy.OnMissed(std::span(keys).first(told),
                      {.count = static_cast<uint32_t>(keys.size() - told), .last = keys.back()});
      policy.OnComing(std::span(keys).first(8), {.key = keys[0]}, 0, now_us);
    };
    ask(prompt_of(1, 40), 1'000'000);
    ask(prompt_of(9, 31), 2'000'000);
    ask(next, 60'000'000);
    policy.OnInsert(0, {.key = next[0]}, 60'000'000);
    return policy.HasReturned(0);
  };
  EXPECT_TRUE(is_return(prompt_of(1, 60), 100));
  EXPECT_FALSE(is_return(prompt_of(2, 60), 100));
  EXPECT_FALSE(is_return(prompt_of(2, 60), 20)) << "of a long lookup the store tells a part";
}

TEST(HazardPolicy, ARunThatIsUsedInPartsIsUsedOnce) {
  HazardPolicy whole({.capacity_blocks = 32}), parts({.capacity_blocks = 32});
  const std::vector<BlockId> path = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (HazardPolicy* policy : {&whole, &parts}) Insert(policy, path, kBlockNone, 0);
  for (uint64_t now_us = 1'000'000; now_us <= 3'000'000; now_us += 1'000'000) {
    whole.OnTouch(path, {.now_us = now_us});
    const std::span<const BlockId> run = path;
    parts.OnTouch(run.first(3), {.now_us = now_us, .goes_on = true});
    parts.OnTouch(run.subspan(3, 4), {.now_us = now_us, .behind = 2, .goes_on = true});
    parts.OnTouch(run.subspan(7), {.now_us = now_us, .behind = 6});
  }
  for (const BlockId id : path) {
    EXPECT_EQ(parts.TraitsOf(id).turn, whole.TraitsOf(id).turn) << id;
    EXPECT_EQ(parts.TraitsOf(id).depth, whole.TraitsOf(id).depth) << id;
    EXPECT_EQ(parts.TraitsOf(id).gap, whole.TraitsOf(id).gap) << id;
    EXPECT_EQ(parts.TraitsOf(id).fork, 0) << id;
    EXPECT_EQ(parts.last_request(0).index, parts.last_request(id).index) << id;
  }
}

TEST(HazardPolicy, ARunWhoseRestDoesNotComeLeavesItsPath) {
  HazardPolicy policy({.capacity_blocks = 32});
  const std::vector<BlockId> path = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  Insert(&policy, path, kBlockNone, 0);
  policy.OnTouch(std::span(path).first(6), {.now_us = 1'000'000, .goes_on = true});
  EXPECT_EQ(policy.TraitsOf(path.back()).fork, 0) << "it may come yet";
  Insert(&policy, std::vector<BlockId>{20, 21}, path[5], 1'000'000);
  EXPECT_EQ(policy.TraitsOf(path.back()).fork, 2);
  // Between its parts another request was served: two requests are made of it.
  policy.OnTouch(std::span(path).first(3), {.now_us = 2'000'000, .goes_on = true});
  Insert(&policy, std::vector<BlockId>{30, 31}, kBlockNone, 2'000'000);
  policy.OnTouch(std::span(path).subspan(3), {.now_us = 2'000'000, .behind = 2});
  EXPECT_NE(policy.last_request(2).index, policy.last_request(3).index);
}

TEST(HazardModel, WhatComesBackRanksAboveWhatDoesNot) {
  HazardModel model;
  const ReuseTraits returns{.fresh = 1, .turn = 2};
  const ReuseTraits leaves{.fresh = 5, .turn = 1};
  for (int pass = 0; pass < 50; ++pass) {
    for (int i = 0; i < 20; ++i) {
      model.Observe(returns, 60'000'000, HazardModel::Outcome::kUsed);
      model.Observe(leaves, 600'000'000, HazardModel::Outcome::kWaits);
    }
    model.Fit();
  }
  for (uint32_t i = 0; i < HazardModel::kRefreshesPerShape; ++i) model.RefreshSome();
  const uint32_t age = HazardModel::AgeOf(5'000'000);
  EXPECT_GT(model.index(returns, age), 10 * model.index(leaves, age));
}

TEST(HazardModel, AWaitSeenInTwoPartsTeachesWhatTheWholeDoes) {
  HazardModel whole, in_parts;
  const ReuseTraits traits{.fresh = 2, .turn = 1};
  constexpr uint64_t kFromUs = 20'000'000, kUntilUs = 90'000'000;
  for (int pass = 0; pass < 50; ++pass) {
    for (int i = 0; i < 20; ++i) {
      whole.Observe(traits, kUntilUs, HazardModel::Outcome::kUsed);
      in_parts.Observe(traits, kFromUs, HazardModel::Outcome::kWaits);
      in_parts.ObserveFrom(traits, kFromUs, kUntilUs, HazardModel::Outcome::kUsed);
    }
    whole.Fit();
    in_parts.Fit();
  }
  for (const uint64_t until_us : {5'000'000, 20'000'000, 60'000'000, 200'000'000}) {
    EXPECT_NEAR(in_parts.ReuseChance(traits, 0, until_us), whole.ReuseChance(traits, 0, until_us),
                1e-3);
  }
}

// Ages end at 0.5 s × 1.6^n.
std::vector<double> AgeEdgesInSeconds() {
  std::vector<double> edges_s = {0};
  for (double edge_s = 0.5; edges_s.size() <= HazardModel::kAges; edge_s *= 1.6) {
    edges_s.push_back(edge_s);
  }
  return edges_s;
}

TEST(HazardModel, AgesEndWhereTheySay) {
  EXPECT_EQ(HazardModel::AgeOf(0), 0u);
  const std::vector<double> edges_s = AgeEdgesInSeconds();
  for (uint32_t age = 0; age < HazardModel::kAges; ++age) {
    const double width_s = edges_s[age + 1] - edges_s[age];
    for (const double share : {0.001, 0.06, 0.2, 0.5, 0.8, 0.94, 0.999}) {
      const double idle_s = edges_s[age] + share * width_s;
      EXPECT_EQ(HazardModel::AgeOf(static_cast<uint64_t>(idle_s * 1e6)), age) << idle_s;
    }
  }
  EXPECT_EQ(HazardModel::AgeOf(UINT64_MAX), HazardModel::kAges - 1);
}

// Over every horizon, from the chances of a reuse in each age; to the precision of a level.
TEST(HazardModel, TheIndexIsTheBestOfAllHorizons) {
  HazardModel model;
  const ReuseTraits traits{.gap = 2, .reason = 1, .fresh = 2, .turn = 3, .depth = 2, .kind = 1};
  for (int pass = 0; pass < 60; ++pass) {  // soon, or after about two minutes, or not at all
    for (int i = 0; i < 20; ++i) model.Observe(traits, 1'000'000, HazardModel::Outcome::kUsed);
    for (int i = 0; i < 40; ++i) model.Observe(traits, 120'000'000, HazardModel::Outcome::kUsed);
    for (int i = 0; i < 60; ++i) model.Observe(traits, 5'000'000'000, HazardModel::Outcome::kWaits);
    model.Fit();
  }
  for (uint32_t i = 0; i < HazardModel::kRefreshesPerShape; ++i) model.RefreshSome();
  const std::vector<double> edges_s = AgeEdgesInSeconds();
  const auto us = [&](uint32_t edge) { return static_cast<uint64_t>(edges_s[edge] * 1e6) + 1; };
  for (uint32_t from = 0; from + 1 < HazardModel::kAges; ++from) {
    double best = 0, waits = 1, hits = 0, cost_s = 0;
    for (uint32_t age = from; age + 1 < HazardModel::kAges; ++age) {
      const double chance = model.ReuseChance(traits, us(age), us(age + 1) - 2);
      const double width_s = edges_s[age + 1] - edges_s[age];
      hits += waits * chance;
      cost_s += waits * chance / (-std::log1p(-chance) / width_s);
      waits *= 1 - chance;
      best = std::max(best, hits / cost_s);
    }
    EXPECT_NEAR(model.index(traits, from) / best, 1, 0.07) << "age " << from;
  }
}

TEST(HazardModel, ASuccessorRanksAsItsPredecessorDid) {
  const ReuseTraits returns{.gap = 3, .reason = 1, .fresh = 1, .turn = 2};
  const ReuseTraits leaves{.fresh = 5, .turn = 1};
  HazardModel model;
  for (int pass = 0; pass < 50; ++pass) {
    for (int i = 0; i < 20; ++i) {
      model.Observe(returns, 60'000'000, HazardModel::Outcome::kUsed);
      model.Observe(leaves, 600'000'000, HazardModel::Outcome::kWaits);
    }
    model.Fit();
  }
  for (uint32_t i = 0; i < 2 * HazardModel::kRefreshesPerShape; ++i) model.RefreshSome();
  const std::vector<std::byte> learned = model.Learned();
  HazardModel fresh, successor;
  ASSERT_TRUE(successor.StartFrom(learned));
  for (const ReuseTraits& traits : {returns, leaves}) {
    for (uint32_t age = 0; age < HazardModel::kAges; ++age) {
      EXPECT_EQ(successor.index(traits, age), model.index(traits, age)) << age;
    }
    EXPECT_EQ(successor.ReuseChance(traits, 0, 90'000'000),
              model.ReuseChance(traits, 0, 90'000'000));
    EXPECT_NE(fresh.index(traits, 3), model.index(traits, 3));
  }
}

constexpr size_t kLearnedHeadBytes = 36;
constexpr size_t kFactorsAt = kLearnedHeadBytes + HazardModel::kShapes;

float FactorAt(const std::vector<std::byte>& learned, size_t index) {
  float value = 0;
  std::memcpy(&value, learned.data() + kFactorsAt + index * sizeof(value), sizeof(value));
  return value;
}

void SetFactorAt(std::vector<std::byte>* learned, size_t index, float value) {
  std::memcpy(learned->data() + kFactorsAt + index * sizeof(value), &value, sizeof(value));
}

TEST(HazardModel, WhatNoModelSaidIsIgnored) {
  HazardModel model;
  const std::vector<std::byte> good = model.Learned();
  const float before = model.index({}, 3);
  std::vector<std::byte> bad(good.begin(), good.end() - 1);
  EXPECT_FALSE(model.StartFrom(bad));
  EXPECT_FALSE(model.StartFrom({}));
  bad = good;
  bad[4] ^= std::byte{1};  // another number of ages
  EXPECT_FALSE(model.StartFrom(bad));
  bad = good;
  bad[kFactorsAt - 1] = std::byte{2};
  EXPECT_FALSE(model.StartFrom(bad));
  const size_t factor_count = (good.size() - kFactorsAt) / sizeof(float);
  for (size_t i = 0; i < factor_count; ++i) {
    const float prior = FactorAt(good, i);
    for (const float value : {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(), prior + 11, prior - 11}) {
      bad = good;
      SetFactorAt(&bad, i, value);
      ASSERT_FALSE(model.StartFrom(bad)) << i << " " << value;
    }
  }
  EXPECT_EQ(model.index({}, 3), before);
  EXPECT_EQ(model.Learned(), good);
  EXPECT_TRUE(model.StartFrom(good));
}

// Bits that flipped may leave each factor anywhere within its bounds: what is learned from there on
// stays within them, too, and comes back to what is seen.
TEST(HazardModel, WhateverItStartsFromItStaysWithinItsBounds) {
  const std::vector<std::byte> prior = HazardModel().Learned();
  const size_t factor_count = (prior.size() - kFactorsAt) / sizeof(float);
  const ReuseTraits returns{.gap = 3, .reason = 1, .fresh = 1, .turn = 2};
  const ReuseTraits leaves{.fresh = 5, .turn = 1};
  for (const float away : {-10.0f, -9.0f, 9.0f, 10.0f}) {
    std::vector<std::byte> flipped = prior;
    for (size_t i = 0; i < factor_count; ++i) {
      SetFactorAt(&flipped, i, FactorAt(prior, i) + (i % 2 == 0 ? -away : away) * 0.999f);
    }
    HazardModel model;
    ASSERT_TRUE(model.StartFrom(flipped)) << away;
    for (int pass = 0; pass < 300; ++pass) {
      for (int i = 0; i < 20; ++i) {
        model.Observe(returns, 60'000'000, HazardModel::Outcome::kUsed);
        model.Observe(leaves, 600'000'000'000, HazardModel::Outcome::kWaits);
      }
      model.Fit();
      if (pass > 20) continue;  // nearer each time
      ASSERT_TRUE(HazardModel().StartFrom(model.Learned())) << away << " pass " << pass;
    }
    EXPECT_GT(model.ReuseChance(returns, 0, 120'000'000), 0.5f) << away;
    EXPECT_LT(model.ReuseChance(leaves, 0, 120'000'000), 0.1f) << away;
  }
}

TEST(EvictionPolicies, EveryNamedOneReplaysRandomTraces) {
  for (const std::string_view name : ComparedPolicyNames()) {
    SCOPED_TRACE(name);
    for (uint32_t seed = 1; seed <= 10; ++seed) {
      DenseTrace trace;
      std::string why;
      ASSERT_TRUE(trace.Build(MakeRandomTrace(seed, 400), &why)) << why;
      const NextUses next_uses(trace);
      for (const uint32_t capacity_blocks : {1u, 3u, 17u, 90u, 100000u}) {
        const auto policy = MakeComparedPolicy(name, capacity_blocks);
        EXPECT_LE(Replay(trace, capacity_blocks, *policy),
                  CountOptimumHits(trace, next_uses, capacity_blocks, EvictionOrder::kLeafFirst));
      }
    }
  }
  EXPECT_EQ(MakeComparedPolicy("clairvoyance", 1), nullptr);
}

}  // namespace
}  // namespace terrace::tools

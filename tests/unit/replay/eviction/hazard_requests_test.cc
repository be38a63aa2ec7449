// What hazard makes of requests that come in steps, in turns, or not at all: what it observes of
// each, and when more of it is the same one.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "daemon/policy/eviction/hazard.h"

namespace terrace {
namespace {

constexpr uint64_t kMinuteUs = 60'000'000;
constexpr int kRounds = 200;  // until what is observed outweighs what was believed before

BlockKey KeyOf(BlockId id) { return {.low = (id + 1) * 0x9E3779B97F4A7C15u}; }

std::vector<BlockId> Path(BlockId first, BlockId count) {
  std::vector<BlockId> path(count);
  std::iota(path.begin(), path.end(), first);
  return path;
}

std::vector<BlockId> Joined(std::vector<BlockId> path, std::span<const BlockId> behind) {
  path.insert(path.end(), behind.begin(), behind.end());
  return path;
}

// What an engine tells of its prompts, each a path of blocks.
class HazardRequestsTest : public testing::Test {
 protected:
  HazardRequestsTest() { Restart(); }
  void Restart() { policy_.emplace(HazardOptions{.capacity_blocks = 4096}); }
  static std::vector<BlockKey> KeysOf(std::span<const BlockId> path) {
    std::vector<BlockKey> keys;
    for (const BlockId id : path) keys.push_back(KeyOf(id));
    return keys;
  }
  void Miss(std::span<const BlockId> path) { policy_->OnMissed(KeysOf(path), {}); }
  void Tell(std::span<const BlockId> path, BlockId parent = kBlockNone) {
    policy_->OnComing(KeysOf(path), {.key = KeyOf(path[0]), .parent = parent}, 0, now_us_);
  }
  void Insert(std::span<const BlockId> path, BlockId parent = kBlockNone) {
    for (const BlockId id : path) {
      policy_->OnInsert(id, {.key = KeyOf(id), .parent = parent}, now_us_);
      parent = id;
    }
  }
  void Store(std::span<const BlockId> path, BlockId parent = kBlockNone) {
    Tell(path, parent);
    Insert(path, parent);
  }
  void Touch(std::span<const BlockId> path) { policy_->OnTouch(path, {.now_us = now_us_}); }
  uint32_t RequestOf(BlockId id) const { return policy_->last_request(id).index; }
  // That what was used last as a block of these traits was is used within two minutes.
  float Chance(const ReuseTraits& traits) const {
    HazardModel model;
    EXPECT_TRUE(model.StartFrom(policy_->Learned()));
    return model.ReuseChance(traits, 0, 2 * kMinuteUs);
  }

  std::optional<HazardPolicy> policy_;
  uint64_t now_us_ = kMinuteUs;
};

// Questions about one document, of which nothing is kept: no question comes twice, so that their
// tips say that nothing does.
TEST_F(HazardRequestsTest, OfWhatPassedByTheMiddleIsObservedToo) {
  const std::vector<BlockId> document = Path(0, 30);
  for (BlockId round = 0; round < kRounds; ++round, now_us_ += kMinuteUs) {
    const std::vector<BlockId> prompt = Joined(document, Path(1000 + 10 * round, 10));
    Miss(prompt);
    Tell(std::span(prompt).first(8));
  }
  EXPECT_GT(Chance({.fresh = 6, .depth = 3}), 0.25f);
}

// Each document is asked about twice: its tip is that of the first question, and does not come
// back.
TEST_F(HazardRequestsTest, OfWhatWasMissedAndCameTheMiddleIsObservedToo) {
  ReuseTraits traits;
  for (BlockId round = 0; round < kRounds; ++round) {
    const std::vector<BlockId> prompt = Path(40 * round, 40);
    Miss(prompt);
    Store(prompt);
    traits = policy_->TraitsOf(prompt[0]);
    now_us_ += kMinuteUs;
    Touch(std::span(prompt).first(30));
    now_us_ += kMinuteUs;
  }
  EXPECT_GT(Chance(traits), 0.25f);
}

// Chats that come back a minute later, and whose answers are stored in turns with others'.
TEST_F(HazardRequestsTest, WhatARequestHasHitIsObservedThoughItWasPaused) {
  ReuseTraits traits;
  for (BlockId round = 0; round < kRounds; ++round) {
    const std::vector<BlockId> chat = Path(100 * round, 30), answer = Path(100 * round + 30, 8);
    const std::vector<BlockId> other = Path(100 * round + 50, 2);
    Store(chat);
    now_us_ += kMinuteUs;
    Touch(chat);
    Miss(answer);
    Store(std::span(answer).first(4), chat.back());
    Miss(other);
    Store(std::span(other).first(1));
    Store(std::span(answer).subspan(4), answer[3]);
    ASSERT_EQ(RequestOf(answer[7]), RequestOf(chat[0])) << "it was paused, and goes on";
    traits = policy_->TraitsOf(chat[0]);
    now_us_ += kMinuteUs;
    Touch(std::span(chat).first(29));
  }
  EXPECT_GT(Chance(traits), 0.5f);
}

TEST_F(HazardRequestsTest, TheTipOfAPausedRequestIsKnownThoughItLeaves) {
  const std::vector<BlockId> prompt = Path(0, 10), other = Path(100, 10);
  Miss(prompt);
  Store(std::span(prompt).first(4));
  Store(other);  // all of it, at once: the first one is paused
  policy_->OnErase(3);
  now_us_ += kMinuteUs;
  Store(Path(3, 1), 2);
  EXPECT_TRUE(policy_->HasReturned(3));
}

TEST_F(HazardRequestsTest, TheTipIsTheLookupsThoughLaterStepsEndBeforeIt) {
  const auto ask = [&](std::span<const BlockId> next) {
    Restart();
    const std::vector<BlockId> prompt = Path(0, 40);
    Miss(prompt);
    Store(std::span(prompt).first(8));
    Tell(std::span(prompt).subspan(8, 8), 7);  // they pass by, and what is behind them
    Store(Path(200, 1));
    now_us_ += kMinuteUs;
    Touch(std::span(prompt).first(8));
    Miss(next.subspan(8));
    Store(next.subspan(8, 1), 7);
    return policy_->TraitsOf(8);
  };
  const ReuseTraits next_turn = ask(Path(0, 50));
  EXPECT_EQ(next_turn.fresh, 4) << "ten blocks, behind the tip";
  const ReuseTraits other_question = ask(Joined(Path(0, 20), Path(300, 30)));
  EXPECT_EQ(other_question.fresh, 6) << "all 42: its chain did not end anywhere in it";
}

TEST_F(HazardRequestsTest, WhatHasEndedIsGoneOnWithByNobody) {
  const std::vector<BlockId> prompt = Path(0, 10);
  for (const bool is_other_between : {false, true}) {
    Restart();
    Miss(prompt);
    Store(std::span(prompt).first(4));
    policy_->OnTouch(std::span(prompt).first(4),
                     {.now_us = now_us_, .end_reason = protocol::EndReason::kEndOfTurn});
    const uint32_t first = RequestOf(3);
    if (is_other_between) Store(Path(100, 10));
    now_us_ += kMinuteUs;
    Store(std::span(prompt).subspan(4), 3);
    EXPECT_NE(RequestOf(4), first) << is_other_between;
    EXPECT_EQ(RequestOf(3), first);
  }
}

TEST_F(HazardRequestsTest, OnlyBehindItsTipAPausedRequestGoesOn) {
  const std::vector<BlockId> prompt = Path(0, 10);
  Miss(prompt);
  Store(std::span(prompt).first(4));
  Store(Path(100, 10));
  Store(Path(200, 1), 1);  // another branch
  EXPECT_NE(RequestOf(200), RequestOf(3));
  Store(std::span(prompt).subspan(4), 3);
  EXPECT_EQ(RequestOf(9), RequestOf(3));
}

TEST_F(HazardRequestsTest, WhatALookupHasMissedHoldsForOneStoreAndNotForEver) {
  const std::vector<BlockId> prompt = Path(0, 100);
  Miss(prompt);
  Store(std::span(prompt).first(1));
  EXPECT_EQ(policy_->TraitsOf(0).fresh, 7);
  policy_->OnErase(0);
  Store(Path(300, 1));
  Store(std::span(prompt).first(1));
  EXPECT_LT(policy_->TraitsOf(0).fresh, 7) << "no lookup before this one";
  policy_->OnErase(0);
  Miss(prompt);
  for (BlockId id = 0; id < MissedLookups::kCountMax; ++id) Miss(Path(1000 + id, 1));
  Store(std::span(prompt).first(1));
  EXPECT_LT(policy_->TraitsOf(0).fresh, 7) << "as many lookups later";
}

TEST(MissedLookups, TheLastOfThoseThatBeginThereIsTakenOnce) {
  MissedLookups lookups;
  for (uint32_t count = 1; count <= 3; ++count) {
    MissedLookups::Lookup& lookup = lookups.Add();
    lookup.first = 7;
    lookup.count = count;
    lookup.watched.push_back(count);
  }
  EXPECT_EQ(lookups.Take(8), nullptr);
  for (uint32_t count = 3; count > 0; --count) {
    const MissedLookups::Lookup* const lookup = lookups.Take(7);
    ASSERT_NE(lookup, nullptr);
    EXPECT_EQ(lookup->count, count);
    EXPECT_EQ(lookup->watched, std::vector<uint32_t>{count});
  }
  EXPECT_EQ(lookups.Take(7), nullptr);
  EXPECT_TRUE(lookups.Add().watched.empty());
}

TEST(HazardSamples, OnlyTheLastUseOfABlockWaits) {
  HazardSamples samples(16);
  samples.Add({.time_us = 1, .fingerprint = 5}, 1);
  samples.Add({.time_us = 2, .fingerprint = 5}, 2);
  EXPECT_TRUE(samples.IsWaitedFor(5));
  EXPECT_FALSE(samples.IsWaitedFor(5 + (1 << 16))) << "of another block";
  EXPECT_EQ(samples.EndWait(5 + (1 << 16), 3), nullptr);
  const HazardSamples::Sample* const last = samples.EndWait(5, 3);
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(last->time_us, 2u);
  EXPECT_EQ(last->waited_us, 1u);
  EXPECT_FALSE(samples.IsWaitedFor(5));
  EXPECT_EQ(samples.EndWait(5, 4), nullptr);
}

TEST(HazardSamples, TheOldestIsForgottenAndNoOther) {
  for (const uint32_t capacity_blocks : {1u, 100u, 1u << 20}) {
    HazardSamples samples(capacity_blocks);
    const uint32_t count_max = std::min(16 * capacity_blocks, HazardSamples::kCountMax);
    for (uint32_t i = 0; i < 3 * count_max; ++i) {
      samples.Add({.time_us = i, .fingerprint = i << 20 | i}, i);
      if (i % 3 == 0) (void)samples.EndWait(i << 20 | i, i + 1);
    }
    for (uint32_t i = 0; i < 3 * count_max; ++i) {
      ASSERT_EQ(samples.IsWaitedFor(i << 20 | i), i >= 2 * count_max && i % 3 != 0) << i;
    }
  }
}

// Of so few chains some have several, which leave in any order.
TEST(HazardSamples, EachIsFoundAmongThoseOfItsChain) {
  constexpr uint32_t kCapacity = 16, kBlocks = 60;
  HazardSamples samples(1);
  std::vector<uint64_t> added(kBlocks, 0);  // by block: the number of its use that waits; 0: none
  uint64_t count = 0, random = 1;
  for (int step = 0; step < 20'000; ++step) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const auto block = static_cast<uint32_t>((random >> 33) % kBlocks);
    const uint32_t fingerprint = block * 0x9E3779B1u;
    if ((random >> 20) % 3 == 0) {
      const HazardSamples::Sample* const ended = samples.EndWait(fingerprint, count);
      ASSERT_EQ(ended != nullptr, added[block] != 0) << step;
      if (ended != nullptr) {
        ASSERT_EQ(ended->time_us, added[block]) << step;
      }
      added[block] = 0;
    } else {
      ++count;
      samples.Add({.time_us = count, .fingerprint = fingerprint}, count);
      added[block] = count;
    }
    for (uint32_t i = 0; i < kBlocks; ++i) {
      if (added[i] + kCapacity <= count) added[i] = 0;
      ASSERT_EQ(samples.IsWaitedFor(i * 0x9E3779B1u), added[i] != 0) << step;
    }
  }
}

// Each waits a while, is left behind, and comes back soon: it does so of what was left alone.
TEST(HazardSamples, WhatIsLeftBehindIsOfItsKindOnlySinceThen) {
  HazardSamples samples(1 << 10);
  const HazardModel prior;
  constexpr uint64_t kLeftUs = 20 * kMinuteUs;
  for (uint32_t i = 0; i < 400; ++i) {
    samples.Add({.time_us = 1, .fingerprint = i}, 1);
    samples.OnFork({.fingerprint = i, .time_us = 1, .fork = 1}, kLeftUs);
    samples.OnFork({.fingerprint = i, .time_us = 2, .fork = 2}, 3);  // another use of it
    (void)samples.EndWait(i, kLeftUs + kMinuteUs / 6);
  }
  for (int i = 0; i < 300; ++i) samples.LearnSome(kLeftUs + kMinuteUs);
  const auto change_of = [&](uint8_t fork) {
    const ReuseTraits traits{.fork = fork};
    return samples.model().ReuseChance(traits, kLeftUs, kLeftUs + kMinuteUs / 60) /
           prior.ReuseChance(traits, kLeftUs, kLeftUs + kMinuteUs / 60);
  };
  EXPECT_LT(change_of(0), 1);
  EXPECT_GT(change_of(2), 10) << "for their idle time";
  EXPECT_GT(change_of(1), 3 * change_of(2));
}

}  // namespace
}  // namespace terrace

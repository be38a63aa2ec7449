// What a seed's world is drawn from, and how one that fails becomes smaller.
#include "sim/sim/shrink.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <vector>

#include "sim/swarm.h"
#include "sim/world.h"
#include "terrace/check.h"

namespace terrace::sim {
namespace {

constexpr double kSecondsMax = 60;
constexpr uint64_t kSeeds = 400;

Kind KindAt(size_t index) { return static_cast<Kind>(index); }

KindSet Only(std::initializer_list<Kind> kinds) {
  KindSet set;
  for (const Kind kind : kinds) set.set(static_cast<size_t>(kind));
  return set;
}

// One in eight seeds is plain.
uint64_t SeedWhere(bool (*holds)(const Swarm& swarm)) {
  uint64_t seed = 1;
  while (!holds(Swarm(seed))) ++seed;
  return seed;
}

TEST(Swarm, EveryKindIsOffInSomeSeedsAndOnInOthers) {
  std::array<uint64_t, kKindCount> on = {};
  uint64_t plain = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Swarm swarm(seed);
    plain += swarm.Describe() == "plain";
    for (size_t kind = 0; kind < kKindCount; ++kind) on[kind] += swarm.is_on(KindAt(kind));
  }
  EXPECT_GT(plain, kSeeds / 16);
  EXPECT_LT(plain, kSeeds / 4);
  const KindSet basic = Only({Kind::kAcquire, Kind::kReserve, Kind::kLeaseWork});
  for (size_t kind = 0; kind < kKindCount; ++kind) {
    EXPECT_GT(on[kind], kSeeds / 4) << KindName(KindAt(kind));
    if (basic[kind]) continue;
    EXPECT_LT(on[kind], kSeeds * 4 / 5) << KindName(KindAt(kind));
  }
}

TEST(Swarm, KindsAndStepsAreReadAsTheyAreWritten) {
  KindSet all;
  all.set();
  KindSet read;
  std::string wrong;
  ASSERT_TRUE(ParseKinds(KindsText(all), &read, &wrong));
  EXPECT_EQ(read, all);
  EXPECT_FALSE(ParseKinds("kills,floods", &read, &wrong));
  EXPECT_EQ(wrong, "floods");

  StepSet steps;
  ASSERT_TRUE(StepSet::Parse(StepSet({3, 4, 5, 17}).Text(), &steps));
  EXPECT_EQ(steps.Text(), "3-5,17");
  EXPECT_TRUE(steps.contains(4) && steps.contains(17));
  EXPECT_FALSE(steps.contains(2) || steps.contains(6) || steps.contains(18));
  EXPECT_TRUE(StepSet().contains(9));
  EXPECT_FALSE(StepSet(std::vector<uint32_t>()).contains(9)) << "of no steps none is left";
  for (const char* text : {"5-3", "x", "3;4", "3-"}) EXPECT_FALSE(StepSet::Parse(text, &steps));
}

// Of every kind but those that were taken out, all draws stay as they were.
TEST(Swarm, WhatIsTakenOutShiftsNoOtherDraws) {
  const uint64_t seed = SeedWhere(
      [](const Swarm& swarm) { return swarm.is_on(Kind::kKills) && swarm.is_on(Kind::kEvict); });
  Swarm less(seed);
  less.TakeOut(Only({Kind::kKills, Kind::kEvict, Kind::kLeaseTtlMs}));
  EXPECT_FALSE(less.is_on(Kind::kKills));
  EXPECT_EQ(less.value(Kind::kLeaseTtlMs), 1'500u);
  Dice with(seed, Swarm(seed)), without(seed, less);
  uint32_t kills = 0;
  for (uint64_t step = 1; step <= 500; ++step) {
    with.BeginStep(step, true);
    without.BeginStep(step, true);
    EXPECT_EQ(with.SeedOf(1), without.SeedOf(1));
    kills += with.Happens(Kind::kKills, 50'000);
    EXPECT_FALSE(without.Happens(Kind::kKills, 50'000));
    EXPECT_EQ(with.Happens(Kind::kStops, 500'000), without.Happens(Kind::kStops, 500'000));
    EXPECT_EQ(with.PickVerb(step * 7'919), without.PickVerb(step * 7'919));
  }
  EXPECT_GT(kills, 0u);
}

// Fails of two steps and of one kind, by a sentence or as a broken invariant does.
struct Planted {
  Kind needed = Kind::kKills;
  bool aborts = false;

  std::string operator()(const Case& of, Steps* step) const {
    Swarm swarm(of.seed);
    swarm.TakeOut(of.without);
    for (*step = 1; *step <= of.steps; ++*step) {
      const bool has_both = of.acts.contains(100) && of.acts.contains(437);
      if (*step != 437 || !has_both || !swarm.is_on(needed)) continue;
      if (aborts) std::abort();
      return "both were there";
    }
    return "";
  }
};

void ExpectSmallest(const Planted& planted) {
  const uint64_t seed = SeedWhere([](const Swarm& swarm) { return swarm.is_on(Kind::kKills); });
  const Shrunk shrunk = Shrink(planted, {.seed = seed, .steps = 2'000}, kSecondsMax);
  ASSERT_TRUE(shrunk.verdict.fails);
  EXPECT_EQ(shrunk.smallest.steps, 437u);
  EXPECT_EQ(shrunk.smallest.acts.Text(), "100,437");
  EXPECT_EQ(shrunk.acts_left, 2u);
  Swarm left(seed);
  left.TakeOut(shrunk.smallest.without);
  EXPECT_EQ(KindsText(left.taken_in()), "kills");
  EXPECT_NE(shrunk.smallest.Environment().find(" TERRACE_SIM_ACTS=100,437"), std::string::npos);
}

// PROMISE: T01 seeds that fail become small
TEST(Shrink, FindsTheStepsAndTheKindThatAFailureNeeds) { ExpectSmallest({}); }

TEST(Shrink, OutlivesWhatAborts) {
  ExpectSmallest({.aborts = true});
  const Verdict verdict = Attempt(
      [](const Case&, Steps* step) -> std::string {
        *step = 7;
        TERRACE_CHECK(false, "it is planted");
      },
      {.seed = 1, .steps = 10}, 10);
  EXPECT_TRUE(verdict.fails);
  EXPECT_EQ(verdict.step, 7u);
  EXPECT_NE(verdict.why.find("it is planted"), std::string::npos) << verdict.why;
}

TEST(Shrink, WhatDoesNotFailIsLeftAlone) {
  const Shrunk shrunk = Shrink([](const Case&, Steps*) { return std::string(); },
                               {.seed = 1, .steps = 10}, kSecondsMax);
  EXPECT_FALSE(shrunk.verdict.fails);
  EXPECT_EQ(shrunk.attempts, 1u);
}

// A world whose monotonic clock stood still twice: of all that such a world has only the stalls are
// left, and two steps.
TEST(Shrink, OfAWorldOnlyWhatMattersIsLeft) {
  const uint64_t seed = SeedWhere([](const Swarm& swarm) {
    return swarm.level(Kind::kStalls) > Swarm::kPlain && swarm.Describe() != "plain";
  });
  const RunCase run = [](const Case& of, Steps* step) {
    Swarm swarm(of.seed);
    swarm.TakeOut(of.without);
    World world(
        {.seed = of.seed, .swarm = swarm, .acts = of.acts, .events = of.steps, .step = step});
    const std::string failure = world.Run();
    if (!failure.empty()) return failure;
    return world.coverage().stalls < 2 ? std::string() : "it stood still twice";
  };
  const Shrunk shrunk = Shrink(run, {.seed = seed, .steps = 1'000}, kSecondsMax);
  ASSERT_TRUE(shrunk.verdict.fails);
  EXPECT_EQ(shrunk.verdict.why, "it stood still twice");
  EXPECT_EQ(shrunk.acts_left, 2u);
  Swarm left(seed);
  left.TakeOut(shrunk.smallest.without);
  EXPECT_EQ(KindsText(left.taken_in()), "stalls");
  EXPECT_EQ(run(shrunk.smallest, nullptr), "it stood still twice");
}

}  // namespace
}  // namespace terrace::sim

// The simulation as a test. TERRACE_SIM_SEEDS: how many seeds (default 200, fewer of variants);
// TERRACE_SIM_STEPS: of how many events each (default 2,000, and 50,000 of every fifth);
// TERRACE_SIM_REPLAYS: how many are replayed (default 100); TERRACE_SIM_FIRST_SEED: where to begin,
// so that a failing seed replays alone; TERRACE_SIM_WITHOUT: kinds to take out of every world
// (swarm.h); TERRACE_SIM_ACTS: steps in which anybody acts.
//
// A seed that fails is shrunk (shrink.h), for kShrinkSeconds or TERRACE_SIM_SHRINK; 0: not at all.
// With TERRACE_SIM_SHRINK each seed is tried in a child first, so that what ends a process by other
// means than abort() is shrunk, too.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "sim/sim/shrink.h"
#include "sim/world.h"

namespace terrace::sim {
namespace {

constexpr uint64_t kShrinkSeconds = 30;
constexpr unsigned kFirstSecondsMax = 120;
constexpr uint64_t kStepsPerSeed = 2'000;
constexpr uint64_t kStepsPerLongSeed = 50'000;
constexpr uint64_t kLongOneIn = 5;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Worlds that a test runs.
struct Worlds {
  const char* test;
  WorldOptions (*options_of)(const Swarm& swarm);
};

// What the environment says of every world.
Case AskedFor(uint64_t seed, uint64_t steps) {
  Case of{.seed = seed,
          .steps = static_cast<uint32_t>(FromEnvironment("TERRACE_SIM_STEPS", steps))};
  const char* const without = std::getenv("TERRACE_SIM_WITHOUT");
  std::string wrong;
  if (without != nullptr && !ParseKinds(without, &of.without, &wrong)) {
    std::fprintf(stderr, "TERRACE_SIM_WITHOUT names '%s'; there are %s\n", wrong.c_str(),
                 KindsText(KindSet().set()).c_str());
    std::exit(2);
  }
  const char* const acts = std::getenv("TERRACE_SIM_ACTS");
  if (acts != nullptr && !StepSet::Parse(acts, &of.acts)) {
    std::fprintf(stderr, "TERRACE_SIM_ACTS is '%s'; write steps as 3-5,17\n", acts);
    std::exit(2);
  }
  return of;
}

Swarm SwarmOf(const Case& of) {
  Swarm swarm(of.seed);
  swarm.TakeOut(of.without);
  return swarm;
}

WorldOptions OptionsOfCase(const Worlds& worlds, const Case& of) {
  WorldOptions options = worlds.options_of(SwarmOf(of));
  options.seed = of.seed;
  options.swarm = SwarmOf(of);
  options.acts = of.acts;
  options.events = of.steps;
  return options;
}

RunCase RunCaseOf(const Worlds& worlds) {
  return [worlds](const Case& of, Steps* step) {
    WorldOptions options = OptionsOfCase(worlds, of);
    options.step = step;
    return World(options).Run();
  };
}

// What a person needs of a case that fails; it is shrunk first.
std::string Report(const Worlds& worlds, const Case& first) {
  const auto command = [&](const Case& of) {
    return "\n  " + of.Environment() +
           " build/release/tests/sim_sim_test --gtest_filter=Simulation." + worlds.test + "\n";
  };
  std::string text = "seed " + std::to_string(first.seed) +
                     ", swarm: " + SwarmOf(first).Describe() + command(first);
  const uint64_t seconds = FromEnvironment("TERRACE_SIM_SHRINK", kShrinkSeconds);
  if (seconds == 0) return text;
  const Shrunk shrunk = Shrink(RunCaseOf(worlds), first, static_cast<double>(seconds));
  if (!shrunk.verdict.fails) return text + "it did not fail in a process of its own: not shrunk\n";
  const KindSet before = SwarmOf(first).taken_in(), left = SwarmOf(shrunk.smallest).taken_in();
  return text + "shrunk in " + std::to_string(shrunk.attempts) + " attempts from " +
         std::to_string(first.steps) + " steps and " + std::to_string(before.count()) +
         " kinds to " + std::to_string(shrunk.smallest.steps) +
         " steps, of which somebody acts in " + std::to_string(shrunk.acts_left) + ", and " +
         std::to_string(left.count()) + " kinds: " + KindsText(left) + "\n  " + shrunk.verdict.why +
         command(shrunk.smallest);
}

Worlds current_worlds{};
Case current_case;

// A broken invariant aborts; the seed must still be known.
void SayTheSeed(int) {
  std::signal(SIGABRT, SIG_DFL);
  std::fprintf(stderr, "aborted at seed %llu\n",
               static_cast<unsigned long long>(current_case.seed));
  std::fprintf(stderr, "%s", Report(current_worlds, current_case).c_str());
  std::fflush(stderr);
}

// For what ends a process without a word.
std::string TryInChild(const Worlds& worlds, const Case& of) {
  const Verdict verdict = Attempt(RunCaseOf(worlds), of, kFirstSecondsMax);
  return verdict.fails ? verdict.why + "\n" + Report(worlds, of) : "";
}

WorldOptions OptionsOf(const Swarm& swarm) {
  const bool has_tier = swarm.value(Kind::kTierBelow) > 0;
  return {.below = has_tier ? WorldOptions::Below::kMemory : WorldOptions::Below::kNothing};
}

// Daemons end with the power or without, and some drives fail.
WorldOptions OptionsOverDrives(const Swarm& /*swarm*/) {
  return {.below = WorldOptions::Below::kDrives};
}

// And their capacity changes.
WorldOptions OptionsOverDrivesThatAreResized(const Swarm& swarm) {
  WorldOptions options = OptionsOverDrives(swarm);
  options.resizes_drives = true;
  return options;
}

WorldOptions OptionsOverEncryptedDrives(const Swarm& swarm) {
  WorldOptions options = OptionsOverDrives(swarm);
  options.has_encrypted_drives = true;
  return options;
}

// Clients of a dead daemon go on reading and writing where it let them. Some worlds have drives
// below: a block there and in DRAM is one block.
WorldOptions OptionsOverDeaths(const Swarm& swarm) {
  const bool has_drives = swarm.value(Kind::kTierBelow) == 0;
  return {.below = has_drives ? WorldOptions::Below::kDrives : WorldOptions::Below::kNothing,
          .keeps_dram = true};
}

// Half the processes make a device's copies: late, wrong, twice, never, or they die over them.
WorldOptions OptionsOverDevice(const Swarm& swarm) {
  WorldOptions options = OptionsOf(swarm);
  options.has_device = true;
  return options;
}

// Domains that are two hosts on one server.
WorldOptions OptionsOverServer(const Swarm& swarm) {
  WorldOptions options = OptionsOf(swarm);
  options.has_server = true;
  return options;
}

constexpr Worlds kServing{"ServesNoWrongByteAndLeaksNoSlot", OptionsOf};
constexpr Worlds kOverDrives{"WhatOutlivesTheDaemonIsWhatItPromised", OptionsOverDrives};
constexpr Worlds kOverResizedDrives{"DrivesComeDownToWhatTheyMayHoldWhateverEndsTheDaemon",
                                    OptionsOverDrivesThatAreResized};
constexpr Worlds kOverEncryptedDrives{"WhatOutlivesTheDaemonEncryptedIsWhatItPromised",
                                      OptionsOverEncryptedDrives};
constexpr Worlds kOverDeaths{"DramOutlivesTheDaemonAndNeverLies", OptionsOverDeaths};
constexpr Worlds kOverDevice{"ADevicesBlocksAreRightWhateverItsClientsDo", OptionsOverDevice};
constexpr Worlds kOverServer{"HostsThatShareAServerNeverLie", OptionsOverServer};

class Simulation : public testing::Test {
 protected:
  void SetUp() override { std::signal(SIGABRT, SayTheSeed); }
};

void Add(const Coverage& one, Coverage* sum) {
  sum->blocks_sealed += one.blocks_sealed;
  sum->blocks_evicted += one.blocks_evicted;
  sum->acquire_blocks_hit += one.acquire_blocks_hit;
  sum->promotions += one.promotions;
  sum->leases_revoked += one.leases_revoked;
  sum->commits_gone += one.commits_gone;
  sum->parts_judged += one.parts_judged;
  sum->parts_told += one.parts_told;
  sum->parts_claimed_wrongly += one.parts_claimed_wrongly;
  sum->blocks_refuted += one.blocks_refuted;
  sum->scrub_members += one.scrub_members;
  sum->restarts += one.restarts;
  sum->blocks_restored += one.blocks_restored;
  sum->blocks_adopted += one.blocks_adopted;
  sum->survivors_checked += one.survivors_checked;
  sum->erased_checked += one.erased_checked;
  sum->slots_on_device += one.slots_on_device;
  sum->orders_issued += one.orders_issued;
  sum->orders_reissued += one.orders_reissued;
  sum->orders_wrong += one.orders_wrong;
  sum->orders_expired += one.orders_expired;
  sum->events_told += one.events_told;
  sum->router_checks += one.router_checks;
  sum->slabs_given += one.slabs_given;
  sum->shrinks += one.shrinks;
  sum->relocated += one.relocated;
  sum->blocks_fetched += one.blocks_fetched;
  sum->blocks_given += one.blocks_given;
  sum->forgotten_checked += one.forgotten_checked;
  sum->messages_garbled += one.messages_garbled;
  sum->garblers_refused += one.garblers_refused;
  sum->reloads += one.reloads;
  sum->stalls += one.stalls;
  sum->wall_jumps += one.wall_jumps;
}

std::string RunWorld(const Worlds& worlds, const Case& of, Coverage* sum, uint64_t* trace_hash) {
  current_worlds = worlds;
  current_case = of;
  World world(OptionsOfCase(worlds, of));
  const std::string failure = world.Run();
  *trace_hash = world.trace_hash();
  Add(world.coverage(), sum);
  return failure.empty() ? "" : failure + "\n" + Report(worlds, of);
}

// A push runs so many of worlds that vary one whose seeds it runs all, so that 200 long ones are
// run; a night as many.
constexpr uint64_t kSeedsOfVariants = 66;

// Every seed asked for, in such worlds; their coverage is summed.
void RunSeeds(const Worlds& worlds, Coverage* sum, uint64_t* count, uint64_t seeds_a_push = 200) {
  const uint64_t first = FromEnvironment("TERRACE_SIM_FIRST_SEED", 1);
  *count = FromEnvironment("TERRACE_SIM_SEEDS", seeds_a_push);
  const bool tries_first = FromEnvironment("TERRACE_SIM_SHRINK", 0) > 0;
  for (uint64_t seed = first; seed < first + *count; ++seed) {
    const Case of = AskedFor(seed, seed % kLongOneIn == 1 ? kStepsPerLongSeed : kStepsPerSeed);
    ASSERT_EQ(tries_first ? TryInChild(worlds, of) : "", "");
    uint64_t trace_hash = 0;
    ASSERT_EQ(RunWorld(worlds, of, sum, &trace_hash), "");
  }
  std::printf("a router was told %llu events, and compared with the store %llu times\n",
              static_cast<unsigned long long>(sum->events_told),
              static_cast<unsigned long long>(sum->router_checks));
  if (*count < 20) return;
  EXPECT_GE(sum->router_checks, 30 * *count);
  EXPECT_GT(sum->events_told, 20 * *count);
}

// PROMISE: T01 clients that fail, stop and lie
// PROMISE: T02 clients that fail, stop and lie
TEST_F(Simulation, ServesNoWrongByteAndLeaksNoSlot) {
  Coverage sum;
  uint64_t count = 0;
  ASSERT_NO_FATAL_FAILURE(RunSeeds(kServing, &sum, &count));
  std::printf(
      "%llu seeds: %llu blocks sealed, %llu evicted, %llu acquired, %llu promotions, %llu leases "
      "revoked, %llu commits refused as gone, %llu parts judged, %llu told before their block, "
      "%llu "
      "messages garbled, %llu clients refused for it\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(sum.blocks_sealed),
      static_cast<unsigned long long>(sum.blocks_evicted),
      static_cast<unsigned long long>(sum.acquire_blocks_hit),
      static_cast<unsigned long long>(sum.promotions),
      static_cast<unsigned long long>(sum.leases_revoked),
      static_cast<unsigned long long>(sum.commits_gone),
      static_cast<unsigned long long>(sum.parts_judged),
      static_cast<unsigned long long>(sum.parts_told),
      static_cast<unsigned long long>(sum.messages_garbled),
      static_cast<unsigned long long>(sum.garblers_refused));
  if (count < 20) return;
  EXPECT_GT(sum.messages_garbled, count);
  EXPECT_GT(sum.parts_told, count / 2);
  EXPECT_GT(sum.parts_claimed_wrongly, count / 4);
  EXPECT_GT(sum.blocks_refuted, count / 8);
  EXPECT_GT(sum.blocks_sealed, 10 * count);
  EXPECT_GT(sum.blocks_evicted, count);
  EXPECT_GT(sum.acquire_blocks_hit, 10 * count);
  EXPECT_GT(sum.promotions, count);
  EXPECT_GT(sum.leases_revoked, count);
  EXPECT_GT(sum.commits_gone, count / 4);
  EXPECT_GT(sum.parts_judged, 100 * count);
}

// Of so many seeds over drives.
void ExpectMuchOutlived(const Coverage& sum, uint64_t count) {
  EXPECT_GT(sum.blocks_restored, 10 * count);
  EXPECT_GT(sum.survivors_checked, 10 * count);
  EXPECT_GT(sum.erased_checked, count);
  EXPECT_GT(sum.promotions, count);
  EXPECT_GT(sum.scrub_members, count);
}

// What a daemon called persisted is found by the next one, what it said it had erased is not, and
// no byte is wrong.
// PROMISE: T01 deaths and losses of power over drives
// PROMISE: T03 deaths and losses of power over drives
// PROMISE: T10 deaths and losses of power over drives
TEST_F(Simulation, WhatOutlivesTheDaemonIsWhatItPromised) {
  Coverage sum;
  uint64_t count = 0;
  ASSERT_NO_FATAL_FAILURE(RunSeeds(kOverDrives, &sum, &count));
  std::printf(
      "%llu seeds: %llu daemons ended, %llu blocks restored, %llu survivors and %llu erasures "
      "checked, %llu promotions, %llu members scrubbed, %llu parts judged, %llu slabs given to the "
      "other domain\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(sum.restarts),
      static_cast<unsigned long long>(sum.blocks_restored),
      static_cast<unsigned long long>(sum.survivors_checked),
      static_cast<unsigned long long>(sum.erased_checked),
      static_cast<unsigned long long>(sum.promotions),
      static_cast<unsigned long long>(sum.scrub_members),
      static_cast<unsigned long long>(sum.parts_judged),
      static_cast<unsigned long long>(sum.slabs_given));
  if (count < 20) return;
  EXPECT_GT(sum.slabs_given, count / 100);
  EXPECT_GT(sum.restarts, count);
  ExpectMuchOutlived(sum, count);
}

// The capacity of the drives goes down and up meanwhile, and a daemon ends in the middle of that.
TEST_F(Simulation, DrivesComeDownToWhatTheyMayHoldWhateverEndsTheDaemon) {
  Coverage sum;
  uint64_t count = 0;
  ASSERT_NO_FATAL_FAILURE(RunSeeds(kOverResizedDrives, &sum, &count, kSeedsOfVariants));
  std::printf(
      "%llu seeds: %llu daemons ended, %llu shrinks, %llu slabs given, %llu blocks moved, %llu "
      "restored, %llu survivors and %llu erasures checked, %llu promotions\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(sum.restarts),
      static_cast<unsigned long long>(sum.shrinks),
      static_cast<unsigned long long>(sum.slabs_given),
      static_cast<unsigned long long>(sum.relocated),
      static_cast<unsigned long long>(sum.blocks_restored),
      static_cast<unsigned long long>(sum.survivors_checked),
      static_cast<unsigned long long>(sum.erased_checked),
      static_cast<unsigned long long>(sum.promotions));
  if (count < 20) return;
  EXPECT_GT(sum.shrinks, count / 4);
  EXPECT_GT(sum.relocated, count / 4);
  EXPECT_GT(sum.slabs_given, count / 4);
  EXPECT_GT(sum.blocks_restored, count);
  EXPECT_GT(sum.survivors_checked, count);
  EXPECT_GT(sum.erased_checked, count);
}

// The same of drives whose blocks are encrypted.
// PROMISE: T01 deaths and losses of power over encrypted drives
TEST_F(Simulation, WhatOutlivesTheDaemonEncryptedIsWhatItPromised) {
  Coverage sum;
  uint64_t count = 0;
  ASSERT_NO_FATAL_FAILURE(RunSeeds(kOverEncryptedDrives, &sum, &count, kSeedsOfVariants));
  std::printf("%llu seeds: %llu daemons ended, %llu blocks restored, %llu survivors checked\n",
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(sum.restarts),
              static_cast<unsigned long long>(sum.blocks_restored),
              static_cast<unsigned long long>(sum.survivors_checked));
  if (count < 20) return;
  ExpectMuchOutlived(sum, count);
}

// PROMISE: T01 deaths under clients that go on
TEST_F(Simulation, DramOutlivesTheDaemonAndNeverLies) {
  Coverage sum;
  uint64_t count = 0;
  ASSERT_NO_FATAL_FAILURE(RunSeeds(kOverDeaths, &sum, &count));
  std::printf("%llu seeds: %llu daemons ended, %llu blocks adopted, %llu restored, %llu judged\n",
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(sum.restarts),
              static_cast<unsigned long long>(sum.blocks_adopted),
              static_cast<unsigned long long>(sum.blocks_restored),
              static_cast<unsigned long long>(sum.parts_judged));
  if (count < 20) return;
  EXPECT_GT(sum.restarts, 2 * count);
  EXPECT_GT(sum.blocks_adopted, 5 * count);
  EXPECT_GT(sum.blocks_restored, count);
  EXPECT_GT(sum.parts_judged, 100 * count);
}

// PROMISE: T01 device copies that are late, wrong or missing
TEST_F(Simulation, ADevicesBlocksAreRightWhateverItsClientsDo) {
  Coverage sum;
  uint64_t count = 0;
  ASSERT_NO_FATAL_FAILURE(RunSeeds(kOverDevice, &sum, &count));
  std::printf(
      "%llu seeds: %llu orders, %llu again, %llu wrong, %llu expired; %llu slots read there, %llu "
      "promotions, %llu parts judged\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(sum.orders_issued),
      static_cast<unsigned long long>(sum.orders_reissued),
      static_cast<unsigned long long>(sum.orders_wrong),
      static_cast<unsigned long long>(sum.orders_expired),
      static_cast<unsigned long long>(sum.slots_on_device),
      static_cast<unsigned long long>(sum.promotions),
      static_cast<unsigned long long>(sum.parts_judged));
  if (count < 20) return;
  EXPECT_GT(sum.orders_issued, 5 * count);
  EXPECT_GT(sum.orders_reissued, count / 20);
  EXPECT_GT(sum.orders_wrong, count / 4);
  EXPECT_GT(sum.orders_expired, count / 4);
  EXPECT_GT(sum.slots_on_device, 5 * count);
}

// What a host has given the server is right on the other one, whatever the server loses and however
// often it is away; and what was there before a Reset is not found on the host that was told of it.
// PROMISE: T01 two hosts on a server that goes away and loses blocks
// PROMISE: T03 two hosts on a server that goes away and loses blocks
TEST_F(Simulation, HostsThatShareAServerNeverLie) {
  Coverage sum;
  uint64_t count = 0;
  ASSERT_NO_FATAL_FAILURE(RunSeeds(kOverServer, &sum, &count, kSeedsOfVariants));
  std::printf("%llu seeds: %llu blocks given, %llu fetched, %llu forgotten, %llu parts judged\n",
              static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(sum.blocks_given),
              static_cast<unsigned long long>(sum.blocks_fetched),
              static_cast<unsigned long long>(sum.forgotten_checked),
              static_cast<unsigned long long>(sum.parts_judged));
  if (count < 20) return;
  EXPECT_GT(sum.blocks_given, count);
  EXPECT_GT(sum.blocks_fetched, count);
  EXPECT_GT(sum.forgotten_checked, count);
}

uint64_t TraceHash(const Worlds& worlds, const Case& of) {
  Coverage unused;
  uint64_t trace_hash = 0;
  EXPECT_EQ(RunWorld(worlds, of, &unused, &trace_hash), "");
  return trace_hash;
}

// PROMISE: T01 equal traces of a seed
TEST_F(Simulation, ASeedReplaysExactly) {
  const uint64_t count = FromEnvironment("TERRACE_SIM_REPLAYS", 100);
  for (uint64_t seed = 1; seed <= count; ++seed) {
    const Case of = AskedFor(seed, kStepsPerSeed);
    for (const Worlds& worlds : {kServing, kOverDrives, kOverEncryptedDrives}) {
      ASSERT_EQ(TraceHash(worlds, of), TraceHash(worlds, of)) << "seed " << seed;
    }
  }
}

// Printed so that builds of other compilers and sanitizers can be compared:
// tests/long/trace_hash.py.
TEST_F(Simulation, TraceHashOfTwentySeeds) {
  uint64_t hash = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    hash = hash * 0x100000001B3 + TraceHash(kServing, {.seed = seed, .steps = kStepsPerSeed});
  }
  EXPECT_NE(hash, 0u);
  std::printf("trace hash %016llx\n", static_cast<unsigned long long>(hash));
}

}  // namespace
}  // namespace terrace::sim

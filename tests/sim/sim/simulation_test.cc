// The simulation as a test. TERRACE_SIM_SEEDS: how many seeds (default 200); TERRACE_SIM_STEPS: of
// how many events each (default 2,000); TERRACE_SIM_REPLAYS: how many are replayed (default 8);
// TERRACE_SIM_FIRST_SEED: where to begin, so that a failing seed replays alone.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "sim/world.h"

namespace terrace::sim {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

volatile uint64_t current_seed = 0;

// A broken invariant aborts; the seed must still be known.
void SayTheSeed(int) {
  std::fprintf(stderr, "aborted at seed %llu: TERRACE_SIM_FIRST_SEED=%llu TERRACE_SIM_SEEDS=1\n",
               static_cast<unsigned long long>(current_seed),
               static_cast<unsigned long long>(current_seed));
}

WorldOptions OptionsOf(uint64_t seed) {
  // Every fourth world has no tier below DRAM.
  return {.seed = seed,
          .below = seed % 4 == 0 ? WorldOptions::Below::kNothing : WorldOptions::Below::kMemory};
}

// Every other daemon ends with the power, and every third one has drives that fail.
WorldOptions OptionsOverDrives(uint64_t seed) {
  return {.seed = seed,
          .below = WorldOptions::Below::kDrives,
          .ending = seed % 2 == 0 ? Ending::kPowerLoss : Ending::kKill,
          .drive_fault_rate_ppm = seed % 3 == 0 ? 3'000u : 0};
}

// And their capacity changes.
WorldOptions OptionsOverDrivesThatAreResized(uint64_t seed) {
  WorldOptions options = OptionsOverDrives(seed);
  options.resizes_drives = true;
  return options;
}

class Simulation : public testing::Test {
 protected:
  static void SetUpTestSuite() { std::signal(SIGABRT, SayTheSeed); }
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
}

WorldOptions Stepped(WorldOptions options) {
  options.events = static_cast<uint32_t>(FromEnvironment("TERRACE_SIM_STEPS", options.events));
  return options;
}

// A push runs so many of worlds that vary one whose seeds it runs all; a night as many.
constexpr uint64_t kSeedsOfVariants = 60;

// Every seed asked for, in worlds of `options_of`; their coverage is summed.
void RunSeeds(WorldOptions (*options_of)(uint64_t seed), Coverage* sum, uint64_t* count,
              uint64_t seeds_a_push = 200) {
  const uint64_t first = FromEnvironment("TERRACE_SIM_FIRST_SEED", 1);
  *count = FromEnvironment("TERRACE_SIM_SEEDS", seeds_a_push);
  for (uint64_t seed = first; seed < first + *count; ++seed) {
    current_seed = seed;
    World world(Stepped(options_of(seed)));
    const std::string failure = world.Run();
    ASSERT_EQ(failure, "") << "seed " << seed << ": TERRACE_SIM_FIRST_SEED=" << seed
                           << " TERRACE_SIM_SEEDS=1";
    Add(world.coverage(), sum);
  }
  std::printf("a router was told %llu events, and compared with the store %llu times\n",
              static_cast<unsigned long long>(sum->events_told),
              static_cast<unsigned long long>(sum->router_checks));
  EXPECT_GE(sum->router_checks, 30 * *count);
  if (*count < 20) return;
  EXPECT_GT(sum->events_told, 20 * *count);
}

// PROMISE: T01 clients that fail, stop and lie
// PROMISE: T02 clients that fail, stop and lie
TEST_F(Simulation, ServesNoWrongByteAndLeaksNoSlot) {
  Coverage sum;
  uint64_t count = 0;
  ASSERT_NO_FATAL_FAILURE(RunSeeds(OptionsOf, &sum, &count));
  std::printf(
      "%llu seeds: %llu blocks sealed, %llu evicted, %llu acquired, %llu promotions, %llu leases "
      "revoked, %llu commits refused as gone, %llu parts judged, %llu told before their block\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(sum.blocks_sealed),
      static_cast<unsigned long long>(sum.blocks_evicted),
      static_cast<unsigned long long>(sum.acquire_blocks_hit),
      static_cast<unsigned long long>(sum.promotions),
      static_cast<unsigned long long>(sum.leases_revoked),
      static_cast<unsigned long long>(sum.commits_gone),
      static_cast<unsigned long long>(sum.parts_judged),
      static_cast<unsigned long long>(sum.parts_told));
  if (count < 20) return;
  EXPECT_GT(sum.parts_told, count);
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
  ASSERT_NO_FATAL_FAILURE(RunSeeds(OptionsOverDrives, &sum, &count));
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
  EXPECT_GT(sum.slabs_given, count / 20);
  EXPECT_GT(sum.restarts, count);
  ExpectMuchOutlived(sum, count);
}

// The capacity of the drives goes down and up meanwhile, and a daemon ends in the middle of that.
TEST_F(Simulation, DrivesComeDownToWhatTheyMayHoldWhateverEndsTheDaemon) {
  Coverage sum;
  uint64_t count = 0;
  ASSERT_NO_FATAL_FAILURE(
      RunSeeds(OptionsOverDrivesThatAreResized, &sum, &count, kSeedsOfVariants));
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
  EXPECT_GT(sum.slabs_given, count);
  EXPECT_GT(sum.blocks_restored, count);
  EXPECT_GT(sum.survivors_checked, count);
  EXPECT_GT(sum.erased_checked, count);
}

WorldOptions OptionsOverEncryptedDrives(uint64_t seed) {
  WorldOptions options = OptionsOverDrives(seed);
  options.has_encrypted_drives = true;
  return options;
}

// The same of drives whose blocks are encrypted.
// PROMISE: T01 deaths and losses of power over encrypted drives
TEST_F(Simulation, WhatOutlivesTheDaemonEncryptedIsWhatItPromised) {
  Coverage sum;
  uint64_t count = 0;
  ASSERT_NO_FATAL_FAILURE(RunSeeds(OptionsOverEncryptedDrives, &sum, &count, kSeedsOfVariants));
  std::printf("%llu seeds: %llu daemons ended, %llu blocks restored, %llu survivors checked\n",
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(sum.restarts),
              static_cast<unsigned long long>(sum.blocks_restored),
              static_cast<unsigned long long>(sum.survivors_checked));
  if (count < 20) return;
  ExpectMuchOutlived(sum, count);
}

// Clients of a dead daemon go on reading and writing where it let them. Every third world has
// drives below: a block there and in DRAM is one block.
WorldOptions OptionsOverDeaths(uint64_t seed) {
  return {.seed = seed,
          .below = seed % 3 == 0 ? WorldOptions::Below::kDrives : WorldOptions::Below::kNothing,
          .keeps_dram = true};
}

// PROMISE: T01 deaths under clients that go on
TEST_F(Simulation, DramOutlivesTheDaemonAndNeverLies) {
  Coverage sum;
  uint64_t count = 0;
  ASSERT_NO_FATAL_FAILURE(RunSeeds(OptionsOverDeaths, &sum, &count));
  std::printf("%llu seeds: %llu daemons ended, %llu blocks adopted, %llu restored, %llu judged\n",
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(sum.restarts),
              static_cast<unsigned long long>(sum.blocks_adopted),
              static_cast<unsigned long long>(sum.blocks_restored),
              static_cast<unsigned long long>(sum.parts_judged));
  if (count < 20) return;
  EXPECT_GT(sum.restarts, 2 * count);
  EXPECT_GT(sum.blocks_adopted, 10 * count);
  EXPECT_GT(sum.blocks_restored, count);
  EXPECT_GT(sum.parts_judged, 100 * count);
}

// Half the processes make a device's copies: late, wrong, twice, never, or they die over them.
WorldOptions OptionsOverDevice(uint64_t seed) {
  return {.seed = seed,
          .below = seed % 2 == 0 ? WorldOptions::Below::kNothing : WorldOptions::Below::kMemory,
          .has_device = true};
}

// PROMISE: T01 device copies that are late, wrong or missing
TEST_F(Simulation, ADevicesBlocksAreRightWhateverItsClientsDo) {
  Coverage sum;
  uint64_t count = 0;
  ASSERT_NO_FATAL_FAILURE(RunSeeds(OptionsOverDevice, &sum, &count));
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

// PROMISE: T01 equal traces of a seed
TEST_F(Simulation, ASeedReplaysExactly) {
  const uint64_t count = FromEnvironment("TERRACE_SIM_REPLAYS", 8);
  for (uint64_t seed = 1; seed <= count; ++seed) {
    current_seed = seed;
    World one(Stepped(OptionsOf(seed)));
    World two(Stepped(OptionsOf(seed)));
    ASSERT_EQ(one.Run(), "");
    ASSERT_EQ(two.Run(), "");
    EXPECT_EQ(one.trace_hash(), two.trace_hash()) << "seed " << seed;
    World three(Stepped(OptionsOverDrives(seed)));
    World four(Stepped(OptionsOverDrives(seed)));
    ASSERT_EQ(three.Run(), "");
    ASSERT_EQ(four.Run(), "");
    EXPECT_EQ(three.trace_hash(), four.trace_hash()) << "seed " << seed;
    World five(OptionsOverEncryptedDrives(seed));
    World six(OptionsOverEncryptedDrives(seed));
    ASSERT_EQ(five.Run(), "");
    ASSERT_EQ(six.Run(), "");
    EXPECT_EQ(five.trace_hash(), six.trace_hash()) << "seed " << seed;
  }
}

// Printed so that builds of other compilers and sanitizers can be compared:
// tests/long/trace_hash.py.
TEST_F(Simulation, TraceHashOfTwentySeeds) {
  uint64_t hash = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    current_seed = seed;
    World world(OptionsOf(seed));
    ASSERT_EQ(world.Run(), "");
    hash = hash * 0x100000001B3 + world.trace_hash();
  }
  EXPECT_NE(hash, 0u);
  std::printf("trace hash %016llx\n", static_cast<unsigned long long>(hash));
}

}  // namespace
}  // namespace terrace::sim

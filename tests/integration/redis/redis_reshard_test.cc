// A Cluster that changes while it is used: slots move from master to master, a master dies and its
// replica takes over. No wrong bytes, and soon all is as it was.
#include <gtest/gtest.h>
#include <hiredis/hiredis.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "redis/allowed_times.h"
#include "redis/redis_cluster.h"
#include "redis/redis_rig.h"
#include "redis/redis_traffic.h"
#include "tiers/redis/redis_format.h"

namespace terrace {
namespace {

using testing::RawRedis;
using testing::RawReply;
using testing::RedisCluster;
using testing::RedisRig;
using testing::RedisTestName;
using testing::RedisTraffic;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kChains = 60;

uint32_t SlotOf(uint64_t chain) {
  return RedisSlotOf(
      RedisKeyNames("terrace", testing::RedisTestSecret()).Manifest(RedisTestName(chain, 0)));
}

// Moves a slot with its keys, as operators' tools do. False: a step was refused.
bool MoveSlot(const RedisCluster& cluster, uint32_t number, size_t from, size_t to) {
  const std::string slot = std::to_string(number);
  const std::unique_ptr<RawRedis> source = cluster.raw(from), target = cluster.raw(to);
  if (target->Text({"CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id(from)}) != "OK" ||
      source->Text({"CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id(to)}) != "OK") {
    return false;
  }
  for (;;) {
    // A key at a time, and slowly: the slot is on its way for a while.
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const RawReply keys = source->Command({"CLUSTER", "GETKEYSINSLOT", slot, "1"});
    if (keys == nullptr || keys->elements == 0) break;
    source->Command({"MIGRATE", "127.0.0.1", std::to_string(cluster.node(to).port()),
                     std::string(keys->element[0]->str, keys->element[0]->len), "0", "10000"});
  }
  return target->Text({"CLUSTER", "SETSLOT", slot, "NODE", cluster.id(to)}) == "OK" &&
         source->Text({"CLUSTER", "SETSLOT", slot, "NODE", cluster.id(to)}) == "OK";
}

// What the tier could not do, of all that was asked since `before`.
struct Outcome {
  uint64_t operations = 0, failures = 0;
};
Outcome OutcomeOf(const RedisTraffic& traffic) {
  const uint64_t refused = traffic.not_stored - traffic.existing;
  return {.operations = traffic.hits + traffic.misses + traffic.failures + traffic.stored +
                        traffic.not_stored,
          .failures = traffic.failures + refused};
}
double FailedShare(const Outcome& before, const Outcome& after) {
  return static_cast<double>(after.failures - before.failures) /
         static_cast<double>(after.operations - before.operations);
}

// PROMISE: T42 slots move, a master dies
TEST(RedisReshard, NeverAWrongByteAndSoonAllIsAsItWas) {
  TERRACE_NEEDS_REDIS();
  const RedisCluster cluster({.masters = 3, .replicas = 1, .node_timeout_ms = 2000});
  RedisTier::Options options = RedisRig::Options(cluster.node(2).tcp_endpoint());
  options.topology = RedisTopology::kCluster;
  options.timeouts = {.connect_us = 2'000'000, .command_us = 2'000'000};
  RedisRig rig(options);
  ASSERT_TRUE(rig.RunUntil([&] { return cluster.IsUp(); }));
  ASSERT_TRUE(rig.RunUntil([&] { return cluster.HaveReplicas() && cluster.IsUp(); }));
  ASSERT_TRUE(rig.RunUntil([&] { return rig.tier().stats().connections >= 15; }));
  for (size_t i = 0; i < 3; ++i) cluster.raw(i)->SayNoGeneration();
  RedisTraffic traffic(&rig, {.chains = kChains, .positions = 4, .erased_of_stores = 10});
  traffic.Run(3'000);
  const Outcome calm = OutcomeOf(traffic);
  EXPECT_EQ(calm.failures, 0u);

  // All slots in use of the second master move to the third.
  std::atomic<size_t> moved{0};
  std::atomic<bool> has_moved{false};
  std::thread mover([&] {
    std::set<uint32_t> slots;
    for (uint64_t chain = 7; chain < 7 + kChains; ++chain) slots.insert(SlotOf(chain));
    for (const uint32_t slot : slots) {
      if (cluster.OwnerOf(slot) == 1) moved += MoveSlot(cluster, slot, 1, 2);
    }
    has_moved = true;
  });
  while (!has_moved) traffic.Run(200);
  mover.join();
  const Outcome resharded = OutcomeOf(traffic);
  EXPECT_GT(moved, 5u);
  // What is lost meanwhile: commands of several keys of which some have moved.
  EXPECT_LE(FailedShare(calm, resharded), 0.05);

  // The first master dies; its replica takes over.
  cluster.node(0).Kill();
  const auto killed_at = Clock::now();
  const auto seconds = [&killed_at] {
    return std::chrono::duration<double>(Clock::now() - killed_at).count();
  };
  double share = 1, well_after_s = 0;
  Outcome before = resharded;
  const double allowed_s = testing::AllowedSeconds(30, 120);
  while (share > 0.01 && seconds() < allowed_s) {
    const double began_s = seconds();
    traffic.Run(500);
    const Outcome after = OutcomeOf(traffic);
    share = FailedShare(before, after);
    before = after;
    // All on it, and not just because nobody asked for what is away.
    if (!cluster.IsMaster(3) || !cluster.IsUp()) share = 1;
    well_after_s = began_s;
  }
  const Outcome recovered = OutcomeOf(traffic);
  traffic.Run(5'000);
  const double share_after = FailedShare(recovered, OutcomeOf(traffic));
  EXPECT_LE(share, 0.01) << "within " << allowed_s << " s";
  EXPECT_LE(share_after, 0.01);
  EXPECT_EQ(traffic.wrong, 0u);
  EXPECT_GT(traffic.hits, 1'000u);
  std::printf(
      "%zu slots moved: %.2f %% of %lu operations failed meanwhile; a master killed: well again "
      "after %.1f s, then %.2f %% of 5,000 failed; %lu hits, %lu wrong\n",
      moved.load(), 100 * FailedShare(calm, resharded), resharded.operations - calm.operations,
      well_after_s, 100 * share_after, traffic.hits, traffic.wrong);
}

}  // namespace
}  // namespace terrace

// Where a key lives: Clusters whose slots move, masters that Sentinels name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hiredis/hiredis.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "redis/redis_cluster.h"
#include "redis/redis_process.h"
#include "redis/redis_rig.h"
#include "tiers/redis/redis_format.h"
#include "tiers/redis/wire/redis_slot.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RawRedis;
using testing::RedisCluster;
using testing::RedisProcess;
using testing::RedisRig;
using testing::RedisTestName;
using ::testing::StartsWith;

constexpr size_t kLengthBytes = 200'000;
constexpr size_t kSmallBytes = 70'000;
static_assert(kSmallBytes <= kRedisSmallBlockBytesMax && kLengthBytes > kRedisSmallBlockBytesMax);

RedisTier::Options OptionsOf(const RedisCluster& cluster) {
  RedisTier::Options options = RedisRig::Options(cluster.node(0).tcp_endpoint());
  options.topology = RedisTopology::kCluster;
  options.connections = 2;
  return options;
}

uint32_t SlotOf(const RedisBlockName& name) {
  return RedisSlotOf(RedisKeyNames("terrace", testing::RedisTestSecret()).Manifest(name));
}

void WaitForCluster(RedisRig& rig, const RedisCluster& cluster) {
  ASSERT_TRUE(rig.RunUntil([&] { return cluster.IsUp(); }));
  // All nodes are known and logged in to.
  ASSERT_TRUE(rig.RunUntil([&] { return rig.tier().stats().connections == 2 * cluster.size(); }));
}

TEST(RedisCluster, BlocksLieOnAllNodesAndComeBack) {
  TERRACE_NEEDS_REDIS();
  const RedisCluster cluster(RedisCluster::Options{});
  RedisRig rig(OptionsOf(cluster));
  WaitForCluster(rig, cluster);
  for (uint64_t chain = 0; chain < 40; ++chain) {
    ASSERT_TRUE(rig.StoreNow(RedisTestName(chain, 0), chain, kLengthBytes).ok());
    ASSERT_TRUE(rig.StoreNow(RedisTestName(chain, 1), chain, kSmallBytes).ok());
  }
  for (uint64_t chain = 0; chain < 40; ++chain) {
    EXPECT_TRUE(rig.FetchNow(RedisTestName(chain, 0), kLengthBytes).status.ok());
    EXPECT_TRUE(rig.FetchNow(RedisTestName(chain, 1), kSmallBytes).status.ok());
    EXPECT_TRUE(rig.ProbeNow({RedisTestName(chain, 0)}).second[0]);
  }
  for (size_t i = 0; i < cluster.size(); ++i) EXPECT_GT(cluster.raw(i)->Keys().size(), 0u) << i;
}

// 16 runs of 64 blocks, spread over the masters: each gets its share of GETs at once.
TEST(RedisCluster, AThousandKeysAreOneRoundTripAMaster) {
  TERRACE_NEEDS_REDIS();
  const RedisCluster cluster(RedisCluster::Options{});
  RedisRig rig(OptionsOf(cluster));
  WaitForCluster(rig, cluster);
  std::vector<RedisBlockName> names;
  for (uint32_t i = 0; i < 1000; ++i) names.push_back(RedisTestName(1, i));
  std::vector<std::unique_ptr<RawRedis>> raw;
  for (size_t i = 0; i < cluster.size(); ++i) raw.push_back(cluster.raw(i));
  const auto count_of = [&raw](size_t i, const std::string& section, const std::string& field) {
    const std::string info = raw[i]->Text({"INFO", section});
    const size_t at = info.find(field);
    return at == std::string::npos ? 0 : std::stoull(info.substr(at + field.size()));
  };
  std::vector<uint64_t> reads;
  ASSERT_TRUE(rig.ProbeNow(names).first.ok()) << "the map is known";
  for (auto& one : raw) one->Command({"CONFIG", "RESETSTAT"});
  const auto began = std::chrono::steady_clock::now();
  ASSERT_TRUE(rig.ProbeNow(names).first.ok());
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
  uint64_t gets = 0;
  for (size_t i = 0; i < cluster.size(); ++i) {
    const uint64_t of_node = count_of(i, "commandstats", "cmdstat_get:calls=");
    gets += of_node;
    EXPECT_GT(of_node, 0u) << i;
    // What looks here reads twice itself.
    reads.push_back(count_of(i, "stats", "total_reads_processed:") - 2);
    EXPECT_LE(reads.back(), 2u) << i;
  }
  EXPECT_EQ(gets, 16u);
  std::printf("1,000 keys: %lu GETs, %lu, %lu and %lu reads by the servers, %.0f us\n", gets,
              reads[0], reads[1], reads[2], took.count());
}

TEST(RedisCluster, AMovedSlotIsFollowedAndRemembered) {
  TERRACE_NEEDS_REDIS();
  const RedisCluster cluster(RedisCluster::Options{});
  RedisRig rig(OptionsOf(cluster));
  WaitForCluster(rig, cluster);
  for (size_t i = 0; i < cluster.size(); ++i) cluster.raw(i)->SayNoGeneration();
  const RedisBlockName name = RedisTestName(1, 0);
  const size_t from = cluster.OwnerOf(SlotOf(name));
  const size_t to = (from + 1) % cluster.size();
  // The new owner first: with two owners for a moment the one with the higher epoch holds.
  for (const size_t i : {to, from}) {
    ASSERT_EQ(cluster.raw(i)->Text(
                  {"CLUSTER", "SETSLOT", std::to_string(SlotOf(name)), "NODE", cluster.id(to)}),
              "OK");
  }
  // As soon as the nodes agree. A transaction follows as well.
  ASSERT_TRUE(rig.RunUntil([&] {
    const Status status = rig.StoreNow(RedisTestName(1, 1), 1, kSmallBytes);
    return status.ok() || status.code() == StatusCode::kExists;
  }));
  EXPECT_TRUE(rig.FetchNow(RedisTestName(1, 1), kSmallBytes).status.ok());
  ASSERT_TRUE(rig.StoreNow(name, 1, kLengthBytes).ok());
  EXPECT_TRUE(rig.FetchNow(name, kLengthBytes).status.ok());
  const uint64_t turned_away = cluster.ErrorsOf(from, "MOVED");
  EXPECT_GT(turned_away, 0u);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(rig.FetchNow(name, kLengthBytes).status.ok());
  EXPECT_EQ(cluster.ErrorsOf(from, "MOVED"), turned_away) << "asked again where it no longer is";
}

// PROMISE: T42 redirections
TEST(RedisCluster, ASlotOnItsWayIsAskedForAndTheMapStays) {
  TERRACE_NEEDS_REDIS();
  const RedisCluster cluster(RedisCluster::Options{});
  RedisRig rig(OptionsOf(cluster));
  WaitForCluster(rig, cluster);
  for (size_t i = 0; i < cluster.size(); ++i) cluster.raw(i)->SayNoGeneration();
  const RedisBlockName name = RedisTestName(1, 0);
  const std::string slot = std::to_string(SlotOf(name));
  const size_t from = cluster.OwnerOf(SlotOf(name));
  const size_t to = (from + 1) % cluster.size();
  ASSERT_EQ(cluster.raw(to)->Text({"CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id(from)}),
            "OK");
  ASSERT_EQ(cluster.raw(from)->Text({"CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id(to)}),
            "OK");
  ASSERT_TRUE(rig.StoreNow(name, 1, kLengthBytes).ok());
  EXPECT_TRUE(rig.FetchNow(name, kLengthBytes).status.ok());
  EXPECT_GT(cluster.raw(to)->Keys().size(), 0u);
  const uint64_t asked = cluster.ErrorsOf(from, "ASK");
  EXPECT_TRUE(rig.FetchNow(name, kLengthBytes).status.ok());
  EXPECT_GT(cluster.ErrorsOf(from, "ASK"), asked) << "the old owner is asked first, every time";
  EXPECT_EQ(cluster.ErrorsOf(to, "MOVED"), 0u) << "the new owner was taken for the owner already";
}

// Its keys move one after another: while some are here and some there the servers refuse commands
// of several keys. That is a miss, and the block is whole when all have moved.
TEST(RedisCluster, ASmallBlockOfASlotOnItsWayIsAMissOrExact) {
  TERRACE_NEEDS_REDIS();
  const RedisCluster cluster(RedisCluster::Options{});
  RedisRig rig(OptionsOf(cluster));
  WaitForCluster(rig, cluster);
  for (size_t i = 0; i < cluster.size(); ++i) cluster.raw(i)->SayNoGeneration();
  const RedisBlockName name = RedisTestName(1, 0);
  ASSERT_TRUE(rig.StoreNow(name, 1, kSmallBytes).ok());
  const std::string slot = std::to_string(SlotOf(name));
  const size_t from = cluster.OwnerOf(SlotOf(name));
  const size_t to = (from + 1) % cluster.size();
  ASSERT_EQ(cluster.raw(to)->Text({"CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id(from)}),
            "OK");
  ASSERT_EQ(cluster.raw(from)->Text({"CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id(to)}),
            "OK");
  const std::vector<std::string> keys = cluster.raw(from)->BlockKeys();
  ASSERT_GE(keys.size(), 3u);
  for (const std::string& key : keys) {
    const RedisRig::Fetched fetched = rig.FetchNow(name, kSmallBytes);
    EXPECT_TRUE(RedisRig::IsTrue(fetched, name, kSmallBytes));
    ASSERT_EQ(cluster.raw(from)->Text({"MIGRATE", "127.0.0.1",
                                       std::to_string(cluster.node(to).port()), key, "0", "5000"}),
              "OK");
  }
  EXPECT_TRUE(rig.FetchNow(name, kSmallBytes).status.ok());
  EXPECT_FALSE(rig.StoreNow(RedisTestName(1, 1), 1, kSmallBytes).ok());
  EXPECT_EQ(rig.tier().stats().breaker_opened, 0u);
  for (const size_t i : {to, from}) {
    ASSERT_EQ(cluster.raw(i)->Text({"CLUSTER", "SETSLOT", slot, "NODE", cluster.id(to)}), "OK");
  }
  EXPECT_TRUE(rig.StoreNow(RedisTestName(1, 1), 1, kSmallBytes).ok());
  EXPECT_TRUE(rig.FetchNow(name, kSmallBytes).status.ok());
}

// Where the group's generation is said; and a name in it whose keys are that node's.
size_t LeaderOf(const RedisCluster& cluster, const GroupId& group) {
  return cluster.OwnerOf(RedisSlotOf(testing::RedisTestGenerationKey(group)));
}

RedisBlockName NameOn(const RedisCluster& cluster, size_t node, uint64_t chain) {
  RedisBlockName name = RedisTestName(chain, 0);
  const std::string key = testing::RedisTestGenerationKey(name.group);
  const std::string said = cluster.raw(LeaderOf(cluster, name.group))->Text({"GET", key});
  const uint64_t generation = std::stoull(said.substr(0, said.find(':')));
  do {
    name = RedisTestName(++chain, 0);
    name.generation = generation;
  } while (cluster.OwnerOf(SlotOf(name)) != node);
  return name;
}

// PROMISE: T43 a Cluster of which one node takes no writes
TEST(RedisCluster, ANodeThatTakesNoWritesHoldsUpNoOtherAndIsAskedItself) {
  TERRACE_NEEDS_REDIS();
  RedisCluster cluster({});
  RedisRig rig(OptionsOf(cluster));
  WaitForCluster(rig, cluster);
  ASSERT_TRUE(rig.StoreNow(RedisTestName(1, 0), 7, kSmallBytes).ok());
  const size_t leader = LeaderOf(cluster, RedisTestName(1, 0).group);
  const size_t full = (leader + 1) % cluster.size(), well = (leader + 2) % cluster.size();
  ASSERT_TRUE(rig.StoreNow(NameOn(cluster, full, 1), 7, kSmallBytes).ok());
  cluster.raw(full)->Command({"CONFIG", "SET", "maxmemory", "1"});
  for (uint64_t i = 0; i < 20; ++i) {
    const uint64_t chain = 1'000 * (i + 1);
    const size_t length_bytes = i % 2 == 0 ? kSmallBytes : kLengthBytes;
    EXPECT_EQ(rig.StoreNow(NameOn(cluster, full, chain), 7, length_bytes).code(),
              StatusCode::kNoSpace);
    const Status stored = rig.StoreNow(NameOn(cluster, well, chain), 7, length_bytes);
    EXPECT_TRUE(stored.ok()) << stored.what() << ": another node takes writes";
    EXPECT_EQ(rig.tier().stats().write_trouble, ToText(cluster.node(full).tcp_endpoint()) +
                                                    ": the Redis server is full and evicts nothing")
        << "what others take says nothing of it";
  }
  EXPECT_TRUE(rig.FetchNow(NameOn(cluster, full, 1), kSmallBytes).status.ok());
  EXPECT_LE(cluster.ErrorsOf(full, "OOM"), 6u) << "it is given no writes for a second after each";
  cluster.raw(full)->Command({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_TRUE(rig.RunTicking([&] { return rig.tier().stats().write_trouble.empty(); }))
      << "it heals though nobody stores";
  EXPECT_TRUE(rig.StoreNow(NameOn(cluster, full, 50'000), 7, kLengthBytes).ok());
}

// What is refused there is the generation of a group, all of whose blocks are elsewhere.
TEST(RedisCluster, ANodeThatTakesNoGenerationIsSaidToTakeNoWritesUntilItDoes) {
  TERRACE_NEEDS_REDIS();
  RedisCluster cluster({});
  RedisRig rig(OptionsOf(cluster));
  WaitForCluster(rig, cluster);
  const RedisBlockName name = RedisTestName(1, 0);
  const size_t full = LeaderOf(cluster, name.group);
  cluster.raw(full)->Command({"CONFIG", "SET", "maxmemory", "1"});
  EXPECT_FALSE(rig.StoreNow(name, 7, kSmallBytes).ok());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(7);
  EXPECT_TRUE(rig.RunTicking([&] {
    EXPECT_FALSE(rig.StoreNow(name, 7, kSmallBytes).ok());
    EXPECT_FALSE(rig.tier().stats().write_trouble.empty());
    return std::chrono::steady_clock::now() > end;
  }));
  cluster.raw(full)->Command({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_TRUE(rig.RunTicking([&] { return rig.StoreNow(name, 7, kSmallBytes).ok(); }));
  EXPECT_TRUE(rig.tier().stats().write_trouble.empty());
}

// The others serve on, and say nothing of it.
TEST(RedisCluster, ANodeThatRefusesTheLoginIsNamedAsIsWhy) {
  TERRACE_NEEDS_REDIS();
  RedisCluster cluster({});
  RedisRig rig(OptionsOf(cluster));
  WaitForCluster(rig, cluster);
  ASSERT_TRUE(rig.StoreNow(RedisTestName(1, 0), 7, kSmallBytes).ok());
  EXPECT_EQ(rig.tier().stats().part_trouble, "");
  const std::unique_ptr<RawRedis> raw = cluster.raw(1);
  raw->Command({"CONFIG", "SET", "requirepass", "secret"});
  raw->Command({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
  EXPECT_TRUE(rig.RunTicking([&] {
    return rig.tier().stats().part_trouble ==
           ToText(cluster.node(1).tcp_endpoint()) + ": the Redis server refuses this user";
  })) << rig.tier().stats().part_trouble;
  EXPECT_TRUE(rig.tier().stats().is_ready);
  EXPECT_TRUE(rig.tier().stats().is_refused);
  raw->Command({"CONFIG", "SET", "requirepass", ""});
  EXPECT_TRUE(rig.RunTicking([&] { return rig.tier().stats().part_trouble.empty(); }));
  EXPECT_FALSE(rig.tier().stats().is_refused);
}

// It has come back, or another has taken over from it, while others were there all the while.
TEST(RedisCluster, OfANodeThatWasAwayAGenerationIsAskedForAgain) {
  TERRACE_NEEDS_REDIS();
  RedisCluster cluster({});
  RedisRig rig(OptionsOf(cluster));
  WaitForCluster(rig, cluster);
  ASSERT_TRUE(rig.StoreNow(RedisTestName(1, 0), 7, kSmallBytes).ok());
  const size_t leader = LeaderOf(cluster, RedisTestName(1, 0).group);
  const RedisBlockName name = NameOn(cluster, (leader + 1) % cluster.size(), 1);
  ASSERT_TRUE(rig.StoreNow(name, 7, kSmallBytes).ok());
  cluster.raw(leader)->Command({"CONFIG", "SET", "min-replicas-to-write", "1"});
  EXPECT_TRUE(rig.FetchNow(name, kSmallBytes).status.ok());
  const uint64_t lost = rig.tier().stats().connections_lost;
  const uint64_t connections = rig.tier().stats().connections;
  cluster.raw(leader)->Command({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
  ASSERT_TRUE(rig.RunTicking([&] {
    const SharedTierStats stats = rig.tier().stats();
    EXPECT_TRUE(stats.is_ready);
    return stats.connections_lost > lost && stats.connections == connections;
  }));
  EXPECT_FALSE(rig.FetchNow(name, kSmallBytes).status.ok());
  cluster.raw(leader)->Command({"CONFIG", "SET", "min-replicas-to-write", "0"});
  EXPECT_TRUE(rig.FetchNow(name, kSmallBytes).status.ok());
}

// More rises are owed on a node that takes none than are tried at once.
TEST(RedisCluster, RisesOfOtherNodesAreToldBesideOneThatTakesNone) {
  TERRACE_NEEDS_REDIS();
  constexpr uint64_t kGroups = 1'200;
  RedisCluster cluster({});
  RedisRig rig(OptionsOf(cluster));
  WaitForCluster(rig, cluster);
  const size_t full = 0;
  cluster.raw(full)->Command({"CONFIG", "SET", "min-replicas-to-write", "1"});
  uint64_t there = 0;
  for (uint64_t i = 0; i < kGroups; ++i) {
    const GroupId group{i + 1, 77};
    there += LeaderOf(cluster, group) == full ? 1 : 0;
    rig.tier().Forget(group);
  }
  ASSERT_GT(there, 256u) << "operations_max";
  EXPECT_TRUE(rig.RunTicking([&] { return rig.tier().stats().forgets_owed == there; }))
      << rig.tier().stats().forgets_owed << " are owed, of that node are " << there;
  // Each was tried once; from then on one finds out for all.
  EXPECT_TRUE(rig.RunTicking([&] { return cluster.ErrorsOf(full, "NOREPLICAS") >= there; }));
  const uint64_t refused = cluster.ErrorsOf(full, "NOREPLICAS");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  (void)rig.RunTicking([&] { return std::chrono::steady_clock::now() > end; });
  EXPECT_LE(cluster.ErrorsOf(full, "NOREPLICAS") - refused, 8u) << "one a second, and a look";
  cluster.raw(full)->Command({"CONFIG", "SET", "min-replicas-to-write", "0"});
  EXPECT_TRUE(rig.RunTicking([&] { return rig.tier().stats().forgets_owed == 0; }));
}

// More have lost their generations on a node that is told of none than are looked at in one tick.
TEST(RedisCluster, RisesThatANodeHasLostAreSeenBesideOneThatIsToldOfNone) {
  TERRACE_NEEDS_REDIS();
  constexpr size_t kLost = 40;
  RedisCluster cluster({});
  RedisRig rig(OptionsOf(cluster));
  WaitForCluster(rig, cluster);
  const size_t refusing = 0, well = 1;
  auto next_on = [&, low = uint64_t{0}](size_t node) mutable {
    for (;;) {
      const GroupId group{++low, 78};
      if (LeaderOf(cluster, group) == node) return group;
    }
  };
  std::vector<GroupId> lost;
  for (size_t i = 0; i < kLost; ++i) lost.push_back(next_on(refusing));
  for (const GroupId& group : lost) rig.tier().Forget(group);
  ASSERT_TRUE(rig.RunTicking([&] { return rig.tier().stats().forgets_owed == 0; }));
  const GroupId other = next_on(well);
  rig.tier().Forget(other);
  ASSERT_TRUE(rig.RunTicking([&] { return rig.tier().stats().forgets_owed == 0; }));
  const std::unique_ptr<RawRedis> at_refusing = cluster.raw(refusing), at_well = cluster.raw(well);
  for (const GroupId& group : lost) {
    at_refusing->Command(
        {"SET", testing::RedisTestGenerationKey(group), testing::RedisTestGeneration(group, 63)});
  }
  at_refusing->Command({"CONFIG", "SET", "min-replicas-to-write", "1"});
  const std::string key = testing::RedisTestGenerationKey(other);
  const std::string older = testing::RedisTestGeneration(other, 63);
  at_well->Command({"SET", key, older});
  EXPECT_TRUE(rig.RunTicking([&] { return at_well->Text({"GET", key}) != older; }));
  at_refusing->Command({"CONFIG", "SET", "min-replicas-to-write", "0"});
  for (const GroupId& group : lost) {
    EXPECT_TRUE(rig.RunTicking([&] {
      return at_refusing->Text({"GET", testing::RedisTestGenerationKey(group)}) !=
             testing::RedisTestGeneration(group, 63);
    }));
  }
}

TEST(RedisSentinel, AFailoverIsFollowed) {
  TERRACE_NEEDS_REDIS();
  if (testing::FindProgram("redis-sentinel").empty()) {
    GTEST_SKIP() << "SKIPPED: redis-sentinel is not installed; run tools/setup";
  }
  auto master = std::make_unique<RedisProcess>();
  RedisProcess replica({.arguments = {"--replicaof", "127.0.0.1", std::to_string(master->port())}});
  const std::string watched = "sentinel monitor shared 127.0.0.1 " +
                              std::to_string(master->port()) +
                              " 1\nsentinel down-after-milliseconds shared 500\n"
                              "sentinel failover-timeout shared 3000\n";
  RedisProcess sentinel({.program = "redis-sentinel", .config = watched});
  RedisTier::Options options = RedisRig::Options(sentinel.tcp_endpoint());
  options.topology = RedisTopology::kSentinel;
  options.master_name = "shared";
  RedisRig rig(options);
  rig.WaitUntilReady();
  ASSERT_TRUE(rig.StoreNow(RedisTestName(1, 0), 1, kLengthBytes).ok());
  // The Sentinel knows the replica, and the replica has the block.
  ASSERT_TRUE(rig.RunUntil([&] {
    return sentinel.Connect()->Text({"INFO", "sentinel"}).find("slaves=1") != std::string::npos &&
           replica.Connect()->Keys().size() == master->Connect()->Keys().size();
  }));
  master->Kill();
  ASSERT_TRUE(rig.RunUntil([&] {
    return rig.tier().stats().is_ready && rig.StoreNow(RedisTestName(2, 0), 2, kLengthBytes).ok();
  }));
  EXPECT_TRUE(rig.FetchNow(RedisTestName(1, 0), kLengthBytes).status.ok());
}

// The file with the servers' password would not help: it is never sent there.
TEST(RedisSentinel, OneThatWantsAPasswordIsNamedAndNotTheFileOfThePassword) {
  TERRACE_NEEDS_REDIS();
  if (testing::FindProgram("redis-sentinel").empty()) {
    GTEST_SKIP() << "SKIPPED: redis-sentinel is not installed; run tools/setup";
  }
  RedisProcess sentinel({.program = "redis-sentinel",
                         .config = "requirepass secret\nsentinel resolve-hostnames no",
                         .password = "secret"});
  RedisTier::Options options = RedisRig::Options(sentinel.tcp_endpoint());
  options.topology = RedisTopology::kSentinel;
  options.master_name = "shared";
  RedisRig rig(options);
  const std::string named = "the Sentinel at " + ToText(sentinel.tcp_endpoint());
  ASSERT_TRUE(rig.RunUntil([&] { return rig.tier().stats().trouble.starts_with(named); }))
      << rig.tier().stats().trouble;
  EXPECT_THAT(rig.tier().stats().trouble,
              AllOf(HasSubstr("wants a password, and none is sent to Sentinels"),
                    HasSubstr("requirepass")));
  EXPECT_FALSE(rig.tier().stats().is_refused) << "it is not the servers' login";
  sentinel.Connect()->Command({"ACL", "SETUSER", "default", "nopass"});
  EXPECT_TRUE(rig.RunUntil([&] {
    return rig.tier().stats().trouble.find("knows no master") != std::string::npos;
  })) << rig.tier().stats().trouble;
}

TEST(RedisSentinel, WhoIsNoneAndANameThatNoneKnowsAreNamed) {
  TERRACE_NEEDS_REDIS();
  if (testing::FindProgram("redis-sentinel").empty()) {
    GTEST_SKIP() << "SKIPPED: redis-sentinel is not installed; run tools/setup";
  }
  RedisProcess master;
  RedisProcess sentinel({.program = "redis-sentinel", .config = "sentinel resolve-hostnames no"});
  RedisTier::Options options = RedisRig::Options(master.tcp_endpoint());
  options.topology = RedisTopology::kSentinel;
  options.master_name = "shared";
  {
    RedisRig rig(options);
    ASSERT_TRUE(rig.RunUntil([&] { return rig.tier().stats().is_of_another_kind; }));
    EXPECT_THAT(rig.tier().stats().trouble,
                AllOf(StartsWith(ToText(master.tcp_endpoint()) + " is no Sentinel"),
                      HasSubstr("redis.endpoints")));
  }
  // Who is asked first is none; the other one does not know the name, and hears of it.
  options.endpoints = {master.tcp_endpoint(), sentinel.tcp_endpoint()};
  RedisRig rig(options);
  ASSERT_TRUE(rig.RunUntil(
      [&] { return rig.tier().stats().trouble.find("knows no master") != std::string::npos; }));
  EXPECT_THAT(rig.tier().stats().trouble,
              AllOf(HasSubstr(ToText(sentinel.tcp_endpoint())), HasSubstr("\"shared\""),
                    HasSubstr("redis.master_name")));
  EXPECT_TRUE(rig.tier().stats().is_of_another_kind);
  ASSERT_EQ(sentinel.Connect()->Text(
                {"SENTINEL", "MONITOR", "shared", "127.0.0.1", std::to_string(master.port()), "1"}),
            "OK");
  rig.WaitUntilReady();
  EXPECT_FALSE(rig.tier().stats().is_of_another_kind);
  EXPECT_EQ(rig.tier().stats().trouble, "");
  EXPECT_TRUE(rig.StoreNow(RedisTestName(1, 0), 1, kLengthBytes).ok());
}

}  // namespace
}  // namespace terrace

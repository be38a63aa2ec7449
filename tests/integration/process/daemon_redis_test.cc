// Hosts that share a real redis-server: what one stores another is served, and what becomes of them
// when the server goes, comes back, is slow, or holds somebody else's bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>

#include "integration/process/redis_hosts.h"
#include "redis/redis_process.h"
#include "tiers/redis/redis_format.h"
#include "unit/daemon/metrics/visitor.h"

namespace terrace::test {
namespace {

using protocol::TierKind;
using ::terrace::testing::RedisProcess;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint32_t kBlocks = 70;  // more than a run

std::string EndpointOf(const RedisProcess& server) { return ToText(server.unix_endpoint()); }

// How many reads the server has answered, of bitmaps and of blocks.
uint64_t ReadCalls(const RedisProcess& server) {
  std::istringstream lines(server.Connect()->Text({"INFO", "commandstats"}));
  uint64_t calls = 0;
  for (std::string line; std::getline(lines, line);) {
    for (const std::string head : {"cmdstat_get:calls=", "cmdstat_mget:calls="}) {
      if (line.starts_with(head)) calls += std::stoull(line.substr(head.size()));
    }
  }
  return calls;
}

bool HasStored(RedisHost& host, uint64_t block_count) {
  return Eventually(
      [&] { return host.Redis("blocks_stored") + host.Redis("blocks_existing") >= block_count; });
}

// A server and two hosts, or three, at it.
struct Hosts {
  RedisProcess server;
  RedisHost a{EndpointOf(server), RedisHost::Patient()};
  RedisHost b{EndpointOf(server), RedisHost::Patient()};
  std::optional<RedisHost> c;

  bool Connect(uint32_t part_count = 2) {
    if (!a.Connect(part_count) || !b.Connect(part_count)) return false;
    if (c.has_value() && !c->Connect(part_count)) return false;
    return Eventually([this] { return a.IsReady() && b.IsReady() && (!c || c->IsReady()); });
  }
  void AddThird() { c.emplace(EndpointOf(server), RedisHost::Patient()); }
  std::string Errors() {
    return a.daemon().Errors() + b.daemon().Errors() + (c ? c->daemon().Errors() : "");
  }
};

// Chunks that carry the name of their write, and a manifest of their own.
TEST(DaemonRedis, ABlockOfMoreThan128KiBIsServedAsWell) {
  TERRACE_NEEDS_REDIS();
  constexpr uint32_t kParts = 5, kLarge = 20;
  static_assert(kParts * kPartBytes > kRedisSmallBlockBytesMax);
  Hosts hosts;
  ASSERT_TRUE(hosts.Connect(kParts)) << hosts.Errors();
  ASSERT_EQ(hosts.a.Store(Keys(kLarge)), kLarge);
  ASSERT_TRUE(HasStored(hosts.a, kLarge)) << hosts.a.Stats()["redis"];
  const RedisHost::Loaded loaded = hosts.b.Load(Keys(kLarge));
  EXPECT_EQ(loaded.block_count, kLarge) << hosts.b.Stats()["redis"];
  EXPECT_EQ(loaded.wrong_count, 0u);
  EXPECT_EQ(loaded.tier, TierKind::kRedis);
}

TEST(DaemonRedis, OneHostIsServedWhatAnotherStored) {
  TERRACE_NEEDS_REDIS();
  Hosts hosts;
  ASSERT_TRUE(hosts.Connect()) << hosts.Errors();
  RedisHost &a = hosts.a, &b = hosts.b;
  const auto keys = Keys(kBlocks);
  ASSERT_EQ(a.Store(keys), kBlocks);
  ASSERT_TRUE(HasStored(a, kBlocks)) << a.Stats()["redis"];

  EXPECT_EQ(b.client().Match(b.group(), keys)->block_count, 0u) << "a Match is local";
  const RedisHost::Loaded first = b.Load(keys);
  EXPECT_EQ(first.block_count, kBlocks) << b.Stats()["redis"] << b.daemon().Errors();
  EXPECT_EQ(first.wrong_count, 0u);
  EXPECT_EQ(first.tier, TierKind::kRedis);
  const RedisHost::Loaded second = b.Load(keys);
  EXPECT_EQ(second.block_count, kBlocks);
  EXPECT_EQ(second.tier, TierKind::kDram);
  EXPECT_EQ(b.Redis("blocks_fetched"), kBlocks);
  EXPECT_EQ(b.client().Match(b.group(), keys)->block_count, kBlocks);
  // What is there already is not given back.
  EXPECT_EQ(b.Redis("blocks_stored") + b.Redis("blocks_existing"), 0u);
}

// A quota is a host's own: another has one of its own on the same server.
TEST(DaemonRedis, AHostGivesNoMoreThanItsShareWithinTheTimeToLive) {
  TERRACE_NEEDS_REDIS();
  constexpr uint64_t kShareBytes = 2 * kMiB, kBlockBytes = 2 * kPartBytes;
  RedisProcess server;
  RedisHost a(EndpointOf(server), RedisHost::Patient() + "capacity_bytes = \"2MiB\"\nttl_s = 10\n");
  RedisHost b(EndpointOf(server), RedisHost::Patient() + "capacity_bytes = \"2MiB\"\n");
  ASSERT_TRUE(a.Connect() && b.Connect()) << a.daemon().Errors() << b.daemon().Errors();
  ASSERT_TRUE(Eventually([&] { return a.IsReady() && b.IsReady(); }));
  const auto given = [](RedisHost& host) {
    return host.Redis("blocks_stored") + host.Redis("blocks_over_quota");
  };
  ASSERT_EQ(a.Store(Keys(kBlocks)), kBlocks);
  ASSERT_TRUE(Eventually([&] { return given(a) >= kBlocks; })) << a.Stats()["redis"];
  const uint64_t stored = a.Redis("blocks_stored");
  EXPECT_LE(stored * kBlockBytes, kShareBytes);
  EXPECT_GE((stored + 2) * kBlockBytes, kShareBytes) << "but for what slots are rounded up to";
  ASSERT_EQ(b.Store(Keys(kBlocks, 8)), kBlocks);
  ASSERT_TRUE(Eventually([&] { return given(b) >= kBlocks; })) << b.Stats()["redis"];
  EXPECT_EQ(b.Redis("blocks_stored"), stored);
  // What the server has dropped counts no more, and what is served is offered again.
  EXPECT_TRUE(Eventually([&] {
    (void)a.Load(Keys(kBlocks));
    return a.Redis("blocks_stored") + a.Redis("blocks_existing") > stored;
  })) << a.Stats()["redis"];
}

TEST(DaemonRedis, TheRestOfAPrefixComesFromAnotherHost) {
  TERRACE_NEEDS_REDIS();
  Hosts hosts;
  ASSERT_TRUE(hosts.Connect()) << hosts.Errors();
  RedisHost &a = hosts.a, &b = hosts.b;
  const auto keys = Keys(kBlocks);
  const std::vector<BlockKey> head(keys.begin(), keys.begin() + 50);
  ASSERT_EQ(b.Store(head), 50u);
  ASSERT_TRUE(HasStored(b, 50));
  ASSERT_EQ(a.Store(keys), kBlocks);
  ASSERT_TRUE(HasStored(a, kBlocks)) << a.Stats()["redis"];
  EXPECT_EQ(a.Redis("blocks_existing"), 50u);
  const RedisHost::Loaded loaded = b.Load(keys);
  EXPECT_EQ(loaded.block_count, kBlocks) << b.Stats()["redis"];
  EXPECT_EQ(loaded.wrong_count, 0u);
  EXPECT_EQ(loaded.tier, TierKind::kDram);
  EXPECT_EQ(b.Redis("blocks_fetched"), kBlocks - 50u);
}

TEST(DaemonRedis, EightClientsWhoAskForOnePrefixCauseOneFetch) {
  TERRACE_NEEDS_REDIS();
  Hosts hosts;
  hosts.AddThird();
  ASSERT_TRUE(hosts.Connect()) << hosts.Errors();
  RedisProcess& server = hosts.server;
  RedisHost &a = hosts.a, &b = hosts.b, &c = *hosts.c;
  const auto keys = Keys(kBlocks);
  ASSERT_EQ(a.Store(keys), kBlocks);
  ASSERT_TRUE(HasStored(a, kBlocks));

  const uint64_t before = ReadCalls(server);
  ASSERT_EQ(c.Load(keys).block_count, kBlocks);
  const uint64_t of_one = ReadCalls(server) - before;

  constexpr uint32_t kClients = 8;
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t i = 0; i < kClients; ++i) clients.push_back(b.NewClient());
  std::vector<RedisHost::Loaded> loaded(kClients);
  const uint64_t middle = ReadCalls(server);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] {
      const GroupRef group = clients[i]->Open(Model(), 1).value();
      loaded[i] = RedisHost::LoadBy(*clients[i], group, keys);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const uint64_t of_eight = ReadCalls(server) - middle;
  for (const RedisHost::Loaded& one : loaded) {
    EXPECT_EQ(one.block_count, kBlocks);
    EXPECT_EQ(one.wrong_count, 0u);
  }
  EXPECT_GE(of_one, kBlocks) << "one a block, at least";
  // Each might have looked once for itself, two runs each; fetched is once.
  EXPECT_LE(of_eight, of_one + 2 * (kClients - 1));
  EXPECT_EQ(b.Redis("fetches_found"), kBlocks);
}

TEST(DaemonRedis, AKilledServerIsAMissAndItsReturnIsNoticed) {
  TERRACE_NEEDS_REDIS();
  Hosts hosts;
  ASSERT_TRUE(hosts.Connect()) << hosts.Errors();
  RedisProcess& server = hosts.server;
  RedisHost &a = hosts.a, &b = hosts.b;
  const auto keys = Keys(kBlocks), others = Keys(kBlocks, 8);
  ASSERT_EQ(a.Store(keys), kBlocks);
  ASSERT_TRUE(HasStored(a, kBlocks));

  server.Kill();
  EXPECT_EQ(b.Load(keys).block_count, 0u);
  EXPECT_EQ(a.Load(keys).block_count, kBlocks) << "DRAM serves";
  EXPECT_EQ(a.Store(others), kBlocks) << "and takes";
  ASSERT_TRUE(Eventually([&] { return !a.IsReady() && !b.IsReady(); }));
  EXPECT_FALSE(b.Stats()["redis"]["trouble"].get<std::string>().empty());

  ASSERT_TRUE(Eventually([&] {
    return b.daemon().Errors().find("redis is away") != std::string::npos;
  })) << b.daemon().Errors();

  server.Start();  // empty
  ASSERT_TRUE(Eventually([&] { return a.IsReady() && b.IsReady(); })) << b.daemon().Errors();
  // What could not be given went as soon as the server was back; what it lost goes at its next use.
  EXPECT_TRUE(Eventually([&] { return b.Load(others).block_count == kBlocks; }))
      << a.Stats()["redis"];
  EXPECT_TRUE(Eventually([&] {
    (void)a.Load(keys);
    return b.Load(keys).block_count == kBlocks;
  })) << a.Stats()["redis"];
  EXPECT_EQ(b.Load(keys).wrong_count, 0u);
}

TEST(DaemonRedis, AServerKilledWhileItServesCutsThePrefix) {
  TERRACE_NEEDS_REDIS();
  Hosts hosts;
  ASSERT_TRUE(hosts.Connect()) << hosts.Errors();
  RedisProcess& server = hosts.server;
  RedisHost &a = hosts.a, &b = hosts.b;
  std::vector<std::vector<BlockKey>> prompts;
  for (uint64_t prompt = 1; prompt <= 4; ++prompt) {
    prompts.push_back(Keys(60, prompt));
    ASSERT_EQ(a.Store(prompts.back()), 60u);
  }
  ASSERT_TRUE(HasStored(a, 240));
  std::vector<RedisHost::Loaded> loaded(prompts.size());
  std::vector<std::unique_ptr<Client>> clients;
  for (size_t i = 0; i < prompts.size(); ++i) clients.push_back(b.NewClient());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < prompts.size(); ++i) {
    threads.emplace_back([&, i] {
      const GroupRef group = clients[i]->Open(Model(), 1).value();
      loaded[i] = RedisHost::LoadBy(*clients[i], group, prompts[i]);
    });
  }
  (void)Eventually([&] { return b.Redis("operations_in_flight") > 0; });
  server.Kill();
  for (std::thread& thread : threads) thread.join();  // nobody hangs
  for (const RedisHost::Loaded& one : loaded) {
    EXPECT_EQ(one.wrong_count, 0u);
    EXPECT_LE(one.block_count, 60u);
  }
  EXPECT_EQ(a.Load(prompts[0]).block_count, 60u);
  ASSERT_EQ(b.Store(Keys(10, 99)), 10u);
  EXPECT_EQ(b.Load(Keys(10, 99)).block_count, 10u);
}

// PROMISE: T40 what an Acquire waits
TEST(DaemonRedis, AServerThatHangsCostsAnAcquireNoMoreThanItsProbe) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisHost b(EndpointOf(server), "probe_timeout_us = 20000\ncommand_timeout_ms = 60000\n");
  ASSERT_TRUE(b.Connect()) << b.daemon().Errors();
  ASSERT_TRUE(Eventually([&] { return b.IsReady(); }));
  server.Pause();
  EXPECT_EQ(b.Load(Keys(kBlocks)).block_count, 0u);
  EXPECT_GE(b.Redis("seeks_late"), 1u) << b.Stats()["redis"];
  server.Resume();
}

TEST(DaemonRedis, HostsThatStoreOtherBytesUnderEqualKeysAreNeverMixed) {
  TERRACE_NEEDS_REDIS();
  Hosts hosts;
  hosts.AddThird();
  ASSERT_TRUE(hosts.Connect()) << hosts.Errors();
  RedisHost &a = hosts.a, &b = hosts.b, &c = *hosts.c;
  const auto keys = Keys(kBlocks);
  std::thread other([&] { EXPECT_EQ(a.Store(keys, 1), kBlocks); });
  EXPECT_EQ(b.Store(keys, 2), kBlocks);
  other.join();
  ASSERT_TRUE(HasStored(a, kBlocks) && HasStored(b, kBlocks));
  EXPECT_EQ(a.Redis("blocks_stored") + b.Redis("blocks_stored"), kBlocks) << "one wins, each time";
  const RedisHost::Loaded loaded = c.Load(keys, {}, 3);
  EXPECT_EQ(loaded.block_count, kBlocks) << c.Stats()["redis"];
  EXPECT_EQ(loaded.wrong_count, 0u);
  for (const uint64_t writer : loaded.writers) EXPECT_NE(writer, 0u);
  const RedisHost::Loaded own = a.Load(keys, {}, 3);
  EXPECT_EQ(own.writers, std::vector<uint64_t>(kBlocks, 1)) << "a host serves what it has";
}

TEST(DaemonRedis, AFullQueueDropsAndCountsAndCommitsGoOn) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server({.waits_until_ready = false});
  server.Kill();
  RedisHost a(EndpointOf(server), RedisHost::Patient() + "queue_bytes_max = \"1MiB\"\n");
  ASSERT_TRUE(a.Connect()) << a.daemon().Errors();
  ASSERT_EQ(a.Store(Keys(kBlocks)), kBlocks);
  ASSERT_TRUE(Eventually([&] { return a.Redis("blocks_dropped") > 0; })) << a.Stats()["redis"];
  const uint64_t queued = a.Redis("queued_blocks");
  EXPECT_EQ(queued + a.Redis("blocks_dropped"), kBlocks);
  EXPECT_LE(a.Redis("queued_bytes"), kMiB);
  EXPECT_GT(queued, 0u);
  // What is wanted more takes the place of what is wanted less.
  ASSERT_EQ(a.Store(Keys(1, 8), 0, {.hints = {.priority = 90}}), 1u);
  ASSERT_TRUE(Eventually([&] { return a.Redis("blocks_dropped") == kBlocks - queued + 1; }));
  server.Start();
  ASSERT_TRUE(HasStored(a, queued)) << a.Stats()["redis"];
}

// With blocks that wait for a server that hangs.
void StopWithBlocksWaiting(RedisHost* host, RedisProcess* server) {
  ASSERT_TRUE(host->Connect()) << host->daemon().Errors();
  ASSERT_TRUE(Eventually([&] { return host->IsReady(); }));
  server->Pause();
  ASSERT_EQ(host->Store(Keys(kBlocks)), kBlocks);
  ASSERT_TRUE(Eventually([&] {
    return host->Redis("queued_blocks") + host->Redis("stores_under_way") == kBlocks;
  })) << host->Stats()["redis"];
  host->daemon().Signal(SIGTERM);
  ASSERT_TRUE(
      Eventually([&] { return host->daemon().Errors().find("stopping") != std::string::npos; }));
}

TEST(DaemonRedis, AStopGivesWhatWaits) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisHost a(EndpointOf(server), RedisHost::Patient() + "drain_ms = 20000\n");
  StopWithBlocksWaiting(&a, &server);
  server.Resume();
  EXPECT_EQ(a.daemon().Wait(), 0) << a.daemon().Errors();
  EXPECT_THAT(a.daemon().Errors(), Not(HasSubstr("before their turn")));
  RedisHost b(EndpointOf(server), RedisHost::Patient());
  ASSERT_TRUE(b.Connect()) << b.daemon().Errors();
  ASSERT_TRUE(Eventually([&] { return b.IsReady(); }));
  const RedisHost::Loaded loaded = b.Load(Keys(kBlocks));
  EXPECT_EQ(loaded.block_count, kBlocks);
  EXPECT_EQ(loaded.wrong_count, 0u);
}

TEST(DaemonRedis, AStopDoesNotWaitForAServerThatHangsAndSaysWhatIsLost) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisHost a(EndpointOf(server), RedisHost::Patient() + "drain_ms = 50\n");
  StopWithBlocksWaiting(&a, &server);
  EXPECT_EQ(a.daemon().Wait(), 0) << a.daemon().Errors();
  EXPECT_THAT(a.daemon().Errors(), AllOf(HasSubstr("before their turn"),
                                         HasSubstr("blocks=" + std::to_string(kBlocks))));
  server.Resume();
}

TEST(DaemonRedis, WhatIsComputedFasterIsNotFetched) {
  TERRACE_NEEDS_REDIS();
  Hosts hosts;
  ASSERT_TRUE(hosts.Connect()) << hosts.Errors();
  RedisHost &a = hosts.a, &b = hosts.b;
  const auto keys = Keys(kBlocks);
  ASSERT_EQ(a.Store(keys), kBlocks);
  ASSERT_TRUE(HasStored(a, kBlocks));
  EXPECT_EQ(b.Load(keys, {.hints = {.recompute_ns_per_token = 1}}).block_count, 0u);
  EXPECT_GE(b.Redis("blocks_not_worth"), kBlocks);
  EXPECT_EQ(b.Redis("fetches_found"), 0u);
  EXPECT_EQ(b.Load(keys, {.hints = {.recompute_ns_per_token = 1'000'000'000}}).block_count,
            kBlocks);
}

TEST(DaemonRedis, WhatIsNotToBeStoredStaysOnItsHost) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisHost a(EndpointOf(server), RedisHost::Patient());
  ASSERT_TRUE(a.Connect()) << a.daemon().Errors();
  ASSERT_EQ(a.Store(Keys(5, 1), 0, {.hints = {.flags = protocol::kHintNoStore}}), 5u);
  ASSERT_EQ(a.Store(Keys(5, 2)), 5u);
  ASSERT_TRUE(HasStored(a, 5));
  EXPECT_EQ(a.Load(Keys(5, 1)).block_count, 5u);
  ASSERT_EQ(a.Store(Keys(5, 3)), 5u);
  ASSERT_TRUE(HasStored(a, 10));
  ASSERT_TRUE(Eventually(
      [&] { return a.Redis("queued_blocks") == 0 && a.Redis("operations_in_flight") == 0; }));
  EXPECT_EQ(a.Redis("blocks_stored"), 10u);
}

// PROMISE: T39 files that others can read
TEST(DaemonRedis, CredentialsThatOthersCanReadAreRefusedWithTheRemedy) {
  DaemonProcess daemon;
  const std::string file = daemon.WriteFile("credentials", "swordfish\n", 0644);
  const std::string config = daemon.WriteFile(
      "t.toml",
      "[redis]\nendpoints = [\"unix:/run/redis.sock\"]\ncredentials_file = \"" + file + "\"\n");
  daemon.Start({"--config", config, "--socket", daemon.socket_path(), "--check-config"});
  EXPECT_EQ(daemon.Wait(), 2);
  EXPECT_THAT(daemon.Errors(), AllOf(HasSubstr("redis.credentials_file"), HasSubstr(file),
                                     HasSubstr("0600"), Not(HasSubstr("swordfish"))));
}

// All of a file, of those that have no size, too.
std::string TextOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// PROMISE: T39 status, log, figures, arguments, environment and core files
TEST(DaemonRedis, APasswordIsNeverShown) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server({.config = "requirepass swordfish\n", .password = "swordfish"});
  RedisHost wrong(EndpointOf(server), RedisHost::Patient());
  ASSERT_TRUE(wrong.Connect()) << "a server that refuses us keeps no daemon from serving";
  const std::string file = wrong.daemon().WriteFile("credentials", "swordfish\n");
  uint16_t port = 0;
  close(ListenAnywhere(&port));
  RedisHost right(EndpointOf(server),
                  RedisHost::Patient() + "credentials_file = \"" + file +
                      "\"\n[metrics]\nlisten = \"127.0.0.1:" + std::to_string(port) + "\"\n");
  ASSERT_TRUE(right.Connect()) << right.daemon().Errors();
  ASSERT_TRUE(Eventually([&] { return right.IsReady(); })) << right.Stats()["redis"];
  ASSERT_TRUE(Eventually([&] { return wrong.Stats()["redis"]["is_refused"].get<bool>(); }))
      << wrong.Stats()["redis"];
  ASSERT_EQ(right.Store(Keys(5)), 5u);
  // Neither the password nor what the domain's secret file says.
  const std::string secret = TextOf(right.daemon().directory() + "/secret").substr(20, 64);
  ASSERT_EQ(secret.size(), 64u);
  const pid_t pid = right.daemon().pid();
  std::map<std::string, std::string> shown = {
      {"status", right.Stats().dump()},
      {"metrics", Get(port, "/metrics").body},
      {"arguments", TextOf("/proc/" + std::to_string(pid) + "/cmdline")},
      {"environment", TextOf("/proc/" + std::to_string(pid) + "/environ")},
  };
  EXPECT_NE(shown["metrics"].find("tier=\"redis\""), std::string::npos);
  EXPECT_THAT(shown["arguments"], HasSubstr("--config"));
  // A crash leaves no core: the kernel is told not to write one, whatever the limit.
  EXPECT_THAT(TextOf("/proc/" + std::to_string(pid) + "/limits"),
              ::testing::ContainsRegex("Max core file size +0 "));
  right.daemon().Signal(SIGABRT);
  const int status = right.daemon().Wait();
  EXPECT_EQ(status, 128 + SIGABRT);
  shown["log"] = right.daemon().Errors();
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(right.daemon().directory())) {
    const std::string name = entry.path().filename();
    EXPECT_FALSE(name.starts_with("core")) << entry.path();
    if (entry.is_regular_file() && name != "secret" && name != "credentials") {
      shown[entry.path()] = TextOf(entry.path());
    }
  }
  for (const auto& [where, text] : shown) {
    EXPECT_THAT(text, AllOf(Not(HasSubstr("swordfish")), Not(HasSubstr(secret)))) << where;
  }
}

// ---- what was erased ----

// PROMISE: T03 erasures, on hosts that share a server
TEST(DaemonRedis, AResetBringsNothingBackFromTheServerOnEitherHost) {
  TERRACE_NEEDS_REDIS();
  Hosts hosts;
  ASSERT_TRUE(hosts.Connect()) << hosts.Errors();
  RedisHost &a = hosts.a, &b = hosts.b;
  const auto keys = Keys(32);
  ASSERT_EQ(a.Store(keys), 32u);
  ASSERT_TRUE(HasStored(a, 32)) << a.Stats()["redis"];
  ASSERT_TRUE(a.client().Reset(a.group()).ok());
  ASSERT_TRUE(Eventually([&] { return a.Redis("forgets") == 1; })) << a.Stats()["redis"];
  EXPECT_EQ(a.Load(keys).block_count, 0u) << a.Stats()["redis"];
  EXPECT_EQ(b.Load(keys).block_count, 0u) << "it has heard of it when it first asks";
  ASSERT_EQ(a.Store(keys, 1), 32u);
  ASSERT_TRUE(HasStored(a, 64)) << a.Stats()["redis"];
  const RedisHost::Loaded loaded = b.Load(keys, {}, 2);
  EXPECT_EQ(loaded.block_count, 32u) << b.Stats()["redis"];
  EXPECT_EQ(loaded.writers, std::vector<uint64_t>(32, 1)) << "not one of before";
}

TEST(DaemonRedis, WhoStoresUnderTheNamesOfBeforeIsNotBelieved) {
  TERRACE_NEEDS_REDIS();
  Hosts hosts;
  ASSERT_TRUE(hosts.Connect()) << hosts.Errors();
  RedisHost &a = hosts.a, &b = hosts.b;
  // Both have used the group: b does not ask for some seconds.
  ASSERT_EQ(b.Store(Keys(1, 5)), 1u);
  ASSERT_TRUE(HasStored(b, 1));
  EXPECT_EQ(a.Load(Keys(1, 5)).block_count, 1u);
  ASSERT_TRUE(a.client().Reset(a.group()).ok());
  ASSERT_TRUE(Eventually([&] { return a.Redis("forgets") == 1; }));
  const auto keys = Keys(32);
  ASSERT_EQ(b.Store(keys), 32u);
  (void)Eventually(
      [&] { return b.Redis("queued_blocks") == 0 && b.Redis("stores_under_way") == 0; });
  EXPECT_EQ(a.Load(keys).block_count, 0u) << a.Stats()["redis"];
  EXPECT_EQ(a.Load(Keys(1, 5)).block_count, 0u);
  // After a while it has heard of it, and what it has computed since is shared.
  EXPECT_TRUE(Eventually([&] {
    static uint64_t prompt = 100;
    const auto fresh = Keys(2, ++prompt);
    (void)b.Store(fresh);
    (void)Eventually([&] { return b.Redis("queued_blocks") == 0; });
    return a.Load(fresh).block_count == 2;
  })) << b.Stats()["redis"];
  EXPECT_EQ(a.Load(keys).block_count, 0u);
}

TEST(DaemonRedis, EvictingEverythingBringsNothingBack) {
  TERRACE_NEEDS_REDIS();
  Hosts hosts;
  ASSERT_TRUE(hosts.Connect()) << hosts.Errors();
  const auto keys = Keys(32);
  ASSERT_EQ(hosts.a.Store(keys), 32u);
  ASSERT_TRUE(HasStored(hosts.a, 32));
  const Result<protocol::EvictReply> evicted =
      hosts.a.client().Evict({}, {}, {.flags = protocol::kEvictSubtree});
  ASSERT_TRUE(evicted.ok());
  EXPECT_EQ(evicted->block_count, 32u);
  EXPECT_EQ(hosts.a.Load(keys).block_count, 0u) << hosts.a.Stats()["redis"];
}

TEST(DaemonRedis, AServerThatWasAwayDuringAResetBringsNothingBackEvenAfterARestart) {
  TERRACE_NEEDS_REDIS();
  Hosts hosts;
  ASSERT_TRUE(hosts.Connect()) << hosts.Errors();
  RedisHost& a = hosts.a;
  const auto keys = Keys(32);
  ASSERT_EQ(a.Store(keys), 32u);
  ASSERT_TRUE(HasStored(a, 32));
  hosts.server.Pause();
  ASSERT_TRUE(a.client().Reset(a.group()).ok()) << "it is kept, and the server told later";
  EXPECT_EQ(a.Redis("forgets_owed"), 1u);
  EXPECT_TRUE(Eventually([&] {
    return a.daemon().Errors().find("redis has not been told yet") != std::string::npos;
  })) << a.daemon().Errors();
  ASSERT_TRUE(a.Restart(SIGKILL)) << a.daemon().Errors();
  EXPECT_EQ(a.Load(keys).block_count, 0u);
  hosts.server.Resume();
  ASSERT_TRUE(Eventually([&] { return a.IsReady() && a.Redis("forgets_owed") == 0; }))
      << a.Stats()["redis"] << a.daemon().Errors();
  EXPECT_EQ(a.Load(keys).block_count, 0u) << a.Stats()["redis"];
  EXPECT_EQ(hosts.b.Load(keys).block_count, 0u);
}

// Nobody ordered it: why what hosts have is not given any more is said where they look.
TEST(DaemonRedis, AServerThatLostWhatWasForgottenAndWhoHearsOfItSaySo) {
  TERRACE_NEEDS_REDIS();
  Hosts hosts;
  ASSERT_TRUE(hosts.Connect()) << hosts.Errors();
  RedisHost &a = hosts.a, &b = hosts.b;
  const auto keys = Keys(32);
  ASSERT_EQ(a.Store(keys), 32u);
  ASSERT_TRUE(HasStored(a, 32));
  ASSERT_EQ(b.Load(keys).block_count, 32u);
  hosts.server.Connect()->Command({"FLUSHALL"});
  ASSERT_TRUE(a.Restart(SIGKILL)) << a.daemon().Errors();
  const auto is_said = [](RedisHost& host, const std::string& event) {
    return Eventually([&] {
      (void)host.Load(Keys(32, 8));
      return host.daemon().Errors().find(event) != std::string::npos;
    });
  };
  EXPECT_TRUE(is_said(a, "redis has lost which blocks of these groups were forgotten"))
      << a.daemon().Errors();
  EXPECT_EQ(a.Redis("generations_lost"), 1u);
  EXPECT_EQ(a.Redis("forgotten_elsewhere"), 0u);
  EXPECT_TRUE(is_said(b, "another host has had groups forgotten on redis")) << b.daemon().Errors();
  EXPECT_EQ(b.Redis("forgotten_elsewhere"), 1u);
  EXPECT_EQ(b.Redis("generations_lost"), 0u);
}

}  // namespace
}  // namespace terrace::test

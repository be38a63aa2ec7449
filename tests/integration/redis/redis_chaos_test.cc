// A network and a server that do anything but what they should: no wrong bytes, ever; the breaker
// opens soon, and closes after the trouble has ended.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "redis/allowed_times.h"
#include "redis/chaos_proxy.h"
#include "redis/redis_process.h"
#include "redis/redis_rig.h"
#include "redis/redis_traffic.h"

namespace terrace {
namespace {

using testing::AllowedSeconds;
using testing::ChaosProxy;
using testing::RawRedis;
using testing::RedisProcess;
using testing::RedisRig;
using testing::RedisTestName;
using testing::RedisTraffic;

uint64_t NumberFromEnvironment(const char* name, uint64_t otherwise) {
  const char* const given = std::getenv(name);
  return given != nullptr ? std::strtoull(given, nullptr, 10) : otherwise;
}

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// PROMISE: T40 a network that does anything
TEST(RedisChaos, NeverAWrongByteWhateverTheNetworkDoes) {
  TERRACE_NEEDS_REDIS();
  const uint64_t seed = NumberFromEnvironment("TERRACE_SEED", 1);
  const uint64_t operations = NumberFromEnvironment("TERRACE_OPERATIONS", 4'000);
  const auto delay_ms_max =
      static_cast<uint32_t>(NumberFromEnvironment("TERRACE_DELAY_MS_MAX", 20));
  SCOPED_TRACE("TERRACE_SEED=" + std::to_string(seed));
  RedisProcess server;
  ChaosProxy proxy(server.unix_endpoint(), seed);
  RedisTier::Options options = RedisRig::Options(proxy.endpoint());
  options.timeouts = {.connect_us = 2'000'000, .command_us = 500'000};
  options.breaker.probe_first_us = 50'000;
  options.breaker.probe_max_us = 100'000;
  RedisRig rig(options);
  rig.WaitUntilReady();
  // Delays beyond what a command may take are few: each ends a connection with all that is on it.
  const bool are_long = delay_ms_max > 500;
  proxy.SetFaults({.delayed = are_long ? 2u : 10u,
                   .reset = 1,
                   .cut = 1,
                   .shortened = 1,
                   .wrong_length = 2,
                   .garbled = 3,
                   .swapped = 5,
                   .swallowed = 1,
                   .delay_ms_min = are_long ? 50u : 1u,
                   .delay_ms_max = delay_ms_max});
  RedisTraffic traffic(&rig, {.seed = seed});
  traffic.Run(operations);
  EXPECT_EQ(traffic.wrong, 0u);
  EXPECT_GT(traffic.hits, operations / 50);
  EXPECT_GT(traffic.stored, operations / 50);
  EXPECT_GT(proxy.faults_count(), operations / 100);
  std::printf(
      "%lu operations, %lu faults in %lu replies: %lu hits, %lu misses, %lu failed, "
      "%lu stored, %lu not, %lu wrong\n",
      operations, proxy.faults_count(), proxy.replies_count(), traffic.hits, traffic.misses,
      traffic.failures, traffic.stored, traffic.not_stored, traffic.wrong);
  // And when the trouble has ended all is as it was.
  proxy.SetFaults({});
  rig.WaitUntilReady();
  ASSERT_TRUE(rig.RunUntil([&] { return rig.StoreNow(RedisTestName(99, 0), 3, 70'000).ok(); }));
  EXPECT_TRUE(rig.FetchNow(RedisTestName(99, 0), 70'000).status.ok());
}

// A says that a block is broken while B has repaired it and stored it anew: A's repair comes late.
TEST(RedisChaos, ALateRepairLeavesANewManifestAlone) {
  TERRACE_NEEDS_REDIS();
  for (const size_t length_bytes : {100'000, 300'000}) {
    RedisProcess server;
    ChaosProxy proxy(server.unix_endpoint(), 1);
    RedisRig late(RedisRig::Options(proxy.endpoint()));
    RedisRig other(RedisRig::Options(server.unix_endpoint()));
    late.WaitUntilReady();
    other.WaitUntilReady();
    const RedisBlockName name = RedisTestName(1, 0);
    ASSERT_TRUE(other.StoreNow(name, 1, length_bytes).ok());
    const std::unique_ptr<RawRedis> raw = server.Connect();
    for (const std::string& key : raw->Keys()) {
      if (key.ends_with(":0")) raw->Command({"DEL", key});
    }
    ASSERT_TRUE(late.ProbeNow({name}).first.ok()) << "it knows the group's generation";
    proxy.HoldReplies(0);
    std::vector<std::byte> into(length_bytes);
    ASSERT_TRUE(late.tier().Fetch(1, name, into).ok());
    ASSERT_TRUE(late.RunUntil([&] { return proxy.held_replies_count() == 1; })) << "the manifest";
    EXPECT_EQ(other.FetchNow(name, length_bytes).status.code(), StatusCode::kCorrupt);
    ASSERT_TRUE(other.StoreNow(name, 2, length_bytes).ok());
    proxy.ReleaseReplies();
    ASSERT_TRUE(late.RunUntil([&] { return late.fetched.contains(1); }));
    EXPECT_EQ(late.fetched[1].status.code(), StatusCode::kCorrupt);
    ASSERT_TRUE(late.ProbeNow({name}).first.ok()) << "the repair is through";
    const RedisRig::Fetched fetched = other.FetchNow(name, length_bytes);
    ASSERT_TRUE(fetched.status.ok()) << fetched.status.what();
    EXPECT_EQ(fetched.commit_id, 2u);
  }
}

// A write whose answer never comes may have happened: its chunks stay. Of the answers to EXISTS, to
// the chunk and to the manifest another one is held back each time; a small block is written at
// once.
TEST(RedisChaos, AWriteWithoutAnAnswerLeavesNothingBroken) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  ChaosProxy proxy(server.unix_endpoint(), 1);
  RedisTier::Options options = RedisRig::Options(proxy.endpoint());
  options.timeouts.command_us = 500'000;
  RedisRig rig(options);
  RedisRig other(RedisRig::Options(server.unix_endpoint()));
  other.WaitUntilReady();
  struct Case {
    uint64_t held_back = 0;
    size_t length_bytes = 0;
    bool is_stored = false;
  };
  constexpr Case kCases[] = {
      {2, 262'144, true}, {1, 262'144}, {0, 262'144}, {1, 65'536, true}, {0, 65'536, true}};
  uint64_t chain = 0;
  for (const Case& one : kCases) {
    const RedisBlockName name = RedisTestName(++chain, 0);
    const std::vector<std::byte> bytes = testing::RedisTestBytes(name.key, 5, one.length_bytes);
    // All connections are there, and the group's generation is known: neither a login nor the
    // question for that is held back.
    ASSERT_TRUE(rig.RunUntil([&] { return rig.tier().stats().connections == 5; }));
    ASSERT_TRUE(rig.ProbeNow({name}).first.ok());
    proxy.HoldReplies(one.held_back);
    const Status begun =
        rig.tier().Store(chain, name.run, testing::RedisTestRecord(name, 5), bytes);
    ASSERT_TRUE(begun.ok());
    ASSERT_TRUE(rig.RunUntil([&] { return rig.stored.contains(chain); }));
    EXPECT_FALSE(rig.stored[chain].ok());
    proxy.ReleaseReplies();
  }
  chain = 0;
  for (const Case& one : kCases) {
    const RedisBlockName name = RedisTestName(++chain, 0);
    const RedisRig::Fetched fetched = other.FetchNow(name, one.length_bytes);
    EXPECT_EQ(fetched.status.code(), one.is_stored ? StatusCode::kOk : StatusCode::kNotFound);
    EXPECT_TRUE(RedisRig::IsTrue(fetched, name, one.length_bytes));
  }
}

TEST(RedisBreaker, OpensOnAServerThatNoLongerAnswersAndClosesWhenItDoes) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisTier::Options options = RedisRig::Options(server.unix_endpoint());
  options.timeouts = {};  // as they are by default
  RedisRig rig(options);
  rig.WaitUntilReady();
  server.Pause();
  const double opened_after_s = SecondsOf([&] {
    ASSERT_TRUE(rig.RunUntil([&] {
      (void)rig.tier().Probe(1, std::vector{RedisTestName(1, 0)});
      return rig.tier().stats().breaker_opened > 0;
    }));
  });
  const SharedTierStats stats = rig.tier().stats();
  EXPECT_FALSE(stats.is_ready);
  EXPECT_NE(stats.trouble, "");
  const uint64_t asked_at = stats.connection_attempts;
  std::vector<std::byte> into(100);
  EXPECT_EQ(rig.tier().Fetch(2, RedisTestName(1, 0), into).code(), StatusCode::kUnsupported);
  EXPECT_EQ(rig.tier().PredictReadUs(100), UINT64_MAX);
  server.Resume();
  const double closed_after_s = SecondsOf([&] { rig.WaitUntilReady(); });
  EXPECT_LE(rig.tier().stats().connection_attempts - asked_at, 15u);
  EXPECT_LT(opened_after_s, 3.0);
  EXPECT_LT(closed_after_s, 15.0);
  std::printf("opened after %.2f s, closed after %.2f s\n", opened_after_s, closed_after_s);
}

// Whatever the network does.
// PROMISE: T40 the breaker
TEST(RedisBreaker, OpensAndClosesWhateverTheTroubleIs) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  ChaosProxy proxy(server.unix_endpoint(), 1);
  RedisTier::Options options = RedisRig::Options(proxy.endpoint());
  options.timeouts = {};
  RedisRig rig(options);
  struct Trouble {
    const char* name;
    std::function<void()> begin, end;
  };
  const auto heal = [&proxy] { proxy.SetFaults({}); };
  const Trouble troubles[] = {
      {"no answers", [&] { proxy.HoldReplies(0); }, [&] { proxy.ReleaseReplies(); }},
      {"resets", [&] { proxy.Refuse(); }, [&] { proxy.Accept(); }},
      {"garbage", [&] { proxy.SetFaults({.garbled = 1000}); }, heal},
      {"cut answers", [&] { proxy.SetFaults({.cut = 1000}); }, heal},
      {"late answers",
       [&] { proxy.SetFaults({.delayed = 1000, .delay_ms_min = 400, .delay_ms_max = 5000}); },
       heal},
  };
  for (const Trouble& trouble : troubles) {
    ASSERT_TRUE(rig.RunUntil([&] { return rig.tier().stats().connections == 5; }));
    const uint64_t opened = rig.tier().stats().breaker_opened;
    trouble.begin();
    const double opened_after_s = SecondsOf([&] {
      ASSERT_TRUE(rig.RunUntil([&] {
        (void)rig.tier().Probe(1, std::vector{RedisTestName(1, 0)});
        return rig.tier().stats().breaker_opened > opened;
      })) << trouble.name;
    });
    trouble.end();
    const double closed_after_s = SecondsOf([&] { rig.WaitUntilReady(); });
    EXPECT_LT(opened_after_s, AllowedSeconds(1.0, 15.0)) << trouble.name;
    EXPECT_LT(closed_after_s, AllowedSeconds(5.0, 20.0)) << trouble.name;
    std::printf("%s: opened after %.2f s, closed after %.2f s\n", trouble.name, opened_after_s,
                closed_after_s);
  }
}

// Attempts grow rare, but not so rare that a server that is back waits long.
TEST(RedisBreaker, ClosesSoonAfterALongOutage) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  ChaosProxy proxy(server.unix_endpoint(), 1);
  RedisRig rig(RedisRig::Options(proxy.endpoint()));
  rig.WaitUntilReady();
  proxy.Refuse();
  ASSERT_TRUE(rig.RunUntil([&] {
    (void)rig.tier().Probe(1, std::vector{RedisTestName(1, 0)});
    return !rig.tier().stats().is_ready;
  }));
  // Each comes twice as late as the one before: by now at the longest interval.
  const uint64_t attempts = rig.tier().stats().connection_attempts;
  ASSERT_TRUE(rig.RunUntil([&] { return rig.tier().stats().connection_attempts >= attempts + 5; }));
  proxy.Accept();
  const double closed_after_s = SecondsOf([&] { rig.WaitUntilReady(); });
  EXPECT_LT(closed_after_s, 15.0);
  std::printf("closed after %.2f s\n", closed_after_s);
}

TEST(RedisBreaker, AServerThatDiedIsFoundAgain) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig rig(RedisRig::Options(server.tcp_endpoint()));
  rig.WaitUntilReady();
  ASSERT_TRUE(rig.StoreNow(RedisTestName(1, 0), 1, 1000).ok());
  server.Kill();
  ASSERT_TRUE(rig.RunUntil([&] { return rig.tier().stats().breaker_opened > 0; }));
  server.Start();
  rig.WaitUntilReady();
  EXPECT_EQ(rig.FetchNow(RedisTestName(1, 0), 1000).status.code(), StatusCode::kNotFound);
  EXPECT_TRUE(rig.StoreNow(RedisTestName(1, 0), 1, 1000).ok());
}

// ---- login ----

class PasswordFile {
 public:
  explicit PasswordFile(const RedisProcess& server) : path_(server.directory() + "/password") {}
  std::string Write(const std::string& text) const {
    std::ofstream(path_) << text;
    chmod(path_.c_str(), 0600);
    return path_;
  }

 private:
  const std::string path_;
};

TEST(RedisLogin, WithAPasswordAndWithAUser) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server({.config = "requirepass \"open sesame\"\nuser cache on >secret ~* +@all",
                       .password = "open sesame"});
  for (const char* const text : {"open sesame\n", "cache\nsecret\n", "cache\nsecret"}) {
    RedisTier::Options options = RedisRig::Options(server.unix_endpoint());
    options.credentials_file = PasswordFile(server).Write(text);
    RedisRig rig(options);
    rig.WaitUntilReady();
    EXPECT_TRUE(rig.FetchNow(RedisTestName(1, 0), 10).status.code() == StatusCode::kNotFound);
  }
}

// PROMISE: T43 a wrong password
TEST(RedisLogin, AWrongOneIsSaidAndSeldomTried) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server({.arguments = {"--requirepass", "right"}, .password = "right"});
  const PasswordFile file(server);
  for (const char* const text : {"wrong\n", ""}) {
    RedisTier::Options options = RedisRig::Options(server.unix_endpoint());
    if (*text != '\0') options.credentials_file = file.Write(text);
    RedisRig rig(options);
    uint64_t attempts = 0;
    const double took_s = SecondsOf([&] {
      ASSERT_TRUE(rig.RunUntil([&] {
        attempts = rig.tier().stats().connection_attempts;
        return rig.tier().stats().is_refused && attempts >= 3;
      }));
    });
    EXPECT_LE(static_cast<double>(attempts) / took_s, 10.0);
    EXPECT_FALSE(rig.tier().stats().is_ready);
    EXPECT_EQ(rig.tier().stats().trouble.find("wrong"), std::string::npos);
    if (*text == '\0') continue;
    file.Write("right\n");  // put right while it runs
    rig.WaitUntilReady();
    EXPECT_FALSE(rig.tier().stats().is_refused);
  }
}

TEST(RedisLogin, AFileThatOthersMayReadIsRefused) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisTier::Options options = RedisRig::Options(server.unix_endpoint());
  options.credentials_file = PasswordFile(server).Write("secret\n");
  chmod(options.credentials_file.c_str(), 0640);
  options.post = [](std::function<void()>) {};
  options.unix_us = [] { return kUsPerSecond; };
  RedisRig other(RedisRig::Options(server.unix_endpoint()));
  options.listener = &other;
  std::string why;
  EXPECT_EQ(RedisTier::Open(options, &why).status().code(), StatusCode::kInvalid);
  EXPECT_NE(why.find("0600"), std::string::npos);
  EXPECT_EQ(why.find("secret"), std::string::npos);
}

}  // namespace
}  // namespace terrace

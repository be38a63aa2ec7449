// What RedisTier promises, against a real server.
#include <gtest/gtest.h>
#include <hiredis/hiredis.h>

#include <chrono>
#include <optional>
#include <random>
#include <thread>

#include "redis/chaos_proxy.h"
#include "redis/redis_process.h"
#include "redis/redis_rig.h"

namespace terrace {
namespace {

using testing::RawRedis;
using testing::RawReply;
using testing::RedisProcess;
using testing::RedisRig;
using testing::RedisTestName;

TEST(RedisTier, GivesBackTheBytesAndWhatWasSaidOfThem) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  for (const RedisEndpoint& endpoint : {server.unix_endpoint(), server.tcp_endpoint()}) {
    RedisRig rig(RedisRig::Options(endpoint));
    rig.WaitUntilReady();
    uint64_t chain = endpoint.port;
    for (const size_t length_bytes : {size_t{1}, size_t{100}, size_t{65536}, size_t{1'000'000},
                                      size_t{1048576}, size_t{3'333'333}, size_t{8 * kMiB}}) {
      const RedisBlockName name = RedisTestName(++chain, 70);
      ASSERT_TRUE(rig.StoreNow(name, chain, length_bytes).ok());
      const RedisRig::Fetched fetched = rig.FetchNow(name, length_bytes);
      ASSERT_TRUE(fetched.status.ok()) << fetched.status.what();
      EXPECT_EQ(fetched.bytes, testing::RedisTestBytes(name.key, chain, length_bytes));
      const BlockRecord stored = testing::RedisTestRecord(name, chain);
      EXPECT_EQ(fetched.record.commit_id, stored.commit_id);
      EXPECT_EQ(fetched.record.parent, stored.parent);
      EXPECT_EQ(fetched.record.position, stored.position);
      EXPECT_EQ(fetched.record.priority, stored.priority);
      EXPECT_EQ(fetched.record.member, stored.member);
      EXPECT_EQ(fetched.record.event_hash, stored.event_hash);
      EXPECT_EQ(fetched.record.recompute_ns_per_token, stored.recompute_ns_per_token);
      EXPECT_EQ(fetched.part_checksums, (std::vector<Checksum>{{chain, 1}, {chain, 2}}));
    }
  }
}

TEST(RedisTier, WhatNobodyStoredIsAMiss) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig rig(RedisRig::Options(server.unix_endpoint()));
  rig.WaitUntilReady();
  EXPECT_EQ(rig.FetchNow(RedisTestName(1, 0), 1000).status.code(), StatusCode::kNotFound);
  ASSERT_TRUE(rig.StoreNow(RedisTestName(1, 0), 5, 1000).ok());
  RedisBlockName other = RedisTestName(1, 0);
  other.space = {99, 99};
  EXPECT_EQ(rig.FetchNow(other, 1000).status.code(), StatusCode::kNotFound);
  EXPECT_EQ(rig.FetchNow(RedisTestName(1, 0), 999).status.code(), StatusCode::kNotFound)
      << "another length is of no use";
  EXPECT_TRUE(rig.FetchNow(RedisTestName(1, 0), 1000).status.ok()) << "and harms nothing";
}

TEST(RedisTier, AnotherSecretFindsNothing) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig rig(RedisRig::Options(server.unix_endpoint()));
  rig.WaitUntilReady();
  ASSERT_TRUE(rig.StoreNow(RedisTestName(1, 0), 5, 1000).ok());
  RedisTier::Options options = RedisRig::Options(server.unix_endpoint());
  options.secret[7] ^= std::byte{1};
  RedisRig tenant(options);
  tenant.WaitUntilReady();
  EXPECT_EQ(tenant.FetchNow(RedisTestName(1, 0), 1000).status.code(), StatusCode::kNotFound);
  EXPECT_FALSE(tenant.ProbeNow({RedisTestName(1, 0)}).second[0]);
  EXPECT_TRUE(rig.ProbeNow({RedisTestName(1, 0)}).second[0]);
}

TEST(RedisTier, TheSecondWriterIsToldAndLeavesNothing) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig rig(RedisRig::Options(server.unix_endpoint()));
  rig.WaitUntilReady();
  const RedisBlockName name = RedisTestName(1, 0);
  ASSERT_TRUE(rig.StoreNow(name, 5, 200'000).ok());  // no small block: the loser has chunks
  ASSERT_TRUE(rig.ProbeNow({name}).first.ok());      // answered last: the bitmap is there, too
  const size_t key_count = server.Connect()->Keys().size();
  EXPECT_EQ(rig.StoreNow(name, 6, 200'000).code(), StatusCode::kExists);
  // What it had written is unlinked behind the answer.
  for (int i = 0; i < 2000 && server.Connect()->Keys().size() != key_count; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(server.Connect()->Keys().size(), key_count);
  EXPECT_EQ(rig.FetchNow(name, 200'000).commit_id, 5u);
  // From now on it looks first, and sends no bytes for nothing.
  const std::unique_ptr<RawRedis> raw = server.Connect();
  const auto received_bytes = [&raw] {
    const std::string info = raw->Text({"INFO", "stats"});
    return std::stoull(info.substr(info.find("total_net_input_bytes:") + 22));
  };
  const uint64_t before = received_bytes();
  EXPECT_EQ(rig.StoreNow(name, 7, 200'000).code(), StatusCode::kExists);
  EXPECT_LT(received_bytes() - before, 10'000u);
}

TEST(RedisTier, EveryKeyHasATimeToLive) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig rig(RedisRig::Options(server.unix_endpoint()));
  rig.WaitUntilReady();
  ASSERT_TRUE(rig.StoreNow(RedisTestName(1, 3), 5, 2 * kMiB).ok());
  ASSERT_TRUE(rig.StoreNow(RedisTestName(1, 4), 5, 64 * kKiB).ok());
  // Commands are answered in order: when the probe is, the bitmap has its time to live too.
  ASSERT_TRUE(rig.ProbeNow({RedisTestName(1, 3)}).first.ok());
  const std::unique_ptr<RawRedis> raw = server.Connect();
  const std::vector<std::string> keys = raw->BlockKeys();
  EXPECT_EQ(keys.size(), 6u) << "three chunks, two manifests with a tail each, a bitmap";
  for (const std::string& key : keys) {
    const long long ttl_ms = raw->Integer({"PTTL", key});
    EXPECT_GT(ttl_ms, 0) << key;
    EXPECT_LE(ttl_ms, 24 * 3600 * 1000 + 60'000) << key;
  }
  // Another host's blocks may stay a year: longer than any of them.
  EXPECT_GT(raw->Integer({"PTTL", testing::RedisTestGenerationKey(RedisTestName(1, 3).group)}),
            365LL * 24 * 3600 * 1000);
}

// `through`: the server, or what stands before it.
void ExpectTheFirstWriterToDecide(const RedisProcess& server, const RedisEndpoint& through) {
  RedisRig rig(RedisRig::Options(through));
  rig.WaitUntilReady();
  const std::vector<std::byte> bytes(1000);
  TransferId transfer = 1000;
  const auto store = [&](const RedisBlockName& name, uint64_t commit_id, uint64_t left_s) {
    BlockRecord record = testing::RedisTestRecord(name, commit_id);
    record.expires_at_s = left_s == 0 ? 0 : static_cast<uint64_t>(std::time(nullptr)) + left_s;
    const TransferId id = transfer++;
    EXPECT_TRUE(rig.tier().Store(id, name.run, record, bytes).ok());
    EXPECT_TRUE(rig.RunUntil([&] { return rig.stored.contains(id); }));
    return rig.stored[id].code();
  };
  const std::unique_ptr<RawRedis> raw = server.Connect();
  const auto left_ms = [&raw] {  // of what stays the shortest, and the longest
    std::pair<int64_t, int64_t> range = {INT64_MAX, INT64_MIN};
    for (const std::string& key : raw->BlockKeys()) {
      if (key.ends_with("p")) continue;  // the bitmap is the whole run's
      const int64_t left = raw->Integer({"PTTL", key});
      range = {std::min(range.first, left), std::max(range.second, left)};
    }
    return range;
  };
  ASSERT_EQ(store(RedisTestName(1, 0), 5, 1000), StatusCode::kOk);
  EXPECT_GT(left_ms().first, 500'000);
  EXPECT_EQ(store(RedisTestName(1, 0), 6, 0), StatusCode::kExists);
  EXPECT_EQ(store(RedisTestName(1, 0), 7, 5000), StatusCode::kExists);
  EXPECT_LE(left_ms().second, 1'060'000) << "a later writer made it stay longer";
  EXPECT_EQ(store(RedisTestName(1, 0), 8, 100), StatusCode::kExists);
  EXPECT_GT(left_ms().first, 500'000) << "a later writer made it leave sooner";
}

TEST(RedisTier, TheFirstWriterDecidesHowLongASmallBlockStays) {
  TERRACE_NEEDS_REDIS();
  const RedisProcess server;
  ExpectTheFirstWriterToDecide(server, server.unix_endpoint());
}

// It refuses a PEXPIRE of four words as this one does a PERSIST of them.
TEST(RedisTier, TheFirstWriterDecidesOnAServerBefore7Too) {
  TERRACE_NEEDS_REDIS();
  const RedisProcess server;
  testing::ChaosProxy before_7(server.unix_endpoint(), 1);
  before_7.ReplaceInCommands("*4\r\n$7\r\nPEXPIRE\r\n", "*4\r\n$7\r\nPERSIST\r\n");
  ExpectTheFirstWriterToDecide(server, before_7.endpoint());
  EXPECT_GT(before_7.replaced_count(), 0u);
  EXPECT_NE(server.Connect()->Text({"INFO", "commandstats"}).find("cmdstat_eval"),
            std::string::npos);
}

// Of MULTI, MSETNX and PEXPIRE a server may refuse some and do the others.
TEST(RedisTier, NoKeyStaysForEverWhereAPartOfATransactionFails) {
  TERRACE_NEEDS_REDIS();
  const RedisProcess server;
  testing::ChaosProxy refusing(server.unix_endpoint(), 1);
  refusing.ReplaceInCommands("$2\r\nNX\r\n", "$2\r\nQX\r\n");
  RedisRig rig(RedisRig::Options(refusing.endpoint()));
  rig.WaitUntilReady();
  EXPECT_TRUE(rig.StoreNow(RedisTestName(1, 4), 5, 1'000).ok());
  ASSERT_TRUE(rig.ProbeNow({RedisTestName(1, 4)}).first.ok());  // answered in order
  const std::unique_ptr<RawRedis> raw = server.Connect();
  EXPECT_EQ(raw->BlockKeys().size(), 3u);
  for (const std::string& key : raw->Keys()) EXPECT_GT(raw->Integer({"PTTL", key}), 0) << key;
}

TEST(RedisTier, AnExpiredBlockIsNotStored) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig rig(RedisRig::Options(server.unix_endpoint()));
  rig.WaitUntilReady();
  const RedisBlockName name = RedisTestName(1, 0);
  BlockRecord record = testing::RedisTestRecord(name, 9);
  record.expires_at_s = 1;
  const std::vector<std::byte> bytes(100);
  ASSERT_TRUE(rig.tier().Store(1000, name.run, record, bytes).ok());
  ASSERT_TRUE(rig.RunUntil([&] { return rig.stored.contains(1000); }));
  EXPECT_EQ(rig.stored[1000].code(), StatusCode::kNotFound);
  record.expires_at_s = static_cast<uint64_t>(std::time(nullptr)) + 1000;
  ASSERT_TRUE(rig.tier().Store(1001, name.run, record, bytes).ok());
  ASSERT_TRUE(rig.RunUntil([&] { return rig.stored.contains(1001); }));
  EXPECT_TRUE(rig.stored[1001].ok());
  const std::unique_ptr<RawRedis> raw = server.Connect();
  for (const std::string& key : raw->BlockKeys()) {
    if (key.ends_with("p")) continue;  // the bitmap is the whole run's
    EXPECT_LE(raw->Integer({"PTTL", key}), 1'060'000) << key;
  }
}

TEST(RedisTier, AThousandKeysAreLookedForAtOnce) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig rig(RedisRig::Options(server.unix_endpoint()));
  rig.WaitUntilReady();
  std::vector<RedisBlockName> names;
  for (uint32_t i = 0; i < 1000; ++i) names.push_back(RedisTestName(1, i));
  for (uint32_t i = 0; i < 1000; i += 3) ASSERT_TRUE(rig.StoreNow(names[i], i, 64).ok());
  const std::unique_ptr<RawRedis> raw = server.Connect();
  raw->Command({"CONFIG", "RESETSTAT"});
  const auto [status, is_present] = rig.ProbeNow(names);
  ASSERT_TRUE(status.ok());
  for (uint32_t i = 0; i < 1000; ++i) EXPECT_EQ(is_present[i], i % 3 == 0) << i;
  const std::string info = raw->Text({"INFO", "commandstats"});
  EXPECT_NE(info.find("cmdstat_get:calls=16,"), std::string::npos) << info;
}

TEST(RedisTier, ABlockThatIsGoneIsForgottenByTheBitmapToo) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig rig(RedisRig::Options(server.unix_endpoint()));
  rig.WaitUntilReady();
  const RedisBlockName name = RedisTestName(1, 9);
  ASSERT_TRUE(rig.StoreNow(name, 5, 1000).ok());
  const std::unique_ptr<RawRedis> raw = server.Connect();
  for (const std::string& key : raw->Keys()) {
    if (key.find("}m") != std::string::npos) raw->Command({"DEL", key});
  }
  EXPECT_TRUE(rig.ProbeNow({name}).second[0]) << "a hint";
  EXPECT_EQ(rig.FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
  EXPECT_FALSE(rig.ProbeNow({name}).second[0]);
  ASSERT_TRUE(rig.StoreNow(name, 6, 1000).ok());
  EXPECT_TRUE(rig.ProbeNow({name}).second[0]);
}

TEST(RedisTier, ANoIsRememberedForAWhile) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisTier::Options options = RedisRig::Options(server.unix_endpoint());
  options.absence_us = 3600 * kUsPerSecond;
  RedisRig rig(options);
  rig.WaitUntilReady();
  const RedisBlockName name = RedisTestName(1, 0);
  EXPECT_FALSE(rig.ProbeNow({name}).second[0]);
  EXPECT_FALSE(rig.ProbeNow({name}).second[0]);
  EXPECT_EQ(rig.tier().stats().probes_remembered, 1u);
  ASSERT_TRUE(rig.StoreNow(name, 5, 1000).ok());
  EXPECT_TRUE(rig.ProbeNow({name}).second[0]) << "what we stored ourselves is there";
}

TEST(RedisTier, ErasingTakesTheBlockAway) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig rig(RedisRig::Options(server.unix_endpoint()));
  rig.WaitUntilReady();
  const RedisBlockName name = RedisTestName(1, 0);
  ASSERT_TRUE(rig.StoreNow(name, 5, 1000).ok());
  rig.tier().Drop(name);
  // On the same connection; of what was erased the answer might be remembered.
  ASSERT_TRUE(rig.ProbeNow({RedisTestName(2, 0)}).first.ok());
  EXPECT_EQ(rig.FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
  ASSERT_TRUE(rig.StoreNow(name, 6, 1000).ok());
  rig.tier().Erase(name);
  EXPECT_EQ(rig.FetchNow(name, 1000).status.code(), StatusCode::kUnsupported) << "it may be there";
  EXPECT_FALSE(rig.ProbeNow({name}).second[0]);
  ASSERT_TRUE(rig.RunUntilErased());
  EXPECT_EQ(rig.FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
}

// More than the socket takes at once: of a small block, a transaction, the server answers the
// beginning before its end is sent.
TEST(RedisTier, ABlockIsAnsweredBeforeItIsSentToItsEnd) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisTier::Options options = RedisRig::Options(server.unix_endpoint());
  options.connections = 2;
  RedisRig rig(options);
  rig.WaitUntilReady();
  constexpr uint64_t kBlocks = 200;
  constexpr size_t kLengthBytes = 120'000;
  std::vector<std::vector<std::byte>> held;
  for (uint64_t i = 0; i < kBlocks; ++i) {
    const RedisBlockName name = RedisTestName(i, 0);
    held.push_back(testing::RedisTestBytes(name.key, i, kLengthBytes));
    const BlockRecord record = testing::RedisTestRecord(name, i);
    ASSERT_TRUE(rig.tier().Store(i, name.run, record, held.back()).ok());
  }
  ASSERT_TRUE(rig.RunUntil([&] { return rig.stored.size() == kBlocks; }));
  for (const auto& [id, status] : rig.stored) EXPECT_TRUE(status.ok()) << status.what();
  EXPECT_EQ(rig.tier().stats().connections_lost, 0u);
}

TEST(RedisTier, MoreThanItsLimitIsBusyAndHarmsNothing) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisTier::Options options = RedisRig::Options(server.unix_endpoint());
  options.operations_max = 4;
  options.bytes_max = 10'000;
  RedisRig rig(options);
  rig.WaitUntilReady();
  std::vector<std::byte> into(6'000);
  ASSERT_TRUE(rig.tier().Fetch(1, RedisTestName(1, 0), into).ok());
  std::vector<std::byte> more(6'000);
  EXPECT_EQ(rig.tier().Fetch(2, RedisTestName(1, 0), more).code(), StatusCode::kBusy);
  std::vector<std::byte> little(1'000);
  for (TransferId id = 3; id <= 5; ++id) {
    ASSERT_TRUE(rig.tier().Fetch(id, RedisTestName(1, 0), little).ok());
  }
  EXPECT_EQ(rig.tier().Fetch(6, RedisTestName(1, 0), little).code(), StatusCode::kBusy);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.fetched.size() == 4; }));
  EXPECT_EQ(rig.tier().stats().bytes_in_flight, 0u);
}

TEST(RedisTier, NothingComesAfterItsEnd) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig rig(RedisRig::Options(server.unix_endpoint()));
  rig.WaitUntilReady();
  std::vector<std::byte> into(1'000);
  ASSERT_TRUE(rig.tier().Fetch(1, RedisTestName(1, 0), into).ok());
  rig.tier().BeginStop();
  EXPECT_EQ(rig.tier().EndThread(60 * kUsPerSecond), RedisEnd::kEnded);
  EXPECT_EQ(rig.tier().Fetch(2, RedisTestName(1, 0), into).code(), StatusCode::kUnsupported);
  rig.RunUntil([turns = 0]() mutable { return ++turns > 3; });
  EXPECT_TRUE(rig.fetched.empty());
}

// ---- the server's side ----

uint64_t MemoryOf(RawRedis& raw) {
  uint64_t sum = 0;
  for (const std::string& key : raw.BlockKeys()) {
    sum += static_cast<uint64_t>(raw.Integer({"MEMORY", "USAGE", key}));
  }
  return sum;
}

// PROMISE: T44 what blocks take
TEST(RedisTier, ABlockTakesTwoPercentMoreThanItsBytesWhereItsLengthIsUsualAndFourElse) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig rig(RedisRig::Options(server.unix_endpoint()));
  rig.WaitUntilReady();
  const std::unique_ptr<RawRedis> raw = server.Connect();
  // What 16 tokens of the models there are take is so many times 64 KiB.
  const auto is_usual = [](size_t length_bytes) { return length_bytes % (64 * kKiB) == 0; };
  double worst = 0;
  uint64_t commit = 0;
  const auto measure = [&](size_t length_bytes) {
    raw->Command({"FLUSHALL"});
    ASSERT_TRUE(rig.StoreNow(RedisTestName(1, 0), ++commit, length_bytes).ok());
    ASSERT_TRUE(rig.ProbeNow({RedisTestName(1, 0)}).first.ok());
    const double overhead =
        static_cast<double>(MemoryOf(*raw)) / static_cast<double>(length_bytes) - 1;
    worst = std::max(worst, overhead);
    EXPECT_LE(overhead, is_usual(length_bytes) ? 0.02 : 0.04) << length_bytes;
  };
  for (size_t length_bytes = 64 * kKiB; length_bytes <= 8 * kMiB; length_bytes *= 2) {
    for (size_t eighths = 8; eighths < 16; ++eighths) {
      if (length_bytes * eighths / 8 > 8 * kMiB) break;
      measure(length_bytes * eighths / 8);
    }
  }
  std::mt19937_64 random(3);
  for (int i = 0; i < 60; ++i) measure(64 * kKiB + random() % 512 * 4 * kKiB);
  RecordProperty("worst_overhead_percent", std::to_string(100 * worst));
  std::printf("worst overhead: %.2f %%\n", 100 * worst);
}

// For a while it is not even asked: ten refusals a second are the most, whoever wants to store.
void ExpectFewRefusals(RedisRig* rig, RawRedis* raw, const std::string& word, size_t length_bytes) {
  const auto began = std::chrono::steady_clock::now();
  const uint64_t refused = raw->ErrorsAnswered(word);
  EXPECT_GT(refused, 0u) << word;
  for (uint64_t chain = 500; chain < 600; ++chain) {
    EXPECT_EQ(rig->StoreNow(RedisTestName(chain, 0), 7, length_bytes).code(), StatusCode::kNoSpace);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  EXPECT_LE(static_cast<double>(raw->ErrorsAnswered(word) - refused), 10 * (1 + took.count()))
      << word;
}

// PROMISE: T43 a full server
TEST(RedisTier, AFullServerRefusesWritesAndServesReads) {
  TERRACE_NEEDS_REDIS();
  for (const size_t length_bytes : {kMiB, 64 * kKiB}) {
    RedisProcess server({.arguments = {"--maxmemory", "8mb", "--maxmemory-policy", "noeviction"}});
    RedisRig rig(RedisRig::Options(server.unix_endpoint()));
    rig.WaitUntilReady();
    ASSERT_TRUE(rig.StoreNow(RedisTestName(0, 0), 7, length_bytes).ok());
    Status status;
    for (uint64_t chain = 1; chain < 400 && status.ok(); ++chain) {
      status = rig.StoreNow(RedisTestName(chain, 0), 7, length_bytes);
    }
    EXPECT_EQ(status.code(), StatusCode::kNoSpace) << length_bytes;
    EXPECT_TRUE(rig.FetchNow(RedisTestName(0, 0), length_bytes).status.ok());
    EXPECT_EQ(rig.tier().stats().breaker_opened, 0u);
    EXPECT_FALSE(rig.tier().stats().is_refused);
    EXPECT_TRUE(rig.tier().stats().is_ready);
    EXPECT_TRUE(rig.tier().stats().is_full);
    EXPECT_EQ(rig.tier().stats().write_trouble, "the Redis server is full and evicts nothing");
    const std::unique_ptr<RawRedis> raw = server.Connect();
    ExpectFewRefusals(&rig, raw.get(), "OOM", length_bytes);
    raw->Command({"CONFIG", "SET", "maxmemory", "0"});
    EXPECT_TRUE(rig.RunUntil([&] {
      rig.tier().Tick();
      return rig.tier().stats().write_trouble.empty();
    })) << "it heals though nobody stores";
    EXPECT_TRUE(
        rig.RunUntil([&] { return rig.StoreNow(RedisTestName(700, 0), 7, length_bytes).ok(); }));
  }
}

// PROMISE: T43 a replica
TEST(RedisTier, AReadOnlyReplicaRefusesWrites) {
  TERRACE_NEEDS_REDIS();
  RedisProcess master;
  RedisProcess replica;
  replica.Connect()->Command({"REPLICAOF", "127.0.0.1", std::to_string(master.port())});
  for (const size_t length_bytes : {kMiB, 64 * kKiB}) {
    RedisRig rig(RedisRig::Options(replica.unix_endpoint()));
    rig.WaitUntilReady();
    // While it copies from its master it may answer otherwise.
    ASSERT_TRUE(rig.RunUntil([&] {
      return replica.Connect()->Text({"INFO", "replication"}).find("master_link_status:up") !=
             std::string::npos;
    }));
    EXPECT_EQ(rig.StoreNow(RedisTestName(0, 0), 7, length_bytes).code(), StatusCode::kNoSpace);
    ExpectFewRefusals(&rig, replica.Connect().get(), "READONLY", length_bytes);
  }
}

// ---- what is to be forgotten ----

}  // namespace
}  // namespace terrace

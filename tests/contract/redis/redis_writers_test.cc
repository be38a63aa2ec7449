// Hosts that store one prompt with different bytes under equal keys (another batch gives other
// bits): whoever reads gets one writer's bytes whole, and nothing broken stays behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "redis/redis_process.h"
#include "redis/redis_rig.h"
#include "tiers/redis/redis_chunks.h"

namespace terrace {
namespace {

using testing::RawRedis;
using testing::RedisProcess;
using testing::RedisRig;
using testing::RedisTestName;

constexpr size_t kLengthBytes = 200'000;
constexpr size_t kSmallBytes = 100'000;
static_assert(kSmallBytes <= kRedisSmallBlockBytesMax && kLengthBytes > kRedisSmallBlockBytesMax);

size_t CountKeys(RawRedis& raw, const std::string& kind) {
  size_t count = 0;
  for (const std::string& key : raw.Keys()) count += key.find("}" + kind) != std::string::npos;
  return count;
}

size_t CountChunks(size_t length_bytes) {
  return static_cast<size_t>(std::ranges::count_if(
      CutIntoChunks(length_bytes), [](uint32_t bytes) { return bytes > kRedisTailBytesMax; }));
}

// Two tiers store the same blocks at the same time, without waiting for each other.
TEST(RedisWriters, OneOfTwoWinsWholeAndTheOtherLeavesNothing) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig first(RedisRig::Options(server.unix_endpoint()));
  RedisRig second(RedisRig::Options(server.tcp_endpoint()));
  first.WaitUntilReady();
  second.WaitUntilReady();
  constexpr uint32_t kBlocks = 24;
  constexpr int kRounds = 20;
  const std::unique_ptr<RawRedis> raw = server.Connect();
  for (int round = 0; round < kRounds; ++round) {
    const bool is_small = round % 4 < 2;
    const size_t length_bytes = is_small ? kSmallBytes : kLengthBytes;
    raw->Command({"FLUSHALL"});
    std::vector<std::vector<std::byte>> held;
    const auto begin = [&](RedisRig& rig, CommitId commit) {
      for (uint32_t i = 0; i < kBlocks; ++i) {
        const RedisBlockName name = RedisTestName(static_cast<uint64_t>(round), i);
        held.push_back(testing::RedisTestBytes(name.key, commit, length_bytes));
        ASSERT_TRUE(rig.tier()
                        .Store(i, name.run, testing::RedisTestRecord(name, commit), held.back())
                        .ok());
      }
    };
    begin(round % 2 == 0 ? first : second, round % 2 == 0 ? 1 : 2);
    begin(round % 2 == 0 ? second : first, round % 2 == 0 ? 2 : 1);
    ASSERT_TRUE(first.RunUntil([&] { return first.stored.size() == kBlocks; }));
    ASSERT_TRUE(second.RunUntil([&] { return second.stored.size() == kBlocks; }));
    for (uint32_t i = 0; i < kBlocks; ++i) {
      EXPECT_NE(first.stored[i].ok(), second.stored[i].ok()) << "exactly one stored it";
      const RedisBlockName name = RedisTestName(static_cast<uint64_t>(round), i);
      const RedisRig::Fetched fetched = first.FetchNow(name, length_bytes);
      ASSERT_TRUE(fetched.status.ok()) << fetched.status.what();
      EXPECT_TRUE(RedisRig::IsTrue(fetched, name, length_bytes));
      EXPECT_EQ(fetched.commit_id, first.stored[i].ok() ? 1u : 2u);
    }
    first.stored.clear();
    second.stored.clear();
    // Whatever a loser sent before the answers above came is through.
    ASSERT_TRUE(first.ProbeNow({RedisTestName(0, 0)}).first.ok());
    ASSERT_TRUE(second.ProbeNow({RedisTestName(0, 0)}).first.ok());
    EXPECT_EQ(CountKeys(*raw, "m"), kBlocks);
    EXPECT_EQ(CountKeys(*raw, is_small ? "s" : "c"), kBlocks * CountChunks(length_bytes));
  }
}

// One commit stored by two hosts (one read it from the other): the loser must not take the
// winner's chunks away.
// PROMISE: T41 two writers
TEST(RedisWriters, OneCommitOfTwoHostsStaysWhole) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig first(RedisRig::Options(server.unix_endpoint()));
  RedisRig second(RedisRig::Options(server.unix_endpoint()));
  first.WaitUntilReady();
  second.WaitUntilReady();
  for (uint64_t round = 0; round < 100; ++round) {
    const RedisBlockName name = RedisTestName(round, 0);
    const size_t length_bytes = round % 2 == 0 ? kSmallBytes : kLengthBytes;
    const std::vector<std::byte> bytes = testing::RedisTestBytes(name.key, 9, length_bytes);
    for (RedisRig* rig : {&first, &second}) {
      ASSERT_TRUE(
          rig->tier().Store(round, name.run, testing::RedisTestRecord(name, 9), bytes).ok());
    }
    for (RedisRig* rig : {&first, &second}) {
      ASSERT_TRUE(rig->RunUntil([&] { return rig->stored.contains(round); }));
      ASSERT_TRUE(rig->ProbeNow({name}).first.ok());
    }
    const RedisRig::Fetched fetched = first.FetchNow(name, length_bytes);
    ASSERT_TRUE(fetched.status.ok()) << fetched.status.what();
    EXPECT_TRUE(RedisRig::IsTrue(fetched, name, length_bytes));
  }
}

}  // namespace
}  // namespace terrace

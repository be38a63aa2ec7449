// Whatever happens to the keys on the server, a read gives the exact bytes of one commit or a miss.
// Seeded random damage: keys deleted, cut, grown, bits turned, values of two keys swapped, replaced
// by another commit's or another block's, made another type, manifests set back to older ones.
#include <gtest/gtest.h>
#include <hiredis/hiredis.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "redis/redis_process.h"
#include "redis/redis_rig.h"
#include "tiers/redis/wire/redis_reply.h"

namespace terrace {
namespace {

using testing::RawRedis;
using testing::RedisProcess;
using testing::RedisRig;
using testing::RedisTestName;

// Small blocks, and one whose chunks carry the name of their write.
constexpr size_t kLengths[] = {1'000, 65'536, 300'000};

class Damage {
 public:
  Damage(RawRedis* raw, uint64_t seed) : raw_(*raw), random_(seed) {}

  void RememberSome() {
    for (const std::string& key : raw_.Keys()) {
      if (random_() % 2 == 0) remembered_[key] = raw_.Text({"GET", key});
    }
  }

  void Once() {
    const std::vector<std::string> keys = raw_.Keys();
    if (keys.empty()) return;
    const std::string& key = keys[random_() % keys.size()];
    const std::string& other = keys[random_() % keys.size()];
    std::string value = raw_.Text({"GET", key});
    switch (random_() % 9) {
      case 0:
        raw_.Command({"DEL", key});
        return;
      case 1:
        value.resize(value.empty() ? 0 : random_() % value.size());
        break;
      case 2:
        value += "more";
        break;
      case 3:
      case 4:
        if (!value.empty())
          value[random_() % value.size()] ^= static_cast<char>(1 << random_() % 8);
        break;
      case 5: {
        const std::string others = raw_.Text({"GET", other});
        raw_.Command({"SET", other, value});
        value = others;
        break;
      }
      case 6:
        value = raw_.Text({"GET", other});
        break;
      case 7:
        if (remembered_.empty()) return;
        if (const auto old = remembered_.find(key); old != remembered_.end()) {
          value = old->second;
        } else {
          value = std::next(remembered_.begin(), static_cast<long>(random_() % remembered_.size()))
                      ->second;
        }
        break;
      case 8:
        raw_.Command({"DEL", key});
        raw_.Command({"LPUSH", key, "not a string"});
        return;
    }
    raw_.Command({"SET", key, value});
  }

 private:
  RawRedis& raw_;
  std::mt19937_64 random_;
  std::map<std::string, std::string> remembered_;
};

// PROMISE: T41 values that go, change and are swapped
TEST(RedisDamage, AReadIsExactOrAMiss) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig rig(RedisRig::Options(server.unix_endpoint()));
  rig.WaitUntilReady();
  const char* const given = std::getenv("TERRACE_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20;
  SCOPED_TRACE("TERRACE_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::unique_ptr<RawRedis> raw = server.Connect();
  Damage damage(raw.get(), seed + 1);
  uint64_t commit = 0, hits = 0, misses = 0;
  const char* const asked = std::getenv("TERRACE_REDIS_OPERATIONS");
  const uint64_t wanted = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 5'000;
  for (uint64_t round = 0, operations = 0; operations < wanted; ++round) {
    // Few names and lengths that differ by name only: values of one can pass for another's.
    const auto pick = [&] { return static_cast<uint32_t>(random() % 9); };
    const auto length_of = [&](uint32_t at) { return kLengths[at % 3]; };
    for (int i = 0; i < 3; ++i) {
      const uint32_t at = pick();
      const Status stored = rig.StoreNow(RedisTestName(1, at), ++commit, length_of(at));
      EXPECT_TRUE(stored.ok() || stored.code() == StatusCode::kExists) << stored.what();
      ++operations;
    }
    if (round % 10 == 0) damage.RememberSome();
    for (uint64_t i = random() % 4; i > 0; --i) damage.Once();
    for (uint32_t at = 0; at < 9; ++at) {
      const RedisBlockName name = RedisTestName(1, at);
      const RedisRig::Fetched fetched = rig.FetchNow(name, length_of(at));
      fetched.status.ok() ? ++hits : ++misses;
      ++operations;
      ASSERT_TRUE(RedisRig::IsTrue(fetched, name, length_of(at))) << "wrong bytes in " << round;
      EXPECT_TRUE(fetched.status.ok() || fetched.status.code() == StatusCode::kNotFound ||
                  fetched.status.code() == StatusCode::kCorrupt)
          << fetched.status.what();
    }
  }
  EXPECT_GT(hits, 500u);
  EXPECT_GT(misses, 200u);
  EXPECT_GT(rig.tier().stats().repairs, 50u);
}

// What was found broken is gone: the next writer stores it.
TEST(RedisDamage, ABrokenBlockIsTakenAwayAndCanBeStoredAgain) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig rig(RedisRig::Options(server.unix_endpoint()));
  rig.WaitUntilReady();
  const std::unique_ptr<RawRedis> raw = server.Connect();
  std::mt19937_64 random(5);
  for (uint64_t round = 1; round < 100; ++round) {
    const RedisBlockName name = RedisTestName(round, 0);
    const size_t length_bytes = round % 2 == 0 ? 70'000 : 300'000;
    ASSERT_TRUE(rig.StoreNow(name, 1, length_bytes).ok());
    std::vector<std::string> keys = raw->BlockKeys();
    std::erase_if(keys, [](const std::string& key) { return key.ends_with("p"); });
    const std::string& key = keys[random() % keys.size()];
    switch (random() % 3) {
      case 0:
        raw->Command({"SET", key, "short"});
        break;
      case 1:
        raw->Command({"SETRANGE", key, "0", "XYZ"});
        break;
      case 2:
        raw->Command({"DEL", key});
        raw->Command({"SADD", key, "x"});
        break;
    }
    const Status read = rig.FetchNow(name, length_bytes).status;
    EXPECT_TRUE(read.code() == StatusCode::kCorrupt || read.code() == StatusCode::kNotFound) << key;
    ASSERT_TRUE(rig.StoreNow(name, 2, length_bytes).ok()) << key;
    const RedisRig::Fetched fetched = rig.FetchNow(name, length_bytes);
    ASSERT_TRUE(fetched.status.ok());
    EXPECT_EQ(fetched.commit_id, 2u);
    raw->Command({"FLUSHALL"});
  }
}

bool IsThere(RedisRig* rig, const RedisBlockName& name, size_t length_bytes) {
  const Status stored = rig->StoreNow(name, 2, length_bytes);
  return (stored.ok() || stored.code() == StatusCode::kExists) &&
         rig->FetchNow(name, length_bytes).status.ok();
}

// Somebody with a login put it there; nobody reads so much. It is a miss that goes, and the name is
// free again.
TEST(RedisDamage, AValueBeyondAnyLimitIsTakenAway) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig rig(RedisRig::Options(server.unix_endpoint()));
  rig.WaitUntilReady();
  const std::unique_ptr<RawRedis> raw = server.Connect();
  const std::string end_of_limit = std::to_string(kRedisSkippedBytesMax);
  uint64_t round = 0;
  for (const size_t length_bytes : {size_t{1'000}, size_t{70'000}, size_t{300'000}}) {
    for (size_t at = 0;; ++at) {
      const RedisBlockName name = RedisTestName(++round, 0);
      ASSERT_TRUE(rig.StoreNow(name, 1, length_bytes).ok());
      std::vector<std::string> keys = raw->BlockKeys();
      std::ranges::sort(keys);
      if (at == keys.size()) break;
      SCOPED_TRACE(keys[at]);
      raw->Command({"DEL", keys[at]});
      raw->Command({"SETRANGE", keys[at], end_of_limit, "far"});
      // It is taken away when a connection is there for it, which it may have cost.
      const bool is_gone = rig.RunUntil([&] {
        if (keys[at].ends_with("p")) {
          for (const bool is_present : rig.ProbeNow({name}).second) EXPECT_FALSE(is_present);
        } else {
          EXPECT_FALSE(rig.FetchNow(name, length_bytes).status.ok());
        }
        return raw->Text({"GETRANGE", keys[at], end_of_limit, "-1"}).empty();
      });
      ASSERT_TRUE(is_gone);
      EXPECT_TRUE(rig.RunUntil([&] { return IsThere(&rig, name, length_bytes); }));
      raw->Command({"FLUSHALL"});
    }
    raw->Command({"FLUSHALL"});
  }
}

// Of a small block any key may be evicted: what is left keeps no writer away, also when nobody has
// read the block meanwhile.
TEST(RedisDamage, WhatIsLeftOfASmallBlockMakesRoomForAnother) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RedisRig rig(RedisRig::Options(server.unix_endpoint()));
  rig.WaitUntilReady();
  const std::unique_ptr<RawRedis> raw = server.Connect();
  const RedisBlockName name = RedisTestName(1, 0);
  ASSERT_TRUE(rig.StoreNow(name, 1, 70'000).ok());
  for (const std::string& key : raw->Keys()) {
    if (key.find("}m") != std::string::npos) raw->Command({"DEL", key});
  }
  ASSERT_TRUE(rig.StoreNow(name, 2, 70'000).ok());
  EXPECT_EQ(rig.FetchNow(name, 70'000).commit_id, 2u);
  // No string at all, and nothing else of the block.
  for (const std::string& key : raw->Keys()) {
    raw->Command({"DEL", key});
    if (key.find("}m") != std::string::npos) raw->Command({"SADD", key, "x"});
  }
  EXPECT_EQ(rig.FetchNow(name, 70'000).status.code(), StatusCode::kNotFound);
  ASSERT_TRUE(rig.ProbeNow({RedisTestName(2, 0)}).first.ok()) << "it is taken away by now";
  ASSERT_TRUE(rig.StoreNow(name, 3, 70'000).ok());
  EXPECT_EQ(rig.FetchNow(name, 70'000).commit_id, 3u);
  rig.tier().Erase(name);
  ASSERT_TRUE(rig.RunUntilErased());
  std::vector<std::string> left = raw->BlockKeys();
  std::erase_if(left, [](const std::string& key) { return key.ends_with("p"); });
  EXPECT_TRUE(left.empty()) << left.front();
}

}  // namespace
}  // namespace terrace

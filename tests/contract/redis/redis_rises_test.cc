// Erasures that meet rises of a group's generation: whoever gave the order, and whatever the server
// has lost since, nothing of before an erasure that was answered is found by who was answered.
#include <gtest/gtest.h>
#include <hiredis/hiredis.h>

#include <algorithm>
#include <string>
#include <vector>

#include "redis/chaos_proxy.h"
#include "redis/redis_process.h"
#include "redis/redis_rig.h"
#include "redis/remembering_host.h"

namespace terrace {
namespace {

using testing::ChaosProxy;
using testing::RawRedis;
using testing::RedisProcess;
using testing::RedisTestGenerationKey;
using testing::RedisTestName;
using testing::RememberingHost;

bool HasKept(const RememberingHost& host, const GroupId& group) {
  return std::ranges::find(host.kept, group, &GroupGeneration::group) != host.kept.end();
}

// What another host has stored since it had the group forgotten is there, under a name that this
// one has not heard of yet.
// PROMISE: T03 blocks of a generation that a host has not heard of
TEST(RedisRises, ABlockIsErasedInTheGenerationThatTheGroupIsInByNow) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost late(server.unix_endpoint()), other(server.unix_endpoint());
  const RedisBlockName name = RedisTestName(1, 3);
  ASSERT_TRUE(late.rig->StoreNow(name, 5, 1000).ok());
  ASSERT_TRUE(other.ForgetNow(name.group));
  ASSERT_TRUE(other.rig->StoreNow(name, 6, 1000).ok());
  for (const bool is_by_key : {false, true}) {
    SCOPED_TRACE(is_by_key);
    if (is_by_key) {
      late.rig->tier().EraseByKey(name);
    } else {
      late.rig->tier().Erase(name);
    }
    ASSERT_TRUE(late.rig->RunUntilErased());
    EXPECT_EQ(other.rig->FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
    ASSERT_TRUE(other.ForgetNow(name.group));
    ASSERT_TRUE(other.rig->StoreNow(name, 7, 1000).ok());
  }
}

// The server has risen and its answer is on its way: others may have stored by then.
// PROMISE: T03 a rise that is under way
TEST(RedisRises, WhatIsErasedWhileARiseIsOnItsWayIsNotFoundBehindIt) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  ChaosProxy proxy(server.unix_endpoint(), 1);
  RememberingHost a(proxy.endpoint()), other(server.unix_endpoint());
  const RedisBlockName name = RedisTestName(1, 3);
  ASSERT_TRUE(a.rig->StoreNow(name, 5, 1000).ok());
  const std::unique_ptr<RawRedis> raw = server.Connect();
  const std::string before = raw->Text({"GET", RedisTestGenerationKey(name.group)});
  proxy.HoldReplies(1);  // but for what it finds there
  a.rig->tier().Forget(name.group);
  ASSERT_TRUE(a.rig->RunUntil([&] {
    return raw->Text({"GET", RedisTestGenerationKey(name.group)}) != before;
  }));
  (void)other.rig->StoreNow(name, 6, 1000);  // hears of it
  ASSERT_TRUE(other.rig->StoreNow(name, 7, 1000).ok());
  ASSERT_EQ(a.rig->tier().stats().forgets_owed, 1u);
  a.rig->tier().Erase(name);
  EXPECT_FALSE(a.rig->tier().IsDurable(a.rig->tier().MarkErasures()));
  proxy.ReleaseReplies();
  ASSERT_TRUE(a.rig->RunTicking([&] { return a.rig->tier().stats().forgets_owed == 0; }));
  ASSERT_TRUE(a.rig->RunUntilErased());
  EXPECT_EQ(a.rig->FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
}

// The server may have lost the other's rise: it was evicted, the server began empty, or a replica
// that had not heard of it took over.
// PROMISE: T03 two hosts that forget
TEST(RedisRises, WhatOthersHaveHadForgottenIsNotHiddenByARiseThatWasOwed) {
  TERRACE_NEEDS_REDIS();
  enum class Lost { kNothing, kAll, kTheLast };
  for (const Lost lost : {Lost::kNothing, Lost::kAll, Lost::kTheLast}) {
    SCOPED_TRACE(static_cast<int>(lost));
    const bool has_risen_before = lost == Lost::kTheLast;
    RedisProcess server;
    ChaosProxy proxy(server.unix_endpoint(), 1);
    RememberingHost other(server.unix_endpoint()), cut_off(proxy.endpoint());
    const RedisBlockName name = RedisTestName(1, 3);
    const std::unique_ptr<RawRedis> raw = server.Connect();
    const std::string key = RedisTestGenerationKey(name.group);
    ASSERT_TRUE(!has_risen_before || other.ForgetNow(name.group));
    (void)cut_off.rig->StoreNow(name, 5, 1000);
    ASSERT_TRUE(cut_off.rig->StoreNow(name, 5, 1000).ok() || !has_risen_before);
    const std::string before = raw->Text({"GET", key});
    cut_off.rig->forgotten.clear();
    proxy.Refuse();
    cut_off.rig->tier().Forget(name.group);
    ASSERT_TRUE(other.ForgetNow(name.group));
    if (lost != Lost::kNothing) raw->Command({"DEL", key});
    if (lost == Lost::kTheLast) raw->Command({"SET", key, before});
    proxy.Accept();
    ASSERT_TRUE(
        cut_off.rig->RunTicking([&] { return cut_off.rig->tier().stats().forgets_owed == 0; }));
    EXPECT_EQ(cut_off.rig->forgotten.size(), 1u) << "what it has had since is of before";
  }
}

TEST(RedisRises, OfMoreGroupsThanCanBeRememberedWhatIsKeptIsWithinTheLimit) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost a(server.unix_endpoint());
  server.Pause();
  for (uint64_t i = 0; i < kRedisGroupsMax + 10; ++i) a.rig->tier().Forget({i + 1, 77});
  EXPECT_LE(a.kept.size(), kRedisGroupsMax);
  ASSERT_EQ(a.erased.size(), 1u);
  EXPECT_TRUE(a.erased[0].group.is_zero() && a.erased[0].key.is_zero())
      << "of a group that is remembered no more: all are forgotten as they are met";
  server.Resume();
}

// PROMISE: T03 generations of many groups
TEST(RedisRises, AGenerationIsKeptHoweverManyGroupsAreUsedSince) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost a(server.unix_endpoint());
  RedisBlockName name = RedisTestName(1, 3);
  ASSERT_TRUE(a.ForgetNow(name.group));
  ASSERT_TRUE(HasKept(a, name.group));
  std::vector<std::byte> into(1000);
  for (uint64_t i = 0; i < 3 * kRedisGroupsMax; ++i) {
    RedisBlockName one = name;
    one.group = {i + 1, 77};
    const std::vector<RedisBlockName> names = {one};
    (void)a.rig->tier().Probe(i, names);
    const bool is_to_wait = i % 64 == 0;
    ASSERT_TRUE(!is_to_wait ||
                a.rig->RunUntil([&] { return a.rig->tier().stats().operations_in_flight == 0; }));
  }
  ASSERT_TRUE(a.ForgetNow({1, 78})) << "has it kept anew";
  EXPECT_TRUE(HasKept(a, name.group)) << "a server with older data would be believed";
}

// A server has older data again, of before the group was ordered to be forgotten, and takes no
// blocks. It is told of rises all the same.
// PROMISE: T03 a full server that has lost a rise
TEST(RedisRises, AFullServerIsToldOfThem) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost eraser(server.unix_endpoint());
  const RedisBlockName name = RedisTestName(1, 3);
  RedisBlockName other = RedisTestName(2, 3), third = RedisTestName(3, 3);
  other.group = {1, 77};
  third.group = {2, 77};
  for (const RedisBlockName& one : {name, other, third}) {
    ASSERT_TRUE(eraser.rig->StoreNow(one, 5, 1000).ok());
  }
  const std::string key = RedisTestGenerationKey(name.group);
  const std::unique_ptr<RawRedis> raw = server.Connect();
  const std::string before = raw->Text({"GET", key});
  ASSERT_TRUE(eraser.ForgetNow(name.group));
  raw->Command({"SET", key, before});
  raw->Command({"DEL", RedisTestGenerationKey(third.group)});
  raw->Command({"CONFIG", "SET", "maxmemory", "1"});
  RedisBlockName offered = other;
  // Blocks of others are offered all the while, so that no writes are given to it but these.
  EXPECT_TRUE(eraser.rig->RunTicking([&] {
    offered.key.low += 1;
    EXPECT_EQ(eraser.rig->StoreNow(offered, 5, 1000).code(), StatusCode::kNoSpace);
    EXPECT_TRUE(eraser.rig->tier().stats().is_full);
    return raw->Text({"GET", key}) != before;
  }));
  RememberingHost late(server.unix_endpoint());
  EXPECT_EQ(late.rig->FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
  EXPECT_TRUE(late.rig->FetchNow(other, 1000).status.ok()) << "what it has else is served";
  for (const GroupId& group : {other.group, third.group}) ASSERT_TRUE(late.ForgetNow(group));
  RememberingHost later(server.unix_endpoint());
  EXPECT_EQ(later.rig->FetchNow(other, 1000).status.code(), StatusCode::kNotFound);
  EXPECT_TRUE(eraser.rig->tier().stats().is_full) << "that it is told does not mean that it is not";
}

// A replica that has become the master before it had heard of a rise takes nothing, nor lets
// anything go, while it has no replica of its own.
// PROMISE: T03 a server with too few replicas that has lost a rise
TEST(RedisRises, AServerWithTooFewReplicasIsBelievedByWhoHasNotLeftIt) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost a(server.unix_endpoint()), eraser(server.unix_endpoint());
  const RedisBlockName name = RedisTestName(1, 3);
  ASSERT_TRUE(a.rig->StoreNow(name, 5, 1000).ok());
  const std::string key = RedisTestGenerationKey(name.group);
  const std::unique_ptr<RawRedis> raw = server.Connect();
  const std::string before = raw->Text({"GET", key});
  raw->Command({"CONFIG", "SET", "min-replicas-to-write", "1"});
  EXPECT_TRUE(a.rig->FetchNow(name, 1000).status.ok()) << "it has been there all the while";
  raw->Command({"CONFIG", "SET", "min-replicas-to-write", "0"});
  ASSERT_TRUE(eraser.ForgetNow(name.group));
  raw->Command({"SET", key, before});
  raw->Command({"CONFIG", "SET", "min-replicas-to-write", "1"});
  RememberingHost late(server.unix_endpoint());
  EXPECT_FALSE(late.rig->FetchNow(name, 1000).status.ok());
  EXPECT_NE(late.rig->tier().stats().write_trouble.find("NOREPLICAS"), std::string::npos);
  raw->Command({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
  ASSERT_TRUE(a.rig->RunTicking([&] { return a.rig->tier().stats().connections_lost > 0; }));
  a.rig->WaitUntilReady();
  EXPECT_FALSE(a.rig->FetchNow(name, 1000).status.ok()) << "nobody knows what it is now";
  raw->Command({"CONFIG", "SET", "min-replicas-to-write", "0"});
  EXPECT_TRUE(eraser.rig->RunTicking([&] { return raw->Text({"GET", key}) != before; }));
  late.rig->WaitUntilReady();
  EXPECT_EQ(late.rig->FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
  EXPECT_EQ(a.rig->FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
  EXPECT_TRUE(late.rig->RunTicking([&] { return late.rig->StoreNow(name, 6, 1000).ok(); }));
}

}  // namespace
}  // namespace terrace

// What is erased on a Redis server stays erased: whole groups by their generation, blocks by name.
#include <gtest/gtest.h>
#include <hiredis/hiredis.h>

#include <algorithm>
#include <optional>
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
using testing::RedisRig;
using testing::RedisTestGeneration;
using testing::RedisTestGenerationKey;
using testing::RedisTestName;
using testing::RememberingHost;

TEST(RedisTier, WhatWasForgottenHasNoNameAnyMoreOnAnyHost) {
  TERRACE_NEEDS_REDIS();
  for (const size_t length_bytes : {size_t{1000}, size_t{kMiB}}) {
    RedisProcess server;
    RememberingHost a(server.unix_endpoint()), late(server.unix_endpoint());
    const RedisBlockName name = RedisTestName(1, 3), other = RedisTestName(2, 3);
    ASSERT_TRUE(a.rig->StoreNow(name, 5, length_bytes).ok());
    ASSERT_TRUE(late.rig->FetchNow(name, length_bytes).status.ok());
    ASSERT_TRUE(a.ForgetNow(name.group));
    EXPECT_EQ(a.kept.size(), 1u);
    EXPECT_FALSE(a.kept[0].is_owed);
    EXPECT_EQ(a.rig->FetchNow(name, length_bytes).status.code(), StatusCode::kNotFound);
    // Who has not heard of it writes where nobody looks who has.
    const StatusCode stored = late.rig->StoreNow(other, 5, length_bytes).code();
    EXPECT_TRUE(stored == StatusCode::kOk || stored == StatusCode::kGone) << "on a slow machine";
    EXPECT_EQ(a.rig->FetchNow(other, length_bytes).status.code(), StatusCode::kNotFound);
    ASSERT_TRUE(a.rig->StoreNow(name, 6, length_bytes).ok());
    RememberingHost fresh(server.unix_endpoint());
    EXPECT_EQ(fresh.rig->FetchNow(name, length_bytes).record.commit_id, 6u);
    EXPECT_EQ(fresh.rig->forgotten, std::vector<GroupId>{name.group});
    EXPECT_EQ(fresh.kept, a.kept);
    // Whose first question it is has computed its bytes before it knew.
    RememberingHost newcomer(server.unix_endpoint());
    const RedisBlockName third = RedisTestName(3, 3);
    EXPECT_EQ(newcomer.rig->StoreNow(third, 5, length_bytes).code(), StatusCode::kGone);
    EXPECT_TRUE(newcomer.rig->StoreNow(third, 6, length_bytes).ok());
    EXPECT_EQ(a.rig->FetchNow(third, length_bytes).record.commit_id, 6u);
  }
}

// What a server may have in place of a generation.
std::vector<std::vector<std::string>> Losses(const std::string& key) {
  return {{"DEL", key},
          {"SET", key, "00000000000000000000:0123456789abcdef"},
          {"SET", key, std::string(2'000'000, 'x')},
          {"DEL", key}};
}

TEST(RedisTier, AGenerationThatTheServerLostIsSaidAgainByWhoHeardItAMomentAgo) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost a(server.unix_endpoint());
  const RedisBlockName name = RedisTestName(1, 3);
  ASSERT_TRUE(a.ForgetNow(name.group));
  ASSERT_TRUE(a.rig->StoreNow(name, 5, 1000).ok());
  const std::vector<GroupGeneration> before = a.kept;
  const std::unique_ptr<RawRedis> raw = server.Connect();
  const std::string key = RedisTestGenerationKey(name.group);
  for (const std::vector<std::string>& loss : Losses(key)) {
    raw->Command(loss);
    ASSERT_TRUE(a.AskServer(name.group));
    EXPECT_EQ(raw->Text({"GET", key}), RedisTestGeneration(name.group, before[0].generation));
    EXPECT_EQ(a.kept, before);
    EXPECT_TRUE(a.rig->FetchNow(name, 1000).status.ok());
  }
}

// Others may have had the group forgotten since a host heard of it, and the server may have lost
// that: nothing of before is found by a host that was away, or was never there.
// PROMISE: T03 a generation that the server has lost
TEST(RedisTier, WhereTheServerLostAGenerationNothingOfBeforeIsFound) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost writer(server.unix_endpoint());
  const RedisBlockName name = RedisTestName(1, 3);
  ASSERT_TRUE(writer.rig->StoreNow(name, 5, 1000).ok());
  const std::vector<GroupGeneration> of_writer = writer.kept;
  const std::unique_ptr<RawRedis> raw = server.Connect();
  const std::string key = RedisTestGenerationKey(name.group);
  for (const std::vector<std::string>& loss : Losses(key)) {
    RememberingHost eraser(server.unix_endpoint());
    ASSERT_TRUE(eraser.ForgetNow(name.group));
    for (const std::vector<GroupGeneration>& known : {of_writer, std::vector<GroupGeneration>()}) {
      raw->Command(loss);
      RememberingHost late(server.unix_endpoint(), known);
      const RedisRig::Fetched found = late.rig->FetchNow(name, 1000);
      EXPECT_EQ(found.status.code(), StatusCode::kNotFound) << "the bytes of before";
    }
    EXPECT_EQ(eraser.rig->FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
  }
}

TEST(RedisTier, AServerThatSaysLessThanAHostKnowsIsNotToldThatButSomethingNew) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost a(server.unix_endpoint());
  const RedisBlockName name = RedisTestName(1, 3);
  ASSERT_TRUE(a.ForgetNow(name.group));
  ASSERT_TRUE(a.rig->StoreNow(name, 5, 1000).ok());
  const uint64_t known = a.kept[0].generation;
  const std::unique_ptr<RawRedis> raw = server.Connect();
  const std::string key = RedisTestGenerationKey(name.group);
  // Somebody whose clock is behind had it forgotten, of a server that had lost what it was.
  raw->Command({"SET", key, RedisTestGeneration(name.group, 1001)});
  a.rig->forgotten.clear();
  ASSERT_TRUE(a.AskServer(name.group));
  EXPECT_GT(a.kept[0].generation, known);
  EXPECT_EQ(a.rig->forgotten, std::vector<GroupId>{name.group});
  EXPECT_EQ(a.rig->FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
}

// Nobody ever had it forgotten: what hosts have of it is of now, whenever they first hear of it.
TEST(RedisTier, OfAGroupThatWasNeverForgottenHostsStoreAtOnce) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost a(server.unix_endpoint()), b(server.unix_endpoint());
  const RedisBlockName name = RedisTestName(1, 3), other = RedisTestName(2, 3);
  ASSERT_TRUE(a.rig->StoreNow(name, 5, 1000).ok());
  ASSERT_TRUE(b.rig->StoreNow(other, 6, 1000).ok());
  ASSERT_EQ(a.kept.size(), 1u);
  EXPECT_NE(a.kept[0].generation, 0u);
  EXPECT_EQ(b.kept, a.kept);
  RememberingHost heir(server.unix_endpoint(), a.kept);
  ASSERT_TRUE(heir.rig->StoreNow(RedisTestName(3, 3), 7, 1000).ok());
  for (const RememberingHost* host : {&a, &b, &heir}) EXPECT_TRUE(host->rig->forgotten.empty());
  EXPECT_EQ(b.rig->FetchNow(name, 1000).commit_id, 5u);
  EXPECT_EQ(a.rig->FetchNow(other, 1000).commit_id, 6u);
}

// A server began empty, and somebody who had never heard of the group begins it anew there.
TEST(RedisTier, WhatIsBegunAnewHoldsForWhoHeardOfTheOneBeforeAMomentAgo) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost a(server.unix_endpoint());
  const RedisBlockName name = RedisTestName(1, 3), other = RedisTestName(2, 3);
  ASSERT_TRUE(a.rig->StoreNow(name, 5, 1000).ok());
  const std::vector<GroupGeneration> before = a.kept;
  server.Connect()->Command({"FLUSHALL"});
  RememberingHost b(server.unix_endpoint());
  ASSERT_TRUE(b.rig->StoreNow(other, 6, 1000).ok());
  EXPECT_GT(b.kept[0].generation, before[0].generation);
  ASSERT_TRUE(a.AskServer(name.group));
  EXPECT_EQ(a.kept, b.kept);
  EXPECT_TRUE(a.rig->forgotten.empty()) << "what it has may go there";
  EXPECT_EQ(a.rig->FetchNow(other, 1000).commit_id, 6u);
  EXPECT_EQ(a.rig->tier().stats().begun_anew, 1u) << "what it gave is looked for elsewhere";
  // Whoever was away may have missed that all was forgotten: it has the group begin once more.
  RememberingHost late(server.unix_endpoint(), before);
  EXPECT_EQ(late.rig->FetchNow(other, 1000).status.code(), StatusCode::kNotFound);
  EXPECT_GT(late.kept[0].generation, b.kept[0].generation);
  EXPECT_EQ(late.rig->forgotten, std::vector<GroupId>{name.group});
  EXPECT_EQ(late.rig->tier().stats().generations_lost, 1u);
  for (RememberingHost* host : {&a, &b}) {
    ASSERT_TRUE(host->AskServer(name.group));
    EXPECT_EQ(host->kept, late.kept);
    EXPECT_EQ(host->rig->forgotten, std::vector<GroupId>{name.group});
    EXPECT_EQ(host->rig->tier().stats().forgotten_elsewhere, 1u);
    EXPECT_EQ(host->rig->tier().stats().generations_lost, 0u);
  }
}

// Who knows that the group was forgotten never takes what is begun anew for its successor.
TEST(RedisTier, WhatWasForgottenStaysSoWhereSomebodyBeginsAnew) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost a(server.unix_endpoint());
  const RedisBlockName name = RedisTestName(1, 3);
  ASSERT_TRUE(a.ForgetNow(name.group));
  const uint64_t risen = a.kept[0].generation;
  server.Connect()->Command({"FLUSHALL"});
  RememberingHost newcomer(server.unix_endpoint());
  ASSERT_TRUE(newcomer.rig->StoreNow(name, 6, 1000).ok());
  const uint64_t begun = newcomer.kept[0].generation;
  EXPECT_GT(begun, risen);
  EXPECT_EQ(begun & 63, 63u);
  a.rig->forgotten.clear();
  ASSERT_TRUE(a.AskServer(name.group));
  EXPECT_GT(a.kept[0].generation, begun);
  EXPECT_NE(a.kept[0].generation & 63, 63u);
  EXPECT_EQ(a.rig->forgotten, std::vector<GroupId>{name.group});
  EXPECT_EQ(a.rig->FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
}

// Nobody uses the group on the host that had it forgotten.
TEST(RedisTier, WhoKnowsOfARiseSaysSoWhereTheServerHasOlderDataAgain) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost writer(server.unix_endpoint());
  const RedisBlockName name = RedisTestName(1, 3);
  ASSERT_TRUE(writer.rig->StoreNow(name, 5, 1000).ok());
  const std::string key = RedisTestGenerationKey(name.group);
  const std::unique_ptr<RawRedis> raw = server.Connect();
  const std::string before = raw->Text({"GET", key});
  RememberingHost eraser(server.unix_endpoint());
  ASSERT_TRUE(eraser.ForgetNow(name.group));
  raw->Command({"SET", key, before});
  EXPECT_TRUE(eraser.rig->RunTicking([&] { return raw->Text({"GET", key}) != before; }));
  RememberingHost late(server.unix_endpoint());
  EXPECT_EQ(late.rig->FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
}

TEST(RedisTier, WhatAnEarlierReleaseHadForgottenHasRisen) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  const RedisBlockName name = RedisTestName(1, 3);
  const uint64_t its_own = 1'790'000'000ull * 1'000'000;  // seconds, in microseconds
  const std::string key = RedisTestGenerationKey(name.group);
  server.Connect()->Command({"SET", key, RedisTestGeneration(name.group, its_own)});
  RememberingHost heir(server.unix_endpoint(),
                       {{.group = name.group, .generation = its_own, .is_owed = false}});
  const std::vector<std::byte> bytes(1000);
  const BlockRecord record = testing::RedisTestRecord(name, 5);
  EXPECT_EQ(heir.rig->tier().Store(1, name.run, record, bytes).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(heir.rig->RunUntil([&] { return !heir.rig->forgotten.empty(); }));
}

TEST(RedisTier, ARisenGenerationGoesBeyondWhatTheServerHasLost) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost a(server.unix_endpoint());
  const RedisBlockName name = RedisTestName(1, 3);
  ASSERT_TRUE(a.ForgetNow(name.group));
  const std::string key = RedisTestGenerationKey(name.group);
  const std::unique_ptr<RawRedis> raw = server.Connect();
  raw->Command({"DEL", key});
  raw->Command({"RPUSH", key, "a list"});
  RememberingHost heir(server.unix_endpoint(), a.kept);
  EXPECT_FALSE(heir.rig->FetchNow(name, 1000).status.ok());
  raw->Command({"DEL", key});
  ASSERT_TRUE(heir.ForgetNow(name.group));
  EXPECT_GT(heir.kept[0].generation, a.kept[0].generation);
}

TEST(RedisTier, WhatAPredecessorLeftIsNotStoredInAGenerationItMayNotBeOf) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost a(server.unix_endpoint());
  const RedisBlockName name = RedisTestName(1, 3);
  ASSERT_TRUE(a.ForgetNow(name.group));
  RememberingHost heir(server.unix_endpoint(), a.kept);
  const std::vector<std::byte> bytes(1000);
  const BlockRecord record = testing::RedisTestRecord(name, 5);
  EXPECT_EQ(heir.rig->tier().Store(1, name.run, record, bytes).code(), StatusCode::kUnsupported);
  ASSERT_TRUE(heir.rig->RunUntil([&] { return !heir.rig->forgotten.empty(); }))
      << "its blocks until now are barred";
  EXPECT_TRUE(heir.rig->StoreNow(name, 5, 1000).ok());
  EXPECT_TRUE(a.rig->FetchNow(name, 1000).status.ok());
}

TEST(RedisTier, WhatIsOwedIsToldWhenTheServerIsThere) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  const RedisBlockName name = RedisTestName(1, 3);
  {
    RedisRig writer(RedisRig::Options(server.unix_endpoint()));
    writer.WaitUntilReady();
    ASSERT_TRUE(writer.StoreNow(name, 5, 1000).ok());
  }
  RememberingHost a(server.unix_endpoint(), {{.group = name.group, .is_owed = true}});
  EXPECT_EQ(a.rig->tier().stats().forgets_owed, 1u);
  std::vector<std::byte> bytes(1000);
  EXPECT_EQ(a.rig->tier().Fetch(1, name, bytes).code(), StatusCode::kUnsupported);
  a.rig->tier().Tick();
  ASSERT_TRUE(a.rig->RunUntil([&] { return a.rig->tier().stats().forgets_owed == 0; }));
  EXPECT_EQ(a.rig->FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
  EXPECT_TRUE(a.rig->tier().IsDurable(a.rig->tier().MarkErasures())) << "the server knows";
  const uint64_t before = a.revision;
  a.rig->tier().Forget(name.group);
  EXPECT_GT(a.revision, before) << "kept before the server has answered";
  EXPECT_TRUE(a.kept[0].is_owed);
  const SharedErasureMark mark = a.rig->tier().MarkErasures();
  EXPECT_FALSE(a.rig->tier().IsDurable(mark));
  a.rig->tier().Kept(a.revision);
  EXPECT_TRUE(a.rig->tier().IsDurable(mark));
}

// Of a block that is there; the server's answers are held back.
struct FetchUnderWay {
  FetchUnderWay() {
    EXPECT_TRUE(a.rig->StoreNow(name, 5, 1000).ok());
    proxy.HoldReplies(0);
    EXPECT_TRUE(a.rig->tier().Fetch(77, name, into).ok());
  }

  RedisProcess server;
  ChaosProxy proxy{server.unix_endpoint(), 1};
  RememberingHost a{proxy.endpoint()};
  const RedisBlockName name = RedisTestName(1, 3);
  std::vector<std::byte> into = std::vector<std::byte>(1000);
};

// PROMISE: T03 a fetch that is under way
TEST(RedisTier, AFetchThatIsUnderWayWhenTheGroupIsForgottenFindsNothing) {
  TERRACE_NEEDS_REDIS();
  FetchUnderWay of;
  RememberingHost& a = of.a;
  a.rig->tier().Forget(of.name.group);
  of.proxy.ReleaseReplies();
  ASSERT_TRUE(a.rig->RunUntil([&] { return a.rig->fetched.contains(77); }));
  EXPECT_EQ(a.rig->fetched.at(77).status.code(), StatusCode::kNotFound);
}

TEST(RedisTier, AManifestThatIsCarriedToAnotherGenerationIsNotBelieved) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost a(server.unix_endpoint());
  RedisBlockName name = RedisTestName(1, 3);
  ASSERT_TRUE(a.rig->StoreNow(name, 5, 1000).ok());
  name.generation = a.kept[0].generation;
  ASSERT_TRUE(a.ForgetNow(name.group));
  const RedisKeyNames names("terrace", testing::RedisTestSecret());
  const std::vector<std::string> before = names.Small(name, 1);
  name.generation = a.kept[0].generation;
  const std::vector<std::string> after = names.Small(name, 1);
  const std::unique_ptr<RawRedis> raw = server.Connect();
  for (size_t i = 0; i < before.size(); ++i) {
    ASSERT_EQ(raw->Text({"RENAME", before[i], after[i]}), "OK");
  }
  EXPECT_FALSE(a.rig->FetchNow(name, 1000).status.ok());
}

// ---- blocks by name ----

size_t ManifestCount(const RedisProcess& server) {
  const std::vector<std::string> keys = server.Connect()->Keys();
  return static_cast<size_t>(std::ranges::count_if(
      keys, [](const std::string& key) { return key.find("}m") != std::string::npos; }));
}

// PROMISE: T03 an erasure that a server was not there for
TEST(RedisTier, WhatAServerWasNotThereToEraseIsNotFoundAgain) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost a(server.unix_endpoint());
  RedisTier& tier = a.rig->tier();
  const RedisBlockName name = RedisTestName(1, 3), other = RedisTestName(1, 4);
  ASSERT_TRUE(a.ForgetNow(name.group)) << "whatever its generation";
  ASSERT_TRUE(a.rig->StoreNow(name, 5, 1000).ok());
  ASSERT_TRUE(a.rig->StoreNow(other, 5, 1000).ok());
  server.Pause();
  tier.Erase(name);
  const SharedErasureMark mark = tier.MarkErasures();
  EXPECT_FALSE(tier.IsDurable(mark)) << "neither the server nor a successor knows";
  EXPECT_EQ(a.rig->FetchNow(name, 1000).status.code(), StatusCode::kUnsupported);
  ASSERT_TRUE(a.rig->RunTicking([&] { return !a.erased.empty(); })) << "it is kept, then";
  EXPECT_EQ(a.erased[0].key, name.key);
  EXPECT_FALSE(tier.IsDurable(mark));
  tier.Kept(a.revision);
  EXPECT_TRUE(tier.IsDurable(mark));
  const std::vector<KeptErasure> erased = a.erased;
  server.Resume();
  ASSERT_TRUE(a.rig->RunUntilErased());
  ASSERT_TRUE(a.rig->RunTicking([&] { return a.erased.empty(); })) << "a successor need not know";
  EXPECT_EQ(a.rig->FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
  EXPECT_TRUE(a.rig->FetchNow(other, 1000).status.ok()) << "and of nothing else";
  EXPECT_EQ(tier.stats().forgets, 1u);
  ASSERT_TRUE(a.rig->StoreNow(name, 6, 1000).ok());
  EXPECT_EQ(a.rig->FetchNow(name, 1000).commit_id, 6u);
  // A successor that was told by what is kept, and nobody else, of what the server has yet.
  RememberingHost heir(server.unix_endpoint(), a.kept, erased);
  EXPECT_FALSE(heir.rig->ProbeNow({name}).second[0]);
  EXPECT_EQ(heir.rig->FetchNow(name, 1000).status.code(), StatusCode::kUnsupported);
  ASSERT_TRUE(heir.rig->RunUntilErased()) << "under the name that it was asked for by";
  EXPECT_EQ(heir.rig->FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
  EXPECT_TRUE(heir.rig->FetchNow(other, 1000).status.ok());
  ASSERT_TRUE(heir.rig->StoreNow(name, 7, 1000).ok());
  EXPECT_EQ(heir.rig->FetchNow(name, 1000).commit_id, 7u);
}

// The answer to its first command is held back: what publishes the block comes behind an erasure
// that does not wait.
// PROMISE: T03 a store under way
TEST(RedisTier, AnErasureComesBehindTheStoreThatIsUnderWay) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  ChaosProxy proxy(server.unix_endpoint(), 1);
  RememberingHost a(proxy.endpoint());
  const RedisBlockName name = RedisTestName(1, 3);
  a.rig->tier().Erase(name);
  ASSERT_TRUE(a.rig->RunUntilErased()) << "from here on the server is asked once";
  const std::vector<std::byte> bytes = testing::RedisTestBytes(name.key, 5, 300'000);
  proxy.HoldReplies(0);
  ASSERT_TRUE(a.rig->tier().Store(77, name.run, testing::RedisTestRecord(name, 5), bytes).ok());
  ASSERT_TRUE(a.rig->RunUntil([&] { return proxy.held_replies_count() > 0; }));
  a.rig->tier().Erase(name);
  ASSERT_TRUE(a.rig->RunTicking([&] { return !a.erased.empty(); })) << "there was time to send it";
  proxy.ReleaseReplies();
  ASSERT_TRUE(a.rig->RunUntil([&] { return a.rig->stored.contains(77); }));
  EXPECT_TRUE(a.rig->stored[77].ok());
  EXPECT_EQ(a.rig->FetchNow(name, 300'000).status.code(), StatusCode::kUnsupported);
  ASSERT_TRUE(a.rig->RunUntilErased());
  EXPECT_EQ(a.rig->FetchNow(name, 300'000).status.code(), StatusCode::kNotFound);
  EXPECT_EQ(ManifestCount(server), 0u);
}

TEST(RedisTier, AFetchThatIsUnderWayDoesNotBringBackWhatIsErased) {
  TERRACE_NEEDS_REDIS();
  FetchUnderWay of;
  RememberingHost& a = of.a;
  const std::vector<RedisBlockName> names = {of.name};
  ASSERT_TRUE(a.rig->tier().Probe(78, names).ok());
  ASSERT_TRUE(a.rig->RunUntil([&] { return of.proxy.held_replies_count() > 1; }));
  a.rig->tier().Erase(of.name);
  of.proxy.ReleaseReplies();
  ASSERT_TRUE(
      a.rig->RunUntil([&] { return a.rig->fetched.contains(77) && a.rig->probed.contains(78); }));
  EXPECT_EQ(a.rig->fetched[77].status.code(), StatusCode::kNotFound);
  ASSERT_TRUE(a.rig->RunUntilErased());
}

// PROMISE: T03 a block that only a server has
TEST(RedisTier, WhatIsErasedByKeyIsNotFoundUnderItsName) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost a(server.unix_endpoint());
  for (const uint32_t position : {0u, 3u, 70u}) {
    const RedisBlockName name = RedisTestName(1, position);
    ASSERT_TRUE(a.rig->StoreNow(name, 5, 1000).ok());
    RedisBlockName guessed = name;
    guessed.run = name.key;
    guessed.position = 0;
    a.rig->tier().EraseByKey(guessed);
    const SharedErasureMark mark = a.rig->tier().MarkErasures();
    EXPECT_FALSE(a.rig->ProbeNow({name}).second[0]);
    ASSERT_TRUE(a.rig->RunUntilErased());
    EXPECT_EQ(ManifestCount(server), 0u) << "it was asked for by its name";
    EXPECT_FALSE(a.rig->tier().IsDurable(mark)) << "it may be there under another one";
    a.rig->tier().Kept(a.revision);
    EXPECT_TRUE(a.rig->tier().IsDurable(mark));
    EXPECT_EQ(a.rig->FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
    ASSERT_TRUE(a.rig->StoreNow(name, 6, 1000).ok()) << "and it is used again";
    EXPECT_TRUE(a.rig->ProbeNow({name}).second[0]);
    EXPECT_EQ(a.rig->FetchNow(name, 1000).commit_id, 6u);
    a.rig->tier().Drop(name);
  }
}

TEST(RedisTier, WhatIsErasedInItsChainIsNotFoundAlone) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost a(server.unix_endpoint());
  const RedisBlockName name = RedisTestName(1, 3);
  const RedisBlockName alone = name.Alone();
  ASSERT_TRUE(a.rig->StoreNow(alone, 5, 1000).ok());
  ASSERT_TRUE(a.rig->StoreNow(name, 6, 1000).ok());
  a.rig->tier().Erase(name);
  ASSERT_TRUE(a.rig->RunUntilErased());
  EXPECT_EQ(a.rig->FetchNow(alone, 1000).status.code(), StatusCode::kNotFound);
  EXPECT_EQ(a.rig->FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
}

TEST(RedisTier, OfMoreThanCanBeOwedTheGroupIsForgottenOnce) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  RememberingHost a(server.unix_endpoint());
  RedisTier& tier = a.rig->tier();
  const RedisBlockName name = RedisTestName(1, 3);
  ASSERT_TRUE(a.rig->StoreNow(name, 5, 1000).ok());
  server.Pause();
  for (uint32_t i = 0; i < OwedErasures::kBlocksMax; ++i) tier.Erase(RedisTestName(2, i));
  EXPECT_EQ(tier.stats().forgets_owed, 0u);
  for (uint32_t i = 0; i < OwedErasures::kBlocksMax; ++i) tier.Erase(RedisTestName(3, i));
  EXPECT_EQ(tier.stats().forgets_owed, 1u);
  EXPECT_EQ(tier.stats().erasures_owed, 0u) << "the group's generation is enough";
  const SharedErasureMark mark = tier.MarkErasures();
  ASSERT_FALSE(a.kept.empty());
  EXPECT_TRUE(a.kept[0].is_owed);
  EXPECT_FALSE(tier.IsDurable(mark));
  tier.Kept(a.revision);
  EXPECT_TRUE(tier.IsDurable(mark));
  ASSERT_TRUE(a.rig->RunUntil([&] { return !a.rig->forgotten.empty(); }))
      << "what waits to be stored is of before";
  server.Resume();
  ASSERT_TRUE(a.rig->RunTicking([&] { return tier.stats().forgets == 1; }));
  EXPECT_EQ(a.rig->FetchNow(name, 1000).status.code(), StatusCode::kNotFound);
  tier.Erase(name);
  ASSERT_TRUE(a.rig->RunUntilErased());
  EXPECT_EQ(tier.stats().forgets, 1u);
}

// Each time the connections break in the middle of it: nothing is forgotten but what was named.
TEST(RedisTier, ANetworkThatComesAndGoesCostsTheErasedBlocksOnly) {
  TERRACE_NEEDS_REDIS();
  RedisProcess server;
  ChaosProxy proxy(server.unix_endpoint(), 1);
  RedisTier::Options options = RedisRig::Options(proxy.endpoint());
  options.breaker.probe_first_us = 20'000;
  options.breaker.probe_max_us = 40'000;
  options.keep = [](uint64_t, const RedisMemory&) {};
  RedisRig rig(std::move(options));
  rig.WaitUntilReady();
  const RedisBlockName stays = RedisTestName(9, 0);
  ASSERT_TRUE(rig.StoreNow(stays, 5, 1000).ok());
  for (uint32_t i = 0; i < 20; ++i) {
    const RedisBlockName name = RedisTestName(1, i);
    ASSERT_TRUE(rig.RunTicking([&] { return rig.StoreNow(name, 5, 1000).ok(); }));
    const uint64_t lost = rig.tier().stats().connections_lost;
    proxy.Refuse();
    rig.tier().Erase(name);
    ASSERT_TRUE(rig.RunTicking([&] { return rig.tier().stats().connections_lost > lost; }));
    proxy.Accept();
  }
  ASSERT_TRUE(rig.RunUntilErased());
  ASSERT_TRUE(rig.RunTicking([&] { return rig.tier().stats().is_ready; }));
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(rig.FetchNow(RedisTestName(1, i), 1000).status.code(), StatusCode::kNotFound) << i;
  }
  EXPECT_TRUE(rig.FetchNow(stays, 1000).status.ok());
  EXPECT_EQ(rig.tier().stats().forgets, 0u);
  EXPECT_EQ(ManifestCount(server), 1u);
}

}  // namespace
}  // namespace terrace

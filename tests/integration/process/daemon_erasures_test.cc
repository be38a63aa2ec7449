// What an Evict by key has erased stays erased on a Redis server: one that is not there when it is
// asked, or not until the daemon was killed; one to which the block is just being given; one that
// alone has it. So does what is erased while the domain has another secret.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "integration/process/redis_hosts.h"
#include "redis/redis_process.h"

namespace terrace::test {
namespace {

using ::terrace::testing::RedisProcess;

constexpr uint32_t kBlocks = 70;  // more than a run

class DaemonErasures : public ::testing::Test {
 protected:
  void SetUp() override {
    TERRACE_NEEDS_REDIS();
    server_.emplace();
    Begin(RedisHost::Patient());
  }
  void Begin(const std::string& redis) {
    host_.emplace(ToText(server_->unix_endpoint()), redis);
    ASSERT_TRUE(host_->Connect()) << host_->daemon().Errors();
    ASSERT_TRUE(Eventually([&] { return host_->IsReady(); }));
  }
  void StoreAndShare() {
    ASSERT_EQ(host_->Store(keys_), kBlocks);
    ASSERT_TRUE(Eventually([&] { return host_->Redis("blocks_stored") >= kBlocks; }))
        << host_->Stats()["redis"];
  }
  // "ok", within the time that an Evict waits.
  uint64_t Evict(const std::vector<BlockKey>& keys, uint32_t flags = 0) {
    const Result<protocol::EvictReply> evicted =
        host_->client().Evict(host_->group(), keys, {.flags = flags});
    EXPECT_TRUE(evicted.ok()) << evicted.status().what() << host_->Stats()["redis"];
    return evicted.ok() ? evicted->block_count : 0;
  }
  void RestartUnder(char secret) {
    (void)host_->WriteSecret(secret);
    ASSERT_TRUE(host_->Restart(SIGTERM)) << host_->daemon().Errors();
    ASSERT_TRUE(Eventually([&] { return host_->IsReady(); }));
  }
  bool IsServerTold() {
    return Eventually([&] { return host_->IsReady() && host_->Redis("erasures_owed") == 0; });
  }
  std::vector<BlockKey> From(uint32_t first) const { return {keys_.begin() + first, keys_.end()}; }
  uint64_t ManifestCount() const {
    const std::vector<std::string> keys = server_->Connect()->Keys();
    return static_cast<uint64_t>(std::ranges::count_if(
        keys, [](const std::string& key) { return key.find("}m") != std::string::npos; }));
  }
  // Nothing from `first` on, everything before, and it can be stored and shared again.
  void ExpectErasedFrom(uint32_t first) {
    EXPECT_EQ(host_->Load(keys_).block_count, first) << host_->Stats()["redis"];
    ASSERT_TRUE(IsServerTold()) << host_->Stats()["redis"];
    EXPECT_EQ(host_->Load(keys_).block_count, first) << host_->Stats()["redis"];
    EXPECT_EQ(host_->Redis("forgets"), 0u) << "of the group nothing else was forgotten";
    EXPECT_EQ(ManifestCount(), first);
    ASSERT_EQ(host_->Store(keys_, 1), kBlocks - first);
    const RedisHost::Loaded loaded = host_->Load(keys_, {}, 2);
    EXPECT_EQ(loaded.block_count, kBlocks);
    for (uint32_t i = first; i < loaded.block_count; ++i) EXPECT_EQ(loaded.writers[i], 1u) << i;
  }

  // The group is forgotten when it is met.
  void ExpectAllForgotten() {
    ASSERT_TRUE(Eventually([&] {
      EXPECT_EQ(host_->Load(keys_).block_count, 0u) << host_->Stats()["redis"];
      return host_->Redis("forgets") == 1;
    }));
  }
  // What was stored anew is not erased once more at each start.
  void ExpectASuccessorServesAll(uint64_t manifests) {
    ASSERT_TRUE(Eventually([&] { return ManifestCount() == manifests; }))
        << host_->Stats()["redis"];
    ASSERT_TRUE(Eventually([&] { return host_->Redis("stores_under_way") == 0; }));
    ASSERT_TRUE(host_->Restart(SIGTERM)) << host_->daemon().Errors();
    ASSERT_TRUE(Eventually([&] { return host_->IsReady(); }));
    EXPECT_EQ(host_->Load(keys_, {}, 2).block_count, kBlocks) << host_->Stats()["redis"];
  }

  const std::vector<BlockKey> keys_ = Keys(kBlocks);
  std::optional<RedisProcess> server_;
  std::optional<RedisHost> host_;
};

TEST_F(DaemonErasures, ByAServerThatWorksAreAnsweredWhenItHasDoneThem) {
  StoreAndShare();
  EXPECT_EQ(Evict(From(3)), kBlocks - 3);
  ExpectErasedFrom(3);
}

// PROMISE: T03 an Evict by key while the server is away
TEST_F(DaemonErasures, WhileTheServerIsAwayBringNothingBackWhenItReturns) {
  StoreAndShare();
  server_->Pause();
  EXPECT_EQ(Evict(From(3)), kBlocks - 3);
  EXPECT_GT(host_->Redis("erasures_owed"), 0u);
  EXPECT_EQ(host_->Load(keys_).block_count, 3u);
  server_->Resume();
  ExpectErasedFrom(3);
}

// The same, and it has been given up when it goes on.
TEST_F(DaemonErasures, ThatAServerDidNotAnswerAreTriedAgain) {
  Begin("probe_timeout_us = 10000000\nabsence_ms = 1\ncommand_timeout_ms = 1000\n");
  StoreAndShare();
  server_->Pause();
  EXPECT_EQ(Evict(From(3)), kBlocks - 3);
  ASSERT_TRUE(Eventually([&] { return !host_->IsReady(); }));
  EXPECT_EQ(Evict(From(2)), 1u);
  EXPECT_GE(host_->Redis("erasures_owed"), kBlocks - 2);
  server_->Resume();
  ExpectErasedFrom(2);
}

// PROMISE: T03 an Evict by key, and the daemon's kill -9
TEST_F(DaemonErasures, WhileTheServerIsAwayOutliveTheDaemon) {
  ASSERT_TRUE(host_->client().Reset(host_->group()).ok()) << "the group has a generation";
  StoreAndShare();
  server_->Pause();
  EXPECT_EQ(Evict(From(3)), kBlocks - 3);
  ASSERT_TRUE(host_->Restart(SIGKILL)) << host_->daemon().Errors();
  server_->Resume();
  ASSERT_TRUE(Eventually([&] { return host_->IsReady(); }));
  ExpectErasedFrom(3);
}

// PROMISE: T03 an Evict by key of what is being stored
TEST_F(DaemonErasures, OfBlocksThatAreBeingGivenComeBehindThem) {
  server_->Pause();
  ASSERT_EQ(host_->Store(keys_), kBlocks);
  ASSERT_TRUE(Eventually([&] { return host_->Redis("stores_under_way") > 0; }));
  EXPECT_EQ(Evict(From(0)), kBlocks);
  server_->Resume();
  ExpectErasedFrom(0);
}

// PROMISE: T03 an Evict by key of what only the server has
TEST_F(DaemonErasures, OfWhatOnlyTheServerHasAreDoneThere) {
  StoreAndShare();
  ASSERT_TRUE(host_->Restart(SIGKILL)) << "nobody holds its memory";
  ASSERT_TRUE(Eventually([&] { return host_->IsReady(); }));
  EXPECT_EQ(Evict(keys_, protocol::kEvictSubtree), 0u) << "here there is none";
  ASSERT_TRUE(IsServerTold());
  EXPECT_EQ(ManifestCount(), 0u) << "a whole prompt says what its blocks are called";
  ExpectErasedFrom(0);
}

// Their name follows from what comes before them, which nobody says.
TEST_F(DaemonErasures, OfTheEndOfAPromptThatOnlyTheServerHasHoldUnderWhateverName) {
  StoreAndShare();
  ASSERT_TRUE(host_->Restart(SIGKILL));
  server_->Pause();
  EXPECT_EQ(Evict(From(40), protocol::kEvictSubtree), 0u);
  ASSERT_TRUE(host_->Restart(SIGKILL));
  server_->Resume();
  ASSERT_TRUE(Eventually([&] { return host_->IsReady(); }));
  ExpectErasedFrom(40);
}

// Groups are not known to a daemon that has just been started: an operator names keys alone.
TEST_F(DaemonErasures, OfKeysWhoseGroupNobodyHasOpenedHoldWhenItIsOpened) {
  StoreAndShare();
  host_->Begin(SIGKILL);
  ASSERT_TRUE(host_->daemon().WaitReady()) << host_->daemon().Errors();
  const std::vector<BlockKey> named = From(40);
  RequestOptions options;
  options.flags = protocol::kKeysFlat;
  const auto evicted = host_->NewClient()->Evict(GroupRef{}, named, options);
  ASSERT_TRUE(evicted.ok()) << evicted.status().what();
  EXPECT_EQ(evicted->block_count, 0u);
  // Its successor knows as well.
  ASSERT_TRUE(host_->Restart(SIGKILL)) << host_->daemon().Errors();
  ASSERT_TRUE(Eventually([&] { return host_->IsReady(); }));
  ExpectErasedFrom(40);
  ExpectASuccessorServesAll(kBlocks);
  EXPECT_EQ(host_->client().Evict(GroupRef{}, Keys(5'000, 8), options).status().code(),
            StatusCode::kNoSpace)
      << "more than can be remembered";
}

TEST_F(DaemonErasures, OfEverythingHoldForGroupsThatNobodyHasOpened) {
  StoreAndShare();
  host_->Begin(SIGKILL);
  ASSERT_TRUE(host_->daemon().WaitReady()) << host_->daemon().Errors();
  RequestOptions options;
  options.flags = protocol::kEvictSubtree;
  const auto evicted = host_->NewClient()->Evict(GroupRef{}, {}, options);
  ASSERT_TRUE(evicted.ok()) << evicted.status().what();
  ASSERT_TRUE(host_->Restart(SIGKILL)) << host_->daemon().Errors();
  ExpectAllForgotten();
  ASSERT_EQ(host_->Store(keys_, 1), kBlocks);
  ExpectASuccessorServesAll(2 * kBlocks);  // of before, out of reach, and of now
}

// PROMISE: T03 an erasure while the domain has another secret
TEST_F(DaemonErasures, UnderAnotherSecretHoldForWhatTheServerHasUnderTheFormer) {
  StoreAndShare();
  RestartUnder('8');
  EXPECT_EQ(host_->Load(keys_).block_count, 0u);
  RestartUnder('7');
  EXPECT_EQ(host_->Load(keys_).block_count, kBlocks) << "nothing was erased";
  RestartUnder('8');
  EXPECT_EQ(Evict(From(3)), 0u);
  RestartUnder('7');
  ExpectAllForgotten();
  ASSERT_EQ(host_->Store(keys_, 1), kBlocks);
  ExpectASuccessorServesAll(2 * kBlocks);  // of before, out of reach, and of now
}

// PROMISE: T03 an erasure that a server is owed, and a domain that is called by another name
TEST_F(DaemonErasures, ThatAServerIsOwedHoldWhateverTheDomainIsCalled) {
  StoreAndShare();
  server_->Pause();
  EXPECT_EQ(Evict(From(3)), kBlocks - 3);
  EXPECT_GT(host_->Redis("erasures_owed"), 0u);
  host_->RenameDomain("other");
  ASSERT_TRUE(host_->Restart(SIGKILL)) << host_->daemon().Errors();
  server_->Resume();
  ExpectAllForgotten();
  EXPECT_EQ(host_->KeptFiles("default-"), 0u) << "it would not know what is erased from now on";
  ASSERT_EQ(host_->Store(keys_, 1), kBlocks);
  ASSERT_TRUE(Eventually([&] { return host_->Redis("stores_under_way") == 0; }));
  server_->Pause();
  EXPECT_EQ(Evict(From(3)), kBlocks - 3);
  host_->RenameDomain("default");
  ASSERT_TRUE(host_->Restart(SIGKILL)) << host_->daemon().Errors();
  server_->Resume();
  ASSERT_TRUE(Eventually([&] { return host_->IsReady(); }));
  EXPECT_EQ(host_->Load(keys_, {}, 2).block_count, 0u);
}

// Of two domains of one secret one is away for a while, and with it what it owes.
TEST_F(DaemonErasures, ThatAServerIsOwedByADomainThatIsAwayHold) {
  StoreAndShare();
  server_->Pause();
  EXPECT_EQ(Evict(From(3)), kBlocks - 3);
  host_->AddDomain("other");
  ASSERT_TRUE(host_->Restart(SIGKILL)) << host_->daemon().Errors();
  host_->RenameDomain("third");  // "default" is away
  ASSERT_TRUE(host_->Restart(SIGKILL)) << host_->daemon().Errors();
  EXPECT_EQ(host_->KeptFiles("default-"), 0u);
  host_->RenameDomain("default");
  ASSERT_TRUE(host_->Restart(SIGKILL)) << host_->daemon().Errors();
  server_->Resume();
  ASSERT_TRUE(Eventually([&] { return host_->IsReady(); }));
  EXPECT_EQ(host_->Load(keys_).block_count, 0u);
}

// And a domain that is new, of another secret, has the name.
TEST_F(DaemonErasures, ThatAServerIsOwedHoldThoughAnotherDomainHasTheName) {
  StoreAndShare();
  server_->Pause();
  EXPECT_EQ(Evict(From(3)), kBlocks - 3);
  host_->RenameDomain("other");
  host_->AddDomain("default", /*has_own_secret=*/true);
  ASSERT_TRUE(host_->Restart(SIGKILL)) << host_->daemon().Errors();
  server_->Resume();
  ExpectAllForgotten();
}

}  // namespace
}  // namespace terrace::test

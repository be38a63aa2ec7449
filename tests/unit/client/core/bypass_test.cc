// A client whose domain an operator has bypassed: it asks nothing, and no call fails or waits.
#include <algorithm>
#include <future>

#include "unit/client/client_fixture.h"

namespace terrace {
namespace {

using protocol::ServingMode;
using protocol::Verb;

constexpr Verb kEngineVerbs[] = {Verb::kMatch,   Verb::kAcquire, Verb::kPrefetch, Verb::kTouch,
                                 Verb::kReserve, Verb::kCommit,  Verb::kQuery,    Verb::kWait};

class ClientBypass : public ClientFixture {
 protected:
  size_t AskedCount() {
    size_t count = 0;
    for (const Verb verb : kEngineVerbs) count += daemon_.Received(verb).size();
    return count;
  }
  static bool IsNoRoom(const WriteLease& lease, size_t key_count) {
    return lease.keys().size() == key_count &&
           std::ranges::all_of(lease.keys(), [](const protocol::ReservedKey& key) {
             return key.status == static_cast<uint8_t>(StatusCode::kNoSpace);
           });
  }
  // One of each; none of them may be refused.
  void CallAll() {
    const std::vector<BlockKey> keys = TestKeys(4);
    const Result<MatchResult> matched = client_->Match(group_, keys);
    ASSERT_TRUE(matched.ok()) << client_->last_error();
    EXPECT_EQ(matched->block_count, 0u);
    const ReadLease read = Acquire(4);
    EXPECT_EQ(read.block_count(), 0u);
    EXPECT_TRUE(read.token().is_zero());
    EXPECT_TRUE(client_->WaitReady(read, 0, kLongUs).ok());
    const Result<uint32_t> prefetched = client_->Prefetch(group_, keys);
    ASSERT_TRUE(prefetched.ok());
    EXPECT_EQ(*prefetched, 0u);
    WriteLease write = Reserve(4);
    EXPECT_TRUE(IsNoRoom(write, 4));
    EXPECT_FALSE(write.is_reserved(0));
    const Result<uint32_t> committed = client_->Commit(write);
    ASSERT_TRUE(committed.ok());
    EXPECT_EQ(*committed, 0u);
    EXPECT_TRUE(client_->Touch(group_, keys).ok());
    std::vector<protocol::QueriedBlock> blocks;
    ASSERT_TRUE(client_->Query(group_, keys, &blocks).ok());
    ASSERT_EQ(blocks.size(), 4u);
    EXPECT_EQ(blocks[3].state, protocol::BlockState::kAbsent);
    EXPECT_EQ(client_->WaitPersisted(group_, keys).code(), StatusCode::kNotFound);
  }
};

TEST_F(ClientBypass, AnswersWithoutTheDaemonFromTheNextCallOn) {
  ASSERT_GT(Acquire(4).block_count(), 0u);
  EXPECT_FALSE(client_->is_bypassed());
  const size_t asked = AskedCount();
  daemon_.TellMode(ServingMode::kBypassed);
  EXPECT_TRUE(client_->is_bypassed());
  CallAll();
  EXPECT_EQ(AskedCount(), asked);
  EXPECT_EQ(client_->bypassed_count(), 7u) << "an empty commit is answered by nobody";
  daemon_.TellMode(ServingMode::kServing);
  EXPECT_GT(Acquire(4).block_count(), 0u) << "the way back needs nothing";
  EXPECT_EQ(AskedCount(), asked + 1);
}

TEST_F(ClientBypass, DrainingIsTheDaemonsToAnswer) {
  daemon_.TellMode(ServingMode::kDraining);
  EXPECT_FALSE(client_->is_bypassed());
  EXPECT_GT(Acquire(4).block_count(), 0u);
}

TEST_F(ClientBypass, DoesNotWaitForADaemonThatReadsNothing) {
  daemon_.TellMode(ServingMode::kBypassed);
  daemon_.StopReading([this] { CallAll(); });
}

TEST_F(ClientBypass, OutlivesTheConnection) {
  daemon_.TellMode(ServingMode::kBypassed);
  daemon_.set_handler([](ScriptedDaemon& daemon, const PeerMessage& message) {
    if (message.verb == Verb::kHello) daemon.Disconnect();
    return message.verb == Verb::kHello;
  });
  daemon_.Disconnect();
  ASSERT_TRUE(Eventually([&] { return !client_->is_connected(); }));
  EXPECT_TRUE(client_->is_bypassed());
  CallAll();
  daemon_.TellMode(ServingMode::kServing);
  EXPECT_EQ(client_->Acquire(group_, TestKeys(4)).status().code(), StatusCode::kGone);
}

TEST_F(ClientBypass, WhatIsHeldStaysReadableAndIsGivenBack) {
  ReadLease lease = Acquire(2);
  ASSERT_EQ(lease.ready_count(), 2u);
  daemon_.TellMode(ServingMode::kBypassed);
  EXPECT_TRUE(lease.CopyPart(1, 0, 0, buffer_).ok());
  EXPECT_TRUE(lease.is_valid());
  EXPECT_TRUE(daemon_.Received(Verb::kRelease).empty());
  lease.Release();
  EXPECT_TRUE(daemon_.WaitFor(Verb::kRelease, 1));
}

TEST_F(ClientBypass, WhatWasWrittenIsDroppedAndItsSlotsGivenBack) {
  {
    WriteLease lease = Reserve(2);
    ASSERT_TRUE(lease.WritePart(0, 0, 0, part_).ok());
    daemon_.TellMode(ServingMode::kBypassed);
    const Result<uint32_t> committed = client_->Commit(lease);
    ASSERT_TRUE(committed.ok()) << client_->last_error();
    EXPECT_EQ(*committed, 0u);
    EXPECT_TRUE(daemon_.Received(Verb::kAbort).empty());
  }
  EXPECT_TRUE(daemon_.WaitFor(Verb::kAbort, 1));
  daemon_.TellMode(ServingMode::kServing);
  WriteLease lease = Reserve(2);
  ASSERT_TRUE(lease.WritePart(0, 0, 0, part_).ok());
  daemon_.TellMode(ServingMode::kBypassed);
  RequestOptions options;
  options.flags = protocol::kCommitRelease;
  EXPECT_TRUE(client_->Commit(lease, options).ok());
  EXPECT_TRUE(daemon_.WaitFor(Verb::kAbort, 2)) << "the lease ends with the commit";
  EXPECT_FALSE(lease.is_valid());
  EXPECT_TRUE(daemon_.Received(Verb::kCommit).empty());
}

TEST_F(ClientBypass, AsynchronousRequestsEndAtOnceEitherWay) {
  daemon_.TellMode(ServingMode::kBypassed);
  ASSERT_TRUE(client_->AcquireAsync(group_, TestKeys(4), {}, 11).ok());
  ASSERT_TRUE(client_->ReserveAsync(group_, TestKeys(3), {}, 12).ok());
  ClientCompletion completion;
  ASSERT_TRUE(client_->Poll(&completion));
  EXPECT_EQ(completion.user_data, 11u);
  EXPECT_TRUE(completion.status.ok());
  EXPECT_EQ(completion.read_lease.block_count(), 0u);
  ASSERT_TRUE(client_->Poll(&completion));
  EXPECT_TRUE(IsNoRoom(completion.write_lease, 3));
  EXPECT_FALSE(client_->Poll(&completion));
  std::promise<uint64_t> called;
  ASSERT_TRUE(client_
                  ->PrefetchAsync(group_, TestKeys(4), {}, 13,
                                  [&](ClientCompletion&& ended) {
                                    called.set_value(ended.status.ok() ? ended.user_data : 0);
                                  })
                  .ok());
  EXPECT_EQ(called.get_future().get(), 13u);
  EXPECT_EQ(AskedCount(), 0u);
}

// It takes connections and says nothing, for as long as a handshake waits: seconds.
TEST_F(ClientBypass, CallbacksDoNotWaitForADaemonThatIsStarting) {
  daemon_.TellMode(ServingMode::kBypassed);
  daemon_.set_handler(
      [](ScriptedDaemon&, const PeerMessage& message) { return message.verb == Verb::kHello; });
  daemon_.Disconnect();
  ASSERT_TRUE(daemon_.WaitFor(Verb::kHello, 2));
  for (uint64_t call = 1; call <= 3; ++call) {
    const auto called = std::make_shared<std::promise<uint64_t>>();
    std::future<uint64_t> completion = called->get_future();
    ASSERT_TRUE(client_
                    ->AcquireAsync(group_, TestKeys(4), {}, call,
                                   [called](ClientCompletion&& ended) {
                                     called->set_value(ended.status.ok() ? ended.user_data : 0);
                                   })
                    .ok());
    // A thread that waits in the handshake is back after five seconds.
    ASSERT_EQ(completion.wait_for(std::chrono::seconds(2)), std::future_status::ready) << call;
    EXPECT_EQ(completion.get(), call);
  }
  EXPECT_EQ(daemon_.Received(Verb::kHello).size(), 2u) << "it was one handshake all along";
}

TEST_F(ClientBypass, WhatErasesOrPinsReachesTheDaemon) {
  daemon_.TellMode(ServingMode::kBypassed);
  EXPECT_TRUE(client_->Evict(group_, TestKeys(1)).ok());
  EXPECT_TRUE(client_->Pin(group_, TestKeys(1)).ok());
  EXPECT_TRUE(client_->Reset(group_).ok());
  EXPECT_EQ(daemon_.Received(Verb::kReset).size(), 1u);
}

// A page that could be taken away is none.
class ClientWithoutNotices : public ClientFixture,
                             public testing::WithParamInterface<ScriptedDaemon::Options::Notices> {
 protected:
  ClientWithoutNotices() : ClientFixture({.notices = GetParam()}) {}
};

TEST_P(ClientWithoutNotices, AsksAsEver) {
  daemon_.TellMode(ServingMode::kBypassed);
  EXPECT_FALSE(client_->is_bypassed());
  EXPECT_GT(Acquire(4).block_count(), 0u);
}
INSTANTIATE_TEST_SUITE_P(Notices, ClientWithoutNotices,
                         testing::Values(ScriptedDaemon::Options::Notices::kNone,
                                         ScriptedDaemon::Options::Notices::kUnsealed));

}  // namespace
}  // namespace terrace

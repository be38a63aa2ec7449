// An Evict or Reset is answered when no crash can bring back what it erased.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store_fixture.h"
#include "unit/daemon/session/session_harness.h"

namespace terrace {
namespace {

using protocol::Verb;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using World = StoreWorld;

// ---- the store ----

class Erasure : public ::testing::Test {
 protected:
  static WorldOptions Options() {
    WorldOptions options{.lower_tier_count = 1};
    options.make_tier = [](sim::MemoryTier::Options tier) {
      tier.persist_us_max = 20'000;
      return std::make_unique<sim::MemoryTier>(tier);
    };
    return options;
  }
  void PutBelow(uint64_t chain) {
    w.Put(s, group, World::Keys(4, chain));
    w.Advance(100'000);
  }
  void Evict(uint64_t chain) {
    const auto keys = World::Keys(4, chain);
    ASSERT_EQ(w.Evict(w.Query(s, group, keys)).block_count, 4u);
  }
  StatusCode Await(uint64_t request_id = 77) {
    return w.store->operators().AwaitErasures(s, request_id).code();
  }

  World w{Options()};
  SessionId s = w.Open();
  uint32_t group = w.OpenSimple(s);
};

TEST_F(Erasure, IsAnsweredWhenNoSuccessorFindsTheBlocks) {
  PutBelow(1);
  Evict(1);
  ASSERT_TRUE(w.tiers[0]->has_erasures_pending());
  EXPECT_EQ(Await(), StatusCode::kBusy);
  EXPECT_THAT(w.listener.waits, IsEmpty());
  for (int i = 0; i < 100 && w.listener.waits.empty(); ++i) w.Advance(1'000);
  ASSERT_THAT(w.listener.waits, SizeIs(1));
  EXPECT_FALSE(w.tiers[0]->has_erasures_pending());
  EXPECT_EQ(w.listener.waits[0].request_id, 77u);
  EXPECT_EQ(w.listener.waits[0].status, StatusCode::kOk);
  EXPECT_EQ(w.Restart()[0].blocks, 0u);
}

TEST_F(Erasure, IsAnsweredAtOnceWhenNothingLiesBelow) {
  PutBelow(1);
  EXPECT_EQ(Await(), StatusCode::kOk) << "nothing was erased";
  Evict(1);
  w.Advance(100'000);
  EXPECT_EQ(Await(), StatusCode::kOk) << "it has been erased meanwhile";
  World plain;
  EXPECT_EQ(plain.store->operators().AwaitErasures(plain.Open(), 1).code(), StatusCode::kOk)
      << "no tier";
}

// Until then a successor could not say what it found.
TEST(ErasureOfGroups, TheSpecOfAForgottenGroupGoesWhenNoSuccessorFindsItsBlocks) {
  WorldOptions options{.lower_tier_count = 1, .groups_max = 1};
  options.make_tier = [](sim::MemoryTier::Options tier) {
    tier.persist_us_max = 20'000'000;
    return std::make_unique<sim::MemoryTier>(tier);
  };
  World w{options};
  const SessionId s = w.Open();
  const uint32_t group = w.OpenGroup(s, TestGroup("gone", {TestSpace(0)}));
  w.Put(s, group, World::Keys(4, 1));
  w.Advance(30'000'000);
  w.Reset(s, group);
  w.store->sessions().ProofOfDeath(s);
  w.OpenGroup(w.Open(), TestGroup("next", {TestSpace(0)}));
  ASSERT_EQ(w.Stats().group_count, 1u);
  ASSERT_TRUE(w.tiers[0]->has_erasures_pending());
  EXPECT_EQ(w.group_files.kept.size(), 2u);
  for (int i = 0; i < 100 && w.tiers[0]->has_erasures_pending(); ++i) w.Advance(1'000'000);
  w.Advance(1'000'000);
  ASSERT_EQ(w.group_files.kept.size(), 1u);
  EXPECT_EQ(w.group_files.kept[0].second.name, "next");
}

TEST(ErasureOfGroups, AForgottenGroupThatIsBackKeepsItsSpec) {
  WorldOptions options{.lower_tier_count = 1, .groups_max = 1};
  options.make_tier = [](sim::MemoryTier::Options tier) {
    tier.persist_us_max = 20'000'000;
    return std::make_unique<sim::MemoryTier>(tier);
  };
  World w{options};
  const SpaceGroupSpec first = TestGroup("first", {TestSpace(0)});
  SessionId s = w.Open();
  const uint32_t group = w.OpenGroup(s, first);
  w.Put(s, group, World::Keys(4, 1));
  w.Advance(30'000'000);
  w.Reset(s, group);
  w.store->sessions().ProofOfDeath(s);
  s = w.Open();
  w.OpenGroup(s, TestGroup("second", {TestSpace(0)}));
  w.store->sessions().ProofOfDeath(s);
  ASSERT_TRUE(w.tiers[0]->has_erasures_pending());
  w.OpenGroup(w.Open(), first);
  for (int i = 0; i < 100 && w.tiers[0]->has_erasures_pending(); ++i) w.Advance(1'000'000);
  w.Advance(1'000'000);
  ASSERT_EQ(w.group_files.kept.size(), 1u);
  EXPECT_EQ(w.group_files.kept[0].second.name, "first");
}

// Its slot cannot be freed before its write has ended.
TEST_F(Erasure, CoversABlockThatIsBeingWritten) {
  w.holds_transfers = true;
  w.Put(s, group, World::Keys(4, 1));
  w.Advance(1'000);
  ASSERT_GT(w.tiers[0]->stats().transfers_in_flight, 0u);
  w.Reset(s, group);
  ASSERT_FALSE(w.tiers[0]->has_erasures_pending()) << "the tier has not been told yet";
  EXPECT_EQ(Await(), StatusCode::kBusy);
  w.Advance(100'000);
  EXPECT_THAT(w.listener.waits, IsEmpty());
  w.holds_transfers = false;
  w.Advance(100'000);
  EXPECT_THAT(w.listener.waits, SizeIs(1));
  EXPECT_EQ(w.Restart()[0].blocks, 0u);
}

TEST_F(Erasure, EvictTakesWhatIsBeingWritten) {
  w.holds_transfers = true;
  w.Put(s, group, World::Keys(4, 1));
  w.Advance(1'000);
  ASSERT_GT(w.tiers[0]->stats().transfers_in_flight, 0u);
  Evict(1);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(4, 1)), 0u);
  EXPECT_EQ(Await(), StatusCode::kBusy);
  w.holds_transfers = false;
  w.Advance(100'000);
  EXPECT_THAT(w.listener.waits, SizeIs(1));
  EXPECT_EQ(w.tiers[0]->stats().used_bytes, 0u);
  EXPECT_EQ(w.Restart()[0].blocks, 0u);
}

// Otherwise a busy cache, which evicts all the time, would never answer.
TEST_F(Erasure, LaterErasuresDoNotPutTheAnswerOff) {
  PutBelow(1);
  Evict(1);
  EXPECT_EQ(Await(), StatusCode::kBusy);
  for (uint64_t chain = 2; w.listener.waits.empty() && chain < 100; ++chain) {
    w.Put(s, group, World::Keys(4, chain));
    w.Advance(3'000);
    Evict(chain);
    ASSERT_TRUE(w.tiers[0]->has_erasures_pending());
  }
  ASSERT_THAT(w.listener.waits, SizeIs(1));
  EXPECT_EQ(w.listener.waits[0].status, StatusCode::kOk);
}

TEST_F(Erasure, ThatTakesTooLongIsAnsweredBusy) {
  PutBelow(1);
  Evict(1);
  w.holds_transfers = true;  // the tier writes nothing any more
  EXPECT_EQ(Await(), StatusCode::kBusy);
  w.Advance(protocol::kErasureWaitUs - 1'000);
  EXPECT_THAT(w.listener.waits, IsEmpty());
  w.Advance(2'000);
  ASSERT_THAT(w.listener.waits, SizeIs(1));
  EXPECT_EQ(w.listener.waits[0].status, StatusCode::kBusy);
  w.holds_transfers = false;
  w.Advance(100'000);
  EXPECT_THAT(w.listener.waits, SizeIs(1)) << "answered once";
}

TEST_F(Erasure, WhoHangsUpIsNotAnswered) {
  PutBelow(1);
  Evict(1);
  EXPECT_EQ(Await(), StatusCode::kBusy);
  w.store->sessions().ProofOfDeath(s);
  s = w.Open();
  w.Advance(100'000);
  EXPECT_THAT(w.listener.waits, IsEmpty());
}

TEST_F(Erasure, EachRequestIsAnsweredUnderItsOwnId) {
  PutBelow(1);
  Evict(1);
  EXPECT_EQ(Await(1), StatusCode::kBusy);
  EXPECT_EQ(Await(1), StatusCode::kInvalid);
  EXPECT_EQ(Await(2), StatusCode::kBusy);
  w.Advance(100'000);
  EXPECT_THAT(w.listener.waits, SizeIs(2));
}

// ---- the session ----

class ErasureReply : public ::testing::Test {
 protected:
  ErasureReply() { world.StoreBlocks(session, group, keys); }

  std::vector<test::FakeMessage> Send(Verb verb, std::span<const std::byte> body, uint64_t id) {
    world.Deliver(session, world.Frames(verb, body, id));
    return world.transport.Take(session);
  }
  std::vector<test::FakeMessage> Advance(uint64_t us) {
    for (uint64_t at = 0; at < us; at += 1'000) world.AdvanceTime(1'000);
    return world.transport.Take(session);
  }
  std::vector<std::byte> Reset() const {
    const auto bytes = test::BytesOf(reset_);
    return {bytes.begin(), bytes.end()};
  }

  sim::MemoryTier tier{{.kind = TierKind::kNvme, .is_persistent = true, .persist_us_max = 20'000}};
  test::SessionHarness world{{.tier = &tier}};
  SessionId session = world.Attach();
  uint32_t group = world.Open(session, "g");
  const std::vector<BlockKey> keys = test::MakeKeys(6, 1);

 private:
  protocol::ResetRequest reset_{.group_handle = group};
};

TEST_F(ErasureReply, EvictTellsItsCountsOnceTheyAreDurable) {
  Advance(100'000);
  EXPECT_THAT(Send(Verb::kEvict, world.KeysBody(group, keys), 900), IsEmpty());
  EXPECT_EQ(world.sessions->Summaries(0, 1)[0].pending_count, 1u);
  // Others are answered meanwhile.
  EXPECT_THAT(Send(Verb::kQuery, world.KeysBody(group, keys), 901), SizeIs(1));
  const auto replies = Advance(100'000);
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].header.verb, Verb::kEvict);
  EXPECT_EQ(replies[0].header.request_id, 900u);
  EXPECT_EQ(replies[0].status(), StatusCode::kOk);
  ASSERT_EQ(replies[0].body.size(), sizeof(protocol::EvictReply));
  EXPECT_EQ(replies[0].At<protocol::EvictReply>().block_count, 6u);
  EXPECT_FALSE(tier.has_erasures_pending());
  EXPECT_EQ(world.sessions->Summaries(0, 1)[0].pending_count, 0u);
}

TEST_F(ErasureReply, DryRunIsAnsweredAtOnce) {
  Advance(100'000);
  ASSERT_THAT(Send(Verb::kEvict, world.KeysBody(group, keys), 900), IsEmpty());
  const auto replies = Send(Verb::kEvict, world.KeysBody(group, keys, protocol::kEvictDryRun), 901);
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].header.request_id, 901u);
}

TEST_F(ErasureReply, ResetIsAnsweredOnceItIsDurable) {
  Advance(100'000);
  EXPECT_THAT(Send(Verb::kReset, Reset(), 900), IsEmpty());
  const auto replies = Advance(100'000);
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].header.verb, Verb::kReset);
  EXPECT_EQ(replies[0].status(), StatusCode::kOk);
  EXPECT_THAT(replies[0].body, IsEmpty());
}

TEST_F(ErasureReply, ThatTakesTooLongSaysThatABlockCouldComeBack) {
  Advance(100'000);
  EXPECT_THAT(Send(Verb::kReset, Reset(), 900), IsEmpty());
  world.clock.Advance(protocol::kErasureWaitUs + 1);  // the tier has not moved
  while (world.store->events().NextTimerUs() <= world.clock.NowUs())
    world.store->events().OnTimer();
  world.sessions->Flush();
  const auto replies = world.transport.Take(session);
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].status(), StatusCode::kBusy);
  EXPECT_THAT(replies[0].text(), HasSubstr("not been written down for 3 s"));
}

}  // namespace
}  // namespace terrace

// What clients say of their bytes is a claim: nothing leaves DRAM, and nobody of another uid reads
// anything, before the daemon has compared the bytes with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/memory_shared_tier.h"
#include "store_fixture.h"

namespace terrace {
namespace {

using protocol::SpanState;
using World = StoreWorld;

constexpr uint32_t kWriterUid = 7, kOtherUid = 8;

class Claims : public ::testing::Test {
 protected:
  explicit Claims(const WorldOptions& options = {.lower_tier_count = 1}) : w(options) {}
  // Commits what it wrote, with roots of other bytes for the blocks of `wrong`.
  void Put(const std::vector<BlockKey>& keys, const std::set<uint32_t>& wrong = {}) {
    const ReserveResult reserved = w.Reserve(writer, group, keys);
    std::vector<protocol::CommitEntry> entries;
    std::vector<Checksum> roots;
    for (uint32_t i = 0; i < keys.size(); ++i) {
      StoreWorld::Written written =
          w.Write(writer, group, keys[i], i, 0, reserved.keys[i].commit_id, reserved.slots[i]);
      written.entry.flags |= protocol::kCommitHasChecksums;
      if (wrong.contains(i)) written.checksums[0].low ^= 1;
      entries.push_back(written.entry);
      roots.push_back(written.checksums[0]);
    }
    w.Commit(writer, {.token = reserved.reply.token, .flags = protocol::kCommitRelease}, entries,
             roots);
  }
  static std::set<uint32_t> All(uint32_t count) {
    std::set<uint32_t> all;
    for (uint32_t i = 0; i < count; ++i) all.insert(i);
    return all;
  }

  World w;
  SessionId writer = w.Open(0, kWriterUid), same = w.Open(0, kWriterUid),
            other = w.Open(0, kOtherUid);
  uint32_t group = w.OpenSimple(writer);
};

// PROMISE: T32 drives
TEST_F(Claims, WrongRootsNeverReachALowerTier) {
  for (int round = 0; round < 5; ++round) {
    Put(World::Keys(4, 10 + round), All(4));
    w.Advance(100'000);
  }
  const DomainStats stats = w.Stats();
  EXPECT_EQ(w.tiers[0]->stats().written_bytes, 0u);
  EXPECT_EQ(w.tiers[0]->stats().quarantined_bytes, 0u);
  EXPECT_EQ(stats.blocks_refuted, 20u);
  EXPECT_EQ(stats.blocks_corrupt, 20u);
  ASSERT_EQ(stats.refuted_writers.size(), 1u);
  EXPECT_EQ(stats.refuted_writers[0].session, writer);
  EXPECT_EQ(stats.refuted_writers[0].uid, kWriterUid);
  EXPECT_EQ(stats.refuted_writers[0].block_count, 20u);
  EXPECT_LE(stats.refuted_ago_us, 200'000u);
  ASSERT_TRUE(stats.refuted_writer);
  EXPECT_EQ(stats.refuted_writer->session, writer);
  w.Advance(1'000'000);
  EXPECT_GE(w.Stats().refuted_ago_us, 1'000'000u);
}

TEST(ClaimsShared, WrongRootsNeverReachOtherHosts) {
  sim::SharedServer server;
  sim::MemorySharedTier tier(server);
  WorldOptions options;
  options.shared.tier = &tier;
  World w{options};
  tier.SetListener(&w.store->events().shared_listener(0));
  const SessionId writer = w.Open();
  const uint32_t group = w.OpenSimple(writer);
  const auto keys = World::Keys(2);
  const ReserveResult reserved = w.Reserve(writer, group, keys);
  std::vector<protocol::CommitEntry> entries;
  std::vector<Checksum> roots;
  for (uint32_t i = 0; i < 2; ++i) {
    StoreWorld::Written written =
        w.Write(writer, group, keys[i], i, 0, reserved.keys[i].commit_id, reserved.slots[i]);
    written.entry.flags |= protocol::kCommitHasChecksums;
    if (i == 1) written.checksums[0].high ^= 1;
    entries.push_back(written.entry);
    roots.push_back(written.checksums[0]);
  }
  w.Commit(writer, {.token = reserved.reply.token, .flags = protocol::kCommitRelease}, entries,
           roots);
  for (w.Run(); tier.RunOne();) w.Run();
  EXPECT_EQ(server.blocks.size(), 1u);
  EXPECT_EQ(w.Stats().blocks_refuted, 1u);
}

TEST_F(Claims, WhatIsRightGoesBelowWhateverItsNeighboursWere) {
  Put(World::Keys(4), {3});
  w.Advance(100'000);
  EXPECT_EQ(w.tiers[0]->stats().used_bytes, 3 * kSlotBytes);
  EXPECT_EQ(w.MatchCount(same, group, World::Keys(4)), 3u);
}

TEST_F(Claims, AnotherUidWaitsUntilTheBytesAreVerified) {
  w.holds_checksums = true;
  const auto keys = World::Keys(3);
  Put(keys);
  EXPECT_EQ(w.Match(other, group, keys).spans[0].state, SpanState::kComing);
  const AcquireResult got = w.Acquire(other, group, keys);
  ASSERT_EQ(got.reply.block_count, 3u);
  EXPECT_EQ(got.spans[0].state, SpanState::kComing);
  EXPECT_EQ(got.spans[0].tier, protocol::TierKind::kDram);
  w.Run();
  EXPECT_TRUE(w.listener.completions.empty());
  w.holds_checksums = false;
  w.Run();
  ASSERT_FALSE(w.listener.completions.empty());
  EXPECT_TRUE(w.listener.completions.back().is_last());
  EXPECT_EQ(w.listener.completions.back().status, StatusCode::kOk);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(w.Holds(other, group, keys[i], 0, got.slots[i]));
  const AcquireResult again = w.Acquire(other, group, keys);
  EXPECT_EQ(again.spans[0].state, SpanState::kReady);
}

// PROMISE: T32 readers of another user
TEST_F(Claims, AnotherUidNeverReadsWhatFails) {
  w.holds_checksums = true;
  const auto keys = World::Keys(3);
  Put(keys, {1});
  const AcquireResult got = w.Acquire(other, group, keys);
  EXPECT_EQ(got.reply.block_count, 3u);
  w.holds_checksums = false;
  w.Run();
  uint32_t ready_count = 0;
  bool is_cut = false;
  for (const auto& told : w.listener.completions) {
    if (told.status == StatusCode::kOk) ready_count += told.completion.block_count;
    is_cut |= told.status == StatusCode::kNotFound && told.completion.first_block == 1;
  }
  EXPECT_EQ(ready_count, 1u);
  EXPECT_TRUE(is_cut);
  EXPECT_EQ(w.MatchCount(other, group, keys), 1u);
}

TEST_F(Claims, AnotherUidWaitsNoLongerThanItsDeadline) {
  w.holds_checksums = true;
  const auto keys = World::Keys(2);
  Put(keys);
  KeysQuery query = w.Query(other, group, keys);
  query.hints.deadline_us = 5'000;
  EXPECT_EQ(w.Acquire(query).reply.block_count, 2u);
  w.Advance(10'000);
  ASSERT_EQ(w.listener.completions.size(), 1u);
  EXPECT_EQ(w.listener.completions[0].status, StatusCode::kBusy);
  EXPECT_TRUE(w.listener.completions[0].is_last());
  w.holds_checksums = false;
  w.Run();
}

TEST_F(Claims, ItsOwnUidIsServedAtOnce) {
  w.holds_checksums = true;
  const auto keys = World::Keys(3);
  Put(keys);
  const AcquireResult got = w.Acquire(same, group, keys);
  ASSERT_EQ(got.spans.size(), 1u);
  EXPECT_EQ(got.spans[0].state, SpanState::kReady);
  EXPECT_EQ(got.reply.block_count, 3u);
  const AcquireResult unread = w.AcquireUnread(same, group, keys);
  EXPECT_EQ(unread.spans[0].state, SpanState::kReady);
  const AcquireResult of_other = w.AcquireUnread(other, group, keys);
  ASSERT_EQ(of_other.reply.block_count, 3u);
  EXPECT_EQ(of_other.spans[0].state, SpanState::kComing) << "not at a glance either";
  w.holds_checksums = false;
  w.Run();
}

TEST_F(Claims, AJoinerOfAnotherUidWaitsToo) {
  w.holds_checksums = true;
  const auto keys = World::Keys(2);
  Put(keys, {1});
  const AcquireResult got = w.Acquire(same, group, keys);
  const AcquireResult joined = w.JoinRead(other, group, got.reply.token);
  ASSERT_EQ(joined.reply.block_count, 2u);
  EXPECT_EQ(joined.spans[0].state, SpanState::kComing);
  w.holds_checksums = false;
  w.Run();
  uint32_t ready_count = 0;
  for (const auto& told : w.listener.completions) {
    if (told.session == other && told.status == StatusCode::kOk) {
      ready_count += told.completion.block_count;
    }
  }
  EXPECT_EQ(ready_count, 1u);
}

// What a joiner waits for in vain, its lease's owner may have been reading all along.
class ClaimsJoined : public Claims, public ::testing::WithParamInterface<bool> {};

TEST_P(ClaimsJoined, AnOwnersSlotsOutliveAJoinersLoss) {
  const bool is_wrong = GetParam();
  w.holds_checksums = true;
  const auto keys = World::Keys(2);
  Put(keys, All(is_wrong ? 1 : 0));
  const AcquireResult got = w.Acquire(same, group, keys);
  ASSERT_EQ(got.spans.at(0).state, SpanState::kReady);
  ASSERT_EQ(w.JoinRead(other, group, got.reply.token).spans.at(0).state, SpanState::kComing);
  if (!is_wrong) {
    EXPECT_TRUE(w.store->leases().Cancel(other, w.last_request()).ok());
  }
  w.holds_checksums = false;
  w.Run();
  ASSERT_FALSE(w.listener.completions.empty());
  EXPECT_EQ(w.listener.completions.back().session, other);
  EXPECT_EQ(w.listener.completions.back().status,
            is_wrong ? StatusCode::kNotFound : StatusCode::kBusy);
  for (uint64_t chain = 10; chain < 60; ++chain) {
    w.Put(writer, group, World::Keys(2, chain));
    w.Run();
  }
  for (uint32_t i = 0; i < 2; ++i) EXPECT_TRUE(w.Holds(same, group, keys[i], 0, got.slots[i]));
  EXPECT_EQ(w.Release(other, got.reply.token), StatusCode::kOk);
  EXPECT_EQ(w.Stats().lease_count, 1u);
  const uint64_t used_bytes = w.Stats().slot_bytes_used;
  EXPECT_EQ(w.Release(same, got.reply.token), StatusCode::kOk);
  w.Run();
  EXPECT_EQ(w.Stats().lease_count, 0u);
  EXPECT_EQ(w.Stats().slot_bytes_used < used_bytes, is_wrong) << "what is wrong goes with it";
}
INSTANTIATE_TEST_SUITE_P(, ClaimsJoined, ::testing::Bool());

TEST_F(Claims, NobodyOfAnotherUidFollowsPartsThatNobodyVerifies) {
  const auto keys = World::Keys(2);
  const ReserveResult reserved = w.Reserve(writer, group, keys);
  const AcquireResult following = w.Acquire(same, group, keys, protocol::kAcquireFollow);
  ASSERT_EQ(following.reply.block_count, 2u);
  EXPECT_EQ(w.JoinRead(other, group, following.reply.token).reply.block_count, 0u);
  w.CommitAll(writer, group, keys, reserved);
  w.Run();
  for (const auto& told : w.listener.completions) EXPECT_NE(told.session, other);
}

// Where no tier is below, nothing but the reader wants the bytes compared.
class ClaimsOfDram : public Claims {
 protected:
  ClaimsOfDram() : Claims(WorldOptions{}) {}
};

TEST_F(ClaimsOfDram, AreComparedForAReaderOfAnotherUid) {
  const auto keys = World::Keys(3);
  Put(keys, {2});
  w.Run();
  EXPECT_EQ(w.Stats().checksums_verified, 0u) << "nobody has needed it";
  const AcquireResult got = w.Acquire(other, group, keys);
  ASSERT_EQ(got.reply.block_count, 3u);
  EXPECT_EQ(got.spans[0].state, SpanState::kComing);
  w.Run();
  EXPECT_EQ(w.Stats().checksums_verified, 2u);
  EXPECT_EQ(w.Acquire(other, group, World::Keys(2)).spans[0].state, SpanState::kReady);
  EXPECT_EQ(w.MatchCount(other, group, keys), 2u);
}

TEST_F(ClaimsOfDram, AreComparedForAPrefetchOfAnotherUid) {
  const auto keys = World::Keys(2);
  Put(keys);
  const KeysQuery query = w.Query(other, group, keys);
  PrefixMatch result;
  ASSERT_TRUE(w.store->prefixes().Prefetch(&result).Step(query).ok());
  EXPECT_EQ(result.reply.block_count, 2u);
  w.Run();
  EXPECT_EQ(w.Stats().checksums_verified, 2u);
  ASSERT_FALSE(w.listener.completions.empty());
  EXPECT_EQ(w.listener.completions.back().status, StatusCode::kOk);
  EXPECT_TRUE(w.listener.completions.back().is_last());
}

TEST_F(ClaimsOfDram, AreComparedForAJoinerOfAnotherUid) {
  const auto keys = World::Keys(2);
  Put(keys);
  const AcquireResult own = w.Acquire(writer, group, keys);  // who wrote them compares nothing
  w.Run();
  EXPECT_EQ(w.Stats().checksums_verified, 0u);
  const AcquireResult joined = w.JoinRead(other, group, own.reply.token);
  ASSERT_EQ(joined.reply.block_count, 2u);
  EXPECT_EQ(joined.spans[0].state, SpanState::kComing);
  w.Run();
  ASSERT_FALSE(w.listener.completions.empty());
  EXPECT_EQ(w.listener.completions.back().session, other);
  EXPECT_EQ(w.listener.completions.back().status, StatusCode::kOk);
  EXPECT_TRUE(w.listener.completions.back().is_last());
}

// The pool was busy when it was stored: what has to leave is verified first, and then written.
TEST_F(Claims, WhatIsEvictedUnverifiedIsVerifiedBeforeItIsWritten) {
  w.offload.jobs_max = 0;
  const auto good = World::Keys(1, 1), bad = World::Keys(1, 2);
  Put(good);
  Put(bad, {0});
  w.Run();
  EXPECT_EQ(w.tiers[0]->stats().written_bytes, 0u);
  w.offload.jobs_max = 64;
  w.holds_checksums = true;
  w.Put(same, group, World::Keys(kSlotsPerSegment, 3));  // needs the room
  w.holds_checksums = false;
  w.Advance(200'000);
  EXPECT_EQ(w.MatchCount(same, group, bad), 0u);
  EXPECT_EQ(w.MatchCount(same, group, good), 1u);
  EXPECT_EQ(w.Stats().blocks_refuted, 1u);
  EXPECT_EQ(w.tiers[0]->stats().quarantined_bytes, 0u);
}

TEST_F(Claims, ABlockIsVerifiedOnce) {
  const auto keys = World::Keys(2);
  Put(keys);
  w.Advance(100'000);
  EXPECT_EQ(w.Stats().checksums_verified, 2u);
  for (int i = 0; i < 3; ++i) w.Release(other, w.Acquire(other, group, keys).reply.token);
  w.Advance(100'000);
  EXPECT_EQ(w.Stats().checksums_verified, 2u);
}

// Reading wrong once may have been the way: the copy is read again before it is given up.
TEST_F(Claims, ACopyThatReadsWrongOnceIsReadAgain) {
  const auto keys = World::Keys(1);
  Put(keys);
  w.Advance(100'000);
  w.Put(same, group, World::Keys(kSlotsPerSegment, 3));
  w.Advance(100'000);
  w.Put(same, group, World::Keys(kSlotsPerSegment, 4));
  w.Advance(100'000);
  w.holds_transfers = true;
  w.faults[0]->SetRate(sim::Fault::kReadFlipsBit, 1'000'000);
  const AcquireResult got = w.Acquire(other, group, keys);
  ASSERT_EQ(got.reply.block_count, 1u);
  ASSERT_EQ(got.spans[0].tier, protocol::TierKind::kNvme);
  w.faults[0]->SetRate(sim::Fault::kReadFlipsBit, 0);
  w.holds_transfers = false;
  w.Advance(200'000);
  EXPECT_EQ(w.Stats().reads_repeated, 1u);
  EXPECT_EQ(w.Stats().reads_recovered, 1u);
  EXPECT_EQ(w.Stats().blocks_corrupt, 0u);
  EXPECT_EQ(w.listener.completions.back().status, StatusCode::kOk);
  EXPECT_TRUE(w.Holds(other, group, keys[0], 0, got.slots[0]));
  EXPECT_EQ(w.tiers[0]->stats().quarantined_bytes, 0u);
}

}  // namespace
}  // namespace terrace

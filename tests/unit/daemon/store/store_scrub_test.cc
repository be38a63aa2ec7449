// Blocks at rest in the persistent tier are read now and then, and compared.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/transfer/scrubber.h"
#include "store_fixture.h"

namespace terrace {
namespace {

using World = StoreWorld;
constexpr uint8_t kDram = 1 << 1, kNvme = 1 << 2;

class Scrub : public ::testing::Test {
 protected:
  explicit Scrub(uint64_t bytes_per_second = 64 * kMiB, uint64_t interval_us = 0)
      : w({.lower_tier_count = 1,
           .scrub_bytes_per_second = bytes_per_second,
           .scrub_interval_us = interval_us}) {
    s = w.Open();
    group = w.OpenSimple(s);
  }
  void PutBelow(uint64_t chain, uint32_t count = 4) {
    w.Put(s, group, World::Keys(count, chain));
    w.Advance(100'000);
  }
  // Pushes everything else out of DRAM.
  void Flood() {
    for (uint64_t chain = 50; chain < 52; ++chain) PutBelow(chain);
  }
  uint8_t TierMask(uint64_t chain, uint32_t index) {
    std::vector<protocol::QueriedBlock> blocks;
    const std::vector<BlockKey> keys = {World::Keys(index + 1, chain)[index]};
    EXPECT_TRUE(w.store->operators().Query(w.Query(s, group, keys), &blocks).ok());
    return blocks[0].tier_mask;
  }
  sim::MemoryTier& tier() { return *w.tiers[0]; }

  World w;
  SessionId s = 0;
  uint32_t group = 0;
};

TEST_F(Scrub, BlocksAtRestAreReadPassAfterPass) {
  PutBelow(1);
  w.Advance(3'000'000);
  const DomainStats stats = w.Stats();
  EXPECT_GE(stats.scrub_passes, 2u);
  EXPECT_GE(stats.scrub_members, 8u);
  EXPECT_EQ(stats.scrub_bytes, stats.scrub_members * kSlotBytes);
  EXPECT_EQ(stats.scrub_mismatches, 0u);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(TierMask(1, i), kDram | kNvme);
}

TEST_F(Scrub, ARottenCopyIsWrittenAnewFromDramToAnotherPlace) {
  PutBelow(1);
  const auto keys = World::Keys(4, 1);
  tier().FlipBit(keys[2], 0);
  w.Advance(2'000'000);
  EXPECT_EQ(w.Stats().scrub_mismatches, 1u);
  EXPECT_EQ(tier().stats().quarantined_bytes, kSlotBytes);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(TierMask(1, i), kDram | kNvme);
  Flood();
  const AcquireResult got = w.Acquire(s, group, keys);
  w.Advance(100'000);
  ASSERT_EQ(got.reply.block_count, 4u);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(w.Holds(s, group, keys[i], 0, got.slots[i]));
  EXPECT_EQ(w.Stats().promotions_failed, 0u);
}

TEST_F(Scrub, ARottenCopyThatIsTheLastOneIsForgottenBeforeAnybodyAsks) {
  PutBelow(1);
  Flood();
  ASSERT_EQ(TierMask(1, 3), kNvme);
  tier().FlipBit(World::Keys(4, 1)[3], 0);
  w.Advance(2'000'000);
  EXPECT_EQ(w.Stats().scrub_mismatches, 1u);
  EXPECT_EQ(w.Stats().blocks_corrupt, 1u);
  EXPECT_EQ(TierMask(1, 3), 0);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(4, 1)), 3u);
  EXPECT_EQ(w.Stats().promotions_failed, 0u);
}

TEST_F(Scrub, ReadsThatFailCostTheirCopies) {
  PutBelow(1);
  Flood();
  w.faults[0]->SetRate(sim::Fault::kReadFails, 1'000'000);
  w.Advance(600'000);
  w.faults[0]->SetRate(sim::Fault::kReadFails, 0);
  EXPECT_GT(w.Stats().scrub_mismatches, 0u);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(4, 1)), 0u);
}

TEST_F(Scrub, ATierThatIsOffLosesNothing) {
  PutBelow(1);
  Flood();
  w.faults[0]->SwitchOff();
  w.Advance(3'000'000);
  w.faults[0]->SwitchOn();
  w.Advance(3'000'000);
  EXPECT_EQ(w.Stats().scrub_mismatches, 0u);
  EXPECT_EQ(w.MatchCount(s, group, World::Keys(4, 1)), 4u);
}

TEST_F(Scrub, OthersGoFirst) {
  PutBelow(1);
  w.Advance(300'000);
  const uint64_t before = w.Stats().scrub_members;
  w.holds_transfers = true;
  w.Put(s, group, World::Keys(2, 2));
  w.Run();
  ASSERT_EQ(tier().stats().transfers_in_flight, 2u);
  w.Advance(Scrubber::kYieldUs / 4);
  EXPECT_EQ(tier().stats().transfers_in_flight, 2u);
  EXPECT_EQ(w.Stats().scrub_members, before);
  w.Advance(2 * Scrubber::kYieldUs);  // a tier that is never idle is not left alone for ever
  EXPECT_EQ(tier().stats().transfers_in_flight, 3u);
  w.holds_transfers = false;
  w.Advance(1'000'000);
  EXPECT_GT(w.Stats().scrub_members, before);
}

TEST_F(Scrub, ABlockThatIsErasedUnderARead) {
  PutBelow(1);
  w.holds_transfers = true;
  w.Advance(600'000);
  ASSERT_EQ(tier().stats().transfers_in_flight, 1u) << "a scrub";
  w.Reset(s, group);
  EXPECT_EQ(tier().stats().used_bytes, kSlotBytes) << "of the block that is being read";
  w.holds_transfers = false;
  w.Advance(1'000'000);
  EXPECT_EQ(tier().stats().used_bytes, 0u);
  EXPECT_EQ(w.Stats().scrub_mismatches, 0u);
}

// The only block that could make room is held for as long as it is read.
TEST(TightScrub, WhatWantsRoomThatIsBeingReadGetsItBehindThat) {
  World w({.lower_tier_count = 1,
           .lower_capacity_bytes = kSlotBytes,
           .scrub_bytes_per_second = 64 * kMiB,
           .scrub_interval_us = 0});
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  w.Put(s, group, World::Keys(1, 1));
  w.Advance(100'000);
  w.holds_transfers = true;
  w.Advance(600'000);
  ASSERT_EQ(w.tiers[0]->stats().transfers_in_flight, 1u) << "a scrub";
  const auto late = World::Keys(1, 2);
  w.Put(s, group, late);
  w.Run();
  w.holds_transfers = false;
  w.Advance(3'000'000);
  std::vector<protocol::QueriedBlock> blocks;
  ASSERT_TRUE(w.store->operators().Query(w.Query(s, group, late), &blocks).ok());
  EXPECT_EQ(blocks[0].tier_mask, kDram | kNvme);
}

TEST_F(Scrub, ABadCopyThatIsPromotedMeanwhileIsGivenUpOnce) {
  PutBelow(1, 1);
  Flood();
  ASSERT_EQ(TierMask(1, 0), kNvme);
  tier().FlipBit(World::Keys(1, 1)[0], 0);
  w.offload.jobs_max = 0;  // the scrub has read it, and cannot compare it yet
  w.Advance(1'000'000);
  w.offload.jobs_max = 64;
  (void)w.Acquire(s, group, World::Keys(1, 1));
  w.Advance(2'000'000);
  EXPECT_EQ(TierMask(1, 0), 0);
  EXPECT_EQ(w.Stats().promotions_failed, 1u);
  EXPECT_EQ(tier().stats().quarantined_bytes, kSlotBytes);
}

TEST_F(Scrub, AFullChecksumQueueDelaysIt) {
  PutBelow(1);
  const uint64_t before = w.Stats().scrub_members;
  w.offload.jobs_max = 0;
  w.Advance(2'000'000);
  EXPECT_EQ(w.Stats().scrub_members, before);
  w.offload.jobs_max = 64;
  w.Advance(1'000'000);
  EXPECT_GT(w.Stats().scrub_members, before);
  EXPECT_EQ(w.Stats().scrub_mismatches, 0u);
}

TEST_F(Scrub, AStoreMayEndUnderARead) {
  PutBelow(1);
  w.holds_transfers = true;
  w.Advance(600'000);
  ASSERT_EQ(tier().stats().transfers_in_flight, 1u);
  EXPECT_EQ(w.Restart()[0].blocks, 4u);
  w.holds_transfers = false;
  w.Advance(1'000'000);
  EXPECT_GT(w.Stats().scrub_members, 0u) << "restored blocks are scrubbed too";
  EXPECT_EQ(w.Stats().scrub_mismatches, 0u);
}

TEST_F(Scrub, ItStopsBeforeTheStoreDoes) {
  PutBelow(1);
  w.Advance(1'000'000);
  const uint64_t before = w.Stats().scrub_members;
  ASSERT_GT(before, 0u);
  w.store->StopScrub();
  w.Advance(5'000'000);
  EXPECT_EQ(w.Stats().scrub_members, before);
}

class DailyScrub : public Scrub {
 protected:
  static constexpr uint64_t kIntervalUs = 30'000'000;
  DailyScrub() : Scrub(64 * kMiB, kIntervalUs) {}
};

TEST_F(DailyScrub, RestsUntilAnIntervalAfterItBegan) {
  PutBelow(1);
  w.Advance(2'000'000);
  EXPECT_EQ(w.Stats().scrub_passes, 1u);
  const uint64_t first = w.Stats().scrub_members;
  EXPECT_GE(first, 4u);
  const uint64_t rest_us = w.Stats().scrub_rest_us;
  EXPECT_GE(rest_us, kIntervalUs - 3'000'000);
  EXPECT_LT(rest_us, kIntervalUs);
  w.Advance(1'000'000);
  EXPECT_EQ(w.Stats().scrub_rest_us, rest_us - 1'000'000);
  w.Advance(kIntervalUs - 5'000'000);
  EXPECT_EQ(w.Stats().scrub_members, first);
  w.Advance(5'000'000);
  EXPECT_EQ(w.Stats().scrub_members, first + 4);
  w.Advance(kIntervalUs - 5'000'000);
  EXPECT_EQ(w.Stats().scrub_passes, 2u) << "the second one rests as the first did";
  w.Advance(5'000'000);
  EXPECT_EQ(w.Stats().scrub_passes, 3u);
}

TEST_F(DailyScrub, APassOverNothingIsNoReasonToRest) {
  (void)w.Reserve(s, group, World::Keys(1, 1));
  w.Advance(2'000'000);
  ASSERT_GE(w.Stats().scrub_passes, 1u);
  ASSERT_EQ(w.Stats().scrub_members, 0u);
  PutBelow(2);
  w.Advance(3'000'000);
  EXPECT_GE(w.Stats().scrub_members, 4u);
}

TEST_F(DailyScrub, AShorterIntervalEndsARest) {
  PutBelow(1);
  w.Advance(2'000'000);
  ASSERT_EQ(w.Stats().scrub_passes, 1u);
  StoreOptions tuned = w.made;
  tuned.domains[0].scrub_interval_us = 3'000'000;
  w.store->Retune(tuned);
  w.Advance(4'000'000);
  EXPECT_GE(w.Stats().scrub_passes, 2u);
}

TEST_F(DailyScrub, AFullQueueLeavesNoBlockUnread) {
  PutBelow(1);
  w.faults[0]->SetRate(sim::Fault::kBusy, 1'000'000);
  w.Advance(8'000'000);
  EXPECT_EQ(w.Stats().scrub_passes, 0u) << "over blocks that nobody has read";
  EXPECT_EQ(w.Stats().scrub_rest_us, 0u);
  w.faults[0]->SetRate(sim::Fault::kBusy, 0);
  w.Advance(2'000'000);
  EXPECT_EQ(w.Stats().scrub_passes, 1u);
  EXPECT_EQ(w.Stats().scrub_members, 4u);
}

TEST_F(DailyScrub, ARestartBeginsOne) {
  PutBelow(1);
  w.Advance(2'000'000);
  EXPECT_EQ(w.Restart()[0].blocks, 4u);
  w.Advance(2'000'000);
  EXPECT_EQ(w.Stats().scrub_passes, 1u);
  EXPECT_GE(w.Stats().scrub_members, 4u);
}

class SlowDailyScrub : public Scrub {
 protected:
  SlowDailyScrub() : Scrub(256 * kKiB, 12'000'000) {}  // a slot a second
};

TEST_F(SlowDailyScrub, AnIntervalIsFromBeginToBegin) {
  PutBelow(1, 8);
  w.Advance(12'000'000);
  ASSERT_EQ(w.Stats().scrub_passes, 1u) << "of eight seconds or so";
  w.Advance(6'000'000);
  EXPECT_GT(w.Stats().scrub_members, 10u) << "the rest was of what an interval has left";
}

class SlowScrub : public Scrub {
 protected:
  SlowScrub() : Scrub(512 * kKiB) {}
};

TEST_F(SlowScrub, KeepsToItsBudget) {
  PutBelow(1);
  const uint64_t before = w.Stats().scrub_bytes;
  w.Advance(20'000'000);
  const uint64_t read_bytes = w.Stats().scrub_bytes - before;
  EXPECT_LE(read_bytes, 20 * 512 * kKiB + 512 * kKiB + kSlotBytes);
  EXPECT_GE(read_bytes, 18 * 512 * kKiB);
}

class NoScrub : public Scrub {
 protected:
  NoScrub() : Scrub(0) {}
};

TEST_F(NoScrub, ReadsNothing) {
  PutBelow(1);
  w.Advance(10'000'000);
  EXPECT_EQ(tier().stats().read_bytes, 0u);
  EXPECT_EQ(w.Stats().scrub_passes, 0u);
  EXPECT_EQ(w.Stats().scrub_rest_us, UINT64_MAX);
}

}  // namespace
}  // namespace terrace

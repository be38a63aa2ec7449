// What a store counts beside hits and misses: times, ages, distances, refusals.
#include <gmock/gmock.h>

#include <numeric>

#include "daemon/telemetry/metrics.h"
#include "tests/unit/daemon/store/store_fixture.h"

namespace terrace {
namespace {

using protocol::TierKind;

uint64_t CountOf(const HistogramView& view) {
  return std::accumulate(view.counts.begin(), view.counts.end(), uint64_t{0});
}
constexpr auto kNvme = static_cast<size_t>(TierKind::kNvme);

struct Figures {
  explicit Figures(const WorldOptions& options = {}) : world(options) {
    session = world.Open();
    group = world.OpenSimple(session);
  }
  void Put(uint32_t count, uint64_t chain) {
    world.Put(session, group, StoreWorld::Keys(count, chain));
  }
  AcquireResult Ask(uint32_t count, uint64_t chain, uint32_t recompute_ns = 0) {
    const std::vector<BlockKey> keys = StoreWorld::Keys(count, chain);
    KeysQuery query = world.Query(session, group, keys);
    query.hints.deadline_us = 10'000'000;
    query.hints.recompute_ns_per_token = recompute_ns;
    return world.Acquire(query);
  }
  void Release(const AcquireResult& lease) { world.Release(session, lease.reply.token); }

  StoreWorld world;
  SessionId session = 0;
  uint32_t group = 0;
};

// Four blocks of which only the drive has copies, which answers when it is let.
struct Below : Figures {
  Below() : Figures({.lower_tier_count = 1}) {
    for (const uint64_t chain : {1, 50, 51}) {
      Put(4, chain);
      world.Advance(100'000);
    }
    world.holds_transfers = true;
  }
};

TEST(Figures, APromotionIsTimedFromItsSlotsToItsBytes) {
  Below on;
  on.Ask(4, 1);
  on.world.Advance(300'000);
  EXPECT_EQ(CountOf(on.world.Stats().promotion_us[kNvme].view()), 0u);
  on.world.holds_transfers = false;
  on.world.Advance(100'000);
  const DomainStats stats = on.world.Stats();
  const HistogramView times = stats.promotion_us[kNvme].view();
  EXPECT_EQ(CountOf(times), 4u);
  EXPECT_EQ(stats.promotions, 4u) << "each that is counted is timed";
  EXPECT_GE(times.sum, 4 * 300'000u);
  EXPECT_LE(times.sum, 4 * 400'000u);
}

TEST(Figures, APromotionThatFailsIsNotTimedNorTakenForTheNextOne) {
  Below on;
  on.world.faults[0]->SetRate(sim::Fault::kReadFlipsBit, 1'000'000);
  const AcquireResult lease = on.Ask(4, 1);
  on.world.Advance(9'000'000);
  on.world.holds_transfers = false;
  on.world.Advance(100'000);
  on.Release(lease);
  const DomainStats failed = on.world.Stats();
  EXPECT_EQ(failed.promotions_failed, 4u);
  EXPECT_EQ(CountOf(failed.promotion_us[kNvme].view()), 0u);
  on.world.faults[0]->SetRate(sim::Fault::kReadFlipsBit, 0);
  on.Put(4, 1);
  on.world.Advance(100'000);
  on.Put(8, 60);
  on.world.Advance(100'000);
  on.Ask(4, 1);
  on.world.Advance(1'000'000);
  const DomainStats stats = on.world.Stats();
  EXPECT_EQ(stats.promotions, 4u);
  EXPECT_EQ(CountOf(stats.promotion_us[kNvme].view()), 4u);
  EXPECT_LE(stats.promotion_us[kNvme].view().sum, 4 * 1'000'000u) << "no older time";
}

TEST(Figures, ABlockIsAsOldAsItWasStoredWhenItIsForgotten) {
  Figures on;
  on.Put(4, 1);
  on.world.Advance(30 * kUsPerSecond);
  on.Put(8, 2);  // pushes the first four out
  const DomainStats stats = on.world.Stats();
  const HistogramView ages = stats.residence_us.view(), idle = stats.dram_idle_us.view();
  EXPECT_EQ(stats.blocks_evicted, 4u);
  EXPECT_EQ(CountOf(ages), 4u);
  EXPECT_GE(ages.sum, 4 * 30 * kUsPerSecond);
  EXPECT_LT(ages.sum, 4 * 31 * kUsPerSecond);
  EXPECT_EQ(CountOf(idle), 4u);
  EXPECT_EQ(idle.sum, ages.sum) << "nobody used them";
}

TEST(Figures, WhatLeavesDramForADriveIsNotForgotten) {
  Below on;
  const DomainStats stats = on.world.Stats();
  EXPECT_EQ(CountOf(stats.residence_us.view()), 0u);
  EXPECT_EQ(CountOf(stats.dram_idle_us.view()), 4u);
}

// Of tokens, bytes and seconds as of blocks.
TEST(Figures, HitsAreTheSameInTokensAndBytes) {
  Figures on;
  on.Put(4, 1);
  on.Release(on.Ask(6, 1, 50'000));
  const DomainStats stats = on.world.Stats();
  const auto dram = static_cast<size_t>(TierKind::kDram);
  EXPECT_EQ(stats.hits.blocks_asked, 6u);
  EXPECT_EQ(stats.acquire_tokens_asked, 6u * 16);
  EXPECT_EQ(stats.hits.blocks_hit[dram], 4u);
  EXPECT_EQ(stats.acquire_tokens_by_tier[dram], 4u * 16);
  EXPECT_EQ(stats.acquire_bytes_by_tier[dram], 4u * kSlotBytes);
  EXPECT_EQ(stats.sealed_bytes, 4u * kSlotBytes);
  EXPECT_EQ(stats.hits.saved_us, 4u * 16 * 50);
  ASSERT_EQ(stats.groups.size(), 1u);
  EXPECT_EQ(stats.groups[0].hits.blocks_hit[dram], 4u);
  EXPECT_EQ(stats.groups[0].recompute_ns_per_token, 50'000u);
}

TEST(Figures, ReuseIsAsFarAsWhatWasUsedBetween) {
  Figures on;
  for (uint64_t chain = 1; chain <= 200; ++chain) on.Release(on.Ask(4, chain));
  on.Release(on.Ask(4, 1));
  protocol::HitRateReply reply;
  std::vector<protocol::HitRateRow> rows;
  ASSERT_TRUE(on.world.store->introspection().HitRates(on.session, 0, &reply, &rows).ok());
  const DomainStats stats = on.world.Stats();
  const HistogramView distances = stats.reuse_distances.view();
  EXPECT_NEAR(static_cast<double>(CountOf(distances)), 804, 200) << "a sample, times its weight";
  EXPECT_GT(distances.counts.back(), 0u) << "first uses are beyond all bounds";
}

TEST(Figures, AGroupInTheFormerPlaceOfAnotherBeginsAtNothing) {
  Figures on({.groups_max = 1});
  on.Release(on.Ask(6, 1));
  on.world.store->sessions().HangUp(on.session);
  const SessionId session = on.world.Open();
  on.world.OpenGroup(session, TestGroup("other", {TestSpace(0)}));
  const DomainStats stats = on.world.Stats();
  ASSERT_EQ(stats.groups.size(), 1u);
  EXPECT_EQ(stats.groups[0].name, "other");
  EXPECT_EQ(stats.groups[0].hits.blocks_asked, 0u);
  EXPECT_EQ(stats.hits.blocks_asked, 6u) << "the domain was asked nevertheless";
}

// A scrape copies the first groups alone; the sums are of all.
TEST(Figures, OnlyTheFirstGroupsAreCopied) {
  Figures on({.groups_max = 300});
  for (uint32_t g = 1; g < 300; ++g) {
    on.world.OpenGroup(on.session, TestGroup("g" + std::to_string(g), {TestSpace(0)}));
  }
  on.Put(4, 1);
  on.Release(on.Ask(6, 1));
  Snapshot snapshot;
  snapshot.domains.resize(1);
  EXPECT_EQ(FillDomains(*on.world.store, 0, &snapshot), 0u);
  const ShownGroups& groups = snapshot.domains[0].groups;
  ASSERT_EQ(groups.counts.size(), kGroupsShownMax);
  ASSERT_EQ(groups.labels.size(), kGroupsShownMax);
  EXPECT_EQ(snapshot.domains[0].figures.group_count, 300u);
  EXPECT_EQ(groups.counts[0].blocks_asked, 6u);
  EXPECT_EQ(groups.counts[0].blocks_hit[static_cast<size_t>(TierKind::kDram)], 4u);
  EXPECT_EQ(groups.counts[0].block_count, 4u);
  EXPECT_EQ(groups.labels[0].block_tokens, 16u);
  EXPECT_EQ(groups.labels[255].name, "g255");
}

// Names are copied when they are others only.
TEST(Figures, AGroupInTheFormerPlaceOfAnotherHasItsOwnName) {
  Figures on({.groups_max = 1});
  Snapshot snapshot;
  snapshot.domains.resize(1);
  FillDomains(*on.world.store, 0, &snapshot);
  ASSERT_EQ(snapshot.domains[0].groups.labels.size(), 1u);
  EXPECT_NE(snapshot.domains[0].groups.labels[0].name, "other");
  snapshot.domains[0].groups.labels[0].name = "kept";
  FillDomains(*on.world.store, 0, &snapshot);
  EXPECT_EQ(snapshot.domains[0].groups.labels[0].name, "kept");
  on.world.store->sessions().HangUp(on.session);
  on.world.OpenGroup(on.world.Open(), TestGroup("other", {TestSpace(0)}));
  FillDomains(*on.world.store, 0, &snapshot);
  EXPECT_EQ(snapshot.domains[0].groups.labels[0].name, "other");
}

TEST(Figures, GroupsAreListedSomeAtATime) {
  Figures on({.groups_max = 300});
  for (uint32_t g = 1; g < 150; ++g) {
    on.world.OpenGroup(on.session, TestGroup("g" + std::to_string(g), {TestSpace(0)}));
  }
  const Statistics& statistics = on.world.store->statistics();
  std::vector<DomainStats::GroupStats> groups;
  EXPECT_EQ(statistics.AddGroups(0, 0, 64, &groups), 64u);
  EXPECT_EQ(groups.size(), 64u);
  EXPECT_EQ(statistics.AddGroups(0, 64, 64, &groups), 128u);
  EXPECT_EQ(statistics.AddGroups(0, 128, 64, &groups), 0u);
  ASSERT_EQ(groups.size(), 150u);
  EXPECT_EQ(groups[149].name, "g149");
  PageSnapshot page;
  FillPage(*on.world.store, 0, &page);
  EXPECT_EQ(page.domain.groups.size(), kGroupsOfPageMax);
  EXPECT_EQ(page.domain.group_count, 150u);
  EXPECT_EQ(page.minutes.size(), 60u);
}

TEST(Figures, TheLastMinutesAreToldOneByOne) {
  Figures on;
  on.Ask(6, 1);
  on.world.Advance(2 * 60 * kUsPerSecond);
  on.Ask(2, 1);
  const std::vector<protocol::HitRateCounts> minutes = on.world.store->statistics().HitsByMinute(0);
  ASSERT_EQ(minutes.size(), 60u);
  EXPECT_EQ(minutes[59].blocks_asked, 2u) << "the one that runs";
  EXPECT_EQ(minutes[58].blocks_asked, 0u);
  EXPECT_EQ(minutes[57].blocks_asked, 6u);
  on.world.Advance(3600 * kUsPerSecond);
  EXPECT_EQ(on.world.store->statistics().HitsByMinute(0)[57].blocks_asked, 0u)
      << "an hour ago is forgotten";
}

}  // namespace
}  // namespace terrace

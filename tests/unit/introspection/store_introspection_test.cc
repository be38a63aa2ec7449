// What misses are made of, and why a prefix ends: what HitRates and Explain say of a store.
#include <gmock/gmock.h>

#include "tests/unit/daemon/store/store_fixture.h"

namespace terrace {
namespace {

using protocol::HitRateCounts;
using protocol::MissCause;
using protocol::StopReason;

constexpr size_t kSinceStart = protocol::kHitRateWindows - 1;

struct IntrospectionWorld {
  explicit IntrospectionWorld(const WorldOptions& options = {}) : world(options) {
    session = world.Open();
    group = world.OpenSimple(session);
  }
  // All groups, since the start unless told else.
  HitRateCounts Counts(size_t window = kSinceStart, size_t row = 0) {
    protocol::HitRateReply reply;
    std::vector<protocol::HitRateRow> rows;
    EXPECT_TRUE(world.store->introspection().HitRates(session, 0, &reply, &rows).ok());
    EXPECT_EQ(reply.row_count, rows.size());
    return rows[row].windows[window];
  }
  uint64_t Missed(MissCause cause) { return Counts().blocks_missed[static_cast<size_t>(cause)]; }
  uint32_t Ask(const std::vector<BlockKey>& keys, uint32_t recompute_ns_per_token = 0) {
    KeysQuery query = world.Query(session, group, keys);
    query.hints.recompute_ns_per_token = recompute_ns_per_token;
    const AcquireResult found = world.Acquire(query);
    if (!found.reply.token.is_zero()) world.Release(session, found.reply.token);
    return found.reply.block_count;
  }
  ExplainResult Explain(const std::vector<BlockKey>& keys, SessionId asker = 0,
                        uint32_t flags = 0) {
    ExplainResult result;
    const GroupId id = TestGroup("simple", {TestSpace(0)}).Id();
    ExplainOperation explain =
        world.store->introspection().Explain({.session = asker == 0 ? session : asker,
                                              .group = id,
                                              .key_count = static_cast<uint32_t>(keys.size()),
                                              .flags = flags},
                                             &result);
    while (*explain.Step(keys) == Progress::kStays) {
    }
    return result;
  }
  uint32_t Put(const std::vector<BlockKey>& keys) { return world.Put(session, group, keys); }

  StoreWorld world;
  SessionId session = 0;
  uint32_t group = 0;
};

TEST(HitRates, CountWhatWasAskedByTierAndGroup) {
  IntrospectionWorld on;
  on.Put(StoreWorld::Keys(4));
  EXPECT_EQ(on.Ask(StoreWorld::Keys(6)), 4u);
  const HitRateCounts counts = on.Counts();
  EXPECT_EQ(counts.requests, 1u);
  EXPECT_EQ(counts.blocks_asked, 6u);
  EXPECT_EQ(counts.blocks_hit[static_cast<size_t>(protocol::TierKind::kDram)], 4u);
  EXPECT_EQ(counts.blocks_missed[static_cast<size_t>(MissCause::kCold)], 2u);
  EXPECT_EQ(on.Counts(kSinceStart, 1).blocks_asked, 6u) << "the only group has the same";
  EXPECT_EQ(on.Counts(0).blocks_asked, 6u);
}

TEST(HitRates, WindowsForget) {
  IntrospectionWorld on;
  on.Put(StoreWorld::Keys(2));
  on.Ask(StoreWorld::Keys(2));
  on.world.Advance(3 * 60 * kUsPerSecond);
  EXPECT_EQ(on.Counts(0).blocks_asked, 0u);
  EXPECT_EQ(on.Counts(1).blocks_asked, 2u);
  on.world.Advance(62 * 60 * kUsPerSecond);
  EXPECT_EQ(on.Counts(2).blocks_asked, 0u);
  EXPECT_EQ(on.Counts().blocks_asked, 2u);
}

TEST(HitRates, PrefillSavedIsWhatClientsSayItCosts) {
  IntrospectionWorld on;
  on.Put(StoreWorld::Keys(4));
  on.Ask(StoreWorld::Keys(4));
  EXPECT_EQ(on.Counts().saved_us, 0u);
  on.Ask(StoreWorld::Keys(4), 50'000);
  EXPECT_EQ(on.Counts().saved_us, 4u * 16 * 50);
  on.Ask(StoreWorld::Keys(2));
  EXPECT_EQ(on.Counts().saved_us, 6u * 16 * 50) << "what was said last holds on";
}

// Four blocks on a drive that has not answered yet.
struct Promised : IntrospectionWorld {
  Promised() : IntrospectionWorld({.lower_tier_count = 1}) {
    for (const uint64_t chain : {1, 50, 51}) {
      Put(StoreWorld::Keys(4, chain));
      world.Advance(100'000);
    }
    world.holds_transfers = true;
    KeysQuery query = world.Query(session, group, keys);
    query.hints.deadline_us = 10'000'000;
    query.hints.by_verb = 50;  // ms
    lease = world.Acquire(query);
    EXPECT_EQ(lease.reply.block_count, 4u);
  }
  uint64_t Hit() { return Counts().blocks_hit[static_cast<size_t>(protocol::TierKind::kNvme)]; }

  const std::vector<BlockKey> keys = StoreWorld::Keys(4, 1);
  AcquireResult lease;
};

TEST(HitRates, PromisedBlocksAreHitsWhenTheyCome) {
  Promised on;
  EXPECT_EQ(on.Hit(), 0u);
  EXPECT_EQ(on.world.Stats().acquire_blocks_hit(), 0u);
  on.world.Advance(2'000'000);  // long after the answer was due
  on.world.holds_transfers = false;
  on.world.Advance(100'000);
  EXPECT_EQ(on.Hit(), 4u);
  EXPECT_EQ(on.world.Stats().acquire_blocks_hit(), 4u);
  EXPECT_EQ(on.world.Stats().acquire_blocks_lost, 0u);
  EXPECT_EQ(on.Missed(MissCause::kLate), 0u);
}

// Another request says another cost while the first one's blocks are on their way.
TEST(HitRates, PrefillSavedIsOfWhatEachRequestSays) {
  IntrospectionWorld on({.lower_tier_count = 1});
  for (const uint64_t chain : {1, 50, 51}) {
    on.Put(StoreWorld::Keys(4, chain));
    on.world.Advance(100'000);
  }
  on.world.holds_transfers = true;
  const std::vector<BlockKey> below = StoreWorld::Keys(4, 1);
  KeysQuery query = on.world.Query(on.session, on.group, below);
  query.hints = {.deadline_us = 10'000'000, .recompute_ns_per_token = 1'000'000};
  EXPECT_EQ(on.world.Acquire(query).reply.block_count, 4u);
  EXPECT_EQ(on.Ask(StoreWorld::Keys(4, 51), 2'000'000), 4u);
  EXPECT_EQ(on.Counts().saved_us, 4u * 16 * 2000);
  on.world.holds_transfers = false;
  on.world.Advance(100'000);
  EXPECT_EQ(on.Counts().saved_us, 4u * 16 * (1000 + 2000));
}

TEST(HitRates, PromisedBlocksThatDoNotComeInTimeAreMisses) {
  Promised on;
  on.world.Advance(10'000'000);
  EXPECT_EQ(on.Hit(), 0u);
  EXPECT_EQ(on.Missed(MissCause::kLate), 4u);
  EXPECT_EQ(on.world.Stats().acquire_blocks_lost, 4u);
  EXPECT_EQ(on.world.Stats().acquire_blocks_hit(), 0u);
  const HitRateCounts counts = on.Counts();
  EXPECT_EQ(counts.blocks_asked, 4u);
  EXPECT_EQ(counts.requests, 1u);
  on.world.holds_transfers = false;
  on.world.Advance(100'000);
  EXPECT_EQ(on.Hit(), 0u);
}

TEST(HitRates, PromisedBlocksThatAreLetGoBeforeTheyComeAreMisses) {
  Promised on;
  on.world.Release(on.session, on.lease.reply.token);
  EXPECT_EQ(on.Hit(), 0u);
  EXPECT_EQ(on.Missed(MissCause::kLate), 4u);
  on.world.holds_transfers = false;
}

TEST(HitRates, CapacityIsToldFromCold) {
  IntrospectionWorld on;
  on.Put(StoreWorld::Keys(4, 1));
  on.Put(StoreWorld::Keys(8, 2));  // pushes the first four out
  // Two more blocks than were ever there.
  EXPECT_EQ(on.Ask(StoreWorld::Keys(6, 1)), 0u);
  EXPECT_EQ(on.Missed(MissCause::kCapacity), 4u);
  EXPECT_EQ(on.Missed(MissCause::kCold), 2u);
}

TEST(HitRates, EveryCauseIsTold) {
  IntrospectionWorld on({.segments_max = 4});
  const std::vector<BlockKey> gone = StoreWorld::Keys(2, 1);
  on.Put(gone);
  EXPECT_EQ(on.world.Evict(on.world.Query(on.session, on.group, gone)).block_count, 2u);
  on.Ask(gone);
  EXPECT_EQ(on.Missed(MissCause::kOperator), 2u);

  const std::vector<BlockKey> brief = StoreWorld::Keys(2, 2);
  KeysQuery query = on.world.Query(on.session, on.group, brief);
  query.hints.ttl_s = 1;
  const ReserveResult reserved = on.world.Reserve(query);
  on.world.CommitAll(on.session, on.group, brief, reserved, StoreWorld::Checksums::kClient,
                     protocol::kCommitRelease);
  on.world.Advance(2 * kUsPerSecond);
  on.Ask(brief);
  EXPECT_EQ(on.Missed(MissCause::kExpired), 2u);

  const std::vector<BlockKey> begun = StoreWorld::Keys(2, 3);
  const ReserveResult writing = on.world.Reserve(on.session, on.group, begun);
  on.Ask(begun);
  EXPECT_EQ(on.Missed(MissCause::kLate), 2u);

  const std::vector<BlockKey> lying = StoreWorld::Keys(1, 4);
  const ReserveResult bad = on.world.Reserve(on.session, on.group, lying);
  const auto written =
      on.world.Write(on.session, on.group, lying[0], 0, 0, bad.keys[0].commit_id, bad.slots[0]);
  protocol::CommitEntry entry = written.entry;
  entry.flags |= protocol::kCommitHasChecksums;
  on.world.Commit(on.session, {.token = bad.reply.token, .flags = protocol::kCommitRelease},
                  {entry}, {Checksum{1, 2}});
  // The first reader of another process has it verified.
  const SessionId other = on.world.Open();
  on.world.OpenSimple(other);
  const AcquireResult first = on.world.Acquire(other, on.group, lying);
  on.world.Run();
  if (!first.reply.token.is_zero()) on.world.Release(other, first.reply.token);
  on.Ask(lying);
  EXPECT_EQ(on.Missed(MissCause::kCorrupt), 1u);
}

TEST(HitRates, MoreKeysThanTheStoreWasShownAreAsked) {
  IntrospectionWorld on;
  const std::vector<BlockKey> head = StoreWorld::Keys(3);
  KeysQuery query = on.world.Query(on.session, on.group, head);
  query.key_count_of_request = 100;
  on.world.Acquire(query);
  EXPECT_EQ(on.Counts().blocks_asked, 100u);
  EXPECT_EQ(on.Missed(MissCause::kCold), 100u);
}

TEST(Explain, NamesTheFirstKeyThatIsNotThereAndWhy) {
  IntrospectionWorld on;
  on.Put(StoreWorld::Keys(3));
  ExplainResult said = on.Explain(StoreWorld::Keys(5));
  EXPECT_EQ(said.reply.block_count, 3u);
  EXPECT_EQ(said.reply.dram_count, 3u);
  EXPECT_EQ(said.reply.stop_index, 3u);
  EXPECT_EQ(said.reply.reason, StopReason::kNeverSeen);
  said = on.Explain(StoreWorld::Keys(3));
  EXPECT_EQ(said.reply.reason, StopReason::kNone);
  EXPECT_EQ(on.Counts().requests, 0u) << "looking counts nothing";

  on.world.Advance(10 * kUsPerSecond);
  on.Put(StoreWorld::Keys(8, 2));
  on.world.Advance(20 * kUsPerSecond);
  said = on.Explain(StoreWorld::Keys(3));
  EXPECT_EQ(said.reply.block_count, 0u);
  EXPECT_EQ(said.reply.reason, StopReason::kForgotten);
  EXPECT_EQ(said.reply.cause, MissCause::kCapacity);
  EXPECT_NEAR(static_cast<double>(said.reply.age_ms), 20'000, 2'000);
}

TEST(Explain, NamesTheWriterAndTheExpired) {
  IntrospectionWorld on;
  const std::vector<BlockKey> begun = StoreWorld::Keys(2, 3);
  const ReserveResult writing = on.world.Reserve(on.session, on.group, begun);
  on.world.Advance(5 * kUsPerSecond);
  const SessionId asker = on.world.Open();
  const ExplainResult said = on.Explain(begun, asker);
  EXPECT_EQ(said.reply.reason, StopReason::kBeingWritten);
  EXPECT_EQ(said.reply.writer_session, on.session);
  EXPECT_EQ(said.reply.age_ms, 5'000u);
}

TEST(Explain, BlocksBelowComeWithAnEstimate) {
  IntrospectionWorld on({.lower_tier_count = 1});
  on.Put(StoreWorld::Keys(4, 1));
  on.world.Advance(kUsPerSecond);
  on.Put(StoreWorld::Keys(8, 2));
  on.world.Advance(kUsPerSecond);
  const ExplainResult said = on.Explain(StoreWorld::Keys(4, 1));
  EXPECT_EQ(said.reply.block_count, 4u);
  EXPECT_GT(said.reply.below_count, 0u);
  EXPECT_EQ(said.reply.below_kind, protocol::TierKind::kNvme);
  EXPECT_GT(said.reply.eta_us, 0u);
}

TEST(Explain, ASpaceOneFieldApartIsNamedWithBothValues) {
  IntrospectionWorld on;
  SpaceGroupSpec near = TestGroup("near", {TestSpace(0)});
  near.members[0].spec.model = "simple";
  near.members[0].spec.dtype = "fp8";
  const uint32_t other = on.world.OpenGroup(on.session, near);
  on.world.Put(on.session, other, StoreWorld::Keys(2, 7));
  SpaceGroupSpec far = near;
  far.name = "far";
  far.members[0].spec.revision = "r2";
  on.world.OpenGroup(on.session, far);
  const ExplainResult said = on.Explain(StoreWorld::Keys(2));
  ASSERT_EQ(said.nears.size(), 1u);
  EXPECT_STREQ(said.nears[0].name, "near");
  EXPECT_STREQ(said.nears[0].field, "dtype");
  EXPECT_STREQ(said.nears[0].asked, "bf16");
  EXPECT_STREQ(said.nears[0].other, "fp8");
  EXPECT_EQ(said.nears[0].block_count, 2u);
}

TEST(Explain, TellsTheMembersOfAGroupToWhoAsksForThem) {
  IntrospectionWorld on;
  on.Put(StoreWorld::Keys(2));
  EXPECT_TRUE(on.Explain(StoreWorld::Keys(2)).members.empty());
  const std::string text = TestGroup("simple", {TestSpace(0)}).members[0].spec.CanonicalText();
  for (const uint32_t key_count : {2u, 3u}) {  // all are there, and not
    const ExplainResult said =
        on.Explain(StoreWorld::Keys(key_count), 0, protocol::kExplainMembers);
    protocol::OpenMember head;
    ASSERT_EQ(said.members.size(), sizeof(head) + text.size());
    std::memcpy(&head, said.members.data(), sizeof(head));
    EXPECT_EQ(head.text_bytes, text.size());
    EXPECT_EQ(head.is_remote, 0);
    EXPECT_EQ(std::memcmp(said.members.data() + sizeof(head), text.data(), text.size()), 0);
  }
}

TEST(Explain, AForeignGroupIsNotFound) {
  IntrospectionWorld on({.domain_count = 2});
  const SessionId stranger = on.world.Open(1);
  ExplainResult result;
  const GroupId id = TestGroup("simple", {TestSpace(0)}).Id();
  ExplainOperation explain = on.world.store->introspection().Explain(
      {.session = stranger, .group = id, .key_count = 1}, &result);
  EXPECT_EQ(explain.Step(StoreWorld::Keys(1)).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace terrace

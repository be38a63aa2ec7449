// What one client may take from others: memory of the daemon, and memory that is lent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include "store_fixture.h"

#if defined(__SANITIZE_ADDRESS__)  // g++ ships no header that declares it
extern "C" size_t __sanitizer_get_current_allocated_bytes();
#endif

namespace terrace {
namespace {

using World = StoreWorld;

uint64_t HeapBytes() {
#if defined(__SANITIZE_ADDRESS__)  // it brings an allocator of its own
  return __sanitizer_get_current_allocated_bytes();
#else
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
#endif
}

std::vector<StatusCode> CodesOf(const ReserveResult& reserved) {
  std::vector<StatusCode> codes;
  for (const protocol::ReservedKey& key : reserved.keys) codes.push_back(World::CodeOf(key));
  return codes;
}

TEST(ReserveLimits, AKeyNamedTwiceIsReservedOnce) {
  World w;
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const BlockKey a{.low = 1, .high = 1}, b{.low = 2, .high = 1};
  const ReserveResult reserved = w.Reserve(w.Query(s, group, {a, b, a, b}, protocol::kKeysFlat));
  EXPECT_THAT(CodesOf(reserved), testing::ElementsAre(StatusCode::kOk, StatusCode::kOk,
                                                      StatusCode::kExists, StatusCode::kExists));
  EXPECT_EQ(reserved.slots.size(), 2u);
  EXPECT_EQ(w.CommitAll(s, group, {a, b, a, b}, reserved).reply.sealed_count, 2u);
  const CommitResult repeat =
      w.Commit(s, {.token = reserved.reply.token},
               {{.key_index = 2, .part_count = 1, .row = reserved.slots[0].row}, {.key_index = 4}});
  EXPECT_EQ(repeat.entries[0], StatusCode::kExists);
  EXPECT_EQ(repeat.entries[1], StatusCode::kInvalid) << "the request had four keys";
}

// Key indexes are those of the request, though only what was reserved is in the lease.
TEST(ReserveLimits, KeysThatWereNotReservedKeepTheirPlaces) {
  World w;
  const SessionId s = w.Open(), other = w.Open();
  const uint32_t group = w.OpenSimple(s);
  EXPECT_EQ(w.OpenSimple(other), group);
  const auto keys = World::Keys(6);
  w.Put(s, group, {keys[0]});
  w.Put(s, group, {keys[2]});
  w.Put(s, group, {keys[5]});
  const ReserveResult reserved = w.Reserve(w.Query(s, group, keys, protocol::kKeysFlat));
  EXPECT_THAT(CodesOf(reserved),
              testing::ElementsAre(StatusCode::kExists, StatusCode::kOk, StatusCode::kExists,
                                   StatusCode::kOk, StatusCode::kOk, StatusCode::kExists));
  const ReserveResult joined =
      w.Join(other, {.token = reserved.reply.token, .member_mask = 1, .group_handle = group}).write;
  EXPECT_EQ(CodesOf(joined), CodesOf(reserved));
  ASSERT_EQ(joined.slots.size(), 3u);
  EXPECT_EQ(joined.slots[1].row, reserved.slots[1].row);
  EXPECT_EQ(w.Release(other, reserved.reply.token), StatusCode::kOk);
  EXPECT_EQ(w.Stats().reserved_count, 3u);
  const std::vector<uint32_t> not_reserved = {0, 2}, one = {3};
  EXPECT_TRUE(w.store->storing().Abort(s, reserved.reply.token, not_reserved).ok());
  EXPECT_EQ(w.Stats().reserved_count, 3u);
  EXPECT_TRUE(w.store->storing().Abort(s, reserved.reply.token, one).ok());
  EXPECT_EQ(w.Stats().reserved_count, 2u);
  w.Check();
  ReserveResult rest = reserved;
  rest.keys[3].status = static_cast<uint8_t>(StatusCode::kExists);
  rest.slots.erase(rest.slots.begin() + 1);
  EXPECT_EQ(w.CommitAll(s, group, keys, rest).reply.sealed_count, 2u);
  w.Release(s, reserved.reply.token);
  EXPECT_EQ(w.MatchCount(s, group, {keys[4]}), 1u);
  EXPECT_EQ(w.MatchCount(s, group, {keys[3]}), 0u);
}

// Of a lease only what was reserved costs memory, and that is paid for with slots.
TEST(ReserveLimits, KeysWithoutASlotCostTheDaemonNothing) {
  World w({.segments_max = 8});
  const SessionId s = w.Open();
  std::vector<SpaceSpec> ranks;
  for (uint32_t rank = 0; rank < 4; ++rank) ranks.push_back(TestSpace(rank, 0, 64));
  const uint32_t group = w.OpenGroup(s, TestGroup("wide", ranks));
  const std::vector<BlockKey> step(protocol::kBlocksPerTurnMax, BlockKey{.low = 7, .high = 7});
  KeysQuery query = w.Query(s, group, step, protocol::kKeysFlat);
  query.key_count_of_request = 256 * protocol::kBlocksPerTurnMax;
  ReserveResult result;
  ReserveOperation reserve = w.store->storing().Reserve(&result);
  ASSERT_TRUE(reserve.Step(query).ok());
  ASSERT_EQ(World::CodeOf(result.keys[0]), StatusCode::kOk);
  const uint64_t before = HeapBytes();
  for (uint32_t i = 0; i < 255; ++i) {
    result.keys.clear();
    ASSERT_TRUE(reserve.Step(query).ok());
  }
  EXPECT_LT(HeapBytes(), before + 64 * kKiB) << "261,120 repeats of one key";
  w.Release(s, result.reply.token);
}

TEST(ReserveLimits, ALeaseGivesItsMemoryBackWhenItEnds) {
  World w({.segments_max = 1, .lease_blocks_per_session_max = 1 << 20});
  const SessionId s = w.Open();
  const uint32_t group = w.OpenSimple(s);
  const auto keys = World::Keys(4);
  w.Put(s, group, keys);
  const std::vector<BlockKey> step(protocol::kBlocksPerTurnMax, keys[0]);
  const uint64_t before = HeapBytes();
  {
    KeysQuery query = w.Query(s, group, step, protocol::kKeysFlat);
    query.key_count_of_request = 129 * protocol::kBlocksPerTurnMax;
    AcquireResult held;
    AcquireOperation acquire = w.store->prefixes().Acquire(&held);
    for (uint32_t i = 0; i < 128; ++i) {
      ASSERT_TRUE(acquire.Step(query).ok());
      held.slots.clear();
    }
    EXPECT_GT(HeapBytes(), before + 512 * kKiB) << "131,072 entries";
    ASSERT_EQ(*acquire.Step(query), Progress::kDone);
    w.Release(s, held.reply.token);
    w.Run();
  }
  EXPECT_LT(HeapBytes(), before + 256 * kKiB);
}

// One session's leases leave every other its share.
TEST(LeaseLimits, ASessionHasItsShareOfTheDomainsLeasesWhateverOthersHold) {
  World w({.lease_blocks_per_session_max = 1 << 20, .lease_blocks_max = 1024 * 100});
  const SessionId greedy = w.Open(), modest = w.Open();
  const uint32_t group = w.OpenSimple(greedy);
  EXPECT_EQ(w.OpenSimple(modest), group);
  const auto keys = World::Keys(8);
  w.Put(greedy, group, keys);
  // A lease weighs 64 and its 8 blocks: 1,422 of them are as many as 102,400 hold.
  uint32_t lease_count = 0;
  for (; lease_count < 4'000; ++lease_count) {
    const KeysQuery query = w.Query(greedy, group, keys);
    AcquireResult held;
    if (!w.store->prefixes().Acquire(&held).Step(query).ok()) break;
    if (held.reply.block_count < keys.size()) break;
  }
  EXPECT_EQ(lease_count, 1'422u);
  const AcquireResult held = w.Acquire(modest, group, keys);
  EXPECT_EQ(held.reply.block_count, keys.size()) << "its share is 100";
  w.Release(modest, held.reply.token);
  w.Run();
  EXPECT_EQ(w.Acquire(modest, group, keys).reply.block_count, keys.size());
}

TEST(AllowModels, OthersAreRefusedInWordsAndWhatIsOpenStays) {
  StoreWorld w;
  const SessionId session = w.Open();
  const uint32_t open = w.OpenGroup(session, TestGroup("gpt-4", {TestSpace(0)}));
  int tries = 0;
  const auto open_as = [&](const std::string& first, const std::string& second) {
    SpaceGroupSpec spec = TestGroup(first, {TestSpace(0), TestSpace(1)});
    spec.members[1].spec.model = second;
    spec.name = "g" + std::to_string(tries++);
    OpenedGroup opened;
    return w.store->sessions().OpenGroup(session, spec, &opened);
  };
  StoreOptions tuned = w.made;
  tuned.domains[0].allow_models = {"meta-llama/*", "gpt-oss-?0b"};
  w.store->Retune(tuned);
  EXPECT_TRUE(open_as("meta-llama/Llama-3/8B", "gpt-oss-20b").ok());
  const Error refused = open_as("gpt-oss-20b", "gpt-oss-120b");
  EXPECT_EQ(refused.code(), StatusCode::kInvalid);
  EXPECT_EQ(refused.sentence(),
            "model 'gpt-oss-120b' of group 'g1' is none of the 2 that domain 'a' serves: "
            "add it to the domain's allow_models, or open it in another domain");
  EXPECT_FALSE(open_as("Meta-llama/Llama-3", "gpt-oss-20b").ok());
  w.Put(session, open, StoreWorld::Keys(2));
  EXPECT_EQ(w.MatchCount(session, open, StoreWorld::Keys(2)), 2u);
  for (const auto& [pattern, is_met] :
       {std::pair("*a*b*", true), std::pair("x?*z", false), std::pair("a*bb", true),
        std::pair("a*b?", true), std::pair("", false), std::pair("aXb*bbb", false),
        std::pair("[a]*", false), std::pair("aXbb***", true)}) {
    tuned.domains[0].allow_models = {pattern};
    w.store->Retune(tuned);
    EXPECT_EQ(open_as("aXbb", "aXbb").ok(), is_met) << pattern;
  }
  // Many stars and a long name cost nobody a turn.
  tuned.domains[0].allow_models = {"*a*a*a*a*a*a*a*a*a*a*a*a*b", "*"};
  w.store->Retune(tuned);
  EXPECT_EQ(open_as(std::string(512, 'a'), "b").sentence(), "");
  tuned.domains[0].allow_models = {"*"};
  w.store->Retune(tuned);
  EXPECT_TRUE(open_as("gpt-oss-20b", "gpt-oss-120b").ok());
}

TEST(LentMemory, AGuaranteeIsThereWhoeverHoldsTheRest) {
  World w({.domain_count = 2, .segments_max = 8, .segments_guaranteed = 2, .segments_total = 6});
  const SessionId a = w.Open(0), b = w.Open(1);
  const uint32_t group_a = w.OpenSimple(a), group_b = w.OpenSimple(b);
  // It takes what it can get and holds every block of it; from now on it does nothing any more.
  for (uint32_t i = 1; i <= 8; ++i) {
    const auto keys = World::Keys(kSlotsPerSegment, i);
    w.Put(a, group_a, keys);
    w.Run();
    w.Acquire(a, group_a, keys);
  }
  EXPECT_EQ(w.Stats(0).segments_populated, 4u) << "two are the other domain's";
  EXPECT_EQ(w.Stats(0).segments_borrowed, 2u);
  for (uint32_t i = 1; i <= 4; ++i) {
    w.Put(b, group_b, World::Keys(kSlotsPerSegment, i));
    w.Advance(10'000);
  }
  EXPECT_EQ(w.Stats(1).segments_populated, 2u);
  EXPECT_EQ(w.MatchCount(b, group_b, World::Keys(kSlotsPerSegment, 4)), kSlotsPerSegment);
  EXPECT_TRUE(w.listener.segment_revokes.empty()) << "nobody had to be asked";
  EXPECT_EQ(w.Stats(0).segments_leaving, 0u);
}

TEST(LentMemory, WhatWasLentIsNamedUntilItIsBack) {
  World w({.domain_count = 2,
           .segments_max = 8,
           .segments_guaranteed = 2,
           .segments_lent_max = 1,
           .segments_total = 6});
  const SessionId a = w.Open(0), b = w.Open(1);
  const uint32_t group_a = w.OpenSimple(a), group_b = w.OpenSimple(b);
  for (uint32_t i = 1; i <= 8; ++i) {
    w.Put(a, group_a, World::Keys(kSlotsPerSegment, i));
    w.Run();
  }
  EXPECT_EQ(w.Stats(0).segments_populated, 5u);
  for (uint32_t i = 1; i <= 4; ++i) {
    w.Put(b, group_b, World::Keys(kSlotsPerSegment, i));
    w.Advance(100'000);
  }
  EXPECT_EQ(w.Stats(1).segments_populated, 1u) << "the session does not answer";
  EXPECT_EQ(w.Stats(0).segments_leaving, 1u);
  EXPECT_EQ(w.store->sessions().SegmentsOwedBy(a), 1u);
  EXPECT_EQ(w.store->sessions().SegmentsOwedBy(b), 0u);
  ASSERT_FALSE(w.listener.segment_revokes.empty());
  EXPECT_TRUE(w.store->sessions().Unmapped(a, w.listener.segment_revokes[0].second).ok());
  w.Put(b, group_b, World::Keys(kSlotsPerSegment, 5));
  w.Advance(100'000);
  EXPECT_EQ(w.Stats(1).segments_populated, 2u);
  EXPECT_EQ(w.store->sessions().SegmentsOwedBy(a), 0u);
}

// One borrower that does not answer keeps no other from giving back.
TEST(LentMemory, AStoppedBorrowerIsPassedOver) {
  World w({.domain_count = 3,
           .segments_max = 8,
           .segments_guaranteed = 2,
           .segments_lent_max = 2,
           .segments_total = 8});
  const SessionId a = w.Open(0), b = w.Open(1), c = w.Open(2);
  const uint32_t group_a = w.OpenSimple(a), group_b = w.OpenSimple(b), group_c = w.OpenSimple(c);
  for (uint32_t i = 1; i <= 4; ++i) {
    w.Put(a, group_a, World::Keys(kSlotsPerSegment, i));
    w.Run();
    w.Put(b, group_b, World::Keys(kSlotsPerSegment, i));
    w.Run();
  }
  ASSERT_GE(w.Stats(0).segments_borrowed, 1u);
  ASSERT_GE(w.Stats(1).segments_borrowed, 1u);
  for (uint32_t i = 1; i <= 2; ++i) {
    w.Put(c, group_c, World::Keys(kSlotsPerSegment, i));
    w.Advance(100'000);
  }
  ASSERT_EQ(w.listener.segment_revokes.size(), 1u) << "one at a time, as long as there is hope";
  w.Advance(2'000'000);
  w.Put(c, group_c, World::Keys(kSlotsPerSegment, 3));
  w.Advance(100'000);
  ASSERT_EQ(w.listener.segment_revokes.size(), 2u);
  EXPECT_NE(w.listener.segment_revokes[0].first, w.listener.segment_revokes[1].first);
  const auto [second, segment] = w.listener.segment_revokes[1];
  EXPECT_TRUE(w.store->sessions().Unmapped(second, segment).ok());
  w.Put(c, group_c, World::Keys(kSlotsPerSegment, 4));
  w.Advance(100'000);
  EXPECT_EQ(w.Stats(2).segments_populated, 2u);
}

}  // namespace
}  // namespace terrace

// Promotions part by part: the first layers of a whole run before the next ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/block/group.h"
#include "store_fixture.h"
#include "unit/daemon/store/completion_line.h"

namespace terrace {
namespace {

using protocol::kAcquireByParts;
using ::testing::ElementsAre;
using World = StoreWorld;

constexpr uint64_t kPartBytes = 64 * kKiB;
constexpr uint32_t kParts = kSlotBytes / kPartBytes;
constexpr uint32_t kBlocks = 4;

// Says what was read, in order.
class LoggingTier final : public sim::MemoryTier {
 public:
  struct Range {
    uint64_t position = 0, offset_bytes = 0, length_bytes = 0;
    bool operator==(const Range&) const = default;
  };
  using MemoryTier::MemoryTier;
  Status Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) override {
    const Status status = MemoryTier::Read(transfer_id, extent, into);
    if (status.ok()) read.push_back({extent.position, 0, into.size()});
    return status;
  }
  Status ReadRange(TransferId transfer_id, const Extent& extent, uint64_t offset_bytes,
                   std::span<std::byte> into) override {
    const Status status = MemoryTier::ReadRange(transfer_id, extent, offset_bytes, into);
    if (status.ok()) read.push_back({extent.position, offset_bytes, into.size()});
    return status;
  }
  std::vector<Range> read;
};

class Parts : public ::testing::Test {
 protected:
  Parts() : Parts(kPartBytes, 1) {}
  Parts(uint64_t part_read_bytes_min, uint32_t queue_max) {
    WorldOptions options{.lower_tier_count = 1, .part_read_bytes_min = part_read_bytes_min};
    options.make_tier = [this, queue_max](sim::MemoryTier::Options tier) {
      tier.queue_max = queue_max;
      auto made = std::make_unique<LoggingTier>(tier);
      log = made.get();
      return made;
    };
    w.emplace(options);
    s = w->Open();
    group = w->OpenGroup(s, TestGroup("parts", {TestSpace(0, 0, kParts)}));
    for (const uint64_t chain : {1, 50, 51}) {
      w->Put(s, group, World::Keys(kBlocks, chain));
      w->Advance(100'000);
    }
    log->read.clear();
  }
  AcquireResult Start(uint32_t flags = kAcquireByParts) {
    const KeysQuery query = w->Query(s, group, keys, flags);
    request_id = query.request_id;
    return w->Acquire(query);
  }
  std::vector<Line> TakeLines(uint64_t of_request) {
    std::vector<Line> lines;
    for (const auto& told : w->listener.completions) {
      if (told.request_id != of_request) continue;
      lines.push_back(LineOf(told));
    }
    w->listener.completions.clear();
    return lines;
  }
  // Runs until this many completions have come. False if no more do.
  bool RunUntilTold(size_t line_count) {
    for (int i = 0; i < 200 && w->listener.completions.size() < line_count; ++i) w->Advance(100);
    return w->listener.completions.size() >= line_count;
  }
  bool Holds(const AcquireResult& got) {
    bool holds = true;
    for (uint32_t i = 0; i < kBlocks; ++i) holds &= w->Holds(s, group, keys[i], 0, got.slots[i]);
    return holds;
  }

  LoggingTier* log = nullptr;
  std::optional<World> w;
  SessionId s = 0;
  uint32_t group = 0;
  std::vector<BlockKey> keys = World::Keys(kBlocks, 1);
  uint64_t request_id = 0;
};

TEST_F(Parts, AreReadAndToldInTheOrderOfLayersAcrossTheRun) {
  const AcquireResult got = Start();
  ASSERT_EQ(got.reply.block_count, kBlocks);
  w->Advance(100'000);
  ASSERT_EQ(log->read.size(), size_t{kBlocks} * kParts);
  for (size_t i = 0; i < log->read.size(); ++i) {
    EXPECT_EQ(log->read[i], (LoggingTier::Range{.position = log->read[i % kBlocks].position,
                                                .offset_bytes = i / kBlocks * kPartBytes,
                                                .length_bytes = kPartBytes}));
  }
  const std::vector<Line> lines = TakeLines(request_id);
  ASSERT_EQ(lines.size(), size_t{kBlocks} * kParts);
  for (uint32_t i = 0; i < lines.size(); ++i) {
    const bool is_whole = i / kBlocks == kParts - 1;
    EXPECT_EQ(lines[i], (Line{StatusCode::kOk, i % kBlocks, 1, is_whole ? 0 : i / kBlocks,
                              is_whole ? 0u : 1u, i + 1 == lines.size()}));
  }
  EXPECT_TRUE(Holds(got));
  EXPECT_EQ(w->Stats().promotions, kBlocks);
}

TEST_F(Parts, NothingIsToldBeforeItIsVerified) {
  w->holds_checksums = true;
  Start();
  w->Advance(100'000);
  EXPECT_GT(w->offload.job_count(), 0u);
  EXPECT_TRUE(w->listener.completions.empty());
  ASSERT_TRUE(w->offload.RunOne(&*w->store));
  EXPECT_THAT(TakeLines(request_id), ElementsAre(Line{StatusCode::kOk, 0, 1, 0, 1, false}));
}

TEST_F(Parts, WhatIsVerifiedOutOfOrderIsToldInOrderAndTogether) {
  w->holds_checksums = true;
  Start();
  w->Advance(100'000);
  ASSERT_EQ(w->offload.job_count(), size_t{kBlocks} * kParts);
  w->offload.Rotate();  // the first part of the first block comes last
  while (w->offload.job_count() > 1) w->offload.RunOne(&*w->store);
  EXPECT_TRUE(w->listener.completions.empty());
  w->offload.RunOne(&*w->store);
  EXPECT_THAT(TakeLines(request_id), ElementsAre(Line{StatusCode::kOk, 0, kBlocks, 0, 1, false},
                                                 Line{StatusCode::kOk, 0, kBlocks, 1, 1, false},
                                                 Line{StatusCode::kOk, 0, kBlocks, 2, 1, false},
                                                 Line{StatusCode::kOk, 0, kBlocks, 0, 0, true}));
}

// Part 2 of block 1 is bad.
TEST_F(Parts, ABadPartTruncatesThePrefixAndWhatWasToldStaysToTheEndOfTheLease) {
  w->tiers[0]->FlipBit(keys[1], 0);
  const AcquireResult got = Start();
  w->Advance(100'000);
  const std::vector<Line> lines = TakeLines(request_id);
  ASSERT_EQ(lines.size(), 2 * kBlocks + 3u);
  EXPECT_EQ(lines[2 * kBlocks], (Line{StatusCode::kOk, 0, 1, 2, 1, false}));
  EXPECT_EQ(lines[2 * kBlocks + 1], (Line{StatusCode::kNotFound, 1, 0, 0, 0, false}));
  EXPECT_EQ(lines[2 * kBlocks + 2], (Line{StatusCode::kOk, 0, 1, 0, 0, true}));
  EXPECT_EQ(w->Stats().blocks_corrupt, 1u);
  EXPECT_EQ(w->tiers[0]->stats().quarantined_bytes, kSlotBytes);
  EXPECT_EQ(w->MatchCount(s, group, keys), 1u);
  ExplainResult why;
  const GroupId id = TestGroup("parts", {TestSpace(0, 0, kParts)}).Id();
  const ExplainOperation::Query query{
      .session = s, .group = id, .key_count = static_cast<uint32_t>(keys.size())};
  ASSERT_EQ(*w->store->introspection().Explain(query, &why).Step(keys), Progress::kStays);
  EXPECT_EQ(why.reply.cause, protocol::MissCause::kCorrupt);
  // Its first parts were good, and may be looked at until the lease ends.
  const uint64_t used_bytes = w->Stats().slot_bytes_used;
  const auto first = World::Content(keys[1], 0, 0, kPartBytes);
  EXPECT_EQ(std::memcmp(w->Address(s, got.slots[1]), first.data(), first.size()), 0);
  w->Release(s, got.reply.token);
  w->Advance(1'000);
  EXPECT_EQ(w->Stats().slot_bytes_used, used_bytes - kSlotBytes);
  EXPECT_EQ(w->Stats().pinned_count, 0u);
}

// What was not told of is as after any failed promotion.
TEST_F(Parts, ABadFirstPartIsAMissAndItsSlotIsFreeAtOnce) {
  w->faults[0]->SetRate(sim::Fault::kReadFlipsBit, 1'000'000);
  const AcquireResult got = Start();
  w->Advance(100'000);
  EXPECT_THAT(TakeLines(request_id),
              ::testing::Contains(Line{StatusCode::kNotFound, 0, 0, 0, 0, true}));
  EXPECT_EQ(w->Stats().pinned_count, 0u);
  EXPECT_EQ(w->MatchCount(s, group, keys), 0u);
}

// PROMISE: T15 what a waiting reader is told
TEST_F(Parts, ADriveThatIsSwitchedOffMeanwhileIsAMissForTheRest) {
  const AcquireResult got = Start();
  ASSERT_TRUE(RunUntilTold(kBlocks + 1));
  w->faults[0]->SwitchOff();
  w->Advance(100'000);
  const std::vector<Line> lines = TakeLines(request_id);
  EXPECT_EQ(lines.back().status, StatusCode::kNotFound);
  EXPECT_TRUE(lines.back().is_last);
  w->faults[0]->SwitchOn();
  w->Release(s, got.reply.token);
  w->Advance(100'000);
  EXPECT_EQ(w->Stats().pinned_count, 0u);
}

TEST_F(Parts, WhoeverWantsWholeBlocksSharesTheTransfer) {
  Start();
  const SessionId other = w->Open();
  const KeysQuery query = w->Query(other, group, keys);
  const AcquireResult second = w->Acquire(query);
  EXPECT_EQ(second.spans[0].state, protocol::SpanState::kComing);
  w->Advance(100'000);
  EXPECT_EQ(log->read.size(), size_t{kBlocks} * kParts);
  EXPECT_EQ(w->Stats().promotions, kBlocks);
  const std::vector<Line> lines = TakeLines(query.request_id);
  ASSERT_EQ(lines.size(), size_t{kBlocks});
  for (uint32_t i = 0; i < kBlocks; ++i) {
    EXPECT_EQ(lines[i], (Line{StatusCode::kOk, i, 1, 0, 0, i + 1 == kBlocks}));
  }
}

// The queue holds one transfer: all but the first block have not begun.
TEST_F(Parts, APrefetchThatHasNotBegunIsGoneOnWithByParts) {
  w->holds_transfers = true;
  const KeysQuery ahead = w->Query(s, group, keys);
  PrefixMatch match;
  ASSERT_TRUE(w->store->prefixes().Prefetch(&match).Step(ahead).ok());
  Start();
  w->holds_transfers = false;
  w->Advance(100'000);
  EXPECT_EQ(log->read.size(), 1 + size_t{kBlocks - 1} * kParts);
  EXPECT_EQ(w->Stats().promotions, kBlocks);
  const std::vector<Line> lines = TakeLines(request_id);
  EXPECT_EQ(lines.back(), (Line{StatusCode::kOk, kBlocks - 1, 1, 0, 0, true}));
}

TEST_F(Parts, CancelEndsTheRequestAndToldPartsStayReadable) {
  const AcquireResult got = Start();
  ASSERT_TRUE(RunUntilTold(kBlocks));
  TakeLines(request_id);
  ASSERT_TRUE(w->store->leases().Cancel(s, request_id).ok());
  EXPECT_THAT(TakeLines(request_id), ElementsAre(Line{StatusCode::kBusy, 0, 0, 0, 0, true}));
  EXPECT_EQ(w->Stats().pinned_count, kBlocks);
  w->Release(s, got.reply.token);
  w->Advance(100'000);
  EXPECT_TRUE(w->listener.completions.empty());
  EXPECT_EQ(w->Stats().pinned_count, 0u);
  EXPECT_LT(log->read.size(), size_t{kBlocks} * kParts);  // given up: nobody wants it
  EXPECT_EQ(w->Stats().promotions_failed, 0u);
}

TEST_F(Parts, AJoinerIsToldBySteps) {
  const AcquireResult got = Start();
  ASSERT_TRUE(RunUntilTold(2));
  const SessionId joiner = w->Open();
  JoinResult joined;
  const protocol::JoinRequest join{
      .token = got.reply.token, .member_mask = 1, .group_handle = group, .flags = kAcquireByParts};
  ASSERT_TRUE(w->Join({joiner, 900, join}, &joined).ok());
  w->Advance(100'000);
  const std::vector<Line> lines = TakeLines(900);
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.front(), (Line{StatusCode::kOk, 0, 2, 0, 1, false}));  // what it had missed
  EXPECT_EQ(lines.back(), (Line{StatusCode::kOk, kBlocks - 1, 1, 0, 0, true}));
}

class PartsOfAThird : public Parts {
 protected:
  PartsOfAThird() : Parts(kSlotBytes / 3, 64) {}
};

// 64 KiB is less than a third of 256: two at a time.
TEST_F(PartsOfAThird, AreReadTogetherUpToTheLimit) {
  const AcquireResult got = Start();
  w->Advance(100'000);
  ASSERT_EQ(log->read.size(), size_t{kBlocks} * 2);
  for (const LoggingTier::Range& range : log->read) EXPECT_EQ(range.length_bytes, 2 * kPartBytes);
  EXPECT_EQ(TakeLines(request_id).front().parts, 2u);
  EXPECT_TRUE(Holds(got));
}

class PartsOfSmallBlocks : public Parts {
 protected:
  PartsOfSmallBlocks() : Parts(kSlotBytes, 64) {}
};

TEST_F(PartsOfSmallBlocks, AreReadWithTheirBlock) {
  const AcquireResult got = Start();
  w->Advance(100'000);
  ASSERT_EQ(log->read.size(), size_t{kBlocks});
  for (const Line& line : TakeLines(request_id)) EXPECT_EQ(line.parts, 0u);
  EXPECT_TRUE(Holds(got));
}

// The rest of a slot that is too short for a read of its own goes with what is before it.
TEST(PartPlan, NoReadIsShorterThanTheLimit) {
  SpaceSpec space = TestSpace(0);
  space.part_bytes = {100'000, 30'000, 100'000, 5'000};
  Group group;
  std::vector<std::byte> table(SlotTableBytes(kSegmentBytesMin, 1));
  SlotAllocator allocator(
      {.segment_bytes = kSegmentBytesMin, .segments_max = 1, .slot_table = table});
  SlotClasses classes;
  ASSERT_TRUE(group.Open(TestGroup("plan", {space}), 1, &allocator, &classes).ok());
  group.PlanPartReads(kPartBytes);
  ASSERT_EQ(group.step_count(), 2u);
  const std::vector<PartRun>& runs = group.locals()[0].part_runs;
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].part_count, 1u);
  EXPECT_EQ(runs[0].length_bytes, 102'400u);
  EXPECT_EQ(runs[1].part_first, 1u);
  EXPECT_EQ(runs[1].part_count, 3u);
  EXPECT_EQ(runs[0].length_bytes + runs[1].length_bytes, group.locals()[0].slot_bytes);
}

}  // namespace
}  // namespace terrace

#include "tools/replay/replay_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "daemon/policy/eviction/hazard.h"
#include "daemon/policy/eviction/lru.h"
#include "tests/unit/replay/synthetic_trace.h"
#include "tools/replay/eviction/fifo.h"
#include "tools/replay/two_tier_cache.h"

namespace terrace::tools {
namespace {

DenseTrace Dense(const Trace& trace) {
  DenseTrace dense;
  std::string why;
  EXPECT_TRUE(dense.Build(trace, &why)) << why;
  return dense;
}

TEST(DenseTrace, IdThatFollowsTwoIdsIsRefusedByName) {
  DenseTrace dense;
  std::string why;
  EXPECT_FALSE(dense.Build(MakeTrace({{7, 8}, {9, 8}}), &why));
  EXPECT_NE(why.find("request 2 has block id 8 at place 1"), std::string::npos) << why;
}

TEST(ReplayCache, OnlyTheLeadingRunHits) {
  const DenseTrace trace = Dense(MakeTrace({{1, 2, 3}, {1, 2, 4}, {1, 2, 3}}));
  LruPolicy policy;
  ReplayCache cache(trace, {.capacity_blocks = 10}, policy);
  EXPECT_EQ(cache.Serve(0), 0u);
  EXPECT_EQ(cache.Serve(1), 2u);
  EXPECT_EQ(cache.Serve(2), 3u);
}

TEST(ReplayCache, ResidentBlockBehindAHoleDoesNotHit) {
  const DenseTrace trace = Dense(MakeTrace({{1, 2, 3}, {1, 2, 3}, {1, 2, 3}, {9}, {1, 2, 3}}));
  // Told by nobody what is a leaf, the worst policy takes the root.
  class RootFirst final : public EvictionPolicy {
   public:
    void OnInsert(BlockId, const BlockTraits&, uint64_t) override {}
    void OnTouch(std::span<const BlockId>, const TouchContext&) override {}
    void OnErase(BlockId) override {}
    void OnCandidate(BlockId id) override { candidates_.push_back(id); }
    void OnHeld(BlockId id) override { std::erase(candidates_, id); }
    BlockId Victim() const override { return *std::ranges::min_element(candidates_); }
    void SetPriority(BlockId, uint8_t) override {}

   private:
    std::vector<BlockId> candidates_;
  } policy;
  ReplayCache cache(trace, {.capacity_blocks = 3, .order = EvictionOrder::kFree}, policy);
  cache.Serve(0);
  EXPECT_EQ(cache.Serve(1), 3u);
  cache.Serve(3);
  EXPECT_TRUE(cache.is_resident(1));
  EXPECT_EQ(cache.Serve(4), 0u);
}

TEST(ReplayCache, RequestLargerThanTheTierKeepsItsHead) {
  const DenseTrace trace = Dense(MakeTrace({{1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}}));
  for (const EvictionOrder order : {EvictionOrder::kLeafFirst, EvictionOrder::kFree}) {
    LruPolicy policy;
    ReplayCache cache(trace, {.capacity_blocks = 3, .order = order}, policy);
    cache.Serve(0);
    EXPECT_EQ(cache.Serve(1), 3u);
    EXPECT_EQ(cache.resident_count(), 3u);
  }
}

TEST(ReplayCache, LeafFirstNeverTakesAParentBeforeItsChild) {
  const DenseTrace trace = Dense(MakeRandomTrace(7, 400));
  FifoPolicy policy;
  ReplayCache cache(trace, {.capacity_blocks = 20}, policy);
  for (size_t r = 0; r < trace.request_count(); ++r) {
    cache.Serve(r);
    ASSERT_LE(cache.resident_count(), 20u);
    for (BlockId id = 0; id < trace.unique_count(); ++id) {
      if (!cache.is_resident(id) || trace.parent(id) == kBlockNone) continue;
      ASSERT_TRUE(cache.is_resident(trace.parent(id))) << "request " << r << " block " << id;
    }
  }
}

TEST(ReplayCache, LeafFirstNeverTakesAParentOfWhatMayPassBy) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    const DenseTrace trace = Dense(MakeRandomTrace(seed, 400));
    for (const uint32_t capacity_blocks : {1u, 7u, 40u}) {
      HazardPolicy policy({.capacity_blocks = capacity_blocks});
      ReplayCache cache(trace, {.capacity_blocks = capacity_blocks, .step_blocks = 3}, policy);
      for (size_t r = 0; r < trace.request_count(); ++r) {
        cache.Serve(r);
        uint32_t resident_count = 0;
        for (BlockId id = 0; id < trace.unique_count(); ++id) {
          if (!cache.is_resident(id)) continue;
          ++resident_count;
          const BlockId parent = trace.parent(id);
          ASSERT_TRUE(parent == kBlockNone || cache.is_resident(parent)) << "request " << r;
        }
        ASSERT_EQ(cache.resident_count(), resident_count);
        ASSERT_LE(resident_count, capacity_blocks);
      }
    }
  }
}

// Writes down what it is told, and lets newcomers pass by from the n-th question on. What was
// longest a candidate goes first.
class Listening final : public EvictionPolicy {
 public:
  static constexpr uint32_t kNever = 1000;
  explicit Listening(const DenseTrace& trace, uint32_t passes_by_from = kNever)
      : passes_by_from_(passes_by_from) {
    for (BlockId id = 0; id < trace.unique_count(); ++id) ids_[ReplayCache::KeyOf(id).low] = id;
  }
  void OnInsert(BlockId id, const BlockTraits&, uint64_t) override { Say("insert", id); }
  void OnComing(std::span<const BlockKey> keys, const BlockTraits& first, uint32_t more_count,
                uint64_t) override {
    EXPECT_EQ(first.key, keys.front());
    EXPECT_EQ(more_count, 0u) << "the next step is not known";
    said_ += "coming";
    for (const BlockKey& key : keys) said_ += " " + std::to_string(ids_.at(key.low));
    said_ += "; ";
  }
  bool MayPassBy() const override { return true; }
  bool PassesBy() const override {
    const bool passes = question_count_++ >= passes_by_from_;
    said_ += passes ? "passes; " : "stays; ";
    return passes;
  }
  void OnTouch(std::span<const BlockId> run, const TouchContext& context) override {
    Say(context.end_reason == protocol::EndReason::kUnknown ? "touch to" : "end of", run.back());
  }
  void OnErase(BlockId id) override { Say("erase", id); }
  void OnCandidate(BlockId id) override {
    candidates_.push_back(id);
    Say("candidate", id);
  }
  void OnHeld(BlockId id) override {
    EXPECT_EQ(std::erase(candidates_, id), 1u) << id;
    Say("held", id);
  }
  BlockId Victim() const override { return candidates_.empty() ? kBlockNone : candidates_[0]; }
  void SetPriority(BlockId, uint8_t) override {}

  std::string TakeSaid() { return std::exchange(said_, {}); }

 private:
  void Say(const std::string& what, BlockId id) { said_ += what + " " + std::to_string(id) + "; "; }

  const uint32_t passes_by_from_;
  mutable uint32_t question_count_ = 0;
  std::map<uint64_t, BlockId> ids_;
  std::vector<BlockId> candidates_;
  mutable std::string said_;
};

// Blocks 0 1 2 fill a tier of three; then 0 1 3 4 5 is asked for, which ended for a reason.
Trace MakeOneThatBranchesOff() {
  Trace trace = MakeTrace({{100, 101, 102}, {100, 101, 103, 104, 105}});
  trace.requests[1].end_reason = protocol::EndReason::kToolCall;
  return trace;
}

TEST(ReplayCache, EachStepIsToldOfBeforeRoomIsMadeAndTheEndLast) {
  const DenseTrace trace = Dense(MakeOneThatBranchesOff());
  Listening policy(trace);
  ReplayCache cache(trace, {.capacity_blocks = 5, .step_blocks = 2}, policy);
  cache.Serve(0);
  EXPECT_EQ(policy.TakeSaid(),
            "coming 0 1; insert 0; insert 1; candidate 1; "
            "held 1; coming 2; insert 2; candidate 2; ");
  EXPECT_EQ(cache.Serve(1), 2u);
  EXPECT_EQ(policy.TakeSaid(),
            "touch to 1; coming 3 4; insert 3; insert 4; candidate 4; "
            "held 4; coming 5; stays; held 2; erase 2; insert 5; candidate 5; end of 5; ");
  EXPECT_EQ(cache.passed_by_count(), 0u);
  EXPECT_EQ(cache.eviction_count(), 1u);
}

TEST(ReplayCache, BehindWhatPassesByNothingIsOffered) {
  Trace branching = MakeTrace({{100, 101, 102, 103, 104, 105}, {100, 101, 110, 111, 112}});
  branching.requests[1].end_reason = protocol::EndReason::kToolCall;
  const DenseTrace trace = Dense(branching);
  for (const uint32_t capacity_blocks : {6u, 7u}) {
    Listening policy(trace, 0);
    ReplayCache cache(trace, {.capacity_blocks = capacity_blocks, .step_blocks = 1}, policy);
    cache.Serve(0);
    policy.TakeSaid();
    cache.Serve(1);
    EXPECT_EQ(policy.TakeSaid(), capacity_blocks == 6
                                     ? "touch to 1; coming 6; passes; end of 1; "
                                     : "touch to 1; coming 6; insert 6; candidate 6; "
                                       "held 6; coming 7; passes; candidate 6; end of 6; ");
    EXPECT_TRUE(cache.is_resident(5)) << "nothing goes for what passes by";
    EXPECT_EQ(cache.eviction_count(), 0u);
    EXPECT_EQ(cache.passed_by_count(), 9 - capacity_blocks);
  }
}

TEST(ReplayCache, AsManyGoAtOnceAsNewcomersWantRoom) {
  const DenseTrace trace = Dense(MakeTrace({{1, 2, 3, 4}, {6, 7, 8}}));
  Listening policy(trace);
  ReplayCache cache(trace, {.capacity_blocks = 5}, policy);
  cache.Serve(0);
  policy.TakeSaid();
  cache.Serve(1);
  EXPECT_EQ(policy.TakeSaid(),
            "coming 4 5 6; insert 4; stays; held 3; erase 3; candidate 2; held 2; erase 2; "
            "candidate 1; insert 5; insert 6; candidate 6; ");
  EXPECT_EQ(cache.eviction_count(), 2u);
  EXPECT_EQ(cache.resident_count(), 5u);
}

TEST(ReplayCache, WhatWasStoredInPartIsOneStepAndHangsOnWhatIsThere) {
  Trace recorded = MakeTrace({{100, 101}, {100, 101, 102}, {200, 201, 202}});
  for (TraceRequest& request : recorded.requests) request.kind = TraceKind::kStored;
  recorded.requests[1].stored_from = recorded.requests[2].stored_from = 2;
  const DenseTrace trace = Dense(recorded);
  Listening policy(trace);
  ReplayCache cache(trace, {.capacity_blocks = 5, .step_blocks = 1}, policy);
  cache.Serve(0);
  EXPECT_EQ(policy.TakeSaid(), "coming 0 1; insert 0; insert 1; candidate 1; ");
  cache.Serve(1);
  EXPECT_EQ(policy.TakeSaid(), "held 1; coming 2; insert 2; candidate 2; ");
  cache.Serve(2);
  EXPECT_EQ(policy.TakeSaid(), "") << "its beginning is not there";
  EXPECT_EQ(cache.passed_by_count(), 1u);
}

TEST(TwoTierCache, AboveATierNothingPassesByAndRoomIsMadeBeforeANewcomerComes) {
  const DenseTrace trace = Dense(MakeOneThatBranchesOff());
  Listening policy(trace, 0);
  LruPolicy lower;
  const auto admission =
      MakeAdmissionPolicy("all", {.capacity_blocks = 9, .write_bytes_per_day = UINT64_MAX});
  TwoTierCache cache(trace, {.dram_blocks = 3, .lower_blocks = 9},
                     {.dram = policy, .lower = lower, .admission = *admission});
  cache.Serve(0);
  EXPECT_EQ(policy.TakeSaid(), "insert 0; insert 1; insert 2; candidate 2; ");
  cache.Serve(1);
  EXPECT_EQ(policy.TakeSaid(), "touch to 1; held 2; erase 2; insert 3; candidate 3; end of 3; ");
  EXPECT_EQ(cache.dram_hit_count(), 2u);
  EXPECT_EQ(cache.written_count(), 4u) << "what is new, as it is stored";
}

}  // namespace
}  // namespace terrace::tools

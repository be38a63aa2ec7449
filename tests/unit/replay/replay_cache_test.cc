#include "tools/replay/replay_cache.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "daemon/policy/eviction/lru.h"
#include "tests/unit/replay/synthetic_trace.h"
#include "tools/replay/eviction/fifo.h"

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

}  // namespace
}  // namespace terrace::tools

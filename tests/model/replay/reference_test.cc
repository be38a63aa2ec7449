// Replay against references as plain as they can be: lists walked from end to end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <string>

#include "daemon/policy/eviction/lru.h"
#include "tests/unit/replay/synthetic_trace.h"
#include "tools/replay/eviction/fifo.h"
#include "tools/replay/lru_curve.h"
#include "tools/replay/optimum.h"
#include "tools/replay/replay_cache.h"
#include "tools/terrace/trace/trace_reader.h"

namespace terrace::tools {
namespace {

uint64_t Replay(const DenseTrace& trace, uint32_t capacity_blocks, EvictionOrder order,
                EvictionPolicy& policy) {
  ReplayCache cache(trace, {.capacity_blocks = capacity_blocks, .order = order}, policy);
  uint64_t hit_count = 0;
  for (size_t r = 0; r < trace.request_count(); ++r) hit_count += cache.Serve(r);
  return hit_count;
}

enum class ListKind { kLru, kFifo };

// Front: newest. Each request's blocks are used tail first.
uint64_t ReferenceList(const DenseTrace& trace, uint32_t capacity_blocks, ListKind kind) {
  std::list<BlockId> order;
  std::vector<std::list<BlockId>::iterator> places(trace.unique_count(), order.end());
  uint64_t hit_count = 0;
  for (size_t r = 0; r < trace.request_count(); ++r) {
    auto path = trace.path(r);
    for (const BlockId id : path) {
      if (places[id] == order.end()) break;
      ++hit_count;
    }
    path = path.first(std::min<size_t>(path.size(), capacity_blocks));
    for (auto id = path.rbegin(); id != path.rend(); ++id) {
      if (places[*id] != order.end()) {
        if (kind == ListKind::kFifo) continue;
        order.erase(places[*id]);
      } else if (order.size() == capacity_blocks) {
        places[order.back()] = order.end();
        order.pop_back();
      }
      order.push_front(*id);
      places[*id] = order.begin();
    }
  }
  return hit_count;
}

// Furthest next use of all resident blocks, found by looking at every one and at the whole future.
uint64_t ReferenceBelady(const DenseTrace& trace, uint32_t capacity_blocks) {
  std::vector<BlockId> resident;
  uint64_t hit_count = 0;
  const auto next_use = [&](BlockId id, size_t after) {
    for (size_t r = after + 1; r < trace.request_count(); ++r) {
      const auto path = trace.path(r);
      if (std::find(path.begin(), path.end(), id) != path.end()) return r;
    }
    return size_t{kNoNextUse};
  };
  for (size_t r = 0; r < trace.request_count(); ++r) {
    bool is_prefix = true;
    for (const BlockId id : trace.path(r)) {
      const bool is_hit = std::find(resident.begin(), resident.end(), id) != resident.end();
      is_prefix = is_prefix && is_hit;
      hit_count += is_prefix ? 1 : 0;
      if (!is_hit) resident.push_back(id);
    }
    while (resident.size() > capacity_blocks) {
      auto furthest = std::max_element(resident.begin(), resident.end(), [&](BlockId a, BlockId b) {
        return std::pair(next_use(a, r), trace.position(a)) <
               std::pair(next_use(b, r), trace.position(b));
      });
      resident.erase(furthest);
    }
  }
  return hit_count;
}

class RandomTraces : public testing::TestWithParam<uint32_t> {};

TEST_P(RandomTraces, LruAndFifoAgreeWithAList) {
  DenseTrace trace;
  std::string why;
  ASSERT_TRUE(trace.Build(MakeRandomTrace(GetParam(), 500), &why)) << why;
  for (const uint32_t capacity_blocks : {1u, 2u, 7u, 40u, 200u, 100000u}) {
    SCOPED_TRACE(capacity_blocks);
    const uint64_t lru = ReferenceList(trace, capacity_blocks, ListKind::kLru);
    LruPolicy free_lru;
    EXPECT_EQ(Replay(trace, capacity_blocks, EvictionOrder::kFree, free_lru), lru);
    EXPECT_EQ(LruCurve(trace).HitsAt(capacity_blocks), lru);
    LruPolicy leaf_lru;
    EXPECT_EQ(Replay(trace, capacity_blocks, EvictionOrder::kLeafFirst, leaf_lru), lru);
    FifoPolicy fifo;
    EXPECT_EQ(Replay(trace, capacity_blocks, EvictionOrder::kFree, fifo),
              ReferenceList(trace, capacity_blocks, ListKind::kFifo));
  }
}

TEST_P(RandomTraces, OptimumAgreesWithLookingAtTheWholeFuture) {
  DenseTrace trace;
  std::string why;
  ASSERT_TRUE(trace.Build(MakeRandomTrace(GetParam(), 120), &why)) << why;
  const NextUses next_uses(trace);
  for (const uint32_t capacity_blocks : {1u, 5u, 20u, 60u}) {
    SCOPED_TRACE(capacity_blocks);
    const uint64_t optimum = ReferenceBelady(trace, capacity_blocks);
    EXPECT_EQ(CountOptimumHits(trace, next_uses, capacity_blocks, EvictionOrder::kFree), optimum);
    EXPECT_EQ(CountOptimumHits(trace, next_uses, capacity_blocks, EvictionOrder::kLeafFirst),
              optimum);
    LruPolicy lru;
    EXPECT_LE(Replay(trace, capacity_blocks, EvictionOrder::kLeafFirst, lru), optimum);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomTraces, testing::Range(1u, 21u));

TEST(RecordedTraces, LruAndFifoAgreeWithAListOnARealTrace) {
  const char* directory = std::getenv("TERRACE_TRACES");
  if (directory == nullptr) GTEST_SKIP() << "TERRACE_TRACES names no directory with traces";
  const std::string path = std::string(directory) + "/mooncake_conversation.jsonl.gz";
  Trace recorded;
  DenseTrace trace;
  std::string why;
  ASSERT_TRUE(ReadTrace(path, {.request_count_max = 1u << 20}, &recorded, &why)) << why;
  ASSERT_TRUE(trace.Build(recorded, &why)) << why;
  for (const uint32_t capacity_blocks : {854u, 8545u}) {
    LruPolicy lru;
    EXPECT_EQ(Replay(trace, capacity_blocks, EvictionOrder::kLeafFirst, lru),
              ReferenceList(trace, capacity_blocks, ListKind::kLru));
    FifoPolicy fifo;
    EXPECT_EQ(Replay(trace, capacity_blocks, EvictionOrder::kFree, fifo),
              ReferenceList(trace, capacity_blocks, ListKind::kFifo));
  }
}

}  // namespace
}  // namespace terrace::tools

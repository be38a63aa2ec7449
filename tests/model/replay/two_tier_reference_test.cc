// TwoTierCache against lists walked from end to end.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <vector>

#include "daemon/policy/eviction/lru.h"
#include "tests/unit/replay/synthetic_trace.h"
#include "tools/replay/lru_curve.h"
#include "tools/replay/two_tier_cache.h"

namespace terrace::tools {
namespace {

struct Counts {
  uint64_t dram_hits = 0;
  uint64_t lower_hits = 0;
  uint64_t written = 0;
  uint64_t shared_hits = 0;
  uint64_t shared_written = 0;

  bool operator==(const Counts&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Counts& counts) {
  return out << counts.dram_hits << " + " << counts.lower_hits << " hits, " << counts.written
             << " writes, shared " << counts.shared_hits << " hits, " << counts.shared_written
             << " writes";
}

// A tier behind both; of 0 blocks: none.
struct Shared {
  uint32_t block_count = 0;
  SharedCache::Admission admission = SharedCache::Admission::kAll;
};

Counts Replay(const DenseTrace& trace, uint32_t dram_blocks, uint32_t lower_blocks,
              std::string_view admission_name, const Shared& shared = {}) {
  LruPolicy dram;
  LruPolicy lower;
  const auto admission = MakeAdmissionPolicy(
      admission_name, {.capacity_blocks = lower_blocks, .write_bytes_per_day = UINT64_MAX});
  SharedCache shared_cache(shared.block_count, shared.admission);
  TwoTierCache cache(trace, {.dram_blocks = dram_blocks, .lower_blocks = lower_blocks},
                     {.dram = dram,
                      .lower = lower,
                      .admission = *admission,
                      .shared = shared.block_count > 0 ? &shared_cache : nullptr});
  for (size_t r = 0; r < trace.request_count(); ++r) cache.Serve(r);
  return {.dram_hits = cache.dram_hit_count(),
          .lower_hits = cache.lower_hit_count(),
          .written = cache.written_count(),
          .shared_hits = cache.shared_hit_count(),
          .shared_written = shared_cache.written_count()};
}

bool Holds(const std::list<BlockId>& order, BlockId id) {
  return std::find(order.begin(), order.end(), id) != order.end();
}

// The oldest of which no child is there.
BlockId OldestLeaf(const DenseTrace& trace, const std::list<BlockId>& order) {
  for (auto id = order.rbegin(); id != order.rend(); ++id) {
    const bool has_child = std::any_of(order.begin(), order.end(),
                                       [&](BlockId other) { return trace.parent(other) == *id; });
    if (!has_child) return *id;
  }
  return kBlockNone;
}

// Writes to a list of the tier below, front: newest.
class Below {
 public:
  Below(const DenseTrace& trace, size_t block_count) : trace_(trace), block_count_(block_count) {}

  bool Has(BlockId id) const { return Holds(order_, id); }
  uint64_t written_count() const { return written_count_; }
  void Use(BlockId id) {
    if (!Has(id)) return;
    order_.remove(id);
    order_.push_front(id);
  }
  bool MayCome(BlockId id) const {
    return !Has(id) && (trace_.parent(id) == kBlockNone || Has(trace_.parent(id)));
  }
  void Write(BlockId id) {
    if (block_count_ == 0 || !MayCome(id)) return;
    ++written_count_;
    order_.push_front(id);
    if (order_.size() > block_count_) order_.remove(OldestLeaf(trace_, order_));
  }
  // Dropped by DRAM; where what it hangs from is not here that comes, if it is of 64 blocks at
  // most.
  void WriteDropped(BlockId id) {
    if (Has(id) || MayCome(id)) return Write(id);
    std::vector<BlockId> above;
    for (BlockId at = trace_.parent(id); at != kBlockNone && !Has(at); at = trace_.parent(at)) {
      above.push_back(at);
    }
    if (above.size() > 64) return;
    for (size_t i = above.size(); i-- > 0;) Write(above[i]);
  }

 private:
  const DenseTrace& trace_;
  const size_t block_count_;
  std::list<BlockId> order_;
  uint64_t written_count_ = 0;
};

// Front: newest. Two lists; what is new enters both, and what leaves the first enters the second,
// if it is not there. What is used, head first, becomes the newest of the shared list if it is
// there or may enter it.
Counts Reference(const DenseTrace& trace, size_t dram_blocks, size_t lower_blocks,
                 const Shared& shared = {}) {
  std::list<BlockId> dram;
  Below lower(trace, lower_blocks);
  std::list<BlockId> remote;
  Counts counts;
  for (size_t r = 0; r < trace.request_count(); ++r) {
    auto path = trace.path(r);
    path = path.first(std::min(path.size(), dram_blocks));
    size_t hit_count = 0;
    for (; hit_count < path.size(); ++hit_count) {
      const bool is_in_dram = Holds(dram, path[hit_count]);
      if (!is_in_dram && !lower.Has(path[hit_count])) break;
      ++(is_in_dram ? counts.dram_hits : counts.lower_hits);
    }
    size_t remote_end = hit_count;
    for (; remote_end < path.size() && Holds(remote, path[remote_end]); ++remote_end) {
      ++counts.shared_hits;
      remote.remove(path[remote_end]);
      remote.push_front(path[remote_end]);
    }
    for (size_t i = 0; i < path.size() && shared.block_count > 0; ++i) {
      if (Holds(remote, path[i])) continue;
      if (shared.admission == SharedCache::Admission::kHit && i >= hit_count) continue;
      ++counts.shared_written;
      remote.push_front(path[i]);
      if (remote.size() > shared.block_count) remote.pop_back();
    }
    for (size_t i = path.size(); i-- > 0;) {
      dram.remove(path[i]);
      dram.push_front(path[i]);
      if (i < hit_count) lower.Use(path[i]);
    }
    while (dram.size() > dram_blocks) {
      const BlockId victim = OldestLeaf(trace, dram);
      dram.remove(victim);
      lower.WriteDropped(victim);
    }
    for (size_t i = hit_count; i < path.size(); ++i) lower.Write(path[i]);
  }
  counts.written = lower.written_count();
  return counts;
}

TEST(TwoTierCache, AgreesWithListsOnRandomTraces) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    DenseTrace trace;
    std::string why;
    ASSERT_TRUE(trace.Build(MakeRandomTrace(seed, 150), &why)) << why;
    for (const uint32_t dram_blocks : {1u, 5u, 40u}) {
      for (const uint32_t lower_blocks : {1u, 20u, 100000u}) {
        EXPECT_EQ(Replay(trace, dram_blocks, lower_blocks, "all"),
                  Reference(trace, dram_blocks, lower_blocks))
            << "seed " << seed << ", " << dram_blocks << " over " << lower_blocks;
      }
    }
  }
}

TEST(TwoTierCache, AgreesWithListsOverASharedTier) {
  uint64_t shared_hits = 0;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    DenseTrace trace;
    std::string why;
    ASSERT_TRUE(trace.Build(MakeRandomTrace(seed, 150), &why)) << why;
    for (const uint32_t lower_blocks : {1u, 20u}) {
      for (const uint32_t shared_blocks : {1u, 10u, 60u, 100000u}) {
        for (const auto admission : {SharedCache::Admission::kAll, SharedCache::Admission::kHit}) {
          const Shared shared{shared_blocks, admission};
          const Counts counts = Replay(trace, 5, lower_blocks, "all", shared);
          EXPECT_EQ(counts, Reference(trace, 5, lower_blocks, shared))
              << "seed " << seed << ", " << lower_blocks << " over " << shared_blocks;
          shared_hits += counts.shared_hits;
        }
      }
    }
  }
  EXPECT_GT(shared_hits, 0u);
}

TEST(TwoTierCache, WithoutASecondTierItIsOneOfDram) {
  DenseTrace trace;
  std::string why;
  ASSERT_TRUE(trace.Build(MakeRandomTrace(7, 400), &why)) << why;
  const LruCurve curve(trace);
  for (const uint32_t dram_blocks : {50u, 90u}) {
    const Counts counts = Replay(trace, dram_blocks, 0, "all");
    EXPECT_EQ(counts.dram_hits, curve.HitsAt(dram_blocks));
    EXPECT_EQ(counts.written + counts.lower_hits, 0u);
  }
}

// 44 prompts asked for in turn: more than either tier has room for, less than both together.
TEST(TwoTierCache, TiersOfOneSizeHoldTheSameBlocks) {
  Trace recorded;
  recorded.block_tokens = 16;
  for (uint64_t r = 0; r < 8 * 44; ++r) {
    std::vector<uint64_t> path;
    for (uint64_t block = 0; block < 16; ++block) path.push_back((r % 44 + 1) << 32 | block);
    AddRequest(&recorded, r * 1000, path);
  }
  DenseTrace trace;
  std::string why;
  ASSERT_TRUE(trace.Build(recorded, &why)) << why;
  const Counts equal = Replay(trace, 512, 512, "all");
  EXPECT_EQ(equal.dram_hits + equal.lower_hits, 0u);
  EXPECT_EQ(equal.written, 8u * 44 * 16) << "once whenever it is stored";
  const Counts larger = Replay(trace, 512, 704, "all");
  EXPECT_EQ(larger.dram_hits + larger.lower_hits, 7u * 44 * 16);
  EXPECT_EQ(larger.written, 44u * 16);
}

// As large as the larger of both: LRU below has the newest of what there is, too.
TEST(TwoTierCache, UnderLruItHitsWhatTheLargerTierAloneHits) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    DenseTrace trace;
    std::string why;
    ASSERT_TRUE(trace.Build(MakeRandomTrace(seed, 200), &why)) << why;
    const LruCurve curve(trace);
    uint32_t dram_blocks = 1;  // none of the prompts is cut off
    for (size_t r = 0; r < trace.request_count(); ++r) {
      dram_blocks = std::max(dram_blocks, static_cast<uint32_t>(trace.path(r).size()));
    }
    for (const uint32_t lower_blocks : {dram_blocks, 2 * dram_blocks, 4 * dram_blocks}) {
      const Counts counts = Replay(trace, dram_blocks, lower_blocks, "all");
      EXPECT_EQ(counts.dram_hits, curve.HitsAt(dram_blocks));
      EXPECT_EQ(counts.dram_hits + counts.lower_hits, curve.HitsAt(lower_blocks))
          << "seed " << seed << ", " << dram_blocks << " over " << lower_blocks;
    }
  }
}

TEST(TwoTierCache, NoAdmissionWritesMoreThanAllOfIt) {
  DenseTrace trace;
  std::string why;
  ASSERT_TRUE(trace.Build(MakeRandomTrace(3, 1500), &why)) << why;
  const Counts all = Replay(trace, 40, 100000, "all");
  for (const std::string_view name : AdmissionPolicyNames()) {
    const Counts counts = Replay(trace, 40, 100000, name);
    EXPECT_LE(counts.dram_hits + counts.lower_hits, all.dram_hits + all.lower_hits) << name;
    EXPECT_GE(counts.dram_hits + counts.lower_hits, Replay(trace, 40, 0, "all").dram_hits) << name;
  }
}

}  // namespace
}  // namespace terrace::tools

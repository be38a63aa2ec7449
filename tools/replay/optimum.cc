#include "tools/replay/optimum.h"

#include <algorithm>

#include "daemon/policy/eviction/candidate_heap.h"
#include "terrace/check.h"

namespace terrace::tools {
namespace {

// Belady's order of the candidates.
class BeladyRanks {
 public:
  explicit BeladyRanks(uint32_t unique_count) : ranks_(unique_count) {}

  void SetNext(BlockId id, uint32_t next_request, uint32_t position) {
    // The heap's first is the smallest: furthest next use, then deepest.
    ranks_[id].order = (uint64_t{kNoNextUse - next_request} << 32) | (0xFFFFFFFFu - position);
    if (heap_.Contains(id)) heap_.Change(id, ranks_[id]);
  }
  void Add(BlockId id) { heap_.Add(id, ranks_[id]); }
  void Remove(BlockId id) {
    if (heap_.Contains(id)) heap_.Remove(id);
  }
  BlockId victim() const { return heap_.first(); }

 private:
  CandidateHeap heap_;
  std::vector<CandidateHeap::Rank> ranks_;
};

}  // namespace

NextUses::NextUses(const DenseTrace& trace) : next_(trace.touch_count()) {
  std::vector<uint32_t> next(trace.unique_count(), kNoNextUse);
  for (size_t r = trace.request_count(); r-- > 0;) {
    const std::span<const BlockId> path = trace.path(r);
    const uint64_t first = trace.request(r).first_id;
    for (size_t i = 0; i < path.size(); ++i) {
      next_[first + i] = next[path[i]];
      next[path[i]] = static_cast<uint32_t>(r);
    }
  }
}

uint64_t CountOptimumHits(const DenseTrace& trace, const NextUses& next_uses,
                          uint32_t capacity_blocks, EvictionOrder order) {
  TERRACE_CHECK(capacity_blocks > 0, "a tier of no blocks replays nothing");
  const bool is_free = order == EvictionOrder::kFree;
  BeladyRanks ranks(trace.unique_count());
  std::vector<uint8_t> is_resident(trace.unique_count());
  std::vector<uint32_t> child_counts(trace.unique_count());
  uint64_t hit_count = 0;
  uint32_t resident_count = 0;
  for (size_t r = 0; r < trace.request_count(); ++r) {
    const std::span<const BlockId> path = trace.path(r);
    const std::span<const uint32_t> next = next_uses.of(trace.request(r));
    bool is_prefix = trace.request(r).is_asked();
    for (size_t i = 0; i < path.size(); ++i) {
      const BlockId id = path[i];
      is_prefix = is_prefix && is_resident[id] != 0;
      hit_count += is_prefix ? 1 : 0;
      ranks.SetNext(id, next[i], static_cast<uint32_t>(i));
      if (is_resident[id] != 0) continue;
      is_resident[id] = 1;
      ++resident_count;
      if (!is_free && i > 0 && child_counts[path[i - 1]]++ == 0) ranks.Remove(path[i - 1]);
      ranks.Add(id);
    }
    while (resident_count > capacity_blocks) {
      const BlockId victim = ranks.victim();
      ranks.Remove(victim);
      is_resident[victim] = 0;
      --resident_count;
      const BlockId parent = trace.parent(victim);
      if (!is_free && parent != kBlockNone && --child_counts[parent] == 0) ranks.Add(parent);
    }
  }
  return hit_count;
}

}  // namespace terrace::tools

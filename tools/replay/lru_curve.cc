#include "tools/replay/lru_curve.h"

#include <algorithm>

namespace terrace::tools {
namespace {

// Counts of marked stamps, summed in O(log n): a Fenwick tree.
class StampCounts {
 public:
  explicit StampCounts(size_t stamp_count) : tree_(stamp_count + 1) {}
  void Add(size_t stamp, int32_t by) {
    for (size_t i = stamp + 1; i < tree_.size(); i += i & (~i + 1)) tree_[i] += by;
  }
  // Marked stamps below `stamp`.
  uint32_t Below(size_t stamp) const {
    int64_t sum = 0;
    for (size_t i = stamp; i > 0; i -= i & (~i + 1)) sum += tree_[i];
    return static_cast<uint32_t>(sum);
  }

 private:
  std::vector<int32_t> tree_;
};

}  // namespace

LruCurve::LruCurve(const DenseTrace& trace) : hits_up_to_(size_t{trace.unique_count()} + 1) {
  constexpr uint64_t kNeverUsed = UINT64_MAX;
  StampCounts counts(trace.touch_count());
  std::vector<uint64_t> stamps(trace.unique_count(), kNeverUsed);
  uint64_t next_stamp = 0;
  uint32_t used_count = 0;  // blocks with a stamp
  for (size_t r = 0; r < trace.request_count(); ++r) {
    const auto path = trace.path(r);
    for (const BlockId id : path) {
      if (stamps[id] == kNeverUsed || !trace.request(r).is_asked()) break;
      ++hits_up_to_[used_count - counts.Below(stamps[id])];
    }
    for (auto id = path.rbegin(); id != path.rend(); ++id) {
      if (stamps[*id] == kNeverUsed) {
        ++used_count;
      } else {
        counts.Add(stamps[*id], -1);
      }
      stamps[*id] = next_stamp;
      counts.Add(next_stamp++, 1);
    }
  }
  for (size_t d = 1; d < hits_up_to_.size(); ++d) hits_up_to_[d] += hits_up_to_[d - 1];
}

uint64_t LruCurve::HitsAt(uint32_t capacity_blocks) const {
  return hits_up_to_[std::min<size_t>(capacity_blocks, hits_up_to_.size() - 1)];
}

}  // namespace terrace::tools

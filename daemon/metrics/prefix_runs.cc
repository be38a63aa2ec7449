#include "daemon/metrics/prefix_runs.h"

#include <algorithm>
#include <numeric>

#include "terrace/check.h"

namespace terrace {

uint32_t PrefixRuns::RunFor(const protocol::ListEntry& block) {
  const auto above = seen_.find({block.group, block.parent});
  if (above != seen_.end() && above->second.has_one_child) return above->second.run;
  runs_.push_back({.group = block.group,
                   .parent = above == seen_.end() ? PrefixRun::kNone : above->second.run,
                   .position = block.position});
  return static_cast<uint32_t>(runs_.size() - 1);
}

bool PrefixRuns::Add(const protocol::ListEntry& block) {
  if (block_count_ == kBlocksMax) return false;
  ++block_count_;
  const uint32_t number = RunFor(block);
  seen_.insert_or_assign({block.group, block.key},
                         Seen{.run = number, .has_one_child = block.child_count == 1});
  PrefixRun& run = runs_[number];
  run.last = block.key;
  ++run.block_count;
  run.lease_count = std::max(run.lease_count, block.lease_count);
  run.tier_mask |= block.tier_mask;
  run.byte_count += block.byte_count;
  run.hit_count += block.hit_count;
  const auto saved_us = saved_us_.find(block.group);
  if (saved_us != saved_us_.end()) run.saved_us += saved_us->second * block.hit_count;
  return true;
}

void PrefixRuns::Finish() {
  for (size_t i = runs_.size(); i-- > 0;) {
    PrefixRun& run = runs_[i];
    run.tree_block_count += run.block_count;
    run.tree_saved_us += run.saved_us;
    if (run.parent == PrefixRun::kNone) continue;
    TERRACE_CHECK(run.parent < i, "a parent comes first: its sum is whole when its turn is");
    runs_[run.parent].tree_block_count += run.tree_block_count;
    runs_[run.parent].tree_saved_us += run.tree_saved_us;
  }
}

namespace {

// The first `count_max` of all, by `is_better`; of equals the earlier one.
template <typename IsBetter>
std::vector<uint32_t> BestOf(std::span<const PrefixRun> runs, size_t count_max,
                             const IsBetter& is_better) {
  std::vector<uint32_t> order(runs.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t count = std::min(count_max, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
                    [&](uint32_t a, uint32_t b) {
                      if (is_better(runs[a], runs[b])) return true;
                      return !is_better(runs[b], runs[a]) && a < b;
                    });
  order.resize(count);
  return order;
}

}  // namespace

// A tree is worth as much as what is below it at least, so whoever is chosen comes with all above.
std::vector<uint32_t> BestTree(std::span<const PrefixRun> runs, size_t count_max) {
  const std::vector<uint32_t> best =
      BestOf(runs, count_max, [](const PrefixRun& a, const PrefixRun& b) {
        if (a.tree_saved_us != b.tree_saved_us) return a.tree_saved_us > b.tree_saved_us;
        return a.tree_block_count > b.tree_block_count;
      });
  std::map<uint32_t, std::vector<uint32_t>> below;  // the best one first
  for (const uint32_t number : best) below[runs[number].parent].push_back(number);
  std::vector<uint32_t> ordered;
  std::vector<uint32_t> left(below[PrefixRun::kNone].rbegin(), below[PrefixRun::kNone].rend());
  while (!left.empty()) {
    ordered.push_back(left.back());
    left.pop_back();
    const std::vector<uint32_t>& children = below[ordered.back()];
    left.insert(left.end(), children.rbegin(), children.rend());
  }
  return ordered;
}

std::vector<uint32_t> BestPerByte(std::span<const PrefixRun> runs, size_t count_max) {
  std::vector<uint32_t> best = BestOf(runs, count_max, [](const PrefixRun& a, const PrefixRun& b) {
    return a.saved_us_per_byte() > b.saved_us_per_byte();
  });
  std::erase_if(best, [&](uint32_t number) { return runs[number].saved_us <= 0; });
  return best;
}

}  // namespace terrace

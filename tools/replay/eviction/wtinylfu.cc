#include "tools/replay/eviction/wtinylfu.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace::tools {
namespace {

constexpr uint32_t kWindowDivisor = 100;
constexpr uint32_t kProtectedPercent = 80;

}  // namespace

WTinyLfuPolicy::WTinyLfuPolicy(uint32_t capacity_blocks)
    : capacity_blocks_(capacity_blocks),
      window_count_max_(std::max(capacity_blocks / kWindowDivisor, 1u)),
      protected_count_max_(static_cast<uint32_t>(
          uint64_t{capacity_blocks - std::min(window_count_max_, capacity_blocks)} *
          kProtectedPercent / 100)),
      sketch_(capacity_blocks) {}

void WTinyLfuPolicy::OnInsert(BlockId id, const BlockTraits& traits, uint64_t) {
  if (id >= states_.size()) states_.resize(id + 1);
  states_[id] = {.key = traits.key, .rank = {traits.priority, ++use_count_}};
  ++CountOf(Part::kWindow);
  sketch_.Count(traits.key);
  if (is_filling_) Fill(id);
}

void WTinyLfuPolicy::Fill(BlockId newcomer) {
  window_order_.Add(newcomer, states_[newcomer].rank);
  if (CountOf(Part::kWindow) > window_count_max_) {
    const BlockId oldest = window_order_.first();
    states_[oldest].rank.order = ++use_count_;
    Move(oldest, Part::kProbation);
  }
  is_filling_ = counts_[0] + counts_[1] + counts_[2] < capacity_blocks_;
  if (!is_filling_) window_order_ = CandidateHeap();
}

void WTinyLfuPolicy::OnTouch(std::span<const BlockId> run, const TouchContext& context) {
  // That a request ended is no second use of its tip.
  if (context.end_reason != protocol::EndReason::kUnknown) return;
  use_count_ += run.size();
  uint64_t order = use_count_;  // tail first, as in LruPolicy
  for (const BlockId id : run) {
    BlockState& state = states_[id];
    sketch_.Count(state.key);
    state.rank.order = order--;
    if (window_order_.Contains(id)) window_order_.Change(id, state.rank);
    Move(id, state.part == Part::kWindow ? Part::kWindow : Part::kProtected);
  }
  DemoteSome();
}

void WTinyLfuPolicy::Move(BlockId id, Part part) {
  BlockState& state = states_[id];
  const bool is_candidate = ListOf(state.part).Contains(id);
  if (is_candidate) ListOf(state.part).Remove(id);
  if (part != Part::kWindow && window_order_.Contains(id)) window_order_.Remove(id);
  TERRACE_CHECK(CountOf(state.part) > 0, "a part counts its blocks");
  --CountOf(state.part);
  state.part = part;
  ++CountOf(part);
  if (is_candidate) ListOf(part).Add(id, state.rank);
}

void WTinyLfuPolicy::DemoteSome() {
  while (CountOf(Part::kProtected) > protected_count_max_) {
    const BlockId last = FirstOf(Part::kProtected);
    if (last == kBlockNone) return;
    states_[last].rank.order = ++use_count_;
    Move(last, Part::kProbation);
  }
}

void WTinyLfuPolicy::OnErase(BlockId id) {
  const Part part = states_[id].part;
  --CountOf(part);
  if (window_order_.Contains(id)) window_order_.Remove(id);
  const BlockId winner = FirstOf(Part::kWindow);
  if (part == Part::kWindow || winner == kBlockNone) return;
  if (CountOf(Part::kWindow) < window_count_max_) return;
  // The newcomer that was used more often than what just left takes its place.
  states_[winner].rank.order = ++use_count_;
  Move(winner, Part::kProbation);
}

void WTinyLfuPolicy::OnCandidate(BlockId id) {
  ListOf(states_[id].part).Add(id, states_[id].rank);
  DemoteSome();
}

void WTinyLfuPolicy::OnHeld(BlockId id) { ListOf(states_[id].part).Remove(id); }

BlockId WTinyLfuPolicy::Victim() const {
  const BlockId newcomer = FirstOf(Part::kWindow);
  BlockId old = FirstOf(Part::kProbation);
  const BlockId best = FirstOf(Part::kProtected);
  if (old == kBlockNone ||
      (best != kBlockNone && states_[best].rank.priority < states_[old].rank.priority)) {
    old = best;
  }
  if (newcomer == kBlockNone || old == kBlockNone) return newcomer == kBlockNone ? old : newcomer;
  const uint8_t newcomer_priority = states_[newcomer].rank.priority;
  const uint8_t old_priority = states_[old].rank.priority;
  if (newcomer_priority != old_priority) return newcomer_priority < old_priority ? newcomer : old;
  if (counts_[0] < window_count_max_) return old;
  const bool is_newcomer_rarer =
      sketch_.FrequencyOf(states_[newcomer].key) <= sketch_.FrequencyOf(states_[old].key);
  return is_newcomer_rarer ? newcomer : old;
}

void WTinyLfuPolicy::SetPriority(BlockId id, uint8_t priority) {
  BlockState& state = states_[id];
  state.rank.priority = priority;
  if (ListOf(state.part).Contains(id)) ListOf(state.part).Change(id, state.rank);
}

}  // namespace terrace::tools

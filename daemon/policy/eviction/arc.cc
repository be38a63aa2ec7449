#include "daemon/policy/eviction/arc.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {

void ArcPolicy::OnInsert(BlockId id, const BlockTraits& traits, uint64_t) {
  if (id >= states_.size()) states_.resize(id + 1);
  const auto recent_ghost_count = static_cast<double>(recent_ghosts_.count());
  const auto frequent_ghost_count = static_cast<double>(frequent_ghosts_.count());
  bool is_frequent = true;
  if (recent_ghosts_.Remove(traits.key)) {
    const double step = std::max(1.0, frequent_ghost_count / recent_ghost_count);
    recent_target_ = std::min(recent_target_ + step, static_cast<double>(capacity_blocks_));
  } else if (frequent_ghosts_.Remove(traits.key)) {
    const double step = std::max(1.0, recent_ghost_count / frequent_ghost_count);
    recent_target_ = std::max(recent_target_ - step, 0.0);
  } else {
    is_frequent = false;
    ++recent_count_;
  }
  states_[id] = {
      .key = traits.key, .rank = {traits.priority, ++use_count_}, .is_frequent = is_frequent};
}

void ArcPolicy::OnTouch(std::span<const BlockId> run, const TouchContext& context) {
  // That a request ended is no second use of its tip.
  if (context.end_reason != protocol::EndReason::kUnknown) return;
  use_count_ += run.size();
  uint64_t order = use_count_;  // tail first, as in LruPolicy
  for (const BlockId id : run) {
    BlockState& state = states_[id];
    const bool is_candidate = ListOf(state).Contains(id);
    if (is_candidate) ListOf(state).Remove(id);
    recent_count_ -= state.is_frequent ? 0 : 1;
    state.is_frequent = true;
    state.rank.order = order--;
    if (is_candidate) frequent_.Add(id, state.rank);
  }
}

void ArcPolicy::OnErase(BlockId id) {
  const BlockState& state = states_[id];
  TERRACE_CHECK(state.is_frequent || recent_count_ > 0, "what was used once is counted");
  recent_count_ -= state.is_frequent ? 0 : 1;
  (state.is_frequent ? frequent_ghosts_ : recent_ghosts_).Add(state.key);
  // Used once, resident or not: at most the capacity; all ghosts: as much again.
  recent_ghosts_.TrimTo(capacity_blocks_ - std::min(recent_count_, capacity_blocks_));
  frequent_ghosts_.TrimTo(capacity_blocks_ -
                          std::min<size_t>(recent_ghosts_.count(), capacity_blocks_));
}

void ArcPolicy::OnCandidate(BlockId id) { ListOf(states_[id]).Add(id, states_[id].rank); }

void ArcPolicy::OnHeld(BlockId id) { ListOf(states_[id]).Remove(id); }

BlockId ArcPolicy::Victim() const {
  const BlockId recent = recent_.first();
  const BlockId frequent = frequent_.first();
  if (recent == kBlockNone || frequent == kBlockNone) {
    return recent == kBlockNone ? frequent : recent;
  }
  const uint8_t recent_priority = states_[recent].rank.priority;
  const uint8_t frequent_priority = states_[frequent].rank.priority;
  if (recent_priority != frequent_priority) {
    return recent_priority < frequent_priority ? recent : frequent;
  }
  return recent_count_ > recent_target_ ? recent : frequent;
}

void ArcPolicy::SetPriority(BlockId id, uint8_t priority) {
  BlockState& state = states_[id];
  state.rank.priority = priority;
  if (ListOf(state).Contains(id)) ListOf(state).Change(id, state.rank);
}

}  // namespace terrace

#include "daemon/policy/eviction/s3fifo.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint32_t kSmallDivisor = 10;
constexpr uint8_t kUsesMax = 3;
constexpr uint8_t kUsesToStay = 2;

}  // namespace

S3FifoPolicy::S3FifoPolicy(uint32_t capacity_blocks)
    : small_count_max_(std::max(capacity_blocks / kSmallDivisor, 1u)),
      main_count_max_(std::max(capacity_blocks - capacity_blocks / kSmallDivisor, 1u)) {}

void S3FifoPolicy::OnInsert(BlockId id, const BlockTraits& traits, uint64_t) {
  if (id >= states_.size()) states_.resize(id + 1);
  const bool is_known = ghosts_.Remove(traits.key);
  states_[id] = {.key = traits.key, .rank = {traits.priority, ++stamp_}, .is_small = !is_known};
  small_count_ += is_known ? 0 : 1;
}

void S3FifoPolicy::OnTouch(std::span<const BlockId> run, const TouchContext& context) {
  // That a request ended is no second use of its tip.
  if (context.end_reason != protocol::EndReason::kUnknown) return;
  for (const BlockId id : run) {
    states_[id].use_count = std::min<uint8_t>(states_[id].use_count + 1, kUsesMax);
  }
}

void S3FifoPolicy::OnErase(BlockId id) {
  if (!states_[id].is_small) return;
  TERRACE_CHECK(small_count_ > 0, "newcomers are counted, held or not");
  --small_count_;
  ghosts_.Add(states_[id].key);
  ghosts_.TrimTo(main_count_max_);
}

void S3FifoPolicy::OnCandidate(BlockId id) { QueueOf(states_[id]).Add(id, states_[id].rank); }

void S3FifoPolicy::OnHeld(BlockId id) { QueueOf(states_[id]).Remove(id); }

// To the end of the main queue.
void S3FifoPolicy::Requeue(BlockId id) const {
  BlockState& state = states_[id];
  QueueOf(state).Remove(id);
  if (state.is_small) {
    state.is_small = false;
    state.use_count = 0;
    TERRACE_CHECK(small_count_ > 0, "newcomers are counted, held or not");
    --small_count_;
  } else {
    TERRACE_CHECK(state.use_count > 0, "the main queue passes over what was used, once a use");
    --state.use_count;
  }
  state.rank.order = ++stamp_;
  main_.Add(id, state.rank);
}

BlockId S3FifoPolicy::Victim() const {
  while (true) {
    const BlockId small = small_.first();
    const BlockId main = main_.first();
    if (small == kBlockNone && main == kBlockNone) return kBlockNone;
    bool is_small_next = main == kBlockNone || small_count_ >= small_count_max_;
    if (small == kBlockNone) is_small_next = false;
    if (small != kBlockNone && main != kBlockNone &&
        states_[small].rank.priority != states_[main].rank.priority) {
      is_small_next = states_[small].rank.priority < states_[main].rank.priority;
    }
    const BlockId next = is_small_next ? small : main;
    if (states_[next].use_count < (is_small_next ? kUsesToStay : 1)) return next;
    Requeue(next);
  }
}

void S3FifoPolicy::SetPriority(BlockId id, uint8_t priority) {
  BlockState& state = states_[id];
  state.rank.priority = priority;
  if (QueueOf(state).Contains(id)) QueueOf(state).Change(id, state.rank);
}

}  // namespace terrace

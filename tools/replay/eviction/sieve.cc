#include "tools/replay/eviction/sieve.h"

#include <algorithm>

namespace terrace::tools {

void SievePolicy::OnInsert(BlockId id, const BlockTraits& traits, uint64_t) {
  RankOf(id) = {traits.priority, hand_ / kLap * kLap + ++insert_count_};
}

void SievePolicy::OnTouch(std::span<const BlockId> run, const TouchContext& context) {
  // That a request ended is no second use of its tip.
  if (context.end_reason != protocol::EndReason::kUnknown) return;
  for (const BlockId id : run) {
    CandidateHeap::Rank& rank = RankOf(id);
    const uint64_t place = rank.order % kLap;
    const uint64_t next_lap = hand_ / kLap + (place > hand_ % kLap ? 0 : 1);
    rank.order = (next_lap + 1) * kLap + place;
    Resort(id);
  }
}

void SievePolicy::OnErase(BlockId id) {
  const CandidateHeap::Rank rank = RankOf(id);
  const bool was_taken = Victim() == kBlockNone || rank < RankOf(Victim());
  if (!was_taken) return;
  hand_ = std::max<uint64_t>(hand_, rank.order);
  // Behind the newest the hand starts again at the oldest, whatever comes meanwhile.
  if (hand_ % kLap == insert_count_) hand_ = (hand_ / kLap + 1) * kLap;
}

}  // namespace terrace::tools

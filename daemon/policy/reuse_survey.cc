#include "daemon/policy/reuse_survey.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint32_t kLearnedPerLeave = 128;
constexpr uint64_t kWaitedMinUs = 1;

}  // namespace

void ReuseSurvey::OnInsert(BlockId id, const BlockKey& key, uint64_t now_us) {
  seen_.Reach(id);
  seen_[id] = {.fingerprint = key.low};
  EndWait(key.low, now_us);
}

void ReuseSurvey::OnTouch(std::span<const BlockId> run, uint64_t now_us) {
  for (const BlockId id : run) {
    if (!seen_[id].is_watched) continue;
    seen_[id].is_watched = false;
    EndWait(seen_[id].fingerprint, now_us);
  }
}

void ReuseSurvey::OnLeave(BlockId id, const ReuseTraits& traits, uint64_t now_us) {
  Seen& seen = seen_[id];
  const auto place = static_cast<uint32_t>(watched_count_ % kWatchedMax);
  if (waiting_.contains(seen.fingerprint)) return;  // it left before, and was not used since
  ++watched_count_;
  if (place == watched_.size()) {
    watched_.emplace_back();
  } else if (watched_[place].waited_us == 0) {
    waiting_.erase(watched_[place].fingerprint);
  }
  watched_[place] = {.left_us = now_us, .fingerprint = seen.fingerprint, .traits = traits};
  waiting_[seen.fingerprint] = place;
  TERRACE_CHECK(waiting_.size() <= watched_.size(), "who waits has a place in the ring, its own");
  seen.is_watched = true;
  LearnSome(now_us);
}

void ReuseSurvey::EndWait(uint64_t fingerprint, uint64_t now_us) {
  const auto found = waiting_.find(fingerprint);
  if (found == waiting_.end()) return;
  Watched& watched = watched_[found->second];
  watched.waited_us = std::max(now_us - std::min(now_us, watched.left_us), kWaitedMinUs);
  waiting_.erase(found);
}

void ReuseSurvey::LearnSome(uint64_t now_us) {
  for (uint32_t i = 0; i < kLearnedPerLeave; ++i) {
    const Watched& watched = watched_[next_learned_];
    const bool has_come = watched.waited_us != 0;
    model_.Observe(watched.traits, has_come ? watched.waited_us : now_us - watched.left_us,
                   has_come ? HazardModel::Outcome::kUsed : HazardModel::Outcome::kWaits);
    if (++next_learned_ < watched_.size()) continue;
    next_learned_ = 0;
    model_.Fit();
    break;
  }
}

}  // namespace terrace

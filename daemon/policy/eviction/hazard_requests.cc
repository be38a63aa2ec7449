#include "daemon/policy/eviction/hazard_requests.h"

#include <algorithm>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr float kReasonsRemembered = 64;  // requests

}  // namespace

void HazardRequests::Begin(uint64_t now_us) {
  TERRACE_CHECK(!has_open(), "one is open at a time: nobody would end the other");
  if (free_.empty()) {
    open_.request = count_++;
    requests_.Reach(open_.request);
  } else {
    open_.request = free_.back();
    free_.pop_back();
  }
  requests_[open_.request] = {.time_us = now_us, .is_open = true};
}

void HazardRequests::Tell(std::span<const BlockKey> keys) {
  keys_.assign(keys.begin(), keys.end());
  open_.told_count = static_cast<uint32_t>(keys.size());
  open_.arrived_count = 0;
}

HazardRequests::Ongoing HazardRequests::Close() { return std::exchange(open_, {}); }

bool HazardRequests::MayGoOn(const Ongoing& closed) const {
  return !closed.are_left() && closed.more_count > 0 && !requests_[closed.request].is_ended;
}

std::optional<HazardRequests::Ongoing> HazardRequests::Pause(Ongoing closed) {
  closed.told_count = closed.arrived_count = 0;
  paused_.push_back(closed);
  if (paused_.size() <= kPausedMax) return std::nullopt;
  return TakePaused(paused_.front().request);
}

std::optional<HazardRequests::Ongoing> HazardRequests::TakePaused(uint32_t request) {
  const auto found = std::ranges::find(paused_, request, &Ongoing::request);
  if (found == paused_.end()) return std::nullopt;
  const Ongoing paused = *found;
  paused_.erase(found);
  return paused;
}

void HazardRequests::End(uint32_t request) {
  HazardRequest& ended = requests_[request];
  ended.is_open = false;
  for (uint8_t reason = 0; reason < reason_shares_.size(); ++reason) {
    const float is_it = ended.reason == reason ? 1 : 0;
    reason_shares_[reason] += (is_it - reason_shares_[reason]) / kReasonsRemembered;
  }
  if (ended.block_count == 0) free_.push_back(request);
}

void HazardRequests::MoveBlock(uint32_t from, uint32_t to) {
  if (from == to) return;
  if (from != kNone) {
    HazardRequest& old = requests_[from];
    TERRACE_CHECK(old.block_count > 0, "a request is free when its last block has left");
    if (--old.block_count == 0 && !old.is_open) free_.push_back(from);
  }
  if (to != kNone) ++requests_[to].block_count;
}

}  // namespace terrace

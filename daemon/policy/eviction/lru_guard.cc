#include "daemon/policy/eviction/lru_guard.h"

#include <algorithm>
#include <bit>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr double kAllowance = 0.004;         // hits, per use
constexpr double kCreditPerBlock = 0.1;      // hits, per watched block: at least so much ...
constexpr double kCreditRequests = 16;       // ... or so many average requests
constexpr double kTrustShare = 0.05;         // of the credit: enough to be trusted again
constexpr double kShareOfOneRequest = 0.05;  // in the average length

}  // namespace

LruGuard::LruGuard(uint32_t capacity_blocks)
    : slots_(std::bit_ceil(4 * std::min(capacity_blocks, kSampledMax) + 4), kNone),
      hash_(slots_.size()),
      capacity_blocks_(capacity_blocks) {
  account_ = CreditMax();
}

double LruGuard::CreditMax() const {
  return std::max(kCreditPerBlock * std::min(count_max(), kSampledMax),
                  kCreditRequests * request_blocks_ / (mask_ + 1));
}

uint32_t LruGuard::SlotOf(uint32_t fingerprint) const {
  const auto slot_mask = static_cast<uint32_t>(slots_.size() - 1);
  uint32_t slot = hash_.PlaceOf(fingerprint);
  while (slots_[slot] != kNone && entries_[slots_[slot]].fingerprint != fingerprint) {
    slot = (slot + 1) & slot_mask;
  }
  return slot;
}

void LruGuard::Unlink(uint32_t entry) {
  const Entry& e = entries_[entry];
  (e.newer == kNone ? newest_ : entries_[e.newer].older) = e.older;
  (e.older == kNone ? oldest_ : entries_[e.older].newer) = e.newer;
}

void LruGuard::LinkNewest(uint32_t entry) {
  entries_[entry].newer = kNone;
  entries_[entry].older = newest_;
  (newest_ == kNone ? oldest_ : entries_[newest_].newer) = entry;
  newest_ = entry;
}

void LruGuard::Evict(uint32_t entry) {
  Unlink(entry);
  // Close the gap in the run of slots, so that no search ends at it.
  const auto slot_mask = static_cast<uint32_t>(slots_.size() - 1);
  uint32_t gap = SlotOf(entries_[entry].fingerprint);
  TERRACE_CHECK(slots_[gap] == entry, "a search for an entry ends at it, whoever left before");
  slots_[gap] = kNone;
  for (uint32_t slot = (gap + 1) & slot_mask; slots_[slot] != kNone;
       slot = (slot + 1) & slot_mask) {
    const uint32_t moved = slots_[slot];
    slots_[slot] = kNone;
    slots_[SlotOf(entries_[moved].fingerprint)] = moved;
  }
  (void)entries_.Give(entry);
}

void LruGuard::OnUse(uint32_t fingerprint, Outcome outcome) {
  if (outcome == Outcome::kStored && IsToldOf(fingerprint)) return;
  // Of a request larger than all that is watched the head is enough.
  if (uses_.size() >= std::min(count_max(), kSampledMax)) return;
  if (outcome == Outcome::kMiss && next_told_ == kNoneTold) next_told_ = uses_.size();
  uses_.push_back({fingerprint, outcome});
}

bool LruGuard::IsToldOf(uint32_t fingerprint) {
  for (size_t i = next_told_; i < uses_.size() && uses_[i].outcome == Outcome::kMiss; ++i) {
    if (uses_[i].fingerprint != fingerprint) continue;
    next_told_ = i + 1;
    return true;
  }
  return false;
}

void LruGuard::OnRequest(uint32_t block_count) {
  request_blocks_ += (block_count - request_blocks_) * kShareOfOneRequest;
  OnPause();
}

void LruGuard::OnPause() {
  for (const Use& use : uses_) {
    if (IsSampled(use.fingerprint)) Settle(use);
  }
  for (size_t i = uses_.size(); i-- > 0;) {
    if (IsSampled(uses_[i].fingerprint)) MakeNewest(uses_[i]);
  }
  while (entries_.count() > kSampledMax) HalveSample();
  while (entries_.count() > count_max()) Evict(oldest_);
  uses_.clear();
  next_told_ = kNoneTold;
}

void LruGuard::Settle(const Use& use) {
  const uint32_t known = slots_[SlotOf(use.fingerprint)];
  const bool is_lru_hit = known != kNone;
  if (use.outcome == Outcome::kStored && is_lru_hit && entries_[known].is_awaited) return;
  const double earned = (use.outcome == Outcome::kHit ? 1 : 0) - (is_lru_hit ? 1 : 0);
  account_ = std::min(account_ + kAllowance + earned, CreditMax());
  if (account_ < 0) is_overdrawn_ = true;
  if (account_ > kTrustShare * CreditMax()) is_overdrawn_ = false;
}

void LruGuard::MakeNewest(const Use& use) {
  const uint32_t slot = SlotOf(use.fingerprint);
  if (slots_[slot] != kNone) {
    Unlink(slots_[slot]);
  } else {
    slots_[slot] = entries_.Take({.fingerprint = use.fingerprint});
  }
  entries_[slots_[slot]].is_awaited = use.outcome == Outcome::kMiss;
  LinkNewest(slots_[slot]);
}

void LruGuard::OnFull(uint32_t resident_count) {
  capacity_blocks_ = std::max(resident_count, 1u);
  while (entries_.count() > count_max()) Evict(oldest_);
}

void LruGuard::HalveSample() {
  mask_ = mask_ * 2 + 1;
  account_ /= 2;
  for (uint32_t entry = oldest_; entry != kNone;) {
    const uint32_t newer = entries_[entry].newer;
    if (!IsSampled(entries_[entry].fingerprint)) Evict(entry);
    entry = newer;
  }
}

}  // namespace terrace

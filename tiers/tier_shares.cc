#include "tiers/tier_shares.h"

#include <utility>

#include "terrace/check.h"

namespace terrace {

TierShares::TierShares(Lending lending, uint64_t capacity_bytes, std::vector<Share> shares)
    : lending_(lending), capacity_bytes_(capacity_bytes), domains_(shares.size()) {
  Set(capacity_bytes, shares);
}

void TierShares::Set(uint64_t capacity_bytes, const std::vector<Share>& shares) {
  TERRACE_CHECK(shares.size() == domains_.size(), "domains come and go with a restart");
  uint64_t guaranteed_bytes = 0;
  capacity_bytes_ = capacity_bytes;
  for (size_t i = 0; i < shares.size(); ++i) {
    TERRACE_CHECK(shares[i].guaranteed_bytes <= shares[i].max_bytes,
                  "who is guaranteed more than its limit waits for what it may not take");
    guaranteed_bytes += shares[i].guaranteed_bytes;
    domains_[i].share = shares[i];
  }
  TERRACE_CHECK(guaranteed_bytes <= capacity_bytes, "what is not there cannot be guaranteed");
}

void TierShares::SetHeld(uint32_t domain, uint64_t held_bytes) {
  Domain& d = domains_[domain];
  if (held_bytes > d.held_bytes) d.ask_end_us = 0;
  d.held_bytes = held_bytes;
}

void TierShares::SetLeaving(uint32_t domain, uint64_t leaving_bytes) {
  domains_[domain].leaving_bytes = leaving_bytes;
}

uint64_t TierShares::held_bytes_total() const {
  uint64_t total_bytes = 0;
  for (const Domain& d : domains_) total_bytes += d.held_bytes;
  return total_bytes;
}

uint64_t TierShares::KeptFrom(uint32_t domain, uint64_t byte_count, uint64_t now_us) const {
  const Domain& taker = domains_[domain];
  const bool takes_guaranteed = taker.IsWithinGuarantee(byte_count);
  uint64_t kept_bytes = 0;
  for (const Domain& other : domains_) {
    if (&other == &taker) continue;
    if (lending_ == Lending::kNothing) {
      kept_bytes += other.kept_free_bytes();
      continue;
    }
    const uint64_t asked_bytes = other.asked_bytes(now_us);
    const bool asks_guaranteed = other.IsWithinGuarantee(asked_bytes);
    const bool is_first = asks_guaranteed == takes_guaranteed
                              ? other.share.priority > taker.share.priority
                              : asks_guaranteed;
    if (is_first) kept_bytes += asked_bytes;
  }
  return kept_bytes;
}

ShareStats TierShares::stats(uint32_t domain, uint64_t now_us) const {
  const Domain& d = domains_[domain];
  return {.guaranteed_bytes = d.share.guaranteed_bytes,
          .max_bytes = d.share.max_bytes,
          .held_bytes = d.held_bytes,
          .borrowed_bytes = d.borrowed_bytes(),
          .leaving_bytes = d.leaving_bytes,
          .asked_bytes = d.asked_bytes(now_us)};
}

bool TierShares::MayTake(uint32_t domain, uint64_t byte_count, uint64_t now_us) const {
  const Domain& d = domains_[domain];
  if (d.held_bytes + byte_count > d.share.max_bytes) return false;
  return held_bytes_total() + byte_count + KeptFrom(domain, byte_count, now_us) <= capacity_bytes_;
}

void TierShares::Ask(uint32_t domain, uint64_t byte_count, uint64_t now_us) {
  Domain& d = domains_[domain];
  if (d.held_bytes + byte_count > d.share.max_bytes) return;  // room would not help
  if (d.asked_bytes(now_us) == 0) d.ask_began_us = now_us;
  d.ask_bytes = byte_count;
  d.ask_end_us = now_us + kAskUs;
}

bool TierShares::IsComing(uint32_t domain, uint64_t now_us) const {
  const Domain& d = domains_[domain];
  const uint64_t asked_bytes = d.asked_bytes(now_us);
  return asked_bytes > 0 && d.IsWithinGuarantee(asked_bytes) &&
         now_us < d.ask_began_us + kPatienceUs;
}

bool TierShares::IsToGive(uint32_t domain, uint64_t now_us) const {
  const Domain& d = domains_[domain];
  return d.staying_bytes() > d.share.max_bytes || Giver(now_us) == &d;
}

void TierShares::Excuse(uint32_t domain, uint64_t now_us) {
  domains_[domain].excused_until_us = now_us + kAskUs;
}

const TierShares::Domain* TierShares::Giver(uint64_t now_us) const {
  uint64_t wanted_bytes = 0;  // of all, when what leaves has left, and who asks by right has it
  const Domain* would_borrow = nullptr;
  for (const Domain& d : domains_) {
    wanted_bytes += d.staying_bytes();
    const uint64_t asked_bytes = d.asked_bytes(now_us);
    if (asked_bytes == 0) continue;
    if (d.IsWithinGuarantee(asked_bytes)) {
      wanted_bytes += asked_bytes;
    } else if (would_borrow == nullptr || d.share.priority > would_borrow->share.priority) {
      would_borrow = &d;
    }
  }
  if (wanted_bytes > capacity_bytes_) return Borrower(UINT32_MAX, now_us);
  if (would_borrow == nullptr) return nullptr;
  wanted_bytes += would_borrow->ask_bytes;
  return wanted_bytes > capacity_bytes_ ? Borrower(would_borrow->share.priority, now_us) : nullptr;
}

const TierShares::Domain* TierShares::Borrower(uint32_t priority, uint64_t now_us) const {
  const Domain* first = nullptr;
  for (const Domain& d : domains_) {
    if (d.borrowed_bytes() == 0 || d.share.priority >= priority || now_us < d.excused_until_us) {
      continue;
    }
    const bool is_before =
        first == nullptr || d.share.priority < first->share.priority ||
        (d.share.priority == first->share.priority && d.borrowed_bytes() > first->borrowed_bytes());
    if (is_before) first = &d;
  }
  return first;
}

}  // namespace terrace

#include "tiers/tier_shares.h"

#include <tuple>

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

ShareStats TierShares::stats(uint32_t domain, uint64_t now_us) const {
  const Domain& d = domains_[domain];
  return {.guaranteed_bytes = d.share.guaranteed_bytes,
          .max_bytes = d.share.max_bytes,
          .held_bytes = d.held_bytes,
          .borrowed_bytes = d.borrowed_bytes(),
          .leaving_bytes = d.leaving_bytes,
          .asked_bytes = d.asked_bytes(now_us),
          .above_bytes = AboveBytes(domain, now_us)};
}

// What goes to another who asks for it is not above anything.
uint64_t TierShares::AboveBytes(uint32_t domain, uint64_t now_us) const {
  const Domain& d = domains_[domain];
  const uint64_t beyond_limit = d.held_bytes - std::min(d.held_bytes, d.share.max_bytes);
  const uint64_t held_bytes = held_bytes_total();
  if (held_bytes <= capacity_bytes_) return beyond_limit;
  const uint64_t target_bytes = TargetOf(domain, d.asked_bytes(now_us), now_us);
  const uint64_t to_give = d.held_bytes - std::min(d.held_bytes, target_bytes);
  return std::max(beyond_limit, std::min(to_give, held_bytes - capacity_bytes_));
}

uint64_t TierShares::TargetOf(uint32_t domain, uint64_t asked_bytes, uint64_t now_us) const {
  struct Claim {
    uint32_t priority;
    bool is_asked;  // not held yet
    uint64_t byte_count;
    uint32_t domain;
  };
  std::vector<Claim> claims;  // beyond guarantees
  uint64_t target_bytes = 0;
  uint64_t left_bytes = capacity_bytes_;
  for (uint32_t i = 0; i < domains_.size(); ++i) {
    const Domain& d = domains_[i];
    const uint64_t asked = i == domain ? asked_bytes : d.asked_bytes(now_us);
    const uint64_t held = std::min(d.staying_bytes(), d.share.max_bytes);
    const uint64_t wanted = std::min(held + asked, d.share.max_bytes);
    const uint64_t guaranteed = d.share.guaranteed_bytes;
    const uint64_t by_right =
        lending_ == Lending::kNothing ? guaranteed : std::min(wanted, guaranteed);
    if (i == domain) target_bytes = by_right;
    left_bytes -= by_right;
    const uint64_t borrowed = held - std::min(held, by_right);
    const uint32_t priority = now_us < d.excused_until_us ? UINT32_MAX : d.share.priority;
    claims.push_back({priority, false, borrowed, i});
    claims.push_back({d.share.priority, true, wanted - std::min(wanted, by_right + borrowed), i});
  }
  std::ranges::stable_sort(claims, [](const Claim& a, const Claim& b) {
    if (a.priority != b.priority) return a.priority > b.priority;
    return std::tie(a.is_asked, a.byte_count) < std::tie(b.is_asked, b.byte_count);
  });
  for (const Claim& claim : claims) {
    const uint64_t given_bytes = std::min(claim.byte_count, left_bytes);
    left_bytes -= given_bytes;
    if (claim.domain == domain) target_bytes += given_bytes;
  }
  return target_bytes;
}

bool TierShares::MayTake(uint32_t domain, uint64_t byte_count, uint64_t now_us) const {
  const Domain& d = domains_[domain];
  if (d.held_bytes + byte_count > d.share.max_bytes) return false;
  if (held_bytes_total() + byte_count > capacity_bytes_) return false;
  return TargetOf(domain, byte_count, now_us) >= d.staying_bytes() + byte_count;
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
  return asked_bytes > 0 && d.held_bytes + asked_bytes <= d.share.guaranteed_bytes &&
         now_us < d.ask_began_us + kPatienceUs;
}

bool TierShares::IsToGive(uint32_t domain, uint64_t now_us) const {
  const Domain& d = domains_[domain];
  return now_us >= d.excused_until_us &&
         d.staying_bytes() > TargetOf(domain, d.asked_bytes(now_us), now_us);
}

void TierShares::Excuse(uint32_t domain, uint64_t now_us) {
  domains_[domain].excused_until_us = now_us + kAskUs;
}

}  // namespace terrace

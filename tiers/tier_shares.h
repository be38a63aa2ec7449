// TierShares: how much each domain may hold of a tier that all of them fill: its guarantee, its
// limit, and who gives back first. It counts and decides; whoever fills the tier asks it before it
// takes, and looks now and then whether it is to give.
//
// The one idea is the target: what a domain is to have when all that was asked for has moved. First
// everybody has what it holds or asks for within its guarantee. What is left goes to the highest
// priority first, there to who holds it already, the one that borrows least before the others, and
// then to who asks. Who holds more than its target gives; who stays within it takes. So a borrower
// gives to who asks within its guarantee, or above it in priority, and what becomes free is kept
// for them. With Lending::kNothing a whole guarantee is kept free, for what nobody can give back.
//
// Pure. THREADING: one thread. A question costs a sort of the domains.
// LIMITS: an ask that is not repeated is forgotten after kAskUs; room is said to come for
// kPatienceUs. INVARIANT: nobody is let beyond its limit, or beyond the capacity.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace terrace {

// What a domain has of a tier, and what it may have.
struct ShareStats {
  uint64_t guaranteed_bytes = 0, max_bytes = 0;
  uint64_t held_bytes = 0;
  uint64_t borrowed_bytes = 0;  // beyond the guarantee, without what is on its way out
  uint64_t leaving_bytes = 0;
  uint64_t asked_bytes = 0;  // wanted, and not there yet
  uint64_t above_bytes = 0;  // of what it holds: beyond its limit, or its part beyond the capacity
};

class TierShares {
 public:
  static constexpr uint64_t kAskUs = 3'000'000;
  static constexpr uint64_t kPatienceUs = 10'000'000;

  enum class Lending : uint8_t { kNothing, kAll };
  struct Share {
    uint64_t guaranteed_bytes = 0;  // ≤ max_bytes
    uint64_t max_bytes = 0;
    uint32_t priority = 0;  // of borrowers the lower gives first
  };
  // REQUIRES: at every time guarantees sum to no more than the capacity.
  TierShares(Lending lending, uint64_t capacity_bytes, std::vector<Share> shares);
  // From now on; as many domains as before.
  void Set(uint64_t capacity_bytes, const std::vector<Share>& shares);

  // What the domain holds now, and what of that is on its way out. More than before ends its ask.
  void SetHeld(uint32_t domain, uint64_t held_bytes);
  void SetLeaving(uint32_t domain, uint64_t leaving_bytes);

  bool MayTake(uint32_t domain, uint64_t byte_count, uint64_t now_us) const;
  // It would take so much and may not. REQUIRES: !MayTake.
  void Ask(uint32_t domain, uint64_t byte_count, uint64_t now_us);
  // What it has asked for is within its guarantee, and has not been waited for in vain for too
  // long: it is worth waiting for.
  bool IsComing(uint32_t domain, uint64_t now_us) const;
  // It holds more than its target, beside what is leaving already.
  bool IsToGive(uint32_t domain, uint64_t now_us) const;
  // It has nothing that it could give: others are to, for kAskUs.
  void Excuse(uint32_t domain, uint64_t now_us);

  uint64_t max_bytes(uint32_t domain) const { return domains_[domain].share.max_bytes; }
  ShareStats stats(uint32_t domain, uint64_t now_us) const;
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t held_bytes_total() const;

 private:
  struct Domain {
    Share share;
    uint64_t held_bytes = 0;
    uint64_t leaving_bytes = 0;
    uint64_t ask_bytes = 0;
    uint64_t ask_began_us = 0;
    uint64_t ask_end_us = 0;
    uint64_t excused_until_us = 0;

    uint64_t staying_bytes() const { return held_bytes - std::min(held_bytes, leaving_bytes); }
    uint64_t borrowed_bytes() const {
      return staying_bytes() - std::min(staying_bytes(), share.guaranteed_bytes);
    }
    uint64_t asked_bytes(uint64_t now_us) const { return now_us < ask_end_us ? ask_bytes : 0; }
  };
  uint64_t AboveBytes(uint32_t domain, uint64_t now_us) const;
  // That of `domain`, if it asks for `asked_bytes`.
  uint64_t TargetOf(uint32_t domain, uint64_t asked_bytes, uint64_t now_us) const;

  const Lending lending_;
  uint64_t capacity_bytes_;
  std::vector<Domain> domains_;
};

}  // namespace terrace

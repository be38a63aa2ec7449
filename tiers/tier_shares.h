// TierShares: how much each domain may hold of a tier that all of them fill: its guarantee, its
// limit, and who gives back first. It counts and decides; whoever fills the tier asks it before it
// takes, and looks now and then whether it is to give.
//
// A domain borrows what it holds beyond its guarantee. With Lending::kAll that may be what another
// is guaranteed and does not hold: who wants that back asks, and the borrower of the lowest
// priority, of several the one that has borrowed most, is to give. A domain that would borrow
// itself has only borrowers of a lower priority give. What becomes free is kept for who asks. With
// Lending::kNothing a guarantee is kept free instead, for what nobody can give back.
//
// Pure. THREADING: one thread.
// LIMITS: an ask that is not repeated is forgotten after kAskUs; room is said to come for
// kPatienceUs. INVARIANT: nobody is let beyond its limit, or beyond the capacity.
#pragma once

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
  // It holds more than its limit, or is the one to give to who asks, more than is leaving already.
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

    uint64_t staying_bytes() const {
      return held_bytes > leaving_bytes ? held_bytes - leaving_bytes : 0;
    }
    uint64_t borrowed_bytes() const {
      const uint64_t staying = staying_bytes();
      return staying > share.guaranteed_bytes ? staying - share.guaranteed_bytes : 0;
    }
    uint64_t kept_free_bytes() const {
      return share.guaranteed_bytes > held_bytes ? share.guaranteed_bytes - held_bytes : 0;
    }
    uint64_t asked_bytes(uint64_t now_us) const { return now_us < ask_end_us ? ask_bytes : 0; }
    bool IsWithinGuarantee(uint64_t byte_count) const {
      return held_bytes + byte_count <= share.guaranteed_bytes;
    }
  };
  // What others ask for and come before `domain` with, if that takes `byte_count` more.
  uint64_t KeptFrom(uint32_t domain, uint64_t byte_count, uint64_t now_us) const;
  // Who is to give next; null: nobody, or enough is leaving.
  const Domain* Giver(uint64_t now_us) const;
  // Of the borrowers below `priority` who comes first.
  const Domain* Borrower(uint32_t priority, uint64_t now_us) const;

  const Lending lending_;
  uint64_t capacity_bytes_;
  std::vector<Domain> domains_;
};

}  // namespace terrace

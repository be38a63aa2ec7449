#include "daemon/residency/segment_ledger.h"

#include "terrace/check.h"

namespace terrace {

void SegmentLedger::Hold(Domain& domain, Segment& segment, Use use) {
  TERRACE_CHECK(segment.use == Use::kNone && use != Use::kNone, "a segment is taken once");
  segment.use = use;
  ++domain.held_count;
  ++held_total_;
}

void SegmentLedger::LetGo(Domain& domain, Segment& segment) {
  TERRACE_CHECK(segment.use != Use::kNone && domain.held_count > 0 && held_total_ > 0,
                "a segment is let go once: else two domains have its memory");
  segment.use = Use::kNone;
  --domain.held_count;
  --held_total_;
}

bool SegmentLedger::MayTakeOne(const Domain& domain) const {
  return held_total_ + KeptFree(&domain) < options_.segments_total;
}

uint32_t SegmentLedger::KeptFree(const Domain* but_of) const {
  uint32_t count = 0;
  for (const Domain& other : domains_) count += &other == but_of ? 0 : other.kept_free();
  return count;
}

uint32_t SegmentLedger::LeavingCount() const {
  uint32_t count = 0;
  for (const Domain& domain : domains_) count += domain.draining_count;
  return count;
}

uint32_t SegmentLedger::Excess() const {
  const uint32_t wanted = held_total_ - LeavingCount() + KeptFree(nullptr);
  return wanted - std::min(wanted, options_.segments_total);
}

SegmentLedger::Domain* SegmentLedger::Borrower(Giving giving, const Domain* taker) {
  const bool is_any = taker == nullptr || taker->is_below();
  Domain* borrower = nullptr;
  for (Domain& domain : domains_) {
    if (domain.borrowed() == 0 || (giving == Giving::kNothing && domain.draining_count > 0))
      continue;
    if (!is_any && domain.priority() >= taker->priority()) continue;
    const bool is_first =
        borrower == nullptr || domain.priority() < borrower->priority() ||
        (domain.priority() == borrower->priority() && domain.borrowed() > borrower->borrowed());
    if (is_first) borrower = &domain;
  }
  return borrower;
}

uint32_t SegmentLedger::EmptiestSegment(const Domain& domain, uint64_t given_up_since_us) {
  uint32_t emptiest = kSegmentNone;
  uint32_t fewest = UINT32_MAX;
  for (uint32_t segment = 0; segment < domain.segments.size(); ++segment) {
    if (!domain.segments[segment].MayGo(given_up_since_us)) continue;
    const uint32_t used_count = domain.domain->slots.slots_used_in(segment);
    if (used_count < fewest) {
      fewest = used_count;
      emptiest = segment;
    }
  }
  return emptiest;
}

uint32_t SegmentLedger::LongestGivenUp(const Domain& domain) {
  uint32_t longest = kSegmentNone;
  for (uint32_t segment = 0; segment < domain.segments.size(); ++segment) {
    const Segment& s = domain.segments[segment];
    if (s.use != Use::kPopulated) continue;
    if (longest == kSegmentNone || s.given_up_us < domain.segments[longest].given_up_us) {
      longest = segment;
    }
  }
  return longest;
}

uint32_t SegmentLedger::populated_count(uint32_t domain_index) const {
  return domains_[domain_index].held_count - domains_[domain_index].populating_count;
}

uint32_t SegmentLedger::borrowed_count(uint32_t domain_index) const {
  const Domain& domain = domains_[domain_index];
  return domain.held_count - std::min(domain.held_count, domain.guaranteed());
}

}  // namespace terrace

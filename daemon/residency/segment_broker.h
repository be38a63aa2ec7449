// SegmentBroker: which domain's arena has how much memory. It populates segments ahead of need, up
// to segments_total over all domains. What no domain is guaranteed goes to whoever comes first.
//
// A guarantee is kept free for its domain until that holds it: memory that is lent comes back when
// the borrower's clients have let go of it, and a client that is stopped, or means harm, never
// does. Only so much of a guarantee as its domain says (segments_lent_max) is lent meanwhile; a
// domain below its guarantee takes that back. What all hold beyond segments_total, because that was
// lowered or a predecessor had more, is taken back unasked. Of borrowers the one of the lowest
// priority gives first; one that is short has those of a lower one give, beyond its guarantee, too.
//
// Taking back: the borrower's segment that has least in it, or holds what its policy wants gone
// next, is drained (its blocks leave), then every session of that domain unmaps it and says so or
// is proven dead, then its pages are punched, and only then may another domain have them. A segment
// whose blocks are held for so long that another could go instead serves again, without what was
// not held.
//
// THREADING: store thread. INVARIANT: populated + populating + not yet punched + what is kept free
// ≤ segments_total, or what is above it is on its way out.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/block/cache_domain.h"
#include "daemon/block/session_register.h"
#include "daemon/residency/segment_ledger.h"

namespace terrace {

class SegmentBroker {
 public:
  SegmentBroker(const StoreOptions& options, const StoreSeams& seams, SessionRegister& sessions);
  void AddDomain(CacheDomain* domain, Evictor* evictor);

  // A predecessor had populated it. Before the first Step(). None of its domain's leaves
  // before OnAdopted: the table still says what its slots hold.
  void AdoptPopulated(uint32_t domain_index, uint32_t segment);
  void OnAdopted(uint32_t domain_index);

  // Grows, drains and takes back what is due. Called after anything that takes or frees slots.
  void Step();
  // A step is worth trying now: somebody is short, or a drain goes on.
  bool has_work() const;

  // segments_total, or a guarantee, is another than before.
  void OnRetuned();
  void OnPopulated(uint32_t domain_index, uint32_t segment, Status status);
  void OnPunched(uint32_t domain_index, uint32_t segment, Status status);
  void OnRetry(uint32_t domain_index);
  void OnDrainTimer();
  // `session` has no mapping of `segment` any more (kSegmentNone: of any).
  void OnUnmapped(SessionIndex session, uint32_t segment);

  bool is_ready() const;
  const SegmentLedger& ledger() const { return ledger_; }
  // Segments that wait for this session to unmap them.
  uint32_t OwedBy(SessionIndex session) const;

 private:
  using Use = SegmentLedger::Use;
  using DomainRecord = SegmentLedger::Domain;

  void SortByPriority();
  void Grow(DomainRecord& record);
  // How many free segments there should be.
  uint32_t SpareWanted(const DomainRecord& record) const;
  void TellRoom(DomainRecord& record) const;
  void Shrink();
  // Blocks of a draining segment leave now.
  bool IsDropping() const;
  void TakeBack(const DomainRecord& taker);
  // Of all segments so much leaves as `*budget` (SubtreeWalk's) allows; false: no segment of the
  // domain can.
  bool BeginDrain(DomainRecord& record, uint32_t* budget);
  void StepDrain(DomainRecord& record, uint32_t segment, uint32_t* budget);
  void DropSome(DomainRecord& record, uint32_t segment, uint32_t* budget);
  // False: the budget ended first.
  bool DropBehindWalk(DomainRecord& record, SegmentLedger::Segment& segment, uint32_t* budget);
  uint32_t SegmentToDrain(const DomainRecord& record);
  // What was given up before that may be asked again.
  uint64_t GivenUpSince() const;
  static uint32_t VictimsSegment(const DomainRecord& record);
  int64_t ChainsThatGoOn(const DomainRecord& record, uint32_t segment, uint32_t* budget);
  bool GiveUp(DomainRecord& record, uint32_t segment);
  void AwaitDrain(uint64_t period_us);
  void BeginRevoke(DomainRecord& record, uint32_t segment);
  void BeginPunch(DomainRecord& record, uint32_t segment);

  const StoreOptions& options_;
  StoreSeams seams_;
  SessionRegister& sessions_;
  SegmentLedger ledger_;
  std::vector<uint32_t> by_priority_;  // domains, in the order in which they grow
  bool may_be_above_ = true;           // segments_total; false: the ledger has no Excess
  bool has_drain_timer_ = false;
  uint32_t drain_turn_ = 0;   // of all domains' segments: which a drain's step begins with
  uint32_t choice_turn_ = 0;  // the same: which is looked at next, to choose from
  std::vector<SlotRef> scratch_slots_;
};

}  // namespace terrace

// SegmentBroker: which domain's arena has how much memory. It populates segments ahead of need, up
// to segments_total over all domains. What no domain is guaranteed goes to whoever comes first.
//
// A guarantee is kept free for its domain until that holds it: memory that is lent comes back when
// the borrower's clients have let go of it, and a client that is stopped, or means harm, never
// does. Only so much of a guarantee as its domain says (segments_lent_max) is lent meanwhile; a
// domain below its guarantee takes that back.
//
// Taking back: the emptiest segment of the borrower is drained (its blocks leave), then every
// session of that domain unmaps it and says so or is proven dead, then its pages are punched, and
// only then may another domain have them.
//
// THREADING: store thread. INVARIANT: populated + populating + not yet punched + what is kept free
// ≤ segments_total, unless a predecessor has left more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "daemon/block/cache_domain.h"
#include "daemon/block/session_register.h"
#include "daemon/residency/evictor.h"

namespace terrace {

class SegmentBroker {
 public:
  SegmentBroker(const StoreOptions& options, const StoreSeams& seams, SessionRegister& sessions);
  void AddDomain(CacheDomain* domain, Evictor* evictor);

  // A predecessor had populated it. Before the first Step().
  void AdoptPopulated(uint32_t domain_index, uint32_t segment);

  // Grows, drains and takes back what is due. Called after anything that takes or frees slots.
  void Step();
  // A step is worth trying now: somebody is short, or a drain goes on.
  bool has_work() const;

  void OnPopulated(uint32_t domain_index, uint32_t segment, Status status);
  void OnPunched(uint32_t domain_index, uint32_t segment, Status status);
  void OnRetry(uint32_t domain_index);
  void OnDrainTimer();
  // `session` has no mapping of `segment` any more (kSegmentNone: of any).
  void OnUnmapped(SessionIndex session, uint32_t segment);

  bool is_ready() const;
  // Segments with all their pages, those on their way out included.
  uint32_t populated_count(uint32_t domain_index) const;
  // Of those: beyond the guarantee; on their way out.
  uint32_t borrowed_count(uint32_t domain_index) const;
  uint32_t leaving_count(uint32_t domain_index) const {
    return domains_[domain_index].draining_count;
  }
  // Segments that wait for this session to unmap them.
  uint32_t OwedBy(SessionIndex session) const;

 private:
  enum class Use : uint8_t { kNone, kPopulating, kPopulated, kDraining, kRevoking, kPunching };
  struct SegmentRecord {
    Use use = Use::kNone;
    uint32_t drain_chunk = 0;             // while draining: where the next step begins
    std::vector<SessionIndex> mapped_by;  // while revoking: who has not said Unmapped
  };
  struct DomainRecord {
    CacheDomain* domain = nullptr;
    Evictor* evictor = nullptr;
    std::vector<SegmentRecord> segments;
    uint32_t held_count = 0;  // not kNone
    uint32_t populating_count = 0;
    uint32_t draining_count = 0;  // draining, revoking or punching
    bool has_tried = false;       // its first segment came, or failed to
    bool is_growing = false;      // as its policy was told
    bool is_backing_off = false;  // a populate failed; a timer says when to try again
    uint64_t drain_began_us = 0;  // of the segment that began to leave last

    // Of its guarantee, what is not lent and not populated yet.
    uint32_t kept_free() const {
      const uint32_t own =
          domain->options.segments_guaranteed -
          std::min(domain->options.segments_guaranteed, domain->options.segments_lent_max);
      return own - std::min(own, held_count);
    }
  };

  // One more segment takes nothing that is kept for another domain.
  bool MayTakeOne(const DomainRecord& record) const;

  void Grow(DomainRecord& record);
  // How many free segments there should be.
  uint32_t SpareWanted(const DomainRecord& record) const;
  void TellRoom(DomainRecord& record) const;
  void TakeBackFor(const DomainRecord& taker);
  void StepDrain(DomainRecord& record, uint32_t segment);
  void BeginRevoke(DomainRecord& record, uint32_t segment);
  void BeginPunch(DomainRecord& record, uint32_t segment);
  uint32_t EmptiestSegment(const DomainRecord& record) const;

  const StoreOptions& options_;
  StoreSeams seams_;
  SessionRegister& sessions_;
  std::vector<DomainRecord> domains_;
  uint32_t held_total_ = 0;
  bool has_drain_timer_ = false;
  std::vector<SlotRef> scratch_slots_;
};

}  // namespace terrace

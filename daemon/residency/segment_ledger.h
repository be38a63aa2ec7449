// SegmentLedger: which domain has which segments, what of segments_total is kept free for whom, and
// who is to give first. It counts; SegmentBroker acts.
//
// THREADING: store thread. OWNERSHIP: of the counts; segments' pages are the arenas'.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "daemon/block/cache_domain.h"
#include "daemon/block/session_register.h"
#include "daemon/residency/evictor.h"
#include "daemon/residency/subtree_walk.h"

namespace terrace {

class SegmentLedger {
 public:
  enum class Use : uint8_t { kNone, kPopulating, kPopulated, kDraining, kRevoking, kPunching };
  struct Segment {
    Use use = Use::kNone;
    uint32_t drain_chunk = 0;             // while draining: where the next step begins
    uint32_t drain_row = 0;               // and from which slot of those that it lists
    SubtreeWalk drain_walk;               // and what it has begun to drop
    uint64_t progress_us = 0;             // while draining: when something was dropped last
    uint64_t given_up_us = 0;             // when, because what is in it was held; 0: never
    std::vector<SessionIndex> mapped_by;  // while revoking: who has not said Unmapped

    // It is populated, not leaving, and was not given up since.
    bool MayGo(uint64_t given_up_since_us) const {
      return use == Use::kPopulated && (given_up_us == 0 || given_up_us < given_up_since_us);
    }
  };
  struct Domain {
    CacheDomain* domain = nullptr;
    Evictor* evictor = nullptr;
    std::vector<Segment> segments;
    uint32_t held_count = 0;  // not kNone
    uint32_t populating_count = 0;
    uint32_t draining_count = 0;  // draining, revoking or punching
    bool has_tried = false;       // its first segment came, or failed to
    bool is_growing = false;      // as its policy was told
    bool is_backing_off = false;  // a populate failed; a timer says when to try again
    bool has_failed = false;      // the last one did
    bool is_adopting = false;     // a predecessor's slots are not adopted yet
    uint64_t drain_began_us = 0;  // of the segment that began to leave last

    uint32_t guaranteed() const { return domain->options.segments_guaranteed; }
    uint32_t priority() const { return domain->options.borrow_priority; }
    // There is no memory for what it wants: it tries again and again.
    bool is_starved() const { return has_failed && (is_backing_off || populating_count > 0); }
    bool is_below() const { return staying_count() < guaranteed(); }
    // What it will have when all that leaves has left.
    uint32_t staying_count() const { return held_count - draining_count; }
    uint32_t borrowed() const { return staying_count() - std::min(staying_count(), guaranteed()); }
    // Of its guarantee, what is not lent and not populated yet.
    uint32_t kept_free() const {
      const uint32_t own = guaranteed() - std::min(guaranteed(), domain->options.segments_lent_max);
      return own - std::min(own, held_count);
    }
  };

  // `options` outlive this; segments_total may change.
  explicit SegmentLedger(const StoreOptions& options) : options_(options) {}

  std::vector<Domain>& domains() { return domains_; }
  const std::vector<Domain>& domains() const { return domains_; }
  // A segment of no use is one now, or the reverse.
  void Hold(Domain& domain, Segment& segment, Use use);
  void LetGo(Domain& domain, Segment& segment);

  // One more segment takes nothing that is kept for another domain.
  bool MayTakeOne(const Domain& domain) const;
  // Held or kept free beyond segments_total, without what is on its way out.
  uint32_t Excess() const;
  uint32_t LeavingCount() const;
  enum class Giving { kOrNot, kNothing };
  // Who is to give to `taker` (null: to nobody, there is less): of those beyond their guarantee the
  // one of the lowest priority, of several who has most. Of all, or of those that give nothing back
  // yet. Below that of a taker that would borrow itself. Null: nobody.
  Domain* Borrower(Giving giving, const Domain* taker);
  // Of those that MayGo; kSegmentNone: there is none.
  static uint32_t EmptiestSegment(const Domain& domain, uint64_t given_up_since_us);
  // Of those that are populated and not leaving, likewise.
  static uint32_t LongestGivenUp(const Domain& domain);

  // Segments with all their pages, those on their way out included.
  uint32_t populated_count(uint32_t domain_index) const;
  // Of those: beyond the guarantee; on their way out.
  uint32_t borrowed_count(uint32_t domain_index) const;
  uint32_t leaving_count(uint32_t domain_index) const {
    return domains_[domain_index].draining_count;
  }

 private:
  uint32_t KeptFree(const Domain* but_of) const;

  const StoreOptions& options_;
  std::vector<Domain> domains_;
  uint32_t held_total_ = 0;
};

}  // namespace terrace

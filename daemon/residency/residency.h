// Residency: every change of what a block is and where its copies are, by those whom it is of. The
// rooms above ask these, so that phases, counts of children and candidates of the eviction policies
// cannot disagree.
//
// Nothing here evicts to make room: what does not fit is kNoSpace, see evictor.h.
//
// THREADING: store thread.
#pragma once

#include "daemon/residency/block_hints.h"
#include "daemon/residency/block_holds.h"
#include "daemon/residency/block_observers.h"
#include "daemon/residency/candidates.h"
#include "daemon/residency/dram_copies.h"
#include "daemon/residency/lifecycle.h"
#include "daemon/residency/lower_copies.h"
#include "daemon/residency/record_updates.h"
#include "daemon/residency/slot_rows.h"

namespace terrace {

struct Residency {
  explicit Residency(CacheDomain& domain)
      : candidates(domain, observers),
        rows(domain),
        updates(domain),
        dram(domain, candidates, rows, observers),
        lower(domain, candidates, updates, observers),
        hints(domain, candidates, rows, updates),
        lifecycle(domain, candidates, rows, dram, lower, hints, observers),
        holds(domain, candidates, lifecycle) {}
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  BlockObservers observers;
  Candidates candidates;
  SlotRows rows;
  RecordUpdates updates;
  DramCopies dram;
  LowerCopies lower;
  BlockHints hints;
  Lifecycle lifecycle;
  BlockHolds holds;
};

}  // namespace terrace

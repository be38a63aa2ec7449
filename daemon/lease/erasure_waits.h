// ErasureWaits: operators who wait until every erased block's header is durably cleared, so that
// neither a crash nor a successor brings it back.
//
// THREADING: store thread. LIMITS: pending_per_session_max requests a session; kBlocksPerTurnMax of
// them a step.
#pragma once

#include <cstdint>
#include <deque>

#include "daemon/lease/waiters.h"

namespace terrace {

class ErasureWaits {
 public:
  ErasureWaits(CacheDomain& domain, PendingRegister& pending, Waiters& waiters)
      : d_(domain), pending_(pending), waiters_(waiters) {}

  // A kErasure: it waits for what had been erased when the mark was made.
  void Arm(PendingId id, const ErasureMark& mark, uint64_t deadline_us);
  bool has_work() const { return !unmarked_.empty() || !marked_.empty(); }
  // Those that are durable by now are told, some a call.
  void Step();

 private:
  struct Erasure {
    PendingTicket ticket;
    ErasureMark mark;
  };

  CacheDomain& d_;
  PendingRegister& pending_;
  Waiters& waiters_;
  // Armed; some have ended since. Whoever came first is through first: first what left the cache
  // while it was held must be given to the tier, then the tier must have written it down.
  std::deque<Erasure> unmarked_;
  std::deque<Erasure> marked_;
};

}  // namespace terrace

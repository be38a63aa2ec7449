#include "daemon/lease/erasure_waits.h"

namespace terrace {

void ErasureWaits::Arm(PendingId id, const ErasureMark& mark, uint64_t deadline_us) {
  pending_.Arm(id, deadline_us);
  unmarked_.push_back({pending_.TicketOf(id), mark});
}

void ErasureWaits::Step() {
  uint32_t budget = protocol::kBlocksPerTurnMax;
  for (; !unmarked_.empty() && budget > 0; --budget, ++d_.seams.work) {
    Erasure& first = unmarked_.front();
    if (pending_.IsCurrent(first.ticket)) {
      if (!d_.IsGivenToTier(&first.mark)) break;
      marked_.push_back(first);
    }
    unmarked_.pop_front();
  }
  for (; !marked_.empty() && budget > 0; --budget, ++d_.seams.work) {
    Erasure& first = marked_.front();
    if (pending_.IsCurrent(first.ticket)) {
      if (!d_.IsErased(&first.mark)) break;
      waiters_.EndWait(first.ticket.id, StatusCode::kOk);
    }
    marked_.pop_front();
  }
}

}  // namespace terrace

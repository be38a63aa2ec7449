// What a predecessor left in DRAM.
#include "daemon/store/store_state.h"
#include "terrace/check.h"

namespace terrace {

AdoptSummary Store::AdoptSlots(uint32_t domain_index, std::span<const SessionId> sessions) {
  DomainRooms& rooms = *state_->domains[domain_index];
  TERRACE_CHECK(rooms.domain.session_count == 0, "slots are adopted before the first session");
  const AdoptSummary summary = rooms.adoption.Begin(sessions);
  state_->Settle(rooms);
  return summary;
}

void Store::PredecessorSessionEnded(uint32_t domain_index, SessionId session) {
  DomainRooms& rooms = *state_->domains[domain_index];
  rooms.adoption.OnSessionEnd(session);
  state_->Settle(rooms);
}

}  // namespace terrace

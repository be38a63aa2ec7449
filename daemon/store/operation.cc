#include "daemon/store/operation.h"

#include "daemon/store/store_rooms.h"
#include "terrace/check.h"

namespace terrace {

OperationTie::OperationTie(StoreRooms& store) { TieTo(store); }

OperationTie::OperationTie(OperationTie&& other) noexcept {
  StoreRooms* const store = other.store_;
  other.Cut();
  if (store != nullptr) TieTo(*store);
}

void OperationTie::TieTo(StoreRooms& store) {
  store_ = &store;
  next_ = store.operations;
  if (next_ != nullptr) next_->previous_ = this;
  store.operations = this;
}

void OperationTie::Cut() {
  if (store_ == nullptr) return;
  TERRACE_CHECK((previous_ == nullptr) == (store_->operations == this),
                "the store knows its first operation");
  (previous_ != nullptr ? previous_->next_ : store_->operations) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  store_ = nullptr;
  previous_ = next_ = nullptr;
}

void LeaveUntold(StoreRooms& store, SessionId session, const LeaseToken& token) {
  const SessionIndex index = store.sessions.Find(session);
  if (token.is_zero() || index == kSessionNone || store.sessions.at(index).is_hung_up) return;
  DomainRooms& rooms = store.at(store.sessions.at(index).domain_index);
  const LeaseId id = rooms.domain.leases.Find(token);
  if (id == kLeaseNone || !rooms.keeper.IsJoiner(id, index)) return;
  rooms.keeper.Leave(id, index);
  store.Settle(rooms);
}

}  // namespace terrace

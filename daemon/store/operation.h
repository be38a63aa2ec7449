// Operations: verbs that take several steps. The verb makes the object; whoever has it steps it
// with the next keys until it is done. One that is dropped before that, or whose step fails, undoes
// what it began: nobody was told of it. Between steps anything may happen; what is held stays held.
//
// THREADING: the store thread. OWNERSHIP: the session's; one that outlives its store does nothing.
#pragma once

#include <cstdint>

#include "daemon/block/store_listener.h"
#include "terrace/protocol.h"

namespace terrace {

struct StoreRooms;

// What a step has brought an operation to.
enum class Progress : uint8_t {
  kGoesOn,   // step it with the keys behind those it has passed
  kAwaits,   // OnSeekDone follows: step it then, likewise
  kFollows,  // it is over; OnWaitDone brings the outcome
  kDone,     // it is over, and its answer whole
};

// Ties an operation to its store until it is over, or the store has ended.
class OperationTie {
 public:
  explicit OperationTie(StoreRooms& store);
  OperationTie(OperationTie&& other) noexcept;
  OperationTie& operator=(OperationTie&&) = delete;
  ~OperationTie() { Cut(); }

  // Null once it is cut.
  StoreRooms* store() const { return store_; }
  void Cut();

 private:
  void TieTo(StoreRooms& store);

  StoreRooms* store_ = nullptr;
  OperationTie* previous_ = nullptr;
  OperationTie* next_ = nullptr;
};

// The session leaves a lease that it was never told of. Nothing if it has hung up: that fences.
void LeaveUntold(StoreRooms& store, SessionId session, const LeaseToken& token);

}  // namespace terrace

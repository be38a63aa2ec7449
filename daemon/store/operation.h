// Operations: verbs that take several steps. The verb makes the object; whoever has it steps it
// with the next keys until it is done. One that is dropped before that, or whose step fails, undoes
// what it began: nobody was told of it. Between steps anything may happen; what is held stays held.
//
// THREADING: the store thread. OWNERSHIP: the session's; one that outlives its store does nothing.
#pragma once

#include <cstdint>

namespace terrace {

class OperationTie;
struct StoreRooms;

// The state of an operation after a step.
enum class Progress : uint8_t {
  kGoesOn,   // step it, with the keys behind those it has passed
  kStays,    // step it with the same keys: it is not through with them
  kAwaits,   // OnSeekDone follows: step it then, likewise
  kFollows,  // it is over; OnWaitDone brings the outcome
  kDone,     // it is over, and its answer whole
};

// A store's operations under way. Those that outlive it are cut off.
class OperationList {
 public:
  explicit OperationList(StoreRooms& store) : store_(store) {}
  ~OperationList();
  OperationList(const OperationList&) = delete;
  OperationList& operator=(const OperationList&) = delete;

 private:
  friend class OperationTie;
  StoreRooms& store_;
  OperationTie* first_ = nullptr;
};

// Ties an operation to its store until it is over, or the store has ended.
class OperationTie {
 public:
  explicit OperationTie(OperationList& list) { TieTo(&list); }
  OperationTie(OperationTie&& other) noexcept;
  OperationTie& operator=(OperationTie&&) = delete;
  ~OperationTie() { Cut(); }

  // Null once it is cut.
  StoreRooms* store() const { return list_ == nullptr ? nullptr : &list_->store_; }
  void Cut();

 private:
  void TieTo(OperationList* list);

  OperationList* list_ = nullptr;
  OperationTie* previous_ = nullptr;
  OperationTie* next_ = nullptr;
};

}  // namespace terrace

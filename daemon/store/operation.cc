#include "daemon/store/operation.h"

#include "terrace/check.h"

namespace terrace {

OperationList::~OperationList() {
  while (first_ != nullptr) first_->Cut();
}

OperationTie::OperationTie(OperationTie&& other) noexcept {
  OperationList* const list = other.list_;
  other.Cut();
  if (list != nullptr) TieTo(list);
}

void OperationTie::TieTo(OperationList* list) {
  list_ = list;
  next_ = list->first_;
  if (next_ != nullptr) next_->previous_ = this;
  list->first_ = this;
}

void OperationTie::Cut() {
  if (list_ == nullptr) return;
  TERRACE_CHECK((previous_ == nullptr) == (list_->first_ == this),
                "the list knows its first operation");
  (previous_ != nullptr ? previous_->next_ : list_->first_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  list_ = nullptr;
  previous_ = next_ = nullptr;
}

}  // namespace terrace

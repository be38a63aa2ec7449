#include "daemon/block/shared_copies.h"

#include <algorithm>

#include "terrace/check.h"

namespace terrace {

// Sized at the start: nothing moves, and memory is used as copies come.
SharedCopies::SharedCopies(uint32_t domain_index, uint32_t copies_max, DeadlineHeap& deadlines)
    : domain_index_(domain_index), copies_max_(copies_max), deadlines_(deadlines) {
  copies_.reserve(copies_max);
  table_.resize(copies_max, kNone);
}

const SharedCopies::Copy* SharedCopies::at(uint32_t copy) const {
  const bool counts = copy < copies_.size() && copies_[copy].is_taken && Counts(copies_[copy]);
  return counts ? &copies_[copy] : nullptr;
}

bool SharedCopies::Counts(const Copy& copy) const {
  if (copy.epoch <= all_gone_) return false;
  if (groups_gone_.empty()) return true;
  const auto gone = groups_gone_.find(copy.group_low);
  return gone == groups_gone_.end() || copy.epoch > gone->second;
}

uint32_t SharedCopies::Find(const Name& name) const {
  if (table_.empty()) return kNone;
  uint32_t copy = table_[name.key.low % table_.size()];
  while (copy != kNone &&
         (copies_[copy].key != name.key || copies_[copy].group_low != name.group.low)) {
    copy = copies_[copy].next;
  }
  return copy;
}

bool SharedCopies::Has(const Name& name) const {
  const uint32_t copy = Find(name);
  return copy != kNone && Counts(copies_[copy]);
}

void SharedCopies::Note(const Name& name, const Copy& told, uint64_t until_us) {
  if (copies_max_ == 0) return;
  uint32_t copy = Find(name);
  const bool is_known = copy != kNone && Counts(copies_[copy]) &&
                        copies_[copy].event_hash == told.event_hash &&
                        copies_[copy].stream == told.stream;
  if (!is_known) {
    if (copy != kNone) TakeOut(copy);
    copy = TakeNumber();
    copies_[copy] = told;
    copies_[copy].key = name.key;
    copies_[copy].group_low = name.group.low;
    copies_[copy].is_taken = true;
    copies_[copy].is_told = false;
    copies_[copy].deadline = kHandleNone;
    copies_[copy].next = PlaceOf(name.key);
    PlaceOf(name.key) = copy;
  }
  Copy& noted = copies_[copy];
  noted.epoch = epoch_;
  has_some_ = true;
  if (noted.deadline != kHandleNone) deadlines_.Remove(noted.deadline);
  noted.deadline = until_us == kNever ? kHandleNone
                                      : deadlines_.Add({.due_us = until_us,
                                                        .kind = DeadlineKind::kSharedCopy,
                                                        .domain_index = domain_index_,
                                                        .id = copy});
  if (!is_known && observer_ != nullptr) observer_->OnSharedCopy(copy);
}

// Numbers were given in the order in which copies came, so the hand finds one that is old.
uint32_t SharedCopies::TakeNumber() {
  if (free_ == kNone && copies_.size() == copies_max_) {
    TakeOut(hand_);
    hand_ = (hand_ + 1) % copies_max_;
  }
  if (free_ == kNone) {
    copies_.emplace_back();
    return static_cast<uint32_t>(copies_.size() - 1);
  }
  const uint32_t number = free_;
  free_ = copies_[number].next;
  return number;
}

void SharedCopies::TakeOut(uint32_t copy) {
  TERRACE_CHECK(copy < copies_.size() && copies_[copy].is_taken, "a copy goes once");
  if (observer_ != nullptr) observer_->OnSharedCopyGone(copy);
  Copy& gone = copies_[copy];
  if (gone.deadline != kHandleNone) deadlines_.Remove(gone.deadline);
  uint32_t* place = &PlaceOf(gone.key);
  while (*place != copy) place = &copies_[*place].next;
  *place = gone.next;
  gone = {};
  gone.next = free_;
  free_ = copy;
}

void SharedCopies::Remove(const Name& name) {
  const uint32_t copy = Find(name);
  if (copy != kNone) TakeOut(copy);
}

void SharedCopies::RemoveKey(const BlockKey& key) {
  if (table_.empty()) return;
  for (uint32_t copy = PlaceOf(key); copy != kNone;) {
    const uint32_t next = copies_[copy].next;
    if (copies_[copy].key == key) TakeOut(copy);
    copy = next;
  }
}

void SharedCopies::RemoveGroup(const GroupId& group) {
  if (copies_.empty()) return;
  groups_gone_[group.low] = epoch_++;
  BeginSweep();
}

void SharedCopies::RemoveAll() {
  all_gone_ = epoch_++;
  has_some_ = false;
  BeginSweep();
}

void SharedCopies::OnDue(uint32_t copy) {
  TERRACE_CHECK(copy < copies_.size() && copies_[copy].is_taken,
                "a copy that goes takes its deadline back");
  copies_[copy].deadline = kHandleNone;
  TakeOut(copy);
}

void SharedCopies::Step() {
  if (!has_work()) return;
  const uint32_t end = std::min(number_end(), sweep_ + kSweptPerTurn);
  for (; sweep_ < end; ++sweep_) {
    if (copies_[sweep_].is_taken && !Counts(copies_[sweep_])) TakeOut(sweep_);
  }
  if (sweep_ < number_end()) return;
  sweep_ = kNone;
  groups_gone_.clear();
}

}  // namespace terrace

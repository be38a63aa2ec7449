// SlotPool: values under small numbers, which are given again after they were given back: the one
// given back last comes first. Numbers are dense, so that arrays beside it can be as long.
//
// THREADING: one thread. OWNERSHIP: a reference holds until the next Take.
// LIMITS: its memory is that of the most values ever held; count_max is the caller's to keep.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "terrace/check.h"

namespace terrace {

template <typename T>
class SlotPool {
 public:
  // The number that the next Take gives.
  uint32_t next() const {
    return free_.empty() ? static_cast<uint32_t>(rows_.size()) : free_.back();
  }
  uint32_t Take(T value) {
    const uint32_t number = next();
    if (free_.empty()) {
      rows_.push_back({std::move(value), true});
    } else {
      free_.pop_back();
      rows_[number] = {std::move(value), true};
    }
    return number;
  }
  // Gives the number back and returns its value. REQUIRES: is_taken.
  T Give(uint32_t number) {
    TERRACE_CHECK(is_taken(number), "a number is given back once, by who has it");
    rows_[number].is_taken = false;
    free_.push_back(number);
    return std::exchange(rows_[number].value, T());
  }

  // Any number: somebody has it now.
  bool is_taken(uint64_t number) const { return number < rows_.size() && rows_[number].is_taken; }
  // REQUIRES: is_taken.
  T& operator[](uint32_t number) { return rows_[number].value; }
  const T& operator[](uint32_t number) const { return rows_[number].value; }

  uint32_t count() const { return static_cast<uint32_t>(rows_.size() - free_.size()); }

  // visit(number, value) of each that is taken, by number.
  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (uint32_t number = 0; number < rows_.size(); ++number) {
      if (rows_[number].is_taken) visit(number, rows_[number].value);
    }
  }
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (uint32_t number = 0; number < rows_.size(); ++number) {
      if (rows_[number].is_taken) visit(number, rows_[number].value);
    }
  }

 private:
  struct Row {
    T value;
    bool is_taken;
  };
  std::vector<Row> rows_;
  std::vector<uint32_t> free_;
};

}  // namespace terrace

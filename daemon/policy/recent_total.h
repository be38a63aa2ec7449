// RecentTotal: how much of a running total came within a window of time that ends now, to a
// hundredth of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "terrace/check.h"

namespace terrace {

class RecentTotal {
 public:
  explicit RecentTotal(uint64_t window_us)
      : step_us_(std::max<uint64_t>((window_us + kSteps - 2) / (kSteps - 1), 1)) {}

  // REQUIRES: neither goes back.
  void Note(uint64_t total, uint64_t now_us) {
    const uint64_t step = now_us / step_us_;
    if (!has_begun_) {
      has_begun_ = true;
      step_ = step;
    }
    TERRACE_CHECK(total >= total_ && step >= step_,
                  "totals and clocks only grow: the difference of two would be near 2^64");
    for (uint64_t i = std::min<uint64_t>(step - step_, kSteps); i > 0; --i) {
      added_[(step + 1 - i) % kSteps] = 0;
    }
    step_ = step;
    added_[step % kSteps] += total - total_;
    total_ = total;
  }
  uint64_t Sum() const {
    uint64_t sum = 0;
    for (const uint64_t added : added_) sum += added;
    return sum;
  }

 private:
  static constexpr uint64_t kSteps = 96;  // one more than a window has: the first is cut

  uint64_t step_us_;
  std::array<uint64_t, kSteps> added_{};
  uint64_t total_ = 0;
  uint64_t step_ = 0;
  bool has_begun_ = false;
};

}  // namespace terrace

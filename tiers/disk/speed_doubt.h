// What was measured of something slow is believed less and less while nothing new is measured: who
// is told "too slow" does not ask, and nobody would ever learn that it no longer is. What was
// measured of something fast is believed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace terrace {

struct SpeedDoubt {
  // So long what was measured holds; from then on each second halves what is above the first guess.
  static constexpr uint64_t kHoldsUs = 3'000'000;
  static constexpr uint64_t kHalvesUs = 1'000'000;

  static constexpr bool IsInDoubt(uint64_t unmeasured_us) { return unmeasured_us > kHoldsUs; }
  // Of a time that was measured so long ago, and what was guessed before anything was.
  static double Believed(double measured, double first, uint64_t unmeasured_us) {
    if (!IsInDoubt(unmeasured_us) || measured <= first) return measured;
    const auto halvings = static_cast<double>((unmeasured_us - kHoldsUs) / kHalvesUs + 1);
    return std::max(first, measured * std::exp2(-halvings));
  }
};

}  // namespace terrace

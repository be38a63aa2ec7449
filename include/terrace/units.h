// Byte and time units, and the two roundings that every layout in Terrace is built from.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace {

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

inline constexpr uint64_t kUsPerMs = 1000;
inline constexpr uint64_t kUsPerSecond = 1000 * 1000;

// Smallest multiple of `unit` that is ≥ `value`. REQUIRES: unit > 0, no overflow.
// Example: RoundUp(5000, 4096) = 8192.
constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Largest multiple of `unit` that is ≤ `value`. REQUIRES: unit > 0.
constexpr uint64_t RoundDown(uint64_t value, uint64_t unit) { return value / unit * unit; }

constexpr bool IsPowerOfTwo(uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }

}  // namespace terrace

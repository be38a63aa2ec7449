// What tiers of a given size and speed are worth to a model: tokens, sessions, and from which
// length on loading a prefix is faster than computing it again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/error.h"
#include "tools/terrace/plan/model_shape.h"

namespace terrace::tools {

struct PlannedTier {
  std::string name;
  uint64_t capacity_bytes = 0;
  uint64_t bytes_per_s = 0;  // read; 0: not said
};

// One measured prefill.
struct PrefillPoint {
  uint64_t token_count = 0;
  double seconds = 0;
};

// Seconds of a prefill of n tokens: linear_s * n + square_s * n^2, the weights' part and the
// attention's. Fitted to measured points, so that their relative errors are smallest (least
// squares); neither part is negative.
class PrefillCost {
 public:
  // REQUIRES: one point or more, of more than 0 tokens and seconds.
  explicit PrefillCost(const std::vector<PrefillPoint>& points);
  double Seconds(uint64_t token_count) const;

 private:
  double linear_s_ = 0;
  double square_s_ = 0;
};

// Empty, or that what was measured lies off the curve that fits all of it best by more than
// kMisfitMax, the point where it does most, and what the curve says there.
constexpr double kMisfitMax = 0.25;
std::string WhyPrefillsDisagree(const std::vector<PrefillPoint>& points, const PrefillCost& cost);

// Bytes a second from which loading a prefix is as fast as computing it.
double BreakEvenBytesPerSecond(const ModelShape& shape, const PrefillCost& cost,
                               uint64_t token_count);
// The shortest prefix of at most `token_count_max` tokens that a tier of this speed brings faster
// than it is computed; nothing if none is.
std::optional<uint64_t> LoadFromTokens(const ModelShape& shape, const PrefillCost& cost,
                                       uint64_t bytes_per_s, uint64_t token_count_max);

// "NAME=SIZE", "NAME=SIZE@SPEED": "nvme=4TiB@6GiB/s".
Error ParseTier(std::string_view text, PlannedTier* tier);
// "TOKENS=SECONDS": "8192=1.3".
Error ParsePrefill(std::string_view text, PrefillPoint* point);

}  // namespace terrace::tools

#include "tiny_llama/softmax.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "terrace/check.h"

namespace terrace::tiny_llama {
namespace {

using Lanes = std::array<float, kLanes>;

constexpr float kLowest = -1e30f;  // below every score, and finite: differences stay numbers

float SumOf(const Lanes& lanes) {
  float sum = 0.0f;
  for (float lane : lanes) sum += lane;
  return sum;
}

// e^x to two units in the last place, for x in [−87, 88]; what lies beyond is taken for the bound.
// No branch and no call, so that loops over it are vectorised: x = n ln 2 + r, e^x = 2^n e^r, and
// e^r by its series, |r| ≤ ln 2 / 2.
inline float Exp(float x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // n times this is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it leaves the nearest integer
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float series = 1.0f / 5040.0f;
  series = series * r + 1.0f / 720.0f;
  series = series * r + 1.0f / 120.0f;
  series = series * r + 1.0f / 24.0f;
  series = series * r + 1.0f / 6.0f;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  const int32_t power = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  return series * std::bit_cast<float>((power + 127) << 23);
}

float LargestOf(std::span<const float> row) {
  Lanes lanes;
  lanes.fill(kLowest);
  for (size_t start = 0; start < row.size(); start += kLanes) {
    for (size_t i = 0; i < kLanes; ++i) {
      lanes[i] = row[start + i] > lanes[i] ? row[start + i] : lanes[i];
    }
  }
  return *std::max_element(lanes.begin(), lanes.end());
}

}  // namespace

float SumOfSquares(std::span<const float> row) {
  Lanes squares{};
  const size_t whole = row.size() / kLanes * kLanes;
  for (size_t start = 0; start < whole; start += kLanes) {
    for (size_t i = 0; i < kLanes; ++i) squares[i] += row[start + i] * row[start + i];
  }
  for (size_t i = whole; i < row.size(); ++i) squares[i - whole] += row[i] * row[i];
  return SumOf(squares);
}

void SiluTimes(std::span<const float> x, std::span<const float> factor, float* to) {
  for (size_t i = 0; i < x.size(); ++i) to[i] = x[i] / (1.0f + Exp(-x[i])) * factor[i];
}

void RunningSoftmax::Begin() {
  largest = kLowest;
  sum = 0.0f;
}

float RunningSoftmax::Weigh(std::span<float> piece, size_t visible) {
  TERRACE_CHECK(visible > 0 && visible <= piece.size() && piece.size() % kLanes == 0,
                "a piece is whole lanes, and something of it is seen");
  std::fill(piece.begin() + visible, piece.end(), kLowest);
  const float before = largest;
  largest = std::max(before, LargestOf(piece));
  for (size_t i = 0; i < piece.size(); ++i) piece[i] = Exp(piece[i] - largest);
  std::fill(piece.begin() + visible, piece.end(), 0.0f);
  Lanes sums{};
  for (size_t start = 0; start < piece.size(); start += kLanes) {
    for (size_t i = 0; i < kLanes; ++i) sums[i] += piece[start + i];
  }
  if (before == largest) {
    sum += SumOf(sums);
    return 1.0f;
  }
  const float shrink = Exp(before - largest);
  sum = sum * shrink + SumOf(sums);
  return shrink;
}

}  // namespace terrace::tiny_llama

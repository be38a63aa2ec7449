// Exponentials and softmax over rows of floats, in an order that is written down: the compiler may
// not reorder float additions, so fixed lanes are what lets it use vector registers.
#pragma once

#include <cstddef>
#include <span>

namespace terrace::tiny_llama {

// Rows are handled in groups of so many floats.
inline constexpr size_t kLanes = 16;

// Σ x².
float SumOfSquares(std::span<const float> row);

// x / (1 + e^−x) for each element of `x`, times the element of `factor`.
void SiluTimes(std::span<const float> x, std::span<const float> factor, float* to);

// Softmax over a row of scores that comes in pieces, with a sum and a largest score so far
// (Milakov and Gimelshein 2018).
struct RunningSoftmax {
  float largest;
  float sum;

  void Begin();
  // Turns scores [0, visible) of a piece into e^(score − largest), the rest into 0. Returns what
  // everything that was weighted before must be multiplied with: 1 if no score was larger.
  // REQUIRES: 0 < visible ≤ piece.size(), a multiple of kLanes; no score is a NaN.
  float Weigh(std::span<float> piece, size_t visible);
};

}  // namespace terrace::tiny_llama

#include "tiny_llama/softmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace terrace::tiny_llama {
namespace {

// Weights of `scores` that come in pieces of `piece_size`, the last piece padded with garbage.
std::vector<double> InPieces(const std::vector<float>& scores, size_t piece_size) {
  RunningSoftmax softmax;
  softmax.Begin();
  std::vector<double> weights;
  for (size_t start = 0; start < scores.size(); start += piece_size) {
    const size_t visible = std::min(piece_size, scores.size() - start);
    std::vector<float> piece(piece_size, std::nanf(""));
    std::copy_n(scores.begin() + start, visible, piece.begin());
    const double shrink = softmax.Weigh(piece, visible);
    for (double& weight : weights) weight *= shrink;
    weights.insert(weights.end(), piece.begin(), piece.begin() + visible);
    EXPECT_TRUE(std::all_of(piece.begin() + visible, piece.end(), [](float w) { return w == 0; }));
  }
  for (double& weight : weights) weight /= softmax.sum;
  return weights;
}

TEST(RunningSoftmax, PiecesGiveTheSoftmaxOfTheWholeRow) {
  std::vector<float> scores(150);
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = static_cast<float>(20 * std::sin(0.37 * static_cast<double>(i * i)));
  }
  double sum = 0;
  const double largest = *std::max_element(scores.begin(), scores.end());
  for (float score : scores) sum += std::exp(score - largest);
  for (size_t piece_size : {16u, 32u, 160u}) {
    const std::vector<double> weights = InPieces(scores, piece_size);
    ASSERT_EQ(weights.size(), scores.size());
    for (size_t i = 0; i < scores.size(); ++i) {
      const double expected = std::exp(scores[i] - largest) / sum;
      EXPECT_NEAR(weights[i], expected, 1e-6 * expected + 1e-12) << i << " of " << piece_size;
    }
  }
}

TEST(RunningSoftmax, ScoresFarApartLeaveTheLargestAlone) {
  const std::vector<double> weights = InPieces({-3e4f, 2e4f, -1e4f}, 16);
  EXPECT_LT(weights[0], 1e-30);
  EXPECT_EQ(weights[1], 1.0);
  EXPECT_LT(weights[2], 1e-30);
}

TEST(RunningSoftmax, NothingShrinksUntilALargerScoreComes) {
  RunningSoftmax softmax;
  softmax.Begin();
  std::vector<float> piece(16, 1.0f);
  softmax.Weigh(piece, 16);
  EXPECT_FLOAT_EQ(softmax.sum, 16.0f);
  piece.assign(16, 1.0f);
  EXPECT_EQ(softmax.Weigh(piece, 3), 1.0f);
  EXPECT_FLOAT_EQ(softmax.sum, 19.0f);
  piece.assign(16, 2.0f);
  EXPECT_FLOAT_EQ(softmax.Weigh(piece, 1), std::exp(-1.0f));
  EXPECT_FLOAT_EQ(softmax.sum, 19.0f * std::exp(-1.0f) + 1.0f);
}

TEST(SiluTimes, EqualsItsDefinition) {
  std::vector<float> x, factor(1000, 2.0f), y(1000);
  for (int i = 0; i < 1000; ++i) x.push_back(static_cast<float>(i - 500) / 6.0f);
  SiluTimes(x, factor, y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = 2.0 * x[i] / (1.0 + std::exp(-double{x[i]}));
    EXPECT_NEAR(y[i], expected, 1e-6 * std::abs(expected)) << x[i];
  }
}

TEST(SumOfSquares, CountsEveryElementOnce) {
  for (size_t count : {1u, 15u, 16u, 33u, 72u}) {
    std::vector<float> row(count);
    double sum = 0;
    for (size_t i = 0; i < count; ++i) {
      row[i] = static_cast<float>(i) - 7.5f;
      sum += double{row[i]} * row[i];
    }
    EXPECT_FLOAT_EQ(SumOfSquares(row), static_cast<float>(sum)) << count;
  }
}

}  // namespace
}  // namespace terrace::tiny_llama

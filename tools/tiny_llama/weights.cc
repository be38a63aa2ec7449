#include "tiny_llama/weights.h"

#include <cmath>

namespace terrace::tiny_llama {
namespace {

constexpr uint64_t kCounterStep = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio
constexpr double kDrawMax = 8388608.0;                 // 2^23

// Gains over unit variance, chosen so that attention has favourites and logits have winners:
// random weights at unit gain give nearly uniform attention, and a cache bug would hide in the
// mean.
constexpr double kQueryKeyValueGain = 1.5;
constexpr double kHeadGain = 3.0;

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection that passes BigCrush over a
// counter stepped by kCounterStep.
constexpr uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// Scale that makes `fan_in` products of unit-variance inputs sum to variance gain²: a uniform draw
// in [−a, a) has variance a²/3. Square root and division are exact to the last bit in IEEE 754.
float UniformScale(uint64_t fan_in, double gain) {
  return static_cast<float>(gain * std::sqrt(3.0 / static_cast<double>(fan_in)) / kDrawMax);
}

// 1 ± 1/8. Both steps are exact in float, fused or not.
FloatBuffer NormWeights(uint32_t count, uint64_t seed, uint64_t tensor) {
  FloatBuffer norm(count);
  FillUniform(norm.span(), seed, tensor, 0x1p-26f);
  for (float& weight : norm.span()) weight += 1.0f;
  return norm;
}

FloatBuffer Matrix(uint64_t out, uint64_t in, double gain, uint64_t seed, uint64_t tensor) {
  FloatBuffer matrix(out * in);
  FillUniform(matrix.span(), seed, tensor, UniformScale(in, gain));
  return matrix;
}

}  // namespace

void FillUniform(std::span<float> to, uint64_t seed, uint64_t tensor, float scale) {
  const uint64_t start = Mix(Mix(seed + kCounterStep) ^ Mix(tensor * kCounterStep));
  for (size_t i = 0; i < to.size(); ++i) {
    const uint64_t bits = Mix(start + (i + 1) * kCounterStep);
    const int32_t draw = static_cast<int32_t>(bits >> 40) - (int32_t{1} << 23);
    to[i] = static_cast<float>(draw) * scale;
  }
}

Weights GenerateWeights(const Shape& shape, uint64_t seed) {
  // Two branches a layer add to the residual stream; this keeps its variance near 1 at any depth.
  const double residual_gain = 1.0 / std::sqrt(2.0 * shape.layers);
  const uint32_t d_model = shape.d_model;
  uint64_t tensor = 0;
  Weights weights;
  weights.embedding = Matrix(kVocabulary, d_model, std::sqrt(double{1} * d_model), seed, tensor++);
  weights.layers.resize(shape.layers);
  for (LayerWeights& layer : weights.layers) {
    layer.attention_norm = NormWeights(d_model, seed, tensor++);
    layer.query_key_value = Matrix(shape.query_width() + 2 * shape.kv_width(), d_model,
                                   kQueryKeyValueGain, seed, tensor++);
    layer.attention_output = Matrix(d_model, shape.query_width(), residual_gain, seed, tensor++);
    layer.ffn_norm = NormWeights(d_model, seed, tensor++);
    layer.gate_up = Matrix(2 * uint64_t{shape.ffn_width}, d_model, 1.0, seed, tensor++);
    layer.down = Matrix(d_model, shape.ffn_width, residual_gain, seed, tensor++);
  }
  weights.final_norm = NormWeights(d_model, seed, tensor++);
  weights.head = Matrix(kVocabulary, d_model, kHeadGain, seed, tensor++);
  return weights;
}

}  // namespace terrace::tiny_llama

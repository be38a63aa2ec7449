// The same Llama once more, for tests: float64, one token and one head at a time, no pages, no
// BLAS. It shares the weights and nothing else.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "tiny_llama/shape.h"
#include "tiny_llama/weights.h"

namespace terrace::tiny_llama {

class ReferenceLlama {
 public:
  using Vector = std::vector<double>;

  ReferenceLlama(const Shape& shape, uint64_t seed)
      : shape_(shape),
        weights_(GenerateWeights(shape, seed)),
        keys_(shape.layers),
        values_(shape.layers) {}

  // Logits after the next token of the sequence.
  Vector Append(uint8_t token) {
    const uint32_t position = static_cast<uint32_t>(keys_[0].size());
    Vector x = RowOf(weights_.embedding, token, shape_.d_model);
    for (uint32_t i = 0; i < shape_.layers; ++i) {
      const LayerWeights& layer = weights_.layers[i];
      Add(x,
          Times(layer.attention_output, Attention(i, Normed(x, layer.attention_norm), position)));
      const Vector gate_up = Times(layer.gate_up, Normed(x, layer.ffn_norm));
      Vector gated(shape_.ffn_width);
      for (uint32_t j = 0; j < shape_.ffn_width; ++j) {
        gated[j] = gate_up[j] / (1 + std::exp(-gate_up[j])) * gate_up[shape_.ffn_width + j];
      }
      Add(x, Times(layer.down, gated));
    }
    return Times(weights_.head, Normed(x, weights_.final_norm));
  }

  // [position] → kv_width elements, keys after RoPE.
  const std::vector<Vector>& keys(uint32_t layer) const { return keys_[layer]; }
  const std::vector<Vector>& values(uint32_t layer) const { return values_[layer]; }

 private:
  static Vector RowOf(const FloatBuffer& matrix, uint64_t row, uint64_t width) {
    return Vector(matrix.data() + row * width, matrix.data() + (row + 1) * width);
  }
  static void Add(Vector& to, const Vector& from) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }
  static Vector Times(const FloatBuffer& matrix, const Vector& x) {
    Vector y(matrix.count() / x.size());
    for (size_t i = 0; i < y.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j) y[i] += matrix.data()[i * x.size() + j] * x[j];
    }
    return y;
  }
  static Vector Normed(const Vector& x, const FloatBuffer& weights) {
    double squares = 0;
    for (double element : x) squares += element * element;
    Vector y(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      y[i] = x[i] / std::sqrt(squares / x.size() + 1e-5) * weights.data()[i];
    }
    return y;
  }

  void Rotate(double* head, uint32_t position) const {
    const uint32_t half = shape_.head_size / 2;
    for (uint32_t i = 0; i < half; ++i) {
      const double angle = position * std::pow(shape_.rope_theta, -2.0 * i / shape_.head_size);
      const double first = head[i], second = head[half + i];
      head[i] = first * std::cos(angle) - second * std::sin(angle);
      head[half + i] = second * std::cos(angle) + first * std::sin(angle);
    }
  }

  Vector Attention(uint32_t layer, const Vector& x, uint32_t position) {
    const uint32_t head_size = shape_.head_size;
    Vector projected = Times(weights_.layers[layer].query_key_value, x);
    const auto keys_at = projected.begin() + shape_.query_width();
    const auto values_at = keys_at + shape_.kv_width();
    for (uint32_t i = 0; i < shape_.query_heads + shape_.kv_heads; ++i) {
      Rotate(projected.data() + i * head_size, position);
    }
    keys_[layer].emplace_back(keys_at, values_at);
    values_[layer].emplace_back(values_at, projected.end());

    Vector out(shape_.query_width());
    for (uint32_t head = 0; head < shape_.query_heads; ++head) {
      // 8 query heads over 4 KV heads: 0 and 1 read 0, 2 and 3 read 1, …
      const uint32_t kv = head / (shape_.query_heads / shape_.kv_heads) * head_size;
      Vector weight(position + 1);
      double sum = 0;
      for (uint32_t past = 0; past <= position; ++past) {
        double score = 0;
        for (uint32_t i = 0; i < head_size; ++i) {
          score += projected[head * head_size + i] * keys_[layer][past][kv + i];
        }
        weight[past] = std::exp(score / std::sqrt(double{1} * head_size));
        sum += weight[past];
      }
      for (uint32_t past = 0; past <= position; ++past) {
        for (uint32_t i = 0; i < head_size; ++i) {
          out[head * head_size + i] += weight[past] / sum * values_[layer][past][kv + i];
        }
      }
    }
    return out;
  }

  Shape shape_;
  Weights weights_;
  std::vector<std::vector<Vector>> keys_;    // [layer][position]
  std::vector<std::vector<Vector>> values_;  // [layer][position]
};

}  // namespace terrace::tiny_llama

// The weights of a tiny Llama: a pure function of shape and seed, equal to the last bit on every
// machine. Element i of tensor t is a counter-based draw (seed, t, i), so there is no order to
// keep.
//
// Every matrix is [out][in], row-major: y = W x.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tiny_llama/float_buffer.h"
#include "tiny_llama/shape.h"

namespace terrace::tiny_llama {

// Changes whenever the same seed would give other weights; part of a Space's revision.
inline constexpr uint32_t kWeightsVersion = 1;

struct LayerWeights {
  FloatBuffer attention_norm;    // [d_model]
  FloatBuffer query_key_value;   // [query_width + 2 * kv_width][d_model]: rows of Q, then K, then V
  FloatBuffer attention_output;  // [d_model][query_width]
  FloatBuffer ffn_norm;          // [d_model]
  FloatBuffer gate_up;           // [2 * ffn_width][d_model]: rows of gate, then up
  FloatBuffer down;              // [d_model][ffn_width]
};

struct Weights {
  FloatBuffer embedding;  // [kVocabulary][d_model]
  std::vector<LayerWeights> layers;
  FloatBuffer final_norm;  // [d_model]
  FloatBuffer head;        // [kVocabulary][d_model], not tied to the embedding
};

// REQUIRES: a valid shape.
Weights GenerateWeights(const Shape& shape, uint64_t seed);

// The draws of one tensor: integers uniform in [−2^23, 2^23), as floats, times `scale`.
void FillUniform(std::span<float> to, uint64_t seed, uint64_t tensor, float scale);

}  // namespace terrace::tiny_llama

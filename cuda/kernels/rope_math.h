// The turn of one pair of elements, for the host and for kernels: four products and two sums, each
// rounded by itself, so both sides write the same bits.
#pragma once

#include <cstdint>

#include "cuda/kernels/codec_math.h"

namespace terrace::rope_math {

struct Pair {
  float first;
  float second;
};

TERRACE_CODEC_INLINE Pair Turn(Pair pair, float cosine, float sine) {
#if defined(__CUDA_ARCH__)
  return {__fsub_rn(__fmul_rn(pair.first, cosine), __fmul_rn(pair.second, sine)),
          __fadd_rn(__fmul_rn(pair.second, cosine), __fmul_rn(pair.first, sine))};
#else
  const float first_cosine = pair.first * cosine;
  const float second_sine = pair.second * sine;
  const float second_cosine = pair.second * cosine;
  const float first_sine = pair.first * sine;
  return {first_cosine - second_sine, second_cosine + first_sine};
#endif
}

// Whether elements [rot_offset, rot_offset + rot_dim) of a head are pairs that can turn.
inline bool IsWindow(uint32_t rot_dim, uint32_t rot_offset, uint32_t head_dim) {
  return rot_dim >= 2 && rot_dim % 2 == 0 && rot_offset <= head_dim &&
         rot_dim <= head_dim - rot_offset;
}

// The elements of pair i within a window of pair_count pairs; is_neox as RopePairing.
TERRACE_CODEC_INLINE uint32_t FirstOf(uint32_t i, bool is_neox) { return is_neox ? i : 2 * i; }
TERRACE_CODEC_INLINE uint32_t SecondOf(uint32_t i, uint32_t pair_count, bool is_neox) {
  return is_neox ? i + pair_count : 2 * i + 1;
}

}  // namespace terrace::rope_math

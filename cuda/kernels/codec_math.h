// The arithmetic of codecs, one element at a time, for the host and for kernels: the same
// operations in the same order, each IEEE single precision rounded to nearest even, so both sides
// write the same bits. Branch-free, so that a compiler makes vectors of it.
//
// Every product that a decoder adds to something is exact (4 to 7 bits of code times 8 bits of
// bf16), so contraction into FMA cannot change a bit; encoders are built without it anyway. No
// intermediate that matters is a denormal: a process that flushes them writes the same bits.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define TERRACE_CODEC_INLINE __host__ __device__ __forceinline__
#define TERRACE_CODEC_UNROLL _Pragma("unroll")
#else
#define TERRACE_CODEC_INLINE [[gnu::always_inline]] inline
#define TERRACE_CODEC_UNROLL
#endif

namespace terrace::codec_math {

TERRACE_CODEC_INLINE uint32_t BitsOf(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
#endif
}

TERRACE_CODEC_INLINE float FloatOf(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
#endif
}

inline constexpr uint32_t kSignBit = 0x80000000u;
inline constexpr uint32_t kExponentOne = 1u << 23;   // one more in the exponent of a float
inline constexpr float kMagnitudeMax = 0x1.fep127f;  // largest bf16

TERRACE_CODEC_INLINE float Clamp(float value, float limit) {
  const float upper = value > limit ? limit : value;
  return upper < -limit ? -limit : upper;
}

// --- element types
// --------------------------------------------------------------------------------- Widen is exact.
// Narrow rounds to nearest even; infinities and NaN stay what they are. kMagnitudeLimit is the
// largest pattern without its sign that a lossy codec takes.

struct Bf16 {
  using Bits = uint16_t;
  static constexpr uint32_t kMagnitudeMask = 0x7FFF;
  static constexpr uint32_t kMagnitudeLimit = 0x7F7F;
  static constexpr float kMax = kMagnitudeMax;

  TERRACE_CODEC_INLINE static float Widen(Bits bits) { return FloatOf(uint32_t{bits} << 16); }
  TERRACE_CODEC_INLINE static Bits NarrowFinite(float value) {
    const uint32_t bits = BitsOf(value);
    return static_cast<Bits>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }
  TERRACE_CODEC_INLINE static Bits Narrow(float value) {
    const uint32_t bits = BitsOf(value);
    const bool is_nan = (bits & ~kSignBit) > 0x7F800000u;
    return is_nan ? Bits{0x7FC0} : NarrowFinite(value);  // what is in a NaN is each machine's own
  }
};

struct Fp16 {
  using Bits = uint16_t;
  static constexpr uint32_t kMagnitudeMask = 0x7FFF;
  static constexpr uint32_t kMagnitudeLimit = 0x7BFF;
  static constexpr float kMax = 65504.0f;

  TERRACE_CODEC_INLINE static float Widen(Bits bits) {
    const uint32_t magnitude = bits & kMagnitudeMask;
    const uint32_t shifted = magnitude << 13;
    // A denormal's digits behind an exponent of −14, less that power: exact, and no float denormal.
    const float small = FloatOf(shifted + 113 * kExponentOne) - FloatOf(113 * kExponentOne);
    const uint32_t normal = shifted + (magnitude > 0x7BFF ? 224 : 112) * kExponentOne;
    const uint32_t wide = magnitude < 0x400 ? BitsOf(small) : normal;
    return FloatOf(wide | (uint32_t{bits} & 0x8000u) << 16);
  }
  TERRACE_CODEC_INLINE static Bits NarrowFinite(float value) {
    const uint32_t bits = BitsOf(value);
    const uint32_t magnitude = bits & ~kSignBit;
    // The last digit of 0.5 is that of a denormal: the addition rounds to it.
    const uint32_t small = BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f);
    const uint32_t normal =
        (magnitude - 112 * kExponentOne + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
    const uint32_t finite = magnitude < 113 * kExponentOne ? small : normal;
    return static_cast<Bits>((finite < 0x7C00 ? finite : 0x7C00) | (bits >> 16 & 0x8000u));
  }
  TERRACE_CODEC_INLINE static Bits Narrow(float value) {
    const uint32_t bits = BitsOf(value);
    const bool is_nan = (bits & ~kSignBit) > 0x7F800000u;
    return is_nan ? Bits{0x7E00} : NarrowFinite(value);
  }
};

struct Fp32 {
  using Bits = uint32_t;
  static constexpr uint32_t kMagnitudeMask = 0x7FFFFFFF;
  static constexpr uint32_t kMagnitudeLimit = 0x7F7F0000;  // scales are bf16: beyond there is none
  static constexpr float kMax = kMagnitudeMax;

  TERRACE_CODEC_INLINE static float Widen(Bits bits) { return FloatOf(bits); }
  TERRACE_CODEC_INLINE static Bits NarrowFinite(float value) { return BitsOf(value); }
  TERRACE_CODEC_INLINE static Bits Narrow(float value) {
    const uint32_t bits = BitsOf(value);
    return (bits & ~kSignBit) > 0x7F800000u ? Bits{0x7FC00000} : bits;
  }
};

// Floats of any kind but NaN as integers of the same order, and back: reductions of integers are
// vectors without licence to reorder floats.
TERRACE_CODEC_INLINE int32_t OrderOf(float value) {
  const auto bits = static_cast<int32_t>(BitsOf(value));
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}
TERRACE_CODEC_INLINE float OfOrder(int32_t order) {
  return FloatOf(static_cast<uint32_t>(order ^ ((order >> 31) & 0x7FFFFFFF)));
}

// --- group parameters
// ------------------------------------------------------------------------------

// A group whose largest magnitude (or whose range) is below this is stored as zeros (or as its
// minimum): so no scale, no reciprocal, and no product of them is a denormal or infinite.
inline constexpr float kNothing = 0x1p-100f;

inline constexpr float kInt8CodeMax = 127.0f;
inline constexpr float kFp8CodeMax = 448.0f;
inline constexpr float kInt4CodeMax = 15.0f;

TERRACE_CODEC_INLINE uint16_t Bf16Above(float positive) {
  return static_cast<uint16_t>((BitsOf(positive) + 0xFFFF) >> 16);
}

// The largest bf16 ≤ value; of a zero, +0.
TERRACE_CODEC_INLINE uint16_t Bf16Below(float value) {
  const uint32_t bits = BitsOf(value + 0.0f);
  return static_cast<uint16_t>((bits + ((bits & kSignBit) != 0 ? 0xFFFF : 0)) >> 16);
}

// The scale that brings `magnitude_max` to code_max or a little below. Rounded up, so no code
// passes code_max.
TERRACE_CODEC_INLINE uint16_t ScaleOf(float magnitude_max, float code_max) {
  return magnitude_max < kNothing ? uint16_t{0} : Bf16Above(magnitude_max / code_max);
}

// A scale, minimum or step as a decoder takes it: 0 for a pattern of infinity or NaN, which no
// encoder writes.
TERRACE_CODEC_INLINE float Parameter(uint16_t bits) {
  return (bits & 0x7F80) == 0x7F80 ? 0.0f : Bf16::Widen(bits);
}

// 0 for a scale of 0.
TERRACE_CODEC_INLINE float ReciprocalOf(uint16_t scale) {
  return scale == 0 ? 0.0f : 1.0f / Bf16::Widen(scale);
}

// Halves, because a range can be twice the largest float.
TERRACE_CODEC_INLINE uint16_t StepOf(uint16_t minimum, float maximum) {
  const float half_range = maximum * 0.5f - Bf16::Widen(minimum) * 0.5f;
  return half_range < kNothing ? uint16_t{0} : Bf16Above(half_range / kInt4CodeMax * 2.0f);
}

TERRACE_CODEC_INLINE float HalfStepReciprocalOf(uint16_t step) {
  return step == 0 ? 0.0f : 1.0f / (Bf16::Widen(step) * 0.5f);
}

// --- codes
// -----------------------------------------------------------------------------------------

// Nearest integer, ties to even. REQUIRES: |value| < 2^22.
TERRACE_CODEC_INLINE int32_t RoundToInt(float value) {
  return static_cast<int32_t>(BitsOf(value + 12582912.0f)) - 0x4B400000;
}

TERRACE_CODEC_INLINE uint8_t EncodeInt8(float value, float reciprocal) {
  return static_cast<uint8_t>(RoundToInt(value * reciprocal));
}

TERRACE_CODEC_INLINE float DecodeInt8(uint8_t code, float scale) {
  return static_cast<float>(static_cast<int8_t>(code)) * scale;
}

// e4m3: 4 bits of exponent (bias 7), 3 of mantissa, no infinity, largest 448. Never writes its NaN.
TERRACE_CODEC_INLINE uint8_t EncodeFp8(float value, float reciprocal) {
  const uint32_t bits = BitsOf(value * reciprocal);
  const uint32_t magnitude = bits & ~kSignBit;
  // The last digit of 2^14 is that of an e4m3 denormal, 2^−9.
  const uint32_t small = BitsOf(FloatOf(magnitude) + 16384.0f) - BitsOf(16384.0f);
  const uint32_t normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - 120 * 8;
  const uint32_t rounded = magnitude < 121 * kExponentOne ? small : normal;
  const uint32_t finite = rounded < 0x7E ? rounded : 0x7E;
  return static_cast<uint8_t>(finite | (bits >> 24 & 0x80u));
}

// The pattern of NaN, which no encoder writes, decodes as the 480 that it would be.
TERRACE_CODEC_INLINE float DecodeFp8(uint8_t code, float scale) {
  const uint32_t magnitude = code & 0x7Fu;
  const uint32_t shifted = magnitude << 20;
  const float small = FloatOf(shifted + 121 * kExponentOne) - FloatOf(121 * kExponentOne);
  const uint32_t normal = shifted + 120 * kExponentOne;
  const uint32_t wide = magnitude < 8 ? BitsOf(small) : normal;
  return FloatOf(wide | (uint32_t{code} & 0x80u) << 24) * scale;
}

TERRACE_CODEC_INLINE uint8_t EncodeInt4(float value, float half_minimum, float reciprocal) {
  return static_cast<uint8_t>(RoundToInt((value * 0.5f - half_minimum) * reciprocal));
}

TERRACE_CODEC_INLINE float DecodeInt4(uint8_t code, float half_minimum, float half_step) {
  return (half_minimum + static_cast<float>(code) * half_step) * 2.0f;
}

}  // namespace terrace::codec_math

// The arithmetic of codec_math.h for a vector of neighbouring elements in registers, in fewer
// instructions and the same bits. Where a GPU has an instruction for several elements at once it is
// taken; what stands beside it is what it computes, and what everything else runs.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/codec_math.h"

namespace terrace::codec_math {

// kBytes neighbouring bytes, the first one in the lowest bits.
template <uint32_t kBytes>
struct Words {
  static constexpr uint32_t kCount = (kBytes + 3) / 4;
  uint32_t at[kCount];
};

// --- memory: one access each, or several of 16 bytes
// ---------------------------------------------------------------

template <typename Access>
TERRACE_CODEC_INLINE Access LoadOne(const void* from) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(from));
#endif
  return *static_cast<const Access*>(from);
}

template <typename Access>
TERRACE_CODEC_INLINE void StoreOne(void* to, Access value) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(to));
#endif
  *static_cast<Access*>(to) = value;
}

// REQUIRES: `from` is a multiple of kBytes, or of 16 where those are more.
template <uint32_t kBytes>
TERRACE_CODEC_INLINE Words<kBytes> Load(const void* from) {
  Words<kBytes> words;
  if constexpr (kBytes >= 16) {
    for (uint32_t i = 0; i < kBytes / 16; ++i) {
      const auto four = LoadOne<uint4>(static_cast<const uint4*>(from) + i);
      words.at[4 * i] = four.x;
      words.at[4 * i + 1] = four.y;
      words.at[4 * i + 2] = four.z;
      words.at[4 * i + 3] = four.w;
    }
  } else if constexpr (kBytes == 8) {
    const auto two = LoadOne<uint2>(from);
    words.at[0] = two.x;
    words.at[1] = two.y;
  } else if constexpr (kBytes == 4) {
    words.at[0] = LoadOne<uint32_t>(from);
  } else if constexpr (kBytes == 2) {
    words.at[0] = LoadOne<uint16_t>(from);
  } else {
    static_assert(kBytes == 1);
    words.at[0] = LoadOne<uint8_t>(from);
  }
  return words;
}

template <uint32_t kBytes>
TERRACE_CODEC_INLINE void Store(void* to, const Words<kBytes>& words) {
  if constexpr (kBytes >= 16) {
    for (uint32_t i = 0; i < kBytes / 16; ++i) {
      const uint32_t* at = words.at + 4 * i;
      StoreOne(static_cast<uint4*>(to) + i, make_uint4(at[0], at[1], at[2], at[3]));
    }
  } else if constexpr (kBytes == 8) {
    StoreOne(to, make_uint2(words.at[0], words.at[1]));
  } else if constexpr (kBytes == 4) {
    StoreOne(to, words.at[0]);
  } else if constexpr (kBytes == 2) {
    StoreOne(to, static_cast<uint16_t>(words.at[0]));
  } else {
    static_assert(kBytes == 1);
    StoreOne(to, static_cast<uint8_t>(words.at[0]));
  }
}

// --- elements
// ----------------------------------------------------------------------------------------------

template <typename Element>
inline constexpr uint32_t kElementBytesOf = sizeof(typename Element::Bits);
template <typename Element, uint32_t kWidth>
using ElementsOf = Words<kWidth * kElementBytesOf<Element>>;

template <typename Element, uint32_t kWidth>
TERRACE_CODEC_INLINE typename Element::Bits ElementAt(const ElementsOf<Element, kWidth>& words,
                                                      uint32_t i) {
  if constexpr (kElementBytesOf<Element> == 4) return words.at[i];
  return static_cast<typename Element::Bits>(words.at[i / 2] >> i % 2 * 16);
}

TERRACE_CODEC_INLINE float WidenElement(Bf16, uint16_t bits) { return Bf16::Widen(bits); }
TERRACE_CODEC_INLINE float WidenElement(Fp32, uint32_t bits) { return Fp32::Widen(bits); }
TERRACE_CODEC_INLINE float WidenElement(Fp16, uint16_t bits) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  return Fp16::Widen(bits);
#endif
}

template <typename Element, uint32_t kWidth>
TERRACE_CODEC_INLINE void WidenAll(const ElementsOf<Element, kWidth>& words,
                                   float (&values)[kWidth]) {
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kWidth; ++i) {
    values[i] = WidenElement(Element{}, ElementAt<Element, kWidth>(words, i));
  }
}

// Two elements of 16 bits out of floats that are no NaN.
template <typename Element>
TERRACE_CODEC_INLINE uint32_t NarrowPair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t pair;
  if constexpr (Element::kMagnitudeLimit == Bf16::kMagnitudeLimit) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
#else
  return Element::NarrowFinite(low) | uint32_t{Element::NarrowFinite(high)} << 16;
#endif
}

// REQUIRES: no value is a NaN.
template <typename Element, uint32_t kWidth>
TERRACE_CODEC_INLINE ElementsOf<Element, kWidth> NarrowAllNumbers(const float (&values)[kWidth]) {
  ElementsOf<Element, kWidth> words;
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < words.kCount; ++i) {
    if constexpr (kElementBytesOf<Element> == 4) {
      words.at[i] = BitsOf(values[i]);
    } else {
      words.at[i] = NarrowPair<Element>(values[2 * i], kWidth > 1 ? values[2 * i + 1] : 0.0f);
    }
  }
  return words;
}

// As Element::Narrow. NaNs are rare, so whether there is one is asked once a vector.
template <typename Element, uint32_t kWidth>
TERRACE_CODEC_INLINE ElementsOf<Element, kWidth> NarrowAll(const float (&values)[kWidth]) {
  bool is_nan = false;
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kWidth; ++i) is_nan |= values[i] != values[i];
  auto words = NarrowAllNumbers<Element, kWidth>(values);
  if (!is_nan) return words;
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < words.kCount; ++i) {
    if constexpr (kElementBytesOf<Element> == 4) {
      words.at[i] = Element::Narrow(values[i]);
    } else {
      words.at[i] = Element::Narrow(values[2 * i]);
      if constexpr (kWidth > 1) words.at[i] |= uint32_t{Element::Narrow(values[2 * i + 1])} << 16;
    }
  }
  return words;
}

// Clamp, of what is no NaN.
template <uint32_t kWidth>
TERRACE_CODEC_INLINE void ClampAll(float (&values)[kWidth], float limit) {
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kWidth; ++i) {
#if defined(__CUDA_ARCH__)
    values[i] = fmaxf(fminf(values[i], limit), -limit);
#else
    values[i] = Clamp(values[i], limit);
#endif
  }
}

// --- what encoders ask of a group: words of one element of 32 bits or of two of 16
// ---------------------------------------------

template <typename Element>
TERRACE_CODEC_INLINE uint32_t MagnitudesOf(uint32_t word) {
  return word & (kElementBytesOf<Element> == 4 ? 0x7FFFFFFFu : 0x7FFF7FFFu);
}

// The larger magnitudes. Of patterns, so a NaN is larger than all.
template <typename Element>
TERRACE_CODEC_INLINE uint32_t LargerMagnitudes(uint32_t a, uint32_t b) {
  if constexpr (kElementBytesOf<Element> == 4) return a > b ? a : b;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return __vmaxu2(a, b);
#else
  const uint32_t low = (a & 0xFFFF) > (b & 0xFFFF) ? a : b;
  const uint32_t high = (a >> 16) > (b >> 16) ? a : b;
  return (low & 0xFFFF) | (high & 0xFFFF0000);
#endif
}

// The smaller numbers of two words, or the larger ones. A NaN is more extreme than any number; of
// two zeros it gives either.
enum class Extreme { kMinimum, kMaximum };

template <typename Element, Extreme kExtreme>
TERRACE_CODEC_INLINE typename Element::Bits MoreExtreme(typename Element::Bits a,
                                                        typename Element::Bits b) {
  const float left = Element::Widen(a);
  const float right = Element::Widen(b);
  const bool is_more = kExtreme == Extreme::kMinimum ? left < right : left > right;
  return is_more || left != left ? a : b;
}

template <typename Element, Extreme kExtreme>
TERRACE_CODEC_INLINE uint32_t Extremes(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  constexpr bool kIsMinimum = kExtreme == Extreme::kMinimum;
  uint32_t word;
  if constexpr (kElementBytesOf<Element> == 4) {
    if constexpr (kIsMinimum) {
      asm("min.NaN.f32 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    } else {
      asm("max.NaN.f32 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    }
  } else if constexpr (Element::kMagnitudeLimit == Bf16::kMagnitudeLimit) {
    if constexpr (kIsMinimum) {
      asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    } else {
      asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    }
  } else {
    if constexpr (kIsMinimum) {
      asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    } else {
      asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    }
  }
  return word;
#else
  if constexpr (kElementBytesOf<Element> == 4) {
    return MoreExtreme<Element, kExtreme>(a, b);
  } else {
    const uint32_t low =
        MoreExtreme<Element, kExtreme>(static_cast<uint16_t>(a), static_cast<uint16_t>(b));
    const uint32_t high = MoreExtreme<Element, kExtreme>(static_cast<uint16_t>(a >> 16),
                                                         static_cast<uint16_t>(b >> 16));
    return low | high << 16;
  }
#endif
}

// --- codes, the first in the lowest bits
// ---------------------------------------------------------------------------

// Byte k of the result is byte k of the selector's nibbles: 0 to 3 of `low`, 4 to 7 of `high`.
TERRACE_CODEC_INLINE uint32_t PickBytes(uint32_t low, uint32_t high, uint32_t selector) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(low, high, selector);
#else
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t picked = 0;
  for (uint32_t k = 0; k < 4; ++k) {
    picked |= static_cast<uint32_t>(bytes >> (selector >> 4 * k & 7) * 8 & 0xFF) << 8 * k;
  }
  return picked;
#endif
}

// The lowest bytes of up to four words.
template <uint32_t kCount>
TERRACE_CODEC_INLINE uint32_t LowestBytes(const uint32_t* words) {
  const uint32_t low = kCount > 1 ? PickBytes(words[0], words[1], 0x0040) : words[0];
  if constexpr (kCount <= 2) return low;
  return PickBytes(low, PickBytes(words[2], words[3], 0x0040), 0x5410);
}

// As EncodeInt8 and EncodeFp8, of up to four values.
template <uint32_t kCount>
TERRACE_CODEC_INLINE uint32_t Int8Codes(const float* values, const float* reciprocals) {
  uint32_t sums[kCount];  // RoundToInt's: the code is the lowest byte
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) {
    sums[i] = BitsOf(values[i] * reciprocals[i] + 12582912.0f);
  }
  return LowestBytes<kCount>(sums);
}

template <uint32_t kCount>
TERRACE_CODEC_INLINE uint32_t Fp8Codes(const float* values, const float* reciprocals) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t pairs[2] = {};
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kCount; i += 2) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(pairs[i / 2])
        : "f"(values[i + 1] * reciprocals[i + 1]), "f"(values[i] * reciprocals[i]));
  }
  return pairs[0] | uint32_t{pairs[1]} << 16;
#else
  uint32_t codes[kCount];
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) codes[i] = EncodeFp8(values[i], reciprocals[i]);
  return LowestBytes<kCount>(codes);
#endif
}

template <bool kIsFp8, uint32_t kWidth>
TERRACE_CODEC_INLINE Words<kWidth> EncodeBytes(const float (&values)[kWidth],
                                               const float (&reciprocals)[kWidth]) {
  constexpr uint32_t kEach = kWidth < 4 ? kWidth : 4;
  Words<kWidth> codes;
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < codes.kCount; ++i) {
    codes.at[i] = kIsFp8 ? Fp8Codes<kEach>(values + 4 * i, reciprocals + 4 * i)
                         : Int8Codes<kEach>(values + 4 * i, reciprocals + 4 * i);
  }
  return codes;
}

// As EncodeInt4: the sums of RoundToInt, shifted into each other, less what they have in common.
template <uint32_t kWidth>
TERRACE_CODEC_INLINE Words<kWidth / 2> EncodeNibbles(const float (&values)[kWidth],
                                                     const float (&half_minima)[kWidth],
                                                     const float (&reciprocals)[kWidth]) {
  uint32_t word = 0, common = 0;
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kWidth; ++i) {
    const uint32_t k = kWidth - 1 - i;
    word = word * 16 + BitsOf((values[k] * 0.5f - half_minima[k]) * reciprocals[k] + 12582912.0f);
    common = common * 16 + 0x4B400000u;
  }
  return {{word - common}};
}

// As DecodeInt8 with a scale of 1: a code is made the last digits of 2^23.
template <uint32_t kWidth>
TERRACE_CODEC_INLINE void WidenInt8(const Words<kWidth>& codes, float (&values)[kWidth]) {
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kWidth; ++i) {
    const uint32_t word = codes.at[i / 4] ^ 0x80808080u;
    values[i] = FloatOf(PickBytes(word, 0x4B000000, 0x7440 | i % 4)) - 8388736.0f;
  }
}

// As DecodeFp8 with a scale of 1: a code's digits as a float's are 2^120 times too small, exactly
// so even where that float is a denormal, which GPUs do not flush unless they are told to.
template <uint32_t kWidth>
TERRACE_CODEC_INLINE void WidenFp8(const Words<kWidth>& codes, float (&values)[kWidth]) {
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kWidth; ++i) {
    const auto top = static_cast<int32_t>(PickBytes(codes.at[i / 4], 0, 0x0444 | i % 4 << 12));
    values[i] = FloatOf(static_cast<uint32_t>(top >> 4) & 0x87F00000u) * 0x1p120f;
  }
}

// The codes of DecodeInt4 as floats: digits of a power of two whose last digits they are.
template <uint32_t kWidth>
TERRACE_CODEC_INLINE void WidenNibbles(uint32_t word, float (&values)[kWidth]) {
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kWidth; ++i) {
    const uint32_t place = 4 * (i % 4);
    const uint32_t power = (150 - place) << 23;  // 2^23 less the place
    values[i] = FloatOf((word >> (i / 4 * 16) & 15u << place) | power) - FloatOf(power);
  }
}

}  // namespace terrace::codec_math

// Pieces for tests of codecs: tensors of a distribution like that of real keys and values, and the
// distance of two tensors.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cuda/kernels/codec.h"
#include "cuda/kernels/codec_math.h"

namespace terrace {

using PieceBytes = std::vector<std::byte>;

inline constexpr Codec kLossyCodecs[] = {Codec::kInt8, Codec::kFp8, Codec::kInt4};
inline constexpr ElementType kElementTypes[] = {ElementType::kBf16, ElementType::kFp16,
                                                ElementType::kFp32};
inline constexpr PieceRole kPieceRoles[] = {PieceRole::kKeys, PieceRole::kValues};

inline std::string NameOf(Codec codec, const PieceShape& shape) {
  constexpr const char* kElementNames[] = {"bf16", "fp16", "fp32"};
  return std::string(CodecName(codec)) + " " + kElementNames[static_cast<int>(shape.element)] +
         (shape.role == PieceRole::kKeys ? " keys " : " values ") + std::to_string(shape.tokens) +
         "x" + std::to_string(shape.heads) + "x" + std::to_string(shape.head_dim);
}

inline void PutElement(ElementType element, float value, std::byte* to) {
  if (element == ElementType::kFp32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const uint16_t bits = element == ElementType::kBf16 ? codec_math::Bf16::Narrow(value)
                                                      : codec_math::Fp16::Narrow(value);
  std::memcpy(to, &bits, sizeof(bits));
}

inline float GetElement(ElementType element, const std::byte* from) {
  if (element == ElementType::kFp32) {
    float value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return element == ElementType::kBf16 ? codec_math::Bf16::Widen(bits)
                                       : codec_math::Fp16::Widen(bits);
}

inline PieceBytes PieceOf(const PieceShape& shape, std::span<const float> values) {
  PieceBytes bytes(shape.raw_bytes());
  for (size_t i = 0; i < values.size(); ++i) {
    PutElement(shape.element, values[i], &bytes[i * ElementBytes(shape.element)]);
  }
  return bytes;
}

inline std::vector<float> ValuesOf(const PieceShape& shape, std::span<const std::byte> bytes) {
  std::vector<float> values(shape.element_count());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = GetElement(shape.element, &bytes[i * ElementBytes(shape.element)]);
  }
  return values;
}

// Keys with four outlier channels a head (mean 8 to 20), values with a log-normal scale a token.
inline std::vector<float> LikelyValues(const PieceShape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> channel_mean(shape.channel_count(), 0.0f);
  for (uint32_t head = 0; head < shape.heads; ++head) {
    for (uint32_t outlier = 0; outlier < 4; ++outlier) {
      const float sign = random() % 2 == 0 ? 1.0f : -1.0f;
      const float mean = 8.0f + 12.0f * static_cast<float>(random() % 1000) / 1000.0f;
      channel_mean[head * shape.head_dim + random() % shape.head_dim] = sign * mean;
    }
  }
  std::vector<float> values;
  values.reserve(shape.element_count());
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    const float scale = shape.role == PieceRole::kKeys ? 1.0f : std::exp(normal(random));
    for (uint64_t channel = 0; channel < shape.channel_count(); ++channel) {
      const float mean = shape.role == PieceRole::kKeys ? channel_mean[channel] : 0.0f;
      values.push_back(mean + scale * normal(random));
    }
  }
  return values;
}

// Root of the mean square of the differences over that of the truth.
inline double RelativeRms(std::span<const float> truth, std::span<const float> values) {
  double difference = 0, square = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    difference += std::pow(double{values[i]} - double{truth[i]}, 2);
    square += std::pow(double{truth[i]}, 2);
  }
  return std::sqrt(difference / square);
}

inline PieceBytes Encoded(Codec codec, const PieceShape& shape, const PieceBytes& raw,
                          SimdLevel level = BestSimdLevel()) {
  PieceBytes encoded(LayoutOf(codec, shape).encoded_bytes, std::byte{0xA5});
  if (!EncodePiece(codec, shape, raw, encoded, level).ok()) encoded.clear();
  return encoded;
}

inline PieceBytes Decoded(Codec codec, const PieceShape& shape, const PieceBytes& encoded,
                          SimdLevel level = BestSimdLevel()) {
  PieceBytes raw(shape.raw_bytes(), std::byte{0xA5});
  DecodePiece(codec, shape, encoded, raw, level);
  return raw;
}

}  // namespace terrace

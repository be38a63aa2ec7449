#include "cuda/kernels/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "tests/stride.h"
#include "unit/cuda/codec_pieces.h"

namespace terrace {
namespace {

using codec_math::Bf16;
using codec_math::Fp16;

constexpr double kFlushed = 0x1p-99;  // codec_math::kNothing, and its rounding

// The largest distance between a group's value and its decoded one, docs/CODECS.md.
struct Group {
  double minimum = 0;
  double maximum = 0;
  double magnitude = 0;
};

double BoundOf(Codec codec, ElementType element, const Group& group, double value) {
  const double rounding = element == ElementType::kFp32   ? 0x1p-23
                          : element == ElementType::kFp16 ? 0x1p-11
                                                          : 0x1p-8;
  const double of_result = std::abs(value) * rounding * 1.01 + 0x1p-25;
  const double slack = 1 + 0x1p-7 + 0x1p-16;  // the scale is rounded up to bf16
  if (codec == Codec::kInt8) return group.magnitude / 254 * slack + of_result * 1.01 + kFlushed;
  if (codec == Codec::kFp8) {
    const double smallest = group.magnitude / 448 * slack * 0x1p-10;
    return std::abs(value) / 16 * 1.001 + smallest + of_result + kFlushed;
  }
  // The minimum is rounded down to bf16, which widens the range.
  const double range = group.maximum - group.minimum + group.magnitude * 0x1p-7;
  return range / 30 * slack + (group.magnitude + range) * rounding * 1.1 + 0x1p-25 + kFlushed;
}

// The group that element `index` belongs to, by the plain definition.
std::vector<size_t> GroupMembers(Codec codec, const PieceShape& shape, size_t index) {
  const size_t channels = shape.channel_count();
  const size_t token = index / channels, channel = index % channels;
  const size_t head_first = channel / shape.head_dim * shape.head_dim;
  std::vector<size_t> members;
  const bool is_keys = shape.role == PieceRole::kKeys;
  if (is_keys && codec != Codec::kFp8) {
    const size_t group = codec == Codec::kInt4 ? kInt4GroupElements : shape.tokens;
    const size_t first = token / group * group;
    for (size_t t = first; t < std::min<size_t>(first + group, shape.tokens); ++t) {
      members.push_back(t * channels + channel);
    }
    return members;
  }
  const size_t group = codec == Codec::kInt4 ? kInt4GroupElements : shape.head_dim;
  const size_t first = (channel - head_first) / group * group;
  for (size_t d = first; d < std::min<size_t>(first + group, shape.head_dim); ++d) {
    members.push_back(token * channels + head_first + d);
  }
  return members;
}

Group GroupOf(std::span<const float> values, std::span<const size_t> members) {
  Group group = {.minimum = values[members[0]], .maximum = values[members[0]]};
  for (const size_t member : members) {
    group.minimum = std::min<double>(group.minimum, values[member]);
    group.maximum = std::max<double>(group.maximum, values[member]);
    group.magnitude = std::max<double>(group.magnitude, std::abs(double{values[member]}));
  }
  return group;
}

void ExpectWithinBounds(Codec codec, const PieceShape& shape, const PieceBytes& raw) {
  const PieceBytes encoded = Encoded(codec, shape, raw);
  ASSERT_FALSE(encoded.empty()) << NameOf(codec, shape);
  const std::vector<float> truth = ValuesOf(shape, raw);
  const std::vector<float> values = ValuesOf(shape, Decoded(codec, shape, encoded));
  for (size_t i = 0; i < truth.size(); i += test::Stride()) {
    const Group group = GroupOf(truth, GroupMembers(codec, shape, i));
    const double bound = BoundOf(codec, shape.element, group, truth[i]);
    ASSERT_TRUE(std::isfinite(values[i])) << NameOf(codec, shape) << " element " << i;
    ASSERT_LE(std::abs(double{values[i]} - double{truth[i]}), bound)
        << NameOf(codec, shape) << " element " << i << ": " << truth[i] << " became " << values[i];
  }
}

PieceShape ShapeOf(ElementType element, PieceRole role, uint32_t tokens, uint32_t heads,
                   uint32_t head_dim) {
  return {.element = element, .role = role, .tokens = tokens, .heads = heads, .head_dim = head_dim};
}

// Every finite pattern of 16 bits once, in an order that mixes magnitudes, then in rising order.
std::vector<uint16_t> FinitePatterns(uint32_t magnitude_limit, uint32_t stride) {
  std::vector<uint16_t> patterns;
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto pattern = static_cast<uint16_t>(i * stride);
    if ((pattern & 0x7FFFu) <= magnitude_limit) patterns.push_back(pattern);
  }
  while (patterns.size() % 256 != 0) patterns.push_back(0);
  return patterns;
}

// PROMISE: T06 all patterns of 16 bits
TEST(Codec, EveryFinitePatternOfSixteenBitsIsWithinItsBound) {
  for (const ElementType element : {ElementType::kBf16, ElementType::kFp16}) {
    const uint32_t limit =
        element == ElementType::kBf16 ? Bf16::kMagnitudeLimit : Fp16::kMagnitudeLimit;
    for (const uint32_t stride : {1u, 40503u}) {
      const std::vector<uint16_t> patterns = FinitePatterns(limit, stride);
      for (const PieceRole role : kPieceRoles) {
        const PieceShape shape =
            ShapeOf(element, role, static_cast<uint32_t>(patterns.size() / 128), 2, 64);
        PieceBytes raw(shape.raw_bytes());
        std::memcpy(raw.data(), patterns.data(), raw.size());
        // One piece of all patterns: a token's row and a channel's column hold many magnitudes.
        for (const Codec codec : {Codec::kFp8, Codec::kInt4}) ExpectWithinBounds(codec, shape, raw);
        if (role == PieceRole::kValues) ExpectWithinBounds(Codec::kInt8, shape, raw);
      }
    }
  }
}

// Sixteen tokens of like magnitude a channel, so that no pattern hides behind a larger one.
TEST(Codec, EveryFinitePatternIsWithinItsBoundAmongItsNeighbours) {
  for (const ElementType element : {ElementType::kBf16, ElementType::kFp16}) {
    const uint32_t limit =
        element == ElementType::kBf16 ? Bf16::kMagnitudeLimit : Fp16::kMagnitudeLimit;
    const std::vector<uint16_t> patterns = FinitePatterns(limit, 1);
    const PieceShape shape = ShapeOf(element, PieceRole::kKeys, 16, 1, 64);
    for (size_t first = 0; first + 1024 <= patterns.size(); first += 1024 * test::Stride()) {
      PieceBytes raw(shape.raw_bytes());
      for (size_t i = 0; i < 1024; ++i) {
        const uint16_t pattern = patterns[first + i % 16 * 64 + i / 16];
        std::memcpy(&raw[((i % 16) * 64 + i / 16) * 2], &pattern, 2);
      }
      for (const Codec codec : kLossyCodecs) ExpectWithinBounds(codec, shape, raw);
    }
  }
}

// TERRACE_CODEC_RANDOMS=100000000 is the long run.
// PROMISE: T06 random values
TEST(Codec, RandomValuesOfAnyMagnitudeAreWithinTheirBounds) {
  const char* asked = std::getenv("TERRACE_CODEC_RANDOMS");
  const uint64_t count =
      asked == nullptr ? 1'000'000 / test::Stride() : std::strtoull(asked, nullptr, 10);
  std::mt19937_64 random(20261121);
  uint64_t done = 0;
  for (uint64_t round = 0; done < count; ++round) {
    const PieceShape shape =
        ShapeOf(kElementTypes[round % 3], kPieceRoles[round / 3 % 2],
                1 + static_cast<uint32_t>(random() % 70), 1 + static_cast<uint32_t>(random() % 3),
                2 * (1 + static_cast<uint32_t>(random() % 40)));
    PieceBytes raw(shape.raw_bytes());
    const uint32_t bit_count = shape.element == ElementType::kFp32 ? 32 : 16;
    const uint32_t narrowing = random() % 4 == 0 ? 0x7F : 0x03;  // how far exponents lie apart
    const uint64_t base = random();
    for (size_t i = 0; i < shape.element_count(); ++i) {
      const auto any = static_cast<uint32_t>(random());
      const uint32_t mantissa_bits = shape.element == ElementType::kBf16   ? 7
                                     : shape.element == ElementType::kFp16 ? 10
                                                                           : 23;
      uint32_t exponent = static_cast<uint32_t>(base + (any & narrowing)) &
                          ((1u << (bit_count - 1 - mantissa_bits)) - 1);
      if (exponent == (1u << (bit_count - 1 - mantissa_bits)) - 1) exponent = 1;
      uint32_t bits = (any >> 31) << (bit_count - 1) | exponent << mantissa_bits |
                      (static_cast<uint32_t>(random()) & ((1u << mantissa_bits) - 1));
      if (shape.element == ElementType::kFp32 && (bits & 0x7FFFFFFF) > 0x7F7F0000) bits = 0;
      std::memcpy(&raw[i * (bit_count / 8)], &bits, bit_count / 8);
    }
    const Codec codec = kLossyCodecs[random() % 3];
    ASSERT_NO_FATAL_FAILURE(ExpectWithinBounds(codec, shape, raw)) << "round " << round;
    done += shape.element_count();
  }
}

// PROMISE: T06 relative errors
TEST(Codec, RelativeErrorsOfLikelyKeysAndValuesAreSmall) {
  struct Limit {
    Codec codec;
    PieceRole role;
    double relative_rms;
  };
  const Limit limits[] = {
      {Codec::kFp8, PieceRole::kKeys, .03},   {Codec::kFp8, PieceRole::kValues, .03},
      {Codec::kInt8, PieceRole::kKeys, .004}, {Codec::kInt8, PieceRole::kValues, .008},
      {Codec::kInt4, PieceRole::kKeys, .04},  {Codec::kInt4, PieceRole::kValues, .09},
  };
  for (const Limit& limit : limits) {
    for (const uint32_t tokens : {16u, 32u, 64u}) {
      // fp32 shows the codec's own error; an engine's bf16 adds its rounding.
      const PieceShape shape = ShapeOf(ElementType::kFp32, limit.role, tokens, 4, 128);
      std::vector<float> truth, values;
      for (uint64_t seed = 0; seed < 2048 / tokens; seed += test::Stride()) {
        const PieceBytes raw = PieceOf(shape, LikelyValues(shape, seed));
        const std::vector<float> decoded =
            ValuesOf(shape, Decoded(limit.codec, shape, Encoded(limit.codec, shape, raw)));
        const std::vector<float> original = ValuesOf(shape, raw);
        truth.insert(truth.end(), original.begin(), original.end());
        values.insert(values.end(), decoded.begin(), decoded.end());
      }
      const double relative_rms = RelativeRms(truth, values);
      EXPECT_LE(relative_rms, limit.relative_rms) << NameOf(limit.codec, shape);
      if (tokens == 16) {
        RecordProperty(NameOf(limit.codec, shape), std::to_string(relative_rms));
        std::printf("  %-28s relative rms %.4f\n", NameOf(limit.codec, shape).c_str(),
                    relative_rms);
      }
    }
  }
}

// PROMISE: T06 equal bits of all instruction sets
TEST(Codec, AllInstructionSetsWriteTheSameBits) {
  if (BestSimdLevel() == SimdLevel::kPortable) {
    GTEST_SKIP() << "SKIPPED: this machine has one instruction set, nothing to compare";
  }
  std::mt19937_64 random(3);
  const uint32_t extents[][3] = {{16, 8, 128}, {1, 1, 2},  {33, 3, 80}, {7, 2, 66},
                                 {64, 1, 576}, {5, 9, 30}, {32, 9, 128}};
  for (const auto& [tokens, heads, head_dim] : extents) {
    for (const ElementType element : kElementTypes) {
      for (const PieceRole role : kPieceRoles) {
        const PieceShape shape = ShapeOf(element, role, tokens, heads, head_dim);
        std::vector<float> values = LikelyValues(shape, random());
        for (size_t i = 0; i < values.size();
             i += 11) {  // small, zero and negative zero among them
          values[i] = std::bit_cast<float>(static_cast<uint32_t>(random() % 0x39000000));
        }
        for (size_t i = 5; i < values.size(); i += 13) values[i] = i % 2 == 0 ? 0.0f : -0.0f;
        const PieceBytes raw = PieceOf(shape, values);
        for (const Codec codec : kLossyCodecs) {
          const PieceBytes encoded = Encoded(codec, shape, raw, SimdLevel::kPortable);
          const PieceBytes decoded = Decoded(codec, shape, encoded, SimdLevel::kPortable);
          for (const SimdLevel level : {SimdLevel::kAvx2, SimdLevel::kAvx512}) {
            if (level > BestSimdLevel()) continue;
            EXPECT_EQ(Encoded(codec, shape, raw, level), encoded) << NameOf(codec, shape);
            EXPECT_EQ(Decoded(codec, shape, encoded, level), decoded) << NameOf(codec, shape);
          }
        }
      }
    }
  }
}

// PROMISE: T06 NaN and infinity
TEST(Codec, OneValueThatIsNotFiniteRefusesThePieceWhereverItIs) {
  const uint32_t wrong_bf16[] = {0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF};
  const uint32_t wrong_fp16[] = {0x7C00, 0xFC00, 0x7E00, 0x7C01};
  const uint32_t wrong_fp32[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x7F7F0001};
  const std::span<const uint32_t> wrong[] = {wrong_bf16, wrong_fp16, wrong_fp32};
  for (const ElementType element : kElementTypes) {
    for (const PieceRole role : kPieceRoles) {
      const PieceShape shape = ShapeOf(element, role, 35, 2, 34);
      const PieceBytes good = PieceOf(shape, LikelyValues(shape, 1));
      for (const Codec codec : kLossyCodecs) {
        PieceBytes encoded(LayoutOf(codec, shape).encoded_bytes);
        ASSERT_TRUE(EncodePiece(codec, shape, good, encoded).ok());
        for (const uint32_t bits : wrong[static_cast<int>(element)]) {
          for (size_t at = 0; at < shape.element_count(); at += 97) {
            PieceBytes raw = good;
            const uint64_t element_bytes = ElementBytes(element);
            std::memcpy(&raw[at * element_bytes], &bits, element_bytes);
            EXPECT_EQ(EncodePiece(codec, shape, raw, encoded).code(), StatusCode::kUnsupported)
                << NameOf(codec, shape) << " at " << at;
          }
        }
      }
    }
  }
}

TEST(Codec, ZerosStayZerosAndTheSmallestStayFinite) {
  for (const ElementType element : kElementTypes) {
    for (const PieceRole role : kPieceRoles) {
      const PieceShape shape = ShapeOf(element, role, 16, 2, 32);
      for (const Codec codec : kLossyCodecs) {
        const std::vector<float> zeros(shape.element_count(), 0.0f);
        EXPECT_EQ(Decoded(codec, shape, Encoded(codec, shape, PieceOf(shape, zeros))),
                  PieceOf(shape, zeros))
            << NameOf(codec, shape);
        for (const float tiny : {0x1p-149f, 0x1p-133f, 0x1p-126f, 0x1p-101f, 0x1p-100f, 0x1p-24f}) {
          std::vector<float> values(shape.element_count(), tiny);
          values[3] = -tiny;
          ExpectWithinBounds(codec, shape, PieceOf(shape, values));
        }
      }
    }
  }
}

TEST(Codec, TheLargestValuesDecodeToFiniteOnes) {
  for (const ElementType element : kElementTypes) {
    const float largest = element == ElementType::kFp16 ? 65504.0f : codec_math::kMagnitudeMax;
    for (const PieceRole role : kPieceRoles) {
      const PieceShape shape = ShapeOf(element, role, 16, 1, 32);
      std::vector<float> values(shape.element_count());
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = largest * (i % 3 == 0 ? -1.0f : 1.0f - static_cast<float>(i % 7) / 8);
      }
      for (const Codec codec : kLossyCodecs) {
        ExpectWithinBounds(codec, shape, PieceOf(shape, values));
      }
    }
  }
}

TEST(Codec, AnyBytesDecodeToFiniteValuesWithinTheirPlace) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    const PieceShape shape =
        ShapeOf(kElementTypes[round % 3], kPieceRoles[round / 3 % 2],
                1 + static_cast<uint32_t>(random() % 40), 1 + static_cast<uint32_t>(random() % 3),
                2 * (1 + static_cast<uint32_t>(random() % 40)));
    for (const Codec codec : kLossyCodecs) {
      PieceBytes hostile(LayoutOf(codec, shape).encoded_bytes);
      for (std::byte& byte : hostile) byte = static_cast<std::byte>(random());
      if (round % 4 == 0) std::fill(hostile.begin(), hostile.end(), std::byte{0xFF});
      const PieceBytes decoded = Decoded(codec, shape, hostile);
      for (const float value : ValuesOf(shape, decoded)) {
        ASSERT_TRUE(std::isfinite(value)) << NameOf(codec, shape);
      }
      EXPECT_EQ(decoded, Decoded(codec, shape, hostile, SimdLevel::kPortable));
    }
  }
}

TEST(Codec, RawIsACopy) {
  const PieceShape shape = ShapeOf(ElementType::kBf16, PieceRole::kKeys, 16, 2, 64);
  PieceBytes raw(shape.raw_bytes(), std::byte{0xFF});  // NaN
  EXPECT_EQ(Encoded(Codec::kRaw, shape, raw), raw);
  EXPECT_EQ(Decoded(Codec::kRaw, shape, raw), raw);
}

TEST(CodecMath, HalvesWidenExactlyAndNarrowToTheNearest) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const uint32_t exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float value = Fp16::Widen(half);
    if (exponent == 31) {
      EXPECT_EQ(std::isinf(value), mantissa == 0);
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      if (mantissa == 0) {
        EXPECT_EQ(Fp16::Narrow(value), half);
      }
      continue;
    }
    const double truth = exponent == 0
                             ? std::ldexp(mantissa, -24)
                             : std::ldexp(1024.0 + mantissa, static_cast<int>(exponent) - 25);
    ASSERT_EQ(double{value}, (bits & 0x8000) != 0 ? -truth : truth);
    ASSERT_EQ(Fp16::Narrow(value), half);
    if ((bits & 0x7FFF) >= 0x7BFF) continue;
    // Half-way to the next: to the even one; a little beyond: to the next.
    const float next = Fp16::Widen(static_cast<uint16_t>(half + 1));
    const float middle = (value + next) / 2;
    ASSERT_EQ(Fp16::Narrow(middle), bits % 2 == 0 ? half : half + 1);
    ASSERT_EQ(Fp16::Narrow(std::nextafter(middle, next)), half + 1);
    ASSERT_EQ(Fp16::Narrow(std::nextafter(middle, value)), half);
  }
  EXPECT_EQ(Fp16::Narrow(65519.99f), 0x7BFF);
  EXPECT_EQ(Fp16::Narrow(65520.0f), 0x7C00);
  EXPECT_EQ(Fp16::Narrow(1e30f), 0x7C00);
}

TEST(CodecMath, EveryFp8CodeIsTheNearestOfItsValue) {
  for (uint32_t code = 0; code < 0x7E; ++code) {
    const float value = codec_math::DecodeFp8(static_cast<uint8_t>(code), 1.0f);
    const uint32_t exponent = code >> 3, mantissa = code & 7;
    const double truth = exponent == 0
                             ? std::ldexp(mantissa, -9)
                             : std::ldexp(8.0 + mantissa, static_cast<int>(exponent) - 10);
    ASSERT_EQ(double{value}, truth);
    ASSERT_EQ(codec_math::EncodeFp8(value, 1.0f), code);
    ASSERT_EQ(codec_math::EncodeFp8(-value, 1.0f), code | 0x80);
    const float next = codec_math::DecodeFp8(static_cast<uint8_t>(code + 1), 1.0f);
    const float middle = (value + next) / 2;
    ASSERT_EQ(codec_math::EncodeFp8(middle, 1.0f), code % 2 == 0 ? code : code + 1);
    ASSERT_EQ(codec_math::EncodeFp8(std::nextafter(middle, next), 1.0f), code + 1);
    ASSERT_EQ(codec_math::EncodeFp8(std::nextafter(middle, value), 1.0f), code);
  }
  EXPECT_EQ(codec_math::EncodeFp8(1000.0f, 1.0f), 0x7E);  // never the pattern of NaN
}

}  // namespace
}  // namespace terrace

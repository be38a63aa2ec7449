#include "cuda/kernels/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "cuda/kernels/rope_math.h"
#include "unit/cuda/codec_pieces.h"

namespace terrace {
namespace {

RopeSpec SpecOf(RopePairing pairing, uint32_t rot_dim, uint32_t rot_offset) {
  RopeSpec spec = {.pairing = pairing, .rot_dim = rot_dim, .rot_offset = rot_offset};
  for (uint32_t i = 0; i < rot_dim / 2; ++i) {
    spec.inv_freq.push_back(std::pow(500'000.0, -2.0 * i / rot_dim));
  }
  return spec;
}

PieceShape ShapeOf(ElementType element, uint32_t heads, uint32_t head_dim) {
  return {.element = element, .tokens = 16, .heads = heads, .head_dim = head_dim};
}

// Keys at other positions, in double.
std::vector<double> TurnedTruth(const PieceShape& shape, const RopeSpec& spec, int32_t delta,
                                std::span<const float> keys) {
  std::vector<double> turned(keys.begin(), keys.end());
  const uint32_t pairs = spec.rot_dim / 2;
  for (size_t row = 0; row < size_t{shape.tokens} * shape.heads; ++row) {
    const size_t window = row * shape.head_dim + spec.rot_offset;
    for (uint32_t i = 0; i < pairs; ++i) {
      const bool is_neox = spec.pairing == RopePairing::kNeox;
      const size_t first = window + (is_neox ? i : 2 * i);
      const size_t second = window + (is_neox ? i + pairs : 2 * i + 1);
      const long double angle = static_cast<long double>(delta) * spec.inv_freq[i];
      const double x = keys[first], y = keys[second];
      turned[first] = static_cast<double>(x * std::cos(angle) - y * std::sin(angle));
      turned[second] = static_cast<double>(y * std::cos(angle) + x * std::sin(angle));
    }
  }
  return turned;
}

double RelativeRmsOf(std::span<const double> truth, std::span<const float> values) {
  double difference = 0, square = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    difference += std::pow(values[i] - truth[i], 2);
    square += std::pow(truth[i], 2);
  }
  return std::sqrt(difference / square);
}

struct Window {
  const char* name;
  uint32_t heads, head_dim, rot_dim, rot_offset;
};
constexpr Window kWindows[] = {
    {"whole", 4, 128, 128, 0}, {"partial", 4, 96, 32, 0}, {"trailing", 1, 576, 64, 512}};
constexpr int32_t kDeltas[] = {1, -1, 17, -4096, 131'072, 1'000'000, -1'000'000};

// PROMISE: T07 against double precision
TEST(Rope, OneTurnByTheDeltaIsNearTheTruth) {
  for (const Window& window : kWindows) {
    for (const RopePairing pairing : {RopePairing::kNeox, RopePairing::kGptj}) {
      for (const ElementType element : kElementTypes) {
        const PieceShape shape = ShapeOf(element, window.heads, window.head_dim);
        const RopeSpec spec = SpecOf(pairing, window.rot_dim, window.rot_offset);
        for (const int32_t delta : kDeltas) {
          PieceBytes keys = PieceOf(shape, LikelyValues(shape, 5));
          const std::vector<double> truth = TurnedTruth(shape, spec, delta, ValuesOf(shape, keys));
          TurnKeys(shape, RopeTable(spec, delta), keys);
          EXPECT_LE(RelativeRmsOf(truth, ValuesOf(shape, keys)),
                    element == ElementType::kFp32 ? 1e-6 : .003)
              << window.name << " delta " << delta;
        }
      }
    }
  }
}

// PROMISE: T07 no turn
TEST(Rope, ADeltaOfZeroIsACopyOfEveryBit) {
  const PieceShape shape = ShapeOf(ElementType::kBf16, 4, 128);
  PieceBytes keys(shape.raw_bytes());
  for (size_t i = 0; i < keys.size() / 2; ++i) {  // NaN and infinities among them
    const auto pattern = static_cast<uint16_t>(i * 9);
    std::memcpy(&keys[2 * i], &pattern, 2);
  }
  const PieceBytes before = keys;
  const RopeTable table(SpecOf(RopePairing::kNeox, 128, 0), 0);
  TurnKeys(shape, table, keys);
  EXPECT_EQ(keys, before);
  PieceBytes rows(shape.raw_bytes());
  DecodeTurnScatter(Codec::kRaw, shape, before, &table, {rows.data(), shape.raw_bytes() / 16});
  EXPECT_EQ(rows, before);
}

// PROMISE: T07 dimensions without positions
TEST(Rope, WhatIsOutsideTheWindowStaysBitByBit) {
  for (const Window& window : kWindows) {
    const PieceShape shape = ShapeOf(ElementType::kBf16, window.heads, window.head_dim);
    const PieceBytes before = PieceOf(shape, LikelyValues(shape, 6));
    PieceBytes keys = before;
    TurnKeys(shape, RopeTable(SpecOf(RopePairing::kNeox, window.rot_dim, window.rot_offset), 333),
             keys);
    uint64_t changed_count = 0;
    for (size_t i = 0; i < shape.element_count(); ++i) {
      const uint32_t at = static_cast<uint32_t>(i % shape.head_dim);
      const bool is_within = at >= window.rot_offset && at < window.rot_offset + window.rot_dim;
      const bool is_same = std::memcmp(&keys[2 * i], &before[2 * i], 2) == 0;
      ASSERT_TRUE(is_within || is_same) << window.name << " element " << i;
      changed_count += is_same ? 0 : 1;
    }
    EXPECT_GT(changed_count, uint64_t{shape.tokens} * window.heads * window.rot_dim / 2);
  }
}

// Each machine has a NaN of its own; what is stored is one for all.
TEST(Rope, NaNsThatAreTurnedAreTheSameEverywhere) {
  using codec_math::Bf16, codec_math::Fp16, codec_math::Fp32;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float made = kInfinity - kInfinity;  // with a sign on some machines
  for (const float nan : {std::bit_cast<float>(0x7F812345u), std::bit_cast<float>(0xFFFFFFFFu),
                          std::bit_cast<float>(0x7FFFFFFFu), made, -made}) {
    EXPECT_EQ(Bf16::Narrow(nan), 0x7FC0);
    EXPECT_EQ(Fp16::Narrow(nan), 0x7E00);
    EXPECT_EQ(Fp32::Narrow(nan), 0x7FC00000u);
  }
  EXPECT_EQ(Bf16::Narrow(-kInfinity), 0xFF80);
  EXPECT_EQ(Fp16::Narrow(-kInfinity), 0xFC00);
  EXPECT_EQ(Fp32::Narrow(-kInfinity), 0xFF800000u);
}

// Of one pair after the other, as cuda/kernels/rope_math.h has it.
template <typename Element>
PieceBytes TurnedOneByOne(const PieceShape& shape, const RopeTable& table, const PieceBytes& keys) {
  using Bits = typename Element::Bits;
  const RopeSpec& spec = table.spec();
  const bool is_neox = spec.pairing == RopePairing::kNeox;
  PieceBytes turned = keys;
  for (size_t row = 0; row < size_t{shape.tokens} * shape.heads; ++row) {
    const size_t window = row * shape.head_dim + spec.rot_offset;
    for (uint32_t i = 0; i < spec.rot_dim / 2; ++i) {
      const size_t at[2] = {window + rope_math::FirstOf(i, is_neox),
                            window + rope_math::SecondOf(i, spec.rot_dim / 2, is_neox)};
      Bits bits[2];
      for (int k = 0; k < 2; ++k) std::memcpy(&bits[k], &keys[at[k] * sizeof(Bits)], sizeof(Bits));
      const rope_math::Pair pair =
          rope_math::Turn({Element::Widen(bits[0]), Element::Widen(bits[1])}, table.turns()[2 * i],
                          table.turns()[2 * i + 1]);
      bits[0] = Element::Narrow(pair.first);
      bits[1] = Element::Narrow(pair.second);
      for (int k = 0; k < 2; ++k) {
        std::memcpy(&turned[at[k] * sizeof(Bits)], &bits[k], sizeof(Bits));
      }
    }
  }
  return turned;
}

// Any bits, so infinities and NaN, too; odd windows of odd heads.
TEST(Rope, EveryLevelTurnsToTheSameBits) {
  std::mt19937 random(3);
  for (const ElementType element : {ElementType::kBf16, ElementType::kFp16, ElementType::kFp32}) {
    for (const RopePairing pairing : {RopePairing::kNeox, RopePairing::kGptj}) {
      for (const Window& window :
           {Window{"", 3, 128, 128, 0}, Window{"", 2, 70, 34, 5}, Window{"", 1, 6, 2, 3}}) {
        const PieceShape shape = ShapeOf(element, window.heads, window.head_dim);
        PieceBytes keys(shape.raw_bytes());
        for (std::byte& byte : keys) byte = static_cast<std::byte>(random());
        const RopeTable table(SpecOf(pairing, window.rot_dim, window.rot_offset), 1234);
        const PieceBytes expected =
            element == ElementType::kBf16   ? TurnedOneByOne<codec_math::Bf16>(shape, table, keys)
            : element == ElementType::kFp16 ? TurnedOneByOne<codec_math::Fp16>(shape, table, keys)
                                            : TurnedOneByOne<codec_math::Fp32>(shape, table, keys);
        for (int level = 0; level <= static_cast<int>(BestSimdLevel()); ++level) {
          PieceBytes turned(1 + keys.size());  // aligned to nothing
          DecodeAndTurn(Codec::kRaw, shape, keys, table.view(),
                        {turned.data() + 1, shape.raw_bytes() / shape.tokens},
                        static_cast<SimdLevel>(level));
          ASSERT_TRUE(std::equal(expected.begin(), expected.end(), turned.begin() + 1))
              << "element " << static_cast<int>(element) << ", level " << level;
        }
      }
    }
  }
}

TEST(Rope, ThereAndBackIsWhereItWas) {
  const PieceShape shape = ShapeOf(ElementType::kFp32, 2, 64);
  const RopeSpec spec = SpecOf(RopePairing::kGptj, 64, 0);
  const PieceBytes before = PieceOf(shape, LikelyValues(shape, 8));
  PieceBytes keys = before;
  TurnKeys(shape, RopeTable(spec, 77'777), keys);
  TurnKeys(shape, RopeTable(spec, -77'777), keys);
  EXPECT_LE(RelativeRms(ValuesOf(shape, before), ValuesOf(shape, keys)), 1e-6);
}

// The fused path rounds once: it is nearer to the truth than decoding to bf16 and turning that.
TEST(Rope, DecodedKeysAreTurnedBeforeTheyAreRounded) {
  const PieceShape shape = ShapeOf(ElementType::kBf16, 4, 128);
  const RopeSpec spec = SpecOf(RopePairing::kNeox, 128, 0);
  const RopeTable table(spec, 12'345);
  for (const Codec codec : kLossyCodecs) {
    const PieceBytes encoded = Encoded(codec, shape, PieceOf(shape, LikelyValues(shape, 9)));
    PieceShape wide = shape;
    wide.element = ElementType::kFp32;
    const std::vector<double> truth =
        TurnedTruth(shape, spec, 12'345, ValuesOf(wide, Decoded(codec, wide, encoded)));
    PieceBytes rows(shape.raw_bytes());
    DecodeTurnScatter(codec, shape, encoded, &table, {rows.data(), shape.raw_bytes() / 16});
    PieceBytes stepwise = Decoded(codec, shape, encoded);
    TurnKeys(shape, table, stepwise);
    const double fused_rms = RelativeRmsOf(truth, ValuesOf(shape, rows));
    EXPECT_LE(fused_rms, .0018) << CodecName(codec);  // bf16's own rounding is .00166
    EXPECT_LT(fused_rms, RelativeRmsOf(truth, ValuesOf(shape, stepwise))) << CodecName(codec);
  }
}

TEST(Rope, RowsGoWhereTheyBelongAndNowhereElse) {
  const PieceShape shape = ShapeOf(ElementType::kFp16, 2, 32);
  const uint64_t token_bytes = shape.raw_bytes() / shape.tokens;
  const uint64_t stride = token_bytes + 40;
  const PieceBytes encoded = Encoded(Codec::kInt8, shape, PieceOf(shape, LikelyValues(shape, 10)));
  const RopeTable table(SpecOf(RopePairing::kGptj, 32, 0), -5);
  PieceBytes dense(shape.raw_bytes());
  DecodeTurnScatter(Codec::kInt8, shape, encoded, &table, {dense.data(), token_bytes});
  PieceBytes page(stride * shape.tokens, std::byte{0x5A});
  DecodeTurnScatter(Codec::kInt8, shape, encoded, &table, {page.data(), stride});
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    EXPECT_EQ(std::memcmp(&page[token * stride], &dense[token * token_bytes], token_bytes), 0);
    for (uint64_t i = token_bytes; i < stride; ++i) {
      ASSERT_EQ(page[token * stride + i], std::byte{0x5A}) << token;
    }
  }
  // Without a table, or by no positions, it is what the codec decodes.
  DecodeTurnScatter(Codec::kInt8, shape, encoded, nullptr, {dense.data(), token_bytes});
  EXPECT_EQ(dense, Decoded(Codec::kInt8, shape, encoded));
}

// PROMISE: T07 other kinds
TEST(Rope, WhatIsNotSupportedIsRefusedByName) {
  struct Row {
    RopeDeclaration declaration;
    const char* named;
  };
  const Row rows[] = {
      {{.pairing = "neox", .scaling = "dynamic"}, "dynamic"},
      {{.pairing = "neox", .scaling = "longrope"}, "longrope"},
      {{.pairing = "neox", .scaling = "mrope"}, "mrope"},
      {{.pairing = "alibi", .scaling = ""}, "alibi"},
      {{.pairing = "", .scaling = ""}, "kind ''"},
      {{.pairing = "neox", .scaling = "", .is_per_layer = true}, "layers"},
      {{.pairing = "gptj", .scaling = "yarn", .is_multidimensional = true}, "mrope"},
      {{.pairing = "neox", .scaling = "", .is_quantised_by_engine = true}, "quantised"},
  };
  for (const Row& row : rows) {
    std::string why;
    EXPECT_EQ(CheckRope(row.declaration, &why).code(), StatusCode::kUnsupported) << row.named;
    EXPECT_NE(why.find(row.named), std::string::npos) << why;
  }
  std::string why;
  EXPECT_EQ(*CheckRope({.pairing = "neox", .scaling = "llama3"}, &why), RopePairing::kNeox);
  EXPECT_EQ(*CheckRope({.pairing = "gptj", .scaling = "yarn"}, &why), RopePairing::kGptj);
}

TEST(Rope, ASpecThatDoesNotFitItsHeadsIsRefused) {
  std::string why;
  EXPECT_TRUE(SpecOf(RopePairing::kNeox, 64, 64).Validate(128, &why).ok()) << why;
  EXPECT_FALSE(SpecOf(RopePairing::kNeox, 64, 66).Validate(128, &why).ok());
  EXPECT_FALSE(SpecOf(RopePairing::kNeox, 0, 0).Validate(128, &why).ok());
  EXPECT_FALSE(SpecOf(RopePairing::kNeox, 64, 0xFFFFFFF0).Validate(128, &why).ok());
  RopeSpec spec = SpecOf(RopePairing::kNeox, 64, 0);
  spec.inv_freq.pop_back();
  EXPECT_FALSE(spec.Validate(128, &why).ok());
  spec = SpecOf(RopePairing::kNeox, 64, 0);
  spec.inv_freq[3] = NAN;
  EXPECT_FALSE(spec.Validate(128, &why).ok());
}

TEST(Rope, SpecsThatDifferHaveOtherDigests) {
  const RopeSpec spec = SpecOf(RopePairing::kNeox, 64, 0);
  EXPECT_EQ(spec.Digest(), SpecOf(RopePairing::kNeox, 64, 0).Digest());
  EXPECT_NE(spec.Digest(), SpecOf(RopePairing::kGptj, 64, 0).Digest());
  EXPECT_NE(spec.Digest(), SpecOf(RopePairing::kNeox, 64, 2).Digest());
  RopeSpec scaled = spec;
  scaled.inv_freq[31] *= 1 + 1e-15;
  EXPECT_NE(spec.Digest(), scaled.Digest());
}

}  // namespace
}  // namespace terrace

#include "cuda/kernels/plane_codec.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "unit/cuda/codec_pieces.h"

namespace terrace {
namespace {

constexpr ElementType kSixteenBits[] = {ElementType::kBf16, ElementType::kFp16};

PieceBytes LikelyPiece(ElementType element, uint64_t seed, uint32_t tokens = 16) {
  const PieceShape shape = {.element = element, .tokens = tokens, .heads = 4, .head_dim = 128};
  return PieceOf(shape, LikelyValues(shape, seed));
}

PieceBytes Packed(PlaneCodec& codec, ElementType element, const PieceBytes& raw) {
  PieceBytes packed(raw.size() * 2 + 4096);
  const Result<size_t> size = codec.Pack(element, raw, packed);
  EXPECT_TRUE(size.ok()) << size.status().what();
  packed.resize(size.ok() ? *size : 0);
  return packed;
}

TEST(PlaneCodec, EveryPatternComesBackBitByBit) {
  PlaneCodec codec;
  for (const ElementType element : kSixteenBits) {
    PieceBytes raw(2 * 65536);
    for (uint32_t i = 0; i < 65536; ++i) {
      const auto pattern = static_cast<uint16_t>(i * 40503);
      std::memcpy(&raw[2 * i], &pattern, 2);
    }
    PieceBytes back(raw.size());
    ASSERT_TRUE(codec.Unpack(Packed(codec, element, raw), back).ok());
    EXPECT_EQ(back, raw);
  }
}

TEST(PlaneCodec, LikelyKeysPackAndComeBack) {
  PlaneCodec codec;
  for (const ElementType element : kSixteenBits) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const PieceBytes raw = LikelyPiece(element, seed, 1 + static_cast<uint32_t>(seed * 7));
      const PieceBytes packed = Packed(codec, element, raw);
      PieceBytes back(raw.size(), std::byte{0xA5});
      ASSERT_TRUE(codec.Unpack(packed, back).ok());
      ASSERT_EQ(back, raw);
      if (seed == 19) {
        const double ratio = static_cast<double>(packed.size()) / static_cast<double>(raw.size());
        std::printf("  %s: packed to %.3f\n", element == ElementType::kBf16 ? "bf16" : "fp16",
                    ratio);
        EXPECT_LT(ratio, element == ElementType::kBf16 ? .75 : .90);
      }
    }
  }
}

TEST(PlaneCodec, WhatDoesNotPackStaysRaw) {
  PlaneCodec codec;
  std::mt19937_64 random(1);
  PieceBytes noise(32768);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
  PieceBytes to(noise.size() - 1);
  EXPECT_EQ(codec.Pack(ElementType::kBf16, noise, to).code(), StatusCode::kNoSpace);
  EXPECT_EQ(codec.Pack(ElementType::kFp16, noise, std::span(to).first(10)).code(),
            StatusCode::kNoSpace);
  EXPECT_EQ(codec.Pack(ElementType::kFp32, noise, to).code(), StatusCode::kInvalid);
  EXPECT_EQ(codec.Pack(ElementType::kBf16, std::span(noise).first(7), to).code(),
            StatusCode::kInvalid);
  EXPECT_EQ(codec.Pack(ElementType::kBf16, {}, to).code(), StatusCode::kInvalid);
}

TEST(PlaneCodec, EveryTruncationIsCorrupt) {
  PlaneCodec codec;
  const PieceBytes raw = LikelyPiece(ElementType::kBf16, 3, 1);
  const PieceBytes packed = Packed(codec, ElementType::kBf16, raw);
  PieceBytes back(raw.size());
  for (size_t bytes = 0; bytes < packed.size(); ++bytes) {
    // A copy, so that a sanitizer sees a read past its end.
    const PieceBytes head(packed.begin(), packed.begin() + static_cast<ptrdiff_t>(bytes));
    ASSERT_EQ(codec.Unpack(head, back).code(), StatusCode::kCorrupt) << bytes;
  }
}

TEST(PlaneCodec, AnotherSizeIsCorrupt) {
  PlaneCodec codec;
  const PieceBytes raw = LikelyPiece(ElementType::kFp16, 4);
  const PieceBytes packed = Packed(codec, ElementType::kFp16, raw);
  for (const size_t bytes :
       {raw.size() - 2, raw.size() + 2, raw.size() / 2, size_t{0}, size_t{3}}) {
    PieceBytes back(bytes);
    EXPECT_EQ(codec.Unpack(packed, back).code(), StatusCode::kCorrupt) << bytes;
  }
}

// TERRACE_CODEC_FUZZ=1000000 is the long run.
// PROMISE: T29 packed planes
TEST(PlaneCodec, HostileBytesWriteNothingOutsideAndNeverEndIt) {
  const char* asked = std::getenv("TERRACE_CODEC_FUZZ");
  const uint64_t rounds = asked == nullptr ? 20'000 : std::strtoull(asked, nullptr, 10);
  PlaneCodec codec;
  std::mt19937_64 random(20261122);
  const PieceBytes raw = LikelyPiece(ElementType::kBf16, 5, 2);
  const PieceBytes good = Packed(codec, ElementType::kBf16, raw);
  constexpr size_t kGuardBytes = 64;
  uint64_t corrupt_count = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    PieceBytes hostile = good;
    // zstd's own frame is the harder half: most changes go there.
    const size_t packed_first = kPlaneHeaderBytes + raw.size() / 2;
    const uint64_t change_count = 1 + random() % 8;
    for (uint64_t i = 0; i < change_count; ++i) {
      const bool is_in_frame = random() % 8 != 0;
      const size_t first = is_in_frame ? packed_first : 0;
      const size_t end = is_in_frame && random() % 2 == 0
                             ? std::min(hostile.size(), packed_first + 24)
                             : hostile.size();
      hostile[first + random() % (end - first)] = static_cast<std::byte>(random());
    }
    if (random() % 4 == 0) hostile.resize(random() % (hostile.size() + 1));
    PieceBytes back(raw.size() + kGuardBytes, std::byte{0xC3});
    const Status status = codec.Unpack(hostile, std::span(back).first(raw.size()));
    ASSERT_TRUE(status.ok() || status.code() == StatusCode::kCorrupt);
    corrupt_count += status.ok() ? 0 : 1;
    for (size_t i = raw.size(); i < back.size(); ++i) ASSERT_EQ(back[i], std::byte{0xC3});
  }
  EXPECT_GT(corrupt_count, rounds / 4);
}

}  // namespace
}  // namespace terrace

#include <gtest/gtest.h>

#include <functional>

#include "terrace/codec.h"
#include "unit/include/example_space.h"

namespace terrace {
namespace {

SpaceSpec EncodableSpace() {
  SpaceSpec spec = ExampleSpace(0);
  spec.dtype = "bf16";
  spec.quantisation = "";
  spec.layers = 80;
  spec.kv_heads = 8;
  spec.head_size = 128;
  spec.attention = AttentionKind::kGqa;
  spec.window_tokens = 0;
  spec.layout = "nhd";
  spec.block_tokens = 16;
  return spec;
}

TEST(CodecSpace, SizesAreThoseOfTheTable) {
  struct Row {
    Codec codec;
    PieceRole role;
    uint64_t parameter_count, codes_offset_bytes, encoded_bytes;
  };
  const Row rows[] = {
      {Codec::kRaw, PieceRole::kKeys, 0, 0, 32768},
      {Codec::kInt8, PieceRole::kKeys, 1024, 2048, 18432},
      {Codec::kInt8, PieceRole::kValues, 128, 256, 16640},
      {Codec::kFp8, PieceRole::kKeys, 128, 256, 16640},
      {Codec::kFp8, PieceRole::kValues, 128, 256, 16640},
      {Codec::kInt4, PieceRole::kKeys, 1024, 4096, 12288},
      {Codec::kInt4, PieceRole::kValues, 512, 2048, 10240},
  };
  for (const Row& row : rows) {
    const PieceLayout layout =
        LayoutOf(row.codec, {.role = row.role, .tokens = 16, .heads = 8, .head_dim = 128});
    EXPECT_EQ(layout.parameter_count, row.parameter_count) << CodecName(row.codec);
    EXPECT_EQ(layout.codes_offset_bytes, row.codes_offset_bytes) << CodecName(row.codec);
    EXPECT_EQ(layout.encoded_bytes, row.encoded_bytes) << CodecName(row.codec);
  }
}

TEST(CodecSpace, PlanesOfOddShapesAreAlignedAndHoldTheirLastGroup) {
  const PieceShape shape = {.role = PieceRole::kKeys, .tokens = 33, .heads = 1, .head_dim = 34};
  const PieceLayout keys = LayoutOf(Codec::kInt4, shape);
  EXPECT_EQ(keys.parameter_count, 2u * 34);
  EXPECT_EQ(keys.codes_offset_bytes, 320u);    // 2 · 34 · 4 = 272
  EXPECT_EQ(keys.encoded_bytes, 320u + 576u);  // 33 · 17 = 561
  PieceShape values_shape = shape;
  values_shape.role = PieceRole::kValues;
  EXPECT_EQ(LayoutOf(Codec::kInt4, values_shape).parameter_count, 33u * 2);
}

TEST(CodecSpace, ASpaceUnderACodecIsAnotherSpaceOfSmallerParts) {
  const SpaceSpec raw = EncodableSpace();
  std::string why;
  for (const Codec codec : {Codec::kInt8, Codec::kFp8, Codec::kInt4}) {
    SpaceSpec encoded = raw;
    ASSERT_TRUE(ApplyCodec(codec, 4, &encoded, &why).ok()) << why;
    EXPECT_TRUE(encoded.Validate(&why).ok()) << why;
    EXPECT_EQ(encoded.quantisation, "terrace:" + std::string(CodecName(codec)));
    EXPECT_NE(encoded.Id(), raw.Id());
    EXPECT_TRUE(IsLossy(encoded));
    SpaceCodec cut;
    ASSERT_TRUE(SpaceCodec::Of(encoded, &cut, &why).ok()) << why;
    EXPECT_TRUE(cut.is_lossy());
    EXPECT_EQ(cut.EncodedPartBytes(), encoded.part_bytes);
    EXPECT_EQ(cut.RawPartBytes(), std::vector<uint64_t>(4, 20u * 2 * 32768));
    EXPECT_LT(encoded.slot_bytes() * 17, uint64_t{80} * 2 * 32768 * 10);
  }
}

TEST(CodecSpace, LayersThatDoNotDivideGoToTheLaterParts) {
  SpaceSpec spec = EncodableSpace();
  spec.layers = 7;
  std::string why;
  ASSERT_TRUE(ApplyCodec(Codec::kInt8, 3, &spec, &why).ok()) << why;
  SpaceCodec cut;
  ASSERT_TRUE(SpaceCodec::Of(spec, &cut, &why).ok()) << why;
  EXPECT_EQ(cut.LayersOf(0), 2u);
  EXPECT_EQ(cut.LayersOf(1), 2u);
  EXPECT_EQ(cut.LayersOf(2), 3u);
}

TEST(CodecSpace, ChunksHaveAHeaderBeforeTheirLayers) {
  for (const Codec codec : {Codec::kRaw, Codec::kInt8, Codec::kFp8, Codec::kInt4}) {
    SpaceSpec spec = EncodableSpace();
    spec.layers = 7;
    spec.part_bytes.assign(3, 1);
    std::string why;
    ASSERT_TRUE(codec == Codec::kRaw || ApplyCodec(codec, 3, &spec, &why).ok()) << why;
    const SpaceSpec prefix = spec;
    ASSERT_TRUE(ApplyChunks(&spec, &why).ok()) << why;
    EXPECT_TRUE(spec.Validate(&why).ok()) << why;
    EXPECT_TRUE(IsOfChunks(spec) && !IsOfChunks(prefix));
    EXPECT_EQ(IsLossy(spec), codec != Codec::kRaw);
    EXPECT_NE(spec.Id(), prefix.Id());
    SpaceCodec cut;
    ASSERT_TRUE(SpaceCodec::Of(spec, &cut, &why).ok()) << why;
    EXPECT_TRUE(cut.has_chunk_header);
    EXPECT_EQ(cut.EncodedPartBytes(), spec.part_bytes);
    EXPECT_EQ(cut.RawPartBytes(),
              (std::vector<uint64_t>{64, 2u * 2 * 32768, 2u * 2 * 32768, 3u * 2 * 32768}));
    EXPECT_FALSE(cut.IsEncoded(0));
    EXPECT_EQ(cut.IsEncoded(1), codec != Codec::kRaw);
    if (codec != Codec::kRaw) {
      EXPECT_EQ(std::vector(spec.part_bytes.begin() + 1, spec.part_bytes.end()), prefix.part_bytes);
    }
    spec.part_bytes[0] = 128;
    EXPECT_FALSE(SpaceCodec::Of(spec, &cut, &why).ok());
    EXPECT_THAT(why, ::testing::HasSubstr("128 bytes in part 0; a chunk's header is 64"));
  }
}

TEST(CodecSpace, ChunksOfLatentsHaveKeysAlone) {
  SpaceSpec spec = EncodableSpace();
  spec.attention = AttentionKind::kMla;
  spec.kv_heads = 1;
  spec.head_size = 576;
  spec.part_bytes.assign(spec.layers, 1);
  std::string why;
  ASSERT_TRUE(ApplyChunks(&spec, &why).ok()) << why;
  EXPECT_EQ(spec.part_bytes[1], uint64_t{spec.block_tokens} * 576 * 2);
  SpaceCodec cut;
  ASSERT_TRUE(SpaceCodec::Of(spec, &cut, &why).ok()) << why;
  EXPECT_FALSE(cut.has_values());
}

TEST(CodecSpace, WhatIsNoChunkIsRefusedByName) {
  const auto refusal = [](const std::function<void(SpaceSpec*)>& change) {
    SpaceSpec spec = EncodableSpace();
    change(&spec);
    const SpaceSpec before = spec;
    std::string why;
    EXPECT_FALSE(ApplyChunks(&spec, &why).ok());
    EXPECT_EQ(spec, before);
    return why;
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal([](SpaceSpec* spec) { spec->layout = "hnd"; }),
              HasSubstr("'layout' is 'hnd'"));
  EXPECT_THAT(refusal([](SpaceSpec* spec) { spec->dtype = "fp8_e4m3"; }), HasSubstr("'fp8_e4m3'"));
  EXPECT_THAT(refusal([](SpaceSpec* spec) { spec->quantisation = "awq"; }), HasSubstr("'awq'"));
  EXPECT_THAT(refusal([](SpaceSpec* spec) { spec->attention = AttentionKind::kState; }),
              HasSubstr("state"));
  EXPECT_THAT(refusal([](SpaceSpec* spec) { spec->part_bytes.assign(128, 1); }),
              HasSubstr("129 parts: an encoded one has 2 to"));
}

TEST(CodecSpace, ASpaceThatNamesNoCodecIsRawWhateverItIs) {
  SpaceSpec spec = EncodableSpace();
  spec.attention = AttentionKind::kMla;
  spec.quantisation = "fp8_per_tensor";
  spec.dtype = "fp8_e4m3";
  std::string why;
  SpaceCodec cut;
  ASSERT_TRUE(SpaceCodec::Of(spec, &cut, &why).ok()) << why;
  EXPECT_FALSE(cut.is_lossy());
  EXPECT_FALSE(IsLossy(spec));
  EXPECT_TRUE(spec.Validate(&why).ok()) << why;
}

TEST(CodecSpace, WhatNoCodecCanEncodeIsRefusedByName) {
  struct Row {
    const char* what;
    std::function<void(SpaceSpec*)> change;
  };
  const Row rows[] = {
      {"int3", [](SpaceSpec* spec) { spec->quantisation = "terrace:int3"; }},
      {"raw", [](SpaceSpec* spec) { spec->quantisation = "terrace:raw"; }},
      {"dtype", [](SpaceSpec* spec) { spec->dtype = "fp8_e4m3"; }},
      {"layout", [](SpaceSpec* spec) { spec->layout = "hnd"; }},
      {"attention", [](SpaceSpec* spec) { spec->attention = AttentionKind::kMla; }},
      {"head_size", [](SpaceSpec* spec) { spec->head_size = 127; }},
      {"kv_heads", [](SpaceSpec* spec) { spec->kv_heads = 0x80000000; }},
      {"part_bytes", [](SpaceSpec* spec) { spec->part_bytes[1] += 64; }},
      {"parts", [](SpaceSpec* spec) { spec->layers = 3; }},
  };
  for (const Row& row : rows) {
    SpaceSpec spec = EncodableSpace();
    std::string why;
    ASSERT_TRUE(ApplyCodec(Codec::kInt8, 4, &spec, &why).ok()) << why;
    row.change(&spec);
    EXPECT_EQ(spec.Validate(&why).code(), StatusCode::kInvalid) << row.what;
    EXPECT_NE(why.find(row.what), std::string::npos) << why;
  }
}

// 2^30 layers of pieces that make 2^34 bytes: the product is 0 modulo 2^64.
TEST(CodecSpace, SizesThatOverflowAreNoSpace) {
  SpaceSpec spec = EncodableSpace();
  spec.layers = 1u << 30;
  spec.block_tokens = kBlockTokensMax;
  spec.kv_heads = kCodecHeadsMax;
  spec.head_size = kCodecHeadDimMax;
  spec.quantisation = "terrace:int8";
  spec.part_bytes = {4096};
  std::string why;
  EXPECT_EQ(spec.Validate(&why).code(), StatusCode::kInvalid);
}

TEST(CodecSpace, WhatIsQuantisedAlreadyIsNotQuantisedAgain) {
  SpaceSpec spec = EncodableSpace();
  spec.quantisation = "fp8_per_tensor";
  std::string why;
  EXPECT_EQ(ApplyCodec(Codec::kInt8, 1, &spec, &why).code(), StatusCode::kInvalid);
  EXPECT_NE(why.find("fp8_per_tensor"), std::string::npos) << why;
}

}  // namespace
}  // namespace terrace

// Encoded pieces as they may lie in a slot or on a tier, and what a chunk says of itself: every
// codec decodes any bytes of the right size to finite values of exactly the shape's size, the same
// under each kind of instructions; packed planes come out as what was packed, or are refused; and a
// Space of any shape has parts of the sizes that its codec makes.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <string>

#include "cuda/kernels/codec.h"
#include "cuda/kernels/plane_codec.h"
#include "cuda/kernels/rope.h"
#include "fuzz/fuzz.h"
#include "terrace/chunk.h"
#include "terrace/codec.h"
#include "terrace/units.h"

namespace terrace::fuzz::codec {

constexpr uint64_t kPieceBytesMax = 64 * kKiB;
constexpr size_t kPlainBytesMax = 64 * kKiB;

// Memory of exactly the size that is asked for, filled by repeating what there is.
Bytes Filled(uint64_t byte_count, std::span<const std::byte> from) {
  Bytes bytes(byte_count);
  for (size_t i = 0; i < bytes.size() && !from.empty(); ++i) bytes[i] = from[i % from.size()];
  return bytes;
}

bool IsFinite(ElementType element, const std::byte* at) {
  if (element == ElementType::kFp32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return std::isfinite(value);
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  const uint32_t exponent = element == ElementType::kBf16 ? 0x7F80 : 0x7C00;
  return (bits & exponent) != exponent;
}

PieceShape TakeShape(Choices& choices) {
  PieceShape shape;
  shape.element = static_cast<ElementType>(choices.Below(3));
  shape.role = static_cast<PieceRole>(choices.Below(2));
  shape.tokens = 1 + choices.Below(70);
  shape.heads = 1 + choices.Below(9);
  shape.head_dim = 2 * (1 + choices.Below(100));
  return shape;
}

// [codec; shape; where to break what was encoded; bytes]
void TryPiece(Choices& choices) {
  const auto codec = static_cast<Codec>(choices.Below(4));
  const PieceShape shape = TakeShape(choices);
  if (!CheckPiece(shape).ok() || shape.raw_bytes() > kPieceBytesMax) return;
  const uint64_t encoded_bytes = LayoutOf(codec, shape).encoded_bytes;
  const uint8_t is_encoded = choices.Byte();
  const std::span<const std::byte> given = choices.Rest();
  Bytes encoded = Filled(encoded_bytes, given);
  if (is_encoded % 2 == 1) {
    const Bytes raw = Filled(shape.raw_bytes(), given);
    Bytes again(encoded_bytes);
    const Status status = EncodePiece(codec, shape, raw, encoded);
    if (!status.ok()) return Require(status.code() == StatusCode::kUnsupported, "refused as not");
    for (int level = 0; level <= static_cast<int>(BestSimdLevel()); ++level) {
      Require(EncodePiece(codec, shape, raw, again, static_cast<SimdLevel>(level)).ok() &&
                  again == encoded,
              "other instructions encode to other bytes");
    }
  }
  Bytes decoded(shape.raw_bytes()), again(shape.raw_bytes());
  DecodePiece(codec, shape, encoded, decoded);
  for (int level = 0; level <= static_cast<int>(BestSimdLevel()); ++level) {
    DecodePiece(codec, shape, encoded, again, static_cast<SimdLevel>(level));
    Require(again == decoded, "other instructions decode to other values");
  }
  if (codec == Codec::kRaw) return Require(decoded == encoded, "raw bytes are others");
  const uint64_t element_bytes = ElementBytes(shape.element);
  for (size_t at = 0; at < decoded.size(); at += element_bytes) {
    Require(IsFinite(shape.element, &decoded[at]), "a value that is not finite");
  }
}

void JudgeUnpack(PlaneCodec& codec, std::span<const std::byte> packed, size_t raw_bytes) {
  Bytes to(raw_bytes);
  const Status status = codec.Unpack(packed, to);
  Require(status.ok() || status.code() == StatusCode::kCorrupt, "refused as no reader expects");
  if (!status.ok()) return;
  // Not byte for byte: zstd has many frames of one content, and what vouches for the bytes is a
  // checksum of the block. What it means stays.
  const auto element = static_cast<ElementType>(packed[1]);
  Bytes again(2 * raw_bytes + 4'096), back(raw_bytes);
  const Result<size_t> size = codec.Pack(element, to, again);
  Require(size.ok() && codec.Unpack(std::span(again).first(*size), back).ok() && back == to,
          "what was unpacked cannot be packed");
}

// [how many raw bytes, of two; kind; the packed form, or what is to be packed and patched]
void TryPlanes(Choices& choices) {
  static PlaneCodec codec;
  const size_t raw_bytes = choices.Number<uint16_t>() % kPlainBytesMax;
  const uint8_t kind = choices.Byte();
  if (kind % 2 == 0) return JudgeUnpack(codec, choices.Rest(), raw_bytes);
  const auto element = static_cast<ElementType>(kind / 2 % 3);
  const size_t patch_at = choices.Number<uint16_t>();
  const std::byte patch = static_cast<std::byte>(choices.Byte());
  const Bytes raw = Filled(raw_bytes, choices.Rest());
  Bytes packed(2 * raw.size() + 4'096);
  const Result<size_t> size = codec.Pack(element, raw, packed);
  const bool is_planes = element != ElementType::kFp32 && raw_bytes > 0 && raw_bytes % 2 == 0;
  Require(size.ok() == is_planes, "packed what is none, or not what is");
  if (!size.ok()) return;
  packed.resize(*size);
  Bytes back(raw.size());
  Require(codec.Unpack(packed, back).ok() && back == raw, "what was packed does not come back");
  packed[patch_at % packed.size()] ^= patch;
  JudgeUnpack(codec, packed, raw_bytes);
  packed.resize(patch_at % packed.size());
  JudgeUnpack(codec, packed, raw_bytes);
}

// [codec; parts; fields of a Space]
void TrySpace(Choices& choices) {
  constexpr std::string_view kDtypes[] = {"bf16", "float16", "fp32", "fp8"};
  constexpr std::string_view kQuantised[] = {"", "terrace:int8", "terrace:raw", "terrace:", "awq"};
  SpaceSpec spec;
  spec.dtype = kDtypes[choices.Below(std::size(kDtypes))];
  spec.quantisation = kQuantised[choices.Below(std::size(kQuantised))];
  spec.layout = choices.Below(2) == 0 ? "nhd" : std::string(kChunkLayout);
  spec.attention = static_cast<AttentionKind>(choices.Below(4));
  spec.layers = choices.Byte();
  spec.kv_heads = choices.Number<uint16_t>();
  spec.head_size = choices.Number<uint16_t>();
  spec.block_tokens = choices.Number<uint16_t>();
  const auto codec = static_cast<Codec>(choices.Below(4));
  spec.part_bytes.assign(choices.Byte(), choices.Byte());
  SpaceCodec cut;
  std::string why;
  const Status given = SpaceCodec::Of(spec, &cut, &why);
  Require(given.ok() || !why.empty(), "refused, and nobody says why");
  const uint32_t part_count = static_cast<uint32_t>(spec.part_bytes.size());
  if (!ApplyCodec(codec, part_count, &spec, &why).ok()) return;
  Require(SpaceCodec::Of(spec, &cut, &why).ok() && cut.codec == codec,
          "a Space that was made for a codec is refused by it");
  const std::vector<uint64_t> raw = cut.RawPartBytes(), encoded = cut.EncodedPartBytes();
  Require(encoded == spec.part_bytes && raw.size() == encoded.size(), "parts of other sizes");
  uint32_t layer_count = 0;
  for (uint32_t part = 0; part < part_count; ++part) layer_count += cut.LayersOf(part);
  Require(layer_count == spec.layers, "layers are in no part, or in two");
}

// [where the reader stands; its rope's digest; the header]
void TryChunk(Choices& choices) {
  const auto position = choices.Number<uint32_t>();
  const uint64_t digest = choices.Byte();
  const std::span<const std::byte> given = choices.Rest();
  const Result<ChunkHeader> read = ChunkHeader::Read(given);
  if (!read.ok()) return Require(read.code() == StatusCode::kCorrupt, "refused as not");
  std::array<std::byte, kChunkHeaderBytes> again;
  read->Write(again);
  Require(std::ranges::equal(again, given), "a chunk's header is written in another way");
  std::string why;
  const Result<int32_t> delta = ChunkDelta(*read, position, digest, &why);
  if (!delta.ok()) return Require(!why.empty(), "refused, and nobody says why");
  Require(read->rope_digest == 0 ? *delta == 0
                                 : int64_t{read->first_token_position} + *delta == position,
          "keys are turned another way than the reader stands");
}

constexpr void (*kTries[])(Choices&) = {TryPiece, TryPlanes, TrySpace, TryChunk};

std::vector<Seed> Seeds() {
  std::vector<Seed> seeds;
  for (uint8_t codec = 0; codec < 4; ++codec) {
    for (const uint8_t role : {0, 1}) {
      ChoiceWriter writer;
      writer.Byte(0).Byte(codec).Byte(codec % 3).Byte(role).Byte(15).Byte(1).Byte(31).Byte(1);
      for (uint8_t i = 0; i < 96; ++i) writer.Byte(static_cast<uint8_t>(i * 3)).Byte(0x3C);
      seeds.push_back(
          {"piece_" + std::to_string(codec) + "_" + std::to_string(role), writer.Take()});
    }
  }
  PlaneCodec planes;
  const Bytes raw = Filled(512, BytesOfText("ab?cd?"));
  Bytes packed(2'048);
  packed.resize(planes.Pack(ElementType::kBf16, raw, packed).value());
  seeds.push_back(
      {"planes", ChoiceWriter().Byte(1).Put<uint16_t>(512).Byte(0).Append(packed).Take()});
  seeds.push_back({"planes_patched", ChoiceWriter()
                                         .Byte(1)
                                         .Put<uint16_t>(256)
                                         .Byte(1)
                                         .Put<uint16_t>(20)
                                         .Byte(1)
                                         .Append("abcdef")
                                         .Take()});
  seeds.push_back({"space", ChoiceWriter()
                                .Byte(2)
                                .Byte(0)
                                .Byte(0)
                                .Byte(0)
                                .Byte(0)
                                .Byte(32)
                                .Put<uint16_t>(8)
                                .Put<uint16_t>(128)
                                .Put<uint16_t>(16)
                                .Byte(1)
                                .Byte(4)
                                .Byte(0)
                                .Take()});
  std::array<std::byte, kChunkHeaderBytes> header;
  ChunkHeader{.first_token_position = 7, .token_count = 16, .rope_digest = 5}.Write(header);
  seeds.push_back({"chunk", ChoiceWriter().Byte(3).Put<uint32_t>(9).Byte(5).Append(header).Take()});
  return seeds;
}

bool Run(std::span<const std::byte> input) {
  Choices choices(input);
  kTries[choices.Below(std::size(kTries))](choices);
  return true;
}

// PROMISE: T29 codecs, chunks and their headers
const Registration registration({"codec", Run, Seeds});

}  // namespace terrace::fuzz::codec

// terrace/codec.h: names, shapes and sizes. The encoders are in cuda/.
#include "terrace/codec.h"

#include <algorithm>
#include <array>

#include "terrace/arena_layout.h"
#include "terrace/chunk.h"
#include "terrace/units.h"

namespace terrace {
namespace {

constexpr std::array<std::string_view, 4> kCodecNames = {"raw", "int8", "fp8", "int4"};
constexpr uint64_t kScaleBytes = 2;           // bf16
constexpr uint64_t kMinimumAndStepBytes = 4;  // two of them

uint64_t CeilDiv(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit; }

Status Refuse(std::string* why, std::string reason) {
  *why = std::move(reason);
  return Status(StatusCode::kInvalid, "no codec can encode the space");
}

bool ReadElement(std::string_view dtype, ElementType* element) {
  if (dtype == "bf16" || dtype == "bfloat16") {
    *element = ElementType::kBf16;
  } else if (dtype == "fp16" || dtype == "float16") {
    *element = ElementType::kFp16;
  } else if (dtype == "fp32" || dtype == "float32") {
    *element = ElementType::kFp32;
  } else {
    return false;
  }
  return true;
}

bool ReadCodec(std::string_view name, Codec* codec) {
  const auto* found = std::find(kCodecNames.begin() + 1, kCodecNames.end(), name);
  if (found == kCodecNames.end()) return false;
  *codec = static_cast<Codec>(found - kCodecNames.begin());
  return true;
}

uint64_t ParameterCount(Codec codec, const PieceShape& shape) {
  const bool is_keys = shape.role == PieceRole::kKeys;
  const uint64_t rows = uint64_t{shape.tokens} * shape.heads;
  switch (codec) {
    case Codec::kRaw:
      return 0;
    case Codec::kInt8:
      return is_keys ? shape.channel_count() : rows;
    case Codec::kFp8:
      return rows;
    case Codec::kInt4:
      return is_keys ? CeilDiv(shape.tokens, kInt4GroupElements) * shape.channel_count()
                     : CeilDiv(shape.head_dim, kInt4GroupElements) * rows;
  }
  return 0;
}

// Keys alone where there are latents, which no lossy codec takes.
Status CheckAttention(const SpaceSpec& spec, bool is_lossy, std::string* why) {
  if (spec.attention == AttentionKind::kState) {
    return Refuse(why,
                  "field 'attention' is state, which has no keys and values of tokens: leave "
                  "'quantisation' empty and name a layout that is not of chunks");
  }
  if (spec.attention != AttentionKind::kMla || !is_lossy) return Status::Ok();
  return Refuse(why,
                "field 'attention' is mla: codecs encode keys and values of heads; leave "
                "'quantisation' empty");
}

// All but the names of codec, layers and parts.
Status ReadShapes(const SpaceSpec& spec, SpaceCodec* codec, std::string* why) {
  const std::string remedy = codec->is_lossy() ? "leave 'quantisation' empty"
                                               : "such keys cannot be used off their prefix";
  ElementType element = ElementType::kBf16;
  if (!ReadElement(spec.dtype, &element)) {
    return Refuse(why, "field 'dtype' is '" + spec.dtype +
                           "': codecs and chunks are of bf16, fp16 and fp32; " + remedy);
  }
  TERRACE_RETURN_IF_ERROR(CheckAttention(spec, codec->is_lossy(), why));
  if (spec.layout != "nhd" && spec.layout != kChunkLayout) {
    return Refuse(why, "field 'layout' is '" + spec.layout +
                           "': codecs encode 'nhd', a layer's keys [tokens][heads][head_size] and "
                           "then its values; gather the pages so");
  }
  codec->keys = {.element = element,
                 .role = PieceRole::kKeys,
                 .tokens = spec.block_tokens,
                 .heads = spec.kv_heads,
                 .head_dim = spec.head_size};
  codec->values = codec->keys;
  codec->values.role = PieceRole::kValues;
  if (spec.attention == AttentionKind::kMla) codec->values.tokens = 0;
  if (CheckPiece(codec->keys).ok()) return Status::Ok();
  return Refuse(why, "block_tokens " + std::to_string(spec.block_tokens) + ", kv_heads " +
                         std::to_string(spec.kv_heads) + " and head_size " +
                         std::to_string(spec.head_size) + " are not within " +
                         std::to_string(kBlockTokensMax) + ", " + std::to_string(kCodecHeadsMax) +
                         " and " + std::to_string(kCodecHeadDimMax) +
                         " (even), or make a layer larger than " +
                         std::to_string(kSegmentBytesMax) + " bytes: " + remedy);
}

// Bytes of every part, where a layer takes so many.
std::vector<uint64_t> PartBytes(const SpaceCodec& codec, uint64_t layer_bytes) {
  std::vector<uint64_t> bytes(codec.part_count);
  for (uint32_t part = 0; part < codec.part_count; ++part) {
    bytes[part] = codec.has_chunk_header && part == 0 ? kChunkHeaderBytes
                                                      : codec.LayersOf(part) * layer_bytes;
  }
  return bytes;
}

}  // namespace

uint64_t ElementBytes(ElementType element) { return element == ElementType::kFp32 ? 4 : 2; }

std::string_view CodecName(Codec codec) { return kCodecNames[static_cast<size_t>(codec)]; }

uint64_t PieceShape::raw_bytes() const { return element_count() * ElementBytes(element); }

Status CheckPiece(const PieceShape& shape) {
  const bool is_ok = shape.tokens >= 1 && shape.tokens <= kBlockTokensMax && shape.heads >= 1 &&
                     shape.heads <= kCodecHeadsMax && shape.head_dim >= 2 &&
                     shape.head_dim <= kCodecHeadDimMax && shape.head_dim % 2 == 0 &&
                     shape.raw_bytes() <= kSegmentBytesMax;
  return is_ok ? Status::Ok() : Status(StatusCode::kInvalid, "no piece of a block has that shape");
}

PieceLayout LayoutOf(Codec codec, const PieceShape& shape) {
  if (codec == Codec::kRaw) return {.encoded_bytes = shape.raw_bytes()};
  const bool is_int4 = codec == Codec::kInt4;
  PieceLayout layout;
  layout.parameter_count = ParameterCount(codec, shape);
  const uint64_t parameter_bytes =
      layout.parameter_count * (is_int4 ? kMinimumAndStepBytes : kScaleBytes);
  const uint64_t code_bytes = is_int4 ? shape.element_count() / 2 : shape.element_count();
  layout.codes_offset_bytes = RoundUp(parameter_bytes, kCodecPlaneAlignmentBytes);
  layout.encoded_bytes = layout.codes_offset_bytes + RoundUp(code_bytes, kCodecPlaneAlignmentBytes);
  return layout;
}

Status SpaceCodec::Named(const SpaceSpec& spec, uint32_t part_count, SpaceCodec* codec,
                         std::string* why) {
  codec->codec = Codec::kRaw;
  if (IsLossy(spec)) {
    const std::string_view name = std::string_view(spec.quantisation).substr(kCodecPrefix.size());
    if (!ReadCodec(name, &codec->codec)) {
      return Refuse(why, "field 'quantisation' names Terrace's codec '" + std::string(name) +
                             "': there are int8, fp8 and int4");
    }
  } else if (!spec.quantisation.empty()) {
    return Refuse(why, "field 'quantisation' is '" + spec.quantisation +
                           "': keys that the engine quantised are no chunks; use its prefixes");
  }
  codec->has_chunk_header = IsOfChunks(spec);
  const uint32_t header_count = codec->has_chunk_header ? 1 : 0;
  if (part_count <= header_count || part_count - header_count > spec.layers ||
      part_count > kPartsPerSpaceMax) {
    return Refuse(why, "a Space of " + std::to_string(spec.layers) + " layers has " +
                           std::to_string(part_count) + " parts: an encoded one has " +
                           std::to_string(header_count + 1) + " to " +
                           std::to_string(std::min<uint64_t>(uint64_t{spec.layers} + header_count,
                                                             kPartsPerSpaceMax)) +
                           (codec->has_chunk_header ? ", the chunk's header first" : ""));
  }
  codec->layer_count = spec.layers;
  codec->part_count = part_count;
  return ReadShapes(spec, codec, why);
}

Status SpaceCodec::Of(const SpaceSpec& spec, SpaceCodec* codec, std::string* why) {
  *codec = {};
  if (!IsLossy(spec) && !IsOfChunks(spec)) return Status::Ok();
  SpaceCodec named;
  TERRACE_RETURN_IF_ERROR(
      SpaceCodec::Named(spec, static_cast<uint32_t>(spec.part_bytes.size()), &named, why));
  const std::vector<uint64_t> expected = named.EncodedPartBytes();
  for (uint32_t part = 0; part < named.part_count; ++part) {
    if (spec.part_bytes[part] == expected[part]) continue;
    const std::string makes = named.LayersOf(part) == 0
                                  ? "a chunk's header is " + std::to_string(expected[part])
                                  : std::string(CodecName(named.codec)) + " makes " +
                                        std::to_string(expected[part]) + " of its " +
                                        std::to_string(named.LayersOf(part)) + " layers";
    return Refuse(why, "field 'part_bytes' has " + std::to_string(spec.part_bytes[part]) +
                           " bytes in part " + std::to_string(part) + "; " + makes);
  }
  *codec = named;
  return Status::Ok();
}

uint32_t SpaceCodec::LayersOf(uint32_t part_index) const {
  const uint32_t header_count = has_chunk_header ? 1 : 0;
  if (part_index < header_count) return 0;
  const auto first = [&](uint64_t index) {
    return (index - header_count) * layer_count / (part_count - header_count);
  };
  return static_cast<uint32_t>(first(uint64_t{part_index} + 1) - first(part_index));
}

uint64_t SpaceCodec::EncodedLayerBytes() const {
  return LayoutOf(codec, keys).encoded_bytes + LayoutOf(codec, values).encoded_bytes;
}

std::vector<uint64_t> SpaceCodec::RawPartBytes() const { return PartBytes(*this, RawLayerBytes()); }

std::vector<uint64_t> SpaceCodec::EncodedPartBytes() const {
  return PartBytes(*this, EncodedLayerBytes());
}

bool IsLossy(const SpaceSpec& spec) { return spec.quantisation.starts_with(kCodecPrefix); }

bool IsOfChunks(const SpaceSpec& spec) { return spec.layout == kChunkLayout; }

Status ApplyCodec(Codec codec, uint32_t part_count, SpaceSpec* spec, std::string* why) {
  if (!spec->quantisation.empty()) {
    return Refuse(why, "field 'quantisation' is '" + spec->quantisation +
                           "': what is quantised already stays as it is");
  }
  SpaceSpec encoded = *spec;
  encoded.quantisation = kCodecPrefix;
  encoded.quantisation += CodecName(codec);
  SpaceCodec named;
  TERRACE_RETURN_IF_ERROR(SpaceCodec::Named(encoded, part_count, &named, why));
  encoded.part_bytes = named.EncodedPartBytes();
  *spec = std::move(encoded);
  return Status::Ok();
}

Status ApplyChunks(SpaceSpec* spec, std::string* why) {
  if (spec->layout != "nhd") {
    return Refuse(why, "field 'layout' is '" + spec->layout +
                           "': chunks are of 'nhd', a layer's keys [tokens][heads][head_size] and "
                           "then its values");
  }
  SpaceSpec chunks = *spec;
  chunks.layout = kChunkLayout;
  SpaceCodec named;
  TERRACE_RETURN_IF_ERROR(
      SpaceCodec::Named(chunks, static_cast<uint32_t>(spec->part_bytes.size()) + 1, &named, why));
  chunks.part_bytes = named.EncodedPartBytes();
  *spec = std::move(chunks);
  return Status::Ok();
}

}  // namespace terrace

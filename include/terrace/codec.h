// Codecs: how a piece of a block is written into its slot. A piece is one layer's keys or values of
// one block, a row-major tensor [tokens][heads][head_dim]. Every codec here has one fixed size a
// shape, so nothing in encoded bytes says how long anything is. Layouts and bounds: docs/CODECS.md.
//
// A Space asks for a lossy codec by name, in its `quantisation` field; its part_bytes are then the
// encoded ones. So lossy and exact bytes are different Spaces, and no key finds both. A Space of
// chunks, lossy or not, is named by its layout.
//
// THREADING: everything is a pure function.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/space.h"
#include "terrace/status.h"

namespace terrace {

// The numbers are those of docs/CODECS.md, and of the codec byte of docs/DISK_FORMAT.md.
enum class Codec : uint8_t {
  kRaw = 0,   // the engine's bytes
  kInt8 = 1,  // keys per channel, values per token and head
  kFp8 = 2,   // e4m3, per token and head
  kInt4 = 3,  // asymmetric groups: keys along tokens, values along channels
};

enum class ElementType : uint8_t { kBf16, kFp16, kFp32 };
enum class PieceRole : uint8_t { kKeys, kValues };

inline constexpr uint32_t kCodecHeadsMax = 1024;
inline constexpr uint32_t kCodecHeadDimMax = 1024;
inline constexpr uint32_t kInt4GroupElements = 32;  // that share a minimum and a step
inline constexpr uint64_t kCodecPlaneAlignmentBytes = 64;

struct PieceShape {
  ElementType element = ElementType::kBf16;
  PieceRole role = PieceRole::kKeys;
  uint32_t tokens = 0;    // 1..kBlockTokensMax
  uint32_t heads = 0;     // 1..kCodecHeadsMax
  uint32_t head_dim = 0;  // 2..kCodecHeadDimMax, even

  uint64_t channel_count() const { return uint64_t{heads} * head_dim; }
  uint64_t element_count() const { return tokens * channel_count(); }
  uint64_t raw_bytes() const;
  friend bool operator==(const PieceShape&, const PieceShape&) = default;
};

// Where the two planes of an encoded piece lie: group parameters, then codes. Raw has codes only.
struct PieceLayout {
  uint64_t parameter_count = 0;  // scales, or pairs of minimum and step
  uint64_t codes_offset_bytes = 0;
  uint64_t encoded_bytes = 0;
};
// REQUIRES: CheckPiece(shape) is ok.
PieceLayout LayoutOf(Codec codec, const PieceShape& shape);
// kInvalid unless every extent is within its limit.
Status CheckPiece(const PieceShape& shape);

uint64_t ElementBytes(ElementType element);
std::string_view CodecName(Codec codec);  // "raw", "int8", "fp8", "int4"

// What a Space's `quantisation` begins with when Terrace encodes: "terrace:int8".
inline constexpr std::string_view kCodecPrefix = "terrace:";

// The layout of a Space whose blocks are used away from their prompt (terrace/chunk.h): "nhd", and
// before it a part for the block's ChunkHeader.
inline constexpr std::string_view kChunkLayout = "chunk-nhd";

// How the parts of one Space are cut into pieces. Part i of P holds layers ⌊i·L/P⌋ up to
// ⌊(i+1)·L/P⌋; a layer is its keys' piece and behind it its values'. Of chunks the parts are one
// more: part 0 is the header, and as it is.
struct SpaceCodec {
  Codec codec = Codec::kRaw;
  PieceShape keys;    // shape of every keys' piece
  PieceShape values;  // the same but for its role; of MLA, which has none, no tokens
  uint32_t layer_count = 0;
  uint32_t part_count = 0;  // the header's, too
  bool has_chunk_header = false;

  // kInvalid with `*why` if the Space names a codec that is none, or one that cannot encode it, or
  // has other part_bytes than the codec's, or other ones than chunks have. A Space of neither a
  // codec nor chunks gives kRaw, whatever it is, and no shapes.
  static Status Of(const SpaceSpec& spec, SpaceCodec* codec, std::string* why);

  // The codec a Space names, cut in `part_count` parts, whatever its part_bytes are: what they have
  // to be is EncodedPartBytes(). REQUIRES: IsLossy(spec) or IsOfChunks(spec).
  static Status Named(const SpaceSpec& spec, uint32_t part_count, SpaceCodec* codec,
                      std::string* why);

  bool is_lossy() const { return codec != Codec::kRaw; }
  bool has_values() const { return values.tokens > 0; }
  // Whether a part's bytes are other ones in its slot than the engine's.
  bool IsEncoded(uint32_t part_index) const { return is_lossy() && LayersOf(part_index) > 0; }
  uint32_t LayersOf(uint32_t part_index) const;  // of the header: 0
  uint64_t RawLayerBytes() const { return keys.raw_bytes() + values.raw_bytes(); }
  uint64_t EncodedLayerBytes() const;
  // The engine's bytes of each part, and the header's. REQUIRES: there are shapes.
  std::vector<uint64_t> RawPartBytes() const;
  // What the Space's part_bytes are.
  std::vector<uint64_t> EncodedPartBytes() const;
};

// Whether blocks of this Space lose precision by Terrace's doing.
bool IsLossy(const SpaceSpec& spec);
// Whether its blocks begin with a ChunkHeader.
bool IsOfChunks(const SpaceSpec& spec);

// Makes `spec`, of any part_bytes, the Space of the same bytes under `codec`: sets its quantisation
// and part_bytes. `part_count` 1..layers, of chunks one more. kInvalid with `*why` as
// SpaceCodec::Of.
Status ApplyCodec(Codec codec, uint32_t part_count, SpaceSpec* spec, std::string* why);
// Makes `spec`, of layout "nhd" under a codec or none, the Space of the same blocks as chunks: sets
// its layout and part_bytes, one more than before. kInvalid with `*why` as SpaceCodec::Of.
Status ApplyChunks(SpaceSpec* spec, std::string* why);

}  // namespace terrace

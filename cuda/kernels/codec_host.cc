#include "cuda/kernels/codec_host.h"

#include <cstring>
#include <span>

#include "cuda/kernels/codec.h"
#include "cuda/kernels/rope.h"
#include "cuda/kernels/rope_math.h"

namespace terrace {
namespace {

PieceShape ShapeOf(const CodecLaunch& launch) {
  return {.element = static_cast<ElementType>(launch.element),
          .role = static_cast<PieceRole>(launch.role),
          .tokens = launch.tokens,
          .heads = launch.heads,
          .head_dim = launch.head_dim};
}

Status Invalid(const char* what) { return Status(StatusCode::kInvalid, what); }

template <typename Byte>
std::span<Byte> BytesAt(uint64_t address, uint64_t byte_count) {
  return {reinterpret_cast<Byte*>(address), byte_count};
}

void Encode(const CodecLaunch& launch, Codec codec, const PieceShape& shape, uint32_t piece) {
  const CodecPiece& place = launch.pieces[piece];
  const auto raw = BytesAt<const std::byte>(place.engine_address, shape.raw_bytes());
  const auto encoded = BytesAt<std::byte>(place.slot_address, LayoutOf(codec, shape).encoded_bytes);
  if (!EncodePiece(codec, shape, raw, encoded).ok()) launch.refused[piece] = 1;
}

void Decode(const CodecLaunch& launch, Codec codec, const PieceShape& shape, uint32_t piece) {
  const CodecPiece& place = launch.pieces[piece];
  const auto encoded =
      BytesAt<const std::byte>(place.slot_address, LayoutOf(codec, shape).encoded_bytes);
  const auto engine = BytesAt<std::byte>(place.engine_address, shape.raw_bytes());
  if (launch.turns == nullptr) return DecodePiece(codec, shape, encoded, engine);
  const KeyTurns turns = {launch.turns, static_cast<RopePairing>(launch.pairing), launch.rot_dim,
                          launch.rot_offset};
  DecodeAndTurn(codec, shape, encoded, turns, {engine.data(), engine.size() / shape.tokens});
}

}  // namespace

Status ValidateLaunch(const CodecLaunch& launch, CodecDirection direction) {
  if (launch.struct_bytes != sizeof(CodecLaunch))
    return Invalid("a CodecLaunch of another version");
  if (launch.codec > static_cast<uint32_t>(Codec::kInt4) ||
      launch.element > static_cast<uint32_t>(ElementType::kFp32) ||
      launch.role > static_cast<uint32_t>(PieceRole::kValues)) {
    return Invalid("no such codec, element type or role");
  }
  const PieceShape shape = ShapeOf(launch);
  if (!CheckPiece(shape).ok()) return Invalid("no piece of a block has that shape");
  if (launch.piece_count == 0 || launch.piece_count > kCodecPiecesMax || launch.pieces == nullptr) {
    return Invalid("a launch has 1 to 65,535 pieces");
  }
  const bool is_lossy = launch.codec != static_cast<uint32_t>(Codec::kRaw);
  if (direction == CodecDirection::kEncode && is_lossy && launch.refused == nullptr) {
    return Invalid("a lossy launch needs a word a piece for what it refuses");
  }
  if (direction == CodecDirection::kDecode && launch.turns != nullptr) {
    const bool is_window = rope_math::IsWindow(launch.rot_dim, launch.rot_offset, launch.head_dim);
    if (!is_window || launch.pairing > 1 || shape.role != PieceRole::kKeys) {
      return Invalid("only a window of keys is turned, of pairing neox or gptj");
    }
  }
  const uint64_t row_bytes = shape.channel_count() * ElementBytes(shape.element);
  if (launch.engine_token_stride_bytes == row_bytes) return Status::Ok();
  return Status(StatusCode::kUnsupported, "the host codes rows without gaps");
}

uint64_t RawBytes(const CodecLaunch& launch) { return ShapeOf(launch).raw_bytes(); }

void CodePieces(const CodecLaunch& launch, CodecDirection direction, uint32_t first,
                uint32_t count) {
  const PieceShape shape = ShapeOf(launch);
  const auto codec = static_cast<Codec>(launch.codec);
  for (uint32_t piece = first; piece < first + count; ++piece) {
    if (direction == CodecDirection::kEncode) {
      Encode(launch, codec, shape, piece);
    } else {
      Decode(launch, codec, shape, piece);
    }
  }
}

}  // namespace terrace

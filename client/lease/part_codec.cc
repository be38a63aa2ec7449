#include "client/lease/part_codec.h"

#include "client/lease/lease_state.h"
#include "cuda/kernels/codec.h"

namespace terrace::client {
namespace {

// Cuts the bytes of one piece after the other off two spans.
template <typename From, typename To, typename Step>
Status ForEachPiece(std::span<From> from, std::span<To> to, const SpaceCodec& codec,
                    const std::atomic<bool>& is_valid, const Step& step) {
  const PieceShape* const shapes[] = {&codec.keys, &codec.values};
  while (!from.empty()) {
    for (const PieceShape* shape : shapes) {
      if (!is_valid.load()) return kLeaseGone;
      TERRACE_RETURN_IF_ERROR(step(*shape, &from, &to));
    }
  }
  return is_valid.load() ? Status::Ok() : kLeaseGone;
}

template <typename Byte>
std::span<Byte> Cut(uint64_t byte_count, std::span<Byte>* rest) {
  const std::span<Byte> piece = rest->first(byte_count);
  *rest = rest->subspan(byte_count);
  return piece;
}

}  // namespace

Status EncodePart(const SpaceCodec& codec, std::span<const std::byte> from, std::span<std::byte> to,
                  const std::atomic<bool>& is_valid) {
  const auto encode = [&codec](const PieceShape& shape, auto* engine, auto* slot) {
    const auto raw = Cut(shape.raw_bytes(), engine);
    return EncodePiece(codec.codec, shape, raw,
                       Cut(LayoutOf(codec.codec, shape).encoded_bytes, slot));
  };
  return ForEachPiece(from, to, codec, is_valid, encode);
}

Status DecodePart(const SpaceCodec& codec, std::span<const std::byte> from, std::span<std::byte> to,
                  const std::atomic<bool>& is_valid) {
  const auto decode = [&codec](const PieceShape& shape, auto* slot, auto* engine) {
    const auto encoded = Cut(LayoutOf(codec.codec, shape).encoded_bytes, slot);
    DecodePiece(codec.codec, shape, encoded, Cut(shape.raw_bytes(), engine));
    return Status::Ok();
  };
  return ForEachPiece(from, to, codec, is_valid, decode);
}

}  // namespace terrace::client

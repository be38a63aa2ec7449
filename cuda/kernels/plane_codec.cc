#include "cuda/kernels/plane_codec.h"

#include <zstd.h>

#include <cstring>

namespace terrace {
namespace {

// Offsets of the header; what is not named is zero.
struct HeaderAt {
  static constexpr size_t kCodec = 0;
  static constexpr size_t kElement = 1;
  static constexpr size_t kRawBytes = 8;
};

// Matches are hardly ever found, so the fastest level loses nothing but time spent looking.
constexpr int kZstdLevel = 1;

// A bf16 is sign, 8 of exponent, 7 of mantissa: the exponent is a byte, the rest another. An fp16
// is sign, 5, 10: its upper byte has the exponent, and three bits of noise that cost what they are.
void Split(ElementType element, std::span<const std::byte> from, uint8_t* exponents,
           uint8_t* rest) {
  const bool is_bf16 = element == ElementType::kBf16;
  for (size_t i = 0; i < from.size() / 2; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from.data() + 2 * i, sizeof(bits));
    exponents[i] = static_cast<uint8_t>(is_bf16 ? bits >> 7 : bits >> 8);
    rest[i] = static_cast<uint8_t>(is_bf16 ? (bits & 0x7F) | (bits >> 8 & 0x80) : bits);
  }
}

void Join(ElementType element, const uint8_t* exponents, const uint8_t* rest,
          std::span<std::byte> to) {
  const bool is_bf16 = element == ElementType::kBf16;
  for (size_t i = 0; i < to.size() / 2; ++i) {
    const uint32_t bf16 = (rest[i] & 0x80u) << 8 | uint32_t{exponents[i]} << 7 | (rest[i] & 0x7Fu);
    const uint32_t fp16 = uint32_t{exponents[i]} << 8 | rest[i];
    const auto bits = static_cast<uint16_t>(is_bf16 ? bf16 : fp16);
    std::memcpy(to.data() + 2 * i, &bits, sizeof(bits));
  }
}

bool IsSize(size_t raw_bytes) {
  return raw_bytes > 0 && raw_bytes % 2 == 0 && raw_bytes <= kPlaneBytesMax;
}

}  // namespace

PlaneCodec::PlaneCodec()
    : packing_(ZSTD_createCCtx(), ZSTD_freeCCtx), unpacking_(ZSTD_createDCtx(), ZSTD_freeDCtx) {}

PlaneCodec::~PlaneCodec() = default;

Result<size_t> PlaneCodec::Pack(ElementType element, std::span<const std::byte> from,
                                std::span<std::byte> to) {
  if (!IsSize(from.size()) || element == ElementType::kFp32) {
    return Status(StatusCode::kInvalid, "planes are of 16-bit floats, up to 256 MiB of them");
  }
  if (packing_ == nullptr) return Status(StatusCode::kNoSpace, "no memory for zstd");
  const size_t plane_bytes = from.size() / 2;
  constexpr Status kTooLarge(StatusCode::kNoSpace, "the bytes do not pack: keep them raw");
  if (to.size() < kPlaneHeaderBytes + plane_bytes) return kTooLarge;
  exponents_.resize(plane_bytes);
  std::memset(to.data(), 0, kPlaneHeaderBytes);
  to[HeaderAt::kCodec] = std::byte{kPlaneCodecId};
  to[HeaderAt::kElement] = static_cast<std::byte>(element);
  const uint64_t raw_bytes = from.size();
  std::memcpy(to.data() + HeaderAt::kRawBytes, &raw_bytes, sizeof(raw_bytes));
  Split(element, from, exponents_.data(),
        reinterpret_cast<uint8_t*>(to.data() + kPlaneHeaderBytes));
  const std::span<std::byte> packed = to.subspan(kPlaneHeaderBytes + plane_bytes);
  const size_t packed_bytes = ZSTD_compressCCtx(packing_.get(), packed.data(), packed.size(),
                                                exponents_.data(), plane_bytes, kZstdLevel);
  if (ZSTD_isError(packed_bytes) != 0) return kTooLarge;
  return kPlaneHeaderBytes + plane_bytes + packed_bytes;
}

Status PlaneCodec::Unpack(std::span<const std::byte> from, std::span<std::byte> to) {
  constexpr Status kNone(StatusCode::kCorrupt, "this is not the packed form of these bytes");
  if (unpacking_ == nullptr) return Status(StatusCode::kNoSpace, "no memory for zstd");
  if (!IsSize(to.size()) || from.size() < kPlaneHeaderBytes) return kNone;
  const size_t plane_bytes = to.size() / 2;
  if (from.size() - kPlaneHeaderBytes < plane_bytes) return kNone;
  const auto element = static_cast<ElementType>(from[HeaderAt::kElement]);
  if (element != ElementType::kBf16 && element != ElementType::kFp16) return kNone;
  std::byte expected[kPlaneHeaderBytes] = {std::byte{kPlaneCodecId}, from[HeaderAt::kElement]};
  const uint64_t raw_bytes = to.size();
  std::memcpy(expected + HeaderAt::kRawBytes, &raw_bytes, sizeof(raw_bytes));
  if (std::memcmp(from.data(), expected, sizeof(expected)) != 0) return kNone;
  exponents_.resize(plane_bytes);
  const std::span<const std::byte> packed = from.subspan(kPlaneHeaderBytes + plane_bytes);
  // zstd writes at most plane_bytes, whatever the frame says of itself.
  const size_t unpacked_bytes = ZSTD_decompressDCtx(unpacking_.get(), exponents_.data(),
                                                    plane_bytes, packed.data(), packed.size());
  if (ZSTD_isError(unpacked_bytes) != 0 || unpacked_bytes != plane_bytes) return kNone;
  Join(element, exponents_.data(),
       reinterpret_cast<const uint8_t*>(from.data() + kPlaneHeaderBytes), to);
  return Status::Ok();
}

}  // namespace terrace

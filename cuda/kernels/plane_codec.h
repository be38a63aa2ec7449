// Packs 16-bit floats without loss, for slow tiers: the bytes with the exponents apart from those
// without, and only the former through zstd. Exponents of keys and values are few, the rest is
// noise. docs/CODECS.md has the format.
//
// THREADING: one PlaneCodec by one thread at a time; it keeps zstd's workspace.
// LIMITS: Unpack takes any bytes: it writes at most `to`, and whatever Pack did not write is
// kCorrupt or decodes to other bytes of the right size, for a checksum to find.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "terrace/codec.h"
#include "terrace/status.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace terrace {

inline constexpr uint8_t kPlaneCodecId = 16;  // beside the ids of Codec
inline constexpr size_t kPlaneHeaderBytes = 16;
inline constexpr size_t kPlaneBytesMax = 256 << 20;  // raw, in one call

class PlaneCodec {
 public:
  PlaneCodec();
  ~PlaneCodec();
  PlaneCodec(const PlaneCodec&) = delete;
  PlaneCodec& operator=(const PlaneCodec&) = delete;

  // Packs `from`, elements of bf16 or fp16, into `to` and returns how many bytes it took. kNoSpace
  // if they are more than to.size(): with `to` one byte shorter than `from`, bytes that do not pack
  // stay raw. kInvalid for an odd number of bytes, none, more than kPlaneBytesMax, or fp32.
  Result<size_t> Pack(ElementType element, std::span<const std::byte> from,
                      std::span<std::byte> to);

  // Fills `to` with what was packed. kCorrupt if `from` is not the packed form of to.size() bytes.
  Status Unpack(std::span<const std::byte> from, std::span<std::byte> to);

 private:
  std::unique_ptr<ZSTD_CCtx_s, size_t (*)(ZSTD_CCtx_s*)> packing_;
  std::unique_ptr<ZSTD_DCtx_s, size_t (*)(ZSTD_DCtx_s*)> unpacking_;
  std::vector<uint8_t> exponents_;
};

}  // namespace terrace

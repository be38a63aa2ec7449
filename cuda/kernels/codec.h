// Encodes and decodes pieces of blocks on the host, bit for bit as the kernels of cuda/ do. What
// each codec writes, and how far it is from the truth: docs/CODECS.md.
//
// THREADING: any thread; pure functions that allocate nothing.
// LIMITS: a lossy codec takes finite values only, up to the largest bf16. Decoders take any bytes
// of the right size: each reads and writes exactly what the shape says, and writes finite values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "terrace/codec.h"
#include "terrace/status.h"

namespace terrace {

// What the kernels were compiled for; all write the same bits.
enum class SimdLevel : uint8_t { kPortable, kAvx2, kAvx512 };
// The highest level of this machine.
SimdLevel BestSimdLevel();

// kUnsupported, and `to` holds nothing of use, if `from` has a NaN, an infinity, or a magnitude
// above the largest bf16. REQUIRES: from.size() is shape.raw_bytes(), to.size() the layout's
// encoded_bytes, CheckPiece(shape) is ok, the level is the machine's, no overlap.
Status EncodePiece(Codec codec, const PieceShape& shape, std::span<const std::byte> from,
                   std::span<std::byte> to, SimdLevel level = BestSimdLevel());

// REQUIRES: as EncodePiece, the other way round.
void DecodePiece(Codec codec, const PieceShape& shape, std::span<const std::byte> from,
                 std::span<std::byte> to, SimdLevel level = BestSimdLevel());

}  // namespace terrace

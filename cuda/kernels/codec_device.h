// Codecs on a device's streams, bit for bit what cuda/kernels/codec.h and cuda/kernels/rope.h do. A
// launch takes many pieces of one shape, each in a page of its own, so that one kernel of a GPU
// gathers and encodes, or decodes, turns and scatters.
//
// THREADING: as cuda/abi/device.h. INVARIANT: structs only grow at their end.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/abi/device.h"

namespace terrace {

inline constexpr uint32_t kCodecPiecesMax = 65535;  // of one launch

// Addresses as kernels reach them.
struct CodecPiece {
  uint64_t engine_address = 0;  // of token 0's row, [heads][head_dim], aligned to its elements
  // Of the encoded piece, aligned to kCodecPlaneAlignmentBytes; raw: to as many elements, up to 16
  // bytes, as divide a head.
  uint64_t slot_address = 0;
};

struct CodecLaunch {
  uint32_t struct_bytes = sizeof(CodecLaunch);
  uint32_t codec = 0;    // Codec
  uint32_t element = 0;  // ElementType
  uint32_t role = 0;     // PieceRole
  uint32_t tokens = 0, heads = 0, head_dim = 0;
  uint32_t piece_count = 0;  // 1..kCodecPiecesMax
  // Between the rows of two tokens; a multiple of elements. Not every backend takes gaps.
  uint64_t engine_token_stride_bytes = 0;
  const CodecPiece* pieces = nullptr;  // memory that kernels read, unchanged until it is done
  // Encode: a word a piece, in memory that kernels write; set to 1 where the piece has a value the
  // codec does not take, left alone elsewhere. Such a piece is not to be stored.
  uint32_t* refused = nullptr;
  // Decode, of keys: cos and sin of every pair as RopeTable::turns() has them, in memory that
  // kernels read, aligned to 64 bytes and unchanged until it is done; nullptr: nothing is turned.
  const float* turns = nullptr;
  uint32_t pairing = 0;  // RopePairing
  uint32_t rot_dim = 0;
  uint32_t rot_offset = 0;
  uint32_t reserved = 0;
};

struct CodecOps {
  uint32_t struct_bytes;
  uint32_t takes_gaps;  // 1: between rows of tokens, too
  // Both only queue. kInvalid for a launch that is none, kUnsupported for one of another backend's.
  DeviceStatus (*encode)(StreamHandle* stream, const CodecLaunch* launch);
  DeviceStatus (*decode)(StreamHandle* stream, const CodecLaunch* launch);
};
static_assert(std::is_standard_layout_v<CodecOps> && std::is_standard_layout_v<CodecLaunch>);

}  // namespace terrace

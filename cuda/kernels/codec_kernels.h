// What the kernels that encode and those that decode have in common: the launch as they take it,
// and how its vectors of neighbouring elements are given to threads.
//
// A vector is up to 16 bytes of the engine's elements, as many as divide a head, so all of it has
// one head's parameters. A page may be aligned to its elements only, and only the kernel sees where
// it is: such a page is read and written by elements, its slot by vectors all the same.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/abi/launch.h"
#include "cuda/abi/paged_index.h"
#include "cuda/kernels/codec_device.h"
#include "cuda/kernels/codec_vector.h"
#include "terrace/codec.h"

namespace terrace::cuda {

constexpr uint32_t kThreads = 128;
constexpr uint32_t kWarpThreads = 32;
constexpr uint32_t kWarps = kThreads / kWarpThreads;

// A launch as kernels take it. Offsets within an encoded piece have 32 bits: LIMITS of PieceShape.
struct CodecWork {
  uint32_t tokens, heads, head_dim, channel_count;
  uint64_t token_stride;  // in elements
  uint32_t parameter_bytes, codes_offset_bytes, codes_end_bytes, encoded_bytes;
  const CodecPiece* pieces;
  uint32_t* refused;
  const float* turns;
  bool is_neox;
  uint32_t rot_dim, rot_offset;
  // How many vectors there are, by the kernel that takes them.
  FastDivider vectors_per_row;  // of a token
  FastDivider vectors_per_head;
  FastDivider heads_of_token;
  uint32_t lane_bits;   // two to the power of these lanes share a group
  float magnitude_max;  // what decoded values are clamped to
};

template <typename Element>
struct CodecPlaces {
  typename Element::Bits* engine;
  bool is_aligned;  // the page: to vectors
  uint8_t* slot;
  uint8_t* codes;
};

template <typename Element, uint32_t kWidth>
__device__ CodecPlaces<Element> PlacesOf(const CodecWork& work, const CodecPiece& piece) {
  constexpr uint32_t kElementBytes = sizeof(typename Element::Bits);
  auto* slot = reinterpret_cast<uint8_t*>(piece.slot_address);
  const uint64_t steps_bytes = piece.engine_address | work.token_stride * kElementBytes;
  return {reinterpret_cast<typename Element::Bits*>(piece.engine_address),
          steps_bytes % (kWidth * kElementBytes) == 0, slot, slot + work.codes_offset_bytes};
}

// A kind is a codec and, where that has two ways, a role.
enum class CodecKind { kRaw, kInt8Keys, kInt8Values, kFp8, kInt4Keys, kInt4Values };

// The launches of codec_encode.cu and codec_decode.cu. REQUIRES: `work` describes the launch; its
// nest is theirs.
cudaError_t LaunchEncode(CodecKind kind, ElementType element, CodecWork work, uint32_t piece_count,
                         cudaStream_t stream);
cudaError_t LaunchDecode(CodecKind kind, ElementType element, CodecWork work, uint32_t piece_count,
                         cudaStream_t stream);

inline uint32_t BlocksFor(uint64_t count, uint32_t each) {
  return static_cast<uint32_t>((count + each - 1) / each);
}

}  // namespace terrace::cuda

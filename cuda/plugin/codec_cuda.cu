// The plugin's codecs: launches are read here, and queued by codec_encode.cu and
// codec_decode.cu.
#include <cuda_runtime.h>

#include "cuda/abi/cuda_backend.h"
#include "cuda/kernels/codec_device.h"
#include "cuda/kernels/codec_kernels.h"
#include "cuda/kernels/rope_math.h"
#include "terrace/codec.h"

namespace terrace::cuda {
namespace {

DeviceStatus Invalid(const char* what) {
  return Refuse(static_cast<int32_t>(StatusCode::kInvalid), what);
}

DeviceStatus ReadWork(const CodecLaunch& launch, CodecWork* work, PieceShape* shape) {
  if (launch.struct_bytes < sizeof(CodecLaunch)) return Invalid("a launch of an older Terrace");
  if (launch.codec > static_cast<uint32_t>(Codec::kInt4) ||
      launch.element > static_cast<uint32_t>(ElementType::kFp32) ||
      launch.role > static_cast<uint32_t>(PieceRole::kValues)) {
    return Invalid("no such codec, element type or role");
  }
  *shape = {.element = static_cast<ElementType>(launch.element),
            .role = static_cast<PieceRole>(launch.role),
            .tokens = launch.tokens,
            .heads = launch.heads,
            .head_dim = launch.head_dim};
  if (!CheckPiece(*shape).ok()) return Invalid("no piece of a block has that shape");
  const uint64_t element_bytes = ElementBytes(shape->element);
  if (launch.piece_count == 0 || launch.piece_count > kCodecPiecesMax || launch.pieces == nullptr) {
    return Invalid("a launch has 1 to 65,535 pieces");
  }
  if (launch.engine_token_stride_bytes % element_bytes != 0 ||
      launch.engine_token_stride_bytes < shape->channel_count() * element_bytes) {
    return Invalid("the rows of tokens overlap, or are not aligned to elements");
  }
  const auto codec = static_cast<Codec>(launch.codec);
  const PieceLayout layout = LayoutOf(codec, *shape);
  const bool is_int4 = codec == Codec::kInt4;
  *work = {};
  work->tokens = launch.tokens;
  work->heads = launch.heads;
  work->head_dim = launch.head_dim;
  work->channel_count = static_cast<uint32_t>(shape->channel_count());
  work->token_stride = launch.engine_token_stride_bytes / element_bytes;
  work->parameter_bytes = static_cast<uint32_t>(layout.parameter_count * (is_int4 ? 4 : 2));
  work->codes_offset_bytes = static_cast<uint32_t>(layout.codes_offset_bytes);
  work->codes_end_bytes =
      static_cast<uint32_t>(layout.codes_offset_bytes + shape->element_count() / (is_int4 ? 2 : 1));
  work->encoded_bytes = static_cast<uint32_t>(layout.encoded_bytes);
  work->pieces = launch.pieces;
  work->refused = launch.refused;
  return kCudaOk;
}

CodecKind KindOf(const CodecLaunch& launch) {
  const bool is_keys = launch.role == static_cast<uint32_t>(PieceRole::kKeys);
  switch (static_cast<Codec>(launch.codec)) {
    case Codec::kRaw:
      return CodecKind::kRaw;
    case Codec::kInt8:
      return is_keys ? CodecKind::kInt8Keys : CodecKind::kInt8Values;
    case Codec::kFp8:
      return CodecKind::kFp8;
    case Codec::kInt4:
      break;
  }
  return is_keys ? CodecKind::kInt4Keys : CodecKind::kInt4Values;
}

DeviceStatus EncodePieces(StreamHandle* handle, const CodecLaunch* launch) {
  CodecWork work;
  PieceShape shape;
  const DeviceStatus read = ReadWork(*launch, &work, &shape);
  if (read.code != 0) return read;
  if (launch->codec != static_cast<uint32_t>(Codec::kRaw) && launch->refused == nullptr) {
    return Invalid("a lossy launch needs a word a piece for what it refuses");
  }
  const CudaStream& stream = *AsCuda(handle);
  const DeviceScope scope(*stream.device);
  if (scope.status().code != 0) return scope.status();
  return FromRuntime(
      LaunchEncode(KindOf(*launch), shape.element, work, launch->piece_count, stream.stream));
}

DeviceStatus DecodePieces(StreamHandle* handle, const CodecLaunch* launch) {
  CodecWork work;
  PieceShape shape;
  const DeviceStatus read = ReadWork(*launch, &work, &shape);
  if (read.code != 0) return read;
  if (launch->turns != nullptr) {
    const bool is_window =
        rope_math::IsWindow(launch->rot_dim, launch->rot_offset, launch->head_dim);
    if (!is_window || launch->pairing > 1 || shape.role != PieceRole::kKeys) {
      return Invalid("only a window of keys is turned, of pairing neox or gptj");
    }
    work.turns = launch->turns;
    work.is_neox = launch->pairing == 0;
    work.rot_dim = launch->rot_dim;
    work.rot_offset = launch->rot_offset;
  }
  const CudaStream& stream = *AsCuda(handle);
  const DeviceScope scope(*stream.device);
  if (scope.status().code != 0) return scope.status();
  return FromRuntime(
      LaunchDecode(KindOf(*launch), shape.element, work, launch->piece_count, stream.stream));
}

}  // namespace

constinit const CodecOps kCodecOps = {.struct_bytes = sizeof(CodecOps),
                                      .takes_gaps = 1,
                                      .encode = EncodePieces,
                                      .decode = DecodePieces};

}  // namespace terrace::cuda

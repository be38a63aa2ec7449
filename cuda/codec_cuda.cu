// Kernels of the codecs. Each is a loop over elements with the arithmetic of codec_math.h; threads
// next to each other read and write bytes next to each other. Compiled without FMA contraction.
#include <cuda_runtime.h>

#include "cuda/codec_device.h"
#include "cuda/codec_math.h"
#include "cuda/cuda_backend.h"
#include "cuda/launch.h"
#include "cuda/rope_math.h"
#include "terrace/codec.h"

namespace terrace::cuda {
namespace {

using namespace codec_math;  // NOLINT: one header, the arithmetic this file is made of

constexpr uint32_t kThreads = 128;
constexpr uint32_t kWarpThreads = 32;
constexpr uint32_t kWarps = kThreads / kWarpThreads;
constexpr uint32_t kAllLanes = 0xFFFFFFFF;

// A launch as kernels take it: by value.
struct Work {
  uint32_t tokens, heads, head_dim, channel_count;
  uint32_t codec, role;
  uint64_t token_stride;  // in elements
  uint64_t parameter_bytes, codes_offset_bytes, codes_end_bytes, encoded_bytes;
  const CodecPiece* pieces;
  uint32_t* refused;
  const float* turns;
  uint32_t is_neox, rot_dim, rot_offset;
};

template <typename Element>
struct Places {
  const typename Element::Bits* engine;
  uint8_t* slot;
  uint16_t* parameters;
  uint8_t* codes;
};

template <typename Element>
__device__ Places<Element> PlacesOf(const Work& work) {
  const CodecPiece piece = work.pieces[blockIdx.y];
  auto* slot = reinterpret_cast<uint8_t*>(piece.slot_address);
  return {reinterpret_cast<const typename Element::Bits*>(piece.engine_address), slot,
          reinterpret_cast<uint16_t*>(slot), slot + work.codes_offset_bytes};
}

// The bytes that alignment leaves; there are fewer than kThreads of each.
__device__ void ZeroPadding(const Work& work, uint8_t* slot) {
  if (blockIdx.x != 0) return;
  const uint64_t behind_parameters = work.parameter_bytes + threadIdx.x;
  if (behind_parameters < work.codes_offset_bytes) slot[behind_parameters] = 0;
  const uint64_t behind_codes = work.codes_end_bytes + threadIdx.x;
  if (behind_codes < work.encoded_bytes) slot[behind_codes] = 0;
}
static_assert(kThreads >= kCodecPlaneAlignmentBytes);

template <typename Element>
__device__ void RefuseIf(const Work& work, uint32_t magnitude_max) {
  if (magnitude_max > Element::kMagnitudeLimit) work.refused[blockIdx.y] = 1;
}

__device__ uint32_t WarpMax(uint32_t value) {
  for (uint32_t distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

// --- encoding
// ---------------------------------------------------------------------------------------

// int8 values, and fp8: a warp takes the rows of a token and head.
template <typename Element, bool kIsFp8>
__global__ void EncodeRows(Work work) {
  const auto at = PlacesOf<Element>(work);
  ZeroPadding(work, at.slot);
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t row = blockIdx.x * kWarps + threadIdx.x / kWarpThreads;
  if (row >= work.tokens * work.heads) return;
  const uint32_t token = row / work.heads;
  const auto* values =
      at.engine + token * work.token_stride + uint64_t{row - token * work.heads} * work.head_dim;
  uint32_t magnitude_max = 0;
  for (uint32_t i = lane; i < work.head_dim; i += kWarpThreads) {
    const uint32_t magnitude = values[i] & Element::kMagnitudeMask;
    magnitude_max = magnitude > magnitude_max ? magnitude : magnitude_max;
  }
  magnitude_max = WarpMax(magnitude_max);
  RefuseIf<Element>(work, magnitude_max);
  const float largest = Element::Widen(static_cast<typename Element::Bits>(magnitude_max));
  const uint16_t scale = ScaleOf(largest, kIsFp8 ? kFp8CodeMax : kInt8CodeMax);
  const float reciprocal = ReciprocalOf(scale);
  if (lane == 0) at.parameters[row] = scale;
  uint8_t* codes = at.codes + uint64_t{row} * work.head_dim;
  for (uint32_t i = 2 * lane; i < work.head_dim; i += 2 * kWarpThreads) {
    uint8_t pair[2];
    for (uint32_t k = 0; k < 2; ++k) {
      const float value = Element::Widen(values[i + k]);
      pair[k] = kIsFp8 ? EncodeFp8(value, reciprocal) : EncodeInt8(value, reciprocal);
    }
    // head_dim is even and the plane aligned, so a pair is.
    *reinterpret_cast<uchar2*>(codes + i) = make_uchar2(pair[0], pair[1]);
  }
}

// int8 keys: a thread takes two neighbouring channels of all tokens.
template <typename Element>
__global__ void EncodeInt8Keys(Work work) {
  const auto at = PlacesOf<Element>(work);
  ZeroPadding(work, at.slot);
  const uint32_t channel = 2 * (blockIdx.x * kThreads + threadIdx.x);
  if (channel >= work.channel_count) return;
  const auto* values = at.engine + channel;
  uint32_t magnitude_max[2] = {0, 0};
  for (uint32_t token = 0; token < work.tokens; ++token) {
    for (uint32_t k = 0; k < 2; ++k) {
      const uint32_t magnitude = values[token * work.token_stride + k] & Element::kMagnitudeMask;
      magnitude_max[k] = magnitude > magnitude_max[k] ? magnitude : magnitude_max[k];
    }
  }
  float reciprocals[2];
  for (uint32_t k = 0; k < 2; ++k) {
    RefuseIf<Element>(work, magnitude_max[k]);
    const uint16_t scale = ScaleOf(
        Element::Widen(static_cast<typename Element::Bits>(magnitude_max[k])), kInt8CodeMax);
    at.parameters[channel + k] = scale;
    reciprocals[k] = ReciprocalOf(scale);
  }
  for (uint32_t token = 0; token < work.tokens; ++token) {
    const auto* row = values + token * work.token_stride;
    const uint8_t first = EncodeInt8(Element::Widen(row[0]), reciprocals[0]);
    const uint8_t second = EncodeInt8(Element::Widen(row[1]), reciprocals[1]);
    auto* codes = at.codes + uint64_t{token} * work.channel_count + channel;
    *reinterpret_cast<uchar2*>(codes) = make_uchar2(first, second);
  }
}

struct Range {
  int32_t minimum = 0x7FFFFFFF;  // as OrderOf has them
  int32_t maximum = static_cast<int32_t>(0x80000000);
  uint32_t magnitude = 0;
};

template <typename Element>
__device__ void Include(typename Element::Bits bits, Range* range) {
  const uint32_t magnitude = bits & Element::kMagnitudeMask;
  const int32_t order = OrderOf(Element::Widen(bits));
  range->magnitude = magnitude > range->magnitude ? magnitude : range->magnitude;
  range->minimum = order < range->minimum ? order : range->minimum;
  range->maximum = order > range->maximum ? order : range->maximum;
}

// Writes a group's {minimum, step}, and gives what its codes are made with.
__device__ void PutGroup(const Range& range, uint16_t* parameters, bool is_writer,
                         float* half_minimum, float* reciprocal) {
  const uint16_t below = Bf16Below(OfOrder(range.minimum));
  const uint16_t step = StepOf(below, OfOrder(range.maximum));
  if (is_writer) {
    parameters[0] = below;
    parameters[1] = step;
  }
  *half_minimum = Bf16::Widen(below) * 0.5f;
  *reciprocal = HalfStepReciprocalOf(step);
}

// int4 keys: a thread takes two neighbouring channels of the tokens of one group (blockIdx.z).
template <typename Element>
__global__ void EncodeInt4Keys(Work work) {
  const auto at = PlacesOf<Element>(work);
  if (blockIdx.z == 0) ZeroPadding(work, at.slot);
  const uint32_t channel = 2 * (blockIdx.x * kThreads + threadIdx.x);
  if (channel >= work.channel_count) return;
  const uint32_t token_first = blockIdx.z * kInt4GroupElements;
  const uint32_t token_end = min(token_first + kInt4GroupElements, work.tokens);
  const auto* values = at.engine + channel;
  Range ranges[2];
  for (uint32_t token = token_first; token < token_end; ++token) {
    for (uint32_t k = 0; k < 2; ++k) {
      Include<Element>(values[token * work.token_stride + k], &ranges[k]);
    }
  }
  float half_minimum[2], reciprocals[2];
  for (uint32_t k = 0; k < 2; ++k) {
    RefuseIf<Element>(work, ranges[k].magnitude);
    uint16_t* parameters =
        at.parameters + 2 * (uint64_t{blockIdx.z} * work.channel_count + channel + k);
    PutGroup(ranges[k], parameters, true, &half_minimum[k], &reciprocals[k]);
  }
  for (uint32_t token = token_first; token < token_end; ++token) {
    const auto* row = values + token * work.token_stride;
    const uint8_t low = EncodeInt4(Element::Widen(row[0]), half_minimum[0], reciprocals[0]);
    const uint8_t high = EncodeInt4(Element::Widen(row[1]), half_minimum[1], reciprocals[1]);
    at.codes[(uint64_t{token} * work.channel_count + channel) / 2] =
        static_cast<uint8_t>(low | high << 4);
  }
}

// int4 values: a warp takes a row, 16 lanes of two elements a group.
template <typename Element>
__global__ void EncodeInt4Values(Work work) {
  constexpr uint32_t kGroupLanes = kInt4GroupElements / 2;
  const auto at = PlacesOf<Element>(work);
  ZeroPadding(work, at.slot);
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t row = blockIdx.x * kWarps + threadIdx.x / kWarpThreads;
  if (row >= work.tokens * work.heads) return;
  const uint32_t token = row / work.heads;
  const auto* values =
      at.engine + token * work.token_stride + uint64_t{row - token * work.heads} * work.head_dim;
  const uint32_t group_count = (work.head_dim + kInt4GroupElements - 1) / kInt4GroupElements;
  for (uint32_t first = 0; first < work.head_dim; first += 2 * kWarpThreads) {
    const uint32_t i = first + 2 * lane;
    const bool is_within = i < work.head_dim;  // and i + 1: head_dim is even
    Range range;
    for (uint32_t k = 0; is_within && k < 2; ++k) Include<Element>(values[i + k], &range);
    for (uint32_t distance = kGroupLanes / 2; distance > 0; distance /= 2) {
      range.minimum = min(range.minimum, __shfl_xor_sync(kAllLanes, range.minimum, distance));
      range.maximum = max(range.maximum, __shfl_xor_sync(kAllLanes, range.maximum, distance));
      range.magnitude = max(range.magnitude, __shfl_xor_sync(kAllLanes, range.magnitude, distance));
    }
    if (!is_within) continue;
    RefuseIf<Element>(work, range.magnitude);
    uint16_t* parameters =
        at.parameters + 2 * (uint64_t{row} * group_count + i / kInt4GroupElements);
    float half_minimum, reciprocal;
    PutGroup(range, parameters, lane % kGroupLanes == 0, &half_minimum, &reciprocal);
    const uint8_t low = EncodeInt4(Element::Widen(values[i]), half_minimum, reciprocal);
    const uint8_t high = EncodeInt4(Element::Widen(values[i + 1]), half_minimum, reciprocal);
    at.codes[(uint64_t{row} * work.head_dim + i) / 2] = static_cast<uint8_t>(low | high << 4);
  }
}

// --- decoding
// ---------------------------------------------------------------------------------------

// One value of a piece, before it is clamped; of a raw piece, as it is.
template <typename Element>
__device__ float DecodeOne(const Work& work, const Places<Element>& at, uint32_t token,
                           uint32_t channel) {
  const uint64_t index = uint64_t{token} * work.channel_count + channel;
  const uint32_t head = channel / work.head_dim;
  const uint64_t row = uint64_t{token} * work.heads + head;
  const bool is_keys = work.role == static_cast<uint32_t>(PieceRole::kKeys);
  switch (static_cast<Codec>(work.codec)) {
    case Codec::kRaw:
      return Element::Widen(reinterpret_cast<const typename Element::Bits*>(at.slot)[index]);
    case Codec::kInt8:
      return DecodeInt8(at.codes[index], Parameter(at.parameters[is_keys ? channel : row]));
    case Codec::kFp8:
      return DecodeFp8(at.codes[index], Parameter(at.parameters[row]));
    case Codec::kInt4:
      break;
  }
  const uint32_t groups = (work.head_dim + kInt4GroupElements - 1) / kInt4GroupElements;
  const uint64_t group = is_keys
                             ? uint64_t{token / kInt4GroupElements} * work.channel_count + channel
                             : row * groups + (channel - head * work.head_dim) / kInt4GroupElements;
  const uint8_t packed = at.codes[index / 2];
  const auto code = static_cast<uint8_t>(index % 2 == 0 ? packed & 15 : packed >> 4);
  return DecodeInt4(code, Parameter(at.parameters[2 * group]) * 0.5f,
                    Parameter(at.parameters[2 * group + 1]) * 0.5f);
}

// A key in fp32 at its new position.
template <typename Element>
__device__ float TurnOne(const Work& work, const Places<Element>& at, uint32_t token,
                         uint32_t channel) {
  const auto decode = [&](uint32_t which) {
    const float value = DecodeOne(work, at, token, which);
    return static_cast<Codec>(work.codec) == Codec::kRaw ? value : Clamp(value, kMagnitudeMax);
  };
  const uint32_t head_first = channel / work.head_dim * work.head_dim;
  const uint32_t window_first = head_first + work.rot_offset;
  if (channel < window_first || channel >= window_first + work.rot_dim) return decode(channel);
  const uint32_t within = channel - window_first;
  const uint32_t pairs = work.rot_dim / 2;
  const bool is_neox = work.is_neox != 0;
  const uint32_t i = is_neox ? within % pairs : within / 2;
  const uint32_t first = rope_math::FirstOf(i, is_neox);
  const uint32_t second = rope_math::SecondOf(i, pairs, is_neox);
  const rope_math::Pair turned =
      rope_math::Turn({decode(window_first + first), decode(window_first + second)},
                      work.turns[2 * i], work.turns[2 * i + 1]);
  return within == first ? turned.first : turned.second;
}

// A thread takes one value of every token of its stride; blockIdx.z is the token.
template <typename Element, bool kTurns>
__global__ void DecodeValues(Work work) {
  using Bits = typename Element::Bits;
  const auto at = PlacesOf<Element>(work);
  const uint32_t channel = blockIdx.x * kThreads + threadIdx.x;
  if (channel >= work.channel_count) return;
  auto* to = const_cast<Bits*>(at.engine);  // the engine's page is what a decode writes
  for (uint32_t token = blockIdx.z; token < work.tokens; token += gridDim.z) {
    Bits* value = to + token * work.token_stride + channel;
    if constexpr (kTurns) {
      const uint32_t within = channel % work.head_dim - work.rot_offset;
      const bool is_raw = static_cast<Codec>(work.codec) == Codec::kRaw;
      if (is_raw && within >= work.rot_dim) {  // also a negative one
        *value =
            reinterpret_cast<const Bits*>(at.slot)[uint64_t{token} * work.channel_count + channel];
      } else {
        *value = Element::Narrow(TurnOne(work, at, token, channel));
      }
    } else if (static_cast<Codec>(work.codec) == Codec::kRaw) {
      *value =
          reinterpret_cast<const Bits*>(at.slot)[uint64_t{token} * work.channel_count + channel];
    } else {
      *value = Element::NarrowFinite(Clamp(DecodeOne(work, at, token, channel), Element::kMax));
    }
  }
}

template <typename Element>
__global__ void EncodeRaw(Work work) {
  const auto at = PlacesOf<Element>(work);
  const uint32_t channel = blockIdx.x * kThreads + threadIdx.x;
  if (channel >= work.channel_count) return;
  auto* to = reinterpret_cast<typename Element::Bits*>(at.slot);
  for (uint32_t token = blockIdx.z; token < work.tokens; token += gridDim.z) {
    to[uint64_t{token} * work.channel_count + channel] =
        at.engine[token * work.token_stride + channel];
  }
}

// --- launches
// ---------------------------------------------------------------------------------------

constexpr uint32_t kGridDepthMax = 65535;

DeviceStatus Invalid(const char* what) {
  return Refuse(static_cast<int32_t>(StatusCode::kInvalid), what);
}

DeviceStatus ReadWork(const CodecLaunch& launch, Work* work, PieceShape* shape) {
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
  *work = {
      .tokens = launch.tokens,
      .heads = launch.heads,
      .head_dim = launch.head_dim,
      .channel_count = static_cast<uint32_t>(shape->channel_count()),
      .codec = launch.codec,
      .role = launch.role,
      .token_stride = launch.engine_token_stride_bytes / element_bytes,
      .parameter_bytes = layout.parameter_count * (is_int4 ? 4 : 2),
      .codes_offset_bytes = layout.codes_offset_bytes,
      .codes_end_bytes = layout.codes_offset_bytes + shape->element_count() / (is_int4 ? 2 : 1),
      .encoded_bytes = layout.encoded_bytes,
      .pieces = launch.pieces,
      .refused = launch.refused,
      .turns = launch.turns,
      .is_neox = launch.pairing == 0,
      .rot_dim = launch.rot_dim,
      .rot_offset = launch.rot_offset};
  return kCudaOk;
}

uint32_t BlocksFor(uint64_t count, uint32_t each) {
  return static_cast<uint32_t>((count + each - 1) / each);
}

template <typename Element>
cudaError_t LaunchEncode(const Work& work, uint32_t piece_count, cudaStream_t stream) {
  const auto codec = static_cast<Codec>(work.codec);
  const bool is_keys = work.role == static_cast<uint32_t>(PieceRole::kKeys);
  const dim3 channels(BlocksFor(work.channel_count, 2 * kThreads), piece_count);
  const dim3 rows(BlocksFor(uint64_t{work.tokens} * work.heads, kWarps), piece_count);
  if (codec == Codec::kRaw) {
    const dim3 grid(BlocksFor(work.channel_count, kThreads), piece_count,
                    min(work.tokens, kGridDepthMax));
    return LaunchKernel(EncodeRaw<Element>, grid, kThreads, stream, work);
  }
  if (codec == Codec::kFp8) {
    return LaunchKernel(EncodeRows<Element, true>, rows, kThreads, stream, work);
  }
  if (codec == Codec::kInt8) {
    return is_keys ? LaunchKernel(EncodeInt8Keys<Element>, channels, kThreads, stream, work)
                   : LaunchKernel(EncodeRows<Element, false>, rows, kThreads, stream, work);
  }
  const dim3 groups(channels.x, piece_count, BlocksFor(work.tokens, kInt4GroupElements));
  return is_keys ? LaunchKernel(EncodeInt4Keys<Element>, groups, kThreads, stream, work)
                 : LaunchKernel(EncodeInt4Values<Element>, rows, kThreads, stream, work);
}

template <typename Element>
cudaError_t LaunchDecode(const Work& work, uint32_t piece_count, cudaStream_t stream) {
  const dim3 grid(BlocksFor(work.channel_count, kThreads), piece_count,
                  min(work.tokens, kGridDepthMax));
  const auto kernel =
      work.turns != nullptr ? DecodeValues<Element, true> : DecodeValues<Element, false>;
  return LaunchKernel(kernel, grid, kThreads, stream, work);
}

DeviceStatus EncodePieces(StreamHandle* handle, const CodecLaunch* launch) {
  Work work;
  PieceShape shape;
  const DeviceStatus read = ReadWork(*launch, &work, &shape);
  if (read.code != 0) return read;
  if (launch->codec != static_cast<uint32_t>(Codec::kRaw) && launch->refused == nullptr) {
    return Invalid("a lossy launch needs a word a piece for what it refuses");
  }
  const CudaStream& stream = *AsCuda(handle);
  const DeviceScope scope(*stream.device);
  if (scope.status().code != 0) return scope.status();
  switch (shape.element) {
    case ElementType::kBf16:
      return FromRuntime(LaunchEncode<Bf16>(work, launch->piece_count, stream.stream));
    case ElementType::kFp16:
      return FromRuntime(LaunchEncode<Fp16>(work, launch->piece_count, stream.stream));
    case ElementType::kFp32:
      return FromRuntime(LaunchEncode<Fp32>(work, launch->piece_count, stream.stream));
  }
  return Invalid("no such element type");
}

DeviceStatus DecodePieces(StreamHandle* handle, const CodecLaunch* launch) {
  Work work;
  PieceShape shape;
  const DeviceStatus read = ReadWork(*launch, &work, &shape);
  if (read.code != 0) return read;
  if (launch->turns != nullptr) {
    const bool is_window = launch->rot_dim >= 2 && launch->rot_dim % 2 == 0 &&
                           launch->rot_offset <= launch->head_dim &&
                           launch->rot_dim <= launch->head_dim - launch->rot_offset;
    if (!is_window || launch->pairing > 1 || shape.role != PieceRole::kKeys) {
      return Invalid("only a window of keys is turned, of pairing neox or gptj");
    }
  }
  const CudaStream& stream = *AsCuda(handle);
  const DeviceScope scope(*stream.device);
  if (scope.status().code != 0) return scope.status();
  switch (shape.element) {
    case ElementType::kBf16:
      return FromRuntime(LaunchDecode<Bf16>(work, launch->piece_count, stream.stream));
    case ElementType::kFp16:
      return FromRuntime(LaunchDecode<Fp16>(work, launch->piece_count, stream.stream));
    case ElementType::kFp32:
      return FromRuntime(LaunchDecode<Fp32>(work, launch->piece_count, stream.stream));
  }
  return Invalid("no such element type");
}

constexpr CodecOps kCodecOps = {.struct_bytes = sizeof(CodecOps),
                                .abi_version = kCodecAbiVersion,
                                .encode = EncodePieces,
                                .decode = DecodePieces};

}  // namespace
}  // namespace terrace::cuda

extern "C" __attribute__((visibility("default"))) const terrace::CodecOps* terrace_codec_plugin(
    uint32_t abi_version) {
  return abi_version == terrace::kCodecAbiVersion ? &terrace::cuda::kCodecOps : nullptr;
}

// Kernels that decode, and turn keys. A thread takes the vector at one channel of a few
// neighbouring tokens: all of it is asked for before the first is decoded, and what belongs to the
// channel is read once. Compiled without FMA contraction.
#include "cuda/kernels/codec_kernels.h"
#include "cuda/kernels/rope_math.h"

namespace terrace::cuda {
namespace {

using namespace codec_math;  // NOLINT: one header, the arithmetic this file is made of

constexpr uint32_t kTokensOfThread = 4;
static_assert(kInt4GroupElements % kTokensOfThread == 0);  // one group of keys

// Where a vector lies that a thread decodes of every token from token_first on.
struct VectorPlace {
  uint32_t channel, head, within_head;
  uint32_t token_first;
};

// What is read of one token's vector before any of it is decoded.
template <CodecKind kKind, typename Element, uint32_t kWidth>
struct VectorCodes {
  static constexpr bool kIsRaw = kKind == CodecKind::kRaw;
  static constexpr bool kIsInt4 = kKind == CodecKind::kInt4Keys || kKind == CodecKind::kInt4Values;
  static constexpr uint32_t kBytes =
      kIsRaw ? kWidth * kElementBytesOf<Element> : (kIsInt4 ? (kWidth + 1) / 2 : kWidth);
  Words<kBytes> codes;
  uint32_t row_parameters;  // a scale, or {minimum, step}
};

template <CodecKind kKind, typename Element, uint32_t kWidth>
class VectorDecoder {
 public:
  using Codes = VectorCodes<kKind, Element, kWidth>;
  static constexpr bool kIsOfChannels =
      kKind == CodecKind::kInt8Keys || kKind == CodecKind::kInt4Keys;

  __device__ VectorDecoder(const CodecWork& work, const CodecPlaces<Element>& at,
                           const VectorPlace& place)
      : work_(work), at_(at), place_(place) {
    if constexpr (kKind == CodecKind::kInt8Keys) {
      const auto scales = Load<2 * kWidth>(at.slot + 2 * place.channel);
      TERRACE_CODEC_UNROLL
      for (uint32_t i = 0; i < kWidth; ++i) scales_[i] = HalfOf(scales.at[i / 2], i % 2);
    } else if constexpr (kKind == CodecKind::kInt4Keys) {
      const uint32_t group = place.token_first / kInt4GroupElements;
      const auto groups =
          Load<4 * kWidth>(at.slot + 4 * (group * work.channel_count + place.channel));
      TERRACE_CODEC_UNROLL
      for (uint32_t i = 0; i < kWidth; ++i) {
        half_minima_[i] = HalfOf(groups.at[i], 0) * 0.5f;
        scales_[i] = HalfOf(groups.at[i], 1) * 0.5f;
      }
    }
  }

  __device__ Codes LoadCodes(uint32_t token) const {
    Codes codes = {};
    const uint32_t index = token * work_.channel_count + place_.channel;
    if constexpr (Codes::kIsRaw) {
      codes.codes = Load<Codes::kBytes>(at_.slot + index * kElementBytesOf<Element>);
    } else {
      codes.codes = Load<Codes::kBytes>(at_.codes + (Codes::kIsInt4 ? index / 2 : index));
    }
    const uint32_t row = token * work_.heads + place_.head;
    if constexpr (kKind == CodecKind::kInt4Values) {
      const uint32_t groups = (work_.head_dim + kInt4GroupElements - 1) / kInt4GroupElements;
      const uint32_t group = row * groups + place_.within_head / kInt4GroupElements;
      codes.row_parameters = LoadOne<uint32_t>(at_.slot + 4 * group);
    } else if constexpr (!Codes::kIsRaw && !kIsOfChannels) {
      codes.row_parameters = LoadOne<uint16_t>(at_.slot + 2 * row);
    }
    return codes;
  }

  // As the engine's numbers, before they are clamped.
  __device__ void Decode(const Codes& codes, float (&values)[kWidth]) const {
    const float row_scale = HalfOf(codes.row_parameters, Codes::kIsInt4 ? 1 : 0);
    if constexpr (Codes::kIsRaw) {
      WidenAll<Element, kWidth>(codes.codes, values);
    } else if constexpr (Codes::kIsInt4) {
      const float row_half_minimum = HalfOf(codes.row_parameters, 0) * 0.5f;
      WidenNibbles(codes.codes.at[0] >> (kWidth == 1 ? place_.channel % 2 * 4 : 0), values);
      TERRACE_CODEC_UNROLL
      for (uint32_t i = 0; i < kWidth; ++i) {
        const float half_minimum = kIsOfChannels ? half_minima_[i] : row_half_minimum;
        const float half_step = kIsOfChannels ? scales_[i] : row_scale * 0.5f;
        values[i] = (half_minimum + values[i] * half_step) * 2.0f;
      }
    } else {
      if constexpr (kKind == CodecKind::kFp8) {
        WidenFp8(codes.codes, values);
      } else {
        WidenInt8(codes.codes, values);
      }
      TERRACE_CODEC_UNROLL
      for (uint32_t i = 0; i < kWidth; ++i) values[i] *= kIsOfChannels ? scales_[i] : row_scale;
    }
  }

 private:
  __device__ static float HalfOf(uint32_t word, uint32_t which) {
    return Parameter(static_cast<uint16_t>(word >> which * 16));
  }

  const CodecWork& work_;
  const CodecPlaces<Element>& at_;
  const VectorPlace& place_;
  float scales_[kWidth];  // of channels; int4: half of it
  float half_minima_[kWidth];
};

// Whether a channel of a head is in the window that is turned.
__device__ bool IsTurned(const CodecWork& work, uint32_t within_head) {
  return within_head - work.rot_offset < work.rot_dim;  // before it, a large number
}

// Everything; where keys are turned, what is outside of the window.
template <CodecKind kKind, typename Element, uint32_t kWidth>
__device__ void DecodeOf(const CodecWork& work, const CodecPlaces<Element>& at) {
  using Decoder = VectorDecoder<kKind, Element, kWidth>;
  const uint32_t n = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t turn = work.vectors_per_row.Divide(n);
  const uint32_t vector = n - turn * work.vectors_per_row.divisor();
  const uint32_t head = work.vectors_per_head.Divide(vector);
  const VectorPlace place = {.channel = vector * kWidth,
                             .head = head,
                             .within_head = vector * kWidth - head * work.head_dim,
                             .token_first = turn * kTokensOfThread};
  if (place.token_first >= work.tokens) return;
  // A window that begins or ends within a vector is left out element by element.
  const bool is_whole = (work.rot_offset | work.rot_dim) % kWidth == 0;
  if (is_whole && IsTurned(work, place.within_head)) return;
  const Decoder decoder(work, at, place);
  typename Decoder::Codes codes[kTokensOfThread];
  TERRACE_CODEC_UNROLL
  for (uint32_t k = 0; k < kTokensOfThread; ++k) {
    if (place.token_first + k < work.tokens) codes[k] = decoder.LoadCodes(place.token_first + k);
  }
  TERRACE_CODEC_UNROLL
  for (uint32_t k = 0; k < kTokensOfThread; ++k) {
    const uint32_t token = place.token_first + k;
    if (token >= work.tokens) break;
    ElementsOf<Element, kWidth> words;
    if constexpr (kKind == CodecKind::kRaw) {
      words = codes[k].codes;
    } else {
      float values[kWidth];
      decoder.Decode(codes[k], values);
      ClampAll(values, work.magnitude_max);
      words = NarrowAllNumbers<Element, kWidth>(values);
    }
    auto* to = at.engine + token * work.token_stride + place.channel;
    if (at.is_aligned && is_whole) {
      Store(to, words);
    } else {
      TERRACE_CODEC_UNROLL
      for (uint32_t i = 0; i < kWidth; ++i) {
        if (IsTurned(work, place.within_head + i)) continue;
        StoreOne(to + i, ElementAt<Element, kWidth>(words, i));
      }
    }
  }
}

template <CodecKind kKind, typename Element, uint32_t kWidth>
__global__ void __launch_bounds__(kThreads) Decode(const __grid_constant__ CodecWork work) {
  const auto at = PlacesOf<Element, kWidth>(work, work.pieces[blockIdx.y]);
  DecodeOf<kKind, Element, kWidth>(work, at);
}

// --- turned keys
// ---------------------------------------------------------------------------------

// Turns the pairs of two vectors: either one has the first of each and one the second, or they
// follow each other and so do a pair's.
template <bool kIsNeox, uint32_t kWidth>
__device__ void TurnPairs(const float (&turns)[2 * kWidth], float (&low)[kWidth],
                          float (&high)[kWidth]) {
  TERRACE_CODEC_UNROLL
  for (uint32_t i = 0; i < kWidth; ++i) {
    float* first = &low[i];
    float* second = &high[i];
    if constexpr (!kIsNeox && kWidth > 1) {
      float* half = i < kWidth / 2 ? low : high;
      first = &half[2 * i % kWidth];
      second = &half[2 * i % kWidth + 1];
    }
    const auto turned = rope_math::Turn({*first, *second}, turns[2 * i], turns[2 * i + 1]);
    *first = turned.first;
    *second = turned.second;
  }
}

// Where the two vectors of kWidth pairs lie.
template <uint32_t kWidth>
__device__ void PlacePairs(const CodecWork& work, uint32_t n, VectorPlace* low, VectorPlace* high,
                           uint32_t* pair) {
  const uint32_t turn = work.vectors_per_row.Divide(n);
  const uint32_t unit = n - turn * work.vectors_per_row.divisor();
  low->head = work.vectors_per_head.Divide(unit);
  *pair = (unit - low->head * work.vectors_per_head.divisor()) * kWidth;
  low->within_head = work.rot_offset + (work.is_neox ? *pair : 2 * *pair);
  low->channel = low->head * work.head_dim + low->within_head;
  low->token_first = turn * kTokensOfThread;
  *high = *low;
  const uint32_t distance = work.is_neox ? work.rot_dim / 2 : kWidth;
  high->within_head += distance;
  high->channel += distance;
}

template <typename Element, uint32_t kWidth>
__device__ void StoreTurned(const CodecPlaces<Element>& at, typename Element::Bits* to,
                            const float (&values)[kWidth]) {
  const auto words = NarrowAll<Element, kWidth>(values);
  if (at.is_aligned) {
    Store(to, words);
  } else {
    TERRACE_CODEC_UNROLL
    for (uint32_t i = 0; i < kWidth; ++i) StoreOne(to + i, ElementAt<Element, kWidth>(words, i));
  }
}

// The window: a thread takes kWidth pairs, so two vectors.
template <CodecKind kKind, typename Element, uint32_t kWidth>
__device__ void TurnOf(const CodecWork& work, const CodecPlaces<Element>& at) {
  using Decoder = VectorDecoder<kKind, Element, kWidth>;
  VectorPlace low_place, high_place;
  uint32_t pair;
  PlacePairs<kWidth>(work, blockIdx.x * kThreads + threadIdx.x, &low_place, &high_place, &pair);
  const uint32_t token_first = low_place.token_first;
  if (token_first >= work.tokens) return;
  const Decoder low_decoder(work, at, low_place);
  const Decoder high_decoder(work, at, high_place);
  typename Decoder::Codes low_codes[kTokensOfThread], high_codes[kTokensOfThread];
  TERRACE_CODEC_UNROLL
  for (uint32_t k = 0; k < kTokensOfThread; ++k) {
    if (token_first + k >= work.tokens) break;
    low_codes[k] = low_decoder.LoadCodes(token_first + k);
    high_codes[k] = high_decoder.LoadCodes(token_first + k);
  }
  float turns[2 * kWidth];
  if constexpr (kWidth == 1) {  // of any alignment
    turns[0] = LoadOne<float>(work.turns + 2 * pair);
    turns[1] = LoadOne<float>(work.turns + 2 * pair + 1);
  } else {
    WidenAll<Fp32, 2 * kWidth>(Load<8 * kWidth>(work.turns + 2 * pair), turns);
  }
  TERRACE_CODEC_UNROLL
  for (uint32_t k = 0; k < kTokensOfThread; ++k) {
    if (token_first + k >= work.tokens) break;
    float low[kWidth], high[kWidth];
    low_decoder.Decode(low_codes[k], low);
    high_decoder.Decode(high_codes[k], high);
    if constexpr (kKind != CodecKind::kRaw) {
      ClampAll(low, kMagnitudeMax);
      ClampAll(high, kMagnitudeMax);
    }
    if (work.is_neox) {
      TurnPairs<true>(turns, low, high);
    } else {
      TurnPairs<false>(turns, low, high);
    }
    auto* row = at.engine + (token_first + k) * work.token_stride;
    StoreTurned(at, row + low_place.channel, low);
    StoreTurned(at, row + high_place.channel, high);
  }
}

template <CodecKind kKind, typename Element, uint32_t kWidth>
__global__ void __launch_bounds__(kThreads) TurnKeys(const __grid_constant__ CodecWork work) {
  const auto at = PlacesOf<Element, kWidth>(work, work.pieces[blockIdx.y]);
  TurnOf<kKind, Element, kWidth>(work, at);
}

// --- launches
// ------------------------------------------------------------------------------------

// Calls `launch` with the kind as a constant. What is no keys' is never turned.
template <typename Launch>
cudaError_t WithKind(CodecKind kind, Launch launch) {
  switch (kind) {
    case CodecKind::kRaw:
      return launch.template operator()<CodecKind::kRaw>();
    case CodecKind::kInt8Keys:
      return launch.template operator()<CodecKind::kInt8Keys>();
    case CodecKind::kInt8Values:
      return launch.template operator()<CodecKind::kInt8Values>();
    case CodecKind::kFp8:
      return launch.template operator()<CodecKind::kFp8>();
    case CodecKind::kInt4Keys:
      return launch.template operator()<CodecKind::kInt4Keys>();
    case CodecKind::kInt4Values:
      break;
  }
  return launch.template operator()<CodecKind::kInt4Values>();
}

// The nest of a row of heads of `head_vectors` vectors, and the blocks that take it.
dim3 NestOf(uint32_t head_vectors, uint32_t piece_count, CodecWork* work) {
  work->vectors_per_head = FastDivider(head_vectors);
  work->vectors_per_row = FastDivider(head_vectors * work->heads);
  const uint64_t turns = BlocksFor(work->tokens, kTokensOfThread);
  return {BlocksFor(turns * work->vectors_per_row.divisor(), kThreads), piece_count};
}

template <typename Element, uint32_t kWidth>
cudaError_t LaunchPlain(CodecKind kind, CodecWork work, uint32_t piece_count, cudaStream_t stream) {
  if constexpr (kWidth > 2) {
    if (work.head_dim % kWidth != 0) {
      return LaunchPlain<Element, kWidth / 2>(kind, work, piece_count, stream);
    }
  }
  const dim3 grid = NestOf(work.head_dim / kWidth, piece_count, &work);
  return WithKind(kind, [&]<CodecKind kKind>() {
    return LaunchKernel(Decode<kKind, Element, kWidth>, grid, kThreads, stream, work);
  });
}

template <typename Element, uint32_t kWidth>
cudaError_t LaunchTurn(CodecKind kind, CodecWork work, uint32_t piece_count, cudaStream_t stream) {
  const uint32_t pairs = work.rot_dim / 2;
  if constexpr (kWidth > 1) {
    const bool is_whole = (work.head_dim | work.rot_offset | pairs) % kWidth == 0 &&
                          reinterpret_cast<uintptr_t>(work.turns) % 16 == 0;
    constexpr uint32_t kNext = kWidth > 4 ? kWidth / 2 : 1;
    if (!is_whole) return LaunchTurn<Element, kNext>(kind, work, piece_count, stream);
  }
  const dim3 grid = NestOf(pairs / kWidth, piece_count, &work);
  return WithKind(kind, [&]<CodecKind kKind>() {
    constexpr bool kIsKeys = kKind != CodecKind::kInt8Values && kKind != CodecKind::kInt4Values;
    if constexpr (!kIsKeys) return cudaErrorInvalidValue;
    if constexpr (kIsKeys) {
      return LaunchKernel(TurnKeys<kKind, Element, kWidth>, grid, kThreads, stream, work);
    }
  });
}

template <typename Element, uint32_t kWidthMax>
cudaError_t LaunchElement(CodecKind kind, CodecWork work, uint32_t piece_count,
                          cudaStream_t stream) {
  const bool is_turned = work.turns != nullptr;
  // Turned keys are rounded once, after the turn, to whatever that gives.
  work.magnitude_max = is_turned ? kMagnitudeMax : Element::kMax;
  if (!is_turned || work.rot_dim < work.head_dim) {
    const cudaError_t error = LaunchPlain<Element, kWidthMax>(kind, work, piece_count, stream);
    if (error != cudaSuccess || !is_turned) return error;
  }
  return LaunchTurn<Element, kWidthMax>(kind, work, piece_count, stream);
}

}  // namespace

cudaError_t LaunchDecode(CodecKind kind, ElementType element, CodecWork work, uint32_t piece_count,
                         cudaStream_t stream) {
  switch (element) {
    case ElementType::kBf16:
      return LaunchElement<Bf16, 8>(kind, work, piece_count, stream);
    case ElementType::kFp16:
      return LaunchElement<Fp16, 8>(kind, work, piece_count, stream);
    case ElementType::kFp32:
      break;
  }
  return LaunchElement<Fp32, 4>(kind, work, piece_count, stream);
}

}  // namespace terrace::cuda

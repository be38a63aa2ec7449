// Host codecs. Every kernel is one plain loop nest, compiled several times: for any machine, and on
// x86-64 for AVX2 and AVX-512 too. The compiler makes the vectors; IEEE makes them agree.
#include "cuda/kernels/codec.h"

#include <cstring>

#include "cuda/kernels/codec_math.h"
#include "terrace/check.h"
#include "terrace/vector_state.h"

namespace terrace {
namespace {

using namespace codec_math;  // NOLINT: one header, the arithmetic this file is made of

// Channels of one pass over a keys' piece: their parameters stay in the first-level cache.
constexpr uint32_t kTileChannels = 1024;

// Raw pointers, because what is inlined into a kernel may call nothing that another file compiles
// too: the linker would keep one copy, perhaps of an instruction set that the machine lacks.
struct Piece {
  uint32_t tokens;
  uint32_t heads;
  uint32_t head_dim;
  const void* from;
  void* parameters;
  void* to;
};

// --- rows: one scale for head_dim values of one token and head
// --------------------------------------

struct Int8Rows {
  static constexpr float kCodeMax = kInt8CodeMax;
  TERRACE_CODEC_INLINE static uint8_t Encode(float value, float reciprocal) {
    return EncodeInt8(value, reciprocal);
  }
  TERRACE_CODEC_INLINE static float Decode(uint8_t code, float scale) {
    return DecodeInt8(code, scale);
  }
};

struct Fp8Rows {
  static constexpr float kCodeMax = kFp8CodeMax;
  TERRACE_CODEC_INLINE static uint8_t Encode(float value, float reciprocal) {
    return EncodeFp8(value, reciprocal);
  }
  TERRACE_CODEC_INLINE static float Decode(uint8_t code, float scale) {
    return DecodeFp8(code, scale);
  }
};

template <typename Element, typename Rows>
TERRACE_CODEC_INLINE bool EncodeRows(const Piece piece) {
  const auto* __restrict from = static_cast<const typename Element::Bits*>(piece.from);
  auto* __restrict scales = static_cast<uint16_t*>(piece.parameters);
  auto* __restrict codes = static_cast<uint8_t*>(piece.to);
  const size_t row_count = size_t{piece.tokens} * piece.heads;
  for (size_t row = 0; row < row_count; ++row) {
    const auto* __restrict values = from + row * piece.head_dim;
    uint8_t* __restrict row_codes = codes + row * piece.head_dim;
    typename Element::Bits magnitude_max = 0;
    for (uint32_t i = 0; i < piece.head_dim; ++i) {
      const auto magnitude =
          static_cast<typename Element::Bits>(values[i] & Element::kMagnitudeMask);
      magnitude_max = magnitude > magnitude_max ? magnitude : magnitude_max;
    }
    if (magnitude_max > Element::kMagnitudeLimit) return false;
    scales[row] = ScaleOf(Element::Widen(magnitude_max), Rows::kCodeMax);
    const float reciprocal = ReciprocalOf(scales[row]);
    for (uint32_t i = 0; i < piece.head_dim; ++i) {
      row_codes[i] = Rows::Encode(Element::Widen(values[i]), reciprocal);
    }
  }
  return true;
}

template <typename Element, typename Rows>
TERRACE_CODEC_INLINE bool DecodeRows(const Piece piece) {
  const auto* __restrict codes = static_cast<const uint8_t*>(piece.from);
  const auto* __restrict scales = static_cast<const uint16_t*>(piece.parameters);
  auto* __restrict to = static_cast<typename Element::Bits*>(piece.to);
  const size_t row_count = size_t{piece.tokens} * piece.heads;
  for (size_t row = 0; row < row_count; ++row) {
    const uint8_t* __restrict row_codes = codes + row * piece.head_dim;
    auto* __restrict values = to + row * piece.head_dim;
    const float scale = Parameter(scales[row]);
    for (uint32_t i = 0; i < piece.head_dim; ++i) {
      values[i] = Element::NarrowFinite(Clamp(Rows::Decode(row_codes[i], scale), Element::kMax));
    }
  }
  return true;
}

// --- int8 keys: one scale a channel for all tokens
// --------------------------------------------------

template <typename Element>
TERRACE_CODEC_INLINE bool EncodeInt8Keys(const Piece piece) {
  const auto* __restrict from = static_cast<const typename Element::Bits*>(piece.from);
  auto* __restrict scales = static_cast<uint16_t*>(piece.parameters);
  auto* __restrict codes = static_cast<uint8_t*>(piece.to);
  const size_t channel_count = size_t{piece.heads} * piece.head_dim;
  typename Element::Bits magnitude_max[kTileChannels];
  float reciprocals[kTileChannels];
  for (size_t first = 0; first < channel_count; first += kTileChannels) {
    const size_t left = channel_count - first;
    const auto width = static_cast<uint32_t>(left < kTileChannels ? left : kTileChannels);
    for (uint32_t i = 0; i < width; ++i) magnitude_max[i] = 0;
    for (uint32_t token = 0; token < piece.tokens; ++token) {
      const auto* __restrict values = from + token * channel_count + first;
      for (uint32_t i = 0; i < width; ++i) {
        const auto magnitude =
            static_cast<typename Element::Bits>(values[i] & Element::kMagnitudeMask);
        magnitude_max[i] = magnitude > magnitude_max[i] ? magnitude : magnitude_max[i];
      }
    }
    typename Element::Bits largest = 0;
    for (uint32_t i = 0; i < width; ++i) {
      largest = magnitude_max[i] > largest ? magnitude_max[i] : largest;
    }
    if (largest > Element::kMagnitudeLimit) return false;
    for (uint32_t i = 0; i < width; ++i) {
      const uint16_t scale = ScaleOf(Element::Widen(magnitude_max[i]), kInt8CodeMax);
      scales[first + i] = scale;
      reciprocals[i] = ReciprocalOf(scale);
    }
    for (uint32_t token = 0; token < piece.tokens; ++token) {
      const auto* __restrict values = from + token * channel_count + first;
      uint8_t* __restrict token_codes = codes + token * channel_count + first;
      for (uint32_t i = 0; i < width; ++i) {
        token_codes[i] = EncodeInt8(Element::Widen(values[i]), reciprocals[i]);
      }
    }
  }
  return true;
}

template <typename Element>
TERRACE_CODEC_INLINE bool DecodeInt8Keys(const Piece piece) {
  const auto* __restrict codes = static_cast<const uint8_t*>(piece.from);
  const auto* __restrict scales = static_cast<const uint16_t*>(piece.parameters);
  auto* __restrict to = static_cast<typename Element::Bits*>(piece.to);
  const size_t channel_count = size_t{piece.heads} * piece.head_dim;
  for (uint32_t token = 0; token < piece.tokens; ++token) {
    const uint8_t* __restrict token_codes = codes + token * channel_count;
    auto* __restrict values = to + token * channel_count;
    for (size_t i = 0; i < channel_count; ++i) {
      const float value = DecodeInt8(token_codes[i], Parameter(scales[i]));
      values[i] = Element::NarrowFinite(Clamp(value, Element::kMax));
    }
  }
  return true;
}

// --- int4
// ------------------------------------------------------------------------------------------

// Two codes a byte, the even channel's in the lower half.
TERRACE_CODEC_INLINE void PackNibbles(const uint8_t* codes, uint32_t count, uint8_t* packed) {
  for (uint32_t i = 0; i < count / 2; ++i) {
    packed[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
}

TERRACE_CODEC_INLINE void UnpackNibbles(const uint8_t* packed, uint32_t count, uint8_t* codes) {
  for (uint32_t i = 0; i < count / 2; ++i) {
    codes[2 * i] = packed[i] & 15;
    codes[2 * i + 1] = packed[i] >> 4;
  }
}

// Keys: 32 tokens of one channel share a minimum and a step, written as {minimum, step}.
template <typename Element>
TERRACE_CODEC_INLINE bool EncodeInt4KeysTile(const typename Element::Bits* from, uint32_t tokens,
                                             uint32_t width, size_t channel_count,
                                             uint16_t* parameters, uint8_t* codes) {
  float minimum[kTileChannels];
  float maximum[kTileChannels];
  float reciprocals[kTileChannels];
  uint8_t row_codes[kTileChannels];
  uint32_t largest = 0;
  for (uint32_t i = 0; i < width; ++i) minimum[i] = maximum[i] = Element::Widen(from[i]);
  for (uint32_t token = 0; token < tokens; ++token) {
    const auto* __restrict values = from + token * channel_count;
    for (uint32_t i = 0; i < width; ++i) {
      const uint32_t magnitude = values[i] & Element::kMagnitudeMask;
      largest = magnitude > largest ? magnitude : largest;
      const float value = Element::Widen(values[i]);
      minimum[i] = value < minimum[i] ? value : minimum[i];
      maximum[i] = value > maximum[i] ? value : maximum[i];
    }
  }
  if (largest > Element::kMagnitudeLimit) return false;
  for (uint32_t i = 0; i < width; ++i) {
    const uint16_t below = Bf16Below(minimum[i]);
    const uint16_t step = StepOf(below, maximum[i]);
    parameters[2 * i] = below;
    parameters[2 * i + 1] = step;
    minimum[i] = Bf16::Widen(below) * 0.5f;
    reciprocals[i] = HalfStepReciprocalOf(step);
  }
  for (uint32_t token = 0; token < tokens; ++token) {
    const auto* __restrict values = from + token * channel_count;
    for (uint32_t i = 0; i < width; ++i) {
      row_codes[i] = EncodeInt4(Element::Widen(values[i]), minimum[i], reciprocals[i]);
    }
    PackNibbles(row_codes, width, codes + token * (channel_count / 2));
  }
  return true;
}

template <typename Element>
TERRACE_CODEC_INLINE bool EncodeInt4Keys(const Piece piece) {
  const auto* __restrict from = static_cast<const typename Element::Bits*>(piece.from);
  auto* __restrict parameters = static_cast<uint16_t*>(piece.parameters);
  auto* __restrict codes = static_cast<uint8_t*>(piece.to);
  const size_t channel_count = size_t{piece.heads} * piece.head_dim;
  for (uint32_t token = 0; token < piece.tokens; token += kInt4GroupElements) {
    const uint32_t tokens_left = piece.tokens - token;
    const uint32_t tokens = tokens_left < kInt4GroupElements ? tokens_left : kInt4GroupElements;
    for (size_t first = 0; first < channel_count; first += kTileChannels) {
      const size_t left = channel_count - first;
      const auto width = static_cast<uint32_t>(left < kTileChannels ? left : kTileChannels);
      const bool is_encoded = EncodeInt4KeysTile<Element>(
          from + token * channel_count + first, tokens, width, channel_count,
          parameters + 2 * (token / kInt4GroupElements * channel_count + first),
          codes + (token * channel_count + first) / 2);
      if (!is_encoded) return false;
    }
  }
  return true;
}

template <typename Element>
TERRACE_CODEC_INLINE bool DecodeInt4Keys(const Piece piece) {
  const auto* __restrict codes = static_cast<const uint8_t*>(piece.from);
  const auto* __restrict parameters = static_cast<const uint16_t*>(piece.parameters);
  auto* __restrict to = static_cast<typename Element::Bits*>(piece.to);
  const size_t channel_count = size_t{piece.heads} * piece.head_dim;
  uint8_t row_codes[kTileChannels];
  for (uint32_t token = 0; token < piece.tokens; ++token) {
    for (size_t first = 0; first < channel_count; first += kTileChannels) {
      const size_t left = channel_count - first;
      const auto width = static_cast<uint32_t>(left < kTileChannels ? left : kTileChannels);
      const size_t at = token * channel_count + first;
      const uint16_t* group = parameters + 2 * (token / kInt4GroupElements * channel_count + first);
      UnpackNibbles(codes + at / 2, width, row_codes);
      for (uint32_t i = 0; i < width; ++i) {
        const float value = DecodeInt4(row_codes[i], Parameter(group[2 * i]) * 0.5f,
                                       Parameter(group[2 * i + 1]) * 0.5f);
        to[at + i] = Element::NarrowFinite(Clamp(value, Element::kMax));
      }
    }
  }
  return true;
}

// Values: 32 channels of one token and head share them.
template <typename Element>
TERRACE_CODEC_INLINE bool EncodeInt4Values(const Piece piece) {
  const auto* __restrict from = static_cast<const typename Element::Bits*>(piece.from);
  auto* __restrict parameters = static_cast<uint16_t*>(piece.parameters);
  auto* __restrict codes = static_cast<uint8_t*>(piece.to);
  const size_t row_count = size_t{piece.tokens} * piece.heads;
  uint8_t group_codes[kInt4GroupElements];
  for (size_t row = 0; row < row_count; ++row) {
    for (uint32_t first = 0; first < piece.head_dim; first += kInt4GroupElements) {
      const uint32_t left = piece.head_dim - first;
      const uint32_t width = left < kInt4GroupElements ? left : kInt4GroupElements;
      const size_t at = row * piece.head_dim + first;
      const auto* __restrict values = from + at;
      uint32_t largest = 0;
      int32_t minimum = OrderOf(Element::Widen(values[0]));
      int32_t maximum = minimum;
      for (uint32_t i = 0; i < width; ++i) {
        const uint32_t magnitude = values[i] & Element::kMagnitudeMask;
        largest = magnitude > largest ? magnitude : largest;
        const int32_t order = OrderOf(Element::Widen(values[i]));
        minimum = order < minimum ? order : minimum;
        maximum = order > maximum ? order : maximum;
      }
      if (largest > Element::kMagnitudeLimit) return false;
      const uint16_t below = Bf16Below(OfOrder(minimum));
      const uint16_t step = StepOf(below, OfOrder(maximum));
      *parameters++ = below;
      *parameters++ = step;
      const float half_minimum = Bf16::Widen(below) * 0.5f;
      const float reciprocal = HalfStepReciprocalOf(step);
      for (uint32_t i = 0; i < width; ++i) {
        group_codes[i] = EncodeInt4(Element::Widen(values[i]), half_minimum, reciprocal);
      }
      PackNibbles(group_codes, width, codes + at / 2);
    }
  }
  return true;
}

template <typename Element>
TERRACE_CODEC_INLINE bool DecodeInt4Values(const Piece piece) {
  const auto* __restrict codes = static_cast<const uint8_t*>(piece.from);
  const auto* __restrict parameters = static_cast<const uint16_t*>(piece.parameters);
  auto* __restrict to = static_cast<typename Element::Bits*>(piece.to);
  const size_t row_count = size_t{piece.tokens} * piece.heads;
  uint8_t group_codes[kInt4GroupElements];
  for (size_t row = 0; row < row_count; ++row) {
    for (uint32_t first = 0; first < piece.head_dim; first += kInt4GroupElements) {
      const uint32_t left = piece.head_dim - first;
      const uint32_t width = left < kInt4GroupElements ? left : kInt4GroupElements;
      const size_t at = row * piece.head_dim + first;
      const float half_minimum = Parameter(*parameters++) * 0.5f;
      const float half_step = Parameter(*parameters++) * 0.5f;
      UnpackNibbles(codes + at / 2, width, group_codes);
      for (uint32_t i = 0; i < width; ++i) {
        const float value = DecodeInt4(group_codes[i], half_minimum, half_step);
        to[at + i] = Element::NarrowFinite(Clamp(value, Element::kMax));
      }
    }
  }
  return true;
}

// --- one kernel a codec, direction and instruction set
// ----------------------------------------------

enum class Way : uint8_t { kEncode, kDecode };

template <Way kWay, typename Element>
TERRACE_CODEC_INLINE bool RunElement(Codec codec, PieceRole role, const Piece piece) {
  constexpr bool kEncodes = kWay == Way::kEncode;
  const bool is_keys = role == PieceRole::kKeys;
  if (codec == Codec::kFp8) {
    return kEncodes ? EncodeRows<Element, Fp8Rows>(piece) : DecodeRows<Element, Fp8Rows>(piece);
  }
  if (codec == Codec::kInt8 && is_keys) {
    return kEncodes ? EncodeInt8Keys<Element>(piece) : DecodeInt8Keys<Element>(piece);
  }
  if (codec == Codec::kInt8) {
    return kEncodes ? EncodeRows<Element, Int8Rows>(piece) : DecodeRows<Element, Int8Rows>(piece);
  }
  if (is_keys) return kEncodes ? EncodeInt4Keys<Element>(piece) : DecodeInt4Keys<Element>(piece);
  return kEncodes ? EncodeInt4Values<Element>(piece) : DecodeInt4Values<Element>(piece);
}

template <Way kWay>
TERRACE_CODEC_INLINE bool Run(Codec codec, const PieceShape& shape, const Piece piece) {
  switch (shape.element) {
    case ElementType::kBf16:
      return RunElement<kWay, Bf16>(codec, shape.role, piece);
    case ElementType::kFp16:
      return RunElement<kWay, Fp16>(codec, shape.role, piece);
    case ElementType::kFp32:
      return RunElement<kWay, Fp32>(codec, shape.role, piece);
  }
  return false;
}

template <Way kWay>
bool RunPortable(Codec codec, const PieceShape& shape, const Piece piece) {
  return Run<kWay>(codec, shape, piece);
}

#if defined(__x86_64__)

template <Way kWay>
[[gnu::target("avx2")]] bool RunAvx2(Codec codec, const PieceShape& shape, const Piece piece) {
  return Run<kWay>(codec, shape, piece);
}

template <Way kWay>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")]] bool RunAvx512(
    Codec codec, const PieceShape& shape, const Piece piece) {
  return Run<kWay>(codec, shape, piece);
}

template <Way kWay>
bool RunAt(SimdLevel level, Codec codec, const PieceShape& shape, const Piece piece) {
  if (level == SimdLevel::kPortable) return RunPortable<kWay>(codec, shape, piece);
  const bool is_whole = level == SimdLevel::kAvx512 ? RunAvx512<kWay>(codec, shape, piece)
                                                    : RunAvx2<kWay>(codec, shape, piece);
  ClearUpperHalves();
  return is_whole;
}

#else

// Vectors of the architecture's own baseline.
template <Way kWay>
bool RunAt(SimdLevel, Codec codec, const PieceShape& shape, const Piece piece) {
  return RunPortable<kWay>(codec, shape, piece);
}

#endif

void ZeroBetween(std::span<std::byte> bytes, uint64_t from, uint64_t to) {
  std::memset(bytes.data() + from, 0, to - from);
}

// What alignment leaves between and behind the planes is zero: equal pieces have equal bytes.
void ZeroPadding(Codec codec, const PieceShape& shape, const PieceLayout& layout,
                 std::span<std::byte> to) {
  const bool is_int4 = codec == Codec::kInt4;
  ZeroBetween(to, layout.parameter_count * (is_int4 ? 4 : 2), layout.codes_offset_bytes);
  const uint64_t code_bytes = is_int4 ? shape.element_count() / 2 : shape.element_count();
  ZeroBetween(to, layout.codes_offset_bytes + code_bytes, layout.encoded_bytes);
}

}  // namespace

SimdLevel BestSimdLevel() {
#if defined(__x86_64__)
  static const SimdLevel best = [] {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      return SimdLevel::kAvx512;
    }
    return __builtin_cpu_supports("avx2") ? SimdLevel::kAvx2 : SimdLevel::kPortable;
  }();
  return best;
#else
  return SimdLevel::kPortable;
#endif
}

Status EncodePiece(Codec codec, const PieceShape& shape, std::span<const std::byte> from,
                   std::span<std::byte> to, SimdLevel level) {
  const PieceLayout layout = LayoutOf(codec, shape);
  TERRACE_CHECK(from.size() == shape.raw_bytes(), "a piece is encoded whole");
  TERRACE_CHECK(to.size() == layout.encoded_bytes, "an encoded piece has one size");
  if (codec == Codec::kRaw) {
    std::memcpy(to.data(), from.data(), from.size());
    return Status::Ok();
  }
  ZeroPadding(codec, shape, layout, to);
  const Piece piece = {.tokens = shape.tokens,
                       .heads = shape.heads,
                       .head_dim = shape.head_dim,
                       .from = from.data(),
                       .parameters = to.data(),
                       .to = to.data() + layout.codes_offset_bytes};
  if (RunAt<Way::kEncode>(level, codec, shape, piece)) return Status::Ok();
  return Status(StatusCode::kUnsupported,
                "a lossy codec takes finite values up to the largest bf16: store it exactly");
}

void DecodePiece(Codec codec, const PieceShape& shape, std::span<const std::byte> from,
                 std::span<std::byte> to, SimdLevel level) {
  const PieceLayout layout = LayoutOf(codec, shape);
  TERRACE_CHECK(from.size() == layout.encoded_bytes, "an encoded piece has one size");
  TERRACE_CHECK(to.size() == shape.raw_bytes(), "a piece is decoded whole");
  if (codec == Codec::kRaw) {
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  const Piece piece = {.tokens = shape.tokens,
                       .heads = shape.heads,
                       .head_dim = shape.head_dim,
                       .from = from.data() + layout.codes_offset_bytes,
                       .parameters = const_cast<std::byte*>(from.data()),  // only read
                       .to = to.data()};
  RunAt<Way::kDecode>(level, codec, shape, piece);
}

}  // namespace terrace

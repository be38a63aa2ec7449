#include "cuda/kernels/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "cuda/kernels/codec.h"
#include "cuda/kernels/rope_math.h"
#include "terrace/check.h"
#include "terrace/vector_state.h"

namespace terrace {
namespace {

constexpr uint32_t kPairsMax = kCodecHeadDimMax / 2;

using codec_math::Bf16;
using codec_math::Fp16;
using codec_math::Fp32;

Status Refuse(StatusCode code, std::string* why, std::string reason) {
  *why = std::move(reason);
  return Status(code, "the keys cannot be turned");
}

// Heads of one token: `from` in one type, `to` in the other; a window of each turns. Raw pointers,
// for the reason that cuda/kernels/codec.cc gives. Neither need be aligned to elements.
struct TokenTurn {
  uint32_t heads;
  uint32_t head_dim;
  uint32_t rot_offset;
  uint32_t pair_count;
  bool is_neox;
  const float* cosines;
  const float* sines;
  const std::byte* from;
  std::byte* to;
};

template <typename Element>
TERRACE_CODEC_INLINE typename Element::Bits Load(const std::byte* at, uint32_t index) {
  typename Element::Bits bits;
  __builtin_memcpy(&bits, at + index * sizeof(bits), sizeof(bits));
  return bits;
}

template <typename Element>
TERRACE_CODEC_INLINE void Store(typename Element::Bits bits, std::byte* at, uint32_t index) {
  __builtin_memcpy(at + index * sizeof(bits), &bits, sizeof(bits));
}

// What is outside the window: bit by bit, but for the type.
template <typename From, typename To>
TERRACE_CODEC_INLINE void Keep(const std::byte* __restrict from, std::byte* __restrict to,
                               uint32_t first, uint32_t end) {
  for (uint32_t i = first; i < end; ++i) {
    if constexpr (std::is_same_v<From, To>) {
      Store<To>(Load<From>(from, i), to, i);
    } else {
      Store<To>(To::Narrow(From::Widen(Load<From>(from, i))), to, i);
    }
  }
}

// Through arrays of its own: what a compiler makes vectors of must not overlap.
template <typename From, typename To, bool kIsNeox>
TERRACE_CODEC_INLINE void TurnWindow(const TokenTurn& turn, const std::byte* from, std::byte* to) {
  typename From::Bits first[kPairsMax], second[kPairsMax];
  typename To::Bits first_turned[kPairsMax], second_turned[kPairsMax];
  const uint32_t pair_count = turn.pair_count;
  if constexpr (kIsNeox) {
    __builtin_memcpy(first, from, pair_count * sizeof(first[0]));
    __builtin_memcpy(second, from + pair_count * sizeof(first[0]), pair_count * sizeof(first[0]));
  } else {
    for (uint32_t i = 0; i < pair_count; ++i) {
      first[i] = Load<From>(from, 2 * i);
      second[i] = Load<From>(from, 2 * i + 1);
    }
  }
  for (uint32_t i = 0; i < pair_count; ++i) {
    const rope_math::Pair turned = rope_math::Turn({From::Widen(first[i]), From::Widen(second[i])},
                                                   turn.cosines[i], turn.sines[i]);
    first_turned[i] = To::Narrow(turned.first);
    second_turned[i] = To::Narrow(turned.second);
  }
  if constexpr (kIsNeox) {
    __builtin_memcpy(to, first_turned, pair_count * sizeof(first_turned[0]));
    __builtin_memcpy(to + pair_count * sizeof(first_turned[0]), second_turned,
                     pair_count * sizeof(first_turned[0]));
  } else {
    for (uint32_t i = 0; i < pair_count; ++i) {
      Store<To>(first_turned[i], to, 2 * i);
      Store<To>(second_turned[i], to, 2 * i + 1);
    }
  }
}

template <typename From, typename To>
TERRACE_CODEC_INLINE void TurnHeads(const TokenTurn turn) {
  constexpr size_t kFromBytes = sizeof(typename From::Bits), kToBytes = sizeof(typename To::Bits);
  const uint32_t window_end = turn.rot_offset + 2 * turn.pair_count;
  for (uint32_t head = 0; head < turn.heads; ++head) {
    const std::byte* from = turn.from + size_t{head} * turn.head_dim * kFromBytes;
    std::byte* to = turn.to + size_t{head} * turn.head_dim * kToBytes;
    Keep<From, To>(from, to, 0, turn.rot_offset);
    Keep<From, To>(from, to, window_end, turn.head_dim);
    from += turn.rot_offset * kFromBytes;
    to += turn.rot_offset * kToBytes;
    if (turn.is_neox) {
      TurnWindow<From, To, true>(turn, from, to);
    } else {
      TurnWindow<From, To, false>(turn, from, to);
    }
  }
}

template <typename From, typename To>
void TurnHeadsPortable(const TokenTurn turn) {
  TurnHeads<From, To>(turn);
}

#if defined(__x86_64__)

template <typename From, typename To>
[[gnu::target("avx2")]] void TurnHeadsAvx2(const TokenTurn turn) {
  TurnHeads<From, To>(turn);
}
template <typename From, typename To>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")]] void TurnHeadsAvx512(
    const TokenTurn turn) {
  TurnHeads<From, To>(turn);
}

#endif

using TurnFunction = void (*)(TokenTurn);

template <typename From, typename To>
TurnFunction TurnAt(SimdLevel level) {
#if defined(__x86_64__)
  if (level == SimdLevel::kAvx512) return TurnHeadsAvx512<From, To>;
  if (level == SimdLevel::kAvx2) return TurnHeadsAvx2<From, To>;
#endif
  (void)level;
  return TurnHeadsPortable<From, To>;
}

// `from` is of that element, or fp32.
TurnFunction TurnOf(ElementType element, bool from_fp32, SimdLevel level) {
  switch (element) {
    case ElementType::kBf16:
      return from_fp32 ? TurnAt<Fp32, Bf16>(level) : TurnAt<Bf16, Bf16>(level);
    case ElementType::kFp16:
      return from_fp32 ? TurnAt<Fp32, Fp16>(level) : TurnAt<Fp16, Fp16>(level);
    case ElementType::kFp32:
      break;
  }
  return TurnAt<Fp32, Fp32>(level);
}

// All tokens of a piece, which lie one behind the other.
void TurnPiece(const PieceShape& shape, bool from_fp32, const std::byte* from,
               const KeyTurns& turns, const TokenRows& to, SimdLevel level) {
  std::array<float, kPairsMax> cosines, sines;
  const uint32_t pair_count = turns.rot_dim / 2;
  for (uint32_t i = 0; i < pair_count; ++i) {
    cosines[i] = turns.turns[2 * i];
    sines[i] = turns.turns[2 * i + 1];
  }
  const TurnFunction turn = TurnOf(shape.element, from_fp32, level);
  const uint64_t from_token_bytes =
      shape.channel_count() * (from_fp32 ? sizeof(float) : ElementBytes(shape.element));
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    turn({.heads = shape.heads,
          .head_dim = shape.head_dim,
          .rot_offset = turns.rot_offset,
          .pair_count = pair_count,
          .is_neox = turns.pairing == RopePairing::kNeox,
          .cosines = cosines.data(),
          .sines = sines.data(),
          .from = from + token * from_token_bytes,
          .to = to.base + token * to.token_stride_bytes});
  }
  if (level != SimdLevel::kPortable) ClearUpperHalves();
}

uint64_t Mix(uint64_t digest, uint64_t value) {
  // FNV-1a, byte by byte: it tells specs apart, it resists nobody.
  for (int shift = 0; shift < 64; shift += 8) {
    digest = (digest ^ (value >> shift & 0xFF)) * 0x100000001B3;
  }
  return digest;
}

}  // namespace

Status RopeSpec::Validate(uint32_t head_dim, std::string* why) const {
  if (!rope_math::IsWindow(rot_dim, rot_offset, head_dim)) {
    return Refuse(StatusCode::kInvalid, why,
                  "rot_dim " + std::to_string(rot_dim) + " at rot_offset " +
                      std::to_string(rot_offset) + " is no window of heads of " +
                      std::to_string(head_dim) + ": an even number of elements within them");
  }
  if (inv_freq.size() != rot_dim / 2) {
    return Refuse(StatusCode::kInvalid, why,
                  std::to_string(inv_freq.size()) + " inv_freq for rot_dim " +
                      std::to_string(rot_dim) + ": write " + std::to_string(rot_dim / 2) +
                      ", one a pair");
  }
  for (const double frequency : inv_freq) {
    if (std::isfinite(frequency) && std::abs(frequency) <= 64) continue;
    return Refuse(StatusCode::kInvalid, why,
                  "inv_freq has " + std::to_string(frequency) +
                      "; angles per token are finite and at most 64: pass inv_freq, not positions");
  }
  return Status::Ok();
}

uint64_t RopeSpec::Digest() const {
  uint64_t digest = 0xCBF29CE484222325;
  digest = Mix(digest, static_cast<uint64_t>(pairing));
  digest = Mix(digest, uint64_t{rot_dim} << 32 | rot_offset);
  for (const double frequency : inv_freq) {
    uint64_t bits;
    std::memcpy(&bits, &frequency, sizeof(bits));
    digest = Mix(digest, bits);
  }
  return digest;
}

Result<RopePairing> CheckRope(const RopeDeclaration& declaration, std::string* why) {
  const auto refuse = [why](const std::string& what) {
    return Refuse(StatusCode::kUnsupported, why,
                  what +
                      ": keys of such a model cannot be moved to other positions; use its "
                      "prefixes only");
  };
  constexpr std::array<std::string_view, 5> kScalings = {"", "none", "linear", "yarn", "llama3"};
  bool is_known = false;
  for (const std::string_view scaling : kScalings) is_known |= declaration.scaling == scaling;
  if (!is_known) return refuse("rope scaling '" + std::string(declaration.scaling) + "'");
  if (declaration.is_multidimensional) return refuse("mrope");
  if (declaration.is_per_layer) return refuse("layers that differ in their rope");
  if (declaration.is_quantised_by_engine) return refuse("keys quantised by the engine");
  if (declaration.pairing == "neox") return RopePairing::kNeox;
  if (declaration.pairing == "gptj") return RopePairing::kGptj;
  return refuse("positions of kind '" + std::string(declaration.pairing) +
                "', which is neither \"neox\" nor \"gptj\"");
}

RopeTable::RopeTable(const RopeSpec& spec, int32_t delta) : spec_(spec), delta_(delta) {
  TERRACE_CHECK(std::abs(int64_t{delta}) <= kRopePositionMax, "a delta of positions");
  turns_.reserve(spec.rot_dim);
  for (const double frequency : spec_.inv_freq) {
    const double angle = static_cast<double>(delta) * frequency;
    turns_.push_back(static_cast<float>(std::cos(angle)));
    turns_.push_back(static_cast<float>(std::sin(angle)));
  }
}

void DecodeTurnScatter(Codec codec, const PieceShape& shape, std::span<const std::byte> from,
                       const RopeTable* table, const TokenRows& to) {
  if (table != nullptr && table->delta() != 0) {
    return DecodeAndTurn(codec, shape, from, table->view(), to);
  }
  const uint64_t token_bytes = shape.raw_bytes() / shape.tokens;
  TERRACE_CHECK(to.token_stride_bytes >= token_bytes, "a token fits its row");
  std::vector<std::byte> piece(shape.raw_bytes());
  DecodePiece(codec, shape, from, piece);
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    std::memcpy(to.base + token * to.token_stride_bytes, piece.data() + token * token_bytes,
                token_bytes);
  }
}

void DecodeAndTurn(Codec codec, const PieceShape& shape, std::span<const std::byte> from,
                   const KeyTurns& turns, const TokenRows& to, SimdLevel level) {
  const uint64_t token_bytes = shape.raw_bytes() / shape.tokens;
  TERRACE_CHECK(to.token_stride_bytes >= token_bytes, "a token fits its row");
  if (codec == Codec::kRaw) return TurnPiece(shape, false, from.data(), turns, to, level);
  // Between decoding and turning nothing is rounded: a lossy piece is decoded to fp32.
  PieceShape decoded = shape;
  decoded.element = ElementType::kFp32;
  thread_local std::vector<std::byte> piece;  // as large as its largest piece
  piece.resize(std::max<size_t>(piece.size(), decoded.raw_bytes()));
  DecodePiece(codec, decoded, from, std::span(piece).first(decoded.raw_bytes()), level);
  TurnPiece(shape, true, piece.data(), turns, to, level);
}

void TurnKeys(const PieceShape& shape, const RopeTable& table, std::span<std::byte> keys) {
  TERRACE_CHECK(keys.size() == shape.raw_bytes(), "a piece is turned whole");
  if (table.delta() == 0) return;
  const std::vector<std::byte> before(keys.begin(), keys.end());
  TurnPiece(shape, false, before.data(), table.view(),
            {keys.data(), shape.raw_bytes() / shape.tokens}, BestSimdLevel());
}

}  // namespace terrace

#include "cuda/rope.h"

#include <array>
#include <cmath>
#include <cstring>

#include "cuda/codec.h"
#include "cuda/rope_math.h"
#include "terrace/check.h"

namespace terrace {
namespace {

using codec_math::Bf16;
using codec_math::Fp16;
using codec_math::Fp32;

Status Refuse(StatusCode code, std::string* why, std::string reason) {
  *why = std::move(reason);
  return Status(code, "the keys cannot be turned");
}

// One token's heads. `keys` need not be aligned to elements.
template <typename Element>
void TurnToken(const PieceShape& shape, const KeyTurns& turns, std::byte* keys) {
  using Bits = typename Element::Bits;
  const bool is_neox = turns.pairing == RopePairing::kNeox;
  const uint32_t pair_count = turns.rot_dim / 2;
  for (uint32_t head = 0; head < shape.heads; ++head) {
    std::byte* window = keys + (size_t{head} * shape.head_dim + turns.rot_offset) * sizeof(Bits);
    for (uint32_t i = 0; i < pair_count; ++i) {
      std::byte* first = window + rope_math::FirstOf(i, is_neox) * sizeof(Bits);
      std::byte* second = window + rope_math::SecondOf(i, pair_count, is_neox) * sizeof(Bits);
      Bits bits[2];
      std::memcpy(&bits[0], first, sizeof(Bits));
      std::memcpy(&bits[1], second, sizeof(Bits));
      const rope_math::Pair turned =
          rope_math::Turn({Element::Widen(bits[0]), Element::Widen(bits[1])}, turns.turns[2 * i],
                          turns.turns[2 * i + 1]);
      bits[0] = Element::Narrow(turned.first);
      bits[1] = Element::Narrow(turned.second);
      std::memcpy(first, &bits[0], sizeof(Bits));
      std::memcpy(second, &bits[1], sizeof(Bits));
    }
  }
}

void TurnTokenOf(const PieceShape& shape, const KeyTurns& turns, std::byte* keys) {
  switch (shape.element) {
    case ElementType::kBf16:
      return TurnToken<Bf16>(shape, turns, keys);
    case ElementType::kFp16:
      return TurnToken<Fp16>(shape, turns, keys);
    case ElementType::kFp32:
      return TurnToken<Fp32>(shape, turns, keys);
  }
}

// fp32 to the engine's 16 bits.
void NarrowToken(const PieceShape& shape, const std::byte* from, std::byte* to) {
  const bool is_bf16 = shape.element == ElementType::kBf16;
  for (uint64_t i = 0; i < shape.channel_count(); ++i) {
    float value;
    std::memcpy(&value, from + i * sizeof(value), sizeof(value));
    const uint16_t bits = is_bf16 ? Bf16::Narrow(value) : Fp16::Narrow(value);
    std::memcpy(to + i * sizeof(bits), &bits, sizeof(bits));
  }
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
  if (rot_dim < 2 || rot_dim % 2 != 0 || rot_offset > head_dim || rot_dim > head_dim - rot_offset) {
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
  return refuse("positions of kind '" + std::string(declaration.pairing) + "'");
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
                   const KeyTurns& turns, const TokenRows& to) {
  const uint64_t token_bytes = shape.raw_bytes() / shape.tokens;
  TERRACE_CHECK(to.token_stride_bytes >= token_bytes, "a token fits its row");
  if (codec == Codec::kRaw) {
    for (uint32_t token = 0; token < shape.tokens; ++token) {
      std::byte* const row = to.base + token * to.token_stride_bytes;
      std::memcpy(row, from.data() + token * token_bytes, token_bytes);
      TurnTokenOf(shape, turns, row);
    }
    return;
  }
  // Between decoding and turning nothing is rounded: a lossy piece is decoded to fp32.
  PieceShape decoded = shape;
  decoded.element = ElementType::kFp32;
  std::vector<std::byte> piece(decoded.raw_bytes());
  DecodePiece(codec, decoded, from, piece);
  const uint64_t decoded_token_bytes = decoded.raw_bytes() / shape.tokens;
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    std::byte* const keys = piece.data() + token * decoded_token_bytes;
    TurnTokenOf(decoded, turns, keys);
    std::byte* const row = to.base + token * to.token_stride_bytes;
    if (shape.element == ElementType::kFp32) {
      std::memcpy(row, keys, token_bytes);
    } else {
      NarrowToken(shape, keys, row);
    }
  }
}

void TurnKeys(const PieceShape& shape, const RopeTable& table, std::span<std::byte> keys) {
  TERRACE_CHECK(keys.size() == shape.raw_bytes(), "a piece is turned whole");
  if (table.delta() == 0) return;
  const KeyTurns turns = table.view();
  const uint64_t token_bytes = shape.raw_bytes() / shape.tokens;
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    TurnTokenOf(shape, turns, keys.data() + token * token_bytes);
  }
}

}  // namespace terrace

// Moves a chunk's keys to other positions: one rotation by delta = new position − old position, in
// fp32, of a table computed in double from inv_freq. Never from an engine's cos/sin cache: some
// scale it, and a scaled table would scale the keys. The supported set is what RopeSpec can say;
// whatever else an engine does is refused by name. Selective recompute is the engine's.
//
// THREADING: any thread; pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/kernels/codec.h"
#include "terrace/codec.h"
#include "terrace/status.h"

namespace terrace {

// Which two elements of a rotated window are one pair, of n pairs: neox (i, i + n), gptj
// (2i, 2i + 1).
enum class RopePairing : uint8_t { kNeox = 0, kGptj = 1 };

inline constexpr uint32_t kRopePositionMax = 1u << 24;  // every position is an exact float

// Window [rot_offset, rot_offset + rot_dim) of each head turns; the rest stays. inv_freq[i] is the
// angle of pair i per token, after whatever static scaling the model declares (linear, YaRN's,
// Llama 3's): rot_dim / 2 of them.
struct RopeSpec {
  RopePairing pairing = RopePairing::kNeox;
  uint32_t rot_dim = 0;  // even, 2 or more
  uint32_t rot_offset = 0;
  std::vector<double> inv_freq;

  // kInvalid with `*why` unless it fits heads of head_dim.
  Status Validate(uint32_t head_dim, std::string* why) const;
  // Of all of it: keys that one spec made are turned by the same one only.
  uint64_t Digest() const;
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

// What a model's configuration calls its positions, as far as it bears on keys.
struct RopeDeclaration {
  std::string_view pairing;             // "neox" or "gptj"
  std::string_view scaling;             // "" or "none", "linear", "yarn", "llama3"; else refused
  bool is_per_layer = false;            // layers differ in theta or scaling
  bool is_multidimensional = false;     // mrope: sections of a head have positions of their own
  bool is_quantised_by_engine = false;  // keys that the engine quantised
};
// kUnsupported with `*why` naming what is not supported: dynamic NTK and longrope (the table
// depends on the length of the prompt), mrope, ALiBi, layers that differ, keys quantised by the
// engine. Otherwise the pairing.
Result<RopePairing> CheckRope(const RopeDeclaration& declaration, std::string* why);

// A table wherever its numbers are: {cos, sin} of every pair of the window.
struct KeyTurns {
  const float* turns = nullptr;
  RopePairing pairing = RopePairing::kNeox;
  uint32_t rot_dim = 0;
  uint32_t rot_offset = 0;
};

// cos and sin of delta · inv_freq[i], pair by pair, computed in double.
class RopeTable {
 public:
  // delta within ±kRopePositionMax. REQUIRES: spec.Validate is ok.
  RopeTable(const RopeSpec& spec, int32_t delta);

  int32_t delta() const { return delta_; }
  const RopeSpec& spec() const { return spec_; }
  // {cos, sin} of every pair.
  std::span<const float> turns() const { return turns_; }
  KeyTurns view() const { return {turns_.data(), spec_.pairing, spec_.rot_dim, spec_.rot_offset}; }

 private:
  RopeSpec spec_;
  int32_t delta_;
  std::vector<float> turns_;
};

// Where the tokens of a piece go: token t to the page row at base + t · token_stride_bytes.
struct TokenRows {
  std::byte* base = nullptr;
  uint64_t token_stride_bytes = 0;  // at least a token's bytes
};

// Decodes a piece of keys, turns it, and writes each token's row in the engine's type: what the
// fused kernel does. With delta 0 it is DecodePiece, bit by bit. `codec` may be raw. Values are not
// turned: for them pass no table. REQUIRES: sizes as DecodePiece; the table's spec fits
// shape.head_dim.
void DecodeTurnScatter(Codec codec, const PieceShape& shape, std::span<const std::byte> from,
                       const RopeTable* table, const TokenRows& to);
// The same, of turns that are some, which every level does bit by bit. REQUIRES: their window fits
// shape.head_dim; the level is the machine's.
void DecodeAndTurn(Codec codec, const PieceShape& shape, std::span<const std::byte> from,
                   const KeyTurns& turns, const TokenRows& to, SimdLevel level = BestSimdLevel());

// The same for keys that lie in one tensor, in place.
void TurnKeys(const PieceShape& shape, const RopeTable& table, std::span<std::byte> keys);

}  // namespace terrace

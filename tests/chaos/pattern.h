// Bytes that say whose they are. A part's content is a function of (block key, CommitId, member,
// part), and its first 32 bytes spell that name out, so a reader that knows only the key can tell
// right bytes, bytes of another block, a torn copy, and a mixture of two writers' commits apart.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "terrace/block_key.h"

namespace terrace::chaos {

struct PatternName {
  BlockKey key;
  CommitId commit_id = 0;
  uint32_t member = 0;
  uint32_t part_index = 0;

  friend bool operator==(const PatternName&, const PatternName&) = default;
};
static_assert(sizeof(PatternName) == 32, "the name is written as it lies in memory");

// One round of splitmix64.
constexpr uint64_t MixBits(uint64_t value) {
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

constexpr uint64_t PatternSeed(const PatternName& name) {
  const uint64_t place = uint64_t{name.member} << 32 | name.part_index;
  return MixBits(name.key.low ^ MixBits(name.key.high ^ MixBits(name.commit_id ^ MixBits(place))));
}

// Word i behind the name. Multiplication spreads i over the high bits: a shifted copy never fits.
constexpr uint64_t PatternWord(uint64_t seed, uint64_t word_index) {
  const uint64_t spread = seed + (word_index + 1) * 0x9E3779B97F4A7C15u;
  return spread ^ (spread >> 29);
}

// REQUIRES: to.size() ≥ sizeof(PatternName).
inline void FillPattern(const PatternName& name, std::span<std::byte> to) {
  std::memcpy(to.data(), &name, sizeof(name));
  const uint64_t seed = PatternSeed(name);
  uint64_t word_index = 0;
  for (size_t at = sizeof(name); at < to.size(); at += sizeof(uint64_t), ++word_index) {
    const uint64_t word = PatternWord(seed, word_index);
    std::memcpy(to.data() + at, &word, std::min(sizeof(word), to.size() - at));
  }
}

inline PatternName ReadPatternName(std::span<const std::byte> from) {
  PatternName name;
  std::memcpy(&name, from.data(), sizeof(name));
  return name;
}

inline constexpr size_t kPatternIntact = SIZE_MAX;

// Offset of the first word that differs from what its own name promises; kPatternIntact if none.
inline size_t FirstWrongByte(std::span<const std::byte> from) {
  const PatternName name = ReadPatternName(from);
  const uint64_t seed = PatternSeed(name);
  uint64_t word_index = 0;
  for (size_t at = sizeof(name); at < from.size(); at += sizeof(uint64_t), ++word_index) {
    const uint64_t word = PatternWord(seed, word_index);
    if (std::memcmp(from.data() + at, &word, std::min(sizeof(word), from.size() - at)) != 0) {
      return at;
    }
  }
  return kPatternIntact;
}

}  // namespace terrace::chaos

// Blocks of two parts, or more, that tests of restarts store and look for: keys by prompt, bytes by
// key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "small_space.h"
#include "terrace/client.h"

namespace terrace::test {

inline constexpr uint64_t kLongUs = 30'000'000;
inline constexpr uint64_t kPartBytes = 50'000;

inline SpaceGroupSpec Model(uint32_t part_count = 2) {
  SpaceSpec spec = SmallSpace(std::vector<uint64_t>(part_count, kPartBytes), "tiny", "r1");
  spec.layers = part_count;
  SpaceGroupSpec group;
  group.name = "tiny";
  group.members.push_back({.spec = spec});
  return group;
}

inline std::vector<BlockKey> Keys(uint32_t count, uint64_t prompt = 7) {
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < count; ++i) keys.push_back({.low = i + 1, .high = prompt});
  return keys;
}

inline std::vector<std::byte> Bytes(const BlockKey& key, uint32_t part) {
  std::vector<std::byte> bytes(kPartBytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = std::byte((i * 31 + key.low * 7 + key.high * 5 + part * 3) & 255);
  }
  return bytes;
}

}  // namespace terrace::test

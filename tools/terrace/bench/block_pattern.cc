#include "tools/terrace/bench/block_pattern.h"

#include <algorithm>
#include <cstring>

namespace terrace::tools {
namespace {

// Words are made a page at a time: the compiler vectorises the loop, and comparing stays in cache.
constexpr size_t kChunkWords = 512;
constexpr size_t kWordBytes = sizeof(uint64_t);

uint64_t Seed(const BlockKey& key) { return key.low ^ (key.high * 0x9E3779B97F4A7C15u); }

uint64_t Word(uint64_t seed, uint64_t index) {
  uint64_t word = seed + (index + 1) * 0xD1342543DE82EF95u;
  word ^= word >> 32;
  word *= 0xDABA0B6EB09322E3u;
  return word ^ (word >> 32);
}

// Calls visit(offset_bytes, expected bytes) for the whole block until it answers false.
template <typename Visit>
void ForEachChunk(const BlockKey& key, uint64_t block_bytes, Visit visit) {
  const uint64_t seed = Seed(key);
  uint64_t words[kChunkWords];
  for (uint64_t offset = 0; offset < block_bytes; offset += sizeof(words)) {
    for (size_t i = 0; i < kChunkWords; ++i) words[i] = Word(seed, offset / kWordBytes + i);
    const size_t count = std::min<uint64_t>(sizeof(words), block_bytes - offset);
    if (!visit(offset, std::as_bytes(std::span(words)).first(count))) return;
  }
}

}  // namespace

void FillPattern(const BlockKey& key, std::span<std::byte> block) {
  ForEachChunk(key, block.size(), [&](uint64_t offset, std::span<const std::byte> expected) {
    std::memcpy(block.data() + offset, expected.data(), expected.size());
    return true;
  });
}

std::optional<uint64_t> FirstMismatch(const BlockKey& key, std::span<const std::byte> block) {
  std::optional<uint64_t> found;
  ForEachChunk(key, block.size(), [&](uint64_t offset, std::span<const std::byte> expected) {
    const std::byte* actual = block.data() + offset;
    if (std::memcmp(actual, expected.data(), expected.size()) == 0) return true;
    auto [at, unused] = std::mismatch(expected.begin(), expected.end(), actual);
    found = offset + static_cast<uint64_t>(at - expected.begin());
    return false;
  });
  return found;
}

std::byte PatternByte(const BlockKey& key, uint64_t offset_bytes) {
  const uint64_t word = Word(Seed(key), offset_bytes / kWordBytes);
  return static_cast<std::byte>(word >> (8 * (offset_bytes % kWordBytes)));
}

}  // namespace terrace::tools

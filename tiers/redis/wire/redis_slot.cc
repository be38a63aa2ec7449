#include "tiers/redis/wire/redis_slot.h"

#include <array>
#include <cstddef>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr std::array<uint16_t, 256> kCrcOfByte = [] {
  std::array<uint16_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t crc = byte << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
    table[byte] = static_cast<uint16_t>(crc);
  }
  return table;
}();

uint16_t Crc16(std::string_view bytes) {
  uint32_t crc = 0;
  for (const char byte : bytes) {
    crc = (crc << 8 ^ kCrcOfByte[(crc >> 8 ^ static_cast<uint8_t>(byte)) & 0xFF]) & 0xFFFF;
  }
  return static_cast<uint16_t>(crc);
}

}  // namespace

uint32_t RedisSlotOf(std::string_view key) {
  const size_t open = key.find('{');
  if (open != std::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  return Crc16(key) % kRedisSlotCount;
}

std::string RedisTagOf(uint32_t slot) {
  TERRACE_CHECK(slot < kRedisSlotCount, "a Cluster has so many slots");
  uint32_t number = 0;
  while (RedisSlotOf(std::to_string(number)) != slot) ++number;
  return std::to_string(number);
}

}  // namespace terrace

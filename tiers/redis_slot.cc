#include "tiers/redis_slot.h"

#include <cstddef>

namespace terrace {
namespace {

uint16_t Crc16(std::string_view bytes) {
  uint32_t crc = 0;
  for (const char byte : bytes) {
    crc ^= static_cast<uint32_t>(static_cast<uint8_t>(byte)) << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
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

}  // namespace terrace

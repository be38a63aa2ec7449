// The slot of a key in a Redis Cluster: CRC16 (XMODEM) of its hash tag, modulo 16,384.
// https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

inline constexpr uint32_t kRedisSlotCount = 16384;

// Of what is between the first '{' and the first '}' behind it, if that is not empty, else of all.
uint32_t RedisSlotOf(std::string_view key);
// A hash tag of that slot, without its braces.
std::string RedisTagOf(uint32_t slot);

}  // namespace terrace

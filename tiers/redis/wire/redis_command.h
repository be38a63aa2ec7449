// RedisCommand: one command as RESP bytes in three pieces, so that a payload is sent from where it
// lies: what comes before it, the payload, what comes behind it.
//
// OWNERSHIP: the payload is borrowed; the rest is the command's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace terrace {

struct RedisCommand {
  std::string head;
  std::span<const std::byte> payload;
  std::string tail;

  uint64_t length_bytes() const { return head.size() + payload.size() + tail.size(); }
};

// A command of words alone.
RedisCommand FormatRedisCommand(std::initializer_list<std::string_view> words);
RedisCommand FormatRedisCommand(std::span<const std::string_view> words);
// Words, a payload, words.
RedisCommand FormatRedisCommand(std::initializer_list<std::string_view> before,
                                std::span<const std::byte> payload,
                                std::span<const std::string_view> after);

// "MULTI" of a transaction.
std::string_view FirstWordOf(const RedisCommand& command);

// MULTI, `first`, the others, EXEC: all of them at one moment or none.
inline constexpr uint32_t kRedisTransactionAnswers = 3;  // and one for each of the others
RedisCommand FormatRedisTransaction(RedisCommand first, std::span<const RedisCommand> others);

}  // namespace terrace

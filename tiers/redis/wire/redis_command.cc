#include "tiers/redis/wire/redis_command.h"

#include <algorithm>

namespace terrace {
namespace {

void AppendLength(char kind, uint64_t length, std::string* into) {
  *into += kind;
  *into += std::to_string(length);
  *into += "\r\n";
}

void AppendWord(std::string_view word, std::string* into) {
  AppendLength('$', word.size(), into);
  *into += word;
  *into += "\r\n";
}

}  // namespace

RedisCommand FormatRedisCommand(std::initializer_list<std::string_view> words) {
  return FormatRedisCommand(std::span(words.begin(), words.size()));
}

RedisCommand FormatRedisCommand(std::span<const std::string_view> words) {
  // In one piece from the start: a password leaves no copies behind when the text grows.
  size_t length_bytes = 16;
  for (const std::string_view word : words) length_bytes += word.size() + 16;
  RedisCommand command;
  command.head.reserve(length_bytes);
  AppendLength('*', words.size(), &command.head);
  for (const std::string_view word : words) AppendWord(word, &command.head);
  return command;
}

RedisCommand FormatRedisCommand(std::initializer_list<std::string_view> before,
                                std::span<const std::byte> payload,
                                std::span<const std::string_view> after) {
  RedisCommand command;
  AppendLength('*', before.size() + 1 + after.size(), &command.head);
  for (const std::string_view word : before) AppendWord(word, &command.head);
  AppendLength('$', payload.size(), &command.head);
  command.payload = payload;
  command.tail = "\r\n";
  for (const std::string_view word : after) AppendWord(word, &command.tail);
  return command;
}

std::string_view FirstWordOf(const RedisCommand& command) {
  std::string_view head = command.head;
  for (int i = 0; i < 2; ++i) head.remove_prefix(std::min(head.find('\n'), head.size() - 1) + 1);
  return head.substr(0, head.find('\r'));
}

RedisCommand FormatRedisTransaction(RedisCommand first, std::span<const RedisCommand> others) {
  first.head.insert(0, "*1\r\n$5\r\nMULTI\r\n");
  for (const RedisCommand& other : others) first.tail += other.head;
  AppendLength('*', 1, &first.tail);
  AppendWord("EXEC", &first.tail);
  return first;
}

}  // namespace terrace

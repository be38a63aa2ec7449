#include "tiers/redis_command.h"

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
  // In one piece from the start: a password leaves no copies behind when the text grows.
  size_t length_bytes = 16;
  for (const std::string_view word : words) length_bytes += word.size() + 16;
  RedisCommand command;
  command.head.reserve(length_bytes);
  AppendLength('*', words.size(), &command.head);
  for (const std::string_view word : words) AppendWord(word, &command.head);
  return command;
}

RedisCommand FormatRedisSet(std::string_view key, std::span<const std::byte> payload,
                            uint64_t ttl_ms) {
  RedisCommand command;
  AppendLength('*', 5, &command.head);
  AppendWord("SET", &command.head);
  AppendWord(key, &command.head);
  AppendLength('$', payload.size(), &command.head);
  command.payload = payload;
  command.tail = "\r\n";
  AppendWord("PX", &command.tail);
  AppendWord(std::to_string(ttl_ms), &command.tail);
  return command;
}

}  // namespace terrace

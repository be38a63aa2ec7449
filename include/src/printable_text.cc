#include "src/printable_text.h"

#include <cstddef>
#include <cstdint>

namespace terrace {
namespace {

struct Character {
  size_t byte_count = 1;
  bool is_shown = false;
};

// What a continuation adds of a character, if it is one.
bool Continues(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

bool TurnsDirection(uint32_t code) {
  return code == 0x61C || code == 0x200E || code == 0x200F || (code >= 0x202A && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069);
}

// REQUIRES: `text` is not empty. The first character, or its first byte where none begins.
Character First(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return {.byte_count = 1, .is_shown = lead >= 0x20 && lead != 0x7F};
  const size_t byte_count = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < byte_count) return {};
  uint32_t code = lead & (0x7Fu >> byte_count);
  for (size_t i = 1; i < byte_count; ++i) {
    if (!Continues(text[i])) return {};
    code = code << 6 | (static_cast<uint8_t>(text[i]) & 0x3Fu);
  }
  const bool is_overlong = code < (byte_count == 4 ? 0x10000u : byte_count == 3 ? 0x800u : 0x80u);
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (is_overlong || is_surrogate || code > 0x10FFFF) return {};
  const bool is_control = code < 0xA0 || code == 0x2028 || code == 0x2029;
  return {.byte_count = byte_count, .is_shown = !is_control && !TurnsDirection(code)};
}

}  // namespace

std::string PrintableText(std::string_view text, LineFeeds line_feeds) {
  std::string shown;
  while (!text.empty()) {
    const Character character = First(text);
    const bool is_kept =
        character.is_shown || (line_feeds == LineFeeds::kKept && text.front() == '\n');
    shown += is_kept ? text.substr(0, character.byte_count) : "?";
    text.remove_prefix(character.byte_count);
  }
  return shown;
}

}  // namespace terrace

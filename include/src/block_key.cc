#include "terrace/block_key.h"

namespace terrace {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string ToHex(uint64_t high, uint64_t low) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(32, '0');
  for (int i = 0; i < 16; ++i) {
    text[15 - i] = kDigits[(high >> (4 * i)) & 15];
    text[31 - i] = kDigits[(low >> (4 * i)) & 15];
  }
  return text;
}

Status ParseHex(std::string_view text, uint64_t* high, uint64_t* low) {
  if (text.size() != 32) return Status(StatusCode::kInvalid, "an id is exactly 32 hex digits");
  uint64_t words[2] = {0, 0};
  for (size_t i = 0; i < 32; ++i) {
    const int digit = HexDigit(text[i]);
    if (digit < 0) return Status(StatusCode::kInvalid, "an id is exactly 32 hex digits");
    words[i / 16] = words[i / 16] << 4 | static_cast<uint64_t>(digit);
  }
  *high = words[0];
  *low = words[1];
  return Status::Ok();
}

}  // namespace terrace

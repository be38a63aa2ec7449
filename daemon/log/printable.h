#pragma once

#include <span>
#include <string>

namespace terrace {

// `text` up to its first zero byte, with '?' in the place of what is no printable ASCII: texts
// come from clients and end up on terminals.
inline std::string Printable(std::span<const char> text) {
  std::string shown;
  for (const char c : text) {
    if (c == '\0') break;
    shown += c >= 0x20 && c <= 0x7e ? c : '?';
  }
  return shown;
}

}  // namespace terrace

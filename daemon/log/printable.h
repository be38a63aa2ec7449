// Printable: a client's text as a log line, a document or a terminal may show it. What clients call
// themselves comes in fields of fixed size, and may hold anything: escape sequences, half a
// character of UTF-8, no zero byte.
//
// THREADING: a pure function. LIMITS: no longer than the field. Nothing fails; a field that begins
// with a zero byte is an empty text.
#pragma once

#include <span>
#include <string>

namespace terrace {

// The field up to its first zero byte, with '?' for each byte that is no printable ASCII.
inline std::string Printable(std::span<const char> field) {
  std::string shown;
  for (const char c : field) {
    if (c == '\0') break;
    shown += c >= 0x20 && c <= 0x7e ? c : '?';
  }
  return shown;
}

}  // namespace terrace

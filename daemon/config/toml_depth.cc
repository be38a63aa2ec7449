#include "daemon/config/toml_depth.h"

#include <algorithm>
#include <cstddef>

namespace terrace {
namespace {

// REQUIRES: text[at] begins a string. Where what follows it begins, as far as the line goes where
// it is not ended. Counts its line feeds.
size_t EndOfString(std::string_view text, size_t at, uint32_t* line) {
  const char quote = text[at];
  const std::string_view rest = text.substr(at);
  const bool is_long = rest.starts_with("\"\"\"") || rest.starts_with("'''");
  at += is_long ? 3 : 1;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '\n') {
      if (!is_long) return at;
      ++*line;
    }
    if (c == '\\' && quote == '"' && at + 1 < text.size() && text[at + 1] != '\n') {
      at += 2;
      continue;
    }
    if (c != quote) {
      ++at;
      continue;
    }
    if (!is_long) return at + 1;
    // Up to two quotes before the three that end it are of the text.
    size_t end = text.find_first_not_of(quote, at);
    end = std::min({end, text.size(), at + 5});
    if (end - at >= 3) return end;
    at = end;
  }
  return at;
}

}  // namespace

uint32_t LineTooDeep(std::string_view text) {
  uint32_t line = 1, parts = 1;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      at = EndOfString(text, at, &line);
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '.' && ++parts > kNamePartsMax) return line;
    if (std::string_view("\n=,[]{}").find(c) != std::string_view::npos) parts = 1;
    if (c == '\n') ++line;
    ++at;
  }
  return 0;
}

}  // namespace terrace

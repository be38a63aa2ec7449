#include "src/masked_address.h"

#include <algorithm>
#include <cctype>

namespace terrace {
namespace {

constexpr std::string_view kMask = "***";

bool IsPlain(std::string_view name) {
  return std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
}

}  // namespace

std::string MaskedAddress(std::string_view text) {
  const size_t at = text.rfind('@');
  const size_t options = text.find_first_of("?#,; \t\r\n");
  const size_t scheme = text.find("://");
  const bool has_scheme = scheme != text.npos && IsPlain(text.substr(0, scheme));
  const size_t begin = has_scheme ? scheme + 3 : 0;
  std::string shown(text.substr(0, begin));
  if (at == text.npos) {
    if (options == text.npos) return std::string(text);
    return std::string(text.substr(0, options + 1)).append(kMask);
  }
  // Either may be a part of the other's secret.
  if (options != text.npos && options < at) return shown.append(kMask);
  // "redis://user:secret@host" and "//:secret@host"; of one without a colon nobody can tell which
  // of both it is.
  const size_t colon = text.find(':', begin);
  if (colon < at && IsPlain(text.substr(begin, colon - begin))) {
    shown.append(text.substr(begin, colon + 1 - begin));
  }
  shown.append(kMask).append(text.substr(at, options == text.npos ? text.npos : options - at));
  if (options != text.npos) shown.append(text.substr(options, 1)).append(kMask);
  return shown;
}

}  // namespace terrace

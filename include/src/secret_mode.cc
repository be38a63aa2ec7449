#include "terrace/secret_mode.h"

#include <cstdlib>
#include <filesystem>

namespace terrace {

unsigned ForbiddenModeBits(const std::string& path) {
  constexpr unsigned kOfOthers = 077, kReadByGroup = 040;
  const char* const directory = std::getenv("CREDENTIALS_DIRECTORY");
  if (directory == nullptr || *directory != '/') return kOfOthers;
  const std::string named = std::filesystem::path(path).lexically_normal();
  std::string below = std::filesystem::path(directory).lexically_normal();
  if (!below.ends_with('/')) below += '/';
  return named.starts_with(below) ? kOfOthers & ~kReadByGroup : kOfOthers;
}

std::string ModeText(unsigned mode) {
  std::string text;
  for (int shift = 9; shift >= 0; shift -= 3) {
    text += static_cast<char>('0' + ((mode >> shift) & 7));
  }
  return text;
}

}  // namespace terrace

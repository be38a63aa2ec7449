#include "tools/terrace/doctor/host.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "daemon/config/config_text.h"

namespace terrace::tools {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;

}  // namespace

std::optional<std::string> HostFiles::Read(const std::string& path) const {
  std::ifstream file(root_ + path, std::ios::binary);
  std::string text(kFileBytesMax, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  // A directory opens, and does not read; an empty file reads, and has nothing.
  if (file.bad() || (!file.eof() && file.fail())) return std::nullopt;
  if (!file.is_open()) return std::nullopt;
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::optional<uint64_t> HostFiles::ReadNumber(const std::string& path) const {
  const auto text = Read(path);
  if (!text) return std::nullopt;
  uint64_t number = 0;
  const auto [rest, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

std::optional<std::string> HostFiles::ReadField(const std::string& path,
                                                const std::string& name) const {
  const auto text = Read(path);
  if (!text) return std::nullopt;
  for (std::string_view rest = *text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos && Trimmed(line.substr(0, colon)) == name) {
      return std::string(Trimmed(line.substr(colon + 1)));
    }
  }
  return std::nullopt;
}

std::optional<std::vector<std::string>> HostFiles::List(const std::string& path) const {
  std::error_code error;
  std::filesystem::directory_iterator entries(root_ + path, error);
  if (error) return std::nullopt;
  std::vector<std::string> names;
  for (; entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    names.push_back(entries->path().filename());
    if (error) return std::nullopt;
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace terrace::tools

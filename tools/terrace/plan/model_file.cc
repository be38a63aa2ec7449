#include "tools/terrace/plan/model_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "terrace/open_file.h"
#include "terrace/units.h"
#include "tools/terrace/cli/json_text.h"

namespace terrace::tools {
namespace {

constexpr size_t kFileBytesMax = 16 * kMiB;  // those of the largest models have a hundredth

// Empty, or why there is no more of it.
std::string ReadAll(const std::string& path, std::string* text) {
  const OpenFile file(path, O_RDONLY, 0);
  if (file.fd() < 0) return std::string("cannot be opened: ") + std::strerror(errno);
  while (text->size() <= kFileBytesMax) {
    char page[64 * kKiB];
    const ssize_t count = read(file.fd(), page, sizeof(page));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::string("cannot be read: ") + std::strerror(errno);
    if (count == 0) return "";
    text->append(page, static_cast<size_t>(count));
  }
  return fmt::format("is larger than {} MiB, the limit", kFileBytesMax / kMiB);
}

}  // namespace

Error ReadModelFile(const std::string& path, nlohmann::json* config) {
  std::error_code unknown;  // opening the file says the rest
  const bool is_directory = std::filesystem::is_directory(path, unknown);
  const std::string file = is_directory ? path + "/config.json" : path;
  std::string text;
  std::string why = ReadAll(file, &text);
  if (why.empty()) {
    *config = ParseJson(text, &why);
    if (!config->is_discarded()) return {};
  }
  return {StatusCode::kInvalid,
          fmt::format("'{}' is no model known by name (`terrace plan --models`), and as a file it "
                      "{}. Name a config.json or a directory with one",
                      file, why)};
}

}  // namespace terrace::tools

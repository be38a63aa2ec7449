#include "daemon/config/kept_mounts.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace terrace {

KeptMounts ParseKeptMounts(std::string_view text) {
  KeptMounts mounts;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t tab = line.find('\t');
    if (tab != line.npos) mounts.emplace(line.substr(0, tab), line.substr(tab + 1));
  }
  return mounts;
}

std::string FormatKeptMounts(const KeptMounts& mounts) {
  std::string text;
  for (const auto& [path, mount] : mounts) text += path + '\t' + mount + '\n';
  return text;
}

bool IsMountLost(std::string_view kept, std::string_view now) {
  if (kept.size() <= now.size() || !kept.starts_with(now)) return false;
  return now == "/" || kept[now.size()] == '/';
}

std::string MountPointOf(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path at = fs::weakly_canonical(path, error);
  if (error) at = path;
  struct stat about {};
  while (stat(at.c_str(), &about) != 0 && at != at.parent_path()) at = at.parent_path();
  const dev_t device = about.st_dev;
  while (at != at.parent_path() && stat(at.parent_path().c_str(), &about) == 0 &&
         about.st_dev == device) {
    at = at.parent_path();
  }
  return at.string();
}

}  // namespace terrace

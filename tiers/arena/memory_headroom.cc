#include "tiers/arena/memory_headroom.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "terrace/units.h"

namespace terrace {
namespace {

// A file that holds one number; empty if it holds anything else ("max") or is not there.
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

// The number behind `name` in a file of "name number" lines.
std::optional<uint64_t> ReadField(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  for (uint64_t number = 0; file >> word;) {
    if (word == name && file >> number) return number;
    file.ignore(1 << 16, '\n');
  }
  return std::nullopt;
}

std::string OwnCgroup(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(4);
  }
  return "";
}

void Limit(MemoryHeadroom* headroom, uint64_t available_bytes, const std::string& by) {
  if (available_bytes >= headroom->available_bytes) return;
  headroom->available_bytes = available_bytes;
  headroom->limited_by = by;
}

}  // namespace

MemoryHeadroom ReadMemoryHeadroom(const std::string& root) {
  MemoryHeadroom headroom;
  const std::string meminfo = "/proc/meminfo";
  if (const auto available_kib = ReadField(root + meminfo, "MemAvailable:")) {
    Limit(&headroom, *available_kib * kKiB, meminfo);
  }
  for (std::string group = OwnCgroup(root);;) {
    const std::string directory = "/sys/fs/cgroup/" + group + (group.empty() ? "" : "/");
    const auto max_bytes = ReadNumber(root + directory + "memory.max");
    const auto used_bytes = ReadNumber(root + directory + "memory.current");
    if (max_bytes && used_bytes) {
      const std::string stat = root + directory + "memory.stat";
      // Page cache of files counts as used, but goes without a kill.
      const uint64_t cache_bytes =
          ReadField(stat, "inactive_file").value_or(0) + ReadField(stat, "active_file").value_or(0);
      const uint64_t kept_bytes = *used_bytes - std::min(*used_bytes, cache_bytes);
      Limit(&headroom, *max_bytes - std::min(*max_bytes, kept_bytes), directory + "memory.max");
    }
    if (group.empty()) return headroom;
    const size_t slash = group.rfind('/');
    group = slash == std::string::npos ? "" : group.substr(0, slash);
  }
}

}  // namespace terrace

#include "daemon/arenas/host_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "daemon/config/config_text.h"

namespace terrace {
namespace {

// A line of /proc/meminfo, in bytes; 0 if there is none.
uint64_t MeminfoBytes(const std::string& root, const std::string& name) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    uint64_t kibibytes = 0;
    if (words >> word >> kibibytes && word == name + ":") return kibibytes * kKiB;
  }
  return 0;
}

// Of the cgroup's file cache, what it gives back unasked.
uint64_t CacheBytes(const std::string& directory) {
  std::ifstream file(directory + "/memory.stat");
  std::string name;
  for (uint64_t bytes = 0; file >> name >> bytes;) {
    if (name == "inactive_file") return bytes;
  }
  return 0;
}

// The "total" of the line "some avg10=… avg60=… avg300=… total=…", in microseconds.
uint64_t StalledUs(const std::string& path) {
  constexpr std::string_view kTotal = "total=";
  std::ifstream file(path);
  uint64_t total_us = 0;
  for (std::string word; file >> word && word != "full";) {
    if (!word.starts_with(kTotal)) continue;
    std::from_chars(word.data() + kTotal.size(), word.data() + word.size(), total_us);
  }
  return total_us;
}

// The lowest memory.max from the daemon's cgroup (version 2) up to the root, and what is used
// there.
void NarrowToCgroup(const std::string& root, HostMemory* host) {
  std::ifstream self(root + "/proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(self, line);) {
    if (line.starts_with("0::")) path = line.substr(3);
  }
  while (!path.empty()) {
    const std::string directory = root + "/sys/fs/cgroup" + (path == "/" ? "" : path);
    uint64_t limit_bytes = 0, used_bytes = 0;
    if (std::ifstream(directory + "/memory.max") >> limit_bytes &&
        limit_bytes < host->total_bytes) {
      std::ifstream(directory + "/memory.current") >> used_bytes;
      host->free_bytes =
          std::min(host->free_bytes, limit_bytes - std::min(limit_bytes, used_bytes));
      used_bytes -= std::min(used_bytes, CacheBytes(directory));
      host->total_bytes = limit_bytes;
      host->available_bytes =
          std::min(host->available_bytes, limit_bytes - std::min(limit_bytes, used_bytes));
      host->stalled_us = StalledUs(directory + "/memory.pressure");
      host->is_cgroup_limited = true;
    }
    path = path == "/" ? "" : path.substr(0, std::max<size_t>(path.rfind('/'), 1));
  }
}

}  // namespace

HostMemory ReadHostMemory(const std::string& root) {
  HostMemory host{.total_bytes = MeminfoBytes(root, "MemTotal"),
                  .available_bytes = MeminfoBytes(root, "MemAvailable"),
                  .free_bytes = MeminfoBytes(root, "MemFree"),
                  .stalled_us = StalledUs(root + "/proc/pressure/memory")};
  if (host.total_bytes != 0) NarrowToCgroup(root, &host);
  return host;
}

Status CheckHostMemory(const HostMemory& host, uint64_t dram_bytes, uint64_t hbm_bytes,
                       std::string* why) {
  if (host.total_bytes == 0) return Status::Ok();
  const uint64_t wanted_bytes = dram_bytes + hbm_bytes;
  const std::string asked =
      "daemon.dram_bytes is " + FormatBytes(dram_bytes) +
      (hbm_bytes == 0 ? "" : " and hbm.capacity_bytes of device host " + FormatBytes(hbm_bytes)) +
      ", but ";
  const std::string place = host.is_cgroup_limited ? "the cgroup's memory.max" : "this machine";
  if (wanted_bytes > host.total_bytes) {
    *why = asked + place + (host.is_cgroup_limited ? " is " : " has ") +
           FormatBytes(RoundDown(host.total_bytes, kMiB)) + ": lower dram_bytes" +
           (host.is_cgroup_limited ? ", or raise the limit" : "");
    return Status(StatusCode::kNoSpace, "dram_bytes does not fit");
  }
  if (wanted_bytes > host.available_bytes) {
    *why = asked + "only " + FormatBytes(RoundDown(host.available_bytes, kMiB)) +
           " can be had now: memory may run out while the arena grows; lower dram_bytes or free "
           "memory";
  }
  return Status::Ok();
}

}  // namespace terrace

// How much memory can be populated before the kernel would have to kill something for it.
// Populating beyond it is not refused by the kernel with an error: the OOM killer ends this process
// or another.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

struct MemoryHeadroom {
  uint64_t available_bytes = UINT64_MAX;  // UINT64_MAX: nothing says
  std::string limited_by;                 // the file that says so
};

// The least of /proc/meminfo's MemAvailable and, for each cgroup (v2) from this process's own up to
// the root, memory.max less what it uses and cannot give back. `root` stands before all paths.
MemoryHeadroom ReadMemoryHeadroom(const std::string& root = "");

}  // namespace terrace

// What this machine, or the container the daemon runs in, has to give.
#pragma once

#include <cstdint>
#include <string>

#include "terrace/status.h"

namespace terrace {

struct HostMemory {
  uint64_t total_bytes = 0;      // of the machine, or the cgroup's limit if that is lower
  uint64_t available_bytes = 0;  // what could be had now without swapping, file cache included
  uint64_t free_bytes = 0;       // of that, what nobody uses for anything, file cache included
  // How long, since it started, some task there stood for want of memory (PSI); 0: it does not say.
  uint64_t stalled_us = 0;
  bool is_cgroup_limited = false;
};

// Zeros where it cannot be read (then nothing is checked). `root` stands before /proc and /sys.
HostMemory ReadHostMemory(const std::string& root = "");

// kNoSpace with `*why` if dram_bytes can never fit; kOk with a non-empty `*why` as a warning if it
// does not fit now.
Status CheckHostMemory(const HostMemory& host, uint64_t dram_bytes, uint64_t hbm_bytes,
                       std::string* why);

}  // namespace terrace

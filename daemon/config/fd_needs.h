// How many files the daemon has open at most, and how many slab files there may be.
#pragma once

#include <cstdint>

#include "daemon/config/config.h"

namespace terrace {

// A slab file is open twice: for payload and for its table.
inline constexpr uint64_t kFdsPerSlabFile = 2;
// Slab files that a domain's part of nvme.capacity_bytes may take on a path.
inline constexpr uint64_t kSlabFilesOfAPath = 4096;
// Beside them there may be as many of before, when nvme.slab_bytes was another.
inline constexpr uint64_t kSlabFilesOpenOfAPath = 2 * kSlabFilesOfAPath;

struct FdNeeds {
  uint64_t connections = 0;  // and the rest of the process: with less there is no start
  uint64_t drives = 0;       // beside slab files
  uint64_t slab_files = 0;   // files, of all of capacity_bytes
  uint64_t left = 0;         // of a predecessor's sessions, where the limit allows

  uint64_t without_slab_files() const { return connections + drives; }
  uint64_t all() const { return without_slab_files() + slab_files * kFdsPerSlabFile; }
};

// Each session holds its socket, a pidfd and a life socket; a domain its listener, locks and
// memory, with Redis a loop (epoll, two of its own, an inbox), and its catalog's files; each of its
// paths a directory, a lock, a ring and an eventfd. The rest of the process has some, with what
// operators may have beyond sessions_max and connections that have not said Hello.
inline FdNeeds FdNeedsOf(const DaemonConfig& config) {
  constexpr uint64_t kFdsPerSession = 3;
  constexpr uint64_t kFdsPerSessionLeft = 2;
  constexpr uint64_t kFdsPerDomain = 8;
  constexpr uint64_t kFdsPerRedisLoop = 4;
  constexpr uint64_t kFdsPerPath = 4;
  constexpr uint64_t kFdsPerCatalog = 72;
  constexpr uint64_t kFdsOfProcess = 256;
  const uint64_t domain_count = config.domains.size();
  FdNeeds needs;
  const uint64_t redis_fds = config.redis.is_on() ? config.redis.fds_max() + kFdsPerRedisLoop : 0;
  needs.connections = config.sessions_max * kFdsPerSession + kFdsOfProcess +
                      domain_count * (kFdsPerDomain + redis_fds);
  needs.left = config.sessions_max * kFdsPerSessionLeft;
  const NvmeConfig& nvme = config.nvme;
  if (!nvme.is_on() || nvme.slab_bytes == 0) return needs;
  needs.drives = domain_count * (nvme.paths.size() * kFdsPerPath + kFdsPerCatalog);
  needs.slab_files = nvme.capacity_bytes / nvme.slab_bytes;
  return needs;
}

}  // namespace terrace

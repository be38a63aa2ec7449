// Which drives serve at this start, of those that are configured and those that have served before.
// A drive that is not mounted leaves its directory behind, on the file system below, which would be
// filled in its place; one that cannot be opened is done without, if another is there.
//
// THREADING: at the start; blocks.
#pragma once

#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "terrace/status.h"
#include "tiers/tier.h"

namespace terrace {

struct KnownDrives {
  NvmeConfig nvme;                       // with those of its paths that serve
  std::vector<std::string> lost_mounts;  // of each of them the mount that is missing, or ""
  std::vector<DriveTrouble> not_opened;  // have served before, and cannot be opened
};

// Remembers, below `state_dir`, where the paths lie. A path that never served is left for whoever
// opens it to refuse, and so are all if none can be opened. kInvalid with `*why` if
// two paths are one directory, or nvme.require_mount is on and a path does not lie on a mount of
// its own, or not on the one it lay on.
Status FindDrives(const DaemonConfig& config, KnownDrives* drives, std::string* why);

}  // namespace terrace

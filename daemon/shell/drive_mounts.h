// Whether the paths of drives lie where they lay: a drive that is not mounted leaves its directory
// behind, on the file system below, which would be filled in its place.
//
// THREADING: at the start; blocks.
#pragma once

#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "terrace/status.h"

namespace terrace {

// Of each path the mount that is missing, or "". Remembers, below `state_dir`, where the others
// lie. kInvalid with `*why` if nvme.require_mount is on and a path does not lie on a mount of its
// own, or not on the one it lay on.
Status FindLostMounts(const NvmeConfig& nvme, const std::string& state_dir,
                      std::vector<std::string>* lost_mounts, std::string* why);

}  // namespace terrace

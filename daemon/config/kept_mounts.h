// KeptMounts: on which mounts the paths of drives lay when slabs were written there, in a file of
// state_dir: a line a path, "PATH<tab>MOUNT POINT". Who finds a path on a mount above that one
// later knows that a drive is not mounted: its directory is there all the same, and can be written
// to.
//
// Pure, but for MountPointOf, which asks the file system.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace terrace {

inline constexpr char kKeptMountsName[] = "nvme-mounts";

using KeptMounts = std::map<std::string, std::string>;  // mount points, by path
KeptMounts ParseKeptMounts(std::string_view text);
std::string FormatKeptMounts(const KeptMounts& mounts);

// The path lay on `kept`, and lies on `now`: what was mounted there is not.
bool IsMountLost(std::string_view kept, std::string_view now);

// The topmost directory of the file system on which the path lies, or would.
std::string MountPointOf(const std::string& path);

}  // namespace terrace

#include "daemon/shell/drive_mounts.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "daemon/config/kept_mounts.h"
#include "daemon/log/log.h"

namespace terrace {
namespace {

KeptMounts Load(const std::string& file) {
  std::ifstream stream(file);
  return ParseKeptMounts(std::string{std::istreambuf_iterator<char>(stream), {}});
}

void Save(const std::string& file, const KeptMounts& mounts) {
  const std::string next = file + ".new";
  const bool is_written = (std::ofstream(next) << FormatKeptMounts(mounts) << std::flush).good();
  if (is_written && std::rename(next.c_str(), file.c_str()) == 0) return;
  Log(LogLevel::kWarn, "mounts of drives are not remembered",
      {{"path", file},
       {"why", std::strerror(errno)},
       {"remedy", "a drive that is not mounted at a later start goes unnoticed: see state_dir"}});
}

}  // namespace

Status FindLostMounts(const NvmeConfig& nvme, const std::string& state_dir,
                      std::vector<std::string>* lost_mounts, std::string* why) {
  const std::string file = state_dir + "/" + kKeptMountsName;
  const KeptMounts before = Load(file);
  KeptMounts mounts = before;
  lost_mounts->clear();
  for (const std::string& path : nvme.paths) {
    const std::string now = MountPointOf(path);
    const auto kept = before.find(path);
    const bool is_lost = kept != before.end() && IsMountLost(kept->second, now);
    lost_mounts->push_back(is_lost ? kept->second : "");
    if (!is_lost) mounts[path] = now;
    if (nvme.require_mount == RequireMount::kOn && (is_lost || now == "/")) {
      *why = "nvme.paths: " + path + " lies on the file system of " + now +
             (is_lost ? ", and lay on " + kept->second : "") +
             ", and nvme.require_mount is on: mount the drive (findmnt " +
             (is_lost ? kept->second : path) + "), or write require_mount = \"off\"";
      return Status(StatusCode::kInvalid, "a drive is not mounted");
    }
  }
  if (mounts != before) Save(file, mounts);
  return Status::Ok();
}

}  // namespace terrace

#include "daemon/domain/known_drives.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "daemon/config/kept_mounts.h"
#include "daemon/log/log.h"
#include "daemon/persist/kept_file.h"
#include "terrace/open_file.h"
#include "tiers/disk/disk_files.h"

namespace terrace {
namespace {

KeptMounts Load(const std::string& file) {
  std::ifstream stream(file);
  return ParseKeptMounts(std::string{std::istreambuf_iterator<char>(stream), {}});
}

void Save(const std::string& file, const KeptMounts& mounts) {
  const Status written = WriteKeptFile(file, FormatKeptMounts(mounts));
  if (written.ok()) return;
  Log(LogLevel::kWarn, "mounts of drives are not remembered",
      {{"path", file},
       {"why", std::string(written.what()) + ": " + std::strerror(written.detail())},
       {"remedy", "a drive that is not mounted at a later start goes unnoticed: see state_dir"}});
}

std::string Failed(const char* what, const std::string& path) {
  return std::string(what) + ' ' + path + ": " + std::strerror(errno);
}

// Empty: each domain could lock its directory there, were it nobody else's. What opens it does the
// same.
std::string WhyNotOpened(const DaemonConfig& config, const std::string& path) {
  const auto is_made = [](const std::string& directory) {
    return mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST;
  };
  if (!is_made(path)) return Failed("cannot make the directory", path);
  for (const DomainConfig& domain : config.domains) {
    const std::string directory = path + "/" + domain.name;
    if (!is_made(directory)) return Failed("cannot make the directory", directory);
    const std::string lock = directory + "/" + kDiskLockName;
    const OpenFile file(lock, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    if (file.fd() < 0) return Failed("cannot open", lock);
  }
  return {};
}

// Those that have served before and cannot be opened are taken from the paths, unless all are.
void TakeUnopened(const DaemonConfig& config, const KeptMounts& before, KnownDrives* drives) {
  std::vector<DriveTrouble> not_opened;
  std::vector<std::string> opened;
  for (const std::string& path : config.nvme.paths) {
    std::string cause = WhyNotOpened(config, path);
    if (cause.empty() || !before.contains(path)) {
      opened.push_back(path);
    } else {
      not_opened.push_back({.path = path, .not_opened = std::move(cause)});
    }
  }
  if (opened.empty() || not_opened.empty()) return;
  for (DriveTrouble& drive : not_opened) {
    drive.drive = static_cast<uint32_t>(opened.size() + (&drive - not_opened.data()));
    Log(LogLevel::kError, "a drive cannot be opened: the others serve without it",
        {{"path", drive.path},
         {"why", drive.not_opened},
         {"remedy", "mend it and restart, or take it out of nvme.paths"}});
  }
  drives->nvme.paths = std::move(opened);
  drives->not_opened = std::move(not_opened);
}

// A directory has many names: links, and mounts of a part of a file system.
Status CheckNamedOnce(const std::vector<std::string>& paths, std::string* why) {
  std::map<std::pair<dev_t, ino_t>, std::string> named;
  for (const std::string& path : paths) {
    struct stat about;
    if (stat(path.c_str(), &about) != 0) continue;
    const auto [first, is_new] = named.try_emplace({about.st_dev, about.st_ino}, path);
    if (is_new) continue;
    *why = "nvme.paths: " + first->second + " and " + path +
           " are one directory: name each drive once";
    return Status(StatusCode::kInvalid, "a drive is named twice");
  }
  return Status::Ok();
}

}  // namespace

Status FindDrives(const DaemonConfig& config, KnownDrives* drives, std::string* why) {
  const std::string file = config.state_dir + "/" + kKeptMountsName;
  const KeptMounts before = Load(file);
  KeptMounts mounts = before;
  *drives = {.nvme = config.nvme};
  TakeUnopened(config, before, drives);
  TERRACE_RETURN_IF_ERROR(CheckNamedOnce(drives->nvme.paths, why));
  for (const std::string& path : drives->nvme.paths) {
    const std::string now = MountPointOf(path);
    const auto kept = before.find(path);
    const bool is_lost = kept != before.end() && IsMountLost(kept->second, now);
    drives->lost_mounts.push_back(is_lost ? kept->second : "");
    if (!is_lost) mounts[path] = now;
    if (config.nvme.require_mount == RequireMount::kOn && (is_lost || now == "/")) {
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

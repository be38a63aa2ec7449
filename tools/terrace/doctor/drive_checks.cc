// Directories of drives: what file system they are on, how much room there is, and how the drive
// below is.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <string_view>

#include "daemon/config/kept_mounts.h"
#include "terrace/units.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/doctor/checks.h"
#include "tools/terrace/doctor/file_access.h"

namespace terrace::tools {
namespace {

constexpr std::array<std::string_view, 5> kGoodKinds = {"ext4", "xfs", "ext3", "ext2", "f2fs"};
constexpr std::array<std::string_view, 3> kCopyingKinds = {"btrfs", "zfs", "bcachefs"};
constexpr std::array<std::string_view, 2> kMemoryKinds = {"tmpfs", "ramfs"};
constexpr std::array<std::string_view, 7> kDistantKinds = {"nfs",  "nfs4", "cifs", "ceph",
                                                           "fuse", "9p",   "smb3"};

template <size_t count>
bool Has(const std::array<std::string_view, count>& kinds, std::string_view kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

// A line of mountinfo.
struct Mount {
  std::string device;  // "259:1"
  std::string point;
  std::string kind;    // "ext4"
  std::string source;  // "/dev/nvme0n1"
};

// The one that `path` lies in, the last of those with the longest mount point.
std::optional<Mount> MountOf(const HostFiles& files, const std::string& path) {
  std::optional<Mount> found;
  std::istringstream lines(files.Read("/proc/self/mountinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    Mount mount;
    std::string word;
    std::istringstream words(line);
    words >> word >> word >> mount.device >> word >> mount.point;
    while (words >> word && word != "-") continue;
    words >> mount.kind >> mount.source;
    const std::string below = mount.point == "/" ? "/" : mount.point + "/";
    if (!(path + "/").starts_with(below)) continue;
    if (!found || mount.point.size() >= found->point.size()) found = std::move(mount);
  }
  return found;
}

// As its mount and block device know it, or know what it will lie in.
std::string RealPath(const Subject& subject, const std::string& path) {
  int error = 0;
  const auto file = subject.calls.Stat(NearestThere(subject, path), &error);
  return file && !file->real_path.empty() ? file->real_path : path;
}

std::optional<Mount> MountOf(const Subject& subject, const std::string& path) {
  return MountOf(subject.files, RealPath(subject, path));
}

// Where the path lay when the daemon started last, if that is not mounted now; else "".
std::string LostMount(const Subject& subject, const std::string& path) {
  const auto text = subject.files.Read(subject.config.state_dir + "/" + kKeptMountsName);
  const KeptMounts mounts = ParseKeptMounts(text.value_or(""));
  const auto kept = mounts.find(path);
  const auto now = MountOf(subject, path);
  return kept != mounts.end() && now && IsMountLost(kept->second, now->point) ? kept->second : "";
}

// Of `there`, which is `path` or what that will lie in.
std::string DirectIoText(const Subject& subject, DirectIo direct, const std::string& path,
                         const std::string& there) {
  const std::string at =
      there == path ? "" : fmt::format(" at {}; the path is not there yet", there);
  if (direct == DirectIo::kWorks) return "works" + at;
  if (direct == DirectIo::kRefused) return "is refused" + at;
  return fmt::format("not tried: {} {}{}", subject.own.name,
                     subject.own.uid == 0 ? "can make no file there" : "has no leave to write", at);
}

Finding CheckVolume(const Subject& subject, const std::string& path) {
  Finding finding{.check = "file system"};
  const auto mount = MountOf(subject, path);
  if (!mount) {
    finding.level = FindingLevel::kNote;
    finding.found = path + ": no mount of /proc/self/mountinfo holds it";
    return finding;
  }
  const std::string_view kind = mount->kind;
  const std::string there = NearestThere(subject, path);
  const DirectIo direct = subject.calls.TryDirectIo(there);
  if (const std::string lost = LostMount(subject, path); !lost.empty()) {
    finding.level = FindingLevel::kProblem;
    finding.found = fmt::format("{}: {} of {}; it lay on what was mounted at {}", path, kind,
                                mount->source, lost);
    finding.meaning = "The drive is not mounted: the disk below is filled in its place.";
    finding.remedy = fmt::format("systemctl stop terraced, mount {}, and start it again", lost);
    return finding;
  }
  finding.found = fmt::format("{}: {} of {}, O_DIRECT {}", path, kind, mount->source,
                              DirectIoText(subject, direct, path, there));
  const std::string better = "a directory on XFS or ext4 of a drive of its own in nvme.paths";
  if (Has(kMemoryKinds, kind)) {
    finding.level = FindingLevel::kWarning;
    finding.meaning = "It is memory: what lies there counts twice, and a reboot loses it.";
  } else if (kind == "overlay") {
    finding.level = FindingLevel::kWarning;
    finding.meaning = "It is a container's layer: it is slow, and goes with the container.";
  } else if (Has(kDistantKinds, kind) || kind.starts_with("fuse.")) {
    finding.level = FindingLevel::kWarning;
    finding.meaning = "It is not this host's drive: a stall there stalls loads until deadlines.";
  } else if (Has(kCopyingKinds, kind)) {
    finding.level = FindingLevel::kWarning;
    finding.meaning = "It copies on write: slabs scatter, and the drive is written more than said.";
  } else if (direct == DirectIo::kRefused) {
    finding.level = FindingLevel::kWarning;
    finding.meaning =
        "Reads and writes go through the page cache: memory and CPU beside the arena.";
  } else if (!Has(kGoodKinds, kind) || direct == DirectIo::kUnseen) {
    finding.level = FindingLevel::kNote;
    finding.meaning = Has(kGoodKinds, kind) ? "" : "Nobody has measured Terrace on it.";
    const bool may_see_more = direct == DirectIo::kUnseen && subject.own.uid != 0;
    if (may_see_more) finding.remedy = subject.command_as_root;
  }
  if (finding.level == FindingLevel::kWarning) finding.remedy = better;
  return finding;
}

// What the daemon's slab files hold of the drive already; absent where it cannot be seen.
std::optional<uint64_t> HeldBytes(const Subject& subject, const std::string& path) {
  uint64_t held_bytes = 0;
  for (const DomainConfig& domain : subject.config.domains) {
    const std::string folder = path + "/" + domain.name;
    int error = 0;
    if (!subject.calls.Stat(folder, &error)) {
      if (error == ENOENT) continue;  // not started yet
      return std::nullopt;
    }
    const auto names = subject.files.List(folder);
    if (!names) return std::nullopt;
    for (const std::string& name : *names) {
      const auto file = subject.calls.Stat(folder + "/" + name, &error);
      if (file) held_bytes += file->held_bytes;
    }
  }
  return held_bytes;
}

// In whole GiB, else MiB; less than a slab is no tier at all.
std::string RemedyForSpace(uint64_t fitting_bytes) {
  constexpr uint64_t kCapacityBytesMin = 4 * kMiB;
  if (fitting_bytes < kCapacityBytesMin) return "free space, or name another path in nvme.paths";
  const bool is_small = fitting_bytes < 4 * kGiB;
  return fmt::format("[nvme] capacity_bytes = \"{}{}\", or free space",
                     fitting_bytes / (is_small ? kMiB : kGiB), is_small ? "MiB" : "GiB");
}

Finding CheckSpaceOf(const Subject& subject, const std::string& path) {
  Finding finding{.check = "space"};
  const auto volume = subject.calls.Volume(NearestThere(subject, path));
  const auto held_bytes = HeldBytes(subject, path);
  if (!volume || !held_bytes) {
    finding.level = FindingLevel::kNote;
    finding.found = fmt::format("{}: {} may not see what is there", path, subject.own.name);
    finding.remedy = subject.command_as_root;
    return finding;
  }
  const NvmeConfig& nvme = subject.config.nvme;
  const uint64_t share_bytes = nvme.capacity_bytes / nvme.paths.size();
  const uint64_t missing_bytes = share_bytes - std::min(share_bytes, *held_bytes);
  finding.found = fmt::format("{}: {} free, {} held by slabs, {} of capacity", path,
                              FormatBytes(volume->free_bytes), FormatBytes(*held_bytes),
                              FormatBytes(share_bytes));
  if (missing_bytes > volume->free_bytes) {
    finding.level = FindingLevel::kProblem;
    finding.meaning = "The tier never reaches its capacity: writes fail once the drive is full.";
    finding.remedy =
        RemedyForSpace((*held_bytes + volume->free_bytes) / 10 * 9 * nvme.paths.size());
  } else if (volume->free_bytes - missing_bytes < volume->total_bytes / 10) {
    finding.level = FindingLevel::kWarning;
    finding.meaning = "Less than a tenth stays unwritten: drives slow down when they are full.";
    finding.remedy = "a smaller nvme.capacity_bytes";
  }
  return finding;
}

// A file of the block device, or of the one that it is a partition of.
std::string DiskFolder(const HostFiles& files, const std::string& device) {
  const std::string folder = "/sys/dev/block/" + device;
  return files.Read(folder + "/partition") ? folder + "/.." : folder;
}

// Temperatures that the kernel reads of a drive, below `folder`: the first sensor with one.
std::string Temperature(const HostFiles& files, const std::string& folder, bool* is_alarming) {
  for (const std::string& place : {folder, folder + "/hwmon"}) {
    for (const std::string& name : files.List(place).value_or(std::vector<std::string>{})) {
      if (!name.starts_with("hwmon") || name == "hwmon") continue;
      const std::string sensor = place + "/" + name + "/temp1_";
      const auto now = files.ReadNumber(sensor + "input");  // thousandths of a degree
      if (!now) continue;
      const auto crit = files.ReadNumber(sensor + "crit");
      *is_alarming = files.ReadNumber(sensor + "alarm").value_or(0) != 0 || (crit && *now >= *crit);
      return crit ? fmt::format(", {} of at most {} °C", *now / 1000, *crit / 1000)
                  : fmt::format(", {} °C", *now / 1000);
    }
  }
  return "";
}

// A virtual machine's, which the kernel calls rotating unless its host says otherwise.
bool IsVirtual(std::string_view source) {
  return source.starts_with("/dev/vd") || source.starts_with("/dev/xvd");
}

Finding CheckDrive(const Subject& subject, const std::string& path,
                   std::map<std::string, std::string>* paths_by_device) {
  Finding finding{.check = "drive"};
  const auto mount = MountOf(subject, path);
  const std::string disk = mount ? DiskFolder(subject.files, mount->device) : "";
  const auto rotational = subject.files.ReadNumber(disk + "/queue/rotational");
  if (!mount || !rotational) {
    finding.level = FindingLevel::kNote;
    finding.found = fmt::format("{}: /sys knows no block device below it", path);
    finding.meaning = "Its kind and health cannot be seen here.";
    return finding;
  }
  const bool is_rotating = *rotational != 0 && !IsVirtual(mount->source);
  const std::string state = subject.files.Read(disk + "/device/state").value_or("");
  bool is_alarming = false;
  const std::string heat = Temperature(subject.files, disk + "/device", &is_alarming);
  std::string model = subject.files.Read(disk + "/device/model").value_or("");
  model.erase(model.find_last_not_of(' ') + 1);
  finding.found =
      fmt::format("{}: {}{}{}{}{}", path, model.empty() ? mount->source : model,
                  is_rotating ? ", rotating" : "", state.empty() ? "" : ", ", state, heat);
  const auto [other, is_new] = paths_by_device->try_emplace(mount->device, path);
  if (!state.empty() && state != "live" && state != "running") {
    finding.level = FindingLevel::kProblem;
    finding.meaning =
        "The kernel does not use the drive as it should: its tier is off, or will be.";
    finding.remedy = "dmesg; smartctl -a " + mount->source;
  } else if (is_alarming) {
    finding.level = FindingLevel::kProblem;
    finding.meaning = "It is too hot, and slows down or stops.";
    finding.remedy = "cooling; smartctl -a " + mount->source;
  } else if (is_rotating) {
    finding.level = FindingLevel::kWarning;
    finding.meaning = "A seek takes longer than computing most prefixes anew.";
    finding.remedy = "an NVMe drive in nvme.paths";
  } else if (!is_new) {
    finding.level = FindingLevel::kWarning;
    finding.meaning =
        fmt::format("{} is on the same drive: two paths, one drive's speed.", other->second);
    finding.remedy = "one path a drive in nvme.paths";
  }
  return finding;
}

}  // namespace

std::vector<Finding> CheckVolumes(const Subject& subject) {
  std::vector<Finding> findings;
  for (const std::string& path : subject.config.nvme.paths) {
    findings.push_back(CheckVolume(subject, path));
  }
  return findings;
}

std::vector<Finding> CheckSpace(const Subject& subject) {
  std::vector<Finding> findings;
  for (const std::string& path : subject.config.nvme.paths) {
    findings.push_back(CheckSpaceOf(subject, path));
  }
  return findings;
}

std::vector<Finding> CheckDrives(const Subject& subject) {
  std::vector<Finding> findings;
  std::map<std::string, std::string> paths_by_device;
  for (const std::string& path : subject.config.nvme.paths) {
    findings.push_back(CheckDrive(subject, path, &paths_by_device));
  }
  return findings;
}

}  // namespace terrace::tools

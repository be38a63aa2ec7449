// A host of a test's own for doctor's checks: files below a temporary directory, and answers for
// what would be a system call. It is in good order until a test says otherwise.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "terrace/units.h"
#include "tools/terrace/doctor/subject.h"

namespace terrace::tools {

class FakeHost : public HostCalls {
 public:
  FakeHost() {
    std::string name = std::filesystem::temp_directory_path() / "terrace-doctor-XXXXXX";
    root_ = mkdtemp(name.data());
    files_.emplace(root_);
    Write("/proc/sys/kernel/osrelease", "6.8.1\n");
    Write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Quick 9000\nflags\t\t: fpu avx2\n");
    Write("/proc/meminfo", "MemTotal:       67108864 kB\nMemAvailable:   60000000 kB\n");
    Write("/proc/self/status",
          "Name:\tterrace\nUid:\t0\t1000\t0\t0\nGid:\t7\t7\t7\t7\nGroups:\t8 9 \n");
    Write("/proc/self/limits", Limits("unlimited", "524288", "0"));
    Write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
    Write("/sys/devices/system/node/has_memory", "0\n");
    Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [advise] never\n");
    stats["/"] = {.mode = S_IFDIR | 0755};
  }
  ~FakeHost() override { std::filesystem::remove_all(root_); }

  static std::string Limits(const std::string& locked, const std::string& files,
                            const std::string& cores, const std::string& file_bytes = "unlimited") {
    return "Limit                     Soft Limit           Hard Limit           Units     \n"
           "Max file size             " +
           file_bytes + "  " + file_bytes +
           "  bytes\n"
           "Max core file size        " +
           cores + "  " + cores +
           "  bytes\n"
           "Max open files            1024  " +
           files +
           "  files\n"
           "Max locked memory         " +
           locked + "  " + locked + "  bytes\n";
  }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void Remove(const std::string& path) { std::filesystem::remove_all(root_ + path); }

  // Of this host. Its configuration has one domain and nothing else.
  Subject Make() const {
    Subject subject{.files = *files_, .calls = *this};
    subject.config_path = "/etc/terrace/terraced.toml";
    subject.config_state = ConfigState::kRead;
    subject.config.dram_bytes = 8 * kGiB;
    subject.config.fenced_bytes_max = 2 * kGiB;
    subject.config.domains.push_back(
        {.name = "chat", .secret_file = "/secret", .dram_max_bytes = 8 * kGiB});
    subject.version = "0.2.0";
    subject.own = {.uid = 1000, .gids = {1000}, .name = "ann"};
    subject.daemon = {.uid = 998, .gids = {997}, .name = "terrace"};
    subject.socket_path = "/run/terrace/default.sock";
    return subject;
  }
  // With a drive of 100 GiB at /mnt/d, of which 40 are its capacity.
  Subject MakeWithDrive() {
    Write("/proc/self/mountinfo",
          "22 1 259:9 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
          "23 22 259:1 / /mnt/d rw,relatime shared:2 - xfs /dev/nvme0n1 rw\n");
    Write("/sys/dev/block/259:1/queue/rotational", "0\n");
    Write("/sys/dev/block/259:1/device/state", "live\n");
    Write("/sys/dev/block/259:1/device/model", "Drive 1T   \n");
    stats["/mnt/d"] = {.mode = S_IFDIR | 0700, .uid = 998, .gid = 997, .real_path = "/mnt/d"};
    volumes["/mnt/d"] = {.total_bytes = 100 * kGiB, .free_bytes = 80 * kGiB};
    Subject subject = Make();
    subject.config.nvme.paths = {"/mnt/d"};
    subject.config.nvme.capacity_bytes = 40 * kGiB;
    return subject;
  }
  static StatsView Stats(const std::string& text) { return *StatsView::Parse(text); }

  std::string WhyNoRing(std::string* description) const override {
    *description = "plain completions";
    return why_no_ring;
  }
  int MemfdError() const override { return memfd_error; }
  int PeerPidfdError() const override { return pidfd_error; }
  std::optional<FileFacts> Stat(const std::string& path, int* error) const override {
    const auto found = stats.find(path);
    *error = denied ? EACCES : ENOENT;
    return found == stats.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<VolumeFacts> Volume(const std::string& path) const override {
    const auto found = volumes.find(path);
    return found == volumes.end() ? std::nullopt : std::optional(found->second);
  }
  DirectIo TryDirectIo(const std::string&) const override { return direct; }
  std::string WhyNoRedis(const std::string&, uint32_t, bool) const override { return why_no_redis; }
  std::string WhyNoPlugin(const std::string&, std::string* description) const override {
    *description = "2 devices";
    return why_no_plugin;
  }
  std::string VectorUnits() const override { return vector_units; }

  std::string why_no_ring, why_no_redis, why_no_plugin;
  std::string vector_units = "AVX2";
  int memfd_error = 0;
  int pidfd_error = 0;
  bool denied = false;  // who asks may not look at what `stats` lacks
  DirectIo direct = DirectIo::kWorks;
  std::map<std::string, FileFacts> stats;
  std::map<std::string, VolumeFacts> volumes;

 private:
  std::string root_;
  std::optional<HostFiles> files_;
};

}  // namespace terrace::tools

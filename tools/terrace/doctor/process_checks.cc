// Limits of the daemon's process, or, where none can be seen, of this shell, from which one may be
// started; and who may look into the daemon.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

#include "daemon/config/fd_needs.h"
#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/doctor/checks.h"

namespace terrace::tools {
namespace {

constexpr uint64_t kUnlimited = UINT64_MAX;
constexpr uint64_t kFdsOfUnit = 262'144;  // LimitNOFILE= of terraced.service

struct SoftAndHard {
  uint64_t soft = 0;
  uint64_t hard = 0;
};

std::optional<uint64_t> LimitOf(const std::string& word) {
  if (word == "unlimited") return kUnlimited;
  uint64_t limit = 0;
  const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), limit);
  return error == std::errc() ? std::optional(limit) : std::nullopt;
}

// A line of /proc/PID/limits: "Max open files            1024                 4096        files".
std::optional<SoftAndHard> ReadLimit(const HostFiles& files, const std::string& process,
                                     std::string_view name) {
  const auto text = files.Read("/proc/" + process + "/limits");
  if (!text) return std::nullopt;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream words(line.substr(name.size()));
    std::string soft, hard;
    words >> soft >> hard;
    const auto low = LimitOf(soft), high = LimitOf(hard);
    if (low && high) return SoftAndHard{*low, *high};
  }
  return std::nullopt;
}

struct Seen {
  std::string who;
  bool is_daemon = false;
  SoftAndHard limit;
};

std::optional<Seen> LimitSeen(const Subject& subject, std::string_view name) {
  if (subject.pid) {
    const auto limit = ReadLimit(subject.files, std::to_string(*subject.pid), name);
    if (limit) return Seen{fmt::format("of the daemon (pid {})", *subject.pid), true, *limit};
  }
  const auto limit = ReadLimit(subject.files, "self", name);
  if (limit) return Seen{"of this shell", false, *limit};
  return std::nullopt;
}

Finding Unseen(Finding finding) {
  finding.level = FindingLevel::kNote;
  finding.found = "neither the daemon's limits nor this shell's can be read in /proc";
  return finding;
}

std::string AmountOf(uint64_t bytes) {
  return bytes == kUnlimited ? "unlimited" : FormatBytes(bytes);
}

}  // namespace

Finding CheckLockedMemory(const Subject& subject) {
  Finding finding{.check = "memlock"};
  const auto seen = LimitSeen(subject, "Max locked memory");
  if (!seen) return Unseen(finding);
  finding.found = fmt::format("{} {}", AmountOf(seen->limit.soft), seen->who);
  const NvmeConfig& nvme = subject.config.nvme;
  const bool is_needed = nvme.is_on() && nvme.io != DiskIo::kThreads;
  const UserFacts& user = seen->is_daemon ? subject.daemon : subject.own;
  if (!is_needed || user.uid == 0 || seen->limit.soft >= subject.config.dram_bytes) {
    return finding;
  }
  finding.level = seen->is_daemon ? FindingLevel::kWarning : FindingLevel::kNote;
  finding.meaning = fmt::format(
      "{} of DRAM cannot be registered with io_uring: each transfer of a drive pins its pages "
      "anew.",
      FormatBytes(subject.config.dram_bytes));
  finding.remedy = seen->is_daemon
                       ? "systemctl edit terraced: [Service] LimitMEMLOCK=infinity"
                       : "the unit has LimitMEMLOCK=infinity; by hand: ulimit -l unlimited";
  return finding;
}

Finding CheckOpenFiles(const Subject& subject) {
  Finding finding{.check = "open files"};
  const auto seen = LimitSeen(subject, "Max open files");
  if (!seen) return Unseen(finding);
  const DaemonConfig& config = subject.config;
  const FdNeeds needs = FdNeedsOf(config);
  // The daemon raises its own up to the hard limit.
  const uint64_t hard = seen->limit.hard;
  finding.found = fmt::format("{} {}; {} sessions need {}",
                              hard == kUnlimited ? "unlimited" : FormatCount(hard), seen->who,
                              FormatCount(config.sessions_max), FormatCount(needs.connections));
  if (needs.slab_files > 0) {
    finding.found += fmt::format(", {} slab files {}", FormatCount(needs.slab_files),
                                 FormatCount(needs.all() - needs.connections));
  }
  if (hard >= needs.all()) return finding;
  const bool is_refused = hard < needs.connections;
  finding.level = is_refused && seen->is_daemon ? FindingLevel::kProblem : FindingLevel::kWarning;
  const uint64_t left = hard - std::min(hard, needs.without_slab_files());
  finding.meaning = is_refused ? "With this limit and configuration terraced refuses to start."
                               : fmt::format("The drives' tier stops growing at {} slab files.",
                                             FormatCount(left / kFdsPerSlabFile));
  const uint64_t enough = std::max(kFdsOfUnit, needs.all());
  finding.remedy =
      seen->is_daemon
          ? fmt::format("systemctl edit terraced: [Service] LimitNOFILE={}", enough)
          : fmt::format("ulimit -Hn {} ({} in the unit), or a lower {}", enough, kFdsOfUnit,
                        is_refused ? "sessions_max" : "nvme.capacity_bytes");
  return finding;
}

std::vector<Finding> CheckFileSize(const Subject& subject) {
  const NvmeConfig& nvme = subject.config.nvme;
  const auto seen = LimitSeen(subject, "Max file size");
  if (!nvme.is_on() || !seen) return {};
  Finding finding{.check = "file size"};
  finding.found = fmt::format("{} {}; a slab file has {}", AmountOf(seen->limit.soft), seen->who,
                              FormatBytes(nvme.slab_bytes));
  if (seen->limit.soft >= nvme.slab_bytes) return {finding};
  finding.level = seen->is_daemon ? FindingLevel::kProblem : FindingLevel::kWarning;
  finding.meaning =
      "With this limit and configuration terraced refuses to start; where it came later, the "
      "drives' tier makes no more files.";
  finding.remedy =
      fmt::format("{}, or a lower nvme.slab_bytes",
                  seen->is_daemon ? "systemctl edit terraced: [Service] LimitFSIZE=infinity"
                                  : "ulimit -f unlimited");
  return {finding};
}

std::vector<Finding> CheckCores(const Subject& subject) {
  if (!subject.pid) return {};
  Finding finding{.check = "cores"};
  const std::string process = std::to_string(*subject.pid);
  const auto limit = ReadLimit(subject.files, process, "Max core file size");
  if (!limit) {
    finding.level = FindingLevel::kNote;
    finding.found = fmt::format("/proc/{}/limits cannot be read", process);
    return {finding};
  }
  const std::string command = subject.files.Read("/proc/" + process + "/cmdline").value_or("");
  const bool is_allowed = command.find("--allow-core-dumps") != std::string::npos;
  if (limit->soft == 0 && !is_allowed) {
    finding.found = "none of the daemon, and no other process of its user may attach to it";
    return {finding};
  }
  finding.level = FindingLevel::kWarning;
  finding.found = is_allowed ? "the daemon runs with --allow-core-dumps"
                             : fmt::format("of the daemon: {}", AmountOf(limit->soft));
  finding.meaning =
      "A core holds every tenant's bytes and secrets, and processes of the daemon's user may read "
      "its memory.";
  finding.remedy = is_allowed ? "start it without that option once the fault is found"
                              : "systemctl edit terraced: [Service] LimitCORE=0";
  return {finding};
}

}  // namespace terrace::tools

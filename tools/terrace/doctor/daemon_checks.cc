// The daemon that answers at the socket, or does not.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/terrace/cli/text_table.h"
#include "tools/terrace/doctor/checks.h"

namespace terrace::tools {
namespace {

// "0.2" of "0.2.0".
std::string_view MinorOf(std::string_view version) { return version.substr(0, version.rfind('.')); }

Finding CheckVersion(const Subject& subject) {
  Finding finding{.check = "version"};
  const std::string daemons = subject.stats->Text("version");
  finding.found = fmt::format("the daemon's {}, this command's {}",
                              daemons.empty() ? "unknown" : daemons, subject.version);
  if (daemons == subject.version) return finding;
  const bool is_near = MinorOf(daemons) == MinorOf(subject.version);
  finding.level = is_near ? FindingLevel::kNote : FindingLevel::kWarning;
  finding.meaning =
      "Neighbouring releases understand each other; what only one of them knows is missing in what "
      "this command shows.";
  finding.remedy = "upgrade both, then systemctl restart terraced, which keeps what is cached";
  return finding;
}

// Of a daemon that names its conditions; each sentence above has its own in more words.
std::string RemedyOf(const std::vector<std::string>& conditions) {
  constexpr std::pair<std::string_view, std::string_view> kRemedies[] = {
      {"bypassed", "sudo terrace drain --resume; `terrace log` says who bypassed it"},
      {"draining", "sudo terrace drain --resume; `terrace log` says who drained it"},
      {"arena_short", "free -h, or sysctl vm.nr_hugepages; daemon.dram_bytes"},
      {"drive_off", "dmesg and smartctl, for the drive"},
      {"drive_full", "df, for the drive; nvme.capacity_bytes"},
      {"drive_not_mounted", "findmnt, and mount the drive"},
      {"drive_loses_places", "sudo terrace fsck --online --repair"},
      {"slabs_left_alone", "journalctl -u terraced | grep 'nvme note'; secret_file; nvme.paths"},
      {"tier_above_limit", "terrace quota says how much is left to go"},
      {"blocks_too_large", "nvme.slab_bytes, and a restart"},
      {"files_at_limit", "systemctl edit terraced: LimitNOFILE=; nvme.capacity_bytes"},
      {"groups_not_kept", "df, ls -ld and findmnt, for the first of nvme.paths"},
      {"keys_not_erased", "ls -l, lsattr and findmnt, for keys/ of the domain's directory"},
      {"catalog_off", "df, ls -l and lsattr, for catalog/ on the first of nvme.paths"},
      {"redis_away", "the server, its login, the network"},
      {"redis_no_writes", "redis-cli config get maxmemory-policy"},
      {"fenced_memory", "terrace status: sessions that are gone or silent"},
      {"wrong_checksums", "terrace status: WRONG CHECKSUMS names the program"},
      {"kv_events_off", "journalctl -u terraced | grep 'kv events'"}};
  std::vector<std::string_view> remedies;
  for (const auto& [condition, remedy] : kRemedies) {
    if (std::ranges::find(conditions, condition) != conditions.end()) remedies.push_back(remedy);
  }
  return remedies.empty() ? "journalctl -u terraced" : fmt::format("{}", fmt::join(remedies, "; "));
}

Finding CheckHealth(const Subject& subject) {
  Finding finding{.check = "health"};
  const StatsView& stats = *subject.stats;
  const std::vector<std::string> troubles = stats.Texts("troubles");
  if (!troubles.empty()) {
    finding.level = FindingLevel::kProblem;
    finding.found = fmt::format("{}", fmt::join(troubles, "; "));
    finding.meaning = "The daemon serves on with what is left.";
    finding.remedy = RemedyOf(stats.Texts("conditions"));
    return finding;
  }
  const auto slow = stats.Count("turns_over_limit"), turns = stats.Count("turns");
  finding.found = fmt::format("{}, {} of {} turns slow",
                              stats.Text("health").empty() ? "unknown" : stats.Text("health"),
                              FormatCount(slow.value_or(0)), FormatCount(turns.value_or(0)));
  constexpr uint64_t kSlowTurnsOfMax = 1000;  // one in so many is a host's own noise
  if (slow && turns && *slow > *turns / kSlowTurnsOfMax && *slow > kSlowTurnsOfMax) {
    const auto starved = stats.Count("turns_starved");  // absent: a daemon that does not tell
    const bool is_starved = !starved || *starved > *slow / 2;
    finding.level = FindingLevel::kWarning;
    finding.meaning = fmt::format(
        "The store thread {}; the longest turn took {} us, for which every client waited.",
        is_starved ? "is starved of CPU" : "has more to do in a turn than it should",
        FormatCount(stats.Count("turn_us_max").value_or(0)));
    finding.remedy =
        is_starved ? "systemctl edit terraced: [Service] CPUWeight=1000, or AllowedCPUs= of its own"
                   : "journalctl -u terraced | grep 'slow turns' names what takes long";
  }
  return finding;
}

Finding CheckHolder(const Subject& subject) {
  Finding finding{.check = "held memory"};
  const std::string holder = subject.stats->Text("dram_holder");
  finding.found = holder == "nobody" ? "nobody holds the arenas beside the daemon"
                                     : fmt::format("{} holds the arenas, too",
                                                   holder.empty() ? "unknown" : holder);
  if (holder != "nobody") return finding;
  finding.level = FindingLevel::kNote;
  finding.meaning = "A restart or a crash empties DRAM.";
  finding.remedy =
      "FileDescriptorStoreMax=4096 in the unit, or terraced --keeper and keeper_socket";
  return finding;
}

// Memory of clients that are gone and not known to have ended, near its limit.
Finding CheckFenced(const Subject& subject) {
  Finding finding{.check = "fenced"};
  const uint64_t fenced_bytes = subject.stats->Count("fenced_bytes").value_or(0) +
                                subject.stats->Count("inherited_bytes").value_or(0);
  const uint64_t most_bytes =
      subject.stats->Count("fenced_bytes_max").value_or(subject.config.fenced_bytes_max);
  finding.found =
      fmt::format("{} of clients that are gone and may still live", FormatBytes(fenced_bytes));
  if (most_bytes == 0 || fenced_bytes < most_bytes / 2) return finding;
  finding.level = fenced_bytes >= most_bytes ? FindingLevel::kProblem : FindingLevel::kWarning;
  finding.found += fmt::format("; the limit is {}", FormatBytes(most_bytes));
  finding.meaning = "At the limit nothing more is stored.";
  finding.remedy =
      "terrace status: sessions whose STATE is gone or silent; their processes must go on or end";
  return finding;
}

std::optional<Finding> CheckShared(const Subject& subject) {
  const StatsView& stats = *subject.stats;
  if (stats.Text("redis.is_ready").empty()) return std::nullopt;
  Finding finding{.check = "Redis tier", .found = "ready, as the daemon sees it"};
  if (stats.Text("redis.is_ready") == "true") return finding;
  finding.level = FindingLevel::kProblem;
  finding.found = fmt::format("away: {}", stats.Text("redis.trouble"));
  finding.meaning = "What other hosts stored is a miss until it is back.";
  if (stats.Text("redis.is_tls_refused") == "true") {
    finding.remedy = "certificates: [redis] tls_ca_file, tls_certificate_file, or the server's";
  } else if (stats.Text("redis.is_of_another_kind") == "true") {
    finding.remedy = "[redis] mode, endpoints and master_name, then a restart";
  } else if (stats.Text("redis.is_refused") == "true") {
    finding.remedy = "the login: [redis] credentials_file, or the server's ACL";
  } else {
    finding.remedy = "the server, the network, or IPAddressAllow= of the unit";
  }
  return finding;
}

// Where somebody is to ask over HTTP, and cannot.
std::optional<Finding> CheckMetrics(const Subject& subject) {
  const std::string trouble = subject.stats->Text("metrics_trouble");
  if (trouble.empty()) return std::nullopt;
  return Finding{.check = "metrics",
                 .level = FindingLevel::kWarning,
                 .found = "not served: " + trouble,
                 .meaning = "Prometheus and probes hear nothing; the daemon tries every 5 s.",
                 .remedy =
                     "sudo ss -ltnp says who has the port: free it, or name another in "
                     "[metrics] listen, and restart terraced"};
}

// Who listens is in the socket's lock, by number; of systemd's own sockets it may be nobody.
std::string RemedyOfMute(const Subject& subject) {
  constexpr char kLog[] = "journalctl -u terraced says how far it is";
  const auto pid = subject.files.ReadNumber(subject.socket_path + ".lock");
  const std::string process = pid ? "/proc/" + std::to_string(*pid) : "";
  const auto name = pid ? subject.files.Read(process + "/comm") : std::nullopt;
  if (!name || !name->starts_with("terraced")) {
    return fmt::format("sudo ss -xlp | grep {} names the process; {}", subject.socket_path, kLog);
  }
  const std::string state = subject.files.ReadField(process + "/status", "State").value_or("?");
  const bool is_stopped = state.starts_with('T') || state.starts_with('t');
  if (is_stopped)
    return fmt::format("sudo kill -CONT {0}: process {0} is in state {1}", *pid, state);
  return fmt::format("{}; its process {} is in state {}", kLog, *pid, state);
}

}  // namespace

Finding CheckSocket(const Subject& subject) {
  Finding finding{.check = "socket"};
  if (subject.socket_state == SocketState::kAnswers) {
    finding.found =
        fmt::format("{}: domain {} answers {}", subject.socket_path,
                    subject.stats ? subject.stats->Text("domain.name") : "-", subject.own.name);
    return finding;
  }
  finding.found = subject.socket_why;
  if (subject.socket_state == SocketState::kDenied) {
    finding.level = FindingLevel::kProblem;
    finding.meaning = "Engines of this user go on without the cache.";
    // Where its directory keeps this user out, as it was installed.
    const std::string group = subject.socket_group.empty() ? "terrace" : subject.socket_group;
    const bool is_of_users = group != "root" && !group.starts_with("gid ");
    finding.remedy =
        is_of_users
            ? fmt::format("sudo usermod -aG {} {}, and a new login", group, subject.own.name)
            : fmt::format(
                  "sudo; the socket's group is {}: chgrp it to one of users who are to "
                  "reach the domain, and add {} there",
                  group, subject.own.name);
    return finding;
  }
  if (subject.socket_state == SocketState::kRefused) {
    finding.level = FindingLevel::kProblem;
    finding.meaning = "Engines of this user go on without the cache.";
    finding.remedy =
        "the key that the sentence names, then sudo systemctl reload terraced; or sudo, to look";
    return finding;
  }
  if (subject.socket_state == SocketState::kMute) {
    finding.level = FindingLevel::kProblem;
    finding.meaning =
        "A process listens, and does not answer: it is stopped, hangs, or still loads its index. "
        "Engines wait until their deadlines, and go on without the cache.";
    finding.remedy = RemedyOfMute(subject);
    return finding;
  }
  // A host without a daemon is looked at before one is started, too.
  finding.level = subject.is_socket_named ? FindingLevel::kProblem : FindingLevel::kWarning;
  finding.meaning = "Without a daemon its own limits, health and tiers are not looked at.";
  finding.remedy = "journalctl -u terraced, if it ought to run: it says why it ended";
  return finding;
}

std::vector<Finding> CheckDaemon(const Subject& subject) {
  if (!subject.stats) return {};
  std::vector<Finding> findings = {CheckVersion(subject), CheckHealth(subject),
                                   CheckHolder(subject), CheckFenced(subject)};
  if (auto shared = CheckShared(subject)) findings.push_back(std::move(*shared));
  if (auto metrics = CheckMetrics(subject)) findings.push_back(std::move(*metrics));
  return findings;
}

std::vector<Finding> Examine(const Subject& subject) {
  std::vector<Finding> all = {
      CheckKernel(subject),       CheckProcessor(subject),    CheckClock(subject),
      CheckNodes(subject),        CheckConfig(subject),       CheckMemory(subject),
      CheckHugePages(subject),    CheckSharedMemory(subject), CheckRing(subject),
      CheckLockedMemory(subject), CheckOpenFiles(subject),    CheckGpu(subject),
      CheckSocket(subject)};
  for (const auto check : {CheckDaemon, CheckFileSize, CheckCores}) {
    for (Finding& finding : check(subject)) all.push_back(std::move(finding));
  }
  // Of defaults there are none.
  if (subject.config_state != ConfigState::kRead) return all;
  for (const auto check : {CheckSecrets, CheckFiles, CheckDirectories, CheckVolumes, CheckSpace,
                           CheckDrives, CheckRedis}) {
    for (Finding& finding : check(subject)) all.push_back(std::move(finding));
  }
  return all;
}

}  // namespace terrace::tools

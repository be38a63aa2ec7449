// What the configuration names beside drives: itself, secrets, directories, servers.
#include <fmt/core.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "src/masked_address.h"
#include "tools/terrace/doctor/checks.h"
#include "tools/terrace/doctor/file_access.h"

namespace terrace::tools {
namespace {

constexpr uint32_t kPermissionBits = 07777;

Finding CheckSecret(const Subject& subject, const DomainConfig& domain) {
  Finding finding{.check = "secret"};
  const std::string& path = domain.secret_file;
  int error = 0;
  const auto file = subject.calls.Stat(path, &error);
  if (!file && error == ENOENT && domain.is_secret_file_default) {
    finding.found = fmt::format("{} is not there yet: the first start draws it", path);
    if (!subject.stats) return finding;
    finding.level = FindingLevel::kNote;
    finding.meaning = "A daemon answers, so it keeps its secret elsewhere.";
    return finding;
  }
  if (!file && error == ENOENT) {
    finding.level = FindingLevel::kProblem;
    finding.found = fmt::format("{} of domain {} is not there", path, domain.name);
    finding.meaning = "terraced refuses to start: a secret that is named is never drawn.";
    finding.remedy = fmt::format("sudo -u {} terrace domain new {}", subject.daemon.name, path);
    return finding;
  }
  if (!file) {
    MarkUnseen(subject, path, error, &finding);
  } else {
    JudgeSecretFile(subject, path, *file, "Who has it can make keys and checksums of every tenant.",
                    &finding);
  }
  return finding;
}

constexpr char kNoTraces[] =
    "terraced starts without it. A recording of requests makes it where its parent lets it, and "
    "ends at once else.";

constexpr char kNotMade[] =
    "The start cannot make it: terraced refuses to start, or, of a drive that has served before, "
    "serves without it.";

// The daemon makes its own state directory, a drive's, and those of domains inside that.
void JudgeMissing(const Subject& subject, const std::string& key, const std::string& path,
                  Finding* finding) {
  finding->found = fmt::format("{} ({}) is not there", path, key);
  finding->remedy = fmt::format("sudo install -d -m 700 -o {} {}", subject.daemon.name, path);
  if (key == "trace_dir") {
    finding->level = FindingLevel::kWarning;
    finding->meaning = kNoTraces;
    return;
  }
  const Making making = MakingOf(
      subject, path, key == "state_dir" ? MissingParents::kMade : MissingParents::kRefused);
  finding->level = FindingLevel::kNote;
  if (making.is_units) {
    finding->meaning = "systemd makes it before the start, as the unit says.";
    finding->remedy = "";
  } else if (!making.is_seen) {
    finding->meaning =
        fmt::format("Whether the start can make it, {} may not see.", subject.own.name);
    finding->remedy = subject.command_as_root;
  } else if (making.why_not.empty()) {
    finding->meaning = "The start makes it.";
    finding->remedy = "";
  } else {
    finding->level = FindingLevel::kProblem;
    finding->found += ", and " + making.why_not;
    finding->meaning = kNotMade;
  }
}

Finding CheckDirectory(const Subject& subject, const std::string& key, const std::string& path) {
  Finding finding{.check = "directory"};
  int error = 0;
  const auto file = subject.calls.Stat(path, &error);
  const UserFacts& user = subject.daemon;
  const bool is_for_traces = key == "trace_dir";
  if (!file && (error == ENOENT || error == ENOTDIR)) {
    JudgeMissing(subject, key, path, &finding);
    return finding;
  }
  if (!file) {
    MarkUnseen(subject, fmt::format("{} ({})", path, key), error, &finding);
    return finding;
  }
  finding.found = fmt::format("{} ({}): writable for {}", path, key, user.name);
  if (S_ISDIR(file->mode) && MayWrite(*file, user)) return finding;
  finding.level = is_for_traces ? FindingLevel::kWarning : FindingLevel::kProblem;
  if (!S_ISDIR(file->mode)) {
    finding.found = fmt::format("{} ({}) is no directory", path, key);
    finding.remedy = fmt::format("[nvme] or [daemon] {}: name a directory", key);
  } else {
    finding.found = fmt::format("{} ({}): mode {:04o}, of uid {}: {} may not write", path, key,
                                file->mode & kPermissionBits, file->uid, user.name);
    finding.remedy = fmt::format("sudo chown {} {}", user.chown_name(), path);
  }
  finding.meaning = is_for_traces ? kNoTraces : "terraced refuses to start.";
  return finding;
}

// Where a start binds its socket. It is never made: a place that others may write to must be
// somebody's choice.
std::optional<Finding> CheckSocketDirectory(const Subject& subject, const std::string& directory) {
  Finding finding{.check = "directory"};
  const UserFacts& user = subject.daemon;
  const std::string about = fmt::format("{} (socket)", directory);
  // Of a directory that is there others may have need.
  finding.remedy = fmt::format("[[domain]] socket: name one in a directory of {}", user.name);
  int error = 0;
  const auto file = subject.calls.Stat(directory, &error);
  if (file && S_ISDIR(file->mode)) {
    // systemd makes the sockets of its own units, and one that answers has been made.
    if (subject.is_config_daemons || subject.stats) return std::nullopt;
    if (MayWrite(*file, user) && MayEnter(*file, user)) return std::nullopt;
    finding.found = fmt::format("{}: mode {:04o}, of uid {}: {} may not write", about,
                                file->mode & kPermissionBits, file->uid, user.name);
  } else if (file) {
    finding.found = about + " is no directory";
  } else if (error != ENOENT && error != ENOTDIR) {
    MarkUnseen(subject, about, error, &finding);
    return finding;
  } else if (MakingOf(subject, directory, MissingParents::kRefused).is_units) {
    return std::nullopt;
  } else {
    finding.found = about + " is not there, and the start does not make it";
    finding.remedy = fmt::format("sudo install -d -m 750 -o {} {}", user.name, directory);
  }
  finding.level = FindingLevel::kProblem;
  finding.meaning = "terraced refuses to start.";
  return finding;
}

}  // namespace

Finding CheckConfig(const Subject& subject) {
  Finding finding{.check = "configuration"};
  switch (subject.config_state) {
    case ConfigState::kRead: {
      const size_t drives = subject.config.nvme.paths.size();
      finding.found = fmt::format(
          "{}: {} domain{}, {} drive{}, {}", subject.config_path, subject.config.domains.size(),
          subject.config.domains.size() == 1 ? "" : "s", drives, drives == 1 ? "" : "s",
          subject.config.redis.is_on() ? "Redis" : "no Redis");
      for (const DomainConfig& domain : subject.config.domains) {
        if (!domain.admits_nobody()) continue;
        finding.level = FindingLevel::kWarning;
        finding.found += fmt::format("; domain {} admits nobody", domain.name);
        finding.meaning = "Engines of every user go on without the cache.";
        finding.remedy = "name somebody in its allow_uids or allow_gids, or set neither";
      }
      if (!subject.is_config_daemons) return finding;
      int unused_error = 0;
      const auto file = subject.calls.Stat(subject.config_path, &unused_error);
      const auto unreadable =
          file ? WhyUnreadable(subject, subject.config_path, *file) : std::nullopt;
      if (!unreadable) return finding;
      finding.level = FindingLevel::kProblem;
      finding.found = fmt::format("{}: {}", subject.config_path, unreadable->why);
      finding.meaning = "terraced refuses to start: it reads the file as that user.";
      finding.remedy = unreadable->remedy;
      return finding;
    }
    case ConfigState::kAbsent:
      finding.level = FindingLevel::kNote;
      finding.found =
          fmt::format("{} is not there: what follows is about the defaults{}", subject.config_path,
                      subject.pid ? ", and what the daemon's command line says" : "");
      finding.remedy = "terrace doctor --config FILE";
      return finding;
    case ConfigState::kUnread:
      finding.level = FindingLevel::kNote;
      finding.found = subject.config_why;
      finding.meaning =
          "Secrets, drives and servers are not looked at; the rest is about defaults.";
      finding.remedy = subject.command_as_root;
      return finding;
    case ConfigState::kGone:
      finding.level = FindingLevel::kNote;
      finding.found =
          fmt::format("{}, which terraced was started with, is no file that can be read again",
                      subject.config_path);
      finding.meaning =
          "Secrets, drives and servers are not looked at; the rest is about defaults.";
      finding.remedy = "terrace config get";
      return finding;
    case ConfigState::kRefused:
      break;
  }
  finding.level = FindingLevel::kProblem;
  finding.found = subject.config_why;
  finding.meaning = "terraced refuses to start with it.";
  finding.remedy = fmt::format("terraced --check-config --config {}", subject.config_path);
  return finding;
}

std::vector<Finding> CheckSecrets(const Subject& subject) {
  std::vector<Finding> findings;
  for (const DomainConfig& domain : subject.config.domains) {
    findings.push_back(CheckSecret(subject, domain));
  }
  return findings;
}

std::vector<Finding> CheckDirectories(const Subject& subject) {
  std::vector<Finding> findings;
  const DaemonConfig& config = subject.config;
  if (!config.state_dir.empty()) {
    findings.push_back(CheckDirectory(subject, "state_dir", config.state_dir));
  }
  if (!config.trace_dir.empty()) {
    findings.push_back(CheckDirectory(subject, "trace_dir", config.trace_dir));
  }
  for (const std::string& path : config.nvme.paths) {
    findings.push_back(CheckDirectory(subject, "paths", path));
  }
  std::set<std::string> directories;
  for (const DomainConfig& domain : config.domains) {
    if (domain.socket_path.empty()) continue;
    const std::string directory = std::filesystem::path(domain.socket_path).parent_path();
    if (!directories.insert(directory).second) continue;
    auto finding = CheckSocketDirectory(subject, directory);
    if (finding) findings.push_back(std::move(*finding));
  }
  return findings;
}

std::vector<Finding> CheckRedis(const Subject& subject) {
  std::vector<Finding> findings;
  const RedisConfig& redis = subject.config.redis;
  for (const std::string& endpoint : redis.endpoints) {
    Finding& finding = findings.emplace_back(Finding{.check = "Redis"});
    const std::string why =
        subject.calls.WhyNoRedis(endpoint, redis.connect_timeout_ms, redis.tls == RedisTlsUse::kOn);
    finding.found = MaskedAddress(endpoint) + (why.empty() ? " answers" : ": " + why);
    if (why.empty()) continue;
    finding.level = FindingLevel::kProblem;
    finding.meaning =
        "What other hosts stored is a miss, and nothing is shared with them. The daemon serves on "
        "from its own memory and drives.";
    finding.remedy =
        "the server, a firewall, or IPAddressAllow= of the unit (systemctl edit terraced)";
  }
  return findings;
}

}  // namespace terrace::tools

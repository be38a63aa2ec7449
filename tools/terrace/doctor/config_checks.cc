// What the configuration names beside drives: itself, secrets, directories, servers.
#include <fmt/core.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>

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

Finding CheckDirectory(const Subject& subject, const std::string& key, const std::string& path) {
  Finding finding{.check = "directory"};
  int error = 0;
  const auto file = subject.calls.Stat(path, &error);
  const UserFacts& user = subject.daemon;
  const bool is_for_traces = key == "trace_dir";
  if (!file && error == ENOENT) {
    // The daemon makes its own state directory, a drive's, and those of domains inside that.
    finding.level = is_for_traces ? FindingLevel::kWarning : FindingLevel::kNote;
    finding.found = fmt::format("{} ({}) is not there", path, key);
    finding.meaning = is_for_traces ? kNoTraces : "The start makes it, where its parent lets it.";
    finding.remedy = fmt::format("sudo install -d -m 700 -o {} {}", user.name, path);
    return finding;
  }
  if (!file) {
    finding.level = FindingLevel::kNote;
    finding.found = fmt::format("{} ({}): {} may not look ({})", path, key, subject.own.name,
                                std::strerror(error));
    finding.remedy = "sudo terrace doctor";
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
    finding.remedy = fmt::format("sudo chown {} {}", user.name, path);
  }
  finding.meaning = is_for_traces ? kNoTraces : "terraced refuses to start.";
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
          fmt::format("{} is not there: what follows is about the defaults", subject.config_path);
      finding.remedy = "terrace doctor --config FILE";
      return finding;
    case ConfigState::kUnread:
      finding.level = FindingLevel::kNote;
      finding.found = subject.config_why;
      finding.meaning =
          "Secrets, drives and servers are not looked at; the rest is about defaults.";
      finding.remedy = "sudo terrace doctor";
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
  return findings;
}

std::vector<Finding> CheckRedis(const Subject& subject) {
  std::vector<Finding> findings;
  const RedisConfig& redis = subject.config.redis;
  for (const std::string& endpoint : redis.endpoints) {
    Finding& finding = findings.emplace_back(Finding{.check = "Redis"});
    const std::string why =
        subject.calls.WhyNoRedis(endpoint, redis.connect_timeout_ms, redis.tls == RedisTlsUse::kOn);
    finding.found = endpoint + (why.empty() ? " answers" : ": " + why);
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

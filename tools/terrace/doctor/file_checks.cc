// Files that the configuration names beside the domains' secrets: keys, a login, certificates.
#include <fmt/core.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "tools/terrace/doctor/checks.h"
#include "tools/terrace/doctor/file_access.h"

namespace terrace::tools {
namespace {

struct NamedFile {
  std::string check;
  std::string key;  // "redis.tls_key_file"
  std::string path;
  std::string exposed;  // what follows if others may have read it; empty: it is no secret
};

Finding CheckFile(const Subject& subject, const NamedFile& named) {
  Finding finding{.check = named.check};
  const std::string& path = named.path;
  int error = 0;
  const auto file = subject.calls.Stat(path, &error);
  if (!file && error == ENOENT) {
    const bool is_made = IsCredential(path);
    finding.level = is_made ? FindingLevel::kNote : FindingLevel::kProblem;
    finding.found = fmt::format("{} ({}) is not there", path, named.key);
    finding.meaning = is_made ? "systemd makes it at the start, of LoadCredential= in the unit."
                              : "terraced refuses to start.";
    finding.remedy = is_made ? "systemctl cat terraced" : "put the file there, or drop the key";
    return finding;
  }
  if (!file) {
    MarkUnseen(subject, path, error, &finding);
  } else if (!named.exposed.empty()) {
    JudgeSecretFile(subject, path, *file, named.exposed, &finding);
  } else if (const auto unreadable = WhyUnreadable(subject, path, *file)) {
    finding.level = FindingLevel::kProblem;
    finding.found = fmt::format("{} ({}): {}", path, named.key, unreadable->why);
    finding.meaning = "terraced refuses to start: it reads the file as that user.";
    finding.remedy = unreadable->remedy;
  } else {
    finding.found = fmt::format("{} ({}): readable for {}", path, named.key, subject.daemon.name);
  }
  return finding;
}

}  // namespace

std::vector<Finding> CheckFiles(const Subject& subject) {
  std::vector<NamedFile> files;
  for (const DomainConfig& domain : subject.config.domains) {
    files.push_back({.check = "keys",
                     .key = fmt::format("encryption_keys_file of domain {}", domain.name),
                     .path = domain.encryption_keys_file,
                     .exposed = "Who has it can read what lies on drives and on Redis."});
  }
  const RedisConfig& redis = subject.config.redis;
  files.push_back({.check = "credentials",
                   .key = "redis.credentials_file",
                   .path = redis.credentials_file,
                   .exposed = "Who has it can log in to Redis."});
  const std::pair<const char*, std::string> certificates[] = {
      {"redis.tls_ca_file", redis.tls_ca_file},
      {"redis.tls_certificate_file", redis.tls_certificate_file},
      {"redis.tls_key_file", redis.tls_key_file}};
  for (const auto& [key, path] : certificates) {
    files.push_back({.check = "TLS file", .key = key, .path = path, .exposed = ""});
  }
  std::vector<Finding> findings;
  for (const NamedFile& file : files) {
    if (!file.path.empty()) findings.push_back(CheckFile(subject, file));
  }
  return findings;
}

}  // namespace terrace::tools

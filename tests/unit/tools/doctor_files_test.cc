// Whether the daemon's user may read what the configuration names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/tools/fake_host.h"
#include "tools/terrace/doctor/checks.h"

namespace terrace::tools {
namespace {

using enum FindingLevel;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(DoctorFiles, ASecretThatOnlyRootMayReadIsNoneOfTheDaemons) {
  FakeHost host;
  Subject subject = host.Make();
  host.stats["/secret"] = {.mode = S_IFREG | 0600, .uid = 0};
  const Finding finding = CheckSecrets(subject)[0];
  EXPECT_EQ(finding.level, kProblem);
  EXPECT_THAT(finding.found, HasSubstr("terrace may not read it"));
  EXPECT_EQ(finding.remedy, "sudo chown terrace: /secret");
  subject.daemon = {.uid = 1234, .gids = {1234}, .name = "uid 1234"};
  EXPECT_EQ(CheckSecrets(subject)[0].remedy, "sudo chown 1234 /secret")
      << "which has no login group";
  subject.daemon = {.uid = 0, .gids = {0}, .name = "root"};
  EXPECT_EQ(CheckSecrets(subject)[0].level, kOk);
}

TEST(DoctorFiles, ADirectoryThatTheDaemonMayNotEnterKeepsItFromTheFile) {
  FakeHost host;
  Subject subject = host.Make();
  subject.config.domains[0].secret_file = "/etc/terrace/secret";
  host.stats["/etc/terrace/secret"] = {.mode = S_IFREG | 0600, .uid = 998};
  host.stats["/etc/terrace"] = {.mode = S_IFDIR | 0700, .uid = 0};
  EXPECT_EQ(CheckSecrets(subject)[0].level, kProblem);
  EXPECT_THAT(CheckSecrets(subject)[0].found,
              HasSubstr("/etc/terrace has mode 0700, of uid 0: terrace may not enter it"));
  host.stats["/etc/terrace"] = {.mode = S_IFDIR | 0750, .uid = 0, .gid = 997};
  EXPECT_EQ(CheckSecrets(subject)[0].level, kOk);
}

TEST(DoctorFiles, KeysALoginAndCertificatesAreReadByTheDaemon) {
  FakeHost host;
  Subject subject = host.Make();
  EXPECT_TRUE(CheckFiles(subject).empty());
  subject.config.domains[0].encryption_keys_file = "/keys";
  subject.config.redis.credentials_file = "/login";
  subject.config.redis.tls_ca_file = "/ca";
  subject.config.redis.tls_certificate_file = "/certificate";
  subject.config.redis.tls_key_file = "/key";
  ASSERT_EQ(CheckFiles(subject).size(), 5u);
  for (const Finding& finding : CheckFiles(subject)) {
    EXPECT_EQ(finding.level, kProblem) << finding.found;
    EXPECT_THAT(finding.found, HasSubstr("is not there"));
  }
  for (const char* path : {"/keys", "/login", "/ca", "/certificate", "/key"}) {
    host.stats[path] = {.mode = S_IFREG | 0600, .uid = 0};
  }
  for (const Finding& finding : CheckFiles(subject)) {
    EXPECT_EQ(finding.level, kProblem) << finding.found;
    EXPECT_THAT(finding.remedy, HasSubstr("sudo chown terrace: /"));
  }
  for (auto& [path, file] : host.stats) file.uid = 998;
  for (const Finding& finding : CheckFiles(subject)) {
    EXPECT_EQ(finding.level, kOk) << finding.found;
    EXPECT_THAT(finding.found, HasSubstr("readable for terrace"));
  }
  // By its group a certificate may be read, and a secret may not.
  for (auto& [path, file] : host.stats) file = {.mode = S_IFREG | 0640, .uid = 0, .gid = 997};
  const auto findings = CheckFiles(subject);
  for (size_t i = 0; i < findings.size(); ++i) {
    EXPECT_EQ(findings[i].level, i < 2 ? kProblem : kOk) << findings[i].found;
  }
  EXPECT_THAT(findings[0].meaning, HasSubstr("others may have read it"));
  host.stats.clear();
  host.denied = true;
  for (const Finding& finding : CheckFiles(subject)) EXPECT_EQ(finding.level, kNote);
}

TEST(DoctorFiles, ACredentialOfSystemdIsTheUnitsAndMayHaveItsGroupsBit) {
  FakeHost host;
  Subject subject = host.Make();
  const std::string path = "/run/credentials/terraced.service/chat.keys";
  subject.config.domains[0].encryption_keys_file = path;
  EXPECT_EQ(CheckFiles(subject)[0].level, kNote) << "the start makes it";
  host.stats[path] = {.mode = S_IFREG | 0440, .uid = 0};
  EXPECT_EQ(CheckFiles(subject)[0].level, kOk);
  host.stats[path].mode = S_IFREG | 0444;
  EXPECT_EQ(CheckFiles(subject)[0].level, kProblem);
}

TEST(DoctorFiles, TheConfigurationItselfIsReadByTheDaemonUnlessItIsADraft) {
  FakeHost host;
  Subject subject = host.Make();
  host.stats[subject.config_path] = {.mode = S_IFREG | 0600, .uid = 0};
  EXPECT_EQ(CheckConfig(subject).level, kOk);
  subject.is_config_daemons = true;
  EXPECT_EQ(CheckConfig(subject).level, kProblem);
  EXPECT_THAT(CheckConfig(subject).found,
              AllOf(HasSubstr(subject.config_path), HasSubstr("terrace may not read it")));
  host.stats[subject.config_path].mode = S_IFREG | 0644;
  EXPECT_EQ(CheckConfig(subject).level, kOk);
}

}  // namespace
}  // namespace terrace::tools

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "terrace/units.h"
#include "tests/unit/tools/fake_host.h"
#include "tools/terrace/doctor/checks.h"
#include "tools/terrace/doctor/gather.h"
#include "tools/terrace/doctor/report.h"

namespace terrace::tools {
namespace {

using enum FindingLevel;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// ---- configuration, secrets, directories, Redis ----

TEST(DoctorConfig, WhatWasReadIsInOrderAndWhatWasRefusedIsAProblem) {
  const FakeHost host;
  Subject subject = host.Make();
  EXPECT_EQ(CheckConfig(subject).level, kOk);
  subject.config_state = ConfigState::kAbsent;
  EXPECT_EQ(CheckConfig(subject).level, kNote);
  subject.config_state = ConfigState::kUnread;
  EXPECT_EQ(CheckConfig(subject).level, kNote);
  subject.config_state = ConfigState::kGone;
  EXPECT_EQ(CheckConfig(subject).level, kNote);
  EXPECT_THAT(CheckConfig(subject).remedy, HasSubstr("terrace config get"));
  subject.config_state = ConfigState::kRefused;
  subject.config_why = "daemon.dram_bytes is 0";
  EXPECT_EQ(CheckConfig(subject).level, kProblem);
  EXPECT_EQ(CheckConfig(subject).found, "daemon.dram_bytes is 0");
}

TEST(DoctorConfig, ADomainThatNobodyMayUseIsAWarning) {
  const FakeHost host;
  Subject subject = host.Make();
  DomainConfig& domain = subject.config.domains[0];
  domain.allow_gids.emplace();
  EXPECT_EQ(CheckConfig(subject).level, kWarning);
  EXPECT_THAT(CheckConfig(subject).found, HasSubstr("domain " + domain.name + " admits nobody"));
  domain.allow_uids = {1000};
  EXPECT_EQ(CheckConfig(subject).level, kOk);
}

TEST(DoctorConfig, ASecretIsTheDaemonsAndNobodyElsesToRead) {
  FakeHost host;
  const Subject subject = host.Make();
  host.stats["/secret"] = {.mode = S_IFREG | 0600, .uid = 998};
  EXPECT_EQ(CheckSecrets(subject)[0].level, kOk);
  host.stats["/secret"] = {.mode = S_IFREG | 0400, .uid = 998};
  EXPECT_EQ(CheckSecrets(subject)[0].level, kOk);
  host.stats["/secret"] = {.mode = S_IFREG | 0640, .uid = 998};
  EXPECT_EQ(CheckSecrets(subject)[0].level, kProblem);
  EXPECT_THAT(CheckSecrets(subject)[0].remedy, HasSubstr("chmod 600 /secret"));
  host.stats["/secret"] = {.mode = S_IFREG | 0600, .uid = 1000};
  EXPECT_EQ(CheckSecrets(subject)[0].level, kProblem);
  EXPECT_THAT(CheckSecrets(subject)[0].remedy, HasSubstr("chown terrace: /secret"));
}

TEST(DoctorConfig, ASecretThatIsMissingIsAProblemUnlessItWillBeDrawn) {
  FakeHost host;
  Subject subject = host.Make();
  EXPECT_EQ(CheckSecrets(subject)[0].level, kProblem);
  subject.config.domains[0].is_secret_file_default = true;
  EXPECT_EQ(CheckSecrets(subject)[0].level, kOk);
  host.denied = true;  // it cannot be told
  EXPECT_EQ(CheckSecrets(subject)[0].level, kNote);
}

TEST(DoctorConfig, ADirectoryIsThereAndWritableForTheDaemon) {
  FakeHost host;
  Subject subject = host.MakeWithDrive();
  EXPECT_EQ(CheckDirectories(subject)[0].level, kOk);
  host.stats["/mnt/d"].uid = 0;
  EXPECT_EQ(CheckDirectories(subject)[0].level, kProblem);
  host.stats["/mnt/d"].mode = S_IFDIR | 0770;  // by its group
  EXPECT_EQ(CheckDirectories(subject)[0].level, kOk);
  host.stats["/mnt/d"].mode = S_IFREG | 0666;
  EXPECT_EQ(CheckDirectories(subject)[0].level, kProblem);
  host.stats.erase("/mnt/d");
  host.stats["/mnt"] = {.mode = S_IFDIR | 0700, .uid = 998};
  EXPECT_EQ(CheckDirectories(subject)[0].level, kNote) << "the start makes it";
  EXPECT_EQ(CheckDirectories(subject)[0].remedy, "");
  host.denied = true;
  EXPECT_EQ(CheckDirectories(subject)[0].level, kNote);
}

TEST(DoctorConfig, AStateDirectoryIsMadeByTheStartOrBySystemdWithAllThatItLiesIn) {
  FakeHost host;
  Subject subject = host.Make();
  subject.config.state_dir = "/var/lib/terrace";
  EXPECT_EQ(CheckDirectories(subject)[0].level, kProblem) << "/ is root's";
  EXPECT_THAT(CheckDirectories(subject)[0].found, HasSubstr("terrace may not write there"));
  host.stats["/var"] = {.mode = S_IFDIR | 0700, .uid = 998};
  EXPECT_EQ(CheckDirectories(subject)[0].level, kNote);
  host.stats.erase("/var");
  subject.unit_directories = {"/var/lib/terrace"};
  EXPECT_EQ(CheckDirectories(subject)[0].level, kNote);
  EXPECT_THAT(CheckDirectories(subject)[0].meaning, HasSubstr("systemd makes it"));
}

TEST(DoctorConfig, ADirectoryOfADriveThatTheStartCannotMakeIsAProblem) {
  FakeHost host;
  Subject subject = host.MakeWithDrive();
  subject.config.nvme.paths = {"/mnt/none/drive"};
  const auto only = [&subject] { return CheckDirectories(subject).at(0); };
  host.stats["/mnt"] = {.mode = S_IFDIR | 0700, .uid = 998};
  EXPECT_EQ(only().level, kProblem) << "it makes one, and not those above";
  EXPECT_EQ(only().found,
            "/mnt/none/drive (paths) is not there, and its parent /mnt/none is not there");
  EXPECT_EQ(only().remedy, "sudo install -d -m 700 -o terrace /mnt/none/drive");
  host.stats["/mnt/none"] = {.mode = S_IFDIR | 0755, .uid = 0};
  EXPECT_EQ(only().level, kProblem);
  EXPECT_THAT(only().found, HasSubstr("/mnt/none has mode 0755, of uid 0: terrace may not write"));
  host.stats["/mnt/none"].mode = S_IFREG | 0777;
  EXPECT_THAT(only().found, HasSubstr("/mnt/none is no directory"));
  host.stats["/mnt/none"] = {.mode = S_IFDIR | 0700, .uid = 998};
  EXPECT_EQ(only().level, kNote);
  host.stats.erase("/mnt/none");
  subject.unit_directories = {"/mnt/none"};
  EXPECT_EQ(only().level, kNote) << "systemd makes that";
  subject.unit_directories.clear();
  host.denied = true;
  subject.command_as_root = "sudo terrace doctor --config /f";
  EXPECT_EQ(only().level, kNote);
  EXPECT_EQ(only().remedy, subject.command_as_root);
}

TEST(DoctorConfig, ADirectoryOfASocketIsThereBeforeTheStartAndWritableForTheDaemon) {
  FakeHost host;
  Subject subject = host.Make();
  for (const char* name : {"a", "b"}) {
    subject.config.domains.push_back({.name = name});
    subject.config.domains.back().socket_path = std::string("/run/terrace/") + name + ".sock";
  }
  ASSERT_EQ(CheckDirectories(subject).size(), 1u) << "two sockets, one directory";
  EXPECT_EQ(CheckDirectories(subject)[0].level, kProblem);
  EXPECT_EQ(CheckDirectories(subject)[0].found,
            "/run/terrace (socket) is not there, and the start does not make it");
  EXPECT_THAT(CheckDirectories(subject)[0].remedy,
              HasSubstr("install -d -m 750 -o terrace /run/terrace"));
  subject.unit_directories = {"/run/terrace"};
  EXPECT_TRUE(CheckDirectories(subject).empty()) << "systemd makes it";
  subject.unit_directories.clear();
  host.stats["/run/terrace"] = {.mode = S_IFDIR | 0755, .uid = 0};
  EXPECT_EQ(CheckDirectories(subject)[0].level, kProblem);
  EXPECT_THAT(CheckDirectories(subject)[0].found, HasSubstr("terrace may not write"));
  EXPECT_THAT(CheckDirectories(subject)[0].remedy, Not(HasSubstr("install"))) << "it is not ours";
  subject.is_config_daemons = true;
  EXPECT_TRUE(CheckDirectories(subject).empty()) << "systemd may make its sockets";
  subject.is_config_daemons = false;
  host.stats["/run/terrace"].uid = 998;
  EXPECT_TRUE(CheckDirectories(subject).empty());
}

TEST(DoctorConfig, ADirectoryOnADriveIsMadeByTheStartAndWithoutOneForTracesItOnlyDoesNotRecord) {
  FakeHost host;
  Subject subject = host.MakeWithDrive();
  subject.config.nvme.paths = {"/nowhere/drive"};
  host.stats["/nowhere"] = {.mode = S_IFDIR | 0700, .uid = 998};
  EXPECT_EQ(CheckDirectories(subject)[0].level, kNote);
  subject.config.trace_dir = "/nowhere/traces";
  EXPECT_EQ(CheckDirectories(subject)[0].level, kWarning);
  EXPECT_THAT(CheckDirectories(subject)[0].meaning, HasSubstr("terraced starts without it"));
  subject.config.nvme.paths.clear();
  host.stats["/mnt/d"].uid = 0;
  subject.config.trace_dir = "/mnt/d";
  EXPECT_EQ(CheckDirectories(subject)[0].level, kWarning);
}

TEST(DoctorConfig, ARedisServerThatDoesNotAnswerIsAProblem) {
  FakeHost host;
  Subject subject = host.Make();
  EXPECT_TRUE(CheckRedis(subject).empty());
  subject.config.redis.endpoints = {"a:6379"};
  EXPECT_EQ(CheckRedis(subject)[0].level, kOk);
  host.why_no_redis = "Connection refused";
  EXPECT_EQ(CheckRedis(subject)[0].level, kProblem);
  EXPECT_EQ(CheckRedis(subject)[0].found, "a:6379: Connection refused");
  subject.config.redis.endpoints = {"redis://user:planted@a:6379"};
  EXPECT_EQ(CheckRedis(subject)[0].found, "redis://user:***@a:6379: Connection refused");
}

// ---- drives ----

TEST(DoctorDrive, AFileSystemThatCopiesForgetsOrIsFarIsAWarning) {
  FakeHost host;
  const Subject subject = host.MakeWithDrive();
  EXPECT_EQ(CheckVolumes(subject)[0].level, kOk);
  EXPECT_THAT(CheckVolumes(subject)[0].found, HasSubstr("xfs of /dev/nvme0n1, O_DIRECT works"));
  for (const char* kind : {"btrfs", "tmpfs", "overlay", "nfs4", "fuse.sshfs"}) {
    host.Write("/proc/self/mountinfo",
               std::string("23 22 259:1 / /mnt/d rw - ") + kind + " /dev/x rw\n");
    EXPECT_EQ(CheckVolumes(subject)[0].level, kWarning) << kind;
  }
  host.Write("/proc/self/mountinfo", "23 22 259:1 / /mnt/d rw - minix /dev/x rw\n");
  EXPECT_EQ(CheckVolumes(subject)[0].level, kNote);
  host.Write("/proc/self/mountinfo", "");
  EXPECT_EQ(CheckVolumes(subject)[0].level, kNote);
}

TEST(DoctorDrive, ADriveThatIsNotMountedAnyMoreIsAProblem) {
  FakeHost host;
  Subject subject = host.MakeWithDrive();
  subject.config.state_dir = "/var/lib/terrace";
  host.Write("/var/lib/terrace/nvme-mounts", "/mnt/d\t/mnt/d\n");
  EXPECT_EQ(CheckVolumes(subject)[0].level, kOk);
  host.Write("/proc/self/mountinfo", "22 1 259:9 / / rw - ext4 /dev/root rw\n");
  EXPECT_EQ(CheckVolumes(subject)[0].level, kProblem);
  EXPECT_THAT(CheckVolumes(subject)[0].found,
              AllOf(HasSubstr("ext4 of /dev/root"), HasSubstr("mounted at /mnt/d")));
  EXPECT_THAT(CheckVolumes(subject)[0].remedy, HasSubstr("mount /mnt/d"));
  host.Remove("/var/lib/terrace/nvme-mounts");
  EXPECT_EQ(CheckVolumes(subject)[0].level, kOk) << "it never lay elsewhere";
}

TEST(DoctorDrive, DirectIoThatIsRefusedIsAWarning) {
  FakeHost host;
  const Subject subject = host.MakeWithDrive();
  host.direct = DirectIo::kRefused;
  EXPECT_EQ(CheckVolumes(subject)[0].level, kWarning);
  host.direct = DirectIo::kUnseen;
  EXPECT_EQ(CheckVolumes(subject)[0].level, kNote);
}

TEST(DoctorDrive, OfAPathThatIsNotThereYetWhatItWillLieInIsLookedAt) {
  FakeHost host;
  Subject subject = host.MakeWithDrive();
  subject.config.nvme.paths = {"/mnt/d/new/drive"};
  subject.command_as_root = "sudo terrace doctor --config /f --socket /s";
  EXPECT_EQ(CheckVolumes(subject)[0].level, kOk);
  EXPECT_THAT(CheckVolumes(subject)[0].found,
              HasSubstr("O_DIRECT works at /mnt/d; the path is not there yet"));
  EXPECT_EQ(CheckSpace(subject)[0].level, kOk);
  EXPECT_THAT(CheckSpace(subject)[0].found, HasSubstr("80.0 GiB free, 0 B held by slabs"));
  host.direct = DirectIo::kUnseen;
  EXPECT_THAT(CheckVolumes(subject)[0].found,
              HasSubstr("not tried: ann has no leave to write at /mnt/d"));
  EXPECT_EQ(CheckVolumes(subject)[0].remedy, subject.command_as_root);
  subject.own.uid = 0;
  EXPECT_EQ(CheckVolumes(subject)[0].remedy, "") << "root sees no more as root";
}

TEST(DoctorDrive, TheLongestMountPointIsThePathsOwn) {
  FakeHost host;
  const Subject subject = host.MakeWithDrive();
  host.Write("/proc/self/mountinfo",
             "23 22 259:1 / /mnt/d rw - xfs /dev/a rw\n"
             "22 1 259:9 / / rw - tmpfs none rw\n"
             "24 22 259:2 / /mnt/dd rw - tmpfs none rw\n");
  EXPECT_EQ(CheckVolumes(subject)[0].level, kOk);
}

TEST(DoctorDrive, SpaceIsHeldAgainstTheCapacityThatIsNotHeldYet) {
  FakeHost host;
  const Subject subject = host.MakeWithDrive();
  EXPECT_EQ(CheckSpace(subject)[0].level, kOk);
  host.volumes["/mnt/d"].free_bytes = 45 * kGiB;  // 5 stay free of 100
  EXPECT_EQ(CheckSpace(subject)[0].level, kWarning);
  host.volumes["/mnt/d"].free_bytes = 39 * kGiB;
  EXPECT_EQ(CheckSpace(subject)[0].level, kProblem);
  EXPECT_THAT(CheckSpace(subject)[0].remedy, HasSubstr("capacity_bytes = \"35GiB\""));
  host.volumes["/mnt/d"].free_bytes = 40 * kMiB;
  EXPECT_THAT(CheckSpace(subject)[0].remedy, HasSubstr("capacity_bytes = \"36MiB\""));
  host.volumes["/mnt/d"].free_bytes = kMiB;
  EXPECT_THAT(CheckSpace(subject)[0].remedy,
              AllOf(HasSubstr("free space"), Not(HasSubstr("capacity_bytes"))));
  host.volumes["/mnt/d"].free_bytes = 39 * kGiB;
  // What slabs hold already is theirs.
  host.Write("/mnt/d/chat/slab-0", "");
  host.stats["/mnt/d/chat"] = {.mode = S_IFDIR | 0700};
  host.stats["/mnt/d/chat/slab-0"] = {.mode = S_IFREG | 0600, .held_bytes = 20 * kGiB};
  EXPECT_EQ(CheckSpace(subject)[0].level, kOk);
  host.stats.erase("/mnt/d/chat");
  host.denied = true;
  EXPECT_EQ(CheckSpace(subject)[0].level, kNote);
}

TEST(DoctorDrive, ADriveThatRotatesIsHotOrIsDeadIsTold) {
  FakeHost host;
  const Subject subject = host.MakeWithDrive();
  const std::string disk = "/sys/dev/block/259:1";
  EXPECT_EQ(CheckDrives(subject)[0].level, kOk);
  EXPECT_EQ(CheckDrives(subject)[0].found, "/mnt/d: Drive 1T, live");
  host.Write(disk + "/device/hwmon3/temp1_input", "41850\n");
  host.Write(disk + "/device/hwmon3/temp1_crit", "84850\n");
  EXPECT_EQ(CheckDrives(subject)[0].level, kOk);
  EXPECT_THAT(CheckDrives(subject)[0].found, HasSubstr("41 of at most 84 °C"));
  host.Write(disk + "/device/hwmon3/temp1_input", "85000\n");
  EXPECT_EQ(CheckDrives(subject)[0].level, kProblem);
  host.Remove(disk + "/device/hwmon3");
  host.Write(disk + "/queue/rotational", "1\n");
  EXPECT_EQ(CheckDrives(subject)[0].level, kWarning);
  host.Write(disk + "/device/state", "dead\n");
  EXPECT_EQ(CheckDrives(subject)[0].level, kProblem);
  host.Remove(disk);
  EXPECT_EQ(CheckDrives(subject)[0].level, kNote);
}

// Whose kernel calls it rotating.
TEST(DoctorDrive, OfAVirtualOneOnlyItsHostKnowsWhetherItRotates) {
  FakeHost host;
  const Subject subject = host.MakeWithDrive();
  host.Write("/proc/self/mountinfo", "23 22 259:1 / /mnt/d rw,relatime - xfs /dev/vda1 rw\n");
  host.Write("/sys/dev/block/259:1/queue/rotational", "1\n");
  EXPECT_EQ(CheckDrives(subject)[0].level, kOk);
  EXPECT_THAT(CheckDrives(subject)[0].found, Not(HasSubstr("rotating")));
}

TEST(DoctorDrive, TwoPathsOnOneDriveAreAWarning) {
  FakeHost host;
  Subject subject = host.MakeWithDrive();
  subject.config.nvme.paths = {"/mnt/d", "/mnt/d/other"};
  const std::vector<Finding> findings = CheckDrives(subject);
  EXPECT_EQ(findings[0].level, kOk);
  EXPECT_EQ(findings[1].level, kWarning);
  EXPECT_THAT(findings[1].meaning, HasSubstr("/mnt/d is on the same drive"));
}

// ---- the daemon ----

TEST(DoctorDaemon, ASocketThatIsDeniedIsAProblemAndASilentOneIfItWasNamed) {
  const FakeHost host;
  Subject subject = host.Make();
  subject.socket_why = "no daemon";
  EXPECT_EQ(CheckSocket(subject).level, kWarning);
  subject.is_socket_named = true;
  EXPECT_EQ(CheckSocket(subject).level, kProblem);
  subject.socket_state = SocketState::kDenied;
  subject.is_socket_named = false;
  EXPECT_EQ(CheckSocket(subject).level, kProblem);
  EXPECT_THAT(CheckSocket(subject).remedy, HasSubstr("usermod -aG terrace ann"));
  subject.socket_group = "engines";
  EXPECT_THAT(CheckSocket(subject).remedy, HasSubstr("usermod -aG engines ann"));
  subject.socket_group = "root";
  EXPECT_THAT(CheckSocket(subject).remedy, Not(HasSubstr("usermod")))
      << "nobody joins root's group";
  subject.socket_state = SocketState::kRefused;
  subject.socket_why = "terraced at S refused this client: uid 7 may not connect";
  EXPECT_EQ(CheckSocket(subject).level, kProblem);
  EXPECT_THAT(CheckSocket(subject).found, HasSubstr("refused this client"));
  EXPECT_THAT(CheckSocket(subject).remedy, HasSubstr("systemctl reload"));
  subject.socket_state = SocketState::kAnswers;
  EXPECT_EQ(CheckSocket(subject).level, kOk);
}

TEST(DoctorDaemon, OneThatListensAndDoesNotAnswerIsAProblemWithItsProcess) {
  FakeHost host;
  Subject subject = host.Make();
  subject.socket_state = SocketState::kMute;
  subject.socket_why = "S is there, and gives no answer within 5000 ms";
  EXPECT_EQ(CheckSocket(subject).level, kProblem);
  EXPECT_THAT(CheckSocket(subject).meaning, HasSubstr("does not answer"));
  EXPECT_THAT(CheckSocket(subject).remedy, HasSubstr("ss -xlp | grep /run/terrace/default.sock"));
  host.Write("/run/terrace/default.sock.lock", "4711\n");
  host.Write("/proc/4711/comm", "terraced\n");
  host.Write("/proc/4711/status", "Name:\tterraced\nState:\tT (stopped)\n");
  EXPECT_THAT(CheckSocket(subject).remedy, HasSubstr("kill -CONT 4711"));
  host.Write("/proc/4711/status", "Name:\tterraced\nState:\tD (disk sleep)\n");
  EXPECT_THAT(CheckSocket(subject).remedy,
              AllOf(HasSubstr("process 4711 is in state D"), Not(HasSubstr("kill"))));
}

std::vector<FindingLevel> LevelsOfDaemon(const FakeHost& host, const std::string& stats) {
  Subject subject = host.Make();
  subject.stats = FakeHost::Stats(stats);
  std::vector<FindingLevel> levels;
  for (const Finding& finding : CheckDaemon(subject)) levels.push_back(finding.level);
  return levels;
}

TEST(DoctorDaemon, TheRemedyIsThatOfTheConditions) {
  const FakeHost host;
  Subject subject = host.Make();
  const auto remedy = [&](const std::string& conditions) {
    subject.stats =
        FakeHost::Stats(R"({"troubles": ["a sentence"], "conditions": )" + conditions + "}");
    return CheckDaemon(subject)[1].remedy;
  };
  EXPECT_THAT(remedy(R"(["bypassed"])"), HasSubstr("terrace drain --resume"));
  EXPECT_THAT(remedy(R"(["drive_off", "redis_away"])"),
              AllOf(HasSubstr("dmesg"), HasSubstr("; the server"), Not(HasSubstr("journalctl"))));
  EXPECT_THAT(remedy("[]"), HasSubstr("journalctl")) << "of a daemon that names none";
}

TEST(DoctorDaemon, VersionHealthHolderAndFencedMemoryAreRows) {
  const FakeHost host;
  EXPECT_TRUE(CheckDaemon(host.Make()).empty());
  EXPECT_THAT(LevelsOfDaemon(host, R"({"version": "0.2.0", "health": "ok", "troubles": [],
                                       "dram_holder": "systemd", "domain": {"fenced_bytes": 0}})"),
              ElementsAre(kOk, kOk, kOk, kOk));
  EXPECT_THAT(LevelsOfDaemon(host, R"({"version": "0.2.1", "troubles": ["the nvme tier is off"],
                                       "dram_holder": "nobody",
                                       "domain": {"fenced_bytes": 1500000000}})"),
              ElementsAre(kNote, kProblem, kNote, kWarning));
  EXPECT_THAT(LevelsOfDaemon(host, R"({"version": "0.3.0", "turns": 100000,
                                       "turns_over_limit": 5000, "dram_holder": "keeper",
                                       "domain": {"fenced_bytes": 3000000000}})"),
              ElementsAre(kWarning, kWarning, kOk, kProblem));
}

TEST(DoctorDaemon, MetricsThatAreNotServedAreARow) {
  const FakeHost host;
  EXPECT_THAT(LevelsOfDaemon(host, R"({"version": "0.2.0", "health": "ok", "troubles": [],
                                       "dram_holder": "systemd", "metrics_trouble": "",
                                       "domain": {"fenced_bytes": 0}})"),
              ElementsAre(kOk, kOk, kOk, kOk));
  Subject subject = host.Make();
  subject.stats = FakeHost::Stats(R"({"version": "0.2.0", "health": "ok", "domain": {},
                                      "metrics_trouble": "127.0.0.1:9: Address in use"})");
  const Finding found = CheckDaemon(subject).back();
  EXPECT_EQ(found.level, FindingLevel::kWarning);
  EXPECT_THAT(found.found, HasSubstr("not served: 127.0.0.1:9: Address in use"));
  EXPECT_THAT(found.remedy, HasSubstr("ss -ltnp"));
}

TEST(DoctorDaemon, TurnsThatWaitedWantAProcessorAndOthersAreLookedAt) {
  const FakeHost host;
  const auto slow = [&host](uint64_t starved) {
    Subject subject = host.Make();
    subject.stats = FakeHost::Stats(R"({"turns": 100000, "turns_over_limit": 5000,
                                        "turns_starved": )" +
                                    std::to_string(starved) + "}");
    return CheckDaemon(subject).at(1);
  };
  EXPECT_THAT(slow(4000).meaning, HasSubstr("starved of CPU"));
  EXPECT_THAT(slow(4000).remedy, HasSubstr("CPUWeight"));
  EXPECT_THAT(slow(100).meaning, HasSubstr("more to do in a turn"));
  EXPECT_THAT(slow(100).remedy, HasSubstr("slow turns"));
}

TEST(DoctorDaemon, ASharedTierThatIsAwayIsAProblem) {
  const FakeHost host;
  EXPECT_EQ(LevelsOfDaemon(host, R"({"redis": {"is_ready": true}})").back(), kOk);
  EXPECT_EQ(LevelsOfDaemon(host, R"({"redis": {"is_ready": false}})").back(), kProblem);
}

// ---- what is put together, and printed ----

TEST(DoctorSubject, TheUserOfAProcessIsTheEffectiveOne) {
  FakeHost host;
  host.Write("/etc/passwd", "root:x:0:0::/root:/bin/sh\nterrace:x:998:997::/:/bin/false\n");
  host.Write("/etc/group", "terrace:x:997:ann\ndisk:x:6:bob,terrace\n");
  const Subject subject = host.Make();
  const auto self = UserOfProcess(subject.files, "self");
  ASSERT_TRUE(self.has_value());
  EXPECT_EQ(self->uid, 1000u);
  EXPECT_EQ(self->name, "uid 1000");
  EXPECT_THAT(self->gids, ElementsAre(7, 7, 7, 7, 8, 9));
  const auto named = UserNamed(subject.files, "terrace");
  ASSERT_TRUE(named.has_value());
  EXPECT_EQ(named->uid, 998u);
  EXPECT_THAT(named->gids, ElementsAre(997, 6));
  EXPECT_FALSE(UserNamed(subject.files, "nobody"));
  EXPECT_FALSE(UserOfProcess(subject.files, "77"));
}

TEST(DoctorSubject, TheDaemonsCommandLineSaysWhatItRead) {
  const std::string words("terraced\0--config\0/a b.toml\0--socket=/s\0", 41);
  const DaemonCommand command = ParseDaemonCommand(words);
  EXPECT_EQ(command.config_path, "/a b.toml");
  EXPECT_EQ(command.socket_path, "/s");
  EXPECT_EQ(command.dram_bytes, "");
}

TEST(DoctorSubject, WhoLooksAgainAsRootLooksAtTheSame) {
  EXPECT_EQ(CommandAsRoot("", ""), "sudo terrace doctor");
  EXPECT_EQ(CommandAsRoot("/f.toml", "/s"), "sudo terrace doctor --config /f.toml --socket /s");
  EXPECT_EQ(CommandAsRoot("it's mine", ""), "sudo terrace doctor --config 'it'\\''s mine'");
}

TEST(DoctorReport, RowsAreOfEightyColumnsAndSayMoreWhereSomethingIsWrong) {
  std::string long_text;
  for (int i = 0; i < 30; ++i) long_text += "wörter ";
  const std::vector<Finding> findings = {
      {.check = "kernel", .found = "6.8.1", .meaning = "hidden", .remedy = "hidden"},
      {.check = "configuration",
       .level = kProblem,
       .found = long_text,
       .meaning = long_text,
       .remedy = long_text}};
  const std::string text = RenderFindings(findings);
  EXPECT_THAT(text, HasSubstr("ok       kernel         6.8.1\n"));
  EXPECT_THAT(text, Not(HasSubstr("hidden")));
  EXPECT_THAT(text, HasSubstr("problem  configuration  wörter"));
  EXPECT_THAT(text, HasSubstr("\n                        -> wörter"));
  EXPECT_THAT(text, HasSubstr("1 problem, 0 warnings, 0 notes, 1 ok\n"));
  size_t columns = 0;
  for (const char byte : text) {
    columns = byte == '\n' ? 0 : columns + ((static_cast<unsigned char>(byte) & 0xC0) != 0x80);
    EXPECT_LE(columns, 80u);
  }
}

TEST(DoctorReport, AHostInGoodOrderHasNoProblem) {
  FakeHost host;
  Subject subject = host.MakeWithDrive();
  host.stats["/secret"] = {.mode = S_IFREG | 0600, .uid = 998};
  host.volumes["/dev/shm"] = {.total_bytes = 8 * kGiB};
  subject.socket_state = SocketState::kAnswers;
  subject.stats = FakeHost::Stats(
      R"({"version": "0.2.0", "health": "ok", "dram_holder": "systemd",
          "domain": {"name": "chat"}})");
  for (const Finding& finding : Examine(subject)) {
    EXPECT_EQ(finding.level, kOk) << finding.check << ": " << finding.found;
    EXPECT_LE(finding.check.size(), 13u);
  }
}

}  // namespace
}  // namespace terrace::tools

#include "daemon/config/installed_unit.h"

#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace terrace {
namespace {

class InstalledUnitTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "terrace-unit-XXXXXX";
    root_ = mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

constexpr char kUnit[] =
    "[Unit]\nUser=nobody\n[Service]\n# User=ann\n"
    "ExecStart=/usr/bin/terraced \\\n  --config /etc/terrace/terraced.toml\n"
    "User = terrace\nStateDirectory=terrace more\n[Install]\nUser=bob\n";

TEST_F(InstalledUnitTest, OfNoneNothingIsKnown) {
  EXPECT_FALSE(FindInstalledUnit(root_));
  Write("/etc/systemd/system/terraced.service", "");  // masked
  EXPECT_FALSE(FindInstalledUnit(root_));
  std::filesystem::remove(root_ + "/etc/systemd/system/terraced.service");
  Write("/etc/systemd/system/terraced.service.d/left.conf", "[Service]\nExecStart=/t\n");
  EXPECT_FALSE(FindInstalledUnit(root_)) << "a drop-in of a unit that was removed";
  Write("/lib/systemd/system/terraced.service", kUnit);
  EXPECT_TRUE(FindInstalledUnit(root_));
  Write("/etc/systemd/system/terraced.service", "");
  EXPECT_FALSE(FindInstalledUnit(root_)) << "masked, with a drop-in";
  std::filesystem::remove(root_ + "/etc/systemd/system/terraced.service");
  std::filesystem::create_symlink("/dev/null", root_ + "/etc/systemd/system/terraced.service");
  EXPECT_FALSE(FindInstalledUnit(root_));
}

TEST_F(InstalledUnitTest, AUnitOfEtcHidesTheOneOfThePackage) {
  Write("/lib/systemd/system/terraced.service", kUnit);
  Write("/etc/systemd/system/terraced.service", "[Service]\nExecStart=/t\nUser=dora\n");
  EXPECT_EQ(FindInstalledUnit(root_)->user, "dora");
  EXPECT_EQ(FindInstalledUnit(root_)->state_dir, "");
}

TEST_F(InstalledUnitTest, DirectoriesThatSystemdMakesAreThoseOfAllItsLines) {
  Write("/usr/lib/systemd/system/terraced.service",
        std::string("[Service]\nRuntimeDirectory=terrace:link\n") + kUnit);
  EXPECT_THAT(FindInstalledUnit(root_)->directories,
              testing::ElementsAre("/run/terrace", "/var/lib/terrace", "/var/lib/more"));
  Write("/etc/systemd/system/terraced.service.d/own.conf", "[Service]\nRuntimeDirectory=\n");
  EXPECT_THAT(FindInstalledUnit(root_)->directories,
              testing::ElementsAre("/var/lib/terrace", "/var/lib/more"));
}

TEST_F(InstalledUnitTest, ItsUserConfigurationAndStateAreThoseOfItsService) {
  Write("/usr/lib/systemd/system/terraced.service", kUnit);
  const auto unit = FindInstalledUnit(root_);
  ASSERT_TRUE(unit);
  EXPECT_EQ(unit->user, "terrace");
  EXPECT_EQ(unit->config_path, "/etc/terrace/terraced.toml");
  EXPECT_EQ(unit->state_dir, "/var/lib/terrace");
  EXPECT_TRUE(unit->Reads("/etc/terrace/terraced.toml"));
  EXPECT_FALSE(unit->Reads("/etc/terrace/draft.toml"));
  EXPECT_FALSE(unit->Reads(""));
  EXPECT_EQ(unit->Surroundings(7).uid, 7u);
  EXPECT_EQ(unit->Surroundings(7).state_directory, "/var/lib/terrace");
  EXPECT_EQ(unit->Surroundings(7).home, "");
}

TEST_F(InstalledUnitTest, ItReadsItsFileByAnyNameOfIt) {
  Write("/my.toml", "");
  std::filesystem::create_symlink("my.toml", root_ + "/link.toml");
  Write("/etc/systemd/system/terraced.service",
        "[Service]\nExecStart=/t --config=" + root_ + "/link.toml\n");
  EXPECT_TRUE(FindInstalledUnit(root_)->Reads(root_ + "/my.toml"));
  EXPECT_TRUE(FindInstalledUnit(root_)->Reads(root_ + "/./link.toml"));
  Write("/etc/systemd/system/terraced.service", "[Service]\nExecStart=/t\n");
  EXPECT_FALSE(FindInstalledUnit(root_)->Reads("")) << "neither has a file";
}

TEST_F(InstalledUnitTest, DropInsRuleInTheOrderOfTheirNamesAndThoseOfEtcOverOthers) {
  Write("/lib/systemd/system/terraced.service", kUnit);
  Write("/etc/systemd/system/terraced.service.d/10-user.conf", "[Service]\nUser=ann\n");
  Write("/run/systemd/system/terraced.service.d/20-user.conf", "[Service]\nUser=bob\n");
  Write("/etc/systemd/system/terraced.service.d/30-user.text", "[Service]\nUser=carl\n");
  EXPECT_EQ(FindInstalledUnit(root_)->user, "bob");
  Write("/etc/systemd/system/terraced.service.d/20-user.conf",
        "[Service]\nUser=\nStateDirectory=\nExecStart=\nExecStart=/t --config=/my.toml\n");
  EXPECT_EQ(FindInstalledUnit(root_)->user, "root");
  EXPECT_EQ(FindInstalledUnit(root_)->state_dir, "");
  EXPECT_EQ(FindInstalledUnit(root_)->config_path, "/my.toml");
}

TEST(Accounts, AreFoundByNameAndNumberAndOwnersAlways) {
  EXPECT_EQ(FindAccount("root")->uid, 0u);
  EXPECT_EQ(FindAccount("0")->name, "root");
  EXPECT_FALSE(FindAccount("no-such-user"));
  EXPECT_FALSE(FindAccount("12345678"));
  EXPECT_FALSE(FindAccount("0x")) << "no number";
  EXPECT_EQ(OwnerAccount(0, 7).name, "root");
  EXPECT_EQ(OwnerAccount(12345678, 7).gid, 7u);
}

TEST(Accounts, WhoBecomesAnotherHasNothingOfWhoItWas) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  const pid_t child = fork();
  if (child == 0) {
    const gid_t former_group = 8;
    if (setgroups(1, &former_group) != 0) _exit(2);
    std::string why;
    const bool has_become = BecomeAccount(OwnerAccount(12345678, 7), &why).ok();
    const bool is_other = getuid() == 12345678 && getegid() == 7 && getgroups(0, nullptr) == 0;
    _exit(has_become && is_other && setuid(0) != 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace terrace

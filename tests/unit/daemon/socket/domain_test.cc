#include "daemon/socket/domain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Status Authorise(const DomainConfig& config, uint32_t uid, uint32_t gid, std::string* why) {
  return AuthorisePeer(config, {.uid = uid, .gid = gid, .pid = 1}, why);
}

// PROMISE: T34 lists of users and groups
TEST(AuthorisePeer, ListsNarrowAndAbsenceDoesNot) {
  std::string why;
  DomainConfig config{.name = "a"};
  EXPECT_TRUE(Authorise(config, 1000, 1000, &why).ok());
  config.allow_uids = {1000};
  EXPECT_TRUE(Authorise(config, 1000, 5, &why).ok());
  EXPECT_FALSE(Authorise(config, 1001, 1000, &why).ok()) << "an allowed uid is no allowed gid";
  EXPECT_THAT(why, AllOf(HasSubstr("domain a"), HasSubstr("uid 1001"), HasSubstr("allow_uids")));
  EXPECT_FALSE(Authorise(config, 0, 0, &why).ok()) << "root is no exception";
  config.allow_gids = {7};
  EXPECT_TRUE(Authorise(config, 1001, 7, &why).ok()) << "either list is enough";
}

TEST(AuthorisePeer, AnEmptyListLetsNobodyIn) {
  std::string why;
  EXPECT_FALSE(Authorise({.name = "a", .allow_uids = {{}}}, 1000, 1000, &why).ok());
  EXPECT_FALSE(Authorise({.name = "a", .allow_gids = {{}}}, 1000, 1000, &why).ok());
}

// PROMISE: T34 a user namespace
TEST(AuthorisePeer, AHiddenUidIsRefusedEvenIfListed) {
  std::string why;
  EXPECT_FALSE(Authorise({.name = "a"}, 65534, 0, &why).ok());
  EXPECT_FALSE(Authorise({.name = "a", .allow_uids = {{65534}}}, 65534, 0, &why).ok());
  EXPECT_THAT(why, HasSubstr("user namespace"));
}

class LoadSecret : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "terrace-domain-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  DomainConfig Config(const std::string& file) {
    DomainConfig config{.name = "a"};
    config.secret_file = directory_ + "/" + file;
    return config;
  }
  std::string directory_;
};

TEST_F(LoadSecret, ADefaultSecretIsDrawnOnceWithItsDirectory) {
  DomainConfig config = Config("state/terrace/a.secret");
  config.is_secret_file_default = true;
  DomainSecret first{}, second{};
  std::string why;
  ASSERT_TRUE(LoadDomainSecret(config, &first, &why).ok()) << why;
  ASSERT_TRUE(LoadDomainSecret(config, &second, &why).ok()) << why;
  EXPECT_EQ(first, second);
  struct stat about;
  ASSERT_EQ(stat((directory_ + "/state/terrace").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0700u);
}

TEST_F(LoadSecret, ALinkThatLeadsNowhereIsNamedWithWhereItLeads) {
  std::filesystem::create_symlink(directory_ + "/gone", directory_ + "/state");
  for (const char* file : {"state/a.secret", "state/deeper/a.secret"}) {
    DomainConfig config = Config(file);
    config.is_secret_file_default = true;
    DomainSecret secret;
    std::string why;
    EXPECT_EQ(LoadDomainSecret(config, &secret, &why).code(), StatusCode::kIo) << file;
    EXPECT_THAT(why, AllOf(HasSubstr("daemon.state_dir is " + directory_ + "/state"),
                           HasSubstr("/state is a symbolic link to " + directory_ + "/gone"),
                           HasSubstr("make that directory"), HasSubstr("secret_file")));
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/gone"));
}

TEST_F(LoadSecret, ANamedSecretIsNeverDrawn) {
  DomainSecret secret;
  std::string why;
  EXPECT_EQ(LoadDomainSecret(Config("a.secret"), &secret, &why).code(), StatusCode::kNotFound);
  EXPECT_THAT(why, AllOf(HasSubstr("domain a"), HasSubstr("terrace domain new")));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/a.secret"));
}

}  // namespace
}  // namespace terrace

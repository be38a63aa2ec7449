#include "daemon/domain/known_drives.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "daemon/config/kept_mounts.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(KeptMounts, AreReadAsTheyWereWritten) {
  const KeptMounts mounts = {{"/mnt/a b/t", "/mnt/a b"}, {"/srv/t", "/"}};
  EXPECT_EQ(ParseKeptMounts(FormatKeptMounts(mounts)), mounts);
  EXPECT_TRUE(ParseKeptMounts("no line of ours").empty());
}

TEST(KeptMounts, AMountIsLostWhereThePathLiesAboveIt) {
  EXPECT_TRUE(IsMountLost("/mnt/a", "/"));
  EXPECT_TRUE(IsMountLost("/mnt/a", "/mnt"));
  EXPECT_FALSE(IsMountLost("/mnt/a", "/mnt/a"));
  EXPECT_FALSE(IsMountLost("/", "/mnt/a")) << "a drive of its own, at last";
  EXPECT_FALSE(IsMountLost("/mnt/ab", "/mnt/a")) << "another mount";
}

TEST(KeptMounts, TheMountPointIsTheTopOfTheFileSystem) {
  EXPECT_EQ(MountPointOf("/"), "/");
  EXPECT_EQ(MountPointOf("/proc/self/nothing/here"), "/proc");
}

class DriveMounts : public testing::Test {
 protected:
  DriveMounts() {
    directory_ = (std::filesystem::temp_directory_path() / "terrace-mounts-XXXXXX").string();
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    std::filesystem::create_directory(directory_ + "/drive");
    config_.state_dir = directory_;
    config_.domains.push_back({.name = "default"});
    nvme_.paths = {directory_ + "/drive/terrace"};
    file_ = directory_ + "/" + kKeptMountsName;
  }
  ~DriveMounts() override { std::filesystem::remove_all(directory_); }
  Status Find() {
    const Status status = FindDrives(config_, &drives_, &why_);
    lost_ = drives_.lost_mounts;
    return status;
  }
  std::string Remembered() const {
    std::ifstream file(file_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string directory_, file_, why_;
  DaemonConfig config_;
  NvmeConfig& nvme_ = config_.nvme;
  KnownDrives drives_;
  std::vector<std::string> lost_;
};

// PROMISE: T14 a drive that is not mounted
TEST_F(DriveMounts, APathThatLayOnAMountBelowIsToldAtEachStart) {
  ASSERT_TRUE(Find().ok());
  EXPECT_THAT(lost_, ElementsAre(""));
  EXPECT_THAT(Remembered(), HasSubstr(nvme_.paths[0] + "\t"));
  const std::string mount = directory_ + "/drive";
  std::ofstream(file_) << nvme_.paths[0] << '\t' << mount << '\n';
  for (int start = 0; start < 2; ++start) {
    ASSERT_TRUE(Find().ok());
    EXPECT_THAT(lost_, ElementsAre(mount));
  }
  std::filesystem::remove(file_);  // as an operator says that it is meant
  ASSERT_TRUE(Find().ok());
  EXPECT_THAT(lost_, ElementsAre(""));
}

TEST_F(DriveMounts, WhoRequiresAMountIsRefusedTheStartWithoutIt) {
  const std::string mount = directory_ + "/drive";
  std::ofstream(file_) << nvme_.paths[0] << '\t' << mount << '\n';
  nvme_.require_mount = RequireMount::kOn;
  EXPECT_EQ(Find().code(), StatusCode::kInvalid);
  EXPECT_THAT(why_, AllOf(HasSubstr(nvme_.paths[0]), HasSubstr("and lay on " + mount),
                          HasSubstr("require_mount")));
}

TEST_F(DriveMounts, WhatCannotBeRememberedStopsNobody) {
  config_.state_dir = directory_ + "/absent";
  EXPECT_TRUE(Find().ok());
  EXPECT_THAT(lost_, ElementsAre(""));
}

TEST_F(DriveMounts, ADriveThatServedAndCannotBeOpenedIsDoneWithout) {
  nvme_.paths.push_back(directory_ + "/other/terrace");
  ASSERT_TRUE(Find().ok());
  EXPECT_EQ(drives_.nvme.paths.size(), 2u) << "it never served: who opens it refuses the start";
  EXPECT_TRUE(drives_.not_opened.empty());
  std::filesystem::create_directory(directory_ + "/other");
  ASSERT_TRUE(Find().ok());
  EXPECT_EQ(drives_.nvme.paths.size(), 2u);
  std::filesystem::rename(directory_ + "/drive", directory_ + "/gone");
  ASSERT_TRUE(Find().ok());
  EXPECT_THAT(drives_.nvme.paths, ElementsAre(nvme_.paths[1]));
  EXPECT_THAT(drives_.lost_mounts, ElementsAre(""));
  ASSERT_EQ(drives_.not_opened.size(), 1u);
  EXPECT_EQ(drives_.not_opened[0].path, nvme_.paths[0]);
  EXPECT_THAT(drives_.not_opened[0].not_opened, HasSubstr("No such file or directory"));
  std::filesystem::rename(directory_ + "/other", directory_ + "/gone too");
  ASSERT_TRUE(Find().ok());
  EXPECT_EQ(drives_.nvme.paths.size(), 2u) << "there is no other to do with";
}

TEST_F(DriveMounts, OneDirectoryUnderTwoNamesIsRefused) {
  ASSERT_TRUE(Find().ok());
  nvme_.paths.push_back(directory_ + "/drive/link");
  std::filesystem::create_directory_symlink("terrace", nvme_.paths[1]);
  EXPECT_EQ(Find().code(), StatusCode::kInvalid);
  EXPECT_EQ(why_, "nvme.paths: " + nvme_.paths[0] + " and " + nvme_.paths[1] +
                      " are one directory: name each drive once");
}

}  // namespace
}  // namespace terrace

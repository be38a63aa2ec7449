#include "daemon/persist/drive_directory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

namespace terrace {
namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;

class DriveDirectory : public testing::Test {
 protected:
  DriveDirectory() {
    std::string pattern = fs::temp_directory_path() / "terrace-drive-XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  ~DriveDirectory() override { fs::remove_all(root_); }
  std::string Content() const {
    std::ifstream stream(root_ / kDriveIdName);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  fs::path root_;
};

TEST_F(DriveDirectory, AnIdIsReadAsItWasWritten) {
  EXPECT_EQ(ReadDriveId(root_).status().code(), StatusCode::kNotFound);
  for (const uint64_t id : {uint64_t{1}, 0xFEDCBA9876543210}) {
    ASSERT_TRUE(WriteDriveId(root_, id).ok());
    EXPECT_EQ(ReadDriveId(root_).value(), id);
  }
}

TEST_F(DriveDirectory, WhatIsDamagedIsNoId) {
  ASSERT_TRUE(WriteDriveId(root_, 0xFEDCBA9876543210).ok());
  const std::string content = Content();
  const auto code_of = [&](const std::string& other) {
    std::ofstream(root_ / kDriveIdName) << other;
    return ReadDriveId(root_).status().code();
  };
  for (size_t at = 0; at < content.size(); ++at) {
    std::string other = content;
    other[at] = static_cast<char>(other[at] ^ 1);
    EXPECT_EQ(code_of(other), StatusCode::kCorrupt) << at;
    EXPECT_EQ(code_of(content.substr(0, at)), StatusCode::kCorrupt) << at;
  }
  EXPECT_EQ(code_of(content + "x"), StatusCode::kCorrupt);
  ASSERT_TRUE(WriteDriveId(root_, 0).ok());
  EXPECT_EQ(ReadDriveId(root_).status().code(), StatusCode::kCorrupt) << "nobody's";
  fs::remove(root_ / kDriveIdName);
  fs::create_directory(root_ / kDriveIdName);
  EXPECT_EQ(ReadDriveId(root_).status().code(), StatusCode::kIo);
}

TEST_F(DriveDirectory, OneThatIsEmptiedHasNeitherSlabsNorKeys) {
  const fs::path drive = root_ / "drive";
  fs::create_directories(drive / "keys");
  fs::create_directories(drive / "groups");
  for (const char* name : {"slab-0.terrace", "slab-17.terrace", "keys/00.key", "lock",
                           "catalog.word", "groups/00.group"}) {
    std::ofstream(drive / name) << "a secret";
  }
  fs::create_hard_link(drive / "keys/00.key", root_ / "what the drive keeps of it");
  uint64_t slab_count = 0;
  ASSERT_TRUE(EmptyDrive(drive, &slab_count).ok());
  EXPECT_EQ(slab_count, 2u);
  Names left;
  for (const auto& entry : fs::recursive_directory_iterator(drive)) {
    left.insert(entry.path().filename());
  }
  EXPECT_EQ(left, (Names{"catalog.word", "groups", "00.group", "keys", "lock"}));
  std::ifstream stream(root_ / "what the drive keeps of it");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(stream), {}), std::string(8, '\0'));
  ASSERT_TRUE(EmptyDrive(root_ / "absent", &slab_count).ok());
  EXPECT_EQ(slab_count, 0u);
}

}  // namespace
}  // namespace terrace

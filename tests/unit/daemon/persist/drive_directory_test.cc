#include "daemon/persist/drive_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "daemon/persist/group_key_files.h"

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
  EXPECT_EQ(ReadDriveId(root_, "d").status().code(), StatusCode::kNotFound);
  for (const uint64_t id : {uint64_t{1}, 0xFEDCBA9876543210}) {
    ASSERT_TRUE(WriteDriveId(root_, "d", id).ok());
    EXPECT_EQ(ReadDriveId(root_, "d").value(), id);
  }
}

TEST_F(DriveDirectory, WhatIsDamagedIsNoId) {
  ASSERT_TRUE(WriteDriveId(root_, "d", 0xFEDCBA9876543210).ok());
  const std::string content = Content();
  const auto code_of = [&](const std::string& other) {
    std::ofstream(root_ / kDriveIdName) << other;
    return ReadDriveId(root_, "d").status().code();
  };
  for (size_t at = 0; at < content.size(); ++at) {
    std::string other = content;
    other[at] = static_cast<char>(other[at] ^ 1);
    EXPECT_EQ(code_of(other), StatusCode::kCorrupt) << at;
    EXPECT_EQ(code_of(content.substr(0, at)), StatusCode::kCorrupt) << at;
  }
  EXPECT_EQ(code_of(content + "x"), StatusCode::kCorrupt);
  EXPECT_EQ(ReadDriveId(root_, "e").status().code(), StatusCode::kCorrupt) << "another domain's";
  ASSERT_TRUE(WriteDriveId(root_, "d", 0).ok());
  EXPECT_EQ(ReadDriveId(root_, "d").status().code(), StatusCode::kCorrupt) << "nobody's";
  fs::remove(root_ / kDriveIdName);
  fs::create_directory(root_ / kDriveIdName);
  EXPECT_EQ(ReadDriveId(root_, "d").status().code(), StatusCode::kIo);
}

TEST_F(DriveDirectory, OneThatIsEmptiedHasNeitherSlabsNorKeys) {
  const fs::path drive = root_ / "drive";
  fs::create_directories(drive / "keys");
  fs::create_directories(drive / "groups");
  for (const char* name : {"slab-0.terrace", "slab-17.terrace", "keys/00.key", "keys/00.key.new",
                           "lock", "catalog.word", "groups/00.group"}) {
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

// What nobody could have stored a block or a key in stays, and is in nobody's way.
TEST_F(DriveDirectory, WhatIsNoFileOfOursStaysWhereItIs) {
  const fs::path drive = root_ / "drive";
  fs::create_directories(drive / "keys" / "00.key");
  fs::create_directories(drive / "slab-1.terrace");
  fs::create_symlink(root_ / "elsewhere", drive / "keys" / "01.key");
  ASSERT_EQ(mkfifo((drive / "keys" / "02.key").c_str(), 0600), 0);
  std::ofstream(drive / "notes.terrace") << "somebody's";
  std::ofstream(root_ / "elsewhere") << "somebody's";
  uint64_t slab_count = 0;
  ASSERT_TRUE(EmptyDrive(drive, &slab_count).ok());
  EXPECT_EQ(slab_count, 0u);
  EXPECT_TRUE(fs::exists(drive / "notes.terrace"));
  EXPECT_EQ(fs::file_size(root_ / "elsewhere"), 10u);
  EXPECT_EQ(OverwriteGroupKey(drive / "keys" / "02.key").code(), StatusCode::kIo) << "a pipe";
  EXPECT_TRUE(RemoveGroupKeys(root_ / "elsewhere").ok()) << "it is no directory";
}

}  // namespace
}  // namespace terrace

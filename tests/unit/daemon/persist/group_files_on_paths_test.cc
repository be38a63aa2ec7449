#include "daemon/persist/group_files_on_paths.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "sim/group_keys.h"
#include "unit/include/example_space.h"
#include "unit/include/soon.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using State = GroupFiles::State;

constexpr uint64_t kWaitUs = 60'000'000;

SpaceGroupSpec GroupNamed(const std::string& name, uint32_t layers) {
  SpaceGroupSpec group = ExampleGroup();
  group.name = name;
  for (auto& member : group.members) member.spec.layers = layers;
  return group;
}

class GroupFilesOnPathsTest : public testing::TestWithParam<bool> {  // with keys
 protected:
  GroupFilesOnPathsTest() {
    std::string pattern = fs::temp_directory_path() / "terrace-on-paths-XXXXXX";
    root_ = mkdtemp(pattern.data());
    for (const char* path : {"a", "b", "c"}) {
      fs::create_directory(root_ / path);
      paths_.push_back({.domains = {{.directory = root_ / path / "groups",
                                     .secret = secret_,
                                     .drive_path = root_ / path}},
                        .look_interval = std::chrono::milliseconds(5),
                        .trouble = [this](const std::string&) { ++told_count_; },
                        .changed = [this](uint32_t) { ++changed_count_; }});
    }
    if (!GetParam()) return;
    keys_ = std::make_unique<GroupKeyFiles>(GroupKeyFiles::Options{
        .directory = root_ / "a" / "keys",
        .second_directory = root_ / "state",
        .drive_path = root_ / "a",
        .ring = std::make_shared<const KeyRing>(std::vector<CipherKey>{sim::KeyFrom(5)}),
        .may_go_on = [this](GroupKeyStep step) {
          return may_erase_ || step != GroupKeyStep::kErasedInPlace;
        }});
    paths_[0].domains[0].keys = keys_.get();
  }
  ~GroupFilesOnPathsTest() override {
    std::error_code error;
    fs::remove_all(root_, error);
  }

  bool IsOn(const char* path, const SpaceGroupSpec& group) const {
    return fs::exists(root_ / path / "groups" / (ToHex(group.Id()) + ".group"));
  }
  void TakeAway(const char* path) { fs::rename(root_ / path, root_ / (std::string(path) + "-")); }
  void BringBack(const char* path) { fs::rename(root_ / (std::string(path) + "-"), root_ / path); }

  fs::path root_;
  const DomainSecret secret_ = ExampleSecret();
  std::atomic<bool> may_erase_ = true;
  std::atomic<int> told_count_ = 0, changed_count_ = 0;
  std::unique_ptr<GroupKeyFiles> keys_;
  std::vector<DiskGroupFiles::Options> paths_;
  const SpaceGroupSpec group_ = GroupNamed("llama", 32), other_ = GroupNamed("other", 33);
};

INSTANTIATE_TEST_SUITE_P(Domains, GroupFilesOnPathsTest, testing::Bool(), [](const auto& of) {
  return std::string(of.param ? "Encrypted" : "Plain");
});

TEST_P(GroupFilesOnPathsTest, EachPathHasThemAndLosesThem) {
  GroupFilesOnPaths files(paths_);
  files.Keep(0, group_);
  files.Keep(0, other_);
  ASSERT_TRUE(files.Drain(kWaitUs));
  for (const char* path : {"a", "b", "c"}) EXPECT_TRUE(IsOn(path, group_)) << path;
  files.Drop(0, group_.Id());
  ASSERT_TRUE(files.Drain(kWaitUs));
  for (const char* path : {"a", "b", "c"}) {
    EXPECT_FALSE(IsOn(path, group_)) << path;
    EXPECT_TRUE(IsOn(path, other_)) << path;
  }
  EXPECT_EQ(files.StateOf(0, group_.Id()), State::kFailed);
  EXPECT_EQ(told_count_, 0);
}

TEST_P(GroupFilesOnPathsTest, ThePathsThatAreLeftKeepAGroup) {
  TakeAway("a");
  TakeAway("b");
  GroupFilesOnPaths files(paths_);
  files.Keep(0, group_);
  ASSERT_TRUE(Soon([&] { return files.StateOf(0, group_.Id()) == State::kKept; }));
  EXPECT_FALSE(files.IsLost(0, group_.Id()));
  EXPECT_EQ(files.TroubleOf(0).groups_not_kept, 0u);
  TakeAway("c");
  ASSERT_TRUE(Soon([&] { return files.IsLost(0, group_.Id()); }));
  ASSERT_TRUE(Soon([&] { return files.TroubleOf(0).groups_not_kept == 1; }));
  ASSERT_TRUE(Soon([&] { return files.StateOf(0, group_.Id()) == State::kFailed; }));
  EXPECT_FALSE(fs::exists(root_ / "a")) << "a drive may not be mounted there";
  for (const char* path : {"a", "b", "c"}) BringBack(path);
  ASSERT_TRUE(Soon([&] { return IsOn("a", group_) && IsOn("b", group_) && IsOn("c", group_); }));
  ASSERT_TRUE(Soon([&] { return files.StateOf(0, group_.Id()) == State::kKept; }));
  EXPECT_TRUE(files.IsWhole(0, group_.Id()));
}

TEST_P(GroupFilesOnPathsTest, ADriveThatHangsHoldsUpItsOwnFilesAlone) {
  std::promise<void> drive;
  std::shared_future<void> goes_on = drive.get_future().share();
  paths_[1].domains[0].also = [&](const GroupId&, const std::string&) { goes_on.wait(); };
  GroupFilesOnPaths files(paths_);
  files.Keep(0, group_);
  files.Keep(0, other_);
  ASSERT_TRUE(Soon([&] { return files.StateOf(0, other_.Id()) == State::kKept; }));
  ASSERT_TRUE(Soon([&] { return IsOn("a", other_) && IsOn("c", other_); }));
  EXPECT_FALSE(IsOn("b", other_));
  EXPECT_FALSE(files.Drain(10'000));
  drive.set_value();
  EXPECT_TRUE(files.Drain(kWaitUs));
  EXPECT_TRUE(IsOn("b", other_));
}

// A path that is new, and all paths at the first start of a release that keeps them there.
TEST_P(GroupFilesOnPathsTest, WhatThePredecessorKeptIsCopiedInSilence) {
  {
    GroupFilesOnPaths files(paths_);
    files.Keep(0, group_);
    ASSERT_TRUE(files.Drain(kWaitUs));
  }
  fs::remove_all(root_ / "b" / "groups");
  GroupFilesOnPaths files(paths_);
  files.Inherit(0, group_);
  EXPECT_TRUE(Soon([&] { return IsOn("b", group_); }));
  EXPECT_EQ(told_count_, 0);
}

TEST_P(GroupFilesOnPathsTest, ACopyThatCannotBeMadeIsToldOnceAPath) {
  std::ofstream(root_ / "b" / "groups") << "in the way";
  GroupFilesOnPaths files(paths_);
  files.Keep(0, group_);
  files.Keep(0, other_);
  ASSERT_TRUE(Soon([&] { return changed_count_ > 20; })) << "it is tried on and on";
  EXPECT_EQ(told_count_, 1);
  EXPECT_EQ(files.StateOf(0, group_.Id()), State::kKept);
  EXPECT_EQ(files.TroubleOf(0).groups_not_kept, 0u);
  fs::remove(root_ / "b" / "groups");
  EXPECT_TRUE(Soon([&] { return IsOn("b", group_) && IsOn("b", other_); }));
}

// The files say what blocks mean, and are there; what is written next needs a key.
TEST_P(GroupFilesOnPathsTest, AGroupWhoseKeyIsDestroyedIsNotKeptBeforeItHasAnother) {
  if (!GetParam()) return;
  GroupFilesOnPaths files(paths_);
  files.Keep(0, group_);
  ASSERT_TRUE(files.Drain(kWaitUs));
  may_erase_ = false;
  files.DestroyKey(0, group_.Id());
  EXPECT_NE(files.StateOf(0, group_.Id()), State::kKept);
  ASSERT_TRUE(files.Drain(kWaitUs));
  EXPECT_NE(files.StateOf(0, group_.Id()), State::kKept);
  EXPECT_FALSE(files.AreKeysDestroyed(0));
  may_erase_ = true;
  EXPECT_TRUE(Soon([&] { return files.StateOf(0, group_.Id()) == State::kKept; }));
  EXPECT_TRUE(files.AreKeysDestroyed(0));
}

}  // namespace
}  // namespace terrace

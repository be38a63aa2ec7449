#include "daemon/persist/group_key_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "sim/group_keys.h"

namespace terrace {
namespace {

using sim::KeyFrom;

constexpr GroupId kGroup{1, 2}, kOther{3, 4};

std::shared_ptr<const KeyRing> RingOf(std::vector<uint64_t> seeds) {
  std::vector<CipherKey> keys;
  for (const uint64_t seed : seeds) keys.push_back(KeyFrom(seed));
  return std::make_shared<const KeyRing>(std::move(keys));
}

class GroupKeyFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "terrace-group-keys-XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // A daemon begins on what is there.
  std::unique_ptr<GroupKeyFiles> Open(std::vector<uint64_t> seeds,
                                      std::function<bool(GroupKeyStep)> may_go_on = {}) {
    auto files =
        std::make_unique<GroupKeyFiles>(GroupKeyFiles::Options{.directory = directory_ + "/keys",
                                                               .ring = RingOf(std::move(seeds)),
                                                               .may_go_on = std::move(may_go_on)});
    notes_.clear();
    files->Load(&notes_);
    return files;
  }
  // Two keys are one if they make the same of the same.
  static std::vector<std::byte> Mark(const std::shared_ptr<const GroupKey>& key) {
    CipherKey derived;
    if (key == nullptr || !key->Derive({}, {}, &derived).ok()) return {};
    return {derived.bytes().begin(), derived.bytes().end()};
  }
  std::string PathOf(const GroupId& group) const {
    return directory_ + "/keys/" + ToHex(group) + ".key";
  }
  std::string Content(const GroupId& group) const {
    std::ifstream file(PathOf(group), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string directory_;
  std::vector<std::string> notes_;
};

// The paths of the drives come in another order, or another one comes first.
TEST_F(GroupKeyFilesTest, FilesOfOtherDirectoriesAreFoundWrappedAnewAndErasedThere) {
  auto files = Open({5});
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  const std::vector<std::byte> mark = Mark(files->Find(kGroup));
  const std::string former = directory_ + "/former";
  const std::string copy = former + "/" + ToHex(kGroup) + ".key";
  std::filesystem::rename(directory_ + "/keys", former);
  const auto open = [&](const std::string& directory, const std::string& other,
                        std::vector<uint64_t> seeds) {
    auto opened = std::make_unique<GroupKeyFiles>(
        GroupKeyFiles::Options{.directory = directory,
                               .other_directories = {directory_ + "/absent", other},
                               .ring = RingOf(std::move(seeds))});
    opened->Load(&notes_);
    return opened;
  };
  auto moved = open(directory_ + "/keys", former, {5});
  EXPECT_EQ(Mark(moved->Find(kGroup)), mark);
  ASSERT_TRUE(moved->SetRing(RingOf({6, 5}), &notes_).ok());
  moved = open(former, directory_ + "/keys", {6});
  EXPECT_EQ(Mark(moved->Find(kGroup)), mark) << "the former one is under the new key, too";
  EXPECT_TRUE(notes_.empty());
  moved->Destroy(kGroup);
  ASSERT_TRUE(moved->EraseFile(kGroup).ok());
  EXPECT_FALSE(std::filesystem::exists(copy));
  EXPECT_FALSE(std::filesystem::exists(PathOf(kGroup)));
}

TEST_F(GroupKeyFilesTest, AnotherKeyOfAGroupInAnotherDirectoryIsToldOfAndStays) {
  auto files = Open({5});
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  std::filesystem::rename(directory_ + "/keys", directory_ + "/former");
  files = Open({5});
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  const std::vector<std::byte> mark = Mark(files->Find(kGroup));
  GroupKeyFiles both({.directory = directory_ + "/keys",
                      .other_directories = {directory_ + "/former"},
                      .ring = RingOf({5})});
  both.Load(&notes_);
  EXPECT_EQ(Mark(both.Find(kGroup)), mark);
  EXPECT_EQ(notes_.size(), 1u);
  EXPECT_FALSE(std::filesystem::is_empty(directory_ + "/former"));
}

// The drive with the keys is lost: what the others hold can be read all the same.
class SecondPlaceTest : public GroupKeyFilesTest {
 protected:
  std::unique_ptr<GroupKeyFiles> OpenBoth(std::vector<uint64_t> seeds) {
    auto files = std::make_unique<GroupKeyFiles>(GroupKeyFiles::Options{
        .directory = directory_ + "/keys",
        .second_directory = Second(),
        .drive_path = directory_,
        .ring = RingOf(std::move(seeds)),
        .may_go_on = [this](GroupKeyStep step) {
          if (step == GroupKeyStep::kPlaceWritten) return --wrappings_refused_ < 0;
          return step != GroupKeyStep::kErasedInPlace || --erasures_refused_ < 0;
        }});
    files->Load(&notes_);
    return files;
  }
  std::string Second() const { return second_; }
  std::string CopyOf(const GroupId& group) const { return second_ + "/" + ToHex(group) + ".key"; }
  void TearDown() override {
    std::filesystem::remove_all(second_);
    GroupKeyFilesTest::TearDown();
  }

  const std::string second_ = testing::TempDir() + "terrace-second-" + std::to_string(getpid());
  int erasures_refused_ = 0, wrappings_refused_ = 0;
};

TEST_F(SecondPlaceTest, GivesBackWhatTheFirstHasLost) {
  auto files = OpenBoth({5});
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  const std::vector<std::byte> mark = Mark(files->Find(kGroup));
  EXPECT_TRUE(std::filesystem::exists(CopyOf(kGroup)));
  ASSERT_TRUE(files->SetRing(RingOf({6}), &notes_).ok());
  std::filesystem::remove_all(directory_ + "/keys");
  files = OpenBoth({6});
  EXPECT_EQ(Mark(files->Find(kGroup)), mark) << "and is wrapped anew with it";
  EXPECT_TRUE(std::filesystem::exists(PathOf(kGroup)));
  std::filesystem::remove_all(Second());
  files = OpenBoth({6});
  EXPECT_TRUE(std::filesystem::exists(CopyOf(kGroup))) << "of a release that had none";
  EXPECT_TRUE(notes_.empty());
}

TEST_F(SecondPlaceTest, ServesWhileTheDrivesPathIsGone) {
  std::filesystem::rename(directory_, directory_ + "-");
  auto files = OpenBoth({5});
  EXPECT_EQ(files->Ensure(kGroup).code(), StatusCode::kIo) << "for who keeps it on this drive";
  const std::vector<std::byte> mark = Mark(files->Find(kGroup));
  EXPECT_FALSE(mark.empty());
  EXPECT_FALSE(std::filesystem::exists(directory_)) << "a drive may not be mounted there";
  EXPECT_EQ(files->Ensure(kGroup).code(), StatusCode::kIo);
  std::filesystem::rename(directory_ + "-", directory_);
  EXPECT_TRUE(files->Ensure(kGroup).ok());
  EXPECT_EQ(Mark(files->Find(kGroup)), mark);
  EXPECT_TRUE(std::filesystem::exists(PathOf(kGroup)));
}

TEST_F(SecondPlaceTest, IsErasedWithTheFirstWhicheverOfThemFails) {
  auto files = OpenBoth({5});
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  files->Destroy(kGroup);
  erasures_refused_ = 1;
  EXPECT_FALSE(files->EraseFile(kGroup).ok());
  EXPECT_TRUE(files->has_erasures_owed());
  EXPECT_NE(std::filesystem::exists(PathOf(kGroup)), std::filesystem::exists(CopyOf(kGroup)));
  erasures_refused_ = 0;
  EXPECT_TRUE(files->EraseFile(kGroup).ok());
  EXPECT_FALSE(files->has_erasures_owed());
  EXPECT_FALSE(std::filesystem::exists(PathOf(kGroup)));
  EXPECT_FALSE(std::filesystem::exists(CopyOf(kGroup)));
  files = OpenBoth({5});
  EXPECT_EQ(files->Find(kGroup), nullptr);
}

TEST_F(SecondPlaceTest, ThatCannotBeMadeIsToldAndCostsNothing) {
  std::ofstream(Second()) << "in the way";
  auto files = OpenBoth({5});
  EXPECT_TRUE(files->Ensure(kGroup).ok());
  EXPECT_TRUE(notes_.empty());
  files = OpenBoth({5});
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find("cannot be copied to " + Second()), std::string::npos) << notes_[0];
  EXPECT_NE(files->Find(kGroup), nullptr);
}

TEST_F(GroupKeyFilesTest, AKeyIsMadeOnceAndFoundByTheNextDaemon) {
  auto files = Open({5});
  EXPECT_EQ(files->Find(kGroup), nullptr);
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  ASSERT_TRUE(files->Ensure(kOther).ok());
  const std::vector<std::byte> mark = Mark(files->Find(kGroup));
  EXPECT_NE(mark, Mark(files->Find(kOther)));
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  EXPECT_EQ(Mark(files->Find(kGroup)), mark);
  files = Open({5});
  EXPECT_EQ(Mark(files->Find(kGroup)), mark);
  EXPECT_EQ(files->counts().usable, 2u);
  struct stat about;
  ASSERT_EQ(stat(PathOf(kGroup).c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  EXPECT_EQ(about.st_size, static_cast<off_t>(kGroupKeyFileBytes));
}

// What lies on the drive under the key is as good as ever; a new one would lose it.
TEST_F(GroupKeyFilesTest, AKeyWhoseFileSomebodyRemovedIsWrittenAgain) {
  auto files = Open({5});
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  const std::vector<std::byte> mark = Mark(files->Find(kGroup));
  EXPECT_TRUE(files->IsThere(kGroup));
  EXPECT_TRUE(files->IsThere(kOther)) << "there is no key to be without";
  std::filesystem::remove_all(directory_ + "/keys");
  EXPECT_FALSE(files->IsThere(kGroup));
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  EXPECT_TRUE(files->IsThere(kGroup));
  EXPECT_EQ(Mark(Open({5})->Find(kGroup)), mark);
  files->Destroy(kGroup);
  std::filesystem::remove_all(directory_ + "/keys");
  EXPECT_TRUE(files->IsThere(kGroup)) << "nor one that was destroyed";
}

TEST_F(GroupKeyFilesTest, AKeyUnderAnotherRingIsLockedAndStaysAsItIs) {
  ASSERT_TRUE(Open({5})->Ensure(kGroup).ok());
  const std::string before = Content(kGroup);
  auto files = Open({6});
  EXPECT_EQ(files->Find(kGroup), nullptr);
  EXPECT_EQ(files->counts().locked, 1u);
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find(KeyIdText(RingOf({5})->first())), std::string::npos) << notes_[0];
  EXPECT_EQ(files->LockedUnder(), KeyIdText(RingOf({5})->first()));
  EXPECT_EQ(files->Ensure(kGroup).code(), StatusCode::kNotFound);
  ASSERT_TRUE(files->SetRing(RingOf({7}), &notes_).ok());
  EXPECT_EQ(Content(kGroup), before);
  // The key comes back while the daemon runs.
  ASSERT_TRUE(files->SetRing(RingOf({7, 5}), &notes_).ok());
  EXPECT_NE(files->Find(kGroup), nullptr);
  EXPECT_NE(Open({7})->Find(kGroup), nullptr);
}

TEST_F(GroupKeyFilesTest, AnotherRingWrapsEveryKeyAnewAndLeavesNothingOfTheOldWrapping) {
  auto files = Open({5});
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  const std::vector<std::byte> mark = Mark(files->Find(kGroup));
  const std::string old_record = Content(kGroup).substr(48, 80);
  // Without the old key: it is in memory.
  ASSERT_TRUE(files->SetRing(RingOf({6}), &notes_).ok());
  EXPECT_EQ(Content(kGroup).find(old_record), std::string::npos);
  EXPECT_EQ(Open({5})->Find(kGroup), nullptr);
  EXPECT_EQ(Mark(Open({6})->Find(kGroup)), mark);
}

// Whatever a wrapping anew was at when the daemon ended, the next has the key, under one of both
// rings' first keys or under both.
TEST_F(GroupKeyFilesTest, NoCrashOfAWrappingLosesTheKey) {
  for (const GroupKeyStep end : {GroupKeyStep::kPlaceWritten, GroupKeyStep::kPlaceCleared}) {
    auto files = Open({5}, [end](GroupKeyStep step) { return step != end; });
    ASSERT_TRUE(files->Ensure(kGroup).ok());
    const std::vector<std::byte> mark = Mark(files->Find(kGroup));
    EXPECT_FALSE(files->SetRing(RingOf({6, 5}), &notes_).ok());
    EXPECT_EQ(Mark(files->Find(kGroup)), mark);
    files = Open({6, 5});
    EXPECT_EQ(Mark(files->Find(kGroup)), mark);
    ASSERT_TRUE(files->SetRing(RingOf({6, 5}), &notes_).ok());
    EXPECT_EQ(Mark(Open({6})->Find(kGroup)), mark);
    EXPECT_EQ(Open({5})->Find(kGroup), nullptr) << "the old wrapping is still there";
    std::filesystem::remove_all(directory_ + "/keys");
  }
}

// The operator has put a key in front and started the daemon anew: the old one may leave the file
// once nothing is owed.
TEST_F(SecondPlaceTest, ARingThatAStartHasChangedWrapsEveryKeyAnew) {
  auto files = OpenBoth({5});
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  ASSERT_TRUE(files->Ensure(kOther).ok());
  const std::vector<std::byte> mark = Mark(files->Find(kGroup));
  const std::string old_record = Content(kGroup).substr(48, 80);
  EXPECT_FALSE(OpenBoth({5})->has_wrappings_owed());
  files = OpenBoth({6, 5});
  ASSERT_TRUE(files->has_wrappings_owed());
  EXPECT_EQ(files->wrappings_owed().files, 4u) << "in both places";
  EXPECT_EQ(files->wrappings_owed().under, KeyIdText(RingOf({5})->first()));
  ASSERT_TRUE(files->WrapOwed(&notes_).ok());
  EXPECT_FALSE(files->has_wrappings_owed());
  EXPECT_EQ(Content(kGroup).find(old_record), std::string::npos);
  EXPECT_EQ(OpenBoth({5})->Find(kGroup), nullptr);
  std::filesystem::remove_all(directory_ + "/keys");
  files = OpenBoth({6});
  EXPECT_EQ(Mark(files->Find(kGroup)), mark) << "of the second place";
  EXPECT_FALSE(files->has_wrappings_owed());
}

// The key in memory does for a ring that lacks the old one, and copies are not forgotten.
TEST_F(SecondPlaceTest, AWrappingThatFailedIsOwedUntilItIsDone) {
  auto files = OpenBoth({5});
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  const std::vector<std::byte> mark = Mark(files->Find(kGroup));
  wrappings_refused_ = 4;
  EXPECT_FALSE(files->SetRing(RingOf({6}), &notes_).ok());
  EXPECT_FALSE(files->WrapOwed(&notes_).ok());
  ASSERT_EQ(notes_.size(), 2u);
  EXPECT_NE(notes_[0].find("stays under " + KeyIdText(RingOf({5})->first())), std::string::npos);
  EXPECT_EQ(files->wrappings_owed().files, 2u);
  EXPECT_EQ(files->wrappings_owed().why.code(), StatusCode::kIo);
  EXPECT_EQ(files->wrappings_owed().under, KeyIdText(RingOf({5})->first()));
  ASSERT_TRUE(files->WrapOwed(&notes_).ok());
  EXPECT_EQ(files->wrappings_owed().files, 0u);
  std::filesystem::remove_all(directory_ + "/keys");
  EXPECT_EQ(Mark(OpenBoth({6})->Find(kGroup)), mark);
}

TEST_F(SecondPlaceTest, NothingIsOwedToAFileThatIsGoneOrAKeyThatIsDestroyed) {
  auto files = OpenBoth({5});
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  ASSERT_TRUE(files->Ensure(kOther).ok());
  files = OpenBoth({6, 5});
  EXPECT_EQ(files->wrappings_owed().files, 4u);
  files->Destroy(kGroup);
  EXPECT_EQ(files->wrappings_owed().files, 2u);
  ASSERT_TRUE(files->EraseFile(kGroup).ok());
  std::filesystem::rename(directory_, directory_ + "-");
  EXPECT_FALSE(files->WrapOwed(&notes_).ok()) << "the drive is gone with its file";
  EXPECT_EQ(files->wrappings_owed().files, 1u);
  std::filesystem::rename(directory_ + "-", directory_);
  std::filesystem::remove(PathOf(kOther));
  EXPECT_TRUE(files->WrapOwed(&notes_).ok());
  EXPECT_FALSE(files->has_wrappings_owed());
}

// A sector that a loss of power has torn is no record; the other place is.
TEST_F(GroupKeyFilesTest, AHalfWrittenPlaceIsPassedOver) {
  auto files = Open({5});
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  const std::vector<std::byte> mark = Mark(files->Find(kGroup));
  std::string content = Content(kGroup);
  content.replace(kGroupKeyPlaceBytes, 90, content.substr(0, 90));
  std::ofstream(PathOf(kGroup), std::ios::binary) << content;
  files = Open({5});
  EXPECT_EQ(Mark(files->Find(kGroup)), mark);
  ASSERT_TRUE(files->SetRing(RingOf({6, 5}), &notes_).ok());
  EXPECT_EQ(Mark(Open({6})->Find(kGroup)), mark);
}

TEST_F(GroupKeyFilesTest, ADraftThatWasNeverPlacedIsNoKey) {
  auto files = Open({5}, [](GroupKeyStep step) { return step != GroupKeyStep::kDraftWritten; });
  EXPECT_FALSE(files->Ensure(kGroup).ok());
  EXPECT_EQ(files->Find(kGroup), nullptr);
  files = Open({5});
  EXPECT_EQ(files->Find(kGroup), nullptr);
  EXPECT_TRUE(files->Ensure(kGroup).ok());
}

// A crash between a draft and its place leaves the key in both.
TEST_F(SecondPlaceTest, ADraftIsErasedAtTheStartAndWithItsGroup) {
  auto files = OpenBoth({5});
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  const std::string kept = directory_ + "/what the drive keeps of it";
  const auto leave_drafts = [&] {
    for (const std::string& path : {PathOf(kGroup), CopyOf(kGroup)}) {
      std::filesystem::copy_file(path, path + ".new");
    }
    std::filesystem::remove(kept);
    std::filesystem::create_hard_link(PathOf(kGroup) + ".new", kept);
  };
  const auto are_drafts_erased = [&] {
    std::ifstream stream(kept, std::ios::binary);
    const std::string left(std::istreambuf_iterator<char>(stream), {});
    return !std::filesystem::exists(PathOf(kGroup) + ".new") &&
           !std::filesystem::exists(CopyOf(kGroup) + ".new") &&
           left == std::string(kGroupKeyFileBytes, '\0');
  };
  leave_drafts();
  files->Destroy(kGroup);
  ASSERT_TRUE(files->EraseFile(kGroup).ok());
  EXPECT_TRUE(are_drafts_erased());
  EXPECT_FALSE(std::filesystem::exists(PathOf(kGroup)));
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  leave_drafts();
  files = OpenBoth({5});
  EXPECT_TRUE(are_drafts_erased());
  EXPECT_NE(files->Find(kGroup), nullptr);
  leave_drafts();
  GroupKeyFiles plain({.directory = directory_ + "/keys", .second_directory = Second()});
  plain.Load(&notes_);
  EXPECT_TRUE(are_drafts_erased()) << "without a ring, too";
}

TEST_F(SecondPlaceTest, ADraftThatCannotBeErasedIsToldAndNoErasureIsDone) {
  auto files = OpenBoth({5});
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  std::filesystem::create_directory(CopyOf(kGroup) + ".new");
  notes_.clear();
  files = OpenBoth({5});
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find(CopyOf(kGroup) + ".new"), std::string::npos) << notes_[0];
  files->Destroy(kGroup);
  EXPECT_FALSE(files->EraseFile(kGroup).ok());
  EXPECT_TRUE(files->has_erasures_owed());
  std::filesystem::remove(CopyOf(kGroup) + ".new");
  EXPECT_TRUE(files->EraseFile(kGroup).ok());
}

TEST_F(GroupKeyFilesTest, WhatIsDestroyedIsGoneFromMemoryAtOnceAndThenFromTheDrive) {
  auto files = Open({5});
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  const std::shared_ptr<const GroupKey> held = files->Find(kGroup);
  const std::vector<std::byte> mark = Mark(held);
  files->Destroy(kGroup);
  EXPECT_TRUE(held->is_destroyed());
  EXPECT_EQ(files->Find(kGroup), nullptr);
  EXPECT_TRUE(files->has_erasures_owed());
  EXPECT_FALSE(files->Ensure(kGroup).ok()) << "its file is still there";
  ASSERT_TRUE(files->EraseFile(kGroup).ok());
  EXPECT_FALSE(files->has_erasures_owed());
  EXPECT_FALSE(std::filesystem::exists(PathOf(kGroup)));
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  EXPECT_NE(Mark(files->Find(kGroup)), mark);
}

TEST_F(GroupKeyFilesTest, AnErasureThatACrashCutShortIsEndedAtTheNextStart) {
  auto files = Open({5}, [](GroupKeyStep step) { return step != GroupKeyStep::kErasedInPlace; });
  ASSERT_TRUE(files->Ensure(kGroup).ok());
  files->Destroy(kGroup);
  EXPECT_FALSE(files->EraseFile(kGroup).ok());
  EXPECT_TRUE(files->has_erasures_owed());
  EXPECT_TRUE(std::filesystem::exists(PathOf(kGroup)));
  EXPECT_EQ(Content(kGroup), std::string(kGroupKeyFileBytes, '\0'));
  files = Open({5});
  EXPECT_FALSE(std::filesystem::exists(PathOf(kGroup)));
  EXPECT_FALSE(files->has_erasures_owed());
}

TEST_F(GroupKeyFilesTest, ALockedKeyCanBeErased) {
  ASSERT_TRUE(Open({5})->Ensure(kGroup).ok());
  auto files = Open({6});
  files->Destroy(kGroup);
  ASSERT_TRUE(files->EraseFile(kGroup).ok());
  EXPECT_TRUE(files->Ensure(kGroup).ok());
  EXPECT_EQ(files->counts().locked, 0u);
}

// Encryption is off: what is erased by now must not come back with the keys of before.
TEST_F(SecondPlaceTest, WithoutARingKeysOfBeforeAreToldAndCanBeErased) {
  ASSERT_TRUE(OpenBoth({5})->Ensure(kGroup).ok());
  GroupKeyFiles files({.directory = directory_ + "/keys", .second_directory = Second()});
  notes_.clear();
  files.Load(&notes_);
  EXPECT_FALSE(files.encrypts());
  ASSERT_EQ(notes_.size(), 1u) << "once, however many files it has";
  EXPECT_NE(notes_[0].find("no encryption_keys_file is set"), std::string::npos) << notes_[0];
  EXPECT_TRUE(files.IsLocked(kGroup));
  const std::string before = Content(kGroup);
  EXPECT_TRUE(files.Ensure(kGroup).ok()) << "nothing is written under it, so nothing is in its way";
  EXPECT_TRUE(files.IsThere(kGroup));
  EXPECT_EQ(Content(kGroup), before);
  files.Destroy(kGroup);
  ASSERT_TRUE(files.EraseFile(kGroup).ok());
  EXPECT_FALSE(std::filesystem::exists(PathOf(kGroup)));
  EXPECT_FALSE(std::filesystem::exists(CopyOf(kGroup)));
}

TEST_F(GroupKeyFilesTest, WithoutRandomBytesThereIsNoKey) {
  GroupKeyFiles files(
      {.directory = directory_ + "/keys", .ring = RingOf({5}), .random = [](std::span<std::byte>) {
         return Status(StatusCode::kIo, "none", EIO);
       }});
  EXPECT_EQ(files.Ensure(kGroup).code(), StatusCode::kIo);
  EXPECT_EQ(files.Find(kGroup), nullptr);
}

}  // namespace
}  // namespace terrace

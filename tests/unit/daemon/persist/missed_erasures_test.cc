#include "daemon/persist/missed_erasures.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "unit/include/soon.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;

class MissedErasuresTest : public testing::Test {
 protected:
  MissedErasuresTest() {
    std::string pattern = fs::temp_directory_path() / "terrace-missed-XXXXXX";
    root_ = mkdtemp(pattern.data());
    file_ = root_ / "d" / "d.missed-erasures";
  }
  ~MissedErasuresTest() override {
    std::error_code error;
    fs::remove_all(root_, error);
  }
  // A daemon's start, whose memory has that seed.
  std::unique_ptr<MissedErasures> Start(uint64_t seed, bool is_held, const Missed& absent = {}) {
    auto missed = Open();
    missed->UseMemory(0, seed, is_held);
    missed->AddAbsent(0, absent);
    missed->Begin();
    return missed;
  }
  std::unique_ptr<MissedErasures> Open() {
    return std::make_unique<MissedErasures>(
        MissedErasures::Options{.paths = {file_},
                                .all_drives = {"/mnt/a", "/mnt/b"},
                                .all_redis = {{"00000000000000aa", "00000000000000bb"}},
                                .noted = [this](uint32_t) { ++noted_count_; },
                                .trouble = [this](const std::string&) { ++told_count_; }});
  }
  void EraseAt(MissedErasures& missed) {
    missed.NoteErasure(0);
    ASSERT_TRUE(Soon([&] { return missed.HasNoted(0); }));
  }
  std::string Content() const {
    std::ifstream stream(file_);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  Missed Kept() const { return ParseMissed(Content()).value(); }
  void Write(const std::string& content) const { std::ofstream(file_) << content; }

  fs::path root_, file_;
  std::atomic<int> noted_count_ = 0, told_count_ = 0;
};

TEST_F(MissedErasuresTest, AreReadAsTheyWereWritten) {
  for (const Missed& missed :
       {Missed{.drives = {"/mnt/a b", "/mnt/c"}, .slabs = {"/mnt/d/slab-1.terrace"}},
        Missed{.redis = {"00000000000000aa", "00000000000000bb"}},
        Missed{.all_memory_but = {0xFEDCBA9876543210, 5}}, Missed{}}) {
    EXPECT_EQ(ParseMissed(FormatMissed(missed)).value(), missed);
  }
  const std::string content = FormatMissed({.drives = {"/mnt/a"}, .all_memory_but = {7}});
  for (size_t at = 0; at < content.size(); ++at) {
    std::string other = content;
    other[at] = static_cast<char>(other[at] ^ 1);
    EXPECT_EQ(ParseMissed(other).status().code(), StatusCode::kCorrupt) << at;
    EXPECT_EQ(ParseMissed(content.substr(0, at)).status().code(), StatusCode::kCorrupt) << at;
  }
}

TEST_F(MissedErasuresTest, WhereNothingIsAbsentNothingIsWritten) {
  const auto missed = Start(1, /*is_held=*/false);
  EXPECT_TRUE(missed->HasNoted(0));
  missed->NoteErasure(0);
  EXPECT_TRUE(missed->HasNoted(0));
  EXPECT_FALSE(fs::exists(file_));
}

TEST_F(MissedErasuresTest, TheFirstErasureIsWrittenDownForAllThatAreAbsent) {
  const Missed all{.drives = {"/mnt/b", "/mnt/c"},
                   .slabs = {"/mnt/a/slab-3.terrace"},
                   .redis = {"00000000000000bb"}};
  auto missed = Start(1, false, all);
  EXPECT_FALSE(missed->HasNoted(0));
  EXPECT_FALSE(fs::exists(file_)) << "nothing has been erased";
  EraseAt(*missed);
  EXPECT_TRUE(Soon([&] { return noted_count_ == 1; }));
  EXPECT_EQ(Kept(), all);
  fs::remove(file_);
  missed->NoteErasure(0);
  EXPECT_TRUE(missed->HasNoted(0));
  EXPECT_FALSE(fs::exists(file_)) << "once";
}

TEST_F(MissedErasuresTest, WhatIsStruckOutIsForgottenWithTheStart) {
  EraseAt(*Start(1, false,
                 {.drives = {"/mnt/b", "/mnt/c"},
                  .slabs = {"/mnt/a/slab-3.terrace"},
                  .redis = {"00000000000000aa", "00000000000000bb"}}));
  auto missed = Open();
  EXPECT_EQ(missed->missed(0).drives, (Names{"/mnt/b", "/mnt/c"}));
  missed->StrikeDrive(0, "/mnt/b");
  missed->StrikeSlab(0, "/mnt/a/slab-3.terrace");
  missed->StrikeRedis(0, "00000000000000aa");
  missed->AddAbsent(0, {.drives = {"/mnt/c"}, .redis = {"00000000000000bb"}});
  missed->Begin();
  EXPECT_EQ(Kept(), (Missed{.drives = {"/mnt/c"}, .redis = {"00000000000000bb"}}));
  EXPECT_TRUE(missed->HasNoted(0)) << "it is written down already";
}

// Memory is kept by one holder, and a daemon serves for a while without him.
TEST_F(MissedErasuresTest, MemoryIsTakenOverUntilSomethingIsErasedWithoutIt) {
  EraseAt(*Start(7, /*is_held=*/true));
  EXPECT_TRUE(Open()->MayAdopt(0, 7));
  EXPECT_FALSE(Open()->MayAdopt(0, 8));
  {
    const auto without = Start(9, /*is_held=*/false);
    EXPECT_FALSE(without->HasNoted(0));
  }
  EXPECT_TRUE(Open()->MayAdopt(0, 7)) << "nothing was erased";
  EraseAt(*Start(9, false));
  EXPECT_FALSE(Open()->MayAdopt(0, 7));
  (void)Start(11, /*is_held=*/true);
  EXPECT_TRUE(Open()->MayAdopt(0, 11));
}

// By one holder and by another, in turn.
TEST_F(MissedErasuresTest, MemoriesThatNothingWasErasedWithoutAreTakenOver) {
  (void)Start(7, true);
  (void)Start(8, true);
  EXPECT_TRUE(Open()->MayAdopt(0, 7));
  EXPECT_TRUE(Open()->MayAdopt(0, 8));
  EraseAt(*Start(7, true));
  EXPECT_TRUE(Open()->MayAdopt(0, 7));
  EXPECT_FALSE(Open()->MayAdopt(0, 8));
  for (uint64_t seed = 20; seed < 20 + 2 * kMemoriesMax; ++seed) (void)Start(seed, true);
  EXPECT_EQ(Kept().all_memory_but.size(), kMemoriesMax);
  EXPECT_FALSE(Open()->MayAdopt(0, 7)) << "the oldest";
}

TEST_F(MissedErasuresTest, AFileThatIsDamagedNamesEverything) {
  (void)Start(7, true);
  Write(Content() + "x");
  const auto missed = Open();
  EXPECT_EQ(told_count_, 1);
  EXPECT_EQ(missed->missed(0).drives, (Names{"/mnt/a", "/mnt/b"}));
  EXPECT_EQ(missed->missed(0).redis, (Names{"00000000000000aa", "00000000000000bb"}));
  EXPECT_FALSE(missed->MayAdopt(0, 7));
}

TEST_F(MissedErasuresTest, WhatCannotBeWrittenIsToldOnceAndTriedAgain) {
  std::ofstream(root_ / "d") << "in the way";
  // A file that is in the way of its directory reads as none.
  const auto missed = Start(1, false, {.drives = {"/mnt/b"}});
  const int told_before = told_count_;
  missed->NoteErasure(0);
  ASSERT_TRUE(Soon([&] { return told_count_ == told_before + 1; }));
  EXPECT_FALSE(missed->HasNoted(0));
  fs::remove(root_ / "d");
  ASSERT_TRUE(Soon([&] { return missed->HasNoted(0); }));
  EXPECT_EQ(told_count_, told_before + 1);
  EXPECT_TRUE(Kept().drives.contains("/mnt/b"));
}

TEST_F(MissedErasuresTest, AnEmptiedDriveHasNeitherSlabsNorKeys) {
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

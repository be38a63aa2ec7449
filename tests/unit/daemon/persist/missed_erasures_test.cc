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
using Ids = std::set<uint64_t>;

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
  // A daemon's start, whose memory has that seed, with these drives.
  std::unique_ptr<MissedErasures> Start(uint64_t seed, bool is_held, const Ids& drives = {},
                                        const Missed& absent = {}) {
    auto missed = Open();
    for (const uint64_t id : drives) missed->UseDrive(0, id);
    missed->UseMemory(0, seed, is_held);
    missed->AddAbsent(0, absent);
    missed->Begin();
    return missed;
  }
  std::unique_ptr<MissedErasures> Open(bool is_anything_kept = true, bool is_certain = true) {
    return std::make_unique<MissedErasures>(
        MissedErasures::Options{.paths = {file_},
                                .key_directories = {root_ / "keys"},
                                .all_redis = {{"00000000000000aa", "00000000000000bb"}},
                                .is_anything_kept = is_anything_kept,
                                .is_certain = is_certain,
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
       {Missed{.all_drives_but = {0xFEDCBA9876543210, 5},
       .slabs = {SlabNameOf(7, "slab-1.terrace")}},
        Missed{.redis = {"00000000000000aa", "00000000000000bb"}},
        Missed{.all_drives_but = {Missed::kNobody}, .all_memory_but = {0xFEDCBA9876543210, 5}},
        Missed{}}) {
    EXPECT_EQ(ParseMissed(FormatMissed(missed)).value(), missed);
  }
  const std::string content = FormatMissed({.all_drives_but = {9}, .all_memory_but = {7}});
  for (size_t at = 0; at < content.size(); ++at) {
    std::string other = content;
    other[at] = static_cast<char>(other[at] ^ 1);
    EXPECT_EQ(ParseMissed(other).status().code(), StatusCode::kCorrupt) << at;
    EXPECT_EQ(ParseMissed(content.substr(0, at)).status().code(), StatusCode::kCorrupt) << at;
  }
}

TEST_F(MissedErasuresTest, WhereNobodyKeepsAnythingNothingIsWritten) {
  const auto missed = Open(/*is_anything_kept=*/false);
  missed->UseMemory(0, 1, false);
  missed->Begin();
  EXPECT_TRUE(missed->HasNoted(0));
  missed->NoteErasure(0);
  EXPECT_TRUE(missed->HasNoted(0));
  EXPECT_FALSE(fs::exists(root_ / "d"));
}

TEST_F(MissedErasuresTest, AFileSaysThatSomebodyKeepsSomething) {
  EraseAt(*Start(1, false, {5}));
  const auto missed = Open(/*is_anything_kept=*/false);
  missed->UseMemory(0, 1, false);
  missed->Begin();
  EXPECT_FALSE(missed->HasNoted(0));
  EraseAt(*missed);
  EXPECT_FALSE(Open()->MayServe(0, 5));
}

TEST_F(MissedErasuresTest, WhereItIsNotCertainAnErasureThatCannotBeWrittenIsAnsweredAllTheSame) {
  const fs::path in_the_way = file_.string() + ".new";
  fs::create_directories(in_the_way);
  const auto missed = Open(/*is_anything_kept=*/true, /*is_certain=*/false);
  missed->UseMemory(0, 1, false);
  missed->Begin();
  EXPECT_FALSE(missed->HasNoted(0));
  EraseAt(*missed);
  EXPECT_FALSE(fs::exists(file_));
}

// Whoever comes next sees that somebody has kept something.
TEST_F(MissedErasuresTest, AStartWritesThatThereWasOne) {
  (void)Start(1, false, {5});
  EXPECT_EQ(Kept(), Missed{});
  EXPECT_TRUE(Open()->MayServe(0, 6)) << "nothing was erased";
  EXPECT_TRUE(Open()->MayServe(0, Missed::kNobody));
}

TEST_F(MissedErasuresTest, TheFirstErasureWritesDownWhoIsThere) {
  const Missed absent{.slabs = {SlabNameOf(5, "slab-3.terrace")}, .redis = {"00000000000000bb"}};
  auto missed = Start(1, false, {5, 6}, absent);
  EXPECT_FALSE(missed->HasNoted(0));
  EXPECT_EQ(Kept(), Missed{}) << "nothing has been erased";
  EraseAt(*missed);
  EXPECT_TRUE(Soon([&] { return noted_count_ == 1; }));
  EXPECT_EQ(Kept(), (Missed{.all_drives_but = {5, 6},
                            .all_memory_but = {1},
                            .slabs = absent.slabs,
                            .redis = absent.redis}));
  fs::remove(file_);
  missed->NoteErasure(0);
  EXPECT_TRUE(missed->HasNoted(0));
  EXPECT_FALSE(fs::exists(file_)) << "once";
}

TEST_F(MissedErasuresTest, OfDrivesThoseAreServedThatWereThereOrHaveBegunEmpty) {
  EraseAt(*Start(1, false, {5, 6}));
  auto missed = Open();
  EXPECT_TRUE(missed->MayServe(0, 5));
  EXPECT_FALSE(missed->MayServe(0, 7));
  EXPECT_FALSE(missed->MayServe(0, Missed::kNobody)) << "one that has no id";
  missed = Start(1, false, {5, 7});
  EXPECT_TRUE(missed->MayServe(0, 6)) << "nothing was erased without it";
  EXPECT_TRUE(Open()->MayServe(0, 7)) << "it has begun empty";
  EraseAt(*missed);
  EXPECT_FALSE(Open()->MayServe(0, 6));
  EraseAt(*Start(1, false));
  for (const uint64_t id : {5, 6, 7, 0}) EXPECT_FALSE(Open()->MayServe(0, id)) << id;
  (void)Start(1, false, {8});
  EXPECT_EQ(Kept().all_drives_but, (Ids{8}));
}

TEST_F(MissedErasuresTest, OfManyDrivesThoseThatAreThereAreKnown) {
  Ids many;
  for (uint64_t id = 1; id < kDrivesKnownMax; ++id) many.insert(id);
  EraseAt(*Start(1, false, many));
  (void)Start(1, false, {kDrivesKnownMax});
  EXPECT_TRUE(Open()->MayServe(0, 1));
  (void)Start(1, false, {2, 1000, 1001});
  EXPECT_EQ(Kept().all_drives_but.size(), kDrivesKnownMax);
  for (const uint64_t id : {2, 1000, 1001}) EXPECT_TRUE(Open()->MayServe(0, id)) << id;
  EXPECT_FALSE(Open()->MayServe(0, 1));
}

TEST_F(MissedErasuresTest, WhatIsStruckOutIsForgottenWithTheStart) {
  const Names slabs = {SlabNameOf(5, "slab-3.terrace"), SlabNameOf(5, "slab-4.terrace")};
  EraseAt(
      *Start(1, false, {5}, {.slabs = slabs, .redis = {"00000000000000aa", "00000000000000bb"}}));
  auto missed = Open();
  EXPECT_EQ(missed->missed(0).slabs, slabs);
  missed->UseDrive(0, 5);
  missed->UseMemory(0, 1, false);
  missed->StrikeSlab(0, *slabs.begin());
  missed->StrikeRedis(0, "00000000000000aa");
  missed->AddAbsent(0, {.slabs = {*slabs.rbegin()}, .redis = {"00000000000000bb"}});
  missed->Begin();
  EXPECT_EQ(Kept().slabs, (Names{*slabs.rbegin()}));
  EXPECT_EQ(Kept().redis, (Names{"00000000000000bb"}));
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
  EraseAt(*Start(7, true));
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
  (void)Start(7, true, {5});
  Write(Content() + "x");
  const auto missed = Open();
  EXPECT_EQ(told_count_, 1);
  EXPECT_FALSE(missed->MayServe(0, 5));
  EXPECT_EQ(missed->missed(0).redis, (Names{"00000000000000aa", "00000000000000bb"}));
  EXPECT_FALSE(missed->MayAdopt(0, 7));
}

TEST_F(MissedErasuresTest, WhatCannotBeWrittenIsToldOnceAndTriedAgain) {
  std::ofstream(root_ / "d") << "in the way";
  // A file that is in the way of its directory reads as none.
  const auto missed = Start(1, false, {5});
  const int told_before = told_count_;
  missed->NoteErasure(0);
  ASSERT_TRUE(Soon([&] { return told_count_ == told_before + 1; }));
  EXPECT_FALSE(missed->HasNoted(0));
  fs::remove(root_ / "d");
  ASSERT_TRUE(Soon([&] { return missed->HasNoted(0); }));
  EXPECT_EQ(told_count_, told_before + 1);
  EXPECT_EQ(Kept().all_drives_but, (Ids{5}));
}

TEST_F(MissedErasuresTest, WhatTheStartCouldNotWriteIsTriedAgainWithoutAnyErasure) {
  const fs::path in_the_way = file_.string() + ".new";
  fs::create_directories(in_the_way);
  const auto missed = Start(1, false, {5});
  EXPECT_EQ(told_count_, 1);
  fs::remove(in_the_way);
  ASSERT_TRUE(Soon([&] { return fs::exists(file_); }));
  EXPECT_EQ(Kept(), Missed{});
  EXPECT_FALSE(missed->HasNoted(0));
  EraseAt(*missed);
  EXPECT_EQ(Kept().all_drives_but, (Ids{5}));
}

// All drives that they belong to begin empty. Who has an old copy of one may not find them.
TEST_F(MissedErasuresTest, AnErasureWithoutAnyDriveOverwritesTheKeysInStateDir) {
  const fs::path key = root_ / "keys" / "00.key", elsewhere = root_ / "what the drive keeps of it";
  fs::create_directories(key.parent_path());
  std::ofstream(key) << "a secret";
  fs::create_hard_link(key, elsewhere);
  EraseAt(*Start(1, false, {5}));
  EXPECT_TRUE(fs::exists(key)) << "a drive is there, whose tier destroys its keys";
  const auto without = Start(1, false);
  EXPECT_TRUE(fs::exists(key)) << "nothing is erased";
  EraseAt(*without);
  EXPECT_FALSE(fs::exists(key));
  std::ifstream stream(elsewhere);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(stream), {}), std::string(8, '\0'));
}

}  // namespace
}  // namespace terrace

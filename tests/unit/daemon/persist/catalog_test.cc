#include "daemon/persist/catalog.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "unit/daemon/persist/catalog_fixture.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

TEST_F(CatalogTest, EndIsBoundedThoughATableHangs) {
  std::promise<void> disk, read;
  std::shared_future<void> is_well = disk.get_future().share();
  Catalog::Links links = LinksOf();
  links.read_entry = [is_well, &read](uint32_t, uint32_t, std::vector<std::byte>*) {
    read.set_value();
    is_well.wait();
    return Status(StatusCode::kIo, "too late", EIO);
  };
  std::string why;
  Catalog catalog(OptionsOf());
  catalog.Open(&why);
  catalog.Start(std::move(links));
  catalog.OnEntryWritten(0, 0);
  EXPECT_EQ(catalog.StopClean(10'000).code(), StatusCode::kBusy);
  read.get_future().wait();
  EXPECT_FALSE(catalog.Abandon(10'000));
  disk.set_value();
  EXPECT_TRUE(catalog.Abandon(kWaitUs));
}

TEST_F(CatalogTest, FirstOpenIsNotBelieved) {
  Catalog catalog(OptionsOf());
  std::string why;
  EXPECT_FALSE(catalog.Open(&why));
  EXPECT_EQ(why, "there was none");
}

TEST_F(CatalogTest, CleanStopIsBelievedOnceAndHoldsWhatTheTablesSay) {
  {
    Catalog catalog(OptionsOf());
    std::string why;
    catalog.Open(&why);
    catalog.Start(LinksOf());
    catalog.Rewrite({});
    WaitUntilCataloged(catalog, Fill(catalog, 0, 3000));
    for (uint32_t slot = 0; slot < 3000; slot += 3) {
      tables_.Write({0, slot}, slot % 2 ? SlabEntryState::kFree : SlabEntryState::kQuarantined, 9);
      catalog.OnEntryWritten(0, slot);
    }
    ASSERT_TRUE(catalog.StopClean(kWaitUs).ok());
  }
  {
    Catalog catalog(OptionsOf());
    std::string why;
    EXPECT_TRUE(catalog.Open(&why)) << why;
    EXPECT_EQ(Extents(catalog), tables_.NotFree());
    catalog.Start(LinksOf());
  }
  // Opened and not closed in order: whatever happened since, it is not believed again.
  Catalog catalog(OptionsOf());
  std::string why;
  EXPECT_FALSE(catalog.Open(&why));
  EXPECT_EQ(why, "it was not closed by a clean stop");
}

TEST_F(CatalogTest, KilledProcessLeavesRecordsThatAreNotBelieved) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Catalog catalog(OptionsOf());
    std::string why;
    catalog.Open(&why);
    catalog.Start(LinksOf());
    catalog.Rewrite({});
    WaitUntilCataloged(catalog, Fill(catalog, 0, 500));
    _exit(0);
  }
  int outcome = 0;
  ASSERT_EQ(waitpid(child, &outcome, 0), child);
  ASSERT_EQ(outcome, 0);
  Catalog catalog(OptionsOf());
  std::string why;
  EXPECT_FALSE(catalog.Open(&why));
  // What was cataloged has survived the process all the same.
  EXPECT_EQ(Extents(catalog).size(), 500u);
}

TEST_F(CatalogTest, SlotWaitsOnceHoweverOftenItChanges) {
  Catalog catalog(OptionsOf());
  std::string why;
  catalog.Open(&why);
  for (int change = 0; change < 1000; ++change) {
    tables_.Write({3, 5}, SlabEntryState::kUsed, static_cast<uint64_t>(change));
    catalog.OnEntryWritten(3, 5);
  }
  EXPECT_EQ(catalog.stats().slots_waiting, 1u);
  catalog.Start(LinksOf());
  WaitUntilCataloged(catalog, {{3, 5}});
  EXPECT_EQ(tables_.reads(), 1u);
}

TEST(DirtySlotsTest, AnswerThatAChangeHasOvertakenIsNotGiven) {
  DirtySlots slots;
  const SlotName a{.slab = 1, .slot = 70}, b{.slab = 2, .slot = 0};
  std::vector<SlotName> taken, answers;
  slots.Add(a);
  slots.Add(b);
  slots.Take(10, &taken);
  EXPECT_EQ(taken, (std::vector<SlotName>{a, b}));
  slots.Add(a);  // while it is looked at
  EXPECT_TRUE(slots.Answer(taken));
  EXPECT_FALSE(slots.TakeAnswers(10, &answers));
  EXPECT_EQ(answers, std::vector<SlotName>{b});
  taken.clear();
  slots.Take(10, &taken);
  EXPECT_EQ(taken, std::vector<SlotName>{a});
  slots.Answer(taken);
  slots.Add(a);  // between look and answer, and looked at again by the time it is asked for
  slots.Take(10, &taken);
  answers.clear();
  slots.TakeAnswers(10, &answers);
  EXPECT_TRUE(answers.empty());
  EXPECT_TRUE(slots.Answer(std::span(&a, 1)));
  slots.TakeAnswers(10, &answers);
  EXPECT_EQ(answers, std::vector<SlotName>{a});
  EXPECT_EQ(slots.waiting_count(), 0u);
}

TEST_F(CatalogTest, RewriteForgetsWhatTheTablesDoNotHold) {
  MakeClean(200);
  for (uint32_t slot = 0; slot < 100; ++slot) {
    tables_.Write({0, slot}, SlabEntryState::kFree, 1);
  }
  tables_.Write({4, 17}, SlabEntryState::kUsed, 1);
  {
    Catalog catalog(OptionsOf());
    std::string why;
    catalog.Open(&why);
    // Slab 9 was taken away: nobody names it.
    catalog.Rewrite({{.slab = 0, .slot_count = 300}, {.slab = 4, .slot_count = 18}});
    EXPECT_FALSE(catalog.stats().is_complete);
    catalog.Start(LinksOf());
    ASSERT_TRUE(catalog.StopClean(kWaitUs).ok());
  }
  Catalog catalog(OptionsOf());
  std::string why;
  ASSERT_TRUE(catalog.Open(&why)) << why;
  EXPECT_EQ(Extents(catalog), tables_.NotFree());
}

TEST_F(CatalogTest, EntryThatCannotBeReadBackLeavesNoMark) {
  Catalog catalog(OptionsOf());
  std::string why;
  catalog.Open(&why);
  catalog.Start(LinksOf());
  catalog.Rewrite({});
  tables_.Write({0, 1}, SlabEntryState::kUsed, 1);
  tables_.MakeUnreadable({0, 1});
  catalog.OnEntryWritten(0, 1);
  EXPECT_EQ(catalog.StopClean(kWaitUs).code(), StatusCode::kGone);
  Catalog next(OptionsOf());
  EXPECT_FALSE(next.Open(&why));
}

TEST_F(CatalogTest, GroupsPriorsAndAuditSurviveARewrite) {
  {
    Catalog catalog(OptionsOf());
    std::string why;
    catalog.Open(&why);
    catalog.Start(LinksOf());
    for (const uint64_t low : {1, 3}) {
      catalog.KeepGroup(GroupId{.low = low, .high = 2}, "a group's text");
    }
    catalog.KeepGroup(GroupId{.low = 3, .high = 2}, "");  // forgotten
    catalog.KeepPrior("hits", "\1\2\3");
    catalog.KeepAudit("reset by uid 7");
    catalog.Rewrite({});
    ASSERT_TRUE(catalog.StopClean(kWaitUs).ok());
  }
  Catalog catalog(OptionsOf());
  std::string why;
  catalog.Open(&why);
  std::map<std::string, std::string> groups, audit;
  const auto into = [](std::map<std::string, std::string>* map) {
    return [map](std::string_view key, std::string_view value) {
      map->emplace(std::string(key), std::string(value));
    };
  };
  ASSERT_TRUE(catalog.db()->ForEachGroup(into(&groups)).ok());
  ASSERT_TRUE(catalog.db()->ForEachAudit(into(&audit)).ok());
  EXPECT_EQ(groups, (std::map<std::string, std::string>{
                        {ToHex(GroupId{.low = 1, .high = 2}), "a group's text"}}));
  EXPECT_EQ(audit, (std::map<std::string, std::string>{{"0", "reset by uid 7"}}));
  EXPECT_EQ(catalog.db()->GetPrior("hits").value(), "\1\2\3");
  EXPECT_EQ(catalog.db()->GetPrior("misses").code(), StatusCode::kNotFound);
}

TEST_F(CatalogTest, AuditKeepsTheNewestLines) {
  CatalogDb::Opened opened = CatalogDb::Open(OptionsOf().db);
  ASSERT_NE(opened.db, nullptr);
  CatalogChanges changes;
  for (uint64_t line = 0; line < kAuditRecordsMax + 5; ++line) {
    changes.audit.push_back(std::to_string(line));
  }
  ASSERT_TRUE(opened.db->Apply(changes).ok());
  ASSERT_TRUE(opened.db->MarkProven().ok());
  opened.db.reset();
  opened = CatalogDb::Open(OptionsOf().db);  // counts on where it was
  changes.Clear();
  changes.audit = {std::string(2 * kAuditRecordBytesMax, 'x')};
  ASSERT_TRUE(opened.db->Apply(changes).ok());
  std::vector<std::pair<std::string, std::string>> lines;
  ASSERT_TRUE(opened.db
                  ->ForEachAudit([&](std::string_view key, std::string_view value) {
                    lines.emplace_back(key, value);
                  })
                  .ok());
  ASSERT_EQ(lines.size(), kAuditRecordsMax);
  EXPECT_EQ(lines.front(), std::pair(std::string("6"), std::string("6")));
  EXPECT_EQ(lines.back().first, std::to_string(kAuditRecordsMax + 5));
  EXPECT_EQ(lines.back().second.size(), kAuditRecordBytesMax);
}

TEST_F(CatalogTest, MemoryStaysUnderItsLimit) {
  Catalog::Options options = OptionsOf();
  Catalog catalog(options);
  std::string why;
  catalog.Open(&why);
  catalog.Start(LinksOf());
  catalog.Rewrite({});
  uint64_t highest_bytes = 0;
  // 30,000 entries of 272 bytes three times over: three times the limit.
  for (int round = 0; round < 3; ++round) {
    WaitUntilCataloged(catalog, Fill(catalog, 0, 30'000));
    highest_bytes = std::max(highest_bytes, catalog.stats().memory_bytes);
    const std::lock_guard lock(mutex_);
    cataloged_.clear();
  }
  EXPECT_GT(highest_bytes, 0u);
  EXPECT_LE(highest_bytes, options.db.memory_bytes);
}

// ---- a directory that was damaged ----

void FlipBits(const fs::path& path, uint64_t every_bytes) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const uint64_t length_bytes = fs::file_size(path);
  for (uint64_t at = std::min(every_bytes, length_bytes) / 2; at < length_bytes;
       at += every_bytes) {
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 0x10));
  }
}

// Opens whatever lies there; true if it opened, was believed and every record could be read.
bool IsBelievedWhole(const CatalogDb::Options& options) {
  CatalogDb::Opened opened = CatalogDb::Open(options);
  EXPECT_NE(opened.db, nullptr) << opened.why;
  if (opened.db == nullptr || !opened.is_believed) return false;
  const auto all = [](SlotName, std::span<const std::byte>) { return true; };
  return opened.db->ForEachExtent(all).ok();
}

class DamagedCatalogTest : public CatalogTest, public testing::WithParamInterface<const char*> {};

TEST_P(DamagedCatalogTest, FlippedBitsAreFoundAndAnotherCatalogTakesItsPlace) {
  MakeClean(20'000);
  const std::vector<fs::path> files = Files(GetParam());
  ASSERT_FALSE(files.empty());
  for (const fs::path& file : files) FlipBits(file, 512);
  EXPECT_FALSE(IsBelievedWhole(OptionsOf().db));
}

// PROMISE: T18 files that are missing
TEST_P(DamagedCatalogTest, MissingFileIsFound) {
  MakeClean(20'000);
  for (const fs::path& file : Files(GetParam())) fs::remove(file);
  EXPECT_FALSE(IsBelievedWhole(OptionsOf().db));
}

// PROMISE: T18 files that are cut
TEST_P(DamagedCatalogTest, CutFileIsFound) {
  MakeClean(20'000);
  for (const fs::path& file : Files(GetParam())) fs::resize_file(file, fs::file_size(file) / 2);
  EXPECT_FALSE(IsBelievedWhole(OptionsOf().db));
}

INSTANTIATE_TEST_SUITE_P(Files, DamagedCatalogTest,
                         testing::Values("MANIFEST", "CURRENT", ".sst", ".log", "clean"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '.');
                           return name;
                         });

TEST_F(CatalogTest, TheLatestTwoDamagedCopiesAreKept) {
  for (int round = 0; round < 4; ++round) {
    MakeClean(10);
    std::ofstream(directory_ / "catalog/round") << round;
    for (const fs::path& file : Files("CURRENT")) fs::remove(file);
    for (const fs::path& file : Files("MANIFEST")) FlipBits(file, 64);
    std::ofstream(directory_ / "catalog/CURRENT") << "nonsense\n";
    std::string why;
    Catalog catalog(OptionsOf());
    EXPECT_FALSE(catalog.Open(&why));
    EXPECT_NE(why.find("catalog.old"), std::string::npos) << why;
    EXPECT_TRUE(Extents(catalog).empty());
    catalog.Start(LinksOf());
    ASSERT_EQ(troubles_.size(), round + 1u);
    EXPECT_NE(troubles_[round].find("; it is now " + directory_ / "catalog.old"), std::string::npos)
        << troubles_[round];
  }
  size_t copies = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(directory_ / ".")) ++copies;
  EXPECT_EQ(copies, 3u);
  const auto round_of = [this](const char* name) {
    std::ifstream file(directory_ / name + "/round");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(round_of("catalog.old"), "3");
  EXPECT_EQ(round_of("catalog.older"), "2");
}

TEST_F(CatalogTest, OldCopyOfTheDirectoryIsNotBelieved) {
  MakeClean(10);
  fs::copy(directory_ / "catalog", directory_ / "copy", fs::copy_options::recursive);
  {
    Catalog catalog(OptionsOf());
    std::string why;
    ASSERT_TRUE(catalog.Open(&why));
    catalog.Start(LinksOf());
    Fill(catalog, 1, 10);
    ASSERT_TRUE(catalog.StopClean(kWaitUs).ok());
  }
  // The database of the older stop under the mark of the newer one.
  fs::copy_file(directory_ / "catalog/clean", directory_ / "copy/clean",
                fs::copy_options::overwrite_existing);
  fs::remove_all(directory_ / "catalog");
  fs::rename(directory_ / "copy", directory_ / "catalog");
  Catalog catalog(OptionsOf());
  std::string why;
  EXPECT_FALSE(catalog.Open(&why));
}

TEST_F(CatalogTest, CatalogInUseIsLeftAlone) {
  Catalog catalog(OptionsOf());
  std::string why;
  catalog.Open(&why);
  catalog.Start(LinksOf());
  Catalog second(OptionsOf());
  EXPECT_FALSE(second.Open(&why));
  EXPECT_EQ(second.db(), nullptr);
  EXPECT_FALSE(fs::exists(directory_ / "catalog.old"));
}

TEST_F(CatalogTest, CatalogThatEndsItsReaderIsOpenedOnce) {
  MakeClean(10);
  {
    Catalog catalog(OptionsOf());
    std::string why;
    EXPECT_TRUE(catalog.Open(&why)) << why;
  }  // before Start: as if the process had died of what it read
  Catalog catalog(OptionsOf());
  std::string why;
  EXPECT_FALSE(catalog.Open(&why));
  EXPECT_TRUE(Extents(catalog).empty());
  EXPECT_TRUE(fs::exists(directory_ / "catalog.old"));
}

// A process that is killed in its start, again and again.
TEST_F(CatalogTest, OneIntoWhichNothingWasPutTakesNobodysPlace) {
  MakeClean(10);
  for (int start = 0; start < 5; ++start) {
    Catalog catalog(OptionsOf());
    std::string why;
    EXPECT_EQ(catalog.Open(&why), start == 0) << why;
  }
  const CatalogDb::Opened opened = CatalogDb::OpenToLook({.directory = directory_ / "catalog.old"});
  ASSERT_NE(opened.db, nullptr) << opened.why;
  size_t extents = 0;
  EXPECT_TRUE(
      opened.db->ForEachExtent([&](SlotName, std::span<const std::byte>) { return ++extents > 0; })
          .ok());
  EXPECT_EQ(extents, 10u);
  EXPECT_FALSE(fs::exists(directory_ / "catalog.older"));
}

TEST_F(CatalogTest, LookingChangesNothing) {
  MakeClean(100);
  {
    const CatalogDb::Opened opened = CatalogDb::OpenToLook(OptionsOf().db);
    ASSERT_NE(opened.db, nullptr) << opened.why;
    EXPECT_TRUE(opened.is_believed);
  }
  Catalog catalog(OptionsOf());
  std::string why;
  EXPECT_TRUE(catalog.Open(&why)) << why;
}

}  // namespace
}  // namespace terrace

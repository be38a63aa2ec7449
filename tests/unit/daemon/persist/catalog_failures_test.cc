// The catalog on a drive that fails: for a moment, for long, from the beginning on.
#include <gtest/gtest.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "unit/daemon/persist/catalog_fixture.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

class FailingFileSystem : public rocksdb::FileSystemWrapper {
 public:
  FailingFileSystem() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "FailingFileSystem"; }

  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* context) override {
    if (is_failing) return Full();
    const rocksdb::IOStatus status = target()->NewWritableFile(name, options, file, context);
    if (status.ok()) *file = std::make_unique<FailingFile>(this, std::move(*file));
    return status;
  }

  rocksdb::IOStatus NewSequentialFile(const std::string& name, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* file,
                                      rocksdb::IODebugContext* context) override {
    if (is_unreadable) return rocksdb::IOStatus::IOError(name, "Input/output error");
    return target()->NewSequentialFile(name, options, file, context);
  }
  rocksdb::IOStatus NewRandomAccessFile(const std::string& name,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                        rocksdb::IODebugContext* context) override {
    if (is_unreadable) return rocksdb::IOStatus::IOError(name, "Input/output error");
    return target()->NewRandomAccessFile(name, options, file, context);
  }

  // What it says while it fails: a full drive, after which the database may go on.
  rocksdb::IOStatus Full() {
    ++refusals;
    rocksdb::IOStatus status = rocksdb::IOStatus::NoSpace("planted");
    status.SetRetryable(true);
    return status;
  }
  std::atomic<bool> is_failing = false, is_unreadable = false;
  std::atomic<int> syncs_to_fail = 0;
  std::atomic<int> refusals = 0;

 private:
  class FailingFile : public rocksdb::FSWritableFileOwnerWrapper {
   public:
    FailingFile(FailingFileSystem* owner, std::unique_ptr<rocksdb::FSWritableFile> file)
        : FSWritableFileOwnerWrapper(std::move(file)), owner_(owner) {}
    rocksdb::IOStatus Append(const rocksdb::Slice& bytes, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* context) override {
      if (owner_->is_failing) return owner_->Full();
      return target()->Append(bytes, options, context);
    }
    rocksdb::IOStatus Append(const rocksdb::Slice& bytes, const rocksdb::IOOptions& options,
                             const rocksdb::DataVerificationInfo& verification,
                             rocksdb::IODebugContext* context) override {
      if (owner_->is_failing) return owner_->Full();
      return target()->Append(bytes, options, verification, context);
    }
    rocksdb::IOStatus Sync(const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* context) override {
      if (owner_->is_failing) return owner_->Full();
      if (owner_->syncs_to_fail > 0) {
        --owner_->syncs_to_fail;
        return owner_->Full();
      }
      return target()->Sync(options, context);
    }

   private:
    FailingFileSystem* owner_;
  };
};

class FailingCatalogTest : public CatalogTest {
 protected:
  Catalog::Options FailingOptions() {
    Catalog::Options options = OptionsOf();
    options.db.env = env_.get();
    options.sync_interval_us = 1;  // after each batch
    return options;
  }
  void MakeCleanWithAudit() {
    Catalog catalog(OptionsOf());
    std::string why;
    catalog.Open(&why);
    catalog.Start(LinksOf());
    catalog.Rewrite({});
    catalog.KeepAudit("of before");
    Fill(catalog, 0, 10);
    ASSERT_TRUE(catalog.StopClean(kWaitUs).ok());
  }
  // Tries that all fail, each of which might take the catalog for damaged.
  void ExpectNotOpened(int tries) {
    for (int i = 0; i < tries; ++i) {
      const CatalogDb::Opened opened = CatalogDb::Open(FailingOptions().db);
      EXPECT_EQ(opened.db, nullptr);
      EXPECT_EQ(opened.set_aside, "");
      EXPECT_NE(opened.why, "");
    }
  }
  // Nobody says what has changed since the clean stop; all of it is there.
  void ExpectAllIsThere() {
    EXPECT_FALSE(fs::exists(directory_ / "catalog.old"));
    const CatalogDb::Opened opened = CatalogDb::Open(FailingOptions().db);
    ASSERT_NE(opened.db, nullptr) << opened.why;
    EXPECT_FALSE(opened.is_believed);
    std::vector<std::string> lines;
    (void)opened.db->ForEachAudit(
        [&](std::string_view, std::string_view line) { lines.emplace_back(line); });
    EXPECT_EQ(lines, std::vector<std::string>{"of before"});
  }
  std::shared_ptr<FailingFileSystem> files_ = std::make_shared<FailingFileSystem>();
  std::unique_ptr<rocksdb::Env> env_ = rocksdb::NewCompositeEnv(files_);
};

TEST_F(FailingCatalogTest, LastingFailureSwitchesItOffAndBlocksAreKeptAllTheSame) {
  MakeClean(10);
  {
    Catalog catalog(FailingOptions());
    std::string why;
    ASSERT_TRUE(catalog.Open(&why)) << why;
    catalog.Start(LinksOf());
    files_->is_failing = true;
    WaitUntilCataloged(catalog, Fill(catalog, 1, 100));  // said to be persisted: their entries are
    EXPECT_FALSE(catalog.stats().is_on);
    WaitUntilCataloged(catalog, Fill(catalog, 2, 100));
    ASSERT_EQ(troubles_.size(), 1u);
    EXPECT_NE(troubles_[0].find(directory_ / "catalog"), std::string::npos) << troubles_[0];
    EXPECT_EQ(catalog.StopClean(kWaitUs).code(), StatusCode::kGone);
    files_->is_failing = false;
  }
  Catalog catalog(OptionsOf());
  std::string why;
  EXPECT_FALSE(catalog.Open(&why));
  EXPECT_NE(catalog.db(), nullptr);
}

TEST_F(FailingCatalogTest, DriveThatIsFullForAWhileIsRiddenOut) {
  Catalog::Options options = FailingOptions();
  options.reopen_attempts_max = 1000;
  {
    Catalog catalog(options);
    std::string why;
    catalog.Open(&why);
    catalog.Start(LinksOf());
    catalog.Rewrite({});
    files_->is_failing = true;
    const std::set<SlotName> names = Fill(catalog, 1, 100);
    while (files_->refusals < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    files_->is_failing = false;
    WaitUntilCataloged(catalog, names);
    EXPECT_TRUE(catalog.stats().is_on);
    EXPECT_TRUE(troubles_.empty());
    EXPECT_EQ(catalog.StopClean(kWaitUs).code(), StatusCode::kGone);
  }
  Catalog catalog(OptionsOf());
  std::string why;
  EXPECT_FALSE(catalog.Open(&why));  // to be on the safe side
  EXPECT_EQ(Extents(catalog), tables_.NotFree());
}

TEST_F(FailingCatalogTest, OneThatAFullDriveKeepsFromOpeningStaysAsItIs) {
  MakeCleanWithAudit();
  files_->is_failing = true;
  ExpectNotOpened(3);
  files_->is_failing = false;
  ExpectAllIsThere();
}

TEST_F(FailingCatalogTest, OneThatCannotBeReadForAMomentStaysAsItIs) {
  MakeCleanWithAudit();
  files_->is_unreadable = true;
  ExpectNotOpened(3);
  files_->is_unreadable = false;
  ExpectAllIsThere();
}

// At each of the files that it opens.
TEST_F(FailingCatalogTest, OneForWhichThereAreNoDescriptorsStaysAsItIs) {
  MakeCleanWithAudit();
  const auto open_count = std::distance(fs::directory_iterator("/proc/self/fd"), {});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  int refused_count = 0;
  for (int spare = 0; spare < 12; ++spare) {
    const rlimit few{.rlim_cur = static_cast<rlim_t>(open_count - 1 + spare),
                     .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    CatalogDb::Opened opened = CatalogDb::Open(FailingOptions().db);
    refused_count += opened.db == nullptr ? 1 : 0;
    if (opened.db != nullptr) (void)opened.db->MarkProven();
    opened.db.reset();
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(opened.set_aside, "") << spare << ": " << opened.why;
  }
  EXPECT_GT(refused_count, 2);
  ExpectAllIsThere();
}

// What was set aside is not lost to tries of putting another in its place.
TEST_F(FailingCatalogTest, ADamagedOneIsSetAsideOnceThoughTheDriveIsFull) {
  MakeCleanWithAudit();
  std::ofstream(directory_ / "catalog/CURRENT") << "nonsense\n";
  files_->is_failing = true;
  for (int i = 0; i < 3; ++i) {
    const CatalogDb::Opened opened = CatalogDb::Open(FailingOptions().db);
    EXPECT_EQ(opened.db, nullptr);
    EXPECT_EQ(opened.set_aside, i == 0 ? directory_ / "catalog.old" : "") << opened.why;
  }
  files_->is_failing = false;
  EXPECT_NE(CatalogDb::Open(FailingOptions().db).db, nullptr);
  EXPECT_TRUE(fs::exists(directory_ / "catalog.old/CURRENT"));
  EXPECT_FALSE(fs::exists(directory_ / "catalog.older"));
}

// RocksDB must not be asked again to sync what it failed to sync.
TEST_F(FailingCatalogTest, SyncThatFailsIsRiddenOut) {
  Catalog catalog(FailingOptions());
  std::string why;
  catalog.Open(&why);
  catalog.Start(LinksOf());
  catalog.Rewrite({});
  for (uint32_t slab = 1; slab <= 5; ++slab) {
    files_->syncs_to_fail = 1;
    WaitUntilCataloged(catalog, Fill(catalog, slab, 10));
  }
  EXPECT_TRUE(catalog.stats().is_on);
  EXPECT_EQ(catalog.StopClean(kWaitUs).code(), StatusCode::kGone);
}

TEST_F(FailingCatalogTest, CatalogThatCannotBeMadeIsDoneWithout) {
  files_->is_failing = true;
  Catalog catalog(FailingOptions());
  std::string why;
  EXPECT_FALSE(catalog.Open(&why));
  EXPECT_EQ(catalog.db(), nullptr);
  catalog.OnEntryWritten(7, 1);
  catalog.Start(LinksOf());
  catalog.OnEntryWritten(7, 2);
  WaitUntilCataloged(catalog, {{7, 1}, {7, 2}});
  ASSERT_EQ(troubles_.size(), 1u) << "it is said at the start";
  EXPECT_NE(troubles_[0].find(why), std::string::npos) << troubles_[0];
  EXPECT_EQ(catalog.trouble(), why);
  EXPECT_FALSE(catalog.ReadAudit(9, [](const std::vector<std::string>&) {})) << "nobody knows";
}

// Off from the beginning, or for a while: the next start believes it again.
TEST_F(FailingCatalogTest, ComesBackByItselfAndIsWholeAfterARewrite) {
  for (const bool is_off_at_start : {true, false}) {
    fs::remove_all(directory_ / "catalog");
    cataloged_.clear();
    troubles_.clear();
    Catalog::Options options = FailingOptions();
    options.retry_first_us = options.retry_max_us = 50'000;
    std::map<std::string, std::string> groups;
    {
      Catalog catalog(options);
      std::string why;
      std::atomic<int> back_count = 0;
      Catalog::Links links = LinksOf();
      links.is_back = [&] { ++back_count; };
      files_->is_failing = is_off_at_start;
      catalog.Open(&why);
      catalog.Start(links);
      if (!is_off_at_start) {
        catalog.Rewrite({});
        WaitUntilCataloged(catalog, Fill(catalog, 1, 20));
        files_->is_failing = true;
      }
      WaitUntilCataloged(catalog, Fill(catalog, 2, 20));
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(kWaitUs);
      const auto wait_until = [end](const auto& is_true) {
        while (!is_true() && std::chrono::steady_clock::now() < end) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return is_true();
      };
      ASSERT_TRUE(wait_until([&] { return !catalog.stats().is_on; }));
      EXPECT_NE(catalog.trouble(), "");
      catalog.KeepGroup({.low = 2, .high = 1}, "while off");
      Fill(catalog, 3, 20);
      std::this_thread::sleep_for(std::chrono::milliseconds(120));
      EXPECT_EQ(back_count, 0) << "the drive is full all the while";
      EXPECT_EQ(troubles_.size(), 1u) << "said once";
      files_->is_failing = false;
      ASSERT_TRUE(wait_until([&] { return back_count == 1; }));
      EXPECT_TRUE(catalog.stats().is_on && !catalog.stats().is_complete);
      EXPECT_TRUE(catalog.stats().is_rewriting) << "nobody may compare with it yet";
      EXPECT_EQ(catalog.trouble(), "");
      Fill(catalog, 4, 20);
      std::vector<Catalog::SlabSlots> slabs;
      for (uint32_t slab = 1; slab <= 4; ++slab) slabs.push_back({.slab = slab, .slot_count = 20});
      catalog.Rewrite(slabs);
      ASSERT_TRUE(wait_until([&] { return catalog.stats().is_complete; }));
      EXPECT_TRUE(catalog.StopClean(kWaitUs).ok());
    }
    Catalog catalog(OptionsOf());
    std::string why;
    EXPECT_TRUE(catalog.Open(&why)) << why;
    EXPECT_EQ(Extents(catalog), tables_.NotFree());
    (void)catalog.db()->ForEachGroup(
        [&](std::string_view key, std::string_view value) { groups[std::string(key)] = value; });
    EXPECT_EQ(
        groups,
        (std::map<std::string, std::string>{{ToHex(GroupId{.low = 2, .high = 1}), "while off"}}));
  }
}

// Else a restart would take what it still holds of before for what the tables say. The Rewrite that
// was asked for while it failed is none.
TEST_F(FailingCatalogTest, ThatCameBackIsNotBelievedBeforeItsRewrite) {
  Catalog::Options options = FailingOptions();
  options.reopen_interval_us = 200'000;
  options.retry_first_us = 300'000;
  {
    Catalog catalog(options);
    std::string why;
    std::promise<void> is_back;
    Catalog::Links links = LinksOf();
    links.is_back = [&] { is_back.set_value(); };
    catalog.Open(&why);
    catalog.Start(links);
    catalog.Rewrite({});
    WaitUntilCataloged(catalog, Fill(catalog, 1, 20));
    files_->is_failing = true;
    const std::set<SlotName> names = Fill(catalog, 2, 20);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ASSERT_TRUE(catalog.stats().is_on) << "it still tries";
    catalog.Rewrite({});
    WaitUntilCataloged(catalog, names);
    ASSERT_FALSE(catalog.stats().is_on);
    files_->is_failing = false;
    ASSERT_EQ(is_back.get_future().wait_for(std::chrono::microseconds(kWaitUs)),
              std::future_status::ready);
    EXPECT_EQ(catalog.StopClean(kWaitUs).code(), StatusCode::kGone);
  }
  Catalog catalog(OptionsOf());
  std::string why;
  EXPECT_FALSE(catalog.Open(&why));
}

TEST_F(FailingCatalogTest, NothingIsMadeWhereItsDriveIsNotMounted) {
  fs::create_directory(directory_ / "drive");
  Catalog::Options options = FailingOptions();
  options.db.directory = directory_ / "drive/catalog";
  options.retry_first_us = options.retry_max_us = 10'000;
  Catalog catalog(options);
  std::string why;
  std::promise<void> is_back;
  Catalog::Links links = LinksOf();
  links.is_back = [&] { is_back.set_value(); };
  files_->is_failing = true;
  catalog.Open(&why);
  fs::remove_all(directory_ / "drive");
  catalog.Start(links);
  files_->is_failing = false;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(fs::exists(directory_ / "drive"));
  fs::create_directory(directory_ / "drive");
  EXPECT_EQ(is_back.get_future().wait_for(std::chrono::microseconds(kWaitUs)),
            std::future_status::ready);
}

}  // namespace
}  // namespace terrace

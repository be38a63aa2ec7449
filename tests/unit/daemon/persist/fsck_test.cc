#include "daemon/persist/fsck.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "daemon/persist/slab_files.h"
#include "sim/disk_domain.h"
#include "terrace/open_file.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

using sim::DiskDomain;
using sim::DiskGroup;
using ::testing::HasSubstr;
using Kind = FsckProblemKind;

constexpr uint32_t kBlocks = 40;

class FsckTest : public testing::Test {
 protected:
  FsckTest() {
    std::string pattern = fs::temp_directory_path() / "terrace-fsck-XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  ~FsckTest() override {
    std::error_code error;
    fs::remove_all(root_, error);
  }

  enum class Ending { kClean, kKill };
  // A daemon over two paths that stored kBlocks blocks of one group and ended.
  void LeaveBlocks(Ending ending) {
    DiskDomain domain({.root = root_, .path_count = 2});
    secret_ = domain.secret();
    directories_ = domain.directories();
    domain.RestoreFromTables();
    const std::string content = FormatGroupFile(DiskGroup(), secret_);
    ASSERT_TRUE(WriteGroupFile(domain.groups_directory(), DiskGroup(), secret_).ok());
    domain.catalog().KeepGroup(DiskGroup().Id(), content);
    for (uint32_t owner = 0; owner < kBlocks; ++owner) {
      ASSERT_TRUE(domain.RunUntil([&] { return domain.Store(owner); }));
    }
    domain.Settle();
    if (ending == Ending::kClean) domain.StopClean();
  }
  FsckReport Look(FsckPayloads payloads = FsckPayloads::kLeave) {
    return Run(payloads, FsckMode::kLook);
  }
  FsckReport Repair(FsckPayloads payloads = FsckPayloads::kLeave) {
    return Run(payloads, FsckMode::kRepair);
  }
  FsckReport Run(FsckPayloads payloads, FsckMode mode) {
    FsckReport report;
    std::string why;
    EXPECT_TRUE(RunFsck(OptionsOf(payloads, mode), &report, &why).ok()) << why;
    return report;
  }
  FsckOptions OptionsOf(FsckPayloads payloads, FsckMode mode) const {
    return {.secret = secret_, .directories = directories_, .payloads = payloads, .mode = mode};
  }
  static uint64_t CountOf(const FsckReport& report, Kind kind) {
    return report.counts[static_cast<size_t>(kind)];
  }

  SlabFile FirstSlab() const { return ListSlabFiles(directories_[0], secret_).at(0); }
  // The first slots of a slab that hold blocks.
  std::vector<SlabEntry> UsedEntries(const SlabFile& slab) const {
    std::vector<SlabEntry> used;
    const Status status =
        SlabReader(slab, secret_, SlabReader::Access::kRead)
            .VisitTable([&](uint32_t, Status of_entry, const SlabEntry& entry, auto) {
              if (of_entry.ok() && entry.state == SlabEntryState::kUsed) used.push_back(entry);
            });
    EXPECT_TRUE(status.ok());
    return used;
  }
  static void Damage(const std::string& path, uint64_t offset_bytes) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(offset_bytes));
    file.write("damaged", 7);
  }
  // Every file below the root but the locks, with its content.
  std::map<std::string, std::string> Everything() const {
    std::map<std::string, std::string> files;
    for (const auto& at : fs::recursive_directory_iterator(root_)) {
      if (!at.is_regular_file() || at.path().filename() == "lock") continue;
      std::ifstream file(at.path(), std::ios::binary);
      files[at.path()] = std::string(std::istreambuf_iterator<char>(file), {});
    }
    return files;
  }
  // What a daemon finds afterwards.
  void ExpectCatalogGives(uint64_t block_count) {
    DiskDomain domain({.root = root_, .path_count = 2});
    EXPECT_TRUE(domain.RestoreFromCatalog());
    EXPECT_EQ(domain.blocks().size(), block_count);
    EXPECT_EQ(domain.tier().stats().quarantined_bytes, 0u);
  }

  std::string root_;
  DomainSecret secret_{};
  std::vector<std::string> directories_;
};

TEST_F(FsckTest, CleanStopLeavesNothingToComplainOf) {
  LeaveBlocks(Ending::kClean);
  const FsckReport report = Look(FsckPayloads::kVerify);
  EXPECT_EQ(report.problem_count(), 0u) << report.problems[0].what;
  EXPECT_TRUE(report.notes.empty()) << report.notes[0];
  EXPECT_EQ(report.catalog, FsckCatalog::kClosed);
  EXPECT_EQ(report.entries_used, kBlocks);
  EXPECT_EQ(report.catalog_records, kBlocks);
  EXPECT_EQ(report.payloads_verified, kBlocks);
  EXPECT_EQ(report.groups, 1u);
}

TEST_F(FsckTest, KillLeavesAnOpenCatalogAndNoProblem) {
  LeaveBlocks(Ending::kKill);
  const FsckReport report = Look(FsckPayloads::kVerify);
  EXPECT_EQ(report.problem_count(), 0u);
  EXPECT_EQ(report.catalog, FsckCatalog::kOpen);
  EXPECT_EQ(report.payloads_verified, kBlocks);
  EXPECT_EQ(Repair().catalog, FsckCatalog::kRewritten);
  EXPECT_EQ(Look().catalog, FsckCatalog::kClosed);
  ExpectCatalogGives(kBlocks);
}

TEST_F(FsckTest, LookingChangesNothing) {
  LeaveBlocks(Ending::kKill);
  const SlabFile slab = FirstSlab();
  Damage(slab.path, slab.geometry.EntryOffsetBytes(0) + 60);
  const std::map<std::string, std::string> before = Everything();
  EXPECT_GT(Look(FsckPayloads::kVerify).problem_count(), 0u);
  EXPECT_EQ(Everything(), before);
}

TEST_F(FsckTest, DomainInUseIsRefusedAndTheProcessNamed) {
  LeaveBlocks(Ending::kClean);
  const DiskDomain domain({.root = root_, .path_count = 2});
  FsckReport report;
  std::string why;
  const Status status = RunFsck(OptionsOf(FsckPayloads::kLeave, FsckMode::kLook), &report, &why);
  EXPECT_EQ(status.code(), StatusCode::kBusy);
  EXPECT_THAT(why, HasSubstr("in use by process " + std::to_string(getpid())));
}

// Its lock is given up when its drive has answered.
TEST_F(FsckTest, OfOneThatWasKilledTheEndIsAwaited) {
  LeaveBlocks(Ending::kClean);
  const pid_t killed = fork();
  if (killed == 0) _exit(0);
  ASSERT_EQ(waitpid(killed, nullptr, 0), killed);
  const OpenFile lock(open((directories_[0] + "/lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(lock.fd(), LOCK_EX), 0);
  const std::string name = std::to_string(killed);
  ASSERT_EQ(ftruncate(lock.fd(), 0), 0);
  ASSERT_EQ(pwrite(lock.fd(), name.data(), name.size(), 0), static_cast<ssize_t>(name.size()));
  std::thread drive([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    flock(lock.fd(), LOCK_UN);
  });
  FsckReport report;
  std::string why;
  EXPECT_TRUE(RunFsck(OptionsOf(FsckPayloads::kLeave, FsckMode::kLook), &report, &why).ok()) << why;
  drive.join();
}

TEST_F(FsckTest, MissingDirectoryIsNotAnEmptyDomain) {
  LeaveBlocks(Ending::kClean);
  directories_.push_back(root_ + "/unmounted/domain");
  FsckReport report;
  std::string why;
  const Status status = RunFsck(OptionsOf(FsckPayloads::kLeave, FsckMode::kLook), &report, &why);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(why, HasSubstr("unmounted"));
}

TEST_F(FsckTest, DamagedEntryIsFoundAndItsSlotGivenBack) {
  LeaveBlocks(Ending::kKill);
  const SlabFile slab = FirstSlab();
  Damage(slab.path, slab.geometry.EntryOffsetBytes(0) + 60);
  FsckReport report = Look();
  EXPECT_EQ(CountOf(report, Kind::kEntryCorrupt), 1u);
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_THAT(report.problems[0].what, HasSubstr("slot 0 of " + slab.path));
  report = Repair();
  EXPECT_TRUE(report.problems[0].is_repaired);
  EXPECT_EQ(report.repaired, 1u);
  EXPECT_EQ(Look(FsckPayloads::kVerify).problem_count(), 0u);
  ExpectCatalogGives(kBlocks - 1);
}

TEST_F(FsckTest, QuarantinedSlotIsGivenBack) {
  LeaveBlocks(Ending::kKill);
  const SlabFile slab = FirstSlab();
  ASSERT_TRUE(SlabReader(slab, secret_, SlabReader::Access::kReadWrite)
                  .WriteEntry({.state = SlabEntryState::kQuarantined, .slot = 1, .generation = 9})
                  .ok());
  EXPECT_EQ(CountOf(Look(), Kind::kEntryQuarantined), 1u);
  EXPECT_EQ(Repair().repaired, 1u);
  EXPECT_EQ(Look().problem_count(), 0u);
  ExpectCatalogGives(kBlocks - 1);
}

// A start from a catalog would take the first of them, and believe an older commit.
TEST_F(FsckTest, OfTwoEntriesOfABlockTheLaterStays) {
  LeaveBlocks(Ending::kKill);
  const SlabFile slab = FirstSlab();
  const std::vector<SlabEntry> used = UsedEntries(slab);
  SlabEntry older = used.back();
  older.slot = used.front().slot;  // whose block is lost thereby
  ASSERT_GT(older.epoch, 0u);
  --older.epoch;
  const SlabReader writer(slab, secret_, SlabReader::Access::kReadWrite);
  ASSERT_TRUE(writer.WriteEntry(older).ok());
  EXPECT_EQ(Look().entries_outdated, 1u);
  const FsckReport report = Repair();
  EXPECT_EQ(report.problem_count(), 0u) << "each crash may leave some";
  EXPECT_EQ(report.repaired, 0u);
  EXPECT_EQ(report.catalog, FsckCatalog::kRewritten);
  EXPECT_EQ(UsedEntries(slab).size(), used.size() - 1);
  EXPECT_EQ(Look().entries_outdated, 0u);
  ExpectCatalogGives(kBlocks - 1);
}

TEST_F(FsckTest, DamagedPayloadIsFoundOnlyWhenVerifying) {
  LeaveBlocks(Ending::kClean);
  const SlabFile slab = FirstSlab();
  const SlabEntry entry = UsedEntries(slab).at(0);
  Damage(slab.path, slab.geometry.PayloadOffsetBytes(entry.slot) + 4097);
  EXPECT_EQ(Look().problem_count(), 0u);
  FsckReport report = Look(FsckPayloads::kVerify);
  EXPECT_EQ(CountOf(report, Kind::kPayloadMismatch), 1u);
  EXPECT_EQ(report.payloads_verified, kBlocks - 1);
  EXPECT_EQ(Repair(FsckPayloads::kVerify).repaired, 1u);
  EXPECT_EQ(Look(FsckPayloads::kVerify).problem_count(), 0u);
  ExpectCatalogGives(kBlocks - 1);
}

// Their files may come back with a path or a directory.
TEST_F(FsckTest, BlocksOfUnknownGroupsStayUnlessTheyAreNamed) {
  LeaveBlocks(Ending::kKill);
  const fs::path groups = directories_[0] + "/groups", elsewhere = root_ + "/groups";
  fs::rename(groups, elsewhere);
  fs::remove_all(directories_[0] + "/catalog");
  FsckReport report = Look();
  EXPECT_EQ(report.catalog, FsckCatalog::kNone);
  EXPECT_EQ(CountOf(report, Kind::kEntryUnknownGroup), kBlocks);
  report = Repair();
  EXPECT_EQ(report.repaired, 0u);
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_THAT(report.notes[0], HasSubstr("--free-unknown-groups"));
  fs::rename(elsewhere, groups);
  EXPECT_EQ(Look(FsckPayloads::kVerify).payloads_verified, kBlocks);
  fs::remove_all(groups);
  fs::remove_all(directories_[0] + "/catalog");
  FsckOptions options = OptionsOf(FsckPayloads::kLeave, FsckMode::kRepair);
  options.unknown_groups = FsckUnknownGroups::kFree;
  std::string why;
  FsckReport freed;
  ASSERT_TRUE(RunFsck(options, &freed, &why).ok()) << why;
  EXPECT_EQ(freed.repaired, kBlocks);
  EXPECT_TRUE(freed.notes.empty());
  ExpectCatalogGives(0);
}

// As the daemon, which copies group files from path to path.
TEST_F(FsckTest, GroupFilesOfEveryPathAreSeen) {
  LeaveBlocks(Ending::kKill);
  std::ranges::reverse(directories_);
  const FsckReport report = Repair(FsckPayloads::kVerify);
  EXPECT_EQ(report.groups, 1u);
  EXPECT_EQ(report.problem_count(), 0u) << report.problems[0].what;
  EXPECT_EQ(report.payloads_verified, kBlocks);
}

TEST_F(FsckTest, CatalogThatDisagreesWithTheTablesIsFoundAndWrittenAnew) {
  LeaveBlocks(Ending::kClean);
  const SlabFile slab = FirstSlab();
  std::vector<SlabEntry> used = UsedEntries(slab);
  ASSERT_GE(used.size(), 3u);
  {
    const SlabReader writer(slab, secret_, SlabReader::Access::kReadWrite);
    // One slot freed, one amended, one taken behind the catalog's back.
    ASSERT_TRUE(writer.WriteEntry({.slot = used[0].slot, .generation = 9}).ok());
    used[1].priority ^= 1;
    ASSERT_TRUE(writer.WriteEntry(used[1]).ok());
  }
  FsckReport report = Look();
  EXPECT_EQ(CountOf(report, Kind::kCatalogStray), 1u);
  EXPECT_EQ(CountOf(report, Kind::kCatalogDiffers), 1u);
  EXPECT_EQ(report.problem_count(), 2u);
  report = Repair();
  EXPECT_EQ(report.repaired, 2u);
  EXPECT_EQ(report.catalog, FsckCatalog::kRewritten);
  EXPECT_EQ(Look().problem_count(), 0u);
  ExpectCatalogGives(kBlocks - 1);
}

TEST_F(FsckTest, SlotThatTheCatalogDoesNotKnowIsFound) {
  LeaveBlocks(Ending::kClean);
  {
    CatalogDb::Opened opened = CatalogDb::Open(
        {.directory = directories_[0] + "/catalog", .slab_directories = directories_});
    ASSERT_TRUE(opened.is_believed);
    CatalogChanges changes;
    const SlabFile slab = FirstSlab();
    changes.extents = {{.name = {slab.index, UsedEntries(slab).at(0).slot}}};
    ASSERT_TRUE(opened.db->Apply(changes).ok());
    ASSERT_TRUE(opened.db->MarkProven().ok());
    ASSERT_TRUE(opened.db->CloseClean().ok());
  }
  EXPECT_EQ(CountOf(Look(), Kind::kCatalogLacks), 1u);
  EXPECT_EQ(Repair().repaired, 1u);
  ExpectCatalogGives(kBlocks);
}

TEST_F(FsckTest, DamagedCatalogIsMovedAwayAndWrittenAnew) {
  LeaveBlocks(Ending::kClean);
  for (const auto& file : fs::directory_iterator(directories_[0] + "/catalog")) {
    if (file.path().extension() == ".sst") Damage(file.path(), file.file_size() / 3);
  }
  const FsckReport report = Look();
  EXPECT_EQ(report.catalog, FsckCatalog::kDamaged);
  EXPECT_EQ(CountOf(report, Kind::kCatalogDamaged), 1u);
  EXPECT_EQ(Repair().catalog, FsckCatalog::kRewritten);
  EXPECT_TRUE(fs::exists(directories_[0] + "/catalog.old/CURRENT"));
  EXPECT_EQ(Look().problem_count(), 0u);
  ExpectCatalogGives(kBlocks);
}

TEST_F(FsckTest, SlabOfAnotherSecretIsNamedAndLeftAlone) {
  LeaveBlocks(Ending::kClean);
  secret_[0] ^= std::byte{1};
  const auto before = Everything();
  const FsckReport report = Repair();
  EXPECT_GT(CountOf(report, Kind::kSlabUnreadable), 0u);
  EXPECT_EQ(CountOf(report, Kind::kGroupUnreadable), 1u);
  EXPECT_EQ(report.entries_used, 0u);
  for (const auto& [path, content] : Everything()) {
    if (!path.ends_with(".terrace")) continue;
    EXPECT_EQ(content, before.at(path));
  }
  secret_[0] ^= std::byte{1};
  EXPECT_EQ(Look().catalog, FsckCatalog::kOpen) << "an empty catalog would be believed";
  EXPECT_EQ(Look(FsckPayloads::kVerify).payloads_verified, kBlocks);
}

TEST_F(FsckTest, CatalogIsNotWrittenAnewWithoutAllSlabs) {
  LeaveBlocks(Ending::kClean);
  const SlabFile slab = FirstSlab();
  Damage(slab.path, 30);  // its superblock
  FsckReport report = Repair();
  EXPECT_EQ(CountOf(report, Kind::kSlabUnreadable), 1u);
  const uint64_t strays = CountOf(report, Kind::kCatalogStray);
  EXPECT_GT(strays, 1u);
  EXPECT_EQ(report.catalog, FsckCatalog::kOpen);
  EXPECT_EQ(report.repaired, 0u);
  ASSERT_EQ(report.problems.size(), 2u) << "its records are told of together";
  EXPECT_EQ(report.problems[1].count, strays);
}

TEST_F(FsckTest, ListOfProblemsIsBoundedAndTheirCountIsNot) {
  LeaveBlocks(Ending::kKill);
  fs::remove_all(directories_[0] + "/groups");
  fs::remove_all(directories_[0] + "/catalog");
  FsckOptions options = OptionsOf(FsckPayloads::kLeave, FsckMode::kLook);
  options.problems_listed_max = 5;
  FsckReport report;
  std::string why;
  ASSERT_TRUE(RunFsck(options, &report, &why).ok());
  EXPECT_EQ(report.problems.size(), 5u);
  EXPECT_EQ(report.problem_count(), kBlocks);
}

}  // namespace
}  // namespace terrace

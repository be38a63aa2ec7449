#include "daemon/domain/recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <ostream>
#include <span>
#include <vector>

#include "daemon/persist/group_files.h"
#include "daemon/persist/slab_files.h"
#include "sim/disk_domain.h"
#include "sim/fakes.h"
#include "tiers/arena/slot_table.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

using sim::DiskDomain;
using sim::DiskGroup;

constexpr uint32_t kBlocks = 40;

// A store above the drives of a domain.
class DomainStore {
 public:
  explicit DomainStore(DiskDomain& domain, uint32_t groups_max = 16)
      : table_(SlotTableBytes(kSegmentBytesMin, 1)) {
    DomainOptions options{.name = "domain", .secret = domain.secret()};
    options.segment_bytes = kSegmentBytesMin;
    options.segments_max = 1;
    options.arena = &arena_;
    options.slot_table = table_;
    options.lower_tiers = {&domain.tier()};
    StoreOptions store_options;
    store_options.domains = {options};
    store_options.segments_total = 1;
    store_options.fenced_bytes_max = kGiB;
    store_options.blocks_max = 4096;
    store_options.groups_max = groups_max;
    store_ = std::make_unique<Store>(store_options, clock_, random_, offload_, listener_);
  }
  Store* get() { return store_.get(); }

 private:
  sim::VirtualClock clock_;
  sim::SeededRandom random_{1};
  sim::PlainOffload offload_;
  sim::RecordingListener listener_;
  sim::PlainArena arena_{kSegmentBytesMin, 1};
  std::vector<std::byte> table_;
  std::unique_ptr<Store> store_;
};

class RecoveryTest : public testing::Test {
 protected:
  RecoveryTest() {
    std::string pattern = fs::temp_directory_path() / "terrace-recovery-XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  ~RecoveryTest() override {
    std::error_code error;
    fs::remove_all(root_, error);
  }
  DiskDomain::Options OptionsOf() const {
    return {.root = root_, .path_count = path_count_, .secret_begin = secret_begin_};
  }

  enum class Ending { kClean, kKill };
  // A daemon that stored kBlocks blocks of one group and ended.
  void LeaveBlocks(Ending ending) {
    DiskDomain domain(OptionsOf());
    domain_secret_ = domain.secret();
    domain.RestoreFromTables();
    ASSERT_TRUE(WriteGroupFile(domain.groups_directory(), DiskGroup(), domain.secret()).ok());
    domain.catalog().KeepGroup(DiskGroup().Id(), FormatGroupFile(DiskGroup(), domain.secret()));
    for (uint32_t owner = 0; owner < kBlocks; ++owner) {
      ASSERT_TRUE(domain.RunUntil([&] { return domain.Store(owner); }));
    }
    domain.Settle();
    if (ending == Ending::kClean) domain.StopClean();
  }
  // A successor's start; its catalog runs, and the domain lives on until the end of the test.
  RecoverySummary Recover() {
    store_.reset();
    domain_.reset();
    domain_ = std::make_unique<DiskDomain>(OptionsOf());
    store_ = std::make_unique<DomainStore>(*domain_, groups_max_);
    RecoverySummary summary;
    const Status status = RestoreDomain({.secret = domain_->secret(),
                                         .groups_directory = domain_->groups_directory(),
                                         .other_groups_directories = other_groups_,
                                         .slab_directories = domain_->directories(),
                                         .restoration = &store_->get()->restoration(),
                                         .tier = &domain_->tier(),
                                         .catalog = &domain_->catalog()},
                                        &summary);
    EXPECT_TRUE(status.ok()) << status.what();
    store_->get()->CheckInvariants(CheckScope::kFull);
    domain_->StartCatalog();
    return summary;
  }
  fs::path Only(const std::string& directory, const std::string& ending) const {
    for (const auto& file : fs::directory_iterator(directory)) {
      if (file.path().string().ends_with(ending)) return file.path();
    }
    ADD_FAILURE() << "no " << ending << " in " << directory;
    return {};
  }
  std::string CatalogDirectory() const { return root_ + "/path0/domain/catalog"; }
  CatalogDb::Options CatalogOptions() const {
    return {.directory = CatalogDirectory(), .slab_directories = {root_ + "/path0/domain"}};
  }
  // A directory of slabs as it is now, to be brought back later.
  void TakeSnapshot(const std::string& path) {
    fs::remove_all(root_ + "/snapshot");
    fs::copy(root_ + path + "/domain", root_ + "/snapshot", fs::copy_options::recursive);
  }
  void BringBack(const std::string& path) {
    fs::remove_all(root_ + path + "/domain");
    fs::rename(root_ + "/snapshot", root_ + path + "/domain");
  }
  // A path's slabs are older than the catalog, whose own files are as it left them.
  void ExpectCatalogUnbelieved() {
    const RecoverySummary summary = Recover();
    EXPECT_EQ(summary.source, RecoverySource::kTables);
    EXPECT_THAT(summary.why, testing::HasSubstr("the slabs are not those of its last clean stop"));
    EXPECT_FALSE(fs::exists(CatalogDirectory() + ".old")) << "what else it knows holds";
    EXPECT_EQ(summary.restored.blocks, summary.counts.entries_kept);
  }

  std::string root_;
  uint32_t path_count_ = 1;
  uint32_t groups_max_ = 16;
  uint8_t secret_begin_ = 3;
  std::vector<std::string> other_groups_;
  DomainSecret domain_secret_{};
  std::unique_ptr<DiskDomain> domain_;
  std::unique_ptr<DomainStore> store_;
};

TEST_F(RecoveryTest, NothingIsThereAtTheFirstStart) {
  const RecoverySummary summary = Recover();
  EXPECT_EQ(summary.source, RecoverySource::kTables);
  EXPECT_EQ(summary.why, "there was none");
  EXPECT_EQ(summary.restored.blocks, 0u);
  EXPECT_TRUE(summary.notes.empty());
}

TEST_F(RecoveryTest, CleanStopIsFollowedByAStartFromTheCatalog) {
  LeaveBlocks(Ending::kClean);
  const RecoverySummary summary = Recover();
  EXPECT_EQ(summary.source, RecoverySource::kCatalog) << summary.why;
  EXPECT_EQ(summary.groups, 1u);
  EXPECT_EQ(summary.restored.blocks, kBlocks);
  EXPECT_TRUE(summary.notes.empty()) << summary.notes[0];
}

TEST_F(RecoveryTest, KillIsFollowedByAStartFromTheTablesAndThenByOneFromTheCatalog) {
  LeaveBlocks(Ending::kKill);
  RecoverySummary summary = Recover();
  EXPECT_EQ(summary.source, RecoverySource::kTables);
  EXPECT_EQ(summary.why, "it was not closed by a clean stop");
  EXPECT_EQ(summary.restored.blocks, kBlocks);
  domain_->StopClean();  // the catalog has been written anew by then
  summary = Recover();
  EXPECT_EQ(summary.source, RecoverySource::kCatalog) << summary.why;
  EXPECT_EQ(summary.restored.blocks, kBlocks);
}

TEST_F(RecoveryTest, RemovedCatalogIsFollowedByAStartFromTheTables) {
  LeaveBlocks(Ending::kClean);
  fs::remove_all(CatalogDirectory());
  const RecoverySummary summary = Recover();
  EXPECT_EQ(summary.source, RecoverySource::kTables);
  EXPECT_EQ(summary.restored.blocks, kBlocks);
}

TEST_F(RecoveryTest, CatalogDamagedInTheMiddleIsFollowedByAStartFromTheTables) {
  LeaveBlocks(Ending::kClean);
  const fs::path table = Only(CatalogDirectory(), ".sst");
  std::fstream file(table, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(fs::file_size(table) / 3));
  file.write("damaged", 7);
  file.close();
  RecoverySummary summary = Recover();
  EXPECT_EQ(summary.source, RecoverySource::kTables);
  EXPECT_EQ(summary.restored.blocks, kBlocks);
  EXPECT_TRUE(fs::exists(CatalogDirectory() + ".old"));
  domain_->StopClean();
  fs::remove(Only(root_ + "/path0/domain/groups", ".group"));
  summary = Recover();  // from the new one, which knows the group too
  EXPECT_EQ(summary.source, RecoverySource::kCatalog) << summary.why;
  EXPECT_EQ(summary.restored.blocks, kBlocks);
}

// The catalog says of such a slot what the table says, so both starts leave it alone.
TEST_F(RecoveryTest, DamagedEntryOfTheTableIsNoReproachToTheCatalog) {
  LeaveBlocks(Ending::kKill);
  const std::vector<SlabFile> slabs = ListSlabFiles(root_ + "/path0/domain", domain_secret_);
  std::fstream file(slabs[0].path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(slabs[0].geometry.EntryOffsetBytes(0) + 60));
  file.write("damaged", 7);
  file.close();
  RecoverySummary summary = Recover();
  EXPECT_EQ(summary.source, RecoverySource::kTables);
  EXPECT_EQ(summary.restored.blocks, kBlocks - 1);
  domain_->StopClean();
  summary = Recover();
  EXPECT_EQ(summary.source, RecoverySource::kCatalog) << summary.why;
  EXPECT_EQ(summary.restored.blocks, kBlocks - 1);
  EXPECT_EQ(summary.counts.entries_corrupt, 1u);
}

TEST_F(RecoveryTest, CatalogThatNamesASlabWhichIsGoneIsNotBelieved) {
  LeaveBlocks(Ending::kClean);
  uint64_t slabs = 0;
  for (const auto& file : fs::directory_iterator(root_ + "/path0/domain")) {
    slabs += file.path().extension() == ".terrace";
  }
  ASSERT_GE(slabs, 2u);
  fs::remove(Only(root_ + "/path0/domain", "slab-1.terrace"));
  const RecoverySummary summary = Recover();
  EXPECT_EQ(summary.source, RecoverySource::kTables);
  EXPECT_NE(summary.why.find("names a place that is not there"), std::string::npos) << summary.why;
  EXPECT_GT(summary.restored.blocks, 0u);
  EXPECT_LT(summary.restored.blocks, kBlocks);
}

TEST_F(RecoveryTest, CatalogIsNotBelievedOfAPathThatIsAnOlderCopyOfItself) {
  path_count_ = 2;
  LeaveBlocks(Ending::kClean);
  TakeSnapshot("/path1");
  ASSERT_EQ(Recover().source, RecoverySource::kCatalog);
  domain_->StopClean();
  BringBack("/path1");
  ExpectCatalogUnbelieved();
}

TEST_F(RecoveryTest, CatalogIsNotBelievedOfAPathAsItWasBeforeTheStop) {
  path_count_ = 2;
  LeaveBlocks(Ending::kKill);
  Recover();
  TakeSnapshot("/path1");  // while the daemon runs
  domain_->StopClean();
  domain_.reset();
  BringBack("/path1");
  ExpectCatalogUnbelieved();
}

// The catalog is in the first path. What the first path of another order leaves there is old.
TEST_F(RecoveryTest, OldCatalogOfAnotherOrderOfThePathsIsNotBelieved) {
  path_count_ = 2;
  const auto swap_paths = [this] {
    store_.reset();
    domain_.reset();
    fs::rename(root_ + "/path0", root_ + "/path");
    fs::rename(root_ + "/path1", root_ + "/path0");
    fs::rename(root_ + "/path", root_ + "/path1");
  };
  LeaveBlocks(Ending::kClean);
  swap_paths();
  ASSERT_EQ(Recover().why, "there was none");
  domain_->StopClean();
  swap_paths();
  ExpectCatalogUnbelieved();
  domain_->StopClean();
  EXPECT_EQ(Recover().source, RecoverySource::kCatalog);
}

TEST_F(RecoveryTest, RecordUnderAnotherSlotIsNotBelieved) {
  LeaveBlocks(Ending::kClean);
  {
    CatalogDb::Opened opened = CatalogDb::Open(CatalogOptions());
    ASSERT_TRUE(opened.is_believed);
    CatalogChanges changes;
    ASSERT_TRUE(opened.db
                    ->ForEachExtent([&](SlotName name, std::span<const std::byte> entry) {
                      changes.entry_bytes.assign(entry.begin(), entry.end());
                      changes.extents = {
                          {.name = {name.slab, name.slot + 1}, .length_bytes = entry.size()}};
                      return false;
                    })
                    .ok());
    ASSERT_TRUE(opened.db->MarkProven().ok());
    ASSERT_TRUE(opened.db->Apply(changes).ok());
    ASSERT_TRUE(opened.db->CloseClean().ok());
  }
  const RecoverySummary summary = Recover();
  EXPECT_EQ(summary.source, RecoverySource::kTables);
  EXPECT_NE(summary.why.find("is not the entry of that slot"), std::string::npos) << summary.why;
  EXPECT_EQ(summary.restored.blocks, kBlocks);
}

TEST_F(RecoveryTest, LostGroupFileIsMadeAnewFromTheCatalog) {
  LeaveBlocks(Ending::kClean);
  fs::remove(Only(root_ + "/path0/domain/groups", ".group"));
  const RecoverySummary summary = Recover();
  EXPECT_EQ(summary.restored.blocks, kBlocks);
  ASSERT_EQ(summary.notes.size(), 1u);
  EXPECT_NE(summary.notes[0].find("made anew"), std::string::npos) << summary.notes[0];
  EXPECT_TRUE(fs::exists(Only(root_ + "/path0/domain/groups", ".group")));
}

TEST_F(RecoveryTest, BlocksOfAGroupThatNobodyKnowsAreLeftUntilItsFileIsBack) {
  LeaveBlocks(Ending::kClean);
  const fs::path groups = root_ + "/path0/domain/groups", elsewhere = root_ + "/groups";
  fs::rename(groups, elsewhere);
  fs::remove_all(CatalogDirectory());
  for (const RecoverySource source : {RecoverySource::kTables, RecoverySource::kCatalog}) {
    const RecoverySummary summary = Recover();
    EXPECT_EQ(summary.source, source);
    EXPECT_EQ(summary.restored.blocks, 0u);
    EXPECT_EQ(summary.counts.entries_left, kBlocks);
    ASSERT_EQ(summary.notes.size(), 1u);
    EXPECT_THAT(summary.notes[0], testing::HasSubstr(ToHex(DiskGroup().Id())));
    const TierStats stats = domain_->tier().stats();
    EXPECT_GT(stats.ungrouped_bytes, 0u);
    EXPECT_EQ(stats.left_alone_bytes, stats.ungrouped_bytes);
    EXPECT_EQ(stats.quarantined_bytes, 0u) << "nothing is wrong with the drive";
    domain_->StopClean();
  }
  fs::remove_all(groups);
  fs::rename(elsewhere, groups);
  EXPECT_EQ(Recover().restored.blocks, kBlocks);
}

// ---- what is erased while nobody knows its group ----

struct ErasureOfLeft {
  const char* name;
  uint32_t kept_count;  // of kBlocks blocks, once the group's file is back
  // To its end; `keys` are those of all blocks, in order.
  std::function<void(Store& store, SessionId session, std::span<const BlockKey> keys)> erase;

  friend void PrintTo(const ErasureOfLeft& of, std::ostream* out) { *out << of.name; }
};

template <typename Operation, typename... Query>
void RunToEnd(Operation operation, const Query&... query) {
  Result<Progress> progress = operation.Step(query...);
  while (progress.ok() && *progress != Progress::kDone) progress = operation.Step(query...);
  EXPECT_TRUE(progress.ok()) << progress.status().what();
}

void EvictLeft(Store& store, const KeysQuery& query) {
  protocol::EvictReply reply;
  RunToEnd(store.operators().Evict(&reply), query);
}

void EvictLeftWhere(Store& store, SessionId session, const protocol::EvictWhereRequest& request) {
  protocol::EvictReply reply;
  RunToEnd(store.operators().EvictWhere(session, request, &reply));
}

const ErasureOfLeft kErasuresOfLeft[] = {
    {"EverythingIsEvicted", 0,
     [](Store& store, SessionId session, std::span<const BlockKey>) {
       EvictLeft(store,
                 {.session = session, .group_index = kAllGroups, .flags = protocol::kEvictSubtree});
     }},
    {"SomeKeysAre", kBlocks - 5,
     [](Store& store, SessionId session, std::span<const BlockKey> keys) {
       EvictLeft(store,
                 {.session = session, .group_index = kAllGroups, .keys = keys.subspan(10, 5)});
     }},
    {"AKeyIsWithWhatMayContinueIt", 10,
     [](Store& store, SessionId session, std::span<const BlockKey> keys) {
       EvictLeft(store, {.session = session,
                         .group_index = kAllGroups,
                         .flags = protocol::kEvictSubtree,
                         .keys = keys.subspan(10, 1)});
     }},
    {"NothingIsByADryRun", kBlocks,
     [](Store& store, SessionId session, std::span<const BlockKey> keys) {
       EvictLeft(store, {.session = session,
                         .group_index = kAllGroups,
                         .flags = protocol::kEvictSubtree | protocol::kEvictDryRun,
                         .keys = keys});
       EvictLeftWhere(store, session, {.flags = protocol::kEvictWhereDryRun});
     }},
    {"FiltersCoverThem", 0,
     [](Store& store, SessionId session, std::span<const BlockKey>) {
       EvictLeftWhere(store, session, {});
     }},
    {"TheDrivesAreEmptied", 0,
     [](Store& store, SessionId session, std::span<const BlockKey>) {
       EvictLeftWhere(store, session, {.tier = static_cast<uint8_t>(TierKind::kNvme)});
     }},
    {"DramIsEmptied", kBlocks,
     [](Store& store, SessionId session, std::span<const BlockKey>) {
       EvictLeftWhere(store, session, {.tier = static_cast<uint8_t>(TierKind::kDram)});
     }},
    {"TheirGroupIsOpenedAndReset", 0,
     [](Store& store, SessionId session, std::span<const BlockKey>) {
       OpenedGroup group;
       ASSERT_TRUE(store.sessions().OpenGroup(session, DiskGroup(), &group).ok());
       RunToEnd(store.operators().Reset(session, group.group_index));
     }},
    {"AnotherGroupIs", kBlocks,
     [](Store& store, SessionId session, std::span<const BlockKey> keys) {
       OpenedGroup group;
       ASSERT_TRUE(store.sessions().OpenGroup(session, DiskGroup("other"), &group).ok());
       RunToEnd(store.operators().Reset(session, group.group_index));
       EvictLeft(store, {.session = session, .group_index = group.group_index, .keys = keys});
     }},
    {"TheDomainIsReset", 0,
     [](Store& store, SessionId session, std::span<const BlockKey>) {
       RunToEnd(store.operators().Reset(session, kAllGroups));
     }},
};

class RecoveryOfErased : public RecoveryTest, public testing::WithParamInterface<ErasureOfLeft> {};

TEST_P(RecoveryOfErased, DoesNotFindThemOnceTheirGroupIsKnown) {
  LeaveBlocks(Ending::kClean);
  const fs::path groups = root_ + "/path0/domain/groups", elsewhere = root_ + "/groups";
  fs::rename(groups, elsewhere);
  fs::remove_all(CatalogDirectory());
  ASSERT_EQ(Recover().counts.entries_left, kBlocks);
  std::vector<BlockKey> keys;
  for (uint64_t owner = 0; owner < kBlocks; ++owner) keys.push_back({owner, 7});
  ASSERT_TRUE(store_->get()->sessions().Open({.id = 1, .uid = 1}).ok());
  OperatorVerbs& verbs = store_->get()->operators();
  // Of the last daemon's erasures.
  ASSERT_TRUE(domain_->RunUntil([&] { return !domain_->tier().has_erasures_pending(); }));
  GetParam().erase(*store_->get(), 1, keys);
  const bool erases = GetParam().kept_count < kBlocks;
  EXPECT_EQ(verbs.AwaitErasures(1, 2).code(), erases ? StatusCode::kBusy : StatusCode::kOk);
  ASSERT_TRUE(domain_->RunUntil([&] { return !domain_->tier().has_erasures_pending(); }));
  EXPECT_EQ(verbs.AwaitErasures(1, 3).code(), StatusCode::kOk);
  // As after kill -9.
  fs::remove_all(groups);
  fs::rename(elsewhere, groups);
  EXPECT_EQ(Recover().restored.blocks, GetParam().kept_count);
}

INSTANTIATE_TEST_SUITE_P(Kinds, RecoveryOfErased, testing::ValuesIn(kErasuresOfLeft),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST_F(RecoveryTest, GroupFileOfAnotherPathIsFoundAndCopied) {
  LeaveBlocks(Ending::kKill);
  fs::rename(root_ + "/path0/domain/groups", root_ + "/groups");
  fs::remove_all(CatalogDirectory());
  other_groups_ = {root_ + "/groups"};
  EXPECT_EQ(Recover().restored.blocks, kBlocks);
  EXPECT_TRUE(fs::exists(Only(root_ + "/path0/domain/groups", ".group")));
}

// A path that was away has the group of a name as it was; its file is not brought to life again.
TEST_F(RecoveryTest, OfOneNameTheFileOfTheGroupOpenedLastHoldsOnWhateverPath) {
  LeaveBlocks(Ending::kKill);
  fs::remove_all(CatalogDirectory());
  SpaceGroupSpec older = DiskGroup();
  older.members[0].spec.revision = std::string("older");
  other_groups_ = {root_ + "/groups"};
  const std::string first = root_ + "/path0/domain/groups";
  const fs::path own = Only(first, ".group");
  for (const bool is_own_newer : {true, false}) {
    ASSERT_TRUE(WriteGroupFile(other_groups_[0], older, domain_secret_).ok());
    fs::last_write_time(
        own, fs::file_time_type::clock::now() + std::chrono::hours(is_own_newer ? 1 : -1));
    const RecoverySummary summary = Recover();
    EXPECT_EQ(summary.groups, 1u);
    EXPECT_EQ(summary.restored.blocks, is_own_newer ? kBlocks : 0) << is_own_newer;
    EXPECT_EQ(fs::exists(first + "/" + ToHex(older.Id()) + ".group"), !is_own_newer);
    domain_->StopClean();
    fs::remove_all(CatalogDirectory());
  }
}

TEST_F(RecoveryTest, GroupsBeyondTheLimitAreRefusedAndTheirBlocksLeft) {
  LeaveBlocks(Ending::kKill);
  SpaceGroupSpec other = DiskGroup();
  other.name = "other";
  other.members[0].spec.revision = std::string("other");
  ASSERT_TRUE(WriteGroupFile(root_ + "/path0/domain/groups", other, domain_secret_).ok());
  fs::last_write_time(Only(root_ + "/path0/domain/groups", ToHex(other.Id()) + ".group"),
                      fs::file_time_type::clock::now() + std::chrono::hours(1));  // opened last
  groups_max_ = 1;
  RecoverySummary summary = Recover();
  EXPECT_EQ(summary.groups, 1u);
  EXPECT_EQ(summary.groups_refused, 1u);
  EXPECT_EQ(summary.counts.entries_left, kBlocks);
  ASSERT_EQ(summary.notes.size(), 2u);
  EXPECT_THAT(summary.notes[0], testing::HasSubstr("raise it"));
  domain_->StopClean();
  groups_max_ = 2;
  EXPECT_EQ(Recover().restored.blocks, kBlocks);
}

// A state directory that was lost, a file that was mixed up: the daemon starts empty, serves,
// stops.
TEST_F(RecoveryTest, AStartUnderAnotherSecretLosesNothing) {
  LeaveBlocks(Ending::kClean);
  secret_begin_ = 4;
  const RecoverySummary summary = Recover();
  EXPECT_EQ(summary.restored.blocks, 0u);
  EXPECT_GT(summary.counts.slabs_left, 0u);
  EXPECT_EQ(domain_->tier().stats().left_alone_bytes, summary.counts.slabs_left * 512 * kKiB);
  const std::string content = FormatGroupFile(DiskGroup(), domain_->secret());
  ASSERT_TRUE(WriteGroupFile(domain_->groups_directory(), DiskGroup(), domain_->secret()).ok());
  domain_->catalog().KeepGroup(DiskGroup().Id(), content);
  for (uint32_t owner = 100; owner < 110; ++owner) {
    ASSERT_TRUE(domain_->RunUntil([&] { return domain_->Store(owner); }));
  }
  domain_->Settle();
  EXPECT_FALSE(domain_->catalog().stats().is_complete);
  EXPECT_EQ(domain_->catalog().StopClean(30'000'000).code(), StatusCode::kGone);
  for (const auto& [secret_begin, blocks] : {std::pair(3, kBlocks), std::pair(4, 10u)}) {
    secret_begin_ = static_cast<uint8_t>(secret_begin);
    const RecoverySummary next = Recover();
    EXPECT_EQ(next.source, RecoverySource::kTables);
    EXPECT_EQ(next.groups, 1u);
    EXPECT_EQ(next.restored.blocks, blocks);
    (void)domain_->catalog().StopClean(30'000'000);
  }
}

TEST_F(RecoveryTest, ASlabThatIsNotThereForOneStartIsThereForTheNext) {
  LeaveBlocks(Ending::kClean);
  const fs::path slab = root_ + "/path0/domain/slab-0.terrace";
  const fs::path other = root_ + "/path0/domain/slab-9.terrace";  // renamed: left alone
  fs::rename(slab, other);
  const RecoverySummary summary = Recover();
  EXPECT_EQ(summary.counts.slabs_left, 1u);
  EXPECT_LT(summary.restored.blocks, kBlocks);
  domain_->Settle();
  EXPECT_FALSE(domain_->catalog().StopClean(30'000'000).ok());
  fs::rename(other, slab);
  EXPECT_EQ(Recover().restored.blocks, kBlocks);
  domain_->StopClean();
  EXPECT_EQ(Recover().source, RecoverySource::kCatalog);
}

TEST_F(RecoveryTest, DomainWithoutDrivesRestoresItsGroups) {
  LeaveBlocks(Ending::kClean);
  domain_ = std::make_unique<DiskDomain>(OptionsOf());
  DomainStore store(*domain_);
  RecoverySummary summary;
  ASSERT_TRUE(RestoreDomain({.secret = domain_->secret(),
                             .groups_directory = domain_->groups_directory(),
                             .restoration = &store.get()->restoration()},
                            &summary)
                  .ok());
  EXPECT_EQ(summary.groups, 1u);
  EXPECT_EQ(summary.source, RecoverySource::kNone);
}

}  // namespace
}  // namespace terrace

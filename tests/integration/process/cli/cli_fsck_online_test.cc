// `terrace fsck --online`: damage under a running daemon is found, given up when asked, and what is
// around it is served.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "daemon/persist/catalog_db.h"
#include "daemon/persist/slab_files.h"
#include "integration/process/cli/cli_fixture.h"
#include "integration/process/raw_client.h"
#include "terrace/client.h"
#include "terrace/domain_secret.h"
#include "terrace/protocol_introspection.h"

namespace terrace {
namespace {

using test::RawClient;
using test::RawReply;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kLongUs = 30'000'000;
constexpr uint32_t kBlocks = 24;
constexpr uint64_t kPartBytes = 64 * kKiB;

template <typename Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 30'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

std::vector<std::byte> Bytes(uint32_t block) {
  std::vector<std::byte> bytes(kPartBytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte((i * 31 + block * 7) & 255);
  return bytes;
}

SpaceGroupSpec Model() {
  SpaceSpec spec;
  spec.model = std::string("model");
  spec.revision = std::string("r1");
  spec.dtype = std::string("bf16");
  spec.layers = 1;
  spec.kv_heads = 1;
  spec.head_size = 64;
  spec.layout = std::string("nhd");
  spec.block_tokens = 16;
  spec.part_bytes = {kPartBytes};
  SpaceGroupSpec group;
  group.name = std::string("model");
  group.members.push_back({.spec = spec});
  return group;
}

// Blocks that lie on the drive alone: the daemon that wrote them has ended.
class CliFsckOnlineTest : public CliTest {
 protected:
  void SetUp() override {
    for (uint32_t i = 0; i < kBlocks; ++i) keys_.push_back({.low = i + 1, .high = 7});
    ASSERT_EQ(Terrace({"domain", "new", Path("secret")}).exit_code, 0);
    std::string why;
    ASSERT_TRUE(ReadDomainSecretFile(Path("secret"), &secret_, &why).ok()) << why;
    Start();
    StoreAll();
    Stop();
  }
  void StoreAll() {
    WriteLease lease;
    ASSERT_TRUE(Eventually([&] {
      lease = {};
      lease = client_->Reserve(group_, keys_, Flat()).value();
      return lease.is_reserved(kBlocks - 1);
    }));
    for (uint32_t k = 0; k < kBlocks; ++k) ASSERT_TRUE(lease.WritePart(k, 0, 0, Bytes(k)).ok());
    ASSERT_EQ(client_->Commit(lease).value(), kBlocks);
    ASSERT_TRUE(client_->WaitPersisted(group_, keys_).ok()) << client_->last_error();
  }
  void StartDaemon() {
    const std::string config = daemon().WriteFile(
        "t.toml", "[daemon]\ndram_bytes = \"16MiB\"\nsegment_bytes = \"2MiB\"\nstate_dir = \"" +
                      daemon().directory() + "\"\n[nvme]\npaths = [\"" + Path("nvme") + "\"" +
                      other_path_ +
                      "]\ncapacity_bytes = \"64MiB\"\nslab_bytes = \"16MiB\"\n"
                      "scrub_bytes_per_second = 0\nread_ahead_blocks = 0\n"
                      "[[domain]]\nname = \"chat\"\nsocket = \"" +
                      socket_path() + "\"\nsecret_file = \"" + Path("secret") + "\"\n");
    daemon().Start({"--config", config});
    ASSERT_TRUE(daemon().WaitReady()) << daemon().Errors();
  }
  void Start() {
    StartDaemon();
    ClientOptions options;
    options.socket_path = socket_path();
    options.default_deadline_us = kLongUs;
    client_ = std::move(Client::Create(options)).value();
    ASSERT_TRUE(client_->WaitConnected(kLongUs).ok()) << client_->last_error();
    group_ = client_->Open(Model(), 1).value();
  }
  void Stop() {
    client_.reset();
    daemon().Signal(SIGTERM);
    ASSERT_EQ(daemon().Wait(), 0) << daemon().Errors();
  }
  static RequestOptions Flat() { return {.flags = protocol::kKeysFlat}; }

  Outcome Fsck(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"fsck", "--online"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Terrace(arguments);
  }
  nlohmann::json AuditJson() const {
    const Outcome outcome = Terrace({"audit", "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out).at("audit");
  }
  nlohmann::json FsckJson(std::vector<std::string> more = {}) const {
    more.push_back("--json");
    const Outcome outcome = Fsck(more);
    return nlohmann::json::parse(outcome.out).at("domains").at(0);
  }

  std::string nvme_directory() const { return Path("nvme") + "/chat"; }
  SlabFile Slab() const { return ListSlabFiles(nvme_directory(), secret_).at(0); }
  // Where each key's bytes lie.
  std::map<uint64_t, uint32_t> Slots() const {
    std::map<uint64_t, uint32_t> slots;
    const SlabFile file = Slab();
    const SlabReader reader(file, secret_, SlabReader::Access::kRead);
    EXPECT_TRUE(reader
                    .VisitTable([&](uint32_t slot, Status status, const SlabEntry& entry, auto) {
                      if (status.ok() && entry.state == SlabEntryState::kUsed)
                        slots[entry.key.low] = slot;
                    })
                    .ok());
    return slots;
  }
  void Damage(uint64_t offset_bytes) const {
    std::fstream file(Slab().path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(offset_bytes));
    file.write("damaged", 7);
  }
  // Of a daemon that has ended in order; the next one believes what is left.
  void DeleteRecord(uint32_t slot) const {
    const CatalogDb::Opened opened = CatalogDb::Open(
        {.directory = nvme_directory() + "/catalog", .slab_directories = {nvme_directory()}});
    ASSERT_NE(opened.db, nullptr) << opened.why;
    ASSERT_TRUE(opened.is_believed) << opened.why;
    CatalogChanges changes;
    changes.extents.push_back({.name = {.slab = Slab().index, .slot = slot}});
    ASSERT_TRUE(opened.db->MarkProven().ok());
    ASSERT_TRUE(opened.db->Apply(changes).ok());
    ASSERT_TRUE(opened.db->CloseClean().ok());
  }
  // Whether the block is served; its bytes are compared.
  bool IsServed(uint32_t block) {
    ReadLease lease;
    const BlockKey key = keys_[block];
    EXPECT_TRUE(Eventually([&] {  // room is populated in the background
      const auto matched = client_->Match(group_, {&key, 1}, Flat());
      lease = client_->Acquire(group_, {&key, 1}, Flat()).value();
      return lease.block_count() == 1 || matched->block_count == 0;
    }));
    if (lease.block_count() == 0) return false;
    if (!client_->WaitReady(lease, 1, kLongUs).ok()) return false;
    std::vector<std::byte> bytes(kPartBytes);
    EXPECT_TRUE(lease.CopyPart(0, 0, 0, bytes).ok());
    EXPECT_TRUE(bytes == Bytes(block)) << block;
    return true;
  }

  DomainSecret secret_{};
  std::string other_path_;  // beside the first, as the configuration has it
  std::unique_ptr<Client> client_;
  GroupRef group_;
  std::vector<BlockKey> keys_;
};

TEST_F(CliFsckOnlineTest, ADomainInUseIsCalledClean) {
  Start();
  const Outcome outcome = Fsck({"--verify"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("domain    chat"), HasSubstr("24 in use"),
                                 HasSubstr("24 records, in use"), HasSubstr("verified  24 copies"),
                                 HasSubstr("\nclean\n")));
}

TEST_F(CliFsckOnlineTest, DamageIsFoundGivenUpAndWhatIsAroundItServed) {
  const auto slots = Slots();
  ASSERT_EQ(slots.size(), kBlocks);
  const SlabGeometry geometry = Slab().geometry;
  DeleteRecord(slots.at(5));
  Start();
  Damage(geometry.PayloadOffsetBytes(slots.at(9)) + 1000);
  Damage(geometry.EntryOffsetBytes(slots.at(14)) + 60);
  // Without --verify nobody reads payloads.
  nlohmann::json told = FsckJson();
  EXPECT_EQ(told.at("problem_counts").at("payload_mismatch"), 0);
  EXPECT_EQ(told.at("problem_count"), 4);
  EXPECT_EQ(Fsck({"--verify"}).exit_code, 1);
  told = FsckJson({"--verify"});
  EXPECT_EQ(told.at("problem_counts").at("payload_mismatch"), 1);
  EXPECT_EQ(told.at("problem_counts").at("entry_corrupt"), 1);
  EXPECT_EQ(told.at("problem_counts").at("catalog_differs"), 1);
  EXPECT_EQ(told.at("problem_counts").at("entry_stray"), 1);
  EXPECT_EQ(told.at("problem_counts").at("catalog_lacks"), 1);
  EXPECT_EQ(told.at("problem_count"), 5);
  EXPECT_EQ(told.at("repaired_count"), 0);
  EXPECT_EQ(told.at("catalog"), "in_use");
  const nlohmann::json repaired = FsckJson({"--verify", "--repair", "--yes"});
  EXPECT_EQ(repaired.at("problem_count"), 5) << repaired.dump(1);
  EXPECT_EQ(repaired.at("repaired_count"), 5) << repaired.dump(1);
  EXPECT_TRUE(Eventually([&] { return Fsck({"--verify"}).exit_code == 0; }));
  EXPECT_EQ(FsckJson().at("entry_count"), kBlocks - 3);
  for (uint32_t block = 0; block < kBlocks; ++block) {
    const bool is_damaged = block + 1 == 5 || block + 1 == 9 || block + 1 == 14;
    EXPECT_EQ(IsServed(block), !is_damaged) << block;
  }
}

// An earlier daemon gave up healthy places because of what clients had told it.
TEST_F(CliFsckOnlineTest, QuarantinedSlotsAreTriedAndGivenBackWhileItServes) {
  constexpr uint32_t kLost = 40;
  const SlabFile slab = Slab();
  for (uint32_t i = 0; i < kLost; ++i) {
    const uint32_t slot = slab.geometry.slot_count - 1 - i;
    ASSERT_TRUE(SlabReader(slab, secret_, SlabReader::Access::kReadWrite)
                    .WriteEntry({.state = SlabEntryState::kQuarantined, .slot = slot})
                    .ok());
  }
  // Without the catalog the tables are read.
  std::filesystem::remove_all(nvme_directory() + "/catalog");
  Start();
  const auto tier = [this] {
    return nlohmann::json::parse(client_->Stats().value()).at("lower_tiers").at(0);
  };
  EXPECT_EQ(tier().at("quarantined_bytes"), kLost * kPartBytes);
  EXPECT_EQ(tier().at("is_degraded"), true);
  EXPECT_THAT(Terrace({"status"}).out,
              AllOf(HasSubstr("DEGRADED: "), HasSubstr("terrace fsck --online --repair"),
                    HasSubstr("2.5 MiB quarantined")));
  EXPECT_EQ(FsckJson().at("problem_counts").at("entry_quarantined"), kLost);
  const nlohmann::json repaired = FsckJson({"--repair", "--yes"});
  EXPECT_EQ(repaired.at("repaired_count"), kLost) << repaired.dump(1);
  EXPECT_EQ(tier().at("quarantined_bytes"), 0);
  EXPECT_EQ(tier().at("places_recovered"), kLost);
  EXPECT_THAT(Terrace({"status"}).out, HasSubstr("health    ok"));
  EXPECT_TRUE(Eventually([&] { return Fsck().exit_code == 0; })) << Fsck().out;
  for (uint32_t block = 0; block < kBlocks; ++block) EXPECT_TRUE(IsServed(block)) << block;
}

// A path is away, say: nothing that the daemon tells people to do destroys what was on the others.
TEST_F(CliFsckOnlineTest, BlocksOfGroupsWithoutAFileAreLeftAlone) {
  const std::string groups = nvme_directory() + "/groups";
  std::filesystem::rename(groups, Path("groups"));
  std::filesystem::remove_all(nvme_directory() + "/catalog");
  StartDaemon();
  EXPECT_THAT(Terrace({"status"}).out, AllOf(HasSubstr("no file in " + groups),
                                             Not(HasSubstr("terrace fsck --online --repair"))));
  const nlohmann::json told = FsckJson({"--repair", "--yes"});
  EXPECT_EQ(told.at("problem_counts").at("entry_unknown_group"), kBlocks);
  EXPECT_EQ(told.at("repaired_count"), 0);
  EXPECT_THAT(told.at("notes").dump(), HasSubstr("--free-unknown-groups"));
  daemon().Signal(SIGTERM);
  ASSERT_EQ(daemon().Wait(), 0) << daemon().Errors();
  std::filesystem::remove_all(groups);
  std::filesystem::rename(Path("groups"), groups);
  Start();
  for (uint32_t block = 0; block < kBlocks; ++block) EXPECT_TRUE(IsServed(block)) << block;
}

// Whoever closes the connection has given up: the next one need not wait.
TEST_F(CliFsckOnlineTest, EndsWithItsConnection) {
  Start();
  protocol::FsckRequest request{.verify_bytes_per_second = 1, .flags = protocol::kFsckVerify};
  {
    RawClient hasty;
    ASSERT_TRUE(hasty.Attach(socket_path())) << hasty.last_text();
    const protocol::FsckRequest boundless{.verify_bytes_per_second = uint64_t{1} << 63,
                                          .flags = protocol::kFsckVerify};
    const RawReply refused = hasty.Call(protocol::kVerbFsck, test::BytesOf(boundless));
    EXPECT_EQ(refused.status(), StatusCode::kInvalid) << refused.text();
  }
  {
    RawClient slow;
    ASSERT_TRUE(slow.Attach(socket_path())) << slow.last_text();
    // The first slot's bytes are all of its budget for the next 18 hours.
    const RawReply first = slow.Call(protocol::kVerbFsck, test::BytesOf(request));
    ASSERT_EQ(first.status(), StatusCode::kOk) << first.text();
    const auto answer = nlohmann::json::parse(first.text());
    ASSERT_EQ(answer.at("verified_count"), 1);
    request.cursor = answer.at("next_cursor");
    slow.Send(protocol::kVerbFsck, test::BytesOf(request));
    slow.Send(protocol::kVerbFsck, test::BytesOf(request));
    const auto refused = slow.Receive();
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->status(), StatusCode::kBusy) << refused->text();
    const Outcome other = Fsck();
    EXPECT_EQ(other.exit_code, 2);
    EXPECT_THAT(other.err, HasSubstr("another online fsck"));
  }
  EXPECT_TRUE(Eventually([&] { return Fsck().exit_code == 0; }));
}

TEST_F(CliFsckOnlineTest, AuditTellsWhoErasedWhatAfterARestartToo) {
  Start();
  EXPECT_EQ(AuditJson(), nlohmann::json::array());
  const Outcome dry = Terrace({"evict", "--all", "--yes", "--dry-run"});
  ASSERT_EQ(dry.exit_code, 0) << dry.err;
  const Outcome absent = Terrace({"evict", std::string(32, 'a'), "--yes"});
  ASSERT_EQ(absent.exit_code, 0) << absent.err;  // nothing is there: nothing to remember
  const Outcome evicted = Terrace({"evict", "--all", "--yes"});
  ASSERT_EQ(evicted.exit_code, 0) << evicted.err;
  ASSERT_TRUE(client_->Reset(group_).ok());
  ASSERT_TRUE(Eventually([&] { return AuditJson().size() == 2; })) << AuditJson().dump();
  Stop();
  Start();
  const nlohmann::json lines = AuditJson();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].at("verb"), "reset");
  EXPECT_EQ(lines[0].at("pid"), getpid());
  EXPECT_EQ(lines[0].at("group").get<std::string>().size(), 32u);
  EXPECT_EQ(lines[1].at("verb"), "evict");
  EXPECT_EQ(lines[1].at("group"), "all");
  EXPECT_EQ(lines[1].at("is_whole"), true);
  EXPECT_EQ(lines[1].at("uid"), getuid());
  EXPECT_EQ(lines[1].at("erased_count"), kBlocks);
  const Outcome told = Terrace({"audit"});
  EXPECT_THAT(told.out, AllOf(HasSubstr("evicted 24 blocks of all groups"),
                              HasSubstr("reset group " + lines[0].at("group").get<std::string>())));
}

// The catalog, in which it is, does not know the slabs of a path that is new.
TEST_F(CliFsckOnlineTest, TheAuditOutlivesAPathThatComesAndGoes) {
  Start();
  ASSERT_EQ(Terrace({"evict", "--all", "--yes"}).exit_code, 0);
  ASSERT_TRUE(Eventually([&] { return AuditJson().size() == 1; }));
  for (const std::string& path : {", \"" + Path("other") + "\"", std::string()}) {
    Stop();
    other_path_ = path;
    Start();
    EXPECT_EQ(AuditJson().size(), 1u) << daemon().Errors();
  }
  EXPECT_THAT(daemon().Errors(), HasSubstr("a path was exchanged"));
  EXPECT_FALSE(std::filesystem::exists(Path("nvme/chat/catalog.old")));
  Stop();
  Start();
  EXPECT_THAT(daemon().Errors(), HasSubstr("from=\"catalog\"")) << "it has been written anew";
}

TEST_F(CliFsckOnlineTest, AFilterIsToldWithWhatItTookAndARefusalIsNoEviction) {
  Start();
  const Outcome refused = Terrace({"evict", "--tier", "redis", "--yes"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("has no redis tier; it has dram, nvme"),
                                 HasSubstr("redis.endpoints"), Not(HasSubstr("EvictWhere"))));
  const Outcome evicted = Terrace({"evict", "--tier", "nvme", "--yes"});
  ASSERT_EQ(evicted.exit_code, 0) << evicted.err;
  ASSERT_TRUE(Eventually([&] { return !AuditJson().empty(); }));
  const nlohmann::json lines = AuditJson();
  ASSERT_EQ(lines.size(), 1u) << lines.dump();
  EXPECT_THAT(
      Terrace({"audit"}).out,
      HasSubstr("evicted what nvme had of 24 blocks of all groups (idle_s=0 tier=nvme) by uid"));
}

TEST_F(CliFsckOnlineTest, WhatIsOfAnotherDomainOrAStoppedDaemonIsRefused) {
  Start();
  EXPECT_EQ(Fsck({"--domain", "chat"}).exit_code, 0);
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--domain", "nope"}, {"--domain", "nope", "--repair", "--yes"}}) {
    const Outcome outcome = Fsck(more);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr("of domain 'chat', not 'nope'"));
  }
  for (const char* option : {"--config", "--secret"}) {
    const Outcome outcome = Fsck({option, Path("none")});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(option), HasSubstr("--online")));
  }
}

TEST_F(CliFsckOnlineTest, ADaemonWithoutDrivesSaysSo) {
  const std::string config =
      daemon().WriteFile("t.toml", "[daemon]\ndram_bytes = \"16MiB\"\nsegment_bytes = \"2MiB\"\n");
  daemon().Start({"--config", config, "--socket", socket_path()});
  ASSERT_TRUE(daemon().WaitReady()) << daemon().Errors();
  const Outcome outcome = Fsck();
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("nvme.paths"));
  const Outcome audit = Terrace({"audit"});
  EXPECT_EQ(audit.exit_code, 1);
  EXPECT_THAT(audit.err, HasSubstr("nvme.paths"));
}

}  // namespace
}  // namespace terrace

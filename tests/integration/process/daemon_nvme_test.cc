// A real terraced with an NVMe tier on a real file system: what it still has after it died.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "daemon/config/fd_needs.h"
#include "integration/process/daemon_process.h"
#include "integration/process/tiny_blocks.h"
#include "terrace/client.h"

namespace terrace::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint32_t kBlocks = 40;

class DaemonNvme : public testing::TestWithParam<std::string> {
 protected:
  std::string NvmePath() const { return daemon_.directory() + "/nvme"; }
  std::string DomainPath() const { return NvmePath() + "/default"; }
  std::string Config() {
    return daemon_.WriteFile(
        "t.toml",
        "[daemon]\ndram_bytes = \"16MiB\"\nsegment_bytes = \"2MiB\"\nsegments_spare = 8\n" +
            more_of_daemon_ + "[nvme]\npaths = [\"" + NvmePath() + "\"]\ncapacity_bytes = \"" +
            capacity_ + "\"\nslab_bytes = \"" + slab_ + "\"\nio = \"" + GetParam() + "\"\n" +
            more_of_nvme_);
  }
  void Start() {
    daemon_.Start({"--config", Config(), "--socket", daemon_.socket_path()}, around_);
    ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
    ClientOptions options;
    options.socket_path = daemon_.socket_path();
    options.default_deadline_us = kLongUs;
    client_ = std::move(Client::Create(options)).value();
    ASSERT_TRUE(client_->WaitConnected(kLongUs).ok()) << client_->last_error();
    Open();
    for (int i = 0; i < 2000 && Stats()["domain"]["segments_populated"] < 8; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  void Open() {
    SpaceGroupSpec group = Model(part_count_);
    group.name += std::to_string(part_count_);
    group_ = client_->Open(group, 1).value();
  }
  void End(int signal, int status) {
    client_.reset();
    daemon_.Signal(signal);
    ASSERT_EQ(daemon_.Wait(), status) << daemon_.Errors();
  }
  void Restart(int signal, int status) {
    End(signal, status);
    Start();
  }

  // As many blocks as find room.
  uint32_t Store(const std::vector<BlockKey>& keys) {
    auto lease = client_->Reserve(group_, keys).value();
    for (uint32_t k = 0; k < keys.size(); ++k) {
      for (uint32_t part = 0; part < part_count_ && lease.is_reserved(k); ++part) {
        EXPECT_TRUE(lease.WritePart(k, 0, part, Bytes(keys[k], part)).ok());
      }
    }
    return client_->Commit(lease).value();
  }
  void StorePersisted(const std::vector<BlockKey>& keys) {
    ASSERT_EQ(Store(keys), keys.size());
    ASSERT_TRUE(client_->WaitPersisted(group_, keys).ok()) << client_->last_error();
  }
  // Blocks at the front of the prefix that are there, each with the right bytes.
  uint32_t Load(const std::vector<BlockKey>& keys, protocol::TierKind* tier = nullptr) {
    auto lease = client_->Acquire(group_, keys).value();
    if (lease.block_count() > 0) (void)client_->WaitReady(lease, lease.block_count(), kLongUs);
    if (tier != nullptr && !lease.spans().empty()) {
      *tier = static_cast<protocol::TierKind>(lease.spans()[0].tier);
    }
    std::vector<std::byte> bytes(kPartBytes);
    for (uint32_t k = 0; k < lease.ready_count(); ++k) {
      for (uint32_t part = 0; part < part_count_; ++part) {
        EXPECT_TRUE(lease.CopyPart(k, 0, part, bytes).ok());
        EXPECT_TRUE(bytes == Bytes(keys[k], part)) << "block " << k << " part " << part;
      }
    }
    return lease.ready_count();
  }
  // Stored, and there after a kill.
  void ExpectRoomForLargerBlocks() {
    part_count_ = 3;
    Open();
    const auto keys = Keys(10, 8);
    StorePersisted(keys);
    Restart(SIGKILL, 128 + SIGKILL);
    EXPECT_EQ(Load(keys), keys.size());
  }
  nlohmann::json Stats() { return nlohmann::json::parse(client_->Stats(kLongUs).value()); }
  std::vector<std::filesystem::path> Slabs() const {
    std::vector<std::filesystem::path> slabs;
    for (const auto& entry : std::filesystem::directory_iterator(DomainPath())) {
      if (entry.path().filename().string().starts_with("slab-")) slabs.push_back(entry.path());
    }
    return slabs;
  }

  std::string capacity_ = "64MiB", slab_ = "8MiB";
  uint32_t part_count_ = 2;
  std::string more_of_daemon_, more_of_nvme_;  // lines of the configuration
  DaemonProcess::Surroundings around_;
  DaemonProcess daemon_;
  std::unique_ptr<Client> client_;
  GroupRef group_;
};

// PROMISE: T08 one kill
TEST_P(DaemonNvme, WhatIsPersistedIsServedAfterSigkill) {
  Start();
  const auto keys = Keys(kBlocks);
  StorePersisted(keys);
  Restart(SIGKILL, 128 + SIGKILL);
  auto tier = protocol::TierKind::kDram;
  EXPECT_EQ(Load(keys, &tier), kBlocks);
  EXPECT_EQ(tier, protocol::TierKind::kNvme);
  EXPECT_THAT(daemon_.Errors(), HasSubstr("from=\"tables\""));
  EXPECT_EQ(Load(keys, &tier), kBlocks);
  EXPECT_EQ(tier, protocol::TierKind::kDram);
}

TEST_P(DaemonNvme, WhatPoliciesHaveLearnedOutlivesACleanStop) {
  more_of_daemon_ = "eviction = \"hazard\"\n";
  more_of_nvme_ = "admission = \"predicted\"\n";
  Start();
  StorePersisted(Keys(kBlocks));
  EXPECT_THAT(daemon_.Errors(), Not(HasSubstr("what was learned")));
  Restart(SIGTERM, 0);
  EXPECT_THAT(daemon_.Errors(),
              AllOf(HasSubstr("policy=\"dram.hazard\" starts_from=\"what was learned\""),
                    HasSubstr("policy=\"admission.predicted\" starts_from=\"what was learned\"")));
  EXPECT_EQ(Load(Keys(kBlocks)), kBlocks);
}

TEST_P(DaemonNvme, ACleanStopStartsFromTheCatalog) {
  Start();
  const auto keys = Keys(kBlocks);
  ASSERT_EQ(Store(keys), kBlocks);  // nobody waits for the disk: the stop does
  Restart(SIGTERM, 0);
  EXPECT_EQ(Load(keys), kBlocks) << daemon_.Errors();
  EXPECT_THAT(daemon_.Errors(), HasSubstr("from=\"catalog\""));
}

// Started once with the wrong file; an engine came, opened its group, and stored.
TEST_P(DaemonNvme, AStartUnderAnotherSecretLosesNothing) {
  const std::string secret = daemon_.directory() + "/default.secret";
  Start();
  const auto keys = Keys(kBlocks, 1), theirs = Keys(10, 2);
  StorePersisted(keys);
  End(SIGTERM, 0);
  std::filesystem::rename(secret, secret + ".kept");
  Start();
  EXPECT_EQ(Load(keys), 0u);
  StorePersisted(theirs);
  EXPECT_THAT(Stats()["troubles"].dump(), HasSubstr("under another secret"));
  EXPECT_GT(Stats()["lower_tiers"][0]["left_alone_bytes"], 0);
  End(SIGTERM, 0);
  std::filesystem::rename(secret + ".kept", secret);
  Start();
  EXPECT_EQ(Load(keys), kBlocks) << daemon_.Errors();
  EXPECT_EQ(Load(theirs), 0u);
}

// PROMISE: T03 erasures, over a drive
TEST_P(DaemonNvme, ErasedBlocksStayErased) {
  Start();
  const auto kept = Keys(10, 1), erased = Keys(10, 2);
  StorePersisted(kept);
  StorePersisted(erased);
  ASSERT_TRUE(client_->Evict(group_, erased, {.flags = protocol::kEvictSubtree}).ok());
  Restart(SIGKILL, 128 + SIGKILL);
  EXPECT_EQ(Load(erased), 0u);
  EXPECT_EQ(Load(kept), 10u);
}

// PROMISE: T12 counted by the daemon
// PROMISE: T13 counted by the daemon
TEST_P(DaemonNvme, FlippedBytesAreAMissAndCounted) {
  Start();
  const auto keys = Keys(kBlocks);
  StorePersisted(keys);
  End(SIGKILL, 128 + SIGKILL);
  for (const auto& slab : Slabs()) {  // the last payload bytes of every slab: whichever is used
    const int fd = open(slab.c_str(), O_RDWR | O_CLOEXEC);
    std::vector<char> bytes(4096);
    for (off_t at = 1 << 20; at < 8 << 20; at += 300'000) {
      ASSERT_GT(pread(fd, bytes.data(), 1, at), 0);
      bytes[0] = static_cast<char>(bytes[0] ^ 4);
      ASSERT_EQ(pwrite(fd, bytes.data(), 1, at), 1);
    }
    close(fd);
  }
  Start();
  EXPECT_LT(Load(keys), kBlocks);  // Load checks every byte that is served
  EXPECT_GT(Stats()["domain"]["blocks_corrupt"], 0);
}

// PROMISE: T18 a daemon's start
TEST_P(DaemonNvme, ACorruptCatalogCostsAScan) {
  Start();
  const auto keys = Keys(kBlocks);
  StorePersisted(keys);
  End(SIGTERM, 0);
  for (const auto& entry : std::filesystem::directory_iterator(DomainPath() + "/catalog")) {
    if (entry.path().filename().string().starts_with("MANIFEST")) {
      std::filesystem::resize_file(entry.path(), 7);
    }
  }
  Start();
  EXPECT_EQ(Load(keys), kBlocks);
  EXPECT_THAT(daemon_.Errors(), HasSubstr("from=\"tables\""));
}

TEST_P(DaemonNvme, FilesNeverExceedTheCap) {
  Start();
  const auto fill = [this](uint64_t first_prompt) {
    for (uint64_t i = 0; i < 52; ++i) Store(Keys(kBlocks, first_prompt + i));  // 208 MiB
    uint64_t slab_bytes = 0;
    for (const auto& slab : Slabs()) slab_bytes += std::filesystem::file_size(slab);
    EXPECT_LE(slab_bytes, 64u << 20);
  };
  fill(0);
  Restart(SIGTERM, 0);
  EXPECT_LE(Stats()["lower_tiers"][0]["used_bytes"], 64 << 20);
  fill(1000);
  const auto stats = Stats();
  EXPECT_LE(stats["lower_tiers"][0]["used_bytes"], 64 << 20);
  EXPECT_GT(stats["lower_tiers"][0]["block_count"], 0);
}

// A slab file holds one size of blocks.
TEST_P(DaemonNvme, BlocksOfAnotherSizeTakeTheOnlySlabOver) {
  capacity_ = "8MiB";
  Start();
  StorePersisted(Keys(kBlocks));
  ExpectRoomForLargerBlocks();
}

// Files of before are of no size that a new one could have.
TEST_P(DaemonNvme, AfterAStartWithOtherFilesBlocksOfAnotherSizeFindRoom) {
  for (const auto& [before, after] : {std::pair("16MiB", "4MiB"), std::pair("4MiB", "16MiB")}) {
    capacity_ = "16MiB";
    slab_ = before;
    part_count_ = 2;
    Start();
    for (uint64_t prompt = 0; prompt < 4; ++prompt) StorePersisted(Keys(kBlocks, prompt));
    slab_ = after;
    Restart(SIGTERM, 0);
    EXPECT_GT(Load(Keys(kBlocks, 3)), 0u) << "they serve on";
    ExpectRoomForLargerBlocks();
    End(SIGTERM, 0);
    std::filesystem::remove_all(NvmePath());
  }
}

// Four files more than sessions, the drive and the process leave.
TEST_P(DaemonNvme, SlabFilesLeaveSessionsTheirDescriptors) {
  DaemonConfig config;
  config.sessions_max = 8;
  config.domains.resize(1);
  config.nvme = {.paths = {NvmePath()}, .capacity_bytes = 16 * kMiB, .slab_bytes = 4 * kMiB};
  ASSERT_EQ(FdNeedsOf(config).slab_files, 4u);
  around_.open_files_max = FdNeedsOf(config).all();
  more_of_daemon_ = "sessions_max = 8\n";
  capacity_ = "16MiB";
  slab_ = "4MiB";
  Start();
  constexpr char kTooLow[] = "the limit of open files is too low for nvme.capacity_bytes";
  EXPECT_THAT(daemon_.Errors(), Not(HasSubstr(kTooLow)));
  capacity_ = "64MiB";
  Config();
  daemon_.Signal(SIGHUP);
  const auto is_told = [&] { return daemon_.Errors().find(kTooLow) != std::string::npos; };
  for (int i = 0; i < 2000 && !is_told(); ++i) usleep(5'000);
  EXPECT_TRUE(is_told()) << daemon_.Errors();
  for (uint64_t i = 0; i < 12; ++i) Store(Keys(kBlocks, i));  // 48 MiB
  const auto conditions = [this] { return Stats()["conditions"].dump(); };
  for (int i = 0; i < 2000 && conditions() == "[]"; ++i) usleep(5'000);
  EXPECT_EQ(conditions(), "[\"files_at_limit\"]");
  EXPECT_THAT(Stats()["troubles"].dump(),
              AllOf(HasSubstr("has 4 open"), HasSubstr("LimitNOFILE=")));
  EXPECT_EQ(Slabs().size(), 4u);
  ClientOptions options;
  options.socket_path = daemon_.socket_path();
  const auto second = std::move(Client::Create(options)).value();
  EXPECT_TRUE(second->WaitConnected(kLongUs).ok()) << second->last_error();
}

TEST_P(DaemonNvme, ASecondDaemonIsToldWhoHasThePath) {
  Start();
  DaemonProcess second;
  const std::string config = second.WriteFile(
      "t.toml", "[daemon]\ndram_bytes = \"16MiB\"\nsegment_bytes = \"2MiB\"\n[nvme]\npaths = [\"" +
                    NvmePath() + "\"]\ncapacity_bytes = \"64MiB\"\nslab_bytes = \"8MiB\"\n");
  second.Start({"--config", config, "--socket", second.socket_path()});
  EXPECT_GT(second.Wait(), 0);
  EXPECT_THAT(second.Errors(),
              AllOf(HasSubstr(DomainPath()), HasSubstr(std::to_string(daemon_.pid()))));
}

INSTANTIATE_TEST_SUITE_P(Io, DaemonNvme, testing::Values("auto", "threads"));

TEST(DaemonNvmeStart, APathThatCannotBeMadeIsNamed) {
  DaemonProcess daemon;
  const std::string config =
      daemon.WriteFile("t.toml",
                       "[nvme]\npaths = [\"/proc/nowhere/nvme\"]\ncapacity_bytes = \"1GiB\"\n"
                       "slab_bytes = \"64MiB\"\n");
  daemon.Start({"--config", config, "--socket", daemon.socket_path()});
  EXPECT_GT(daemon.Wait(), 0);
  EXPECT_THAT(daemon.Errors(), AllOf(HasSubstr("/proc/nowhere/nvme"), HasSubstr("nvme.paths")));
}

}  // namespace
}  // namespace terrace::test

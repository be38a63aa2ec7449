// Real daemons, one after the other, whose arenas somebody else holds: what is still in DRAM.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "integration/process/daemon_process.h"
#include "integration/process/tiny_blocks.h"
#include "terrace/arena_layout.h"
#include "terrace/client.h"

namespace terrace::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint32_t kBlocks = 24;
constexpr char kRootOnly[] = "root only: a keeper shows its memory to nobody else";

enum class Holder { kKeeper, kSystemd, kNobody };

// Daemons with 8 MiB of DRAM each, room for some sixty blocks.
class Warm {
 public:
  explicit Warm(Holder holder) : holder_(holder) {
    if (holder != Holder::kKeeper) return;
    keeper_.Start({"--keeper", "--socket", keeper_.socket_path()});
    EXPECT_TRUE(keeper_.WaitReady()) << keeper_.Errors();
  }

  void Start() {
    const std::string keeper =
        holder_ == Holder::kKeeper ? "keeper_socket = \"" + keeper_.socket_path() + "\"\n" : "";
    const std::string config = daemon_.WriteFile(
        "t.toml", "[daemon]\n" + keeper + "dram_bytes = \"" + dram_bytes +
                      "\"\nsegment_bytes = \"2MiB\"\nsegments_spare = 4\nhugepages = \"off\"\n");
    daemon_.Start({"--config", config, "--socket", daemon_.socket_path()},
                  {.has_fd_store = holder_ == Holder::kSystemd});
    ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
  }
  // Of the next daemon.
  void Use(Holder holder) { holder_ = holder; }
  void End(int signal, int status) {
    daemon_.Signal(signal);
    ASSERT_EQ(daemon_.Wait(), status) << daemon_.Errors();
  }
  void Kill() { End(SIGKILL, 128 + SIGKILL); }

  // A client of its own, with the model open.
  struct Visitor {
    std::unique_ptr<Client> client;
    GroupRef group;

    nlohmann::json Stats() const {
      return nlohmann::json::parse(client->Stats(kLongUs).value())["domain"];
    }
    uint32_t Store(const std::vector<BlockKey>& keys) const {
      auto lease = client->Reserve(group, keys).value();
      for (uint32_t k = 0; k < keys.size(); ++k) {
        for (uint32_t part = 0; part < 2 && lease.is_reserved(k); ++part) {
          EXPECT_TRUE(lease.WritePart(k, 0, part, Bytes(keys[k], part)).ok());
        }
      }
      return client->Commit(lease).value();
    }
    // Blocks at the front of the prefix that are there, each with the right bytes.
    uint32_t Load(const std::vector<BlockKey>& keys) const {
      auto lease = client->Acquire(group, keys).value();
      if (lease.block_count() > 0) (void)client->WaitReady(lease, lease.block_count(), kLongUs);
      std::vector<std::byte> bytes(kPartBytes);
      for (uint32_t k = 0; k < lease.ready_count(); ++k) {
        for (uint32_t part = 0; part < 2; ++part) {
          EXPECT_TRUE(lease.CopyPart(k, 0, part, bytes).ok());
          EXPECT_TRUE(bytes == Bytes(keys[k], part)) << "block " << k << " part " << part;
        }
      }
      return lease.ready_count();
    }
    // Waits for memory that is on its way.
    void AwaitArena() const {
      for (int i = 0; i < 2000 && Stats()["segments_populated"] < 4; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
    // `name` of the domain's stats, once it is `wanted` or the deadline has passed.
    uint64_t Await(const char* name, uint64_t wanted) const {
      uint64_t value = 0;
      for (int i = 0; i < 1000; ++i) {
        value = Stats()[name];
        if (value == wanted) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      return value;
    }
  };
  Visitor Visit() {
    ClientOptions options;
    options.socket_path = daemon_.socket_path();
    options.default_deadline_us = kLongUs;
    Visitor visitor{.client = std::move(Client::Create(options)).value(), .group = {}};
    EXPECT_TRUE(visitor.client->WaitConnected(kLongUs).ok()) << visitor.client->last_error();
    visitor.group = visitor.client->Open(Model(), 1).value();
    return visitor;
  }

  // The memfd of that name which the keeper holds, open for writing; nobody else has it now.
  int OpenHeld(const std::string& name) const {
    const std::string directory = "/proc/" + std::to_string(keeper_.pid()) + "/fd";
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      std::error_code ignored;
      if (std::filesystem::read_symlink(entry, ignored).string().find(name) != std::string::npos) {
        return open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
      }
    }
    return -1;
  }

  DaemonProcess& daemon() { return daemon_; }
  DaemonProcess& keeper() { return keeper_; }
  std::string dram_bytes = "8MiB";

 private:
  Holder holder_;
  DaemonProcess keeper_;
  DaemonProcess daemon_;
};

class DaemonKept : public testing::TestWithParam<Holder> {};

TEST_P(DaemonKept, SealedBlocksSurviveKillsAndStops) {
  Warm warm(GetParam());
  warm.Start();
  const auto keys = Keys(kBlocks);
  {
    const auto visitor = warm.Visit();
    visitor.AwaitArena();
    ASSERT_EQ(visitor.Store(keys), kBlocks);
  }
  for (int i = 0; i < 6; ++i) {
    i % 3 == 2 ? warm.End(SIGTERM, 0) : warm.Kill();
    warm.Start();
    const auto visitor = warm.Visit();
    EXPECT_EQ(visitor.Load(keys), kBlocks) << warm.daemon().Errors();
    EXPECT_EQ(visitor.Stats()["blocks_adopted"], kBlocks);
    EXPECT_EQ(visitor.Await("inherited_bytes", 0), 0u);
    EXPECT_EQ(visitor.Store(Keys(2, 100 + i)), 2u);
    EXPECT_TRUE(visitor.client->Evict(visitor.group, Keys(2, 100 + i)).ok());
  }
  EXPECT_THAT(warm.daemon().Errors(), Not(HasSubstr("not taken over")));
}

// A writer that lives on may still write what the dead daemon gave it.
TEST_P(DaemonKept, SlotsOfALivingWriterAreNotReused) {
  Warm warm(GetParam());
  warm.Start();
  auto writer = std::make_optional(warm.Visit());
  writer->AwaitArena();
  const auto keys = Keys(kBlocks);
  ASSERT_EQ(writer->Store(keys), kBlocks);
  std::optional<WriteLease> lease = writer->client->Reserve(writer->group, Keys(2, 50)).value();
  const std::span<std::byte> slot = lease->slot(0, 0);
  ASSERT_FALSE(slot.empty());
  warm.Kill();
  warm.Start();
  const auto visitor = warm.Visit();
  EXPECT_EQ(visitor.Load(keys), kBlocks);
  const uint64_t inherited_bytes = visitor.Stats()["inherited_bytes"];
  EXPECT_GE(inherited_bytes, 2 * 2 * kPartBytes);
  std::fill(slot.begin(), slot.end(), std::byte{0xEE});
  for (uint64_t prompt = 60; prompt < 64; ++prompt) visitor.Store(Keys(20, prompt));
  std::fill(slot.begin(), slot.end(), std::byte{0xDD});
  for (uint64_t prompt = 60; prompt < 64; ++prompt) visitor.Load(Keys(20, prompt));
  EXPECT_EQ(visitor.Load(keys), kBlocks);
  EXPECT_EQ(visitor.Stats()["inherited_bytes"], inherited_bytes);
  lease.reset();
  EXPECT_EQ(visitor.Await("inherited_bytes", 0), 0u);
}

INSTANTIATE_TEST_SUITE_P(Holders, DaemonKept, testing::Values(Holder::kKeeper, Holder::kSystemd),
                         [](const auto& info) {
                           return info.param == Holder::kKeeper ? "Keeper" : "Systemd";
                         });

// PROMISE: T03 erasures while a keeper holds what it was not asked for
TEST(DaemonKeeper, MemoryThatMissedAnErasureIsNotTakenOver) {
  for (const bool is_erased : {false, true}) {
    Warm warm(Holder::kKeeper);
    warm.Start();
    ASSERT_EQ(warm.Visit().Store(Keys(kBlocks)), kBlocks);
    warm.Kill();
    warm.Use(Holder::kNobody);
    warm.Start();
    {
      const Warm::Visitor visitor = warm.Visit();
      EXPECT_EQ(visitor.Load(Keys(kBlocks)), 0u);
      if (is_erased) {
        ASSERT_TRUE(
            visitor.client->Evict(visitor.group, Keys(1), {.flags = protocol::kEvictSubtree}).ok());
      }
    }
    warm.Kill();
    warm.Use(Holder::kKeeper);
    warm.Start();
    EXPECT_EQ(warm.Visit().Load(Keys(kBlocks)), is_erased ? 0u : kBlocks) << warm.daemon().Errors();
    if (!is_erased) continue;
    EXPECT_THAT(warm.daemon().Errors(), HasSubstr("something was erased"));
    warm.Visit().AwaitArena();
    ASSERT_EQ(warm.Visit().Store(Keys(kBlocks)), kBlocks);
    warm.Kill();
    warm.Start();
    EXPECT_EQ(warm.Visit().Load(Keys(kBlocks)), kBlocks) << "it is this daemon's again";
  }
}

TEST(DaemonKeeper, FlippedBytesAreAMissAndCounted) {
  if (geteuid() != 0) GTEST_SKIP() << kRootOnly;
  Warm warm(Holder::kKeeper);
  warm.Start();
  const auto keys = Keys(kBlocks);
  {
    const auto visitor = warm.Visit();
    visitor.AwaitArena();
    ASSERT_EQ(visitor.Store(keys), kBlocks);
  }
  warm.Kill();
  const int fd = warm.OpenHeld("terrace-arena-");
  ASSERT_GE(fd, 0);
  for (off_t at = 1000; at < 8 << 20; at += 400'000) {
    char byte = 0;
    ASSERT_EQ(pread(fd, &byte, 1, at), 1);
    byte ^= 4;
    ASSERT_EQ(pwrite(fd, &byte, 1, at), 1);
  }
  close(fd);
  warm.Start();
  const auto visitor = warm.Visit();
  EXPECT_LT(visitor.Load(keys), kBlocks);  // Load checks every byte that is served
  EXPECT_GT(visitor.Stats()["blocks_corrupt"], 0);
}

// PROMISE: T31 the same in a daemon
TEST(DaemonKeeper, GarbledSlotTableCostsBlocksNotTruth) {
  if (geteuid() != 0) GTEST_SKIP() << kRootOnly;
  std::mt19937 random(5);
  for (int round = 0; round < 4; ++round) {
    Warm warm(Holder::kKeeper);
    warm.Start();
    const auto keys = Keys(kBlocks);
    {
      const auto visitor = warm.Visit();
      visitor.AwaitArena();
      ASSERT_EQ(visitor.Store(keys), kBlocks);
    }
    warm.Kill();
    const int fd = warm.OpenHeld("terrace-slots-");
    ASSERT_GE(fd, 0);
    struct stat stat {};
    ASSERT_EQ(fstat(fd, &stat), 0);
    const uint64_t rows_bytes = (8 << 20) / kArenaPageBytes * 128;
    // A few rows, a stretch of them, all rows, and whatever there is.
    const uint64_t writes[] = {40, 4'000, 100'000, 400'000};
    for (uint64_t i = 0; i < writes[round]; ++i) {
      const uint32_t word = random();
      const uint64_t reach = round == 3 ? static_cast<uint64_t>(stat.st_size) : rows_bytes;
      ASSERT_EQ(pwrite(fd, &word, sizeof(word), static_cast<off_t>(random() % (reach - 4))), 4);
    }
    close(fd);
    warm.Start();
    const auto visitor = warm.Visit();
    visitor.Load(keys);
    visitor.AwaitArena();
    visitor.Store(Keys(8, 90));
    visitor.Load(Keys(8, 90));
    EXPECT_EQ(kill(warm.daemon().pid(), 0), 0) << warm.daemon().Errors();
  }
}

TEST(DaemonKeeper, ArenaOfAnotherSizeStartsColdAndSaysSo) {
  if (geteuid() != 0) GTEST_SKIP() << kRootOnly;
  Warm warm(Holder::kKeeper);
  warm.Start();
  {
    const auto visitor = warm.Visit();
    ASSERT_EQ(visitor.Store(Keys(4)), 4u);
  }
  warm.End(SIGTERM, 0);
  warm.dram_bytes = "12MiB";
  warm.Start();
  EXPECT_THAT(warm.daemon().Errors(), HasSubstr("dram_max_bytes was 8388608 and is 12582912"));
  EXPECT_EQ(warm.Visit().Load(Keys(4)), 0u);
  // The old memory is nobody's.
  const int table = warm.OpenHeld("terrace-slots-");
  struct stat stat {};
  ASSERT_EQ(fstat(table, &stat), 0);
  EXPECT_GT(stat.st_size, (12 << 20) / 4096 * 128);
  close(table);
}

TEST(DaemonKeeper, ASecondDaemonIsRefused) {
  Warm warm(Holder::kKeeper);
  warm.Start();
  DaemonProcess second;
  const std::string config =
      second.WriteFile("t.toml", "[daemon]\nkeeper_socket = \"" + warm.keeper().socket_path() +
                                     "\"\ndram_bytes = \"8MiB\"\nsegment_bytes = \"2MiB\"\n");
  second.Start({"--config", config, "--socket", second.socket_path()});
  EXPECT_GT(second.Wait(), 0);
  EXPECT_THAT(second.Errors(), HasSubstr("serves another daemon"));
}

// Lines are written by a thread of their own.
bool SaysInTime(const DaemonProcess& daemon, const std::string& what) {
  for (int i = 0; i < 500; ++i) {
    if (daemon.Errors().find(what) != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(DaemonKeeper, WithoutItsKeeperTheDaemonServesAndSaysSo) {
  Warm warm(Holder::kKeeper);
  warm.keeper().Signal(SIGKILL);
  ASSERT_EQ(warm.keeper().Wait(), 128 + SIGKILL);
  warm.Start();
  EXPECT_EQ(warm.Visit().Store(Keys(4)), 4u);
  EXPECT_TRUE(SaysInTime(warm.daemon(), "DRAM will not outlive this daemon"));
  warm.Kill();
  warm.Start();
  EXPECT_EQ(warm.Visit().Load(Keys(4)), 0u);
}

}  // namespace
}  // namespace terrace::test

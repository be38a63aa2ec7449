// Two tenants on one drive: what one borrows comes back when the other asks for its guarantee, and
// `terrace quota` tells of it.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "integration/process/cli/cli_fixture.h"
#include "integration/process/tiny_tenant.h"
#include "terrace/units.h"

namespace terrace {
namespace {

using nlohmann::json;
using test::kPromptBlocks;
using test::SlabBytesBelow;
using test::Tenant;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kSlabBytes = 4 * kMiB;
constexpr uint64_t kCapacityBytes = 16 * kSlabBytes;
constexpr uint64_t kQuietBytes = 12 * kSlabBytes;  // what each is guaranteed
constexpr uint64_t kNoisyBytes = 4 * kSlabBytes;
constexpr uint32_t kQuietPrompts = 22;  // eleven slabs and a half

class CliQuota : public CliTest {
 protected:
  void StartWithTwo() {
    const std::string config = daemon().WriteFile(
        "terraced.toml",
        fmt::format("[daemon]\nstate_dir = \"{0}\"\ndram_bytes = \"64MiB\"\n"
                    "segment_bytes = \"2MiB\"\n"
                    "[nvme]\npaths = [\"{0}/nvme\"]\ncapacity_bytes = {1}\nslab_bytes = {2}\n"
                    "[[domain]]\nname = \"quiet\"\nsocket = \"{3}\"\n"
                    "dram_guaranteed_bytes = \"32MiB\"\nnvme_guaranteed_bytes = {4}\n"
                    "[[domain]]\nname = \"noisy\"\nsocket = \"{0}/noisy.sock\"\n"
                    "nvme_guaranteed_bytes = {5}\n",
                    daemon().directory(), kCapacityBytes, kSlabBytes, socket_path(), kQuietBytes,
                    kNoisyBytes));
    daemon().Start({"--config", config});
    ASSERT_TRUE(daemon().WaitReady()) << daemon().Errors();
  }
  std::string noisy_socket() const { return Path("noisy.sock"); }
  // Of a domain's NVMe, as `terrace quota` says.
  static uint64_t Nvme(const json& document, size_t domain, const char* name) {
    return document["domains"][domain]["tiers"][1].value(name, UINT64_MAX);
  }
  uint64_t Nvme(size_t domain, const char* name) const {
    return Nvme(TerraceJson({"quota"}), domain, name);
  }
  // That of the noisy one; false: not within a minute.
  bool Becomes(const char* name, uint64_t value) const {
    for (int i = 0; i < 1200 && Nvme(1, name) != value; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return Nvme(1, name) == value;
  }
  void ReplaceInConfig(const std::string& from, const std::string& to) const {
    std::string text = ReadText(Path("terraced.toml"));
    const size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << text;
    std::ofstream(Path("terraced.toml")) << text.replace(at, from.size(), to);
  }
  // Prompts until the drive holds no more.
  void FillDrive(Tenant& noisy) {
    for (prompt_ = 1; prompt_ < 200 && Nvme(1, "held_bytes") < kCapacityBytes; ++prompt_) {
      noisy.Store(prompt_);
      ASSERT_TRUE(noisy.WaitPersisted(prompt_));
    }
    ASSERT_EQ(Nvme(1, "held_bytes"), kCapacityBytes) << "nobody else needs it";
  }

  std::atomic<uint64_t> prompt_ = 1;  // of the noisy one
};

TEST_F(CliQuota, WhatIsLentComesBackToWhoIsGuaranteedIt) {
  StartWithTwo();
  Tenant noisy(noisy_socket());
  FillDrive(noisy);
  const json before = TerraceJson({"quota"});
  EXPECT_EQ(Nvme(before, 1, "borrowed_bytes"), kCapacityBytes - kNoisyBytes);
  EXPECT_EQ(before["capacity_bytes"]["nvme"], kCapacityBytes);
  EXPECT_EQ(Nvme(before, 0, "guaranteed_bytes"), kQuietBytes);

  // The noisy one goes on writing as fast as it can.
  std::atomic<bool> is_over = false;
  std::thread noise([&] {
    while (!is_over) noisy.Store(prompt_++);
  });
  const auto since = std::chrono::steady_clock::now();
  Tenant quiet(socket_path());
  for (uint64_t prompt = 1; prompt <= kQuietPrompts; ++prompt) {
    quiet.Store(prompt);
    EXPECT_TRUE(quiet.WaitPersisted(prompt)) << "prompt " << prompt;
    const json now = TerraceJson({"quota"});
    const uint64_t quiet_bytes = Nvme(now, 0, "held_bytes"),
                   noisy_bytes = Nvme(now, 1, "held_bytes");
    EXPECT_LE(quiet_bytes, kQuietBytes);
    EXPECT_GE(noisy_bytes, kNoisyBytes) << "what it is guaranteed stays";
    EXPECT_LE(quiet_bytes + noisy_bytes, kCapacityBytes);
  }
  EXPECT_TRUE(Becomes("held_bytes", kNoisyBytes)) << Terrace({"quota"}).out;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - since;
  is_over = true;
  noise.join();
  std::printf("quiet has %.0f MiB of NVMe after %.1f s, which noisy had borrowed\n",
              static_cast<double>(Nvme(0, "held_bytes")) / kMiB, took.count());
  EXPECT_EQ(Nvme(0, "held_bytes"), kQuietBytes);
  const auto noisy_has = [](Tenant& tenant, uint64_t prompt_end) {
    uint32_t right_count = 0;
    for (uint64_t prompt = 1; prompt < prompt_end; ++prompt) right_count += tenant.Load(prompt);
    return right_count;
  };
  EXPECT_GE(noisy_has(noisy, prompt_), 2 * kPromptBlocks) << "two slabs' worth at least";
  for (uint64_t prompt = 1; prompt <= kQuietPrompts; ++prompt) {
    EXPECT_EQ(quiet.Load(prompt), kPromptBlocks) << "prompt " << prompt;
  }
  EXPECT_EQ(noisy.wrong_count() + quiet.wrong_count(), 0u);

  // What was stored lies on the drive, and nobody has pushed it out; so it is after a restart.
  daemon().Signal(SIGKILL);
  daemon().Wait();
  StartWithTwo();
  const json after = TerraceJson({"quota"});
  EXPECT_EQ(Nvme(after, 0, "held_bytes"), kQuietBytes);
  EXPECT_EQ(Nvme(after, 1, "held_bytes"), kNoisyBytes);
  Tenant again(socket_path()), noisy_again(noisy_socket());
  for (uint64_t prompt = 1; prompt <= kQuietPrompts; ++prompt) {
    uint32_t right_count = 0;  // memory is populated while it is asked for
    for (uint32_t i = 0; i < 100 && right_count < kPromptBlocks; ++i) {
      right_count = again.Load(prompt);
    }
    EXPECT_EQ(right_count, kPromptBlocks) << "prompt " << prompt;
  }
  EXPECT_GT(noisy_has(noisy_again, prompt_), 0u);
  for (uint32_t i = 0; i < 10; ++i) noisy_again.Store(prompt_++);
  EXPECT_EQ(Nvme(1, "held_bytes"), kNoisyBytes);
  EXPECT_EQ(again.wrong_count() + noisy_again.wrong_count(), 0u);
}

// Both write, load and are retuned; whoever looks, and whenever, nobody has more than it may.
// TERRACE_QUOTA_SECONDS: for how long.
TEST_F(CliQuota, SmokeLimitsHoldAtEverySampleUnderLoad) {
  StartWithTwo();
  const char* const said = std::getenv("TERRACE_QUOTA_SECONDS");
  const std::chrono::seconds duration(said != nullptr ? std::atoi(said) : 4);
  std::atomic<bool> is_over = false;
  std::atomic<uint64_t> right_count = 0, wrong_count = 0;
  const auto work = [&](const std::string& socket) {
    Tenant tenant(socket);
    for (uint64_t prompt = 1; !is_over; ++prompt) {
      tenant.Store(prompt);
      right_count += tenant.Load(prompt * 7 % (prompt + 1));
    }
    wrong_count += tenant.wrong_count();
  };
  std::thread quiet(work, socket_path()), noisy(work, noisy_socket());
  uint64_t limit_bytes = kCapacityBytes, sample_count = 0;
  uint64_t last_quiet_bytes = 0, last_noisy_bytes = 0;
  const auto end = std::chrono::steady_clock::now() + duration;
  while (std::chrono::steady_clock::now() < end) {
    const json now = TerraceJson({"quota"});
    const uint64_t quiet_bytes = Nvme(now, 0, "held_bytes"),
                   noisy_bytes = Nvme(now, 1, "held_bytes");
    EXPECT_LE(quiet_bytes + noisy_bytes, kCapacityBytes);
    EXPECT_LE(SlabBytesBelow(Path("nvme")), kCapacityBytes + kSlabBytes) << "one goes, one comes";
    EXPECT_GE(quiet_bytes, std::min(last_quiet_bytes, kQuietBytes));
    EXPECT_GE(noisy_bytes, std::min(last_noisy_bytes, kNoisyBytes))
        << "what it is guaranteed stays";
    last_quiet_bytes = quiet_bytes;
    last_noisy_bytes = noisy_bytes;
    // It is lowered and raised again; above it nothing is taken, whatever is free.
    if (++sample_count % 20 == 0) {
      limit_bytes = limit_bytes == kCapacityBytes ? 6 * kSlabBytes : kCapacityBytes;
      TerraceJson({"config", "set", fmt::format("domain.noisy.nvme_max_bytes={}", limit_bytes)});
      if (limit_bytes < kCapacityBytes) {
        for (int i = 0; i < 600 && Nvme(1, "held_bytes") > limit_bytes; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
      }
    }
    EXPECT_LE(Nvme(1, "held_bytes"), limit_bytes);
  }
  is_over = true;
  quiet.join();
  noisy.join();
  std::printf("%llu samples, %llu blocks loaded\n", static_cast<unsigned long long>(sample_count),
              static_cast<unsigned long long>(right_count.load()));
  EXPECT_EQ(wrong_count, 0u);
  EXPECT_GT(right_count, 0u);
  EXPECT_EQ(daemon().Errors().find("level=error"), std::string::npos) << daemon().Errors();
}

TEST_F(CliQuota, ALimitThatIsLoweredIsReachedWithoutARestart) {
  StartWithTwo();
  Tenant noisy(noisy_socket());
  FillDrive(noisy);
  const Outcome refused = Terrace({"quota", "noisy", "nvme_guaranteed_bytes=60MiB"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("sum to 108MiB"), HasSubstr("nvme.capacity_bytes")));
  const Outcome nobody = Terrace({"quota", "nobody"});
  EXPECT_EQ(nobody.exit_code, 1);
  EXPECT_THAT(nobody.err, HasSubstr("no domain 'nobody'; there are: quiet, noisy"));
  const json set = TerraceJson(
      {"quota", "noisy", "borrow_priority=20", fmt::format("nvme_max_bytes={}", 8 * kSlabBytes)});
  ASSERT_EQ(set["domains"].size(), 1u);
  EXPECT_EQ(set["domains"][0]["borrow_priority"], 20);
  EXPECT_EQ(Nvme(set, 0, "max_bytes"), 8 * kSlabBytes);
  EXPECT_TRUE(Becomes("held_bytes", 8 * kSlabBytes));
  EXPECT_TRUE(Becomes("leaving_bytes", 0));

  // The file says otherwise: raised it is used again, lowered it is given back.
  TerraceJson({"config", "reload"});
  FillDrive(noisy);
  ReplaceInConfig(fmt::format("\nnvme_guaranteed_bytes = {}\n", kNoisyBytes),
                  fmt::format("\nnvme_max_bytes = {}\n", kNoisyBytes));
  TerraceJson({"config", "reload"});
  EXPECT_TRUE(Becomes("held_bytes", kNoisyBytes));
  EXPECT_EQ(Nvme(1, "guaranteed_bytes"), kNoisyBytes) << "who names a limit has it";
  // Without a word of its own it would have half of the drive, of which the other has three parts.
  ReplaceInConfig(fmt::format("\nnvme_max_bytes = {}\n", kNoisyBytes), "\n");
  const Outcome too_much = Terrace({"config", "reload"});
  EXPECT_EQ(too_much.exit_code, 1);
  EXPECT_THAT(too_much.err,
              AllOf(HasSubstr("sum to 80MiB"), HasSubstr("nvme.capacity_bytes of 64MiB")));
  EXPECT_EQ(Nvme(1, "max_bytes"), kNoisyBytes) << "nothing has changed";
}

TEST_F(CliQuota, SmokeOfSeveralChangesOneThatIsRefusedLeavesAllAsTheyWere) {
  StartWithTwo();
  const Outcome refused =
      Terrace({"quota", "noisy", "borrow_priority=20", "nvme_guaranteed_bytes=60MiB"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("sum to 108MiB"), HasSubstr("None of these keys has changed")));
  EXPECT_EQ(TerraceJson({"quota", "noisy"})["domains"][0]["borrow_priority"], 50);
  // Alone the limit would be below the guarantee.
  const json moved = TerraceJson({"quota", "noisy", "nvme_max_bytes=12MiB",
                                  "nvme_guaranteed_bytes=8MiB", "borrow_priority=20"});
  EXPECT_EQ(Nvme(moved, 0, "max_bytes"), 12 * kMiB);
  EXPECT_EQ(Nvme(moved, 0, "guaranteed_bytes"), 8 * kMiB);
  EXPECT_EQ(moved["domains"][0]["borrow_priority"], 20);
  EXPECT_THAT(Terrace({"log"}).out, HasSubstr("domain.noisy.nvme_max_bytes, domain.noisy.nvme_g"));
}

TEST_F(CliQuota, SmokeAPartOfATierThatIsNotThereIsRefused) {
  StartWithTwo();
  const Outcome refused = Terrace({"quota", "noisy", "redis_max_bytes=1GiB"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err,
              HasSubstr("domain.noisy.redis_max_bytes is of a tier that this daemon has not, since "
                        "redis.endpoints is not set"));
}

// What it gives as an example is within all limits.
TEST_F(CliQuota, SmokeItsExampleCanBeRun) {
  StartWithTwo();
  const std::string shown = Terrace({"quota"}).out;
  const std::string begin = "  terrace quota noisy ";
  const size_t at = shown.find(begin);
  ASSERT_NE(at, shown.npos) << shown;
  const std::string change =
      shown.substr(at + begin.size(), shown.find('\n', at) - at - begin.size());
  EXPECT_EQ(change, "nvme_max_bytes=64MiB");
  const Outcome run = Terrace({"quota", "noisy", change});
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

TEST_F(CliQuota, SmokeIsShownIn80Columns) {
  StartWithTwo();
  const Outcome shown = Terrace({"quota"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("DOMAIN"), HasSubstr("GUARANTEE"), HasSubstr("BORROWS"),
                               HasSubstr("quiet   dram"), HasSubstr("48.0 MiB"),
                               HasSubstr("terrace quota noisy nvme_max_bytes=")));
  size_t begin = 0;
  for (size_t end; (end = shown.out.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_LE(end - begin, 80u) << shown.out.substr(begin, end - begin);
  }
}

TEST_F(CliQuota, SmokeOtherKeysThanQuotasAreRefusedAndNothingChanges) {
  StartWithTwo();
  for (const char* change : {"allow_models=[\"x\"]", "nope=1", "borrow_priority"}) {
    const Outcome outcome = Terrace({"quota", "noisy", "borrow_priority=2", change});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("changes no quota"), HasSubstr("nvme_max_bytes")));
  }
  EXPECT_THAT(Terrace({"quota", "noisy"}).out, HasSubstr("noisy: borrow_priority 50\n"));
  EXPECT_THAT(Terrace({"quota", "noisy", "borrow_priority=2"}).out,
              HasSubstr("noisy: borrow_priority 2\n"));
}

}  // namespace
}  // namespace terrace

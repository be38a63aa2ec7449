// nvme.capacity_bytes goes down and up while engines store and load: the files follow, nobody sees
// a wrong byte, and a daemon that is killed in the middle leaves what the next one finishes.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "integration/process/cli/cli_fixture.h"
#include "integration/process/tiny_tenant.h"
#include "terrace/units.h"

namespace terrace {
namespace {

using nlohmann::json;
using test::kPromptBlocks;
using test::Tenant;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kSlabBytes = 4 * kMiB;
constexpr uint64_t kWholeBytes = 16 * kSlabBytes;
constexpr uint64_t kHalfBytes = 8 * kSlabBytes;
constexpr uint64_t kSlabBlocks = 38;  // of a Tenant's, of two parts of 52 KiB

class CliCapacity : public CliTest {
 protected:
  void WriteConfig(uint64_t capacity_bytes) {
    daemon().WriteFile(
        "terraced.toml",
        fmt::format("[daemon]\nstate_dir = \"{0}\"\ndram_bytes = \"16MiB\"\n"
                    "segment_bytes = \"2MiB\"\n"
                    "[nvme]\npaths = [\"{0}/a\", \"{0}/b\"]\ncapacity_bytes = {1}\n"
                    "slab_bytes = {2}\n[[domain]]\nname = \"chat\"\nsocket = \"{3}\"\n",
                    daemon().directory(), capacity_bytes, kSlabBytes, socket_path()));
  }
  void Start() {
    daemon().Start({"--config", Path("terraced.toml")});
    ASSERT_TRUE(daemon().WaitReady()) << daemon().Errors();
  }
  void Resize(uint64_t capacity_bytes) const {
    TerraceJson({"config", "set", fmt::format("nvme.capacity_bytes={}", capacity_bytes)});
  }
  uint64_t SlabBytes(const std::string& path) const { return test::SlabBytesBelow(Path(path)); }
  uint64_t SlabBytes() const { return SlabBytes("a") + SlabBytes("b"); }
  // Within a minute.
  template <typename Condition>
  static bool Eventually(const Condition& condition) {
    for (int i = 0; i < 1200 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return condition();
  }
  void Fill(Tenant& tenant, uint64_t bytes) {
    for (uint64_t end = prompt_ + 200; prompt_ < end && SlabBytes() < bytes; ++prompt_) {
      tenant.Store(prompt_);
      ASSERT_TRUE(tenant.WaitPersisted(prompt_));
    }
    ASSERT_EQ(SlabBytes(), bytes);
  }
  bool IsAbove() const {
    const json conditions = TerraceJson({"status"})["conditions"];
    return std::ranges::find(conditions, "tier_above_limit") != conditions.end();
  }

  std::atomic<uint64_t> prompt_ = 1;
};

TEST_F(CliCapacity, SmokeGoesDownByHalfUnderLoadAndUpAgain) {
  WriteConfig(kWholeBytes);
  Start();
  {
    Tenant first(socket_path());
    Fill(first, kWholeBytes);
  }
  std::atomic<bool> is_over = false;
  std::atomic<uint64_t> right_count = 0, wrong_count = 0;
  const auto work = [&](uint64_t step) {
    Tenant tenant(socket_path());
    for (uint64_t i = 1; !is_over; ++i) {
      tenant.Store(prompt_++);
      right_count += tenant.Load(prompt_ - 1 - i * step % std::min<uint64_t>(prompt_ - 1, 60));
    }
    wrong_count += tenant.wrong_count();
  };
  std::thread one(work, 7), other(work, 11);

  const auto since = std::chrono::steady_clock::now();
  Resize(kHalfBytes);
  EXPECT_TRUE(IsAbove());
  const json shown = TerraceJson({"status"});
  EXPECT_EQ(shown["health"], "degraded");
  EXPECT_GT(shown["lower_tiers"][0]["above_bytes"], 0u);
  EXPECT_THAT(Terrace({"status"}).out, HasSubstr("above the limit"));
  EXPECT_THAT(Terrace({"quota"}).out, HasSubstr("of nvme above its limit"));
  EXPECT_TRUE(Eventually([&] { return SlabBytes() <= kHalfBytes; })) << Terrace({"quota"}).out;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - since;
  for (int sample = 0; sample < 40; ++sample) {
    ASSERT_LE(SlabBytes(), kHalfBytes) << "it stays there";
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  EXPECT_TRUE(Eventually([&] { return !IsAbove(); }));
  EXPECT_GT(SlabBytes("a"), 0u);
  EXPECT_GT(SlabBytes("b"), 0u) << "both drives go on sharing the work";
  const uint64_t right_before = right_count;

  Resize(kWholeBytes);
  EXPECT_TRUE(Eventually([&] { return SlabBytes() > kHalfBytes; })) << Terrace({"quota"}).out;
  EXPECT_TRUE(Eventually([&] { return SlabBytes() == kWholeBytes; })) << Terrace({"quota"}).out;
  EXPECT_FALSE(IsAbove());
  EXPECT_TRUE(Eventually([&] { return right_count > right_before + kPromptBlocks; }));
  is_over = true;
  one.join();
  other.join();
  std::printf("down by half in %.1f s; %llu blocks loaded, %llu of them since\n", took.count(),
              static_cast<unsigned long long>(right_count.load()),
              static_cast<unsigned long long>(right_count - right_before));
  EXPECT_EQ(wrong_count, 0u);
  EXPECT_GT(right_before, 0u);
  const std::string log = daemon().Errors();
  EXPECT_EQ(log.find("level=error"), log.npos) << log;
  EXPECT_THAT(log, AllOf(HasSubstr("a tier is above its limit"),
                         HasSubstr("a tier is within its limit again")));

  const Outcome refused = Terrace({"config", "set", "nvme.capacity_bytes=4MiB"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("nvme.capacity_bytes is 4MiB"),
                                 HasSubstr("a path needs one slab at least"),
                                 HasSubstr("raise capacity_bytes to 8MiB")));
}

// Slots that were used again lie in any slab, and prompts with them over all: what goes is what was
// used longest ago, wherever it lies, and what stays is moved.
TEST_F(CliCapacity, TheHalfThatWasUsedLastStays) {
  WriteConfig(kWholeBytes);
  Start();
  Tenant tenant(socket_path());
  Fill(tenant, kWholeBytes);
  std::mt19937_64 random(7);
  for (int i = 0; i < 120; ++i) {  // several times what the tier holds, and prompts used again
    tenant.Store(prompt_);
    ASSERT_TRUE(tenant.WaitPersisted(prompt_));
    ++prompt_;
    (void)tenant.Load(prompt_ - 1 - random() % std::min<uint64_t>(prompt_ - 1, 40));
  }
  const auto load = [&](std::vector<uint64_t>* by_prompt) {
    uint64_t sum = 0;
    EXPECT_EQ(Terrace({"evict", "--tier", "dram", "--all", "--yes"}).exit_code, 0);
    for (uint64_t prompt = 1; prompt < prompt_; ++prompt) {
      by_prompt->push_back(tenant.Load(prompt));
      sum += by_prompt->back();
    }
    return sum;
  };
  std::vector<uint64_t> before, after;
  const uint64_t before_count = load(&before);  // the last ones are those used last, from here on
  Resize(kHalfBytes);
  uint64_t check_count = 0;
  const auto is_down = [&] {  // nothing is amiss meanwhile: copies are where they are or will be
    const Outcome checked = Terrace({"fsck", "--online"});
    EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
    ++check_count;
    return SlabBytes() <= kHalfBytes && !IsAbove();
  };
  ASSERT_TRUE(Eventually(is_down)) << Terrace({"quota"}).out;
  EXPECT_GT(check_count, 1u);
  const uint64_t after_count = load(&after);
  const uint64_t fits_count = kHalfBytes / kSlabBytes * kSlabBlocks;
  uint64_t hot_count = 0, hot_kept_count = 0;
  for (size_t i = before.size(); i-- > 0 && hot_count < fits_count * 8 / 10;) {
    hot_count += before[i];
    hot_kept_count += std::min(before[i], after[i]);
  }
  const json domain = TerraceJson({"status"})["domain"];
  std::printf(
      "%llu blocks before, %llu after; %llu fit; of the %llu used last %llu; moved %llu\n",
      static_cast<unsigned long long>(before_count), static_cast<unsigned long long>(after_count),
      static_cast<unsigned long long>(fits_count), static_cast<unsigned long long>(hot_count),
      static_cast<unsigned long long>(hot_kept_count),
      static_cast<unsigned long long>(domain["blocks_relocated"]));
  EXPECT_GE(after_count * 10, std::min(before_count, fits_count) * 9);
  EXPECT_GE(hot_kept_count * 10, hot_count * 9) << "what was used last stays";
  EXPECT_EQ(tenant.wrong_count(), 0u);
  const Outcome checked = Terrace({"fsck", "--online", "--verify"});
  EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
}

// Each round is killed a little later: before the first slab is empty, among them, behind the last.
TEST_F(CliCapacity, SmokeAKillInTheMiddleOfAShrinkLeavesWhatTheNextDaemonFinishes) {
  uint64_t right_count = 0, cut_count = 0;
  for (int round = 0; round < 6; ++round) {
    WriteConfig(kWholeBytes);
    Start();
    {
      Tenant tenant(socket_path());
      Fill(tenant, kWholeBytes);
      WriteConfig(kHalfBytes);
      daemon().Signal(SIGHUP);
      ASSERT_TRUE(Eventually([&] { return IsAbove(); }));
      std::this_thread::sleep_for(std::chrono::milliseconds(round * 900));
      KillDaemon();
    }
    cut_count += SlabBytes() > kHalfBytes;
    const Outcome checked = Terrace({"fsck", "--verify", "--config", Path("terraced.toml")});
    EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;

    Start();
    EXPECT_TRUE(Eventually([&] { return SlabBytes() <= kHalfBytes; })) << Terrace({"quota"}).out;
    EXPECT_TRUE(Eventually([&] { return !IsAbove(); }));
    const json held = TerraceJson({"quota"})["domains"][0]["tiers"][1]["held_bytes"];
    EXPECT_EQ(held, SlabBytes()) << "no file is there that nobody counts";
    Tenant tenant(socket_path());
    for (uint64_t prompt = 1; prompt < prompt_; ++prompt) right_count += tenant.Load(prompt);
    EXPECT_EQ(tenant.wrong_count(), 0u);
    KillDaemon();
  }
  std::printf("%llu of 6 daemons were killed above the limit; %llu blocks loaded\n",
              static_cast<unsigned long long>(cut_count),
              static_cast<unsigned long long>(right_count));
  EXPECT_GT(cut_count, 0u);
  EXPECT_GT(right_count, 6 * kPromptBlocks);
}

}  // namespace
}  // namespace terrace

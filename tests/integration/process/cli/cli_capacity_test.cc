// nvme.capacity_bytes goes down and up while engines store and load: the files follow, nobody sees
// a wrong byte, and a daemon that is killed in the middle leaves what the next one finishes.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
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
    Outcome checked;
    const auto is_checked = [&] {  // the kernel may still hold the killed daemon's ring
      checked = Terrace({"fsck", "--verify", "--config", Path("terraced.toml")});
      return checked.err.find("is in use by process") == std::string::npos;
    };
    EXPECT_TRUE(Eventually(is_checked));
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

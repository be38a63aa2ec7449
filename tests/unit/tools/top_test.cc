#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tools/terrace/top/frame.h"
#include "tools/terrace/top/sample.h"

namespace terrace::tools {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

Sample Parsed(const std::string& text) { return SampleOf(*StatsView::Parse(text)); }

// At `uptime_ms` after the start `boot`, when so many blocks had been asked for: half of them were
// hit in DRAM, a quarter on a drive.
Sample At(uint64_t uptime_ms, uint64_t asked, const std::string& boot = "b1") {
  const auto text = [](uint64_t count) { return std::to_string(count); };
  return Parsed(R"({"version": "0.2.0", "pid": 12, "health": "ok", "boot_id": ")" + boot +
                R"(", "uptime_ms": )" + text(uptime_ms) + R"(, "domain": {"name": "chat",
      "segment_bytes": 1048576, "segments_max": 100, "slot_bytes_used": 26214400,
      "session_count": 2, "lease_count": 3, "block_count": 1234, "leased_block_count": 5,
      "reserved_count": 1, "acquire_requests": )" +
                text(asked / 10) + R"(, "acquire_blocks_asked": )" + text(asked) +
                R"(, "acquire_blocks_hit": )" + text(asked / 4 * 3) +
                R"(, "acquire_blocks_by_tier": [0, )" + text(asked / 2) + ", " + text(asked / 4) +
                R"(, 0], "blocks_sealed": )" + text(asked / 5) +
                R"(, "blocks_evicted": 0, "blocks_expired": 0},
      "lower_tiers": [{"kind": "nvme", "used_bytes": 1024, "capacity_bytes": 2048,
                       "is_healthy": true, "read_bytes": )" +
                text(asked * 1024) + R"(, "written_bytes": 0}],
      "groups": [{"name": "idle", "id": "01", "block_count": 9, "block_bytes": 9999,
                  "acquire_blocks_asked": 0, "acquire_blocks_hit": 0},
                 {"name": "busy", "id": "02", "block_count": 1, "block_bytes": 1024,
                  "acquire_blocks_asked": )" +
                text(asked) + R"(, "acquire_blocks_hit": )" + text(asked / 4 * 3) + "}]}");
}

TEST(TopRates, AreDifferencesOverTheDaemonsOwnTime) {
  const Rates rates = RatesBetween(At(1000, 400), At(3000, 2400));
  EXPECT_EQ(rates.elapsed_ms, 2000u);
  EXPECT_FALSE(rates.is_restarted);
  EXPECT_DOUBLE_EQ(*rates.asked, 1000);
  EXPECT_DOUBLE_EQ(*rates.hit, 750);
  EXPECT_DOUBLE_EQ(*rates.share, 0.75);
  EXPECT_DOUBLE_EQ(*rates.miss_share, 0.25);
  EXPECT_DOUBLE_EQ(*rates.stored, 200);
  ASSERT_EQ(rates.tiers.size(), 2u);
  EXPECT_DOUBLE_EQ(*rates.tiers[0].hits, 500);  // DRAM
  EXPECT_DOUBLE_EQ(*rates.tiers[0].share, 0.5);
  EXPECT_EQ(rates.tiers[0].read_bytes, std::nullopt);
  EXPECT_DOUBLE_EQ(*rates.tiers[1].read_bytes, 1024 * 1000);
  ASSERT_EQ(rates.groups.size(), 2u);
  EXPECT_EQ(rates.groups[0].share, std::nullopt);  // nobody asked
  EXPECT_DOUBLE_EQ(*rates.groups[1].share, 0.75);
}

TEST(TopRates, OfADaemonThatStartedAnewThereAreNone) {
  for (const uint64_t asked : {0u, 400u, 9000u}) {  // fewer than before, as many, more
    const Rates rates = RatesBetween(At(5000, 400), At(9000, asked, "b2"));
    EXPECT_TRUE(rates.is_restarted);
    EXPECT_EQ(rates.asked, std::nullopt) << asked;
    EXPECT_EQ(rates.tiers[0].hits, std::nullopt) << asked;
    EXPECT_EQ(rates.groups[1].asked, std::nullopt) << asked;
  }
}

TEST(TopRates, ACounterThatWentBackHasNone) {
  const Rates rates = RatesBetween(At(1000, 400), At(3000, 100));
  EXPECT_FALSE(rates.is_restarted);
  EXPECT_EQ(rates.asked, std::nullopt);
  EXPECT_EQ(rates.share, std::nullopt);
  EXPECT_EQ(rates.tiers[1].read_bytes, std::nullopt);
  EXPECT_DOUBLE_EQ(*rates.evicted, 0);  // that one did not
}

TEST(TopRates, ATierOrGroupThatIsNewHasNoneYet) {
  const Sample before = Parsed(R"({"boot_id": "b1", "uptime_ms": 1000})");
  const Rates rates = RatesBetween(before, At(3000, 100));
  EXPECT_EQ(rates.tiers[1].hits, std::nullopt);
  EXPECT_EQ(rates.groups[1].asked, std::nullopt);
}

TEST(TopRates, TwoAnswersOfOneInstantHaveNone) {
  EXPECT_EQ(RatesBetween(At(1000, 400), At(1000, 500)).asked, std::nullopt);
}

Frame FrameOf(const Sample& before, const Sample& after) {
  return {.sample = after, .rates = RatesBetween(before, after), .away = "", .interval_s = 2};
}

std::string Joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(TopFrame, ShowsTiersRatesSessionsAndTheBusiestGroupFirst) {
  const std::string text = Joined(RenderFrame(FrameOf(At(1000, 400), At(3000, 2400)), {}));
  EXPECT_THAT(text, HasSubstr("domain chat, terraced 0.2.0 of pid 12 up 3.0 s, rates of 2 s\n"));
  EXPECT_THAT(text, HasSubstr("2 sessions, 3 leases of 5 blocks; 1,234 blocks, 1 being written"));
  EXPECT_THAT(text, ContainsRegex("dram +25.0 MiB +100.0 MiB +25.0 % +500 +50.0 % +- +-\n"));
  EXPECT_THAT(text,
              ContainsRegex("nvme +1.0 KiB +2.0 KiB +50.0 % +250 +25.0 % +1000.0 KiB +0 B\n"));
  EXPECT_THAT(text, ContainsRegex("missed +250 +25.0 %\n"));
  EXPECT_THAT(text, HasSubstr("100 requests, 1,000 blocks asked, 750 hit (75.0 %)"));
  EXPECT_THAT(text, HasSubstr("200 stored, 0 evicted"));
  EXPECT_LT(text.find("busy"), text.find("idle"));
}

TEST(TopFrame, AfterARestartThereIsNoHugeNumber) {
  const std::string text = Joined(RenderFrame(FrameOf(At(9000, 99000), At(1000, 40, "b2")), {}));
  EXPECT_THAT(text, HasSubstr("has started anew"));
  EXPECT_THAT(text, HasSubstr("- requests, - blocks asked, - hit (-)"));
  EXPECT_THAT(text, Not(ContainsRegex("[0-9]{7}")));
}

TEST(TopFrame, WithoutADaemonItSaysSoAndKeepsWhatWasKnown) {
  Frame frame = FrameOf(At(1000, 400), At(3000, 2400));
  frame.away = "there is no socket";
  const std::string text = Joined(RenderFrame(frame, {}));
  EXPECT_THAT(text, AllOf(HasSubstr("NO DAEMON: there is no socket"), HasSubstr("1,234 blocks")));
  EXPECT_THAT(text, HasSubstr("- requests"));
  EXPECT_EQ(Joined(RenderFrame({.away = "there is no socket"}, {})),
            "NO DAEMON: there is no socket\n");
}

TEST(TopFrame, FitsAnyScreen) {
  Sample crowded = At(3000, 2400);
  for (int i = 0; i < 300; ++i) {
    crowded.groups.push_back({.id = std::to_string(i), .name = "a group with a name that is long"});
  }
  const Frame frame = FrameOf(At(1000, 400), crowded);
  for (const size_t rows : {1u, 5u, 12u, 13u, 14u, 15u, 24u, 50u}) {
    for (const size_t columns : {1u, 20u, 80u, 200u}) {
      const auto lines = RenderFrame(frame, {.columns = columns, .rows = rows});
      EXPECT_LE(lines.size(), rows);
      for (const std::string& line : lines) EXPECT_LE(line.size(), columns + 2);  // an ellipsis
    }
  }
  EXPECT_THAT(RenderFrame(frame, {}).back(), ContainsRegex("and [0-9]+ more"));
  EXPECT_EQ(RenderFrame(frame, {}).size(), 24u);
  for (const std::string& line : RenderFrame(frame, kNoFrameLimits)) {
    EXPECT_LE(line.size(), 82u) << line;
  }
}

TEST(TopFrame, ANameCannotSteerTheTerminal) {
  Sample sample = At(3000, 2400);
  sample.domain = "a\x1b[2Jb\x7f\xC2\x9Bq\nü";
  sample.groups[1].name = "g\x1b]0;x\x07";
  const auto lines = RenderFrame(FrameOf(At(1000, 400), sample), {});
  EXPECT_THAT(lines[0], HasSubstr("domain a?[2Jb??q?ü, terraced"));
  EXPECT_THAT(lines, Each(Not(HasSubstr("\x1b"))));
  EXPECT_THAT(Joined(lines), HasSubstr("g?]0;x?"));
}

TEST(TopFrame, AsJsonWhatCannotBeSaidIsNull) {
  const nlohmann::json document = ToJson(FrameOf(At(1000, 400), At(3000, 2400)));
  EXPECT_EQ(document["blocks_asked_per_s"], 1000);
  EXPECT_EQ(document["tiers"][1]["kind"], "nvme");
  EXPECT_EQ(document["tiers"][1]["read_bytes_per_s"], 1024000);
  EXPECT_TRUE(document["tiers"][0]["read_bytes_per_s"].is_null());
  EXPECT_EQ(document["groups"][0]["name"], "busy");
  EXPECT_TRUE(ToJson(FrameOf(At(1, 9), At(2, 9, "b2")))["blocks_asked_per_s"].is_null());
}

TEST(TopSample, ATierThatIsOffAndASharedOneThatIsAwayAreNamed) {
  const Sample sample = Parsed(R"({"lower_tiers": [{"kind": "nvme", "is_healthy": false},
                                                   {"kind": "hbm", "is_healthy": true}],
                                   "redis": {"is_ready": false},
                                   "domain": {"acquire_blocks_by_tier": [1, 2, 3, 4]},
                                   "troubles": ["a", "b"]})");
  ASSERT_EQ(sample.tiers.size(), 4u);
  EXPECT_EQ(sample.tiers[0].kind, "hbm");
  EXPECT_EQ(sample.tiers[0].blocks_hit, 1u);
  EXPECT_EQ(sample.tiers[2].trouble, "off");
  EXPECT_EQ(sample.tiers[3].kind, "redis");
  EXPECT_EQ(sample.tiers[3].trouble, "away");
  EXPECT_EQ(sample.tiers[3].blocks_hit, 4u);
  EXPECT_EQ(sample.health, "a; b");
}

}  // namespace
}  // namespace terrace::tools

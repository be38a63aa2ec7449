#include "tools/terrace/cli/stats_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/terrace/cli/status_report.h"

namespace terrace::tools {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(StatsView, FieldsAreFoundInTheDocumentAndInItsDomain) {
  auto stats = StatsView::Parse(R"({"version": "1", "domain": {"block_count": 3, "name": "d"}})");
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->Text("version"), "1");
  EXPECT_EQ(stats->Count("block_count"), 3u);
  EXPECT_EQ(stats->Text("domain.name"), "d");
}

TEST(StatsView, ACountThatNoCounterHoldsIsAbsent) {
  auto stats = StatsView::Parse(
      R"({"most": 18446744073709551615, "beyond": 18446744073709551616, "huge": 1e300,
          "below": -1e300, "whole": 3.0, "part": 1.8446744073709550e19})");
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->Count("most"), UINT64_MAX);
  EXPECT_EQ(stats->Count("beyond"), std::nullopt);
  EXPECT_EQ(stats->Count("huge"), std::nullopt);
  EXPECT_EQ(stats->Count("below"), std::nullopt);
  EXPECT_EQ(stats->Count("whole"), 3u);
  EXPECT_EQ(stats->Count("part"), 18446744073709549568u);
}

TEST(StatsView, WhatIsMissingOrOfAnotherKindIsAbsent) {
  auto stats = StatsView::Parse(R"({"block_count": "many", "groups": 7, "lease_count": -1})");
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->Count("block_count"), std::nullopt);
  EXPECT_EQ(stats->Count("lease_count"), std::nullopt);
  EXPECT_EQ(stats->Count("no.such.thing"), std::nullopt);
  EXPECT_EQ(stats->Text("nothing"), "");
  EXPECT_TRUE(stats->Each("groups").empty());
  EXPECT_TRUE(stats->Counts("groups").empty());
}

TEST(StatsView, WhatIsNoObjectIsRefused) {
  for (const char* text : {"", "[]", "{", "3", "{} x"}) {
    EXPECT_EQ(StatsView::Parse(text).code(), StatusCode::kInvalid) << text;
  }
}

TEST(StatsView, GroupsHaveNames) {
  auto stats = StatsView::Parse(
      R"({"groups": [{"name": "a", "id": "00000000000000000000000000000005"},
                     {"name": "b", "id": "broken"}]})");
  ASSERT_TRUE(stats.ok());
  const auto names = GroupNamesOf(*stats);
  ASSERT_EQ(names.size(), 1u);
  EXPECT_EQ(names.begin()->second, "a");
  ASSERT_TRUE(FindGroup(*stats, "a").has_value());
  EXPECT_EQ(FindGroup(*stats, "a")->low, 5u);
}

TEST(StatsView, AnUnknownGroupIsExplainedWithTheKnownOnes) {
  auto stats = StatsView::Parse(R"({"groups": [{"name": "llama", "id": "x"}, {"name": "qwen"}]})");
  ASSERT_TRUE(stats.ok());
  testing::internal::CaptureStderr();
  EXPECT_EQ(FindGroup(*stats, "lama"), std::nullopt);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("no group 'lama'"), HasSubstr("llama, qwen")));
}

// The daemon counts anew when it starts.
TEST(StatusReport, WhatWasWrittenIsToldWithSinceWhenItIsCounted) {
  const auto told = [](const std::string& uptime) {
    auto stats = StatsView::Parse(R"({)" + uptime +
                                  R"("lower_tiers": [{"kind": "nvme", "eviction": "lru",
        "admission": "all", "written_bytes_of_day": 4096, "write_bytes_per_day": 8192}]})");
    EXPECT_TRUE(stats.ok());
    return RenderStatus(*stats);
  };
  EXPECT_THAT(told(R"("uptime_ms": 65000, )"),
              HasSubstr("admission all, 4.0 KiB written since the start 1 min 5 s ago "
                        "of 8.0 KiB allowed in 24 h\n"));
  const std::string whole_day = "admission all, 4.0 KiB written in 24 h of 8.0 KiB allowed\n";
  EXPECT_THAT(told(R"("uptime_ms": 86400000, )"), HasSubstr(whole_day));
  EXPECT_THAT(told(""), HasSubstr(whole_day));
}

TEST(StatusReport, AFullDocumentIsSummedUp) {
  auto stats = StatsView::Parse(R"({
    "version": "0.1.0", "boot_id": "77", "pid": 12, "uptime_ms": 65000,
    "domain": {"name": "chat",
      "arena_page_bytes": 2097152,
      "segment_bytes": 1048576, "segments_populated": 2, "segments_max": 4,
      "slot_bytes_used": 1048576, "slot_bytes_stranded": 1024, "fenced_bytes": 0,
      "block_count": 1234, "lease_count": 2, "session_count": 3,
      "acquire_blocks_asked": 200, "acquire_blocks_hit": 150,
      "acquire_blocks_by_tier": [0, 100, 50, 0]},
    "groups": [{"name": "llama", "id": "05", "member_count": 8, "block_count": 1234,
                "block_bytes": 1024,
                "acquire_blocks_asked": 200, "acquire_blocks_hit": 150}],
    "lower_tiers": [{"kind": "nvme", "block_count": 7, "used_bytes": 1024,
                     "capacity_bytes": 4096, "is_healthy": false}],
    "copies": {"client_count": 1, "clients": [{"session": "02", "backend": "cuda",
               "why": "the plugin has a device", "pinned_bytes": 1024, "straight_bytes": 3072,
               "bounced_bytes": 2048, "registrations_failed": 4}]},
    "sessions": [{"client_name": "engine", "id": "01", "pid": 99, "is_hung_up": true}]})");
  ASSERT_TRUE(stats.ok());
  const std::string text = RenderStatus(*stats);
  EXPECT_THAT(text, HasSubstr("domain    chat\n"));
  EXPECT_THAT(text, HasSubstr("version 0.1.0, up 1 min 5 s, pid 12, boot 77"));
  EXPECT_THAT(text, HasSubstr("1.0 MiB used (50.0 % of populated), 2.0 MiB populated of at most "
                              "4.0 MiB, in pages of 2.0 MiB\n"));
  EXPECT_THAT(text, HasSubstr("1,234 resident"));
  EXPECT_THAT(text, HasSubstr("150 of 200 blocks acquired (75.0 %)"));
  EXPECT_THAT(text, HasSubstr("by tier: dram 50.0 %, nvme 25.0 %"));
  EXPECT_THAT(text, ContainsRegex("llama .* 1,234 +1.0 KiB +1.2 MiB +75.0 %"));
  EXPECT_THAT(text, HasSubstr("nvme      7 blocks, 1.0 KiB used of 4.0 KiB, DISABLED"));
  EXPECT_THAT(text, HasSubstr("engine  01        99"));
  EXPECT_THAT(text, HasSubstr("gone, fenced"));
  EXPECT_THAT(text, ContainsRegex("02 +cuda +1.0 KiB +3.0 KiB +2.0 KiB +4 +the plugin has a dev"));
}

// What fills memory, and who: no other command need be known.
TEST(StatusReport, MemoryThatCannotBeHadIsNamedWithWhoHoldsIt) {
  auto stats = StatsView::Parse(R"({
    "domain": {"segment_bytes": 4194304, "segments_leaving": 8, "fenced_bytes": 1048576,
      "fenced_slot_count": 4, "fenced_bytes_max": 8388608,
      "engine_pinned_blocks": 128, "engine_pinned_bytes": 33554432,
      "named_pinned_blocks": 0, "named_pinned_bytes": 0,
      "refuted_writers": [{"session": "621aa671f69a7f87", "uid": 7, "block_count": 32, "pid": 4711,
                           "comm": "python3", "client_name": "engine-1", "unix_s": 86400}]},
    "sessions": [{"client_name": "engine-a", "id": "01", "pid": 11, "revoked_leases": 2},
                 {"client_name": "engine-b", "id": "02", "pid": 12, "segments_owed": 8},
                 {"client_name": "engine-d", "id": "04", "pid": 14, "is_reader": true},
                 {"client_name": "engine-c", "id": "03", "pid": 13, "is_hung_up": true,
                  "revoked_leases": 1}]})");
  ASSERT_TRUE(stats.ok());
  const std::string text = RenderStatus(*stats);
  EXPECT_THAT(text, HasSubstr("1.0 MiB fenced in 4 slots (at 8.0 MiB nothing more is stored)"));
  EXPECT_THAT(text, HasSubstr("pinned: 32.0 MiB in 128 blocks by engines themselves, 0 B in 0 by"));
  EXPECT_THAT(text,
              HasSubstr("LEAVING: 8 segments, 32.0 MiB: engine-b (pid 12) has not unmapped 8"));
  EXPECT_THAT(text, ContainsRegex("engine-a +01 .* silent, fenced"));
  EXPECT_THAT(text, ContainsRegex("engine-b +02 .* connected, owes 8 segments"));
  EXPECT_THAT(text, ContainsRegex("engine-c +03 .* gone, fenced"));
  EXPECT_THAT(text, ContainsRegex("engine-d +04 .* connected, reads only"));
  EXPECT_THAT(text, HasSubstr("session 621aa671f69a7f87, uid 7, pid 4711 (python3), client "
                              "engine-1, last 1970-01-02T00:00:00Z: they were erased"));
}

TEST(StatusReport, WhatRedisWasNotGivenForAQuotaIsSaid) {
  const auto told = [](const std::string& count) {
    auto stats = StatsView::Parse(
        R"({"redis": {"connections": 5, "is_ready": true, "blocks_over_quota": )" + count + "}}");
    EXPECT_TRUE(stats.ok());
    return RenderStatus(*stats);
  };
  EXPECT_THAT(told("1234"), HasSubstr("OVER QUOTA: 1,234 blocks not given, since the domain's "
                                      "share was used up: see `terrace quota`\n"));
  EXPECT_THAT(told("0"), testing::Not(HasSubstr("QUOTA")));
}

TEST(StatusReport, MetricsThatNobodyCanAskForAreSaid) {
  const auto told = [](const std::string& trouble) {
    auto stats = StatsView::Parse(R"({"health": "ok", "metrics_trouble": ")" + trouble + "\"}");
    EXPECT_TRUE(stats.ok());
    return RenderStatus(*stats);
  };
  EXPECT_THAT(told("127.0.0.1:9: Address already in use"),
              HasSubstr("NOT SERVED: metrics, 127.0.0.1:9: Address already in use; tried again"));
  EXPECT_THAT(told(""), testing::Not(HasSubstr("NOT SERVED")));
}

TEST(StatusReport, AnEmptyDocumentIsAllDashes) {
  auto stats = StatsView::Parse("{}");
  ASSERT_TRUE(stats.ok());
  EXPECT_THAT(RenderStatus(*stats), HasSubstr("- sessions, - leases"));
}

}  // namespace
}  // namespace terrace::tools

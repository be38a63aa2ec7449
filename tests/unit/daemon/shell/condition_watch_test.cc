#include "daemon/shell/condition_watch.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "daemon/telemetry/metrics.h"
#include "told_lines.h"

namespace terrace {
namespace {

class ConditionWatchTest : public testing::Test {
 protected:
  ConditionWatchTest() {
    figures_.lower_tiers.assign(1, {.kind = TierKind::kNvme, .stats = {.capacity_bytes = 100}});
  }
  void SwitchOff(uint64_t off_count) {
    figures_.lower_tiers[0].troubles = {{.path = "/mnt/a/chat",
                                         .is_off = true,
                                         .operation = "write",
                                         .error = EIO,
                                         .failures_in_row = 8,
                                         .off_count = off_count}};
  }
  test::ToldLines told_;
  DomainFigures figures_;
  ConditionWatch watch_{{"chat"},
                        {.fill = [this](uint32_t, DomainFigures* to) { *to = figures_; },
                         .kv_events = [](uint32_t) { return std::nullopt; }}};
};

TEST_F(ConditionWatchTest, ADriveIsALineWhenItGoesAndOneWhenItIsBack) {
  watch_.Look();
  EXPECT_EQ(watch_.Summary(), "ok");
  SwitchOff(1);
  for (int second = 0; second < 5; ++second) watch_.Look();
  EXPECT_EQ(told_.Times("a drive is off"), 1u);
  for (const char* word : {"Input/output error (errno 5)", "/mnt/a/chat",
                           "operation=", "failures_in_row=8", "a probe takes it back"}) {
    EXPECT_GE(told_.Times(word), 1u) << word;
  }
  EXPECT_EQ(watch_.Summary(), "degraded: chat: drive_off");
  figures_.lower_tiers[0].troubles.clear();
  for (int second = 0; second < 5; ++second) watch_.Look();
  EXPECT_EQ(told_.Times("a drive is on again"), 1u);
  EXPECT_EQ(watch_.Summary(), "ok");
}

TEST_F(ConditionWatchTest, ADriveThatWasOnBetweenTwoLooksIsToldOfAgain) {
  SwitchOff(2);
  watch_.Look();
  SwitchOff(3);
  watch_.Look();
  EXPECT_EQ(told_.Times("event=\\\"a drive is off"), 2u);
}

TEST_F(ConditionWatchTest, AnArenaThatIsShortIsALineAtEachEnd) {
  figures_.arena_shortage = "2MiB are all it has got: no memory";
  for (int second = 0; second < 3; ++second) watch_.Look();
  EXPECT_EQ(told_.Times("arena cannot grow"), 1u);
  EXPECT_EQ(told_.Times("2MiB are all it has got"), 1u);
  EXPECT_EQ(watch_.Summary(), "degraded: chat: arena_short");
  figures_.arena_shortage.clear();
  for (int second = 0; second < 3; ++second) watch_.Look();
  EXPECT_EQ(told_.Times("arena is no longer short"), 1u);
}

TEST_F(ConditionWatchTest, AFullRedisIsALineAtEachEnd) {
  figures_.shared = DomainFigures::SharedStats{};
  figures_.shared->tier.is_ready = true;
  figures_.shared->tier.write_trouble = "the Redis server is full and evicts nothing";
  for (int second = 0; second < 5; ++second) watch_.Look();
  EXPECT_EQ(told_.Times("redis takes no writes:"), 1u) << "the sentence";
  figures_.shared->tier.write_trouble.clear();
  for (int second = 0; second < 5; ++second) watch_.Look();
  EXPECT_EQ(told_.Times("redis takes writes again"), 1u);
}

TEST_F(ConditionWatchTest, ALookIsOfSomeDomainsAlone) {
  uint32_t filled = 0;
  ConditionWatch many(std::vector<std::string>(64, "d"),
                      {.fill = [&](uint32_t, DomainFigures* to) { *to = {}, ++filled; },
                       .kv_events = [](uint32_t) { return std::nullopt; }});
  many.Look();
  EXPECT_EQ(filled, kDomainsPerTurn);
  for (int second = 1; second < 4; ++second) many.Look();
  EXPECT_EQ(filled, 64u);
}

}  // namespace
}  // namespace terrace

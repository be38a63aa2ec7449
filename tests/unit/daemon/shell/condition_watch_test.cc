#include "daemon/shell/condition_watch.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "daemon/log/log.h"
#include "daemon/telemetry/metrics.h"

namespace terrace {
namespace {

class ConditionWatchTest : public testing::Test {
 protected:
  ConditionWatchTest() {
    StartLog({});
    figures_.lower_tiers.assign(1, {.kind = TierKind::kNvme, .stats = {.capacity_bytes = 100}});
  }
  ~ConditionWatchTest() override { EXPECT_TRUE(StopLog()); }
  void SwitchOff(uint64_t off_count) {
    figures_.lower_tiers[0].troubles = {{.path = "/mnt/a/chat",
                                         .is_off = true,
                                         .operation = "write",
                                         .error = EIO,
                                         .failures_in_row = 8,
                                         .off_count = off_count}};
  }
  // How often the log says it, since the test began.
  size_t TimesTold(const std::string& word) {
    EXPECT_TRUE(StopLog());  // when it has written all
    std::string lines;
    EXPECT_TRUE(RecentLogLines(kRecentLinesMax, &lines));
    told_ += lines;
    StartLog({});
    size_t count = 0;
    for (size_t at = told_.find(word); at != told_.npos; at = told_.find(word, at + 1)) ++count;
    return count;
  }

  std::string told_;
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
  EXPECT_EQ(TimesTold("a drive is off"), 1u);
  for (const char* word : {"Input/output error (errno 5)", "/mnt/a/chat",
                           "operation=", "failures_in_row=8", "a probe takes it back"}) {
    EXPECT_GE(TimesTold(word), 1u) << word;
  }
  EXPECT_EQ(watch_.Summary(), "degraded: chat: drive_off");
  figures_.lower_tiers[0].troubles.clear();
  for (int second = 0; second < 5; ++second) watch_.Look();
  EXPECT_EQ(TimesTold("a drive is on again"), 1u);
  EXPECT_EQ(watch_.Summary(), "ok");
}

TEST_F(ConditionWatchTest, ADriveThatWasOnBetweenTwoLooksIsToldOfAgain) {
  SwitchOff(2);
  watch_.Look();
  SwitchOff(3);
  watch_.Look();
  EXPECT_EQ(TimesTold("event=\\\"a drive is off"), 2u);
}

TEST_F(ConditionWatchTest, AFullRedisIsALineAtEachEnd) {
  figures_.shared = DomainFigures::SharedStats{};
  figures_.shared->tier.is_ready = true;
  figures_.shared->tier.write_trouble = "the Redis server is full and evicts nothing";
  for (int second = 0; second < 5; ++second) watch_.Look();
  EXPECT_EQ(TimesTold("redis takes no writes:"), 1u) << "the sentence";
  figures_.shared->tier.write_trouble.clear();
  for (int second = 0; second < 5; ++second) watch_.Look();
  EXPECT_EQ(TimesTold("redis takes writes again"), 1u);
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

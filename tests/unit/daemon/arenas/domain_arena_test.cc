#include "daemon/arenas/domain_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "daemon/log/log.h"
#include "huge_pages.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

// Memory that is not there when the arena grows: the log says it once, with the remedy, and that it
// is over.
TEST(DomainArena, SaysThatItCannotGrowAndThatItGrowsAgain) {
  test::HugePages pool;
  if (!pool.Take(4)) GTEST_SKIP() << "vm.nr_hugepages cannot be set here";
  StartLog({.level = LogLevel::kError});  // the last lines are kept, whatever is written
  asio::io_context loop;
  std::optional<Status> last;
  const auto huge_pages = std::make_shared<HugePageClaims>();
  DomainArena arena({.domain_name = "a",
                     .segment_bytes = kSegmentBytesMin,
                     .segments_max = 4,
                     .segments_expected = 4,
                     .hugepages = HugePages::kAuto,
                     .huge_pages = huge_pages},
                    loop,
                    {.on_populated = [&](uint32_t, Status status) { last = status; },
                     .on_punched = [](uint32_t, Status) {}});
  std::string why;
  ASSERT_TRUE(arena.Create(&why).ok()) << why;
  if (arena.arena().backing() != ArenaBacking::kHugetlb) GTEST_SKIP() << "others have them";
  const auto populate = [&](uint32_t segment) {
    last.reset();
    arena.BeginPopulate(segment);
    loop.restart();
    const auto work = asio::make_work_guard(loop);
    while (!last) loop.run_one();
    return *last;
  };
  const auto lines = [] {
    std::string document;
    while (!RecentLogLines(kRecentLinesMax, &document)) {
    }
    return document;
  };
  EXPECT_TRUE(populate(0).ok());
  EXPECT_THAT(lines(), Not(HasSubstr("arena cannot grow")));
  huge_pages->KeepAtMost(0);
  huge_pages->Trim();
  pool.GiveBack();
  if (populate(1).ok()) GTEST_SKIP() << "the machine has huge pages of its own";
  const std::string told = lines();
  EXPECT_THAT(told, HasSubstr("arena cannot grow"));
  EXPECT_THAT(told, HasSubstr("vm.nr_hugepages"));
  EXPECT_THAT(told, HasSubstr("2MiB"));
  EXPECT_FALSE(populate(1).ok());
  const std::string again = lines();
  EXPECT_EQ(again.find("arena cannot grow"), again.rfind("arena cannot grow")) << "once";
  if (!pool.Take(4)) GTEST_SKIP() << "vm.nr_hugepages cannot be set here";
  EXPECT_TRUE(populate(1).ok());
  EXPECT_THAT(lines(), HasSubstr("arena grows again"));
  EXPECT_TRUE(StopLog());
}

}  // namespace
}  // namespace terrace

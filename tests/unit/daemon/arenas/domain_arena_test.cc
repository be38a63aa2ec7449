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
  StartLog({});
  asio::io_context loop;
  std::optional<Status> last;
  DomainArena arena({.domain_name = "a",
                     .segment_bytes = kSegmentBytesMin,
                     .segments_max = 4,
                     .segments_expected = 4,
                     .hugepages = HugePages::kAuto},
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
  std::string told;
  const auto told_by_now = [&told] {
    EXPECT_TRUE(StopLog());  // when it has written all
    std::string lines;
    EXPECT_TRUE(RecentLogLines(kRecentLinesMax, &lines));
    StartLog({});
    return told += lines;
  };
  EXPECT_TRUE(populate(0).ok());
  EXPECT_THAT(told_by_now(), Not(HasSubstr("arena cannot grow")));
  pool.GiveBack();
  if (populate(1).ok()) GTEST_SKIP() << "the machine has huge pages of its own";
  EXPECT_THAT(told_by_now(), HasSubstr("arena cannot grow"));
  EXPECT_THAT(told, HasSubstr("vm.nr_hugepages"));
  EXPECT_THAT(told, HasSubstr("2MiB"));
  if (populate(1).ok()) GTEST_SKIP() << "others have lent the machine huge pages meanwhile";
  const std::string again = told_by_now();
  EXPECT_EQ(again.find("arena cannot grow"), again.rfind("arena cannot grow")) << "once";
  if (!pool.Take(4)) GTEST_SKIP() << "vm.nr_hugepages cannot be set here";
  if (!populate(1).ok()) GTEST_SKIP() << "others have taken the pool away meanwhile";
  EXPECT_THAT(told_by_now(), HasSubstr("arena grows again"));
  EXPECT_TRUE(StopLog());
}

}  // namespace
}  // namespace terrace

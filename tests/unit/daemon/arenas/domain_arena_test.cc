#include "daemon/arenas/domain_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "huge_pages.h"
#include "told_lines.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// Memory that is not there when the arena grows: the log says it once, with the remedy, and that it
// is over.
TEST(DomainArena, SaysThatItCannotGrowAndThatItGrowsAgain) {
  test::HugePages pool;
  if (!pool.Take(4)) GTEST_SKIP() << "vm.nr_hugepages cannot be set here";
  test::ToldLines told;
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
  EXPECT_TRUE(populate(0).ok());
  EXPECT_EQ(told.Times("arena cannot grow"), 0u);
  pool.GiveBack();
  if (populate(1).ok()) GTEST_SKIP() << "the machine has huge pages of its own";
  EXPECT_EQ(told.Times("arena cannot grow"), 1u);
  EXPECT_THAT(told.ByNow(), HasSubstr("vm.nr_hugepages"));
  EXPECT_THAT(told.ByNow(), HasSubstr("2MiB"));
  if (populate(1).ok()) GTEST_SKIP() << "others have lent the machine huge pages meanwhile";
  EXPECT_EQ(told.Times("arena cannot grow"), 1u) << "once";
  if (!pool.Take(4)) GTEST_SKIP() << "vm.nr_hugepages cannot be set here";
  if (!populate(1).ok()) GTEST_SKIP() << "others have taken the pool away meanwhile";
  EXPECT_EQ(told.Times("arena grows again"), 1u);
}

}  // namespace
}  // namespace terrace

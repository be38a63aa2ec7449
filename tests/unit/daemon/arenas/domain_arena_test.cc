#include "daemon/arenas/domain_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <functional>
#include <optional>

#include "huge_pages.h"

namespace terrace {
namespace {

using testing::HasSubstr;

DomainArena::Post PostTo(asio::io_context& loop) {
  return [&loop](std::function<void()> work) { asio::post(loop, std::move(work)); };
}

TEST(DomainArena, SaysOfWhichPagesItIs) {
  asio::io_context loop;
  DomainArena arena(
      {.domain_name = "a",
       .segment_bytes = kSegmentBytesMin,
       .segments_max = 4,
       .hugepages = HugePages::kOff},
      PostTo(loop),
      {.on_populated = [](uint32_t, Status) {}, .on_punched = [](uint32_t, Status) {}});
  std::string why;
  ASSERT_TRUE(arena.Create(0, &why).ok()) << why;
  EXPECT_EQ(arena.PageBytes(), 4 * kKiB);
}

// Memory that is not there when the arena grows.
TEST(DomainArena, SaysWhatItLacksUntilItGrowsAgain) {
  test::HugePages pool;
  if (!pool.Take(4)) GTEST_SKIP() << "vm.nr_hugepages cannot be set here";
  asio::io_context loop;
  std::optional<Status> last;
  DomainArena arena({.domain_name = "a",
                     .segment_bytes = kSegmentBytesMin,
                     .segments_max = 4,
                     .segments_expected = 4,
                     .hugepages = HugePages::kAuto},
                    PostTo(loop),
                    {.on_populated = [&](uint32_t, Status status) { last = status; },
                     .on_punched = [](uint32_t, Status) {}});
  std::string why;
  ASSERT_TRUE(arena.Create(4, &why).ok()) << why;
  if (arena.arena().backing() != ArenaBacking::kHugetlb) GTEST_SKIP() << "others have them";
  EXPECT_EQ(arena.PageBytes(), 2 * kMiB);
  const auto populate = [&](uint32_t segment) {
    last.reset();
    arena.BeginPopulate(segment);
    loop.restart();
    const auto work = asio::make_work_guard(loop);
    while (!last) loop.run_one();
    return *last;
  };
  EXPECT_EQ(arena.SegmentsOwed(), 3) << "the first one's huge pages are claimed";
  EXPECT_TRUE(populate(0).ok());
  EXPECT_EQ(arena.SegmentsOwed(), 3);
  EXPECT_EQ(arena.Shortage(), "");
  pool.GiveBack();
  if (populate(1).ok()) GTEST_SKIP() << "the machine has huge pages of its own";
  EXPECT_THAT(arena.Shortage(), HasSubstr("vm.nr_hugepages"));
  EXPECT_THAT(arena.Shortage(), HasSubstr("2MiB are all it has got: "));
  EXPECT_THAT(arena.Shortage(), HasSubstr("Cannot allocate memory"));
  if (!pool.Take(4)) GTEST_SKIP() << "vm.nr_hugepages cannot be set here";
  if (!populate(1).ok()) GTEST_SKIP() << "others have taken the pool away meanwhile";
  EXPECT_EQ(arena.Shortage(), "");
  EXPECT_EQ(arena.SegmentsOwed(), 2);
}

}  // namespace
}  // namespace terrace

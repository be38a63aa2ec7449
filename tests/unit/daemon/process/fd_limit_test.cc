#include "daemon/process/fd_limit.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "daemon/config/fd_needs.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// 512 slab files.
DaemonConfig WithDrive() {
  DaemonConfig config;
  config.sessions_max = 8;
  config.domains.resize(1);
  config.nvme.paths = {"/a"};
  config.nvme.capacity_bytes = 2 * kGiB;
  config.nvme.slab_bytes = 4 * kMiB;
  return config;
}

// What RaiseFdLimit does in a process of its own that begins under these limits.
struct Raised {
  StatusCode code = StatusCode::kOk;
  uint64_t fds_max = 0, soft = 0;
  char why[512] = {};
};
Raised RaiseUnder(const DaemonConfig& config, uint64_t soft, uint64_t hard) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    rlimit limit{.rlim_cur = soft, .rlim_max = hard};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(1);
    Raised raised;
    std::string why;
    raised.code = RaiseFdLimit(config, &raised.fds_max, &why).code();
    getrlimit(RLIMIT_NOFILE, &limit);
    raised.soft = limit.rlim_cur;
    why.copy(raised.why, sizeof(raised.why) - 1);
    const bool is_told = write(ends[1], &raised, sizeof(raised)) == sizeof(raised);
    _exit(is_told ? 0 : 1);
  }
  close(ends[1]);
  Raised raised;
  EXPECT_EQ(read(ends[0], &raised, sizeof(raised)), static_cast<ssize_t>(sizeof(raised)));
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  close(ends[0]);
  return raised;
}

TEST(FdNeeds, EachSlabFileThatCapacityCanHaveCountsTwice) {
  DaemonConfig config = WithDrive();
  const FdNeeds needs = FdNeedsOf(config);
  EXPECT_EQ(needs.slab_files, 512u);
  EXPECT_EQ(needs.all(), needs.connections + needs.drives + 1024);
  EXPECT_GE(needs.drives, 4u) << "a directory, its lock, a ring and what wakes it";
  config.nvme.capacity_bytes *= 2;
  EXPECT_EQ(FdNeedsOf(config).all(), needs.all() + 1024);
  config.domains.resize(2);
  EXPECT_EQ(FdNeedsOf(config).slab_files, 1024u) << "of all domains together";
  EXPECT_EQ(FdNeedsOf(config).drives, 2 * needs.drives);
  config.nvme.paths.clear();
  const uint64_t of_two = FdNeedsOf(config).all();
  config.domains.resize(1);
  EXPECT_EQ(FdNeedsOf(config).all(), needs.connections);
  EXPECT_GE(of_two, needs.connections + 5) << "a listener, its lock and memory";
}

TEST(FdNeeds, ALoopOfRedisCountsBesideItsConnections) {
  DaemonConfig config;
  config.domains.resize(1);
  const uint64_t without = FdNeedsOf(config).connections;
  config.redis.endpoints = {"a:1", "b:1"};
  EXPECT_EQ(FdNeedsOf(config).connections, without + 2 * config.redis.connections + 4);
}

TEST(FdLimit, IsRaisedForWhatTheDrivesTierNeedsHoweverItIsGrown) {
  DaemonConfig config = WithDrive();
  rlimit own{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &own), 0);
  if (own.rlim_max < 20'000) GTEST_SKIP() << "ulimit -Hn is too low to be raised to";
  const Raised raised = RaiseUnder(config, 256, own.rlim_max);
  EXPECT_EQ(raised.code, StatusCode::kOk) << raised.why;
  EXPECT_EQ(raised.fds_max, raised.soft);
  config.nvme.capacity_bytes = kSlabFilesOfAPath * config.nvme.slab_bytes;
  EXPECT_GE(raised.fds_max, FdNeedsOf(config).all()) << "capacity_bytes is live";
}

TEST(FdLimit, WhereTheHardOneIsLowSessionsAloneDecideWhetherItStarts) {
  const DaemonConfig config = WithDrive();
  const uint64_t connections = FdNeedsOf(config).connections;
  const Raised few = RaiseUnder(config, 256, connections);
  EXPECT_EQ(few.code, StatusCode::kOk) << few.why;
  EXPECT_EQ(few.fds_max, connections);
  const Raised fewer = RaiseUnder(config, 256, connections - 1);
  EXPECT_EQ(fewer.code, StatusCode::kNoSpace);
  EXPECT_THAT(std::string(fewer.why),
              AllOf(HasSubstr("sessions_max is 8"), HasSubstr("LimitNOFILE=")));
}

}  // namespace
}  // namespace terrace

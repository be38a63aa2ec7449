#include "tiers/arena/memory_headroom.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace terrace {
namespace {

// The files of a machine, made up.
class MemoryHeadroomTest : public testing::Test {
 protected:
  MemoryHeadroomTest() {
    std::string pattern = testing::TempDir() + "/headroom-XXXXXX";
    root_ = ::mkdtemp(pattern.data());
  }
  ~MemoryHeadroomTest() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(MemoryHeadroomTest, NothingSaysNothingLimits) {
  EXPECT_EQ(ReadMemoryHeadroom(root_).available_bytes, UINT64_MAX);
}

TEST_F(MemoryHeadroomTest, IsWhatTheMachineHasAvailable) {
  Write("/proc/meminfo",
        "MemTotal: 900 kB\nMemFree: 100 kB\nMemAvailable:    500 kB\nCached: 7 kB\n");
  EXPECT_EQ(ReadMemoryHeadroom(root_).available_bytes, 500u * 1024);
  EXPECT_EQ(ReadMemoryHeadroom(root_).limited_by, "/proc/meminfo");
}

TEST_F(MemoryHeadroomTest, IsTheTightestCgroupUpToTheRoot) {
  Write("/proc/meminfo", "MemAvailable: 1000000 kB\n");
  Write("/proc/self/cgroup", "0::/pods/one\n");
  Write("/sys/fs/cgroup/pods/one/memory.max", "max\n");
  Write("/sys/fs/cgroup/pods/one/memory.current", "10\n");
  Write("/sys/fs/cgroup/pods/memory.max", "100000\n");
  Write("/sys/fs/cgroup/pods/memory.current", "90000\n");
  EXPECT_EQ(ReadMemoryHeadroom(root_).available_bytes, 10'000u);
  EXPECT_EQ(ReadMemoryHeadroom(root_).limited_by, "/sys/fs/cgroup/pods/memory.max");
  // In a container the own cgroup is the root of what is visible.
  Write("/sys/fs/cgroup/memory.max", "5000\n");
  Write("/sys/fs/cgroup/memory.current", "1000\n");
  EXPECT_EQ(ReadMemoryHeadroom(root_).available_bytes, 4000u);
}

TEST_F(MemoryHeadroomTest, PageCacheOfFilesIsNoUse) {
  Write("/proc/self/cgroup", "0::/one\n");
  Write("/sys/fs/cgroup/one/memory.max", "1000\n");
  Write("/sys/fs/cgroup/one/memory.current", "900\n");
  Write("/sys/fs/cgroup/one/memory.stat",
        "anon 100\nfile 700\ninactive_file 300\nactive_file 200\n");
  EXPECT_EQ(ReadMemoryHeadroom(root_).available_bytes, 600u);
}

TEST_F(MemoryHeadroomTest, OverfullCgroupHasNone) {
  Write("/proc/self/cgroup", "0::/one\n");
  Write("/sys/fs/cgroup/one/memory.max", "1000\n");
  Write("/sys/fs/cgroup/one/memory.current", "1100\n");
  EXPECT_EQ(ReadMemoryHeadroom(root_).available_bytes, 0u);
}

}  // namespace
}  // namespace terrace

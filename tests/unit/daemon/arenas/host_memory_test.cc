#include "daemon/arenas/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "terrace/units.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HostMemory, WhatCanNeverFitIsRefused) {
  std::string why;
  const HostMemory machine{.total_bytes = 16 * kGiB, .available_bytes = 8 * kGiB};
  EXPECT_EQ(CheckHostMemory(machine, 17 * kGiB, 0, &why).code(), StatusCode::kNoSpace);
  EXPECT_THAT(why, AllOf(HasSubstr("17GiB"), HasSubstr("this machine has 16GiB"),
                         HasSubstr("lower dram_bytes")));
  EXPECT_EQ(CheckHostMemory(machine, 9 * kGiB, 8 * kGiB, &why).code(), StatusCode::kNoSpace);
  EXPECT_THAT(why, HasSubstr("and hbm.capacity_bytes of device host 8GiB"));
  const HostMemory pod{
      .total_bytes = 4 * kGiB, .available_bytes = 4 * kGiB, .is_cgroup_limited = true};
  EXPECT_EQ(CheckHostMemory(pod, 5 * kGiB, 0, &why).code(), StatusCode::kNoSpace);
  EXPECT_THAT(why, AllOf(HasSubstr("memory.max is 4GiB"), HasSubstr("raise the limit")));
}

TEST(HostMemory, WhatDoesNotFitNowIsWarnedAbout) {
  std::string why;
  const HostMemory machine{.total_bytes = 16 * kGiB, .available_bytes = 8 * kGiB};
  EXPECT_TRUE(CheckHostMemory(machine, 9 * kGiB, 0, &why).ok());
  EXPECT_THAT(why, HasSubstr("only 8GiB"));
  why.clear();
  EXPECT_TRUE(CheckHostMemory(machine, 8 * kGiB, 0, &why).ok());
  EXPECT_EQ(why, "");
}

TEST(HostMemory, ACgroupsFileCacheIsAvailable) {
  std::string root = (std::filesystem::temp_directory_path() / "terrace-host-XXXXXX").string();
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const auto write = [&root](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  };
  write("/proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree:    4194304 kB\nMemAvailable:    8388608 kB\n");
  EXPECT_EQ(ReadHostMemory(root).available_bytes, 8 * kGiB);
  EXPECT_EQ(ReadHostMemory(root).stalled_us, 0u);
  write("/proc/pressure/memory",
        "some avg10=1.50 avg60=0.00 avg300=0.00 total=1234567\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=99\n");
  EXPECT_EQ(ReadHostMemory(root).stalled_us, 1'234'567u);
  write("/proc/self/cgroup", "0::/pods/one\n");
  write("/sys/fs/cgroup/pods/one/memory.max", "4294967296\n");
  write("/sys/fs/cgroup/pods/one/memory.current", "3221225472\n");
  write("/sys/fs/cgroup/pods/one/memory.stat", "anon 5\ninactive_file 1073741824\nshmem 7\n");
  write("/sys/fs/cgroup/pods/memory.max", "max\n");
  write("/sys/fs/cgroup/pods/one/memory.pressure", "some avg10=0.00 total=42\nfull total=7\n");
  const HostMemory pod = ReadHostMemory(root);
  EXPECT_TRUE(pod.is_cgroup_limited);
  EXPECT_EQ(pod.total_bytes, 4 * kGiB);
  EXPECT_EQ(pod.available_bytes, 2 * kGiB);
  EXPECT_EQ(pod.stalled_us, 42u);
  EXPECT_EQ(pod.free_bytes, 1 * kGiB) << "its file cache is used";
  std::filesystem::remove_all(root);
  EXPECT_EQ(ReadHostMemory(root).total_bytes, 0u);
}

TEST(HostMemory, AnUnreadableHostIsNotGuessedAt) {
  std::string why;
  EXPECT_TRUE(CheckHostMemory({}, 1000 * kGiB, 0, &why).ok());
  EXPECT_EQ(why, "");
}

TEST(HostMemory, ThisMachineIsReadable) {
  const HostMemory host = ReadHostMemory();
  EXPECT_GT(host.total_bytes, 64 * kMiB);
  EXPECT_LE(host.available_bytes, host.total_bytes);
}

}  // namespace
}  // namespace terrace

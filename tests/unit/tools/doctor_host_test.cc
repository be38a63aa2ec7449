#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/units.h"
#include "tests/unit/tools/fake_host.h"
#include "tools/terrace/doctor/checks.h"

namespace terrace::tools {
namespace {

using enum FindingLevel;
using ::testing::HasSubstr;

// ---- kernel, rings, clock, processor ----

TEST(DoctorHost, AKernelWithMemfdAndPidfdIsInOrder) {
  const FakeHost host;
  const Finding finding = CheckKernel(host.Make());
  EXPECT_EQ(finding.level, kOk);
  EXPECT_EQ(finding.found, "6.8.1: memfd, SO_PEERPIDFD");
}

TEST(DoctorHost, AKernelWithoutMemfdIsAProblemAndWithoutPidfdANote) {
  FakeHost host;
  host.pidfd_error = ENOPROTOOPT;
  EXPECT_EQ(CheckKernel(host.Make()).level, kNote);
  EXPECT_THAT(CheckKernel(host.Make()).remedy, HasSubstr("6.5"));
  host.memfd_error = EPERM;
  EXPECT_EQ(CheckKernel(host.Make()).level, kProblem);
}

TEST(DoctorHost, ARingThatIsUsableIsInOrder) {
  const FakeHost host;
  EXPECT_EQ(CheckRing(host.Make()).level, kOk);
  EXPECT_EQ(CheckRing(host.Make()).found, "usable: plain completions");
}

TEST(DoctorHost, ABlockedRingIsAsBadAsTheConfigurationMakesIt) {
  FakeHost host;
  host.why_no_ring = "io_uring_setup: Operation not permitted";
  Subject subject = host.Make();
  EXPECT_EQ(CheckRing(subject).level, kNote);  // no drive needs it
  subject.config.nvme.paths = {"/mnt/d"};
  EXPECT_EQ(CheckRing(subject).level, kWarning);
  subject.config.nvme.io = DiskIo::kUring;
  EXPECT_EQ(CheckRing(subject).level, kProblem);
  subject.config.nvme.io = DiskIo::kThreads;
  EXPECT_EQ(CheckRing(subject).level, kNote);
}

TEST(DoctorHost, TheRemedyForABlockedRingIsTheOneThatBlocksIt) {
  FakeHost host;
  host.why_no_ring = "io_uring_setup: Operation not permitted";
  EXPECT_THAT(CheckRing(host.Make()).remedy, HasSubstr("seccomp"));
  host.Write("/proc/sys/kernel/io_uring_disabled", "2\n");
  EXPECT_EQ(CheckRing(host.Make()).remedy, "sudo sysctl kernel.io_uring_disabled=0");
}

TEST(DoctorHost, AClockOfADeviceIsSlow) {
  FakeHost host;
  EXPECT_EQ(CheckClock(host.Make()).level, kOk);
  const std::string folder = "/sys/devices/system/clocksource/clocksource0/";
  host.Write(folder + "current_clocksource", "hpet\n");
  EXPECT_EQ(CheckClock(host.Make()).level, kWarning);
  EXPECT_THAT(CheckClock(host.Make()).remedy, HasSubstr("dmesg"));
  host.Write(folder + "available_clocksource", "tsc hpet\n");
  EXPECT_THAT(CheckClock(host.Make()).remedy, HasSubstr("echo tsc"));
  host.Remove(folder + "current_clocksource");
  EXPECT_EQ(CheckClock(host.Make()).level, kNote);
}

TEST(DoctorHost, AnX86ProcessorWithoutAvx2IsNoted) {
  FakeHost host;
  EXPECT_EQ(CheckProcessor(host.Make()).level, kOk);
  EXPECT_EQ(CheckProcessor(host.Make()).found, "Quick 9000: AVX2");
  host.vector_units = "";
  EXPECT_EQ(CheckProcessor(host.Make()).level, kNote);
  host.Write("/proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd\n");
  EXPECT_EQ(CheckProcessor(host.Make()).level, kOk);
}

TEST(DoctorHost, ADomainOfFewerSegmentsThanNodesIsAWarning) {
  FakeHost host;
  Subject subject = host.Make();
  EXPECT_EQ(CheckNodes(subject).level, kOk);
  host.Write("/sys/devices/system/node/has_memory", "0-1\n");
  EXPECT_EQ(CheckNodes(subject).level, kOk);
  EXPECT_THAT(CheckNodes(subject).found, HasSubstr("0, 1"));
  subject.config.domains[0].dram_max_bytes = subject.config.segment_bytes;
  EXPECT_EQ(CheckNodes(subject).level, kWarning);
}

TEST(DoctorHost, APluginThatDoesNotLoadMattersWhereAGpuIsWanted) {
  FakeHost host;
  Subject subject = host.Make();
  EXPECT_EQ(CheckGpu(subject).level, kOk);
  host.why_no_plugin = "the plugin is not there";
  EXPECT_EQ(CheckGpu(subject).level, kOk);  // nor is a driver
  host.Write("/proc/driver/nvidia/version", "NVRM version: 550\n");
  EXPECT_EQ(CheckGpu(subject).level, kNote);
  subject.config.hbm.capacity_bytes = kGiB;
  subject.config.hbm.device = "cuda:0";
  EXPECT_EQ(CheckGpu(subject).level, kProblem);
  host.why_no_plugin.clear();
  EXPECT_EQ(CheckGpu(subject).level, kOk);
  EXPECT_THAT(CheckGpu(subject).found, HasSubstr("loads: 2 devices"));
}

// ---- memory ----

TEST(DoctorMemory, WhatFitsIsInOrderAndWhatDoesNotIsAProblem) {
  const FakeHost host;
  Subject subject = host.Make();
  EXPECT_EQ(CheckMemory(subject).level, kOk);
  subject.config.dram_bytes = 62 * kGiB;
  EXPECT_EQ(CheckMemory(subject).level, kWarning);  // beyond nine tenths, and not to be had now
  subject.config.dram_bytes = 65 * kGiB;
  EXPECT_EQ(CheckMemory(subject).level, kProblem);
  EXPECT_THAT(CheckMemory(subject).found, HasSubstr("this machine has 64.0 GiB"));
}

TEST(DoctorMemory, TheLowestLimitOfACgroupCounts) {
  FakeHost host;
  host.Write("/proc/self/cgroup", "0::/a/b\n");
  host.Write("/sys/fs/cgroup/a/memory.max", "4294967296\n");
  host.Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  const Finding finding = CheckMemory(host.Make());
  EXPECT_EQ(finding.level, kProblem);
  EXPECT_THAT(finding.found, HasSubstr("/sys/fs/cgroup/a/memory.max has 4.0 GiB"));
  EXPECT_THAT(finding.remedy, HasSubstr("dram_bytes = \"3072MiB\""));
}

TEST(DoctorMemory, TheCgroupOfTheDaemonCountsWhereItIsSeen) {
  FakeHost host;
  host.Write("/proc/self/cgroup", "0::/small\n");
  host.Write("/sys/fs/cgroup/small/memory.max", "1048576\n");
  Subject subject = host.Make();
  EXPECT_EQ(CheckMemory(subject).level, kProblem);
  subject.pid = 77;
  host.Write("/proc/77/cgroup", "0::/\n");
  EXPECT_EQ(CheckMemory(subject).level, kOk);
}

TEST(DoctorMemory, MemoryOfTheHostsOwnHbmTierCountsToo) {
  const FakeHost host;
  Subject subject = host.Make();
  subject.config.hbm.capacity_bytes = 60 * kGiB;
  EXPECT_EQ(CheckMemory(subject).level, kProblem);
  subject.config.hbm.device = "cuda:0";
  EXPECT_EQ(CheckMemory(subject).level, kOk);
}

TEST(DoctorMemory, HugePagesAreAsTheConfigurationWantsThem) {
  FakeHost host;
  const std::string pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  Subject subject = host.Make();
  EXPECT_EQ(CheckHugePages(subject).level, kOk);  // transparent ones
  host.Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never]\n");
  EXPECT_EQ(CheckHugePages(subject).level, kNote);
  subject.config.hugepages = HugePages::kOn;
  EXPECT_EQ(CheckHugePages(subject).level, kProblem);
  host.Write(pool + "nr_hugepages", "5000\n");
  host.Write(pool + "free_hugepages", "4096\n");
  EXPECT_EQ(CheckHugePages(subject).level, kOk);
  host.Write(pool + "resv_hugepages", "1\n");  // promised to another
  EXPECT_EQ(CheckHugePages(subject).level, kProblem);
  EXPECT_THAT(CheckHugePages(subject).remedy, HasSubstr("vm.nr_hugepages=5001"));
  host.Write("/proc/meminfo", "MemTotal: 99999999 kB\nMemAvailable: 8192 kB\n");
  host.Write(pool + "nr_overcommit_hugepages", "18446744073709551615\n");  // of 2^64, four
  EXPECT_THAT(CheckHugePages(subject).found, HasSubstr("4,095 free, 4 more on demand, 4,096"));
  host.Write(pool + "nr_overcommit_hugepages", "3\n");
  EXPECT_EQ(CheckHugePages(subject).level, kOk);
  EXPECT_THAT(CheckHugePages(subject).found, HasSubstr("4,095 free, 3 more on demand, 4,096"));
  host.Write(pool + "surplus_hugepages", "3\n");  // there are so many beyond the pool already
  EXPECT_EQ(CheckHugePages(subject).level, kProblem);
  subject.config.hugepages = HugePages::kOff;
  EXPECT_EQ(CheckHugePages(subject).level, kOk);
}

TEST(DoctorMemory, HowManyHugePagesAConfigurationWantsThatCannotBeResolvedIsUnknown) {
  FakeHost host;
  host.Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never]\n");
  Subject subject = host.Make();
  subject.config = {};
  EXPECT_EQ(CheckHugePages(subject).level, kOk);
  EXPECT_THAT(CheckHugePages(subject).found, HasSubstr("an unknown number wanted"));
}

// There are no transparent ones.
void WritePool(FakeHost& host, uint64_t all, uint64_t free) {
  const std::string pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  host.Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never]\n");
  host.Write(pool + "nr_hugepages", std::to_string(all) + "\n");
  host.Write(pool + "free_hugepages", std::to_string(free) + "\n");
}

// Others have 500 of the pool, too: what is not free need not be the daemon's.
TEST(DoctorMemory, HugePagesOfTheDaemonThatRunsAreItsSuccessors) {
  FakeHost host;
  WritePool(host, 5000, 3000);
  Subject subject = host.Make();
  subject.config.hugepages = HugePages::kOn;
  subject.stats = FakeHost::Stats("{}");
  subject.huge_page_bytes = 1500 * kArenaHugePageBytes;
  Finding finding = CheckHugePages(subject);
  EXPECT_THAT(finding.found, HasSubstr("3,000 free, 1,500 the daemon's, 4,096 wanted"));
  EXPECT_EQ(finding.level, kOk);
  subject.huge_page_bytes = 1000 * kArenaHugePageBytes;
  finding = CheckHugePages(subject);
  EXPECT_EQ(finding.level, kProblem);
  EXPECT_THAT(finding.remedy, HasSubstr("vm.nr_hugepages=5096"));
  subject.huge_page_bytes.reset();
  finding = CheckHugePages(subject);
  EXPECT_EQ(finding.level, kOk) << "one of before does not tell";
  EXPECT_THAT(finding.found, HasSubstr("3,000 free, 4,096 wanted"));
}

TEST(DoctorMemory, HugePagesInUseMayBeKeptForADaemonThatIsDown) {
  FakeHost host;
  WritePool(host, 4200, 104);
  Subject subject = host.Make();
  subject.config.hugepages = HugePages::kOn;
  EXPECT_EQ(CheckHugePages(subject).level, kWarning);
  EXPECT_THAT(CheckHugePages(subject).meaning, HasSubstr("memory that is kept for it"));
  WritePool(host, 4200, 105);
  EXPECT_EQ(CheckHugePages(subject).level, kProblem) << "they are fewer than it wants";
}

TEST(DoctorMemory, KeptMemoryOfSmallPagesStaysSoUntilAColdStart) {
  FakeHost host;
  const std::string pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  host.Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never]\n");
  Subject subject = host.Make();
  subject.stats = FakeHost::Stats("{}");
  subject.huge_page_bytes = 0;
  subject.has_small_pages = true;
  const std::string cold_start = "hugepages = \"on\" and a restart, which begins cold";
  EXPECT_THAT(CheckHugePages(subject).remedy,
              testing::ContainsRegex("sysctl vm.nr_hugepages=4096, then .*" + cold_start));
  host.Write(pool + "nr_hugepages", "4096\n");
  host.Write(pool + "free_hugepages", "4096\n");
  const Finding finding = CheckHugePages(subject);
  EXPECT_EQ(finding.level, kNote);
  EXPECT_THAT(finding.remedy, HasSubstr(cold_start));
  subject.has_small_pages = false;
  EXPECT_EQ(CheckHugePages(subject).level, kOk);
}

TEST(DoctorMemory, ASmallSharedMemoryIsNoted) {
  FakeHost host;
  EXPECT_EQ(CheckSharedMemory(host.Make()).level, kNote);
  host.volumes["/dev/shm"] = {.total_bytes = 64 * kMiB};
  EXPECT_EQ(CheckSharedMemory(host.Make()).level, kNote);
  host.volumes["/dev/shm"] = {.total_bytes = 8 * kGiB};
  EXPECT_EQ(CheckSharedMemory(host.Make()).level, kOk);
}

// ---- limits ----

TEST(DoctorProcess, LockedMemoryMattersToDrivesAlone) {
  FakeHost host;
  host.Write("/proc/self/limits", FakeHost::Limits("8388608", "524288", "0"));
  Subject subject = host.Make();
  EXPECT_EQ(CheckLockedMemory(subject).level, kOk);
  subject.config.nvme.paths = {"/mnt/d"};
  EXPECT_EQ(CheckLockedMemory(subject).level, kNote);  // this shell's is not the daemon's
  subject.pid = 77;
  host.Write("/proc/77/limits", FakeHost::Limits("8388608", "524288", "0"));
  EXPECT_EQ(CheckLockedMemory(subject).level, kWarning);
  EXPECT_THAT(CheckLockedMemory(subject).found, HasSubstr("8.0 MiB of the daemon (pid 77)"));
  host.Write("/proc/77/limits", FakeHost::Limits("unlimited", "524288", "0"));
  EXPECT_EQ(CheckLockedMemory(subject).level, kOk);
}

TEST(DoctorProcess, OpenFilesAreHeldAgainstTheSessions) {
  FakeHost host;
  Subject subject = host.Make();  // 1,024 sessions: 3,336 files
  EXPECT_EQ(CheckOpenFiles(subject).level, kOk);
  host.Write("/proc/self/limits", FakeHost::Limits("0", "3335", "0"));
  EXPECT_EQ(CheckOpenFiles(subject).level, kWarning);
  subject.pid = 77;
  host.Write("/proc/77/limits", FakeHost::Limits("0", "3335", "0"));
  EXPECT_EQ(CheckOpenFiles(subject).level, kProblem);
  host.Write("/proc/77/limits", FakeHost::Limits("0", "3336", "0"));
  EXPECT_EQ(CheckOpenFiles(subject).level, kOk);
}

TEST(DoctorProcess, OpenFilesAreHeldAgainstSlabFiles) {
  FakeHost host;
  Subject subject = host.Make();
  subject.pid = 77;
  subject.config.nvme.paths = {"/mnt/d"};
  subject.config.nvme.slab_bytes = kGiB;
  subject.config.nvme.capacity_bytes = 4000 * kGiB;
  const auto under = [&](const std::string& files) {
    host.Write("/proc/77/limits", FakeHost::Limits("0", files, "0"));
    return CheckOpenFiles(subject);
  };
  EXPECT_EQ(under("524288").level, kOk);
  EXPECT_THAT(under("524288").found, HasSubstr("4,000 slab files 8,076"));
  const Finding few = under("4412");
  EXPECT_EQ(few.level, kWarning);
  EXPECT_THAT(few.meaning, HasSubstr("stops growing at 500 slab files"));
  EXPECT_THAT(few.remedy, HasSubstr("LimitNOFILE=262144"));
  EXPECT_THAT(under("3335").meaning, HasSubstr("refuses to start"));
}

TEST(DoctorProcess, FileSizesAreHeldAgainstSlabFiles) {
  FakeHost host;
  Subject subject = host.Make();
  EXPECT_TRUE(CheckFileSize(subject).empty()) << "without drives";
  subject.config.nvme.paths = {"/mnt/d"};
  subject.config.nvme.slab_bytes = 128 * kMiB;
  EXPECT_EQ(CheckFileSize(subject)[0].level, kOk);
  host.Write("/proc/self/limits", FakeHost::Limits("0", "524288", "0", "83886080"));
  EXPECT_EQ(CheckFileSize(subject)[0].level, kWarning);
  subject.pid = 77;
  host.Write("/proc/77/limits", FakeHost::Limits("0", "524288", "0", "83886080"));
  const Finding low = CheckFileSize(subject)[0];
  EXPECT_EQ(low.level, kProblem);
  EXPECT_THAT(low.found, HasSubstr("80.0 MiB of the daemon (pid 77); a slab file has 128.0 MiB"));
  EXPECT_THAT(low.remedy, HasSubstr("LimitFSIZE=infinity"));
  host.Write("/proc/77/limits", FakeHost::Limits("0", "524288", "0", "134217728"));
  EXPECT_EQ(CheckFileSize(subject)[0].level, kOk);
  bool is_examined = false;
  for (const Finding& finding : Examine(subject)) is_examined |= finding.check == "file size";
  EXPECT_TRUE(is_examined);
}

TEST(DoctorProcess, LimitsThatCannotBeReadAreNoted) {
  FakeHost host;
  host.Remove("/proc/self/limits");
  EXPECT_EQ(CheckLockedMemory(host.Make()).level, kNote);
  EXPECT_EQ(CheckOpenFiles(host.Make()).level, kNote);
}

TEST(DoctorProcess, ADaemonThatMayLeaveACoreIsAWarning) {
  FakeHost host;
  Subject subject = host.Make();
  EXPECT_TRUE(CheckCores(subject).empty());
  subject.pid = 77;
  EXPECT_EQ(CheckCores(subject)[0].level, kNote);
  host.Write("/proc/77/limits", FakeHost::Limits("0", "9", "0"));
  host.Write("/proc/77/cmdline", "terraced");
  EXPECT_EQ(CheckCores(subject)[0].level, kOk);
  host.Write("/proc/77/limits", FakeHost::Limits("0", "9", "unlimited"));
  EXPECT_EQ(CheckCores(subject)[0].level, kWarning);
  host.Write("/proc/77/limits", FakeHost::Limits("0", "9", "0"));
  host.Write("/proc/77/cmdline", std::string("terraced\0--allow-core-dumps\0", 28));
  EXPECT_EQ(CheckCores(subject)[0].level, kWarning);
}

}  // namespace
}  // namespace terrace::tools

// What a Disk makes of drives and kernels that misbehave: attempts that are cut short or refused,
// file systems that are full or lack features, operations that never end, io_uring forbidden.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "contract/tiers/disk_rig.h"
#include "terrace/units.h"

namespace terrace {
namespace {

constexpr uint64_t kBlockBytes = 256 * kKiB;
constexpr char kDeniedVariable[] = "TERRACE_TEST_IO_URING_DENIED";

class DiskFaults : public testing::TestWithParam<DiskEngineChoice> {
 protected:
  void Open(DiskResultFilter filter) {
    rig_.Open({.engine = GetParam(), .stop_us = 300'000, .result_filter = std::move(filter)});
  }
  Disk& disk() { return rig_.disk(); }
  Status Read() { return rig_.Do({.op = DiskOp::kRead, .file = file_, .into = memory_.bytes()}); }
  Status Write() { return rig_.Do({.op = DiskOp::kWrite, .file = file_, .from = memory_.bytes()}); }

  DiskRig rig_{testing::TempDir()};
  SharedMemory memory_{kBlockBytes};
  DiskFile file_ = kDiskFileNone;
};

// PROMISE: T16 one disk
TEST_P(DiskFaults, InterruptedAndShortAttemptsLoseNoByte) {
  std::atomic<uint32_t> attempts = 0;
  Open([&](DiskOp op, int64_t result) -> int64_t {
    if (op == DiskOp::kCreate || op == DiskOp::kSync || result <= 0) return result;
    // Between two faults four attempts finish a request each, so none of the 25 can be met by more
    // than kDiskRetriesMax in a row, whatever the order in which they run.
    switch (attempts++ % 15) {
      case 0:
        return -EAGAIN;
      case 5:
        return -EINTR;
      case 10:
        return result / 3;  // ends inside a sector
      default:
        return result;
    }
  });
  constexpr uint32_t kBlocks = 24;
  file_ = rig_.MakeFile("slab", (kBlocks + 1) * kBlockBytes);
  SharedMemory memory(kBlocks * kBlockBytes);
  disk().RegisterBuffer(0, memory.bytes().first(memory.bytes().size() / 2));
  for (const DiskOp op : {DiskOp::kWrite, DiskOp::kRead}) {
    std::vector<uint64_t> tags;
    for (uint32_t i = 0; i < kBlocks; ++i) {
      const auto block = memory.bytes().subspan(i * kBlockBytes, kBlockBytes);
      FillPattern(block, op == DiskOp::kWrite ? i : 0xBAD);
      DiskRequest request{.op = op, .file = file_, .offset_bytes = (i + 1) * kBlockBytes};
      op == DiskOp::kWrite ? request.from = block : request.into = block;
      const auto tag = rig_.Begin(request);
      ASSERT_TRUE(tag.ok());
      tags.push_back(*tag);
    }
    const auto entry = Pattern(300, 9);
    const auto tag =
        rig_.Begin({.op = DiskOp::kWriteTable, .file = file_, .offset_bytes = 4500, .from = entry});
    ASSERT_TRUE(tag.ok());
    tags.push_back(*tag);
    for (const uint64_t each : tags) {
      const Status status = rig_.Await(each);
      EXPECT_TRUE(status.ok()) << status.what() << " " << status.detail();
    }
  }
  for (uint32_t i = 0; i < kBlocks; ++i) {
    EXPECT_TRUE(HasPattern(memory.bytes().subspan(i * kBlockBytes, kBlockBytes), i)) << i;
  }
  std::vector<std::byte> entry(300);
  ASSERT_TRUE(disk().ReadNow(file_, 4500, entry).ok());
  EXPECT_TRUE(HasPattern(entry, 9));
  EXPECT_GE(disk().stats().retries, 2 * (kBlocks + 1) / 5);
  EXPECT_EQ(disk().stats().failures, 0u);
}

TEST_P(DiskFaults, EndlessRefusalEndsInAnError) {
  std::atomic<bool> refuses = false;
  std::atomic<uint32_t> attempts = 0;
  Open([&](DiskOp, int64_t result) -> int64_t {
    if (!refuses) return result;
    ++attempts;
    return -EAGAIN;
  });
  file_ = rig_.MakeFile("slab", kMiB);
  refuses = true;
  const Status status = Write();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.detail(), EAGAIN);
  EXPECT_EQ(attempts, kDiskRetriesMax + 1);
  refuses = false;
  EXPECT_TRUE(Write().ok());
}

TEST_P(DiskFaults, ReadErrorsAreToldAfterASecondLook) {
  std::atomic<uint32_t> errors = 0;
  Open([&](DiskOp op, int64_t result) -> int64_t {
    if (op == DiskOp::kCreate || errors == 0) return result;
    --errors;
    return -EIO;
  });
  file_ = rig_.MakeFile("slab", kMiB);
  errors = 1;
  EXPECT_TRUE(Read().ok());
  errors = 2;
  EXPECT_EQ(Read().detail(), EIO);
  errors = 1;
  EXPECT_EQ(Write().detail(), EIO);
  errors = 1;
  EXPECT_EQ(rig_.Do({.op = DiskOp::kSync, .file = file_}).detail(), EIO);
  EXPECT_EQ(disk().stats().failures, 3u);
}

// The name is gone at the first try; whether it stays gone is the directory's sync to say.
TEST_P(DiskFaults, ARemovalIsAnsweredWhenNoLossOfPowerUndoesIt) {
  std::atomic<uint32_t> errors = 0, syncs = 0;
  Open([&](DiskOp op, int64_t result) -> int64_t {
    if (op != DiskOp::kRemove) return result;
    ++syncs;
    if (errors == 0) return result;
    --errors;
    return -EIO;
  });
  file_ = rig_.MakeFile("slab", kMiB);
  errors = 2;
  EXPECT_EQ(rig_.Do({.op = DiskOp::kRemove, .file = file_}).detail(), EIO);
  EXPECT_EQ(rig_.Do({.op = DiskOp::kRemove, .file = file_}).detail(), EIO);
  EXPECT_TRUE(rig_.Do({.op = DiskOp::kRemove, .file = file_}).ok());
  EXPECT_EQ(syncs, 3u);
  EXPECT_NE(::access((rig_.directory() + "/slab").c_str(), F_OK), 0);
}

TEST_P(DiskFaults, StuckOperationsDoNotHoldUpTheEnd) {
  // Outlives the disk: the thread that is stuck looks at it.
  static std::atomic<bool> is_stuck;
  static std::atomic<uint32_t> stuck_count;
  is_stuck = true;
  stuck_count = 0;
  Open([](DiskOp op, int64_t result) -> int64_t {
    if (op != DiskOp::kRead && op != DiskOp::kWriteTable && op != DiskOp::kSync) return result;
    ++stuck_count;
    while (is_stuck) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --stuck_count;
    return result;
  });
  file_ = rig_.MakeFile("slab", kMiB);
  const auto entry = Pattern(300, 9);
  ASSERT_TRUE(rig_.Begin({.op = DiskOp::kRead, .file = file_, .into = memory_.bytes()}).ok());
  ASSERT_TRUE(rig_.Begin({.op = DiskOp::kSync, .file = file_}).ok());
  ASSERT_TRUE(rig_.Begin({.op = DiskOp::kWriteTable, .file = file_, .from = entry}).ok());
  while (stuck_count < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto begin = std::chrono::steady_clock::now();
  rig_.Close();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  // What is under way may still reach the files: nobody else gets them.
  std::string why;
  EXPECT_EQ(OpenDisk({.directory = rig_.directory(), .post = rig_.loop().post()}, &why).code(),
            StatusCode::kBusy);
  is_stuck = false;
  while (stuck_count > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

INSTANTIATE_TEST_SUITE_P(Engines, DiskFaults,
                         testing::Values(DiskEngineChoice::kUring, DiskEngineChoice::kThreads),
                         [](const auto& about) {
                           return about.param == DiskEngineChoice::kUring ? "Uring" : "Threads";
                         });

// ---- file systems ---------------------------------------------------------------------------

class Mounted {
 public:
  Mounted(const char* kind, const char* options)
      : is_there_(::mount(kind, directory_.path().c_str(), kind, 0, options) == 0) {}
  ~Mounted() {
    if (is_there_) ::umount2(directory_.path().c_str(), MNT_DETACH);
  }
  bool is_there() const { return is_there_; }
  const std::string& path() const { return directory_.path(); }

 private:
  ScratchDirectory directory_{testing::TempDir()};
  const bool is_there_;
};

std::vector<DiskEngineChoice> EnginesHere() {
  if (std::getenv(kDeniedVariable) != nullptr) return {DiskEngineChoice::kThreads};
  return {DiskEngineChoice::kUring, DiskEngineChoice::kThreads};
}

TEST(DiskFileSystems, FullOneLeavesNoHalfFile) {
  const Mounted small("tmpfs", "size=4m");
  if (!small.is_there()) GTEST_SKIP() << "skipped: mounting a small tmpfs needs root";
  for (const DiskEngineChoice engine : EnginesHere()) {
    DiskRig rig(small.path());
    rig.Open({.engine = engine});
    const DiskFile fits = rig.MakeFile("fits", kMiB);
    const DiskFile file = rig.disk().NewFile();
    const Status status =
        rig.Do({.op = DiskOp::kCreate, .file = file, .length_bytes = 8 * kMiB, .name = "too-long"});
    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_EQ(status.detail(), ENOSPC);
    EXPECT_NE(::access((rig.directory() + "/too-long").c_str(), F_OK), 0);
    EXPECT_EQ(rig.disk().stats().filesystem_bytes, 4 * kMiB);
    const uint64_t free_bytes = rig.disk().stats().filesystem_free_bytes;
    EXPECT_TRUE(rig.Do({.op = DiskOp::kRemove, .file = fits}).ok());
    // A ring lets go of a removed file a little later; every file made looks again.
    for (int i = 0; i < 2000 && rig.disk().stats().filesystem_free_bytes <= free_bytes; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(i == 0 ? 0 : 5));
      const DiskFile small_file = rig.disk().NewFile();
      ASSERT_TRUE(
          rig.Do({.op = DiskOp::kCreate, .file = small_file, .length_bytes = 4096, .name = "small"})
              .ok());
      ASSERT_TRUE(rig.Do({.op = DiskOp::kRemove, .file = small_file}).ok());
    }
    EXPECT_GT(rig.disk().stats().filesystem_free_bytes, free_bytes);
  }
}

TEST(DiskFileSystems, OneWithoutDirectIoOrReservationServes) {
  const Mounted plain("ramfs", "");
  if (!plain.is_there()) GTEST_SKIP() << "skipped: mounting a ramfs needs root";
  for (const DiskEngineChoice engine : EnginesHere()) {
    DiskRig rig(plain.path());
    rig.Open({.engine = engine});
    EXPECT_NE(rig.disk().description().find("refuses O_DIRECT"), std::string::npos)
        << rig.disk().description();
    const DiskFile file = rig.MakeFile("slab", kMiB);
    SharedMemory memory(kBlockBytes);
    FillPattern(memory.bytes(), 4);
    EXPECT_TRUE(rig.Do({.op = DiskOp::kWrite, .file = file, .from = memory.bytes()}).ok());
    FillPattern(memory.bytes(), 5);
    EXPECT_TRUE(rig.Do({.op = DiskOp::kRead, .file = file, .into = memory.bytes()}).ok());
    EXPECT_TRUE(HasPattern(memory.bytes(), 4));
  }
}

TEST(DiskFileSystems, MissingParentIsNamed) {
  std::string why;
  const auto disk =
      OpenDisk({.directory = "/nonexistent/terrace/domain", .post = [](auto) {}}, &why);
  EXPECT_EQ(disk.code(), StatusCode::kIo);
  EXPECT_EQ(disk.status().detail(), ENOENT);
  EXPECT_NE(why.find("/nonexistent/terrace/domain"), std::string::npos) << why;
}

// ---- io_uring forbidden ---------------------------------------------------------------------

// Makes io_uring_setup answer `error` in this process and all it starts. False: not possible here.
bool DenyIoUring(uint32_t error) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(rules), .filter = rules};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// This program once more, without io_uring: its exit status.
int RunDenied(uint32_t error, const char* filter) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv(kDeniedVariable, "1", 1);
    const std::string only = std::string("--gtest_filter=") + filter;
    if (!DenyIoUring(error)) ::_exit(99);
    ::execl("/proc/self/exe", "disk_contract_denied", only.c_str(), "--gtest_brief=1", nullptr);
    ::_exit(98);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// PROMISE: T17 what it says
TEST(DiskWithoutIoUring, FallsBackToThreadsAndSaysWhy) {
  DiskRig rig(testing::TempDir());
  rig.Open({});
  const std::string description = rig.disk().description();
  if (std::getenv(kDeniedVariable) == nullptr) {
    EXPECT_TRUE(description.starts_with("io_uring (")) << description;
    return;
  }
  EXPECT_TRUE(description.starts_with("threads (")) << description;
  EXPECT_NE(description.find("seccomp"), std::string::npos) << description;
  rig.Close();
  std::string why;
  const auto forced = OpenDisk(
      {.directory = rig.directory(), .post = rig.loop().post(), .engine = DiskEngineChoice::kUring},
      &why);
  EXPECT_EQ(forced.code(), StatusCode::kUnsupported);
  EXPECT_NE(why.find(rig.directory()), std::string::npos) << why;
}

// PROMISE: T17 no io_uring
TEST(DiskWithoutIoUring, WholeContractHoldsUnderSeccomp) {
  if (std::getenv(kDeniedVariable) != nullptr) return;  // this is the child
  EXPECT_EQ(RunDenied(EPERM, "*DiskContract*AutoOnDisk:DiskWithoutIoUring.Falls*"), 0);
  EXPECT_EQ(RunDenied(ENOSYS, "DiskWithoutIoUring.Falls*"), 0);
}

}  // namespace
}  // namespace terrace

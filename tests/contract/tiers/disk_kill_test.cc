// What a killed process leaves under way is over before anybody else may have its directory.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>

#include "contract/tiers/disk_rig.h"
#include "tiers/disk/disk_files.h"
#include "tiers/disk/uring_ring.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

constexpr int kPatienceMs = 10'000;

// True once the pipe's other end is closed everywhere.
bool IsClosedWithin(int read_fd, int timeout_ms) {
  pollfd pipe{.fd = read_fd, .events = POLLIN, .revents = 0};
  return ::poll(&pipe, 1, timeout_ms) == 1 && (pipe.revents & POLLHUP) != 0;
}

class HeldFd : public testing::Test {
 protected:
  HeldFd() { EXPECT_EQ(::pipe2(pipe_, O_CLOEXEC), 0); }
  ~HeldFd() override { ::close(pipe_[0]); }

  // A ring that holds the write end, which nobody else does any more; null where there is none.
  std::unique_ptr<UringRing> Open() {
    auto ring = std::make_unique<UringRing>();
    std::string why;
    const Status status =
        ring->Open({.entries = 8, .files_max = 4, .buffers_max = 1, .held_fd = pipe_[1]}, &why);
    ::close(pipe_[1]);
    return status.ok() ? std::move(ring) : nullptr;
  }

  int pipe_[2];
};

TEST_F(HeldFd, StaysOpenAsLongAsTheRing) {
  auto ring = Open();
  if (ring == nullptr) GTEST_SKIP() << "io_uring is blocked here";
  EXPECT_FALSE(IsClosedWithin(pipe_[0], 50));
  ring.reset();
  EXPECT_TRUE(IsClosedWithin(pipe_[0], 0));  // at once: nothing was under way
}

TEST_F(HeldFd, OutlivesAKilledProcessNoLongerThanItsRing) {
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto ring = Open();
    const char word = ring == nullptr ? 'n' : 'y';
    (void)!::write(ready[1], &word, 1);
    ::pause();
    ::_exit(0);
  }
  ::close(pipe_[1]);
  char word = 0;
  ASSERT_EQ(::read(ready[0], &word, 1), 1);
  const bool is_held = !IsClosedWithin(pipe_[0], 50);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  if (word == 'n') GTEST_SKIP() << "io_uring is blocked here";
  EXPECT_TRUE(is_held);
  EXPECT_TRUE(IsClosedWithin(pipe_[0], kPatienceMs));
}

class KilledDisk : public testing::TestWithParam<DiskEngineChoice> {};

TEST_P(KilledDisk, DirectoryIsFreeAfterAWait) {
  const ScratchDirectory parent(testing::TempDir());
  StoreLoop loop;
  const DiskOptions options{
      .directory = parent.path() + "/disk", .post = loop.post(), .engine = GetParam()};
  for (int round = 0; round < 5; ++round) {
    int ready[2];
    ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      std::string why;
      auto disk = OpenDisk(options, &why);
      const char word = disk.ok() ? 'y' : 'n';
      (void)!::write(ready[1], &word, 1);
      ::pause();
      ::_exit(0);
    }
    char word = 0;
    ASSERT_EQ(::read(ready[0], &word, 1), 1);
    if (word == 'y') {
      // While it lives, at once.
      const auto began = std::chrono::steady_clock::now();
      std::string why;
      EXPECT_EQ(OpenDisk(options, &why).status().code(), StatusCode::kBusy);
      EXPECT_NE(why.find(std::to_string(child)), std::string::npos) << why;
      EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(ready[0]);
    ::close(ready[1]);
    if (word == 'n') GTEST_SKIP() << "this engine is blocked here";
    std::string why;
    EXPECT_TRUE(OpenDisk(options, &why).ok()) << why;
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, KilledDisk,
                         testing::Values(DiskEngineChoice::kUring, DiskEngineChoice::kThreads),
                         [](const auto& info) {
                           return info.param == DiskEngineChoice::kUring ? "Uring" : "Threads";
                         });

TEST(DiskLock, WhoHasItIsToldOfAndWhetherHeHasEnded) {
  constexpr char kNobody[] = "4194305";  // above any process number
  const ScratchDirectory scratch(testing::TempDir());
  const std::string path = scratch.path() + "/lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  std::string why;
  const auto refusal_beside = [&](const std::string& holder) {
    EXPECT_EQ(::ftruncate(fd, 0), 0);
    EXPECT_EQ(::pwrite(fd, holder.data(), holder.size(), 0), static_cast<ssize_t>(holder.size()));
    const auto files = DiskFiles::Open({.directory = scratch.path(), .lock_wait_us = 20'000}, &why);
    EXPECT_EQ(files.status().code(), StatusCode::kBusy);
    return why;
  };
  EXPECT_THAT(refusal_beside(kNobody), HasSubstr("process 4194305, which is not seen here"));
  EXPECT_THAT(refusal_beside(std::to_string(::getpid())),
              HasSubstr("process " + std::to_string(::getpid()) + ". Stop it"));
  ::close(fd);
  EXPECT_TRUE(DiskFiles::Open({.directory = scratch.path()}, &why).ok()) << why;
}

// As in containers, where every daemon is process 1.
TEST(DiskLock, OfOneThatHadThisProcessesNumberTheEndIsAwaited) {
  const ScratchDirectory scratch(testing::TempDir());
  const std::string path = scratch.path() + "/lock";
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string name = std::to_string(::getpid());
  const pid_t holder = ::fork();
  if (holder == 0) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const bool is_held = ::flock(fd, LOCK_EX) == 0 &&
                         ::pwrite(fd, name.data(), name.size(), 0) > 0 &&
                         ::write(ends[1], "x", 1) == 1;
    ::usleep(100'000);
    ::_exit(is_held ? 0 : 1);
  }
  char held = 0;
  ASSERT_EQ(::read(ends[0], &held, 1), 1);
  std::string why;
  EXPECT_TRUE(DiskFiles::Open({.directory = scratch.path()}, &why).ok()) << why;
  int status = 1;
  ASSERT_EQ(::waitpid(holder, &status, 0), holder);
  EXPECT_EQ(status, 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace terrace

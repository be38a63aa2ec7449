// What a confined process may still do, and what not: tried in children, as there is no way back.
#include "daemon/process/sandbox.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "daemon/config/config.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// Of a child that could not be confined here at all.
constexpr int kNotToBeHad = 77;

// Says what is not so, and ends the child.
void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "in the child: %s (errno %d)\n", what, errno);
  _exit(1);
}

// The child's exit code.
int InChild(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    work();
    _exit(0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

void RequireConfined(const Status& status, const std::string& why) {
  if (status.ok()) return;
  std::fprintf(stderr, "not confined: %s\n", why.c_str());
  _exit(status.code() == StatusCode::kUnsupported && !why.empty() ? kNotToBeHad : 1);
}

bool IsRefused(int64_t result, int error) { return result < 0 && errno == error; }
bool MayWrite(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

#define EXPECT_CONFINED(code)                                                                     \
  do {                                                                                            \
    const int exit_code = (code);                                                                 \
    if (exit_code == kNotToBeHad) GTEST_SKIP() << "SKIPPED: nothing is confined on this machine"; \
    EXPECT_EQ(exit_code, 0);                                                                      \
  } while (false)

class SandboxTest : public testing::Test {
 protected:
  SandboxTest() {
    directory_ = (fs::temp_directory_path() / "terrace-XXXXXX").string();
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    fs::create_directory(directory_ + "/ours");
    fs::create_directory(directory_ + "/theirs");
    std::ofstream(directory_ + "/theirs/file") << "bytes";
  }
  ~SandboxTest() override { fs::remove_all(directory_); }

  void ConfineToOurs() const {
    std::string why;
    RequireConfined(ConfineFiles({{directory_ + "/ours"}}, &why), why);
  }

  std::string directory_;
};

TEST_F(SandboxTest, FilesAreMadeAndChangedBelowNamedDirectoriesAlone) {
  EXPECT_CONFINED(InChild([&] {
    const int open_before = open((directory_ + "/theirs/file").c_str(), O_RDWR | O_CLOEXEC);
    ConfineToOurs();
    const std::string ours = directory_ + "/ours", theirs = directory_ + "/theirs";
    Require(MayWrite(ours + "/new"), "a file of ours is made");
    Require(mkdir((ours + "/below").c_str(), 0700) == 0, "a directory of ours is made");
    Require(MayWrite(ours + "/below/new"), "a file further below, too");
    Require(rename((ours + "/new").c_str(), (ours + "/other").c_str()) == 0, "ours are renamed");
    Require(rename((ours + "/other").c_str(), (ours + "/below/new").c_str()) == 0, "and moved");
    Require(unlink((ours + "/below/new").c_str()) == 0, "ours are removed");
    Require(!MayWrite(theirs + "/new") && errno == EACCES, "no file of others is made");
    Require(!MayWrite(theirs + "/file") && errno == EACCES, "none is changed");
    Require(IsRefused(unlink((theirs + "/file").c_str()), EACCES), "none is removed");
    Require(IsRefused(mkdir((theirs + "/below").c_str(), 0700), EACCES), "no directory either");
    Require(IsRefused(rename((theirs + "/file").c_str(), (ours + "/file").c_str()), EACCES) ||
                errno == EXDEV,
            "none is moved here");
    Require(open((theirs + "/file").c_str(), O_RDONLY) >= 0, "they are read");
    Require(open_before >= 0 && write(open_before, "b", 1) == 1, "what was open stays so");
    Require(MayWrite("/dev/null"), "/dev/null is written to");
  }));
}

TEST_F(SandboxTest, WhatIsBelowADirectoryThatIsNotThereYetIsMadeLater) {
  EXPECT_CONFINED(InChild([&] {
    std::string why;
    RequireConfined(ConfineFiles({{directory_ + "/ours/later/still"}}, &why), why);
    fs::create_directories(directory_ + "/ours/later/still");
    Require(MayWrite(directory_ + "/ours/later/still/new"), "it is made");
    Require(!MayWrite(directory_ + "/theirs/new"), "others are not");
  }));
}

TEST_F(SandboxTest, NothingIsExecuted) {
  EXPECT_CONFINED(InChild([&] {
    fs::copy_file("/bin/false", directory_ + "/ours/false");
    ConfineToOurs();
    for (const std::string& path : {std::string("/bin/false"), directory_ + "/ours/false"}) {
      char* const arguments[] = {const_cast<char*>("false"), nullptr};
      Require(IsRefused(execv(path.c_str(), arguments), EACCES), path.c_str());
    }
  }));
}

void RequireCallsRefused() {
  Require(IsRefused(fork(), EPERM), "fork");
  char* const arguments[] = {const_cast<char*>("false"), nullptr};
  Require(IsRefused(execv("/bin/false", arguments), EPERM), "execve");
  Require(IsRefused(syscall(SYS_vfork), EPERM), "vfork");
  Require(IsRefused(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr), EPERM), "ptrace");
  Require(IsRefused(unshare(CLONE_NEWUSER), EPERM), "unshare");
  Require(IsRefused(syscall(SYS_io_uring_setup, 8, nullptr), EPERM), "io_uring_setup");
  Require(IsRefused(syscall(SYS_setresuid, 1, 1, 1), EPERM), "setresuid");
  Require(IsRefused(syscall(SYS_bpf, 0, nullptr, 0), EPERM), "bpf");
  Require(IsRefused(syscall(SYS_clone3, nullptr, 0), ENOSYS), "clone3");
  for (const int family : {AF_PACKET, AF_ALG, AF_VSOCK, AF_BLUETOOTH}) {
    Require(IsRefused(socket(family, SOCK_RAW, 0), EAFNOSUPPORT), "a socket of another family");
  }
  void* const page =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Require(page == MAP_FAILED && errno == EPERM, "memory that is written and executed");
  void* const data =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Require(data != MAP_FAILED, "memory");
  Require(IsRefused(mprotect(data, 4096, PROT_READ | PROT_EXEC), EPERM), "what is executed later");
}

TEST_F(SandboxTest, CallsThatADaemonNeverMakesAreRefusedToAllThreads) {
  EXPECT_CONFINED(InChild([] {
    std::atomic<bool> is_confined{false};
    std::thread before([&] {
      while (!is_confined) usleep(100);
      RequireCallsRefused();
    });
    std::string why;
    RequireConfined(ConfineCalls({}, &why), why);
    RequireCallsRefused();
    is_confined = true;
    before.join();
  }));
}

TEST_F(SandboxTest, WhatADaemonDoesGoesOn) {
  EXPECT_CONFINED(InChild([] {
    std::string why;
    RequireConfined(ConfineCalls({}, &why), why);
    std::atomic<int> value{0};
    std::thread([&] { value = 1; }).join();
    Require(value == 1, "threads are begun");
    for (const int family : {AF_UNIX, AF_INET, AF_INET6}) {
      Require(socket(family, SOCK_STREAM, 0) >= 0 || errno == EAFNOSUPPORT, "sockets");
    }
    addrinfo* found = nullptr;
    Require(getaddrinfo("localhost", nullptr, nullptr, &found) == 0, "names are resolved");
    Require(memfd_create("m", MFD_CLOEXEC) >= 0, "memory of files");
  }));
}

TEST_F(SandboxTest, ADriverThatCompilesMayMakeExecutableMemory) {
  EXPECT_CONFINED(InChild([] {
    std::string why;
    RequireConfined(ConfineCalls({.executable_memory = true}, &why), why);
    void* const page =
        mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    Require(page != MAP_FAILED, "it is made");
    Require(IsRefused(fork(), EPERM), "no process is");
  }));
}

bool MayNameThread(pid_t thread) {
  return MayWrite("/proc/self/task/" + std::to_string(thread) + "/comm");
}

void RequireNamesOfThreads(const std::string& directory, const std::string& device) {
  const int drop = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);  // root's alone
  DaemonConfig config;
  config.state_dir = directory;
  config.hbm.capacity_bytes = 1;
  config.hbm.device = device;
  std::string unconfined, why;
  (void)ConfineFilesOf(config, &unconfined, &why);
  RequireConfined(unconfined.empty() ? Status::Ok() : Status(StatusCode::kUnsupported, "no"),
                  unconfined);
  std::atomic<pid_t> thread{0};
  std::thread([&] {
    thread = gettid();
    for (;;) pause();
  }).detach();
  while (thread == 0) usleep(100);
  const bool is_gpu = device != "host";
  Require(MayNameThread(thread) == is_gpu, "a GPU's driver names its threads, no one else does");
  if (drop < 0 || write(drop, "2", 1) != 1) return;
  Require(MayNameThread(thread) == is_gpu, "the same behind caches that were dropped");
}

TEST_F(SandboxTest, ADriverNamesItsThreads) {
  for (const char* device : {"host", "cuda:0"}) {
    EXPECT_CONFINED(InChild([&] { RequireNamesOfThreads(directory_, device); }));
  }
}

TEST(WrittenPaths, AreThoseOfTheConfiguration) {
  DaemonConfig config;
  config.state_dir = "/var/lib/terrace";
  config.trace_dir = "/srv/traces";
  config.nvme.paths = {"/mnt/nvme0/terrace", "/nvme1"};
  config.kv_events.endpoint = "ipc:///run/events/kv.sock";
  config.domains.resize(1);
  config.domains[0].socket_path = "/run/terrace/default.sock";
  const std::vector<std::string> written = WrittenPaths(config);
  for (const char* path : {"/var/lib/terrace", "/srv/traces", "/mnt/nvme0/terrace", "/nvme1",
                           "/run/events", "/run/terrace"}) {
    EXPECT_THAT(written, Contains(path));
  }
  EXPECT_THAT(written, Not(Contains("/mnt/nvme0"))) << "other drives' directories may be there";
  EXPECT_THAT(written, Not(Contains("/")));
  EXPECT_THAT(written, Not(Contains("/dev")));
  config.hbm.capacity_bytes = 1;
  config.hbm.device = "cuda:0";
  EXPECT_THAT(WrittenPaths(config), Contains("/dev"));
}

}  // namespace
}  // namespace terrace

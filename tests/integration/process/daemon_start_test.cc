// How terraced starts, refuses to start, and stops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "integration/process/daemon_process.h"
#include "integration/process/raw_client.h"
#include "test_paths.h"

namespace terrace::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Matcher;
using ::testing::MatchesRegex;
using ::testing::Not;

// Starts with `arguments`, expects the exit status, returns what was said.
std::string Refusal(DaemonProcess& daemon, const std::vector<std::string>& arguments,
                    int exit_status = 1) {
  daemon.Start(arguments);
  EXPECT_EQ(daemon.Wait(), exit_status) << daemon.Errors();
  return daemon.Errors();
}

TEST(DaemonStart, SmokeReadyServeStop) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.StartReady()) << daemon.Errors();
  RawClient client;
  ASSERT_TRUE(client.Attach(daemon.socket_path()));
  EXPECT_STREQ(client.hello().domain_name, "default");
  EXPECT_EQ(client.received_fds().size(), client.hello().node_count + 1u);
  daemon.Signal(SIGTERM);
  EXPECT_TRUE(client.IsEnded());
  EXPECT_EQ(daemon.Wait(), 0) << daemon.Errors();
  EXPECT_NE(access(daemon.socket_path().c_str(), F_OK), 0) << "a clean stop removes the socket";
}

TEST(DaemonStart, SigintIsACleanStopToo) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.StartReady()) << daemon.Errors();
  daemon.Signal(SIGINT);
  EXPECT_EQ(daemon.Wait(), 0);
}

// A line of /proc/<pid>/<file> that begins with `name`; empty once the process is gone.
std::string ProcLine(pid_t pid, const std::string& file, const std::string& name) {
  std::ifstream lines("/proc/" + std::to_string(pid) + "/" + file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name)) return line.substr(name.size());
  }
  return "";
}

// Before main there is one thread, and ThreadSanitizer's.
#ifdef __SANITIZE_THREAD__
constexpr int kThreadsBeforeMain = 2;
#else
constexpr int kThreadsBeforeMain = 1;
#endif

// Whether the daemon is past what the linker does: it catches SIGTERM, or has its log thread.
bool HasBegun(pid_t pid) {
  const std::string caught = ProcLine(pid, "status", "SigCgt:\t");
  const std::string threads = ProcLine(pid, "status", "Threads:\t");
  return (!caught.empty() && (std::stoull(caught, nullptr, 16) >> (SIGTERM - 1) & 1) != 0) ||
         (!threads.empty() && std::stoi(threads) > kThreadsBeforeMain);
}

bool WaitBegun(pid_t pid) {
  for (int n = 0; n < 50'000; ++n) {
    if (HasBegun(pid)) return true;
    usleep(200);
  }
  return false;
}

TEST(DaemonStart, ASignalBeforeItServesIsACleanStopToo) {
  std::mt19937 random(7);
  for (int i = 0; i < 30; ++i) {
    DaemonProcess daemon;
    daemon.Start({"--socket", daemon.socket_path(), "--dram-bytes", "256MiB"});
    ASSERT_TRUE(WaitBegun(daemon.pid())) << "start " << i << ": " << daemon.Errors();
    usleep(random() % 40'000);
    daemon.Signal(i % 2 == 0 ? SIGTERM : SIGINT);
    EXPECT_EQ(daemon.Wait(), 0) << "start " << i << ": " << daemon.Errors();
  }
}

// It asks for a reload of a file that has been read, or is about to be: neither is lost.
TEST(DaemonStart, AHangUpBeforeItServesIsDoneWhenItDoes) {
  std::mt19937 random(8);
  for (int i = 0; i < 10; ++i) {
    DaemonProcess daemon;
    const std::string config = daemon.WriteFile("t.toml", "[daemon]\ndram_bytes = \"256MiB\"\n");
    daemon.Start({"--config", config, "--socket", daemon.socket_path()});
    ASSERT_TRUE(WaitBegun(daemon.pid())) << "start " << i << ": " << daemon.Errors();
    usleep(random() % 20'000);
    daemon.Signal(SIGHUP);
    ASSERT_TRUE(daemon.WaitReady()) << "start " << i << ": " << daemon.Errors();
    for (int n = 0; n < 2000 && daemon.Errors().find("reloaded") == std::string::npos; ++n) {
      usleep(5'000);
    }
    EXPECT_THAT(daemon.Errors(), HasSubstr("configuration reloaded"));
  }
}

TEST(DaemonStart, NoCoreIsWrittenOfADaemonUnlessItIsAskedFor) {
  rlimit cores{};
  ASSERT_EQ(getrlimit(RLIMIT_CORE, &cores), 0);
  for (const std::string more : {"", "--keeper", "--allow-core-dumps"}) {
    SCOPED_TRACE(more);
    DaemonProcess daemon;
    std::vector<std::string> arguments = {"--socket", daemon.socket_path()};
    if (!more.empty()) arguments.push_back(more);
    if (more != "--keeper") arguments.insert(arguments.end(), {"--dram-bytes", "256MiB"});
    daemon.Start(arguments);
    ASSERT_TRUE(daemon.WaitReady()) << daemon.Errors();
    const bool is_allowed = more == "--allow-core-dumps" && cores.rlim_max > 0;
    constexpr char kNone[] = " +0 +0 .*";
    EXPECT_THAT(ProcLine(daemon.pid(), "limits", "Max core file size"),
                is_allowed ? Matcher<std::string>(Not(MatchesRegex(kNone)))
                           : Matcher<std::string>(MatchesRegex(kNone)));
  }
}

TEST(DaemonStart, ALockThatIsALinkIsRefused) {
  for (const bool is_keeper : {false, true}) {
    DaemonProcess daemon;
    const std::string elsewhere = daemon.directory() + "/elsewhere";
    ASSERT_EQ(symlink(elsewhere.c_str(), (daemon.socket_path() + ".lock").c_str()), 0);
    EXPECT_THAT(is_keeper
                    ? Refusal(daemon, {"--socket", daemon.socket_path(), "--keeper"})
                    : Refusal(daemon, {"--socket", daemon.socket_path(), "--dram-bytes", "256MiB"}),
                AllOf(HasSubstr(".lock is a symbolic link"), HasSubstr("remove it")));
    EXPECT_NE(access(elsewhere.c_str(), F_OK), 0) << "nothing is made where the link points";
  }
}

TEST(DaemonStart, ASecondDaemonFindsTheSocketBusy) {
  DaemonProcess first;
  ASSERT_TRUE(first.StartReady()) << first.Errors();
  DaemonProcess second;
  EXPECT_THAT(Refusal(second, {"--socket", first.socket_path(), "--dram-bytes", "256MiB"}),
              AllOf(HasSubstr("socket busy"), HasSubstr(first.socket_path()),
                    HasSubstr("process " + std::to_string(first.pid()) + ",")));
  RawClient client;
  EXPECT_TRUE(client.Attach(first.socket_path())) << "the first one serves on";
}

// Each would take what the other is still to have forgotten for its own, or write over it.
TEST(DaemonStart, ASecondDaemonWithOneStateDirIsRefused) {
  DaemonProcess first, second;
  const auto config_of = [&first](DaemonProcess& daemon) {
    return daemon.WriteFile(
        "t.toml",
        "[daemon]\nstate_dir = \"" + first.directory() +
            "/state\"\ndram_bytes = \"64MiB\"\nsegment_bytes = \"2MiB\"\n[nvme]\npaths = [\"" +
            daemon.directory() +
            "/drive\"]\ncapacity_bytes = \"64MiB\"\nslab_bytes = \"16MiB\"\n"
            "[[domain]]\nname = \"default\"\nsocket = \"" +
            daemon.socket_path() + "\"\n");
  };
  first.Start({"--config", config_of(first)});
  ASSERT_TRUE(first.WaitReady()) << first.Errors();
  const std::string second_config = config_of(second);
  EXPECT_THAT(Refusal(second, {"--config", second_config}),
              AllOf(HasSubstr("daemon.state_dir " + first.directory() + "/state is in use"),
                    HasSubstr("process " + std::to_string(first.pid()) + ",")));
  first.Signal(SIGKILL);
  EXPECT_EQ(first.Wait(), 128 + SIGKILL);
  DaemonProcess third;
  third.Start({"--config", second_config});
  EXPECT_TRUE(third.WaitReady()) << third.Errors();
}

TEST(DaemonStart, AForeignListenerIsNotReplaced) {
  DaemonProcess daemon;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{.sun_family = AF_UNIX};
  std::strcpy(address.sun_path, daemon.socket_path().c_str());
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  EXPECT_THAT(Refusal(daemon, {"--socket", daemon.socket_path(), "--dram-bytes", "256MiB"}),
              HasSubstr("socket busy"));
  close(fd);
}

TEST(DaemonStart, AKilledDaemonsSocketIsReplaced) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.StartReady()) << daemon.Errors();
  daemon.Signal(SIGKILL);
  EXPECT_EQ(daemon.Wait(), 128 + SIGKILL);
  ASSERT_EQ(access(daemon.socket_path().c_str(), F_OK), 0);
  ASSERT_TRUE(daemon.StartReady()) << daemon.Errors();
  RawClient client;
  EXPECT_TRUE(client.Attach(daemon.socket_path()));
}

// A listening socket at `path`, as systemd would make it.
int Listen(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX};
  std::strcpy(address.sun_path, path.c_str());
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(fd, 8), 0);
  return fd;
}

TEST(DaemonStart, ASocketFromSystemdIsServedAndLeftBehind) {
  DaemonProcess daemon;
  const int fd = Listen(daemon.socket_path());
  const std::string config = daemon.WriteFile(
      "t.toml", "[daemon]\nsegment_bytes = \"2MiB\"\ndram_bytes = \"16MiB\"\nstate_dir = \"" +
                    daemon.directory() + "\"\n[[domain]]\nname = \"a\"\nsocket = \"" +
                    daemon.socket_path() + "\"\n");
  // A client of before the start waits in the socket's queue.
  RawClient early;
  ASSERT_TRUE(early.Connect(daemon.socket_path()));
  daemon.Start({"--config", config}, {.listening_fd = fd, .listening_name = "terraced.socket"});
  ASSERT_TRUE(daemon.WaitReady()) << daemon.Errors();
  EXPECT_EQ(early.Call(protocol::Verb::kHello, BytesOf(protocol::HelloRequest{})).status(),
            StatusCode::kOk);
  daemon.Signal(SIGTERM);
  ASSERT_EQ(daemon.Wait(), 0);
  EXPECT_EQ(access(daemon.socket_path().c_str(), F_OK), 0) << "the socket is systemd's";
  close(fd);
}

TEST(DaemonStart, ASocketOfNoDomainIsRefused) {
  DaemonProcess daemon;
  const int fd = Listen(daemon.directory() + "/other.sock");
  const std::string config = daemon.WriteFile(
      "t.toml", "[daemon]\nsegment_bytes = \"2MiB\"\ndram_bytes = \"16MiB\"\nstate_dir = \"" +
                    daemon.directory() + "\"\n[[domain]]\nname = \"a\"\nsocket = \"" +
                    daemon.socket_path() + "\"\n[[domain]]\nname = \"b\"\nsocket = \"" +
                    daemon.directory() + "/b.sock\"\n");
  daemon.Start({"--config", config}, {.listening_fd = fd, .listening_name = "c"});
  EXPECT_EQ(daemon.Wait(), 1);
  EXPECT_THAT(daemon.Errors(),
              AllOf(HasSubstr("'c' is no domain's name"), HasSubstr("FileDescriptorName=")));
  close(fd);
}

// PROMISE: T27 who feeds it
TEST(DaemonStart, TheWatchdogIsFedFromTheStoreThread) {
  DaemonProcess daemon;
  daemon.WriteFile("t.toml", "[daemon]\nsegment_bytes = \"2MiB\"\ndram_bytes = \"16MiB\"\n");
  daemon.Start({"--config", daemon.directory() + "/t.toml", "--socket", daemon.socket_path()},
               {.watchdog_us = 100'000});
  for (int ping = 0; ping < 3; ++ping) {
    EXPECT_TRUE(daemon.WaitNotified("WATCHDOG=1")) << daemon.Errors();
  }
  daemon.Signal(SIGTERM);
  EXPECT_TRUE(daemon.WaitNotified("STOPPING=1"));
  EXPECT_EQ(daemon.Wait(), 0);
}

TEST(DaemonStart, WhatIsNoSocketIsNotRemoved) {
  DaemonProcess daemon;
  daemon.WriteFile("t.sock", "precious");
  EXPECT_THAT(Refusal(daemon, {"--socket", daemon.socket_path(), "--dram-bytes", "256MiB"}),
              HasSubstr("something else than a socket"));
  EXPECT_EQ(access(daemon.socket_path().c_str(), F_OK), 0);
}

TEST(DaemonStart, AMissingDirectoryIsNamed) {
  DaemonProcess daemon;
  EXPECT_THAT(Refusal(daemon, {"--socket", daemon.directory() + "/absent/t.sock"}),
              AllOf(HasSubstr("/absent does not exist"), HasSubstr("create it")));
}

TEST(DaemonStart, ADirectoryItMayNotWriteIsNamed) {
  DaemonProcess daemon;
  const std::string directory = daemon.directory() + "/locked";
  ASSERT_EQ(mkdir(directory.c_str(), 0500), 0);
  daemon.Start({"--socket", directory + "/t.sock"}, {.obeys_permissions = true});
  EXPECT_EQ(daemon.Wait(), 1);
  EXPECT_THAT(daemon.Errors(), AllOf(HasSubstr("Permission denied"), HasSubstr(directory)));
}

// A daemon that root has tried out has left it in a directory which is the daemon's by now.
TEST(DaemonStart, ALockOfSomebodyElseIsNamed) {
  DaemonProcess daemon;
  const std::string lock = daemon.socket_path() + ".lock";
  std::ofstream(lock) << "";
  ASSERT_EQ(chmod(lock.c_str(), 0), 0);
  daemon.Start({"--socket", daemon.socket_path()}, {.obeys_permissions = true});
  EXPECT_EQ(daemon.Wait(), 1);
  EXPECT_THAT(daemon.Errors(),
              AllOf(HasSubstr(lock + " belongs to uid " + std::to_string(getuid())),
                    HasSubstr("remove it")));
}

TEST(DaemonStart, TheSocketHasTheConfiguredMode) {
  DaemonProcess daemon;
  const std::string config = daemon.WriteFile(
      "t.toml", "[daemon]\nsegment_bytes = \"2MiB\"\ndram_bytes = \"16MiB\"\nstate_dir = \"" +
                    daemon.directory() + "\"\n[[domain]]\nname = \"a\"\nsocket = \"" +
                    daemon.socket_path() + "\"\nsocket_mode = \"0600\"\n");
  daemon.Start({"--config", config});
  ASSERT_TRUE(daemon.WaitReady()) << daemon.Errors();
  struct stat about;
  ASSERT_EQ(stat(daemon.socket_path().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
}

// A mode that is changed at the path could be changed of something else that was put there.
TEST(DaemonStart, ASocketIsBornWithItsMode) {
  for (const char* mode : {"0600", "0660", "0666"}) {
    DaemonProcess daemon;
    const std::string config = daemon.WriteFile(
        "t.toml", "[daemon]\nsegment_bytes = \"2MiB\"\ndram_bytes = \"16MiB\"\nstate_dir = \"" +
                      daemon.directory() + "\"\n[[domain]]\nname = \"a\"\nsocket = \"" +
                      daemon.socket_path() + "\"\nsocket_mode = \"" + mode + "\"\n");
    const int notify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    ASSERT_GE(inotify_add_watch(notify, daemon.directory().c_str(), IN_CREATE | IN_ATTRIB), 0);
    daemon.Start({"--config", config});
    ASSERT_TRUE(daemon.WaitReady()) << daemon.Errors();
    struct stat about;
    ASSERT_EQ(stat(daemon.socket_path().c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777, std::stoul(mode, nullptr, 8));
    alignas(inotify_event) char events[64 * 1024];
    const ssize_t bytes = read(notify, events, sizeof(events));
    for (ssize_t at = 0; at < bytes;) {
      const auto* event = reinterpret_cast<const inotify_event*>(events + at);
      EXPECT_FALSE(event->len > 0 && std::string(event->name) == "t.sock" &&
                   (event->mask & IN_ATTRIB) != 0)
          << "the mode was changed behind the socket's birth";
      at += static_cast<ssize_t>(sizeof(*event) + event->len);
    }
    close(notify);
  }
}

TEST(DaemonStart, ASecretIsDrawnOnceAndKept) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.StartReady()) << daemon.Errors();
  const std::string secret = daemon.directory() + "/default.secret";
  struct stat about;
  ASSERT_EQ(stat(secret.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0600u);
  RawClient before, after;
  ASSERT_TRUE(before.Attach(daemon.socket_path()));
  daemon.Signal(SIGTERM);
  ASSERT_EQ(daemon.Wait(), 0);
  ASSERT_TRUE(daemon.StartReady()) << daemon.Errors();
  ASSERT_TRUE(after.Attach(daemon.socket_path()));
  EXPECT_EQ(std::memcmp(before.hello().secret, after.hello().secret, 192), 0);
}

TEST(DaemonStart, ABadSecretFileIsRefused) {
  DaemonProcess daemon;
  const std::string secret = daemon.WriteFile("s", "terrace-secret-1 00ff\n", 0600);
  const std::string config = daemon.WriteFile(
      "t.toml",
      "[daemon]\nsegment_bytes = \"2MiB\"\ndram_bytes = \"16MiB\"\n[[domain]]\nname = "
      "\"a\"\nsocket = \"" +
          daemon.socket_path() + "\"\nsecret_file = \"" + secret + "\"\n");
  EXPECT_THAT(Refusal(daemon, {"--config", config}),
              AllOf(HasSubstr("domain a"), HasSubstr(secret), HasSubstr("384")));
  ASSERT_EQ(chmod(secret.c_str(), 0644), 0);
  EXPECT_THAT(Refusal(daemon, {"--config", config}), HasSubstr("mode 0644"));
  ASSERT_EQ(unlink(secret.c_str()), 0);
  EXPECT_THAT(Refusal(daemon, {"--config", config}),
              AllOf(HasSubstr("does not exist"), HasSubstr("terrace domain new")));
  EXPECT_NE(access(secret.c_str(), F_OK), 0) << "a named secret is never drawn";
}

TEST(DaemonStart, AnArenaTooSmallForASegmentIsRefused) {
  DaemonProcess daemon;
  EXPECT_THAT(Refusal(daemon, {"--socket", daemon.socket_path(), "--dram-bytes", "128MiB"}, 2),
              AllOf(HasSubstr("128MiB"), HasSubstr("256MiB"), HasSubstr("segment_bytes")));
}

TEST(DaemonStart, AnArenaLargerThanTheMachineIsRefused) {
  DaemonProcess daemon;
  EXPECT_THAT(Refusal(daemon, {"--socket", daemon.socket_path(), "--dram-bytes", "60TiB"}),
              AllOf(HasSubstr("60TiB"), HasSubstr("lower dram_bytes")));
}

TEST(DaemonStart, AnUnknownKeyIsRefusedWithTheNearest) {
  DaemonProcess daemon;
  const std::string config = daemon.WriteFile("t.toml", "[daemon]\nlog_levle = \"info\"\n");
  EXPECT_THAT(Refusal(daemon, {"--check-config", "--config", config}, 2),
              AllOf(HasSubstr("daemon.log_levle"), HasSubstr("daemon.log_level")));
}

TEST(DaemonStart, PrintedConfigurationPassesTheCheck) {
  DaemonProcess daemon;
  daemon.Start({"--print-config", "--socket", daemon.socket_path()});
  ASSERT_EQ(daemon.Wait(), 0);
  const std::string config = daemon.WriteFile("printed.toml", daemon.Errors());
  daemon.Start({"--check-config", "--config", config});
  EXPECT_EQ(daemon.Wait(), 0) << daemon.Errors();
  EXPECT_THAT(daemon.Errors(), AllOf(HasSubstr(config + " is well: domains: 1, DRAM: 1GiB"),
                                     HasSubstr("`terrace doctor --config " + config + "` does")));
}

TEST(DaemonStart, UnknownOptionsAreAUsageError) {
  DaemonProcess daemon;
  EXPECT_THAT(Refusal(daemon, {"--dram-byte", "1GiB"}, 2),
              HasSubstr("'--dram-byte' is no option of terraced: did you mean --dram-bytes?; see "
                        "terraced --help"));
  EXPECT_THAT(Refusal(daemon, {"--confg=x"}, 2), HasSubstr("did you mean --config?"));
  EXPECT_THAT(Refusal(daemon, {"--keeper", "--config", "x", "--sockt", "y"}, 2),
              HasSubstr("did you mean --socket?"));
  EXPECT_THAT(Refusal(daemon, {"--frobnicate"}, 2),
              HasSubstr("'--frobnicate' is no option of terraced; see terraced --help"));
  EXPECT_THAT(Refusal(daemon, {"word"}, 2),
              HasSubstr("'word' stands alone: a configuration file is named by --config word"));
  EXPECT_THAT(Refusal(daemon, {"help"}, 2), HasSubstr("'help' is an option: terraced --help"));
  for (const char* const option : {"--config", "--socket", "--dram-bytes"}) {
    EXPECT_THAT(Refusal(daemon, {option, ""}, 2),
                AllOf(HasSubstr(option), HasSubstr("it is given no value")));
  }
  EXPECT_THAT(Refusal(daemon, {"--version"}, 0), HasSubstr("terraced 0."));
}

TEST(DaemonStart, AnAnswerThatIsLostIsAnError) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  for (const std::string option : {"--version", "--help", "--print-config"}) {
    const std::string command = "\"" TERRACED_PATH "\" " + option + " 2>/dev/null >/dev/full";
    const int status = std::system(command.c_str());
    ASSERT_TRUE(WIFEXITED(status)) << option;
    EXPECT_EQ(WEXITSTATUS(status), 1) << option;
  }
}

TEST(DaemonStart, JsonLogsAreOneObjectALine) {
  DaemonProcess daemon;
  const std::string config =
      daemon.WriteFile("t.toml",
                       "[daemon]\nsegment_bytes = \"2MiB\"\ndram_bytes = \"16MiB\"\nlog_format = "
                       "\"json\"\n");
  daemon.Start({"--config", config, "--socket", daemon.socket_path()});
  ASSERT_TRUE(daemon.WaitReady()) << daemon.Errors();
  daemon.Signal(SIGTERM);
  ASSERT_EQ(daemon.Wait(), 0);
  std::istringstream lines(daemon.Errors());
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_THAT(line, MatchesRegex(R"(\{"time":"[^"]+","level":"[a-z]+","event":"[a-z ]+".*\})"));
  }
  EXPECT_GE(count, 3u) << "domain, ready, stopping";
}

}  // namespace
}  // namespace terrace::test

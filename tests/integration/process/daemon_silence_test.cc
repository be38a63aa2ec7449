// A daemon whose name servers or file servers do not answer: its stop, and what is on its drives
// afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "integration/process/redis_hosts.h"
#include "test_paths.h"

namespace terrace::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(DaemonSilence, AStopClosesTheDrivesWhateverTheResolverDoes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "SKIPPED: a sanitizer wants to be loaded first; RedisResolver tests the tier";
#endif
  DaemonProcess daemon;
  const std::string nvme = daemon.directory() + "/nvme";
  const std::string config = daemon.WriteFile(
      "t.toml",
      "[daemon]\ndram_bytes = \"32MiB\"\nsegment_bytes = \"2MiB\"\nstate_dir = \"" +
          daemon.directory() + "/state\"\n[nvme]\npaths = [\"" + nvme +
          "\"]\ncapacity_bytes = \"64MiB\"\nslab_bytes = \"8MiB\"\n[redis]\n"
          "endpoints = [\"redis.silent:6379\"]\n[[domain]]\nname = \"chat\"\nsocket = \"" +
          daemon.socket_path() + "\"\n[[domain]]\nname = \"batch\"\nsocket = \"" +
          daemon.directory() + "/batch.sock\"\n");
  daemon.Start({"--config", config}, {.preloaded = TERRACE_SILENCE_PATH});
  ASSERT_TRUE(daemon.WaitReady()) << daemon.Errors();
  for (const char* const name : {"chat", "batch"}) {
    const std::string away = "redis is away: what it has are misses until it is back\" domain=\"";
    ASSERT_TRUE(Eventually([&] { return daemon.Errors().find(away + name) != std::string::npos; }))
        << daemon.Errors();
  }
  daemon.Signal(SIGTERM);
  ASSERT_EQ(daemon.Wait(), 0) << daemon.Errors();
  const std::string left = "redis is left behind: its thread hangs\" domain=\"";
  EXPECT_THAT(daemon.Errors(),
              AllOf(HasSubstr(left + "chat"), HasSubstr(left + "batch"),
                    HasSubstr("why=\"the resolver of host names does not answer\""),
                    HasSubstr("ends as after a kill"), Not(HasSubstr("a disk hangs"))));
  // Closed in order: no table is read.
  daemon.Start({"--config", config});
  ASSERT_TRUE(daemon.WaitReady()) << daemon.Errors();
  for (const std::string name : {"chat", "batch"}) {
    EXPECT_THAT(daemon.Errors(), HasSubstr("domain=\"" + name + "\" from=\"catalog\""));
  }
}

TEST(DaemonSilence, AStopEndsWhileAReloadHangs) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "SKIPPED: a sanitizer wants to be loaded first; LiveConfigTest tests the reload";
#endif
  DaemonProcess daemon;
  const std::string config =
      daemon.WriteFile("t.toml",
                       "[daemon]\ndram_bytes = \"32MiB\"\nsegment_bytes = \"2MiB\"\n"
                       "[[domain]]\nname = \"chat\"\nsocket = \"" +
                           daemon.socket_path() + "\"\n");
  daemon.Start({"--config", config}, {.preloaded = TERRACE_SILENCE_PATH});
  ASSERT_TRUE(daemon.WaitReady()) << daemon.Errors();
  daemon.WriteFile("t.toml.silent", "");
  daemon.Signal(SIGHUP);
  const auto is_reading = [&daemon] {
    const std::string path = "/proc/" + std::to_string(daemon.pid()) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(path)) {
      std::ifstream file(task.path() / "comm");
      std::string name;
      if (std::getline(file, name) && name == "terrace-config") return true;
    }
    return false;
  };
  ASSERT_TRUE(Eventually(is_reading)) << daemon.Errors();
  daemon.Signal(SIGTERM);
  ASSERT_EQ(daemon.Wait(), 0) << daemon.Errors();
  EXPECT_THAT(daemon.Errors(), HasSubstr("a reload hangs: its thread is left behind"));
}

}  // namespace
}  // namespace terrace::test

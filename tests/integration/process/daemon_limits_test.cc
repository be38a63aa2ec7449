// What one client may take from others, of a real terraced.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "integration/process/attackers.h"
#include "integration/process/daemon_process.h"
#include "integration/process/raw_client.h"

namespace terrace::test {
namespace {

using protocol::Verb;
using ::testing::HasSubstr;

nlohmann::json StatsOf(RawClient& client) {
  return nlohmann::json::parse(client.Call(Verb::kStats, BytesOf(protocol::StatsRequest{})).text());
}

// More sessions than there may be, from one process that lives on.
TEST(DaemonLimits, ConnectionsThatCameAndWentCostNothing) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.StartReady()) << daemon.Errors();
  for (int i = 0; i < 1'300; ++i) {
    RawClient client;
    ASSERT_TRUE(client.Attach(daemon.socket_path())) << i << ": " << client.last_text();
  }
  RawClient client;
  ASSERT_TRUE(client.Attach(daemon.socket_path())) << client.last_text();
  const auto is_alone = [&] { return StatsOf(client)["sessions"].size() == 1; };
  for (int i = 0; i < 1'000 && !is_alone(); ++i) usleep(1'000);
  EXPECT_TRUE(is_alone());
}

// PROMISE: T36 limits of sessions
TEST(DaemonLimits, AProcessWithTooManySessionsIsToldAndOthersDoNotNotice) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.StartReady()) << daemon.Errors();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (uint32_t i = 0; i < 256; ++i) {
    clients.push_back(std::make_unique<RawClient>());
    ASSERT_TRUE(clients.back()->Attach(daemon.socket_path())) << clients.back()->last_text();
  }
  RawClient next;
  EXPECT_FALSE(next.Attach(daemon.socket_path()));
  EXPECT_THAT(next.last_text(), HasSubstr("daemon.sessions_per_process_max is 256"));
  const pid_t child = fork();
  if (child == 0) {
    RawClient other;
    _exit(other.Attach(daemon.socket_path()) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "another process has sessions of its own";
}

// 300 connections that say nothing, of this user: who speaks is served all the same.
TEST(DaemonLimits, ConnectionsThatSayNothingDoNotKeepOthersOut) {
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.StartReady()) << daemon.Errors();
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(std::make_unique<RawClient>());
    ASSERT_TRUE(silent.back()->Connect(daemon.socket_path()));
  }
  RawClient client;
  ASSERT_TRUE(client.Attach(daemon.socket_path())) << client.last_text();
  EXPECT_EQ(StatsOf(client)["connections_refused"], 0);
}

// A user who connects without end waits alone.
TEST(DaemonLimits, WhoConnectsTooFastWaitsAndOtherUsersDoNot) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become two users";
  DaemonProcess daemon;
  ASSERT_TRUE(daemon.StartReady()) << daemon.Errors();
  const std::string path = daemon.socket_path();
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  ASSERT_EQ(chmod(path.substr(0, path.rfind('/')).c_str(), 0755), 0);
  const auto as_user = [](uid_t uid, const std::function<bool()>& act) {
    const pid_t child = fork();
    if (child == 0) _exit(setuid(uid) == 0 && act() ? 0 : 1);
    return child;
  };
  int done[2];
  ASSERT_EQ(pipe(done), 0);
  const pid_t fast = as_user(23'001, [&] {
    std::vector<std::unique_ptr<RawClient>> silent;
    for (int i = 0; i < 700; ++i) {
      silent.push_back(std::make_unique<RawClient>());
      silent.back()->Connect(path);
    }
    char byte;
    close(done[1]);
    return read(done[0], &byte, 1) == 0;
  });
  RawClient client;
  ASSERT_TRUE(client.Attach(path)) << client.last_text();
  const auto refused = [&] { return StatsOf(client)["connections_refused"].get<int>(); };
  for (int i = 0; i < 2'000 && refused() < 100; ++i) usleep(5'000);
  EXPECT_GE(refused(), 100) << "128 come in, 256 wait, and few more meanwhile";
  int status = -1;
  const pid_t other = as_user(23'002, [&] {
    RawClient another;
    return another.Attach(path);
  });
  ASSERT_EQ(waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0) << "another user of the domain comes in";
  close(done[0]);
  close(done[1]);
  ASSERT_EQ(waitpid(fast, &status, 0), fast);
}

// Its arena is of huge pages, and the pool has none when a hole is looked at.
// PROMISE: T33 holes in huge pages
TEST(DaemonLimits, AHoleInHugePagesCostsItsBlocksNotTheDaemon) {
  HugePages pool;
  if (!pool.Take(24)) GTEST_SKIP() << "vm.nr_hugepages cannot be set here";
  {
    DaemonProcess daemon;
    const bool is_ready = daemon.StartReady({.dram_bytes = "32MiB", .hugepages = "on"});
    pool.GiveBack();  // what is punched from here on is no page of the pool any more
    ASSERT_TRUE(is_ready) << daemon.Errors();
    RawClient client;
    ASSERT_TRUE(client.Attach(daemon.socket_path()));
    const uint32_t group = client.Open("g", 4096);
    // One block, so that a segment is there and in use; then the memory under all of them goes.
    ASSERT_EQ(Store(client, group, MakeKeys(1, 1)).sealed_count, 1u);
    const int arena = client.received_fds().at(0);
    ASSERT_EQ(fallocate(arena, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 32 << 20), 0);
    // The daemon computes the checksums of what is committed from here on: of holes.
    EXPECT_EQ(Store(client, group, MakeKeys(64, 2)).sealed_count, 64u);
    const auto lost = [&] { return StatsOf(client)["arena_pages_lost"].get<uint64_t>(); };
    for (int i = 0; i < 2'000 && lost() == 0; ++i) usleep(5'000);
    EXPECT_GT(lost(), 0u);
    daemon.Signal(SIGTERM);
    EXPECT_EQ(daemon.Wait(), 0);
  }
}

}  // namespace
}  // namespace terrace::test

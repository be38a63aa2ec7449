// `terrace config` and SIGHUP, against a real daemon; and who may.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <thread>

#include "integration/process/cli/cli_fixture.h"
#include "integration/process/raw_client.h"
#include "terrace/protocol_admin.h"

namespace terrace {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class CliConfig : public CliTest {
 protected:
  void Append(const std::string& text) const {
    std::ofstream(Path("terraced.toml"), std::ios::app) << text;
  }
  void ReplaceInConfig(const std::string& from, const std::string& to) const {
    std::string text = ReadText(Path("terraced.toml"));
    const size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << text;
    std::ofstream(Path("terraced.toml")) << text.replace(at, from.size(), to);
  }
  // Waits until the daemon's log has it; false after 10 s.
  bool Logs(const std::string& text) const {
    for (int i = 0; i < 2000; ++i) {
      if (daemon().Errors().find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
};

TEST_F(CliConfig, SmokeGetSetAndReload) {
  StartDaemon();
  EXPECT_THAT(Terrace({"config", "get", "daemon.dram_bytes"}).out,
              AllOf(HasSubstr("daemon.dram_bytes = \"64MiB\"\n"), HasSubstr("terraced.toml:3")));
  EXPECT_THAT(Terrace({"config", "get", "daemon.segment_bytes"}).out, HasSubstr("needs a restart"));
  EXPECT_THAT(Terrace({"config", "get"}).out,
              AllOf(HasSubstr("CHANGES BY"), HasSubstr("domain.chat.allow_uids"),
                    testing::ContainsRegex("daemon.log_level .* reload, set\n"),
                    testing::ContainsRegex("daemon.segment_bytes .* restart\n")));
  const Outcome set = Terrace({"config", "set", "daemon.log_level=debug"});
  EXPECT_EQ(set.out,
            "changed, until the next reload or restart:\n  daemon.log_level: \"info\" -> "
            "\"debug\"\n");
  EXPECT_TRUE(Logs("event=\"configuration changed\""));
  EXPECT_THAT(daemon().Errors(),
              ContainsRegex("configuration changed\" uid=.* what=.*info.*daemon.log_level.*debug"))
      << "who, which key, and both values";
  EXPECT_EQ(Terrace({"config", "set", "daemon.log_level=debug"}).out, "it was so already\n");
  EXPECT_EQ(TerraceJson({"config", "get", "daemon.log_level"})["keys"][0]["from"], "set");
  TerraceJson({"status"});
  EXPECT_TRUE(Logs("event=\"connection\"")) << "which is told at level debug alone";

  ReplaceInConfig("64MiB", "128MiB");
  const json reloaded = TerraceJson({"config", "reload"});
  EXPECT_EQ(reloaded["changed"][0]["key"], "daemon.log_level");
  EXPECT_EQ(reloaded["needs_restart"][0]["key"], "daemon.dram_bytes");
  EXPECT_EQ(Terrace({"config", "reload"}).out,
            Path("terraced.toml") +
                " is in effect: nothing that is live has changed\nneeds a restart (systemctl "
                "restart terraced):\n  daemon.dram_bytes: \"64MiB\" -> \"128MiB\"\n"
                "  daemon.fenced_bytes_max: \"16MiB\" -> \"32MiB\"\n"
                "  domain.chat.dram_max_bytes: \"64MiB\" -> \"128MiB\"\n");

  ReplaceInConfig("segment_bytes", "log_level = \"error\"\nsegment_byte");
  const Outcome refused = Terrace({"config", "reload"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("terraced.toml:5: daemon.segment_byte is no known key"),
                                 HasSubstr("segment_bytes")));
  EXPECT_EQ(TerraceJson({"config", "get", "daemon.log_level"})["keys"][0]["value"], "\"info\"");
  const Outcome more = Terrace({"config", "set", "daemon.dram_bytes=1GiB"});
  EXPECT_EQ(more.exit_code, 1);
  EXPECT_THAT(more.err, AllOf(HasSubstr("daemon.dram_bytes is 1GiB"), HasSubstr("up to 64MiB")));
  EXPECT_EQ(Terrace({"config", "get", "daemon.nothing"}).exit_code, 1);
  EXPECT_EQ(Terrace({"config", "set"}).exit_code, 2);
  const Outcome lines = Terrace({"config", "set", "daemon.log_level=\"error\"\n[nvme]\nx=1"});
  EXPECT_EQ(lines.exit_code, 1);
  EXPECT_THAT(lines.err, HasSubstr("more than one line"));
  EXPECT_EQ(TerraceJson({"config", "get", "daemon.log_level"})["keys"][0]["value"], "\"info\"");
}

TEST_F(CliConfig, WhatMayBeALoginIsShownToNobody) {
  StartDaemon();
  for (const std::string change :
       {"redis.endpoints=[\"redis://user:geheim@host:1\"]", "redis.password=geheim",
        "redis://user:geheim@host:1=3", "redis://user:geheim@host:1"}) {
    const Outcome refused = Terrace({"config", "set", change});
    EXPECT_EQ(refused.exit_code, 1) << change;
    EXPECT_THAT(refused.err, Not(HasSubstr("geheim")));
    EXPECT_THAT(Terrace({"config", "get", change}).err, Not(HasSubstr("geheim")));
  }
  const std::string log = daemon().Errors();
  EXPECT_THAT(log, HasSubstr("keys=\"redis.password\""));
  EXPECT_THAT(log, Not(HasSubstr("geheim")));
}

// What clients have mapped stays mapped: as a capacity it would hide how full the rest is.
TEST_F(CliConfig, OfLessMemoryNobodySpeaksAsOfWhatClientsHaveMapped) {
  StartDaemon();
  const uint64_t before = TerraceJson({"status"})["domain"]["dram_capacity_bytes"];
  EXPECT_EQ(before, 64 * kMiB);
  EXPECT_EQ(Terrace({"config", "set", "daemon.dram_bytes=16MiB"}).exit_code, 0);
  EXPECT_EQ(TerraceJson({"status"})["domain"]["dram_capacity_bytes"], 16 * kMiB);
  EXPECT_THAT(Terrace({"status"}).out,
              HasSubstr("of at most 16.0 MiB (clients have mapped 64.0 MiB)"));
  EXPECT_EQ(TerraceJson({"quota"})["domains"][0]["tiers"][0]["max_bytes"], 16 * kMiB);
  EXPECT_EQ(Terrace({"config", "reload"}).exit_code, 0);
  EXPECT_EQ(TerraceJson({"status"})["domain"]["dram_capacity_bytes"], before);
}

TEST_F(CliConfig, SeveralKeysAreSetTogetherOrNotAtAll) {
  StartDaemon();
  EXPECT_EQ(Terrace({"config", "set", "daemon.log_level=debug", "daemon.slow_request_ms=7"}).out,
            "changed, until the next reload or restart:\n  daemon.log_level: \"info\" -> "
            "\"debug\"\n  daemon.slow_request_ms: 100 -> 7\n");
  const Outcome refused =
      Terrace({"config", "set", "daemon.log_level=error", "daemon.segment_bytes=4MiB"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("daemon.segment_bytes needs a restart"),
                                 HasSubstr("None of these keys has changed")));
  EXPECT_EQ(TerraceJson({"config", "get", "daemon.log_level"})["keys"][0]["value"], "\"debug\"");
  // As much of what was set as the log keeps of a request, and that there was more.
  EXPECT_EQ(
      Terrace({"config", "set", "daemon.leases_per_session_max=100",
               "daemon.pending_per_session_max=100", "daemon.lease_blocks_per_session_max=2000"})
          .exit_code,
      0);
  const std::string detail = TerraceJson({"log"})["events"][0]["detail"];
  EXPECT_TRUE(detail.starts_with("set daemon.leases_per_session_max, daemon.pending_")) << detail;
  EXPECT_TRUE(detail.ends_with("...")) << detail;
  // A key that is none, of whatever length, is answered with a sentence.
  const Outcome long_key = Terrace({"config", "set", "daemon." + std::string(5'000, 'x') + "=1"});
  EXPECT_EQ(long_key.exit_code, 1);
  EXPECT_THAT(long_key.err, AllOf(HasSubstr("a key of 5007 bytes"), HasSubstr("no more than 160")));
}

TEST_F(CliConfig, AHangUpReloads) {
  StartDaemon();
  Append("allow_uids = [" + std::to_string(getuid()) + "]\n[nvme]\nread_ahead_blocks = 5\n");
  daemon().Signal(SIGHUP);
  EXPECT_TRUE(Logs("configuration reloaded"));
  EXPECT_EQ(TerraceJson({"config", "get", "nvme.read_ahead_blocks"})["keys"][0]["value"], "5");
  Append("nothing = 5\n");
  daemon().Signal(SIGHUP);
  EXPECT_TRUE(Logs("configuration not reloaded: nothing has changed"));
  EXPECT_TRUE(Logs("nvme.nothing is no known key"));
  EXPECT_EQ(TerraceJson({"status"})["domain"]["name"], "chat") << "it serves on";
}

// Live keys reach whoever uses them.
TEST_F(CliConfig, SessionsAreHeldToWhatIsInEffect) {
  StartDaemon();
  test::RawClient engine;
  ASSERT_TRUE(engine.Attach(socket_path()));
  const uint32_t group = engine.Open("g", 4096);
  test::Store(engine, group, test::MakeKeys(2, 1));
  TerraceJson({"config", "set", "daemon.leases_per_session_max=1"});
  const auto acquire = [&] {
    return engine.CallKeys(protocol::Verb::kAcquire, group, test::MakeKeys(2, 1));
  };
  EXPECT_EQ(acquire().status(), StatusCode::kOk);
  EXPECT_EQ(acquire().status(), StatusCode::kNoSpace);
  TerraceJson({"config", "set", "daemon.leases_per_session_max=9"});
  EXPECT_EQ(acquire().status(), StatusCode::kOk);
  TerraceJson({"config", "set", "domain.chat.allow_uids=[]"});
  EXPECT_EQ(Terrace({"status"}).exit_code, 1) << "whoever it is";
  EXPECT_EQ(acquire().status(), StatusCode::kOk) << "who is connected stays so";
}

TEST_F(CliConfig, OthersThanAdminsAreToldWhoMay) {
  if (getuid() != 0) GTEST_SKIP() << "becoming another user takes root";
  StartDaemon();
  ASSERT_EQ(chmod(daemon().directory().c_str(), 0755), 0);
  ASSERT_EQ(chmod(socket_path().c_str(), 0666), 0);
  const auto as_another = [&](const std::function<bool(test::RawClient&)>& act) {
    const pid_t child = fork();
    if (child == 0) {
      test::RawClient client;
      _exit(setuid(4'000'001) == 0 && client.Attach(socket_path()) && act(client) ? 0 : 1);
    }
    int status = -1;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  };
  const auto is_refused = [](test::RawClient& client) {
    const protocol::ConfigRequest get;
    const test::RawReply reply = client.Call(protocol::kVerbConfig, test::BytesOf(get));
    return reply.status() == StatusCode::kUnsupported &&
           reply.text().find("daemon.admin_uids") != std::string::npos;
  };
  EXPECT_TRUE(as_another(is_refused));
  TerraceJson({"config", "set", "daemon.admin_uids=[4000001]"});
  EXPECT_FALSE(as_another(is_refused));
  EXPECT_TRUE(as_another([](test::RawClient& client) {
    const protocol::DrainRequest bypass{.action = protocol::DrainAction::kBypass};
    return client.Call(protocol::kVerbDrain, test::BytesOf(bypass))
               .At<protocol::DrainReply>()
               .by_uid == 4'000'001;
  }));
  EXPECT_THAT(Terrace({"drain", "--status"}).out, HasSubstr("bypassed, as uid 4000001 wanted"));
}

}  // namespace
}  // namespace terrace

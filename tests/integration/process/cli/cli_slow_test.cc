// `terrace slow` and `terrace debug dump`, against a real daemon with a really slow request.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "integration/process/cli/cli_fixture.h"
#include "integration/process/raw_client.h"

namespace terrace {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CliSlowTest : public CliTest {
 protected:
  // A reader follows a block whose writer never commits: it waits out its deadline of 200 ms.
  void MakeSlowRequest() {
    ASSERT_TRUE(writer_.Attach(socket_path()) && reader_.Attach(socket_path()));
    const uint32_t writers = writer_.Open("planted-group", 4096);
    const uint32_t readers = reader_.Open("planted-group", 4096);
    const BlockKey key{.low = 0x1122334455667788, .high = 0x99aabbccddeeff00};
    ASSERT_EQ(writer_.CallKeys(protocol::Verb::kReserve, writers, {&key, 1}).status(),
              StatusCode::kOk);
    const protocol::KeysRequest asked{.group_handle = readers,
                                      .key_count = 1,
                                      .flags = protocol::kAcquireFollow,
                                      .hints = {.deadline_us = 200'000}};
    std::vector<std::byte> body(sizeof(asked) + sizeof(key));
    std::memcpy(body.data(), &asked, sizeof(asked));
    std::memcpy(body.data() + sizeof(asked), &key, sizeof(key));
    request_id_ = reader_.Send(protocol::Verb::kAcquire, body);
    ASSERT_TRUE(reader_.Receive());  // the answer
    const auto end = reader_.Receive();
    ASSERT_TRUE(end && end->status() == StatusCode::kBusy) << "the deadline's completion";
  }

  test::RawClient writer_, reader_;
  uint64_t request_id_ = 0;
};

TEST_F(CliSlowTest, ShowsWhatARequestWaitedFor) {
  StartDaemon();
  MakeSlowRequest();
  const json answer = TerraceJson({"slow"});
  ASSERT_EQ(answer["requests"].size(), 1u) << answer;
  const json row = answer["requests"][0];
  EXPECT_EQ(row["request"], request_id_);
  EXPECT_EQ(row["verb"], "Acquire");
  EXPECT_EQ(row["group_name"], "planted-group");
  EXPECT_GE(row["phases_us"]["writer"], 150'000);
  const Outcome text = Terrace({"slow"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("Acquire took"), HasSubstr("\n    writer "),
                              HasSubstr("request " + std::to_string(request_id_) + " of session " +
                                        row["session"].get<std::string>()),
                              HasSubstr("of planted-group; busy")));
  std::istringstream lines(text.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(daemon().Errors(),
              AllOf(HasSubstr("event=\"slow request\" request=" + std::to_string(request_id_)),
                    HasSubstr("domain=\"chat\""), HasSubstr(row["session"].get<std::string>())));
}

TEST_F(CliSlowTest, ForgetsWhenToldAndNotesNothingWhenOff) {
  StartDaemon();
  MakeSlowRequest();
  EXPECT_EQ(TerraceJson({"slow", "--reset"})["requests"].size(), 1u);
  EXPECT_EQ(Terrace({"slow"}).out, "no request took 100 ms or longer (daemon.slow_request_ms)\n");
  EXPECT_EQ(Terrace({"config", "set", "daemon.slow_request_ms=0"}).exit_code, 0);
  EXPECT_THAT(Terrace({"slow"}).out, HasSubstr("daemon.slow_request_ms is 0"));
  EXPECT_EQ(Terrace({"slow", "--limit", "0"}).exit_code, 2);
}

TEST_F(CliSlowTest, ADumpHoldsTheAnswersAndNothingSecret) {
  StartDaemon();
  FillWithPrompts();
  const std::string key = TerraceJson({"ls", "--group", "bench-16384x1"})["blocks"][0]["key"];
  const Outcome pinned = Terrace({"pin", "planted-prompt", key});
  ASSERT_EQ(pinned.exit_code, 0) << pinned.err;
  MakeSlowRequest();  // the latest of those that are slow
  const Outcome told = Terrace({"debug", "dump", Path("dump.json")});
  ASSERT_EQ(told.exit_code, 0) << told.err;
  EXPECT_THAT(told.out, HasSubstr("dump.json: "));
  const std::string text = ReadText(Path("dump.json"));
  const json dump = json::parse(text, nullptr, false);
  ASSERT_TRUE(dump.is_object());
  EXPECT_EQ(dump["daemon"]["answers"], true);
  EXPECT_EQ(dump["slow"]["requests"][0]["request"], request_id_);
  EXPECT_TRUE(dump["status"].contains("turn_times") && dump["status"].contains("sessions"));
  EXPECT_FALSE(dump["config"]["keys"].empty());
  EXPECT_FALSE(dump["doctor"]["findings"].empty());
  EXPECT_TRUE(dump["audit"].contains("unanswered")) << "there is no drive";
  EXPECT_THAT(dump["log"].dump(), AllOf(HasSubstr("slow request"), HasSubstr("NamedPin")));
  EXPECT_THAT(dump["operators"].dump(), HasSubstr("\"pin\""));
  const std::string secret = ReadText(Path("secret"));
  ASSERT_GT(secret.size(), 300u);
  EXPECT_THAT(text,
              AllOf(Not(HasSubstr("planted-prompt")), Not(HasSubstr(key)),
                    Not(HasSubstr("99aabbccddeeff00")), Not(HasSubstr(secret.substr(17, 64)))));
  struct stat facts {};
  ASSERT_EQ(stat(Path("dump.json").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  const Outcome again = Terrace({"debug", "dump", Path("dump.json")});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("exists"));
}

TEST_F(CliSlowTest, ADumpHoldsNoPasswordWhereverItWasWritten) {
  std::ofstream(Path("login")) << "planted-user\nplanted-password\n";
  ASSERT_EQ(chmod(Path("login").c_str(), 0600), 0);
  for (const std::string& redis : {
           "endpoints = ['127.0.0.1:1']\ncredentials_file = '" + Path("login") + "'",
           std::string("endpoints = ['redis://me:planted-p@ss/word@127.0.0.1:1', 'm:planted@h']"),
           std::string("password = 'planted-password'"),
           std::string("endpoints = ['127.0.0.1:1']\npassword = planted-password"),
       }) {
    std::ofstream(Path("redis.toml")) << "[redis]\n" << redis << "\n";
    const Outcome told = Terrace({"debug", "dump", "-", "--config", Path("redis.toml")});
    EXPECT_EQ(told.exit_code, 0) << told.err;
    EXPECT_TRUE(json::parse(told.out, nullptr, false).is_object()) << told.out;
    EXPECT_THAT(told.out, AllOf(HasSubstr("redis"), Not(HasSubstr("planted")))) << redis;
    EXPECT_THAT(told.out, Not(HasSubstr("ss/word"))) << redis;
  }
}

TEST_F(CliSlowTest, ADumpOfADaemonThatHangsSaysSo) {
  StartDaemon();
  kill(daemon().pid(), SIGSTOP);
  const Outcome told = Terrace({"debug", "dump", Path("hung.json"), "--timeout-ms", "200"});
  kill(daemon().pid(), SIGCONT);
  EXPECT_EQ(told.exit_code, 0) << told.err;
  EXPECT_THAT(told.out, HasSubstr("daemon: "));
  const json dump = json::parse(ReadText(Path("hung.json")), nullptr, false);
  EXPECT_THAT(dump["daemon"].value("unanswered", ""), HasSubstr("no answer within 200 ms"));
  EXPECT_FALSE(dump["doctor"]["findings"].empty());
  EXPECT_FALSE(dump["config_file"]["keys"].empty());
  KillDaemon();
  EXPECT_EQ(Terrace({"slow"}).exit_code, 1);
  EXPECT_EQ(Terrace({"debug", "dump", Path("gone.json")}).exit_code, 0);
}

}  // namespace
}  // namespace terrace

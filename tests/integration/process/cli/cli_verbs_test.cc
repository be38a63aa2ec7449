// Every verb but bench, against a real daemon.
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "integration/process/cli/cli_fixture.h"
#include "test_paths.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kGroup[] = "bench-16384x1";

class CliVerbsTest : public CliTest {
 protected:
  // In the daemon's place.
  void Listen(int* listener) const {
    *listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socket_path().copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(bind(*listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(*listener, 8), 0);
  }
};

TEST_F(CliVerbsTest, SmokeEveryVerbSeesTheSameBlocks) {
  StartDaemon();
  FillWithPrompts();
  const nlohmann::json status = TerraceJson({"status"});
  EXPECT_EQ(status["domain"]["name"], "chat");
  EXPECT_EQ(status["domain"]["block_count"], 40);

  const nlohmann::json blocks = TerraceJson({"ls", "--limit", "1000"});
  ASSERT_EQ(blocks["blocks"].size(), 40u);
  EXPECT_EQ(blocks["blocks"][0]["group"], kGroup);
  EXPECT_EQ(blocks["blocks"][0]["byte_count"], 16384);

  const nlohmann::json tree = TerraceJson({"tree"});
  EXPECT_EQ(tree["block_count"], 40);
  EXPECT_EQ(tree["runs"].size(), 10u);  // two heads of four tails

  const nlohmann::json preview = TerraceJson({"evict", "--all", "--dry-run"});
  EXPECT_EQ(preview["block_count"], 40);
  EXPECT_EQ(preview["byte_count"], 40 * 16384);
  EXPECT_EQ(TerraceJson({"status"})["domain"]["block_count"], 40);
  EXPECT_EQ(TerraceJson({"evict", "--all", "--yes"})["block_count"], 40);
  EXPECT_EQ(TerraceJson({"status"})["domain"]["block_count"], 0);
}

TEST_F(CliVerbsTest, StatusTellsAPersonWhatThereIs) {
  StartDaemon();
  FillWithPrompts();
  const Outcome status = Terrace({"status"});
  EXPECT_EQ(status.exit_code, 0);
  EXPECT_THAT(status.out, HasSubstr("domain    chat\n"));
  EXPECT_THAT(status.out, HasSubstr("64.0 MiB, in pages of "));
  EXPECT_THAT(status.out, HasSubstr("40 resident"));
  EXPECT_THAT(status.out, HasSubstr(kGroup));
  EXPECT_THAT(status.out, Not(HasSubstr("\033")));  // no colour off a terminal
}

TEST_F(CliVerbsTest, ListsAreLimitedSortedAndFiltered) {
  StartDaemon();
  FillWithPrompts();
  const Outcome few = Terrace({"ls", "--limit", "3"});
  EXPECT_EQ(few.exit_code, 0);
  EXPECT_EQ(std::count(few.out.begin(), few.out.end(), '\n'), 5);  // title, three, what is left out
  EXPECT_THAT(few.out, HasSubstr("3 of 40 blocks"));
  const nlohmann::json three = TerraceJson({"ls", "--limit", "3"});
  EXPECT_EQ(three["found_count"], 40);
  EXPECT_EQ(three["is_cut"], true);
  EXPECT_EQ(TerraceJson({"ls", "--limit", "40"})["is_cut"], false);

  for (const auto& [order, field] : {std::pair("hits", "hit_count"), std::pair("idle", "idle_ms"),
                                     std::pair("age", "age_ms"), std::pair("size", "byte_count")}) {
    const nlohmann::json sorted = TerraceJson({"ls", "--sort", order, "--group", kGroup});
    EXPECT_EQ(sorted["found_count"], 40);
    uint64_t previous = UINT64_MAX;
    for (const nlohmann::json& block : sorted["blocks"]) {
      EXPECT_LE(block[field], previous) << order;
      previous = block[field].get<uint64_t>();
    }
  }
}

TEST_F(CliVerbsTest, AnUnknownGroupIsRefusedWithTheKnownOnes) {
  StartDaemon();
  FillWithPrompts();
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"ls", "--group", "llama"},
        {"tree", "--group", "llama"},
        {"evict", "--all", "--yes", "--group", "llama"}}) {
    const Outcome refused = Terrace(command);
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_THAT(refused.err, AllOf(HasSubstr("'llama'"), HasSubstr(kGroup)));
  }
}

TEST_F(CliVerbsTest, TreeDrawsRunsAndSubtrees) {
  StartDaemon();
  FillWithPrompts();
  const Outcome whole = Terrace({"tree"});
  EXPECT_EQ(whole.exit_code, 0);
  EXPECT_THAT(whole.out, HasSubstr(kGroup));
  EXPECT_THAT(whole.out, HasSubstr("0-3  4 blocks, 64.0 KiB, dram"));
  EXPECT_THAT(whole.out, HasSubstr("└─ "));
  EXPECT_THAT(Terrace({"tree", "--depth", "1"}).out, HasSubstr("below it 16 blocks, 256.0 KiB"));

  const nlohmann::json runs = TerraceJson({"tree"})["runs"];
  const std::string head = runs[0]["first_key"];
  const std::string tail = runs[1]["first_key"];
  EXPECT_EQ(TerraceJson({"tree", head})["block_count"], 20);
  EXPECT_EQ(TerraceJson({"tree", tail})["block_count"], 4);

  const Outcome absent = Terrace({"tree", std::string(32, '7')});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_THAT(absent.err, HasSubstr("is not in this domain's cache"));
}

TEST_F(CliVerbsTest, EvictDropsWhatIsNamedAndNothingElse) {
  StartDaemon();
  FillWithPrompts();
  const nlohmann::json runs = TerraceJson({"tree"})["runs"];
  const std::string head = runs[0]["first_key"];
  const std::string tip = runs[1]["last_key"];

  // A block that others continue stays unless they go too.
  const Outcome held = Terrace({"evict", head, "--yes"});
  EXPECT_EQ(held.exit_code, 1) << "less than was named";
  EXPECT_THAT(held.out, AllOf(HasSubstr("evicted 0 blocks"), HasSubstr("--subtree")));
  EXPECT_THAT(held.out, HasSubstr("1 block stays: leased"));
  // A block that is named twice is one.
  EXPECT_EQ(Terrace({"evict", tip, tip, "--yes"}).out, "evicted 1 block, 16.0 KiB\n");
  EXPECT_EQ(TerraceJson({"evict", tip, tip, "--yes"})["not_here_count"], 1);
  EXPECT_EQ(TerraceJson({"evict", head, "--subtree", "--dry-run"})["block_count"], 19);
  EXPECT_EQ(TerraceJson({"evict", head, "--subtree", "--yes"})["block_count"], 19);
  EXPECT_EQ(TerraceJson({"ls"})["found_count"], 20);
  EXPECT_EQ(TerraceJson({"evict", "--all", "--yes", "--group", kGroup})["block_count"], 20);
  EXPECT_EQ(TerraceJson({"ls"})["found_count"], 0);
  EXPECT_THAT(Terrace({"ls"}).out, HasSubstr("no blocks"));
  EXPECT_EQ(TerraceJson({"evict", "--all", "--yes", "--group", kGroup})["block_count"], 0);
}

TEST_F(CliVerbsTest, WhatIsMistypedOrEmptyEvictsNothing) {
  StartDaemon();
  FillWithPrompts();
  const nlohmann::json runs = TerraceJson({"tree"})["runs"];
  const std::string absent(32, 'f'), zeros(32, '0'), head = runs[0]["first_key"];
  const Outcome none = Terrace({"evict", absent, "--subtree", "--yes"});
  EXPECT_THAT(none.out, AllOf(HasSubstr("evicted 0 blocks"), HasSubstr("1 key names no block"),
                              HasSubstr("--orphans")));
  const nlohmann::json both = TerraceJson({"evict", absent, head, "--subtree", "--yes"});
  EXPECT_EQ(both["block_count"], 20);
  EXPECT_EQ(both["not_here_count"], 1);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"evict", "--all", "--yes", "--group", ""},
        {"evict", "--all", "--yes", "--domain", ""},
        {"evict", "--all", "--yes", "--older-than", ""},
        {"evict", "", "--yes"},
        {"evict", zeros, "--subtree", "--yes"},
        {"show", zeros},
        {"tree", zeros}}) {
    const Outcome refused = Terrace(words);
    EXPECT_EQ(refused.exit_code, 2) << words[1];
    EXPECT_THAT(refused.err, AnyOf(HasSubstr("empty"), HasSubstr("all zeros"))) << words[1];
  }
  EXPECT_EQ(TerraceJson({"ls"})["found_count"], 20);
}

TEST_F(CliVerbsTest, EvictAllAsksOnATerminalAndRefusesWithoutOne) {
  StartDaemon();
  FillWithPrompts();
  const Outcome refused = Terrace({"evict", "--all"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("--yes"), HasSubstr("--dry-run")));

  const Outcome no = TerraceOnTerminal({"evict", "--all"}, "n\n");
  EXPECT_EQ(no.exit_code, 1);
  EXPECT_THAT(no.err, AllOf(HasSubstr("[y/N]"), HasSubstr("nothing was dropped")));
  EXPECT_EQ(TerraceJson({"ls"})["found_count"], 40);

  const Outcome yes = TerraceOnTerminal({"evict", "--all"}, "y\n");
  EXPECT_EQ(yes.exit_code, 0) << yes.err;
  EXPECT_THAT(yes.out, HasSubstr("evicted 40 blocks"));
}

TEST_F(CliVerbsTest, WithoutADaemonEveryVerbSaysHowToGetOne) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"status"},
                                                  {"ls"},
                                                  {"tree"},
                                                  {"evict", std::string(32, 'a'), "--yes"},
                                                  {"bench", "load"}}) {
    const Outcome outcome = Terrace(command);
    EXPECT_EQ(outcome.exit_code, 1) << command[0];
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("no daemon"), HasSubstr(socket_path()),
                                   HasSubstr("systemctl start terraced")));
  }
  EXPECT_THAT(Terrace({"bench", "load"}).err, HasSubstr("--spawn"));
}

TEST_F(CliVerbsTest, AWrongSocketIsExplained) {
  std::ofstream(Path("file")) << "text";
  EXPECT_THAT(Terrace({"status", "--socket", Path("file")}).err, HasSubstr("is not a socket"));
  const std::string long_path(201, '/');
  EXPECT_THAT(Terrace({"status", "--socket", long_path}).err,
              AllOf(HasSubstr("201 bytes"), HasSubstr("the limit is 107")));
  StartDaemon();
  KillDaemon();
  const Outcome left_over = Terrace({"status"});
  EXPECT_EQ(left_over.exit_code, 1);
  EXPECT_THAT(left_over.err, AllOf(HasSubstr("no daemon listens on"), HasSubstr(socket_path())));
}

TEST_F(CliVerbsTest, AMuteDaemonCostsTheTimeoutAndNoMore) {
  int listener = -1;
  ASSERT_NO_FATAL_FAILURE(Listen(&listener));
  const Outcome outcome = Terrace({"status", "--timeout-ms", "200"});
  close(listener);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("200 ms"), HasSubstr("--timeout-ms")));
}

// Its bytes come one by one, for much longer than any answer may take.
TEST_F(CliVerbsTest, ADrippingDaemonCostsTheTimeoutAndNoMore) {
  int listener = -1;
  ASSERT_NO_FATAL_FAILURE(Listen(&listener));
  std::jthread daemon([listener] {
    constexpr int kBytes = 200;
    const uint8_t byte = 1;
    // Whoever looks whether somebody listens is the first, and gone.
    for (int fd = accept(listener, nullptr, nullptr); fd >= 0;
         fd = accept(listener, nullptr, nullptr)) {
      for (int i = 0; i < kBytes && send(fd, &byte, 1, MSG_NOSIGNAL) == 1; ++i) usleep(50'000);
      close(fd);
    }
  });
  const Outcome outcome = Terrace({"audit", "--timeout-ms", "300"});
  shutdown(listener, SHUT_RDWR);
  daemon.join();
  close(listener);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("within 300 ms"), HasSubstr("--timeout-ms")));
}

TEST_F(CliVerbsTest, ADirectoryIsNoListAndNoExport) {
  StartDaemon();
  for (const char* verb : {"warm", "import"}) {
    const Outcome outcome = Terrace({verb, Path("")});
    EXPECT_EQ(outcome.exit_code, 1) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr("Is a directory")) << verb;
  }
}

TEST_F(CliVerbsTest, WrongCommandLinesExitWithTwo) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{},
        {"frobnicate"},
        {"ls", "--limit", "0"},
        {"ls", "--sort", "colour"},
        {"evict"},
        {"evict", "abc"},
        {"evict", std::string(33, 'a')},
        {"evict", "--group", "llama"},
        {"evict", std::string(32, 'a'), "--all"},
        {"tree", "xyz"},
        {"domain"},
        {"domain", "new"},
        {"bench"},
        {"bench", "load", "--block-bytes", "1"},
        {"bench", "load", "--block-bytes", "64K", "--parts", "7"},
        {"bench", "load", "--pin", "1023"},
        {"bench", "load", "--ops", "1", "--seconds", "1"},
        {"bench", "load", "--terraced", "/bin/true"},
        {"bench", "rtt"},
        {"bench", "replay"}}) {
    const Outcome outcome = Terrace(command);
    EXPECT_EQ(outcome.exit_code, 2) << testing::PrintToString(command) << outcome.err;
    EXPECT_NE(outcome.err, "") << testing::PrintToString(command);
    EXPECT_EQ(outcome.out, "") << testing::PrintToString(command);
  }
}

TEST_F(CliVerbsTest, AMistypedVerbIsAnsweredWithTheNearest) {
  const Outcome status = Terrace({"stauts"});
  EXPECT_EQ(status.exit_code, 2);
  EXPECT_THAT(status.err, AllOf(HasSubstr("'stauts' is no verb"), HasSubstr("`terrace status`?")));
  EXPECT_THAT(Terrace({"domain", "nwe", "x"}).err, HasSubstr("did you mean `terrace domain new`?"));
  EXPECT_THAT(Terrace({"frobnicate"}).err,
              AllOf(HasSubstr("'frobnicate' is no verb"), Not(HasSubstr("did you mean"))));
  EXPECT_EQ(Terrace({"statsu", "--socket", "X"}).err,
            "terrace: 'statsu' is no verb of `terrace`: did you mean `terrace status`?; "
            "`terrace --help` lists all\n");
  EXPECT_THAT(Terrace({"config", "gte", "--socket", "X"}).err,
              AllOf(HasSubstr("'gte' is no verb"), HasSubstr("`terrace config get`?")));
}

TEST_F(CliVerbsTest, HelpIsAnOptionOfEachVerb) {
  EXPECT_EQ(Terrace({"help"}).err, "terrace: help is an option, not a verb: `terrace --help`\n");
  const Outcome of_verb = Terrace({"help", "config", "set", "--json"});
  EXPECT_EQ(of_verb.exit_code, 2);
  EXPECT_THAT(of_verb.err, HasSubstr("`terrace config set --help`"));
  EXPECT_THAT(Terrace({"help", "status"}).err, HasSubstr("not a verb: `terrace status --help`"));
  EXPECT_THAT(Terrace({"help", "nothing"}).err, HasSubstr("not a verb: `terrace --help`"));
}

TEST_F(CliVerbsTest, AMistypedOptionIsAnsweredWithTheNearestAndNotWithItsValue) {
  const auto said = [this](const std::vector<std::string>& command) {
    const Outcome outcome = Terrace(command);
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  const std::string meant =
      "terrace: '--sokcet' is no option of `terrace status`: did you mean --socket?; "
      "`terrace status --help` lists all\n";
  EXPECT_EQ(said({"status", "--sokcet", "/x"}), meant);
  EXPECT_EQ(said({"status", "--sokcet=/x"}), meant);
  EXPECT_EQ(said({"--sokcet", "/x", "status"}), meant);
  EXPECT_THAT(said({"domain", "new", "--jsn", "s"}), HasSubstr("did you mean --json?"));
  EXPECT_THAT(said({"evict", "--sockt", "X", "--all"}),
              AllOf(HasSubstr("'--sockt' is no option of `terrace evict`"),
                    HasSubstr("did you mean --socket?"), Not(HasSubstr("excludes"))));
  EXPECT_THAT(said({"pin", "--jsn"}), HasSubstr("did you mean --json?"));
  EXPECT_EQ(
      said({"ls", "--frobnicate"}),
      "terrace: '--frobnicate' is no option of `terrace ls`; `terrace ls --help` lists all\n");
  EXPECT_EQ(said({"--socket", "/x", "status"}),
            "terrace: '--socket' is no option where it stands: write it behind `terrace status`; "
            "`terrace status --help` lists all\n");
}

TEST_F(CliVerbsTest, OfAnOptionThatIsBytesTheLimitsAndTheUnitsAreNamed) {
  StartDaemon();
  std::ofstream(Path("list")) << std::string(32, 'a') << "\n";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"warm", Path("list"), "--rate", "1XB"},
        {"fsck", "--online", "--verify", "--verify-rate", "1XB"},
        {"export", Path("x"), "--hot", "1XB"},
        {"pin", "x", std::string(32, 'a'), "--cap", "1XB"},
        {"bench", "load", "--spawn", "--dram-bytes", "1XB"}}) {
    const Outcome outcome = Terrace(command);
    EXPECT_EQ(outcome.exit_code, 2) << testing::PrintToString(command);
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr(" is '1XB'"),
                      HasSubstr("write bytes above 0 and up to 10^18, as a number or with KiB, "
                                "MiB, GiB or TiB, such as ")))
        << testing::PrintToString(command);
  }
}

TEST_F(CliVerbsTest, AnArgumentThatIsMissingIsNamedWithWhatItIsForAndWhereToReadOn) {
  const Outcome show = Terrace({"show"});
  EXPECT_EQ(show.exit_code, 2);
  EXPECT_THAT(show.err, AllOf(HasSubstr("KEY is missing (The block's key"),
                              HasSubstr("`terrace show --help`")));
  EXPECT_THAT(Terrace({"domain", "new"}).err, HasSubstr("`terrace domain new --help`"));
  EXPECT_THAT(Terrace({"ls", "--colour"}).err,
              AllOf(HasSubstr("--colour"), HasSubstr("`terrace ls --help`")));
}

TEST_F(CliVerbsTest, WhoMayNotConnectIsToldSoAndNotThatThereIsNoDaemon) {
  if (geteuid() != 0) GTEST_SKIP() << "root only: it takes another user";
  StartDaemon();
  const auto as_nobody = [this] {
    const std::string command = "setpriv --reuid 65534 --regid 65534 --clear-groups " +
                                std::string(TERRACE_CLI_PATH) + " status --socket " +
                                socket_path() + " 2>&1";
    FILE* out = popen(command.c_str(), "r");
    char text[2048] = "";
    (void)!std::fread(text, 1, sizeof(text) - 1, out);
    EXPECT_EQ(WEXITSTATUS(pclose(out)), 1);
    return std::string(text);
  };
  ASSERT_EQ(chmod(daemon().directory().c_str(), 0700), 0);
  EXPECT_THAT(as_nobody(), AllOf(HasSubstr("permission denied"), HasSubstr(socket_path()),
                                 HasSubstr("group"), Not(HasSubstr("no daemon"))));
  ASSERT_EQ(chmod(daemon().directory().c_str(), 0755), 0);
  ASSERT_EQ(chmod(socket_path().c_str(), 0660), 0);
  EXPECT_THAT(as_nobody(), AllOf(HasSubstr("permission denied"), HasSubstr("65534"),
                                 HasSubstr("group"), Not(HasSubstr("no daemon"))));
}

TEST_F(CliVerbsTest, HelpAndVersionNeedNoDaemon) {
  EXPECT_THAT(Terrace({"--version"}).out, ContainsRegex("^terrace [0-9]+\\.[0-9]+"));
  const Outcome help = Terrace({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* verb : {"status", "ls", "tree", "evict", "domain", "bench"}) {
    EXPECT_THAT(help.out, HasSubstr(verb));
    const Outcome own = Terrace({verb, "--help"});
    EXPECT_EQ(own.exit_code, 0);
    EXPECT_NE(own.out, help.out);
  }
}

TEST_F(CliVerbsTest, QuotaNamesKeysOfTiersThatThereAre) {
  StartDaemon();
  const Outcome memory_alone = Terrace({"quota"});
  EXPECT_EQ(memory_alone.exit_code, 0) << memory_alone.err;
  EXPECT_THAT(memory_alone.out,
              AllOf(HasSubstr("  terrace quota chat dram_guaranteed_bytes="),
                    HasSubstr("Keys: dram_guaranteed_bytes, borrow_priority, ttl_default_s\n"),
                    Not(HasSubstr("nvme")), Not(HasSubstr("redis"))));
}

// PROMISE: T39 what the command prints
TEST_F(CliVerbsTest, SecretsAreMadeOnceAndNeverShown) {
  const std::string path = Path("s");
  const nlohmann::json made = TerraceJson({"domain", "new", path});
  struct stat file {};
  ASSERT_EQ(stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 07777, 0600u);
  const std::string secret = ReadText(path);
  const nlohmann::json shown = TerraceJson({"domain", "show", path});
  EXPECT_EQ(shown, made);
  const std::string fingerprint = shown["fingerprint"];
  EXPECT_EQ(secret.find(fingerprint), std::string::npos);
  EXPECT_NE(TerraceJson({"domain", "new", Path("t")})["fingerprint"], fingerprint);
  EXPECT_THAT(Terrace({"domain", "show", path}).out, HasSubstr("fingerprint " + fingerprint));

  const Outcome again = Terrace({"domain", "new", path});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, AllOf(HasSubstr(path), HasSubstr("exists")));
  EXPECT_EQ(ReadText(path), secret);
}

TEST_F(CliVerbsTest, BadSecretsAreRefusedWithTheRemedy) {
  const std::string path = Path("s");
  EXPECT_THAT(Terrace({"domain", "show", path}).err, HasSubstr("terrace domain new"));
  TerraceJson({"domain", "new", path});
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  const Outcome readable = Terrace({"domain", "show", path});
  EXPECT_EQ(readable.exit_code, 1);
  EXPECT_THAT(readable.err, AllOf(HasSubstr("0640"), HasSubstr("chmod")));
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  std::filesystem::resize_file(path, 100);
  EXPECT_EQ(Terrace({"domain", "show", path}).exit_code, 1);
  EXPECT_EQ(Terrace({"domain", "show", Path("")}).exit_code, 1);
  EXPECT_EQ(Terrace({"domain", "new", Path("no/such/directory")}).exit_code, 1);
}

}  // namespace
}  // namespace terrace

// hitrate, explain and trace record, against a real daemon.
#include <gmock/gmock.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "integration/process/daemon_process.h"
#include "test_paths.h"

namespace terrace {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class CliInsightTest : public testing::Test {
 protected:
  // 4 MiB of DRAM: 256 blocks of 16 KiB.
  void StartDaemon() {
    const std::string config = daemon_.WriteFile(
        "terraced.toml", "[daemon]\nstate_dir = \"" + daemon_.directory() + "\"\ntrace_dir = \"" +
                             daemon_.directory() +
                             "\"\neviction = \"lru\"\ndram_bytes = \"4MiB\"\nsegment_bytes = "
                             "\"2MiB\"\n[[domain]]\nname = \"chat\"\nsocket = \"" +
                             daemon_.socket_path() + "\"\n");
    daemon_.Start({"--config", config});
    ASSERT_TRUE(daemon_.WaitReady()) << daemon_.Errors();
  }
  // Exit status and standard output; errors with it.
  std::pair<int, std::string> Terrace(const std::string& arguments) const {
    const std::string command = "TERRACE_SOCKET=" + daemon_.socket_path() + " " + TERRACE_CLI_PATH +
                                " " + arguments + " 2>&1 </dev/null";
    FILE* const pipe = popen(command.c_str(), "r");
    std::string text;
    char piece[4096];
    size_t count = 0;
    while ((count = fread(piece, 1, sizeof(piece), pipe)) > 0) text.append(piece, count);
    return {WEXITSTATUS(pclose(pipe)), text};
  }
  json TerraceJson(const std::string& arguments) const {
    const auto [status, text] = Terrace(arguments + " --json");
    EXPECT_EQ(status, 0) << arguments << ": " << text;
    return json::parse(text, nullptr, false);
  }
  // Sessions that come back, of more blocks than there is room for.
  std::string WriteTrace() {
    std::string lines;
    uint64_t next_id = 1000;
    std::vector<std::vector<uint64_t>> sessions(24);
    for (uint32_t turn = 0; turn < 120; ++turn) {
      std::vector<uint64_t>& ids = sessions[turn * 7 % sessions.size()];
      for (uint32_t i = 0; i < 3 + turn % 5; ++i) ids.push_back(next_id++);
      lines +=
          json({{"timestamp", turn * 10}, {"input_length", ids.size() * 512}, {"hash_ids", ids}})
              .dump() +
          "\n";
    }
    return daemon_.WriteFile("trace.jsonl", lines);
  }

  test::DaemonProcess daemon_;
};

TEST_F(CliInsightTest, ReplayingARecordingHitsWhatTheDaemonHit) {
  StartDaemon();
  EXPECT_EQ(TerraceJson("trace record start")["is_recording"], true);
  TerraceJson("bench replay --trace " + WriteTrace() + " --block-bytes 16K");
  const json recording = TerraceJson("trace record stop");
  EXPECT_EQ(recording["is_recording"], false);
  EXPECT_EQ(recording["dropped"], 0);
  const json domain = TerraceJson("status")["domain"];
  ASSERT_GT(domain["blocks_evicted"], 0);
  const json replayed = TerraceJson("replay " + recording["path"].get<std::string>() +
                                    " --policy lru --capacity 256");
  EXPECT_EQ(replayed["results"][0]["hit_blocks"], domain["acquire_blocks_hit"]);
  EXPECT_GT(domain["acquire_blocks_hit"], 0);

  const json rates = TerraceJson("hitrate");
  const json counts = rates["rows"][0]["windows"]["start"];
  EXPECT_EQ(counts["blocks_hit"], domain["acquire_blocks_hit"]);
  EXPECT_GT(counts["blocks_missed"]["cold"], 0);
  EXPECT_GT(counts["blocks_missed"]["capacity"], 0);
}

TEST_F(CliInsightTest, HostsHitWhatAnotherOneStoredInTheTierTheyShare) {
  const std::string tiers =
      "replay " + WriteTrace() + " --policy lru --capacity 100% --below 1% --admission all";
  const auto row = [&](const std::string& more) { return TerraceJson(tiers + more)["tiers"][0]; };
  const json one = row("");
  const json apart = row(" --hosts 5");
  const json sharing = row(" --hosts 5 --shared 100%");
  EXPECT_LT(apart["hit_percent"], one["hit_percent"]);
  EXPECT_EQ(apart["shared_hit_blocks"], 0);
  EXPECT_EQ(sharing["hit_percent"], one["hit_percent"]);
  EXPECT_GT(sharing["shared_hit_blocks"], 0);
  EXPECT_LT(row(" --hosts 5 --shared 100% --shared-admission hit")["shared_written_blocks"],
            sharing["shared_written_blocks"]);
  const auto [status, text] = Terrace("replay " + daemon_.directory() + "/trace.jsonl --hosts 3");
  EXPECT_EQ(status, 2);
  EXPECT_THAT(text, HasSubstr("say --below BLOCKS"));
}

TEST_F(CliInsightTest, ExplainNamesWhatIsMissing) {
  StartDaemon();
  const auto [status, text] = Terrace("explain 00000000000000000000000000000001");
  EXPECT_EQ(status, 1);
  EXPECT_THAT(text, HasSubstr("no engine has opened one yet"));
  TerraceJson("bench replay --trace " + WriteTrace() + " --block-bytes 16K");
  const json said = TerraceJson("explain 00000000000000000000000000000001");
  EXPECT_EQ(said["reason"], "never_seen");
  EXPECT_EQ(said["stop_index"], 0);
  const json known = TerraceJson("ls --limit 1000");
  for (const json& block : known["blocks"]) {
    if (block["position"] != 0) continue;
    EXPECT_EQ(TerraceJson("explain " + block["key"].get<std::string>())["block_count"], 1);
    break;
  }
  EXPECT_EQ(Terrace("explain xyz").first, 2);
  EXPECT_EQ(Terrace("explain").first, 2);
  const std::string prompt = daemon_.WriteFile("prompt", "1 2 3\n4 five 6\n");
  const auto [bad_status, bad] = Terrace("explain --prompt-file " + prompt);
  EXPECT_EQ(bad_status, 1);
  EXPECT_THAT(bad, HasSubstr("line 2 has 'five'"));
  const auto [absent_status, absent] = Terrace("explain --prompt-file /nonexist");
  EXPECT_EQ(absent_status, 1);
  EXPECT_THAT(absent, HasSubstr("cannot read prompt file /nonexist: No such file"));
  const std::string good = "explain --prompt-file " + daemon_.WriteFile("good", "1 2 3\n") + " ";
  for (const char* option : {"--cache-salt abc", "--hash-seed 1", "--hash-block-tokens 7"}) {
    for (const char* hash : {"", "--hash terrace "}) {
      const auto [status, text] = Terrace(good + hash + option);
      EXPECT_EQ(status, 2) << option;
      EXPECT_THAT(text, HasSubstr("add --hash sha256_cbor")) << option;
    }
  }
}

}  // namespace
}  // namespace terrace

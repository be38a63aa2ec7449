// `terrace bench …` on tiny sizes, with every byte verified, against daemons of its own.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "integration/process/cli/cli_fixture.h"
#include "test_paths.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CliBenchTest : public CliTest {
 protected:
  static std::vector<std::string> Spawning(std::vector<std::string> arguments) {
    for (const char* more : {"--spawn", "--terraced", TERRACED_PATH}) arguments.push_back(more);
    return arguments;
  }
};

TEST_F(CliBenchTest, SmokeStoreVerifiesWhatItStored) {
  const nlohmann::json document = TerraceJson(Spawning(
      {"bench", "store", "--block-bytes", "8K,64K", "--parts", "2", "--prompts", "6",
       "--prompt-blocks", "4", "--clients", "2", "--rounds", "2", "--ops", "8", "--verify"}));
  ASSERT_EQ(document["rows"].size(), 2u);
  for (const nlohmann::json& row : document["rows"]) {
    // Two clients, two rounds, eight prompts of four blocks.
    EXPECT_EQ(row["block_count"], 2 * 2 * 8 * 4);
    EXPECT_EQ(row["blocks_verified"], 2 * 2 * 8 * 4);
    EXPECT_EQ(row["blocks_refused"], 0);
    EXPECT_GT(row["ratio"]["median"], 0);
    EXPECT_GT(row["floor_bytes_per_s"]["median"], 0);
  }
}

TEST_F(CliBenchTest, LoadVerifiesWhatOthersStored) {
  const nlohmann::json document = TerraceJson(Spawning(
      {"bench", "load", "--block-bytes", "64K", "--parts", "4", "--prompts", "6", "--prompt-blocks",
       "4", "--clients", "2", "--rounds", "2", "--ops", "6", "--verify"}));
  const nlohmann::json& row = document["rows"][0];
  EXPECT_EQ(row["block_count"], 2 * 2 * 6 * 4);
  EXPECT_EQ(row["blocks_verified"], 2 * 2 * 6 * 4);
  EXPECT_EQ(row["blocks_missed"], 0);
  const auto human = Terrace(Spawning({"bench", "load", "--block-bytes", "16K", "--prompts", "2",
                                       "--rounds", "1", "--seconds", "0.02"}));
  EXPECT_EQ(human.exit_code, 0) << human.err;
  EXPECT_THAT(human.out, AllOf(HasSubstr("MEMCPY GB/s"), HasSubstr("16.0 KiB")));
}

TEST_F(CliBenchTest, AnUnreachableRatioFails) {
  for (const char* direction : {"load", "store"}) {
    const auto outcome =
        Terrace(Spawning({"bench", direction, "--block-bytes", "16K", "--prompts", "2", "--rounds",
                          "1", "--ops", "2", "--assert-ratio", "1000"}));
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("--assert-ratio is 1000"));
  }
}

TEST_F(CliBenchTest, MixedVerifiesUnderEviction) {
  // 96 prompts of 16 blocks of 64 KiB: 54 MiB of different blocks, into 16 MiB.
  const nlohmann::json document = TerraceJson(
      Spawning({"bench", "mixed", "--block-bytes", "64K", "--parts", "2", "--prompts", "96",
                "--clients", "3", "--ops", "60", "--dram-bytes", "16M", "--verify"}));
  EXPECT_EQ(document["request_count"], 180);
  EXPECT_EQ(document["blocks_asked"], 180 * 16);
  EXPECT_GT(document["blocks_hit"], 0);
  EXPECT_GT(document["blocks_evicted"], 0);
  EXPECT_EQ(document["blocks_verified"], document["blocks_hit"]);
}

TEST_F(CliBenchTest, ReplayCountsHitsOfATrace) {
  const std::string path = Path("trace.jsonl");
  std::ofstream(path) << R"({"timestamp": 0, "input_length": 1536, "hash_ids": [1, 2, 3]}
{"timestamp": 10, "input_length": 1536, "hash_ids": [1, 2, 3]}
{"timestamp": 20, "input_length": 1700, "hash_ids": [1, 2, 4, 5]}
{"timestamp": 30, "input_length": 100, "hash_ids": [9]}
)";
  const nlohmann::json document = TerraceJson(
      Spawning({"bench", "replay", "--trace", path, "--block-bytes", "16K", "--verify"}));
  EXPECT_EQ(document["request_count"], 3);  // the last has no full block
  EXPECT_EQ(document["blocks_asked"], 9);
  EXPECT_EQ(document["blocks_hit"], 3 + 2);
  EXPECT_EQ(document["blocks_stored"], 3 + 1);
  EXPECT_EQ(document["blocks_verified"], 5);
  const auto human = Terrace(
      Spawning({"bench", "replay", "--trace", path, "--requests", "2", "--block-bytes", "16K"}));
  EXPECT_EQ(human.exit_code, 0) << human.err;
  EXPECT_THAT(human.out, HasSubstr("hit rate  50.0 % (3 blocks)"));
}

TEST_F(CliBenchTest, ReplayNamesTheBrokenLine) {
  const std::string path = Path("trace.jsonl");
  std::ofstream(path) << "{\"timestamp\": 0, \"input_length\": 512, \"hash_ids\": [1]}\n{\"timest";
  const auto cut_off = Terrace(Spawning({"bench", "replay", "--trace", path}));
  EXPECT_EQ(cut_off.exit_code, 0) << cut_off.err;
  EXPECT_THAT(cut_off.err, AllOf(HasSubstr(path), HasSubstr("line 2 is cut off")));
  std::ofstream(path, std::ios::app) << "\n";
  const auto broken = Terrace(Spawning({"bench", "replay", "--trace", path}));
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_THAT(broken.err, AllOf(HasSubstr(path), HasSubstr("line 2 is no JSON object")));
}

TEST_F(CliBenchTest, RttMeasuresBothWays) {
  const nlohmann::json document =
      TerraceJson(Spawning({"bench", "rtt", "--same-cpu", "--rounds", "2", "--ops", "50"}));
  ASSERT_EQ(document["rows"].size(), 1u);
  const nlohmann::json& row = document["rows"][0];
  EXPECT_EQ(row["request_bytes"], 16 + 72 + 128 * 16);
  EXPECT_EQ(row["reply_bytes"], 16 + 16 + 48 + 16 + 128 * 8);  // one span
  EXPECT_GT(row["echo_p50_us"]["median"], 0);
  EXPECT_GT(row["acquire_p50_us"]["median"], 0);
}

TEST_F(CliBenchTest, DeviceMeasuresEveryPathAndPieceThatIsTheDefault) {
  const nlohmann::json document =
      TerraceJson({"bench", "device", "--backend", "host", "--bytes", "4M", "--rounds", "1"});
  EXPECT_EQ(document["paths"].size(), 5u * 2 * 3) << "pieces, directions, paths";
  for (const nlohmann::json& row : document["paths"]) {
    EXPECT_GT(row["gigabytes_per_second"]["median"], 0) << row.dump();
  }
  EXPECT_EQ(document["registrations"].size(), 3u);
  EXPECT_FALSE(document["codecs"].empty());
}

TEST_F(CliBenchTest, ABenchmarkLeavesTheDaemonAsItWas) {
  StartDaemon();
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"bench", "store", "--block-bytes", "16K", "--prompts", "3",
                                 "--ops", "5", "--rounds", "1"},
        {"bench", "load", "--block-bytes", "16K", "--prompts", "3", "--ops", "5", "--rounds",
         "1"}}) {
    EXPECT_EQ(Terrace(command).exit_code, 0);
    EXPECT_EQ(TerraceJson({"status"})["domain"]["block_count"], 0) << command[1];
  }
}

TEST_F(CliBenchTest, ADaemonThatDoesNotStartIsExplained) {
  const auto missing = Terrace({"bench", "load", "--spawn", "--terraced", "/no/such/terraced"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("/no/such/terraced"), HasSubstr("--terraced")));
  const auto wrong = Terrace({"bench", "load", "--spawn", "--terraced", "/bin/false"});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("terraced did not start"));
}

}  // namespace
}  // namespace terrace

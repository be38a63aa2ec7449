#include "tools/terrace/trace/trace_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

namespace terrace::tools {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TraceReaderTest : public testing::Test {
 protected:
  TraceReaderTest()
      : directory_(std::filesystem::temp_directory_path() /
                   ("terrace-trace-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(directory_);
  }
  ~TraceReaderTest() override { std::filesystem::remove_all(directory_); }

  std::string Write(const std::string& text) {
    const std::string path = directory_ / "trace.jsonl";
    std::ofstream(path) << text;
    return path;
  }
  std::string WriteGzip(const std::string& text) {
    const std::string path = directory_ / "trace.jsonl.gz";
    gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
    return path;
  }
  bool Read(const std::string& path, uint64_t request_count_max = 1000) {
    return ReadTrace(path, {.request_count_max = request_count_max}, &trace_, &why_);
  }

  std::filesystem::path directory_;
  Trace trace_;
  std::string why_;
};

TEST_F(TraceReaderTest, PartialLastBlocksAreLeftOut) {
  ASSERT_TRUE(Read(Write(R"({"timestamp": 5, "input_length": 1030, "hash_ids": [7, 8, 9]}
{"timestamp": 6, "input_length": 1536, "hash_ids": [7, 8, 10]}
)"))) << why_;
  ASSERT_EQ(trace_.requests.size(), 2u);
  EXPECT_EQ(trace_.block_tokens, 512u);
  EXPECT_THAT(trace_.ids_of(trace_.requests[0]), ElementsAre(7, 8));
  EXPECT_THAT(trace_.ids_of(trace_.requests[1]), ElementsAre(7, 8, 10));
  EXPECT_EQ(trace_.requests[1].timestamp_ms, 6u);
  EXPECT_EQ(trace_.requests[0].session_hash, 0u);
}

TEST_F(TraceReaderTest, SessionsAndStopsBecomeHints) {
  ASSERT_TRUE(Read(WriteGzip(
      R"({"timestamp":1,"input_length":512,"hash_ids":[1,2],"session_id":13,"stop":"tool_use"}
{"timestamp":2,"input_length":256,"hash_ids":[1],"session_id":13,"stop":"end_turn"}
{"timestamp":3,"input_length":256,"hash_ids":[1],"session_id":"13","stop":"other"})")))
      << why_;
  ASSERT_EQ(trace_.requests.size(), 3u);
  EXPECT_EQ(trace_.block_tokens, 256u);
  EXPECT_EQ(trace_.requests[0].id_count, 2u);
  EXPECT_EQ(trace_.requests[0].end_reason, protocol::EndReason::kToolCall);
  EXPECT_EQ(trace_.requests[1].end_reason, protocol::EndReason::kEndOfTurn);
  EXPECT_EQ(trace_.requests[2].end_reason, protocol::EndReason::kUnknown);
  EXPECT_EQ(trace_.requests[0].session_hash, trace_.requests[1].session_hash);
  EXPECT_NE(trace_.requests[0].session_hash, trace_.requests[2].session_hash);
  EXPECT_NE(trace_.requests[0].session_hash, 0u);
}

TEST_F(TraceReaderTest, NothingIsReadBeyondTheRequestsAskedFor) {
  const std::string path =
      Write("{\"timestamp\": 1, \"input_length\": 512, \"hash_ids\": [1]}\nbroken\n");
  ASSERT_TRUE(Read(path, 1)) << why_;
  EXPECT_EQ(trace_.requests.size(), 1u);
}

TEST_F(TraceReaderTest, ABrokenLineIsNamed) {
  const std::string good = "{\"timestamp\": 1, \"input_length\": 512, \"hash_ids\": [1]}\n";
  for (const char* bad : {"{\"timestamp\": 1,", "[]", "{\"timestamp\": 1, \"hash_ids\": []}",
                          "{\"timestamp\": 1, \"input_length\": -1, \"hash_ids\": []}",
                          "{\"timestamp\": 1, \"input_length\": 600, \"hash_ids\": [\"x\"]}",
                          "{\"timestamp\": 1, \"input_length\": 600, \"hash_ids\": 4}"}) {
    EXPECT_FALSE(Read(Write(good + good + bad + "\n" + good))) << bad;
    EXPECT_THAT(why_, HasSubstr("line 3 ")) << bad;
  }
}

TEST_F(TraceReaderTest, ALastLineThatIsCutOffIsLeftOutAndTold) {
  const std::string good = "{\"timestamp\": 1, \"input_length\": 512, \"hash_ids\": [1]}\n";
  const std::string path = Write(good + good + good.substr(0, 20));
  ASSERT_TRUE(Read(path)) << why_;
  EXPECT_EQ(trace_.requests.size(), 2u);
  EXPECT_THAT(CutLineText(path, trace_), AllOf(HasSubstr("line 3 "), HasSubstr("2 requests")));
  ASSERT_TRUE(Read(Write(good + good.substr(0, good.size() - 1)))) << why_;
  EXPECT_EQ(trace_.requests.size(), 2u);
  EXPECT_EQ(trace_.cut_line, 0u) << "it is whole, but for its end";
  EXPECT_FALSE(Read(Write(good.substr(0, 20)))) << "that is no trace";
}

TEST_F(TraceReaderTest, ARecordedRequestOfNoBlocksIsPassedOver) {
  const std::string good = R"({"op":"acquire","timestamp":2,"hash_ids":[1],"block_tokens":16})";
  ASSERT_TRUE(Read(Write(R"({"op":"acquire","timestamp":1,"hash_ids":[]})"
                         "\n" +
                         good + "\n")))
      << why_;
  ASSERT_EQ(trace_.requests.size(), 1u);
  EXPECT_THAT(trace_.ids_of(trace_.requests[0]), ElementsAre(1));
}

TEST_F(TraceReaderTest, ARecordedReserveGoesOnWhereItsParentIs) {
  ASSERT_TRUE(Read(Write(
      R"({"op":"reserve","timestamp":1,"hash_ids":[1,2],"block_tokens":16}
{"op":"reserve","timestamp":2,"hash_ids":[3],"parent":2,"first":2,"block_tokens":16})")))
      << why_;
  ASSERT_EQ(trace_.requests.size(), 2u);
  EXPECT_THAT(trace_.ids_of(trace_.requests[1]), ElementsAre(1, 2, 3));
  EXPECT_EQ(trace_.requests[0].stored_from, 0u);
  EXPECT_EQ(trace_.requests[1].stored_from, 2u);
}

TEST_F(TraceReaderTest, ARecordedBlockHasTokens) {
  for (const char* count : {"", ",\"block_tokens\":0", ",\"block_tokens\":4294967296"}) {
    EXPECT_FALSE(
        Read(Write(R"({"op":"acquire","timestamp":1,"hash_ids":[1])" + std::string(count) + "}\n")))
        << count;
    EXPECT_THAT(why_, HasSubstr("'block_tokens'"));
  }
}

TEST_F(TraceReaderTest, ACountBeyondAnyIsNamed) {
  for (const char* count : {"1e20", "18446744073709551616", "1e300"}) {
    const std::string line =
        "{\"timestamp\": " + std::string(count) + ", \"input_length\": 512, \"hash_ids\": [1]}\n";
    EXPECT_FALSE(Read(Write(line))) << count;
    EXPECT_THAT(why_, HasSubstr("'timestamp'")) << count;
  }
}

// Whoever prints such a value follows it by one call a bracket.
TEST_F(TraceReaderTest, ValuesOfAnyDepthAreNamed) {
  const std::string deep = std::string(1 << 20, '[') + std::string(1 << 20, ']');
  EXPECT_FALSE(
      Read(Write("{\"timestamp\": 1, \"input_length\": 512, \"hash_ids\": [1], "
                 "\"session_id\": " +
                 deep + "}\n")));
  EXPECT_THAT(why_, HasSubstr("'session_id'"));
  EXPECT_FALSE(Read(Write("{\"terrace_trace\": " + deep + "}\n")));
  EXPECT_THAT(why_, HasSubstr("this terrace reads format 1"));
}

// Of a device that has nothing else, reading would never end.
TEST_F(TraceReaderTest, AByteOfZeroEndsTheReading) {
  EXPECT_FALSE(Read("/dev/zero"));
  EXPECT_THAT(why_, HasSubstr("a byte of 0"));
  const std::string good = "{\"timestamp\": 1, \"input_length\": 512, \"hash_ids\": [1]}\n";
  EXPECT_FALSE(Read(Write(good + std::string("{\0}\n", 4) + good)));
  EXPECT_THAT(why_, HasSubstr("line 2 "));
  EXPECT_TRUE(Read(Write(good + good.substr(0, good.size() - 1)))) << "the last needs no newline";
  EXPECT_EQ(trace_.requests.size(), 2u);
}

TEST_F(TraceReaderTest, ACutOffGzipFileIsNamed) {
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text += "{\"timestamp\": " + std::to_string(i * 7919) +
            ", \"input_length\": 512, \"hash_ids\": [" + std::to_string(i * 104729ll) + "]}\n";
  }
  const std::string path = WriteGzip(text);
  ASSERT_TRUE(Read(path, 10'000)) << why_;
  EXPECT_EQ(trace_.requests.size(), 5000u);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_FALSE(Read(path, 10'000));
  EXPECT_THAT(why_, HasSubstr("cut off or damaged"));
  EXPECT_THAT(why_, HasSubstr(", line "));
}

TEST_F(TraceReaderTest, AMissingOrEmptyFileIsNamed) {
  EXPECT_FALSE(Read(directory_ / "none"));
  EXPECT_THAT(why_, HasSubstr("none: No such file"));
  EXPECT_FALSE(Read(Write("")));
  EXPECT_THAT(why_, HasSubstr("holds no request"));
}

}  // namespace
}  // namespace terrace::tools

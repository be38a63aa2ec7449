#include "daemon/log/trace_recorder.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "daemon/log/log.h"

namespace terrace {
namespace {

class TraceRecorderTest : public testing::Test {
 protected:
  TraceRecorderTest() {
    char name[] = "/tmp/terrace-trace-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~TraceRecorderTest() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<TraceRecorder> Make(uint64_t file_bytes_max = 1 << 20) {
    return std::make_unique<TraceRecorder>(TraceRecorderOptions{
        .directory = directory_, .domain_name = "d", .file_bytes_max = file_bytes_max});
  }
  static void Await(const auto& is_so) {
    while (!is_so()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  static TracedRequest Acquire(uint64_t first, size_t count) {
    TracedRequest request{.verb = protocol::Verb::kAcquire,
                          .now_us = 5'000'000,
                          .block_tokens = 16,
                          .key_count = static_cast<uint32_t>(count),
                          .good_count = 1};
    for (size_t i = 0; i < count; ++i) request.keys.push_back({.low = first + i, .high = 1});
    return request;
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(directory_ + "/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::string directory_;
};

TEST_F(TraceRecorderTest, NothingIsWrittenBeforeItIsTold) {
  const auto recorder = Make();
  recorder->Record(Acquire(1, 3));
  EXPECT_FALSE(recorder->is_recording());
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(TraceRecorderTest, LinesHaveKeysAndCounts) {
  auto recorder = Make();
  recorder->Start();
  Await([&] { return recorder->is_recording(); });
  recorder->Record(Acquire(7, 3));
  TracedRequest end = Acquire(9, 1);
  end.verb = protocol::Verb::kTouch;
  end.hints.end_reason = protocol::EndReason::kToolCall;
  recorder->Record(end);
  recorder->Stop();
  Await([&] { return !recorder->is_recording(); });
  recorder.reset();
  EXPECT_EQ(Read("d.trace.jsonl"),
            "{\"terrace_trace\":1,\"domain\":\"d\"}\n"
            "{\"op\":\"acquire\",\"timestamp\":5000,"
            "\"group\":\"00000000000000000000000000000000\",\"block_tokens\":16,"
            "\"input_length\":48,\"hit\":1,\"hash_ids\":[7,8,9]}\n"
            "{\"op\":\"touch\",\"timestamp\":5000,\"stop\":\"tool_use\","
            "\"group\":\"00000000000000000000000000000000\",\"block_tokens\":16,"
            "\"input_length\":16,\"hash_ids\":[9]}\n");
}

TEST_F(TraceRecorderTest, FilesRotateAndStayWithinTheirBound) {
  constexpr uint64_t kBytesMax = 16'384;
  auto recorder = Make(kBytesMax);
  recorder->Start();
  Await([&] { return recorder->is_recording(); });
  constexpr uint64_t kCount = 400;
  for (uint64_t i = 0; i < kCount; ++i) {
    recorder->Record(Acquire(i * 1000, 10));
    Await([&] { return recorder->Status().record_count == i + 1; });
  }
  const protocol::TraceRecordReply status = recorder->Status();
  recorder.reset();
  EXPECT_EQ(status.dropped_count, 0u);
  EXPECT_GT(status.written_bytes, 2 * kBytesMax);
  const std::string newer = Read("d.trace.jsonl"), older = Read("d.trace.jsonl.1");
  EXPECT_LE(newer.size() + older.size(), kBytesMax + 2048);
  EXPECT_THAT(newer, testing::StartsWith("{\"terrace_trace\":1"));
  EXPECT_THAT(older, testing::StartsWith("{\"terrace_trace\":1"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 2);
}

TEST_F(TraceRecorderTest, WhatDoesNotFitTheQueueIsDroppedAndCounted) {
  auto recorder = Make(1 << 30);
  recorder->Start();
  Await([&] { return recorder->is_recording(); });
  // More keys than may wait, again and again: copying them takes less than formatting them does, so
  // the queue fills up unless this thread is stopped every time.
  constexpr uint64_t kFits = TraceRecorder::kQueuedKeysMax / TraceRecorder::kTracedKeysMax;
  constexpr uint64_t kCountMax = 500 * kFits;
  const TracedRequest request = Acquire(1, TraceRecorder::kTracedKeysMax);
  uint64_t count = 0;
  while (count < kCountMax && recorder->Status().dropped_count == 0) {
    for (uint64_t i = 0; i < 2 * kFits; ++i, ++count) recorder->Record(request);
  }
  Await([&] {
    const protocol::TraceRecordReply status = recorder->Status();
    return status.record_count + status.dropped_count == count;
  });
  EXPECT_GT(recorder->Status().dropped_count, 0u);
  EXPECT_GE(recorder->Status().record_count, kFits);
}

TEST_F(TraceRecorderTest, ADirectoryThatIsNotThereIsMade) {
  TraceRecorder recorder(
      {.directory = directory_ + "/made", .domain_name = "d", .file_bytes_max = 1 << 20});
  recorder.Start();
  Await([&] { return recorder.is_recording(); });
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/made/d.trace.jsonl"));
}

TEST_F(TraceRecorderTest, ADirectoryThatCannotBeMadeIsAnErrorThatTheLogTells) {
  testing::internal::CaptureStderr();
  StartLog({});
  {
    TraceRecorder recorder(
        {.directory = directory_ + "/none/none", .domain_name = "d", .file_bytes_max = 1 << 20});
    recorder.Start();
    Await([&] { return recorder.Status().error != 0; });
    EXPECT_EQ(recorder.Status().error, ENOENT);
    EXPECT_FALSE(recorder.is_recording());
  }
  (void)StopLog();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::AllOf(testing::HasSubstr("a recording of requests ends by itself"),
                             testing::HasSubstr(directory_ + "/none/none/d.trace.jsonl"),
                             testing::HasSubstr("daemon.trace_dir must be a directory")));
}

}  // namespace
}  // namespace terrace

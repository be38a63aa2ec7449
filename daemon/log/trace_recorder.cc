#include "daemon/log/trace_recorder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "daemon/log/log.h"
#include "src/thread_name.h"
#include "terrace/check.h"
#include "terrace/units.h"

namespace terrace {
namespace {

constexpr uint32_t kOff = 0, kOn = 1, kEnd = 2;
constexpr std::chrono::milliseconds kLook(10);  // how often the queue is looked at
constexpr mode_t kFileMode = 0640, kDirectoryMode = 0750;

const char* OpName(protocol::Verb verb) {
  switch (verb) {
    case protocol::Verb::kMatch:
      return "match";
    case protocol::Verb::kAcquire:
      return "acquire";
    case protocol::Verb::kReserve:
      return "reserve";
    case protocol::Verb::kCommit:
      return "commit";
    case protocol::Verb::kTouch:
      return "touch";
    default:
      return "release";
  }
}

const char* StopName(protocol::EndReason reason) {
  switch (reason) {
    case protocol::EndReason::kToolCall:
      return "tool_use";
    case protocol::EndReason::kEndOfTurn:
      return "end_turn";
    case protocol::EndReason::kLength:
      return "length";
    case protocol::EndReason::kAborted:
      return "aborted";
    default:
      return nullptr;
  }
}

void AddNumber(const char* name, uint64_t value, std::string* line) {
  line->append(",\"").append(name).append("\":").append(std::to_string(value));
}

void AddText(const char* name, const std::string& value, std::string* line) {
  line->append(",\"").append(name).append("\":\"").append(value).append("\"");
}

std::string LineOf(const TracedRequest& request) {
  std::string line = std::string("{\"op\":\"") + OpName(request.verb) + "\"";
  AddNumber("timestamp", request.now_us / kUsPerMs, &line);
  if (!request.lease.is_zero()) {
    // Enough to tell leases apart; a token would be a key to it.
    AddNumber("lease", request.lease.high ^ request.lease.low, &line);
  }
  if (request.verb == protocol::Verb::kCommit) {
    AddNumber("entries", request.key_count, &line);
    AddNumber("sealed", request.good_count, &line);
    return line + "}\n";
  }
  if (const char* stop = StopName(request.hints.end_reason)) AddText("stop", stop, &line);
  if (request.hints.session_hash != 0) {
    AddNumber("session_id", request.hints.session_hash, &line);
  }
  if (request.verb == protocol::Verb::kRelease) return line + "}\n";
  AddText("group", ToHex(request.group), &line);
  AddNumber("block_tokens", request.block_tokens, &line);
  AddNumber("input_length", uint64_t{request.key_count} * request.block_tokens, &line);
  if (request.verb != protocol::Verb::kTouch) {
    AddNumber(request.verb == protocol::Verb::kReserve ? "new" : "hit", request.good_count, &line);
  }
  if (request.first_position != 0) AddNumber("first", request.first_position, &line);
  if (!request.parent.is_zero()) AddNumber("parent", request.parent.low, &line);
  if (request.is_flat) AddNumber("flat", 1, &line);
  if (request.hints.recompute_ns_per_token != 0) {
    AddNumber("recompute_ns_per_token", request.hints.recompute_ns_per_token, &line);
  }
  if (request.hints.priority != protocol::kPriorityUnset) {
    AddNumber("priority", request.hints.priority, &line);
  }
  if (request.hints.ttl_s != 0) AddNumber("ttl_s", request.hints.ttl_s, &line);
  line += ",\"hash_ids\":[";
  for (size_t i = 0; i < request.keys.size(); ++i) {
    if (i > 0) line += ',';
    line += std::to_string(request.keys[i].low);
  }
  return line + "]}\n";
}

}  // namespace

TraceRecorder::TraceRecorder(TraceRecorderOptions options)
    : options_(std::move(options)),
      path_(options_.directory + "/" + options_.domain_name + ".trace.jsonl"),
      queue_(kQueueMax),
      thread_(StartThread("terrace-trace", [this] { Run(); })) {
  TERRACE_CHECK(!options_.directory.empty() && !options_.domain_name.empty(),
                "a recording is a file of a domain");
}

TraceRecorder::~TraceRecorder() {
  wish_.store(kEnd);
  wish_.notify_one();
  thread_.join();
}

// ---- the store thread ----

void TraceRecorder::Start() {
  error_.store(0);
  wish_.store(kOn);
  wish_.notify_one();
}

void TraceRecorder::Stop() {
  wish_.store(kOff);
  wish_.notify_one();
}

void TraceRecorder::Record(TracedRequest request) {
  if (!is_recording()) return;
  const uint64_t added = added_count_.load(std::memory_order_relaxed);
  const uint64_t taken = taken_count_.load(std::memory_order_acquire);
  if (added - taken == kQueueMax ||
      queued_keys_.load(std::memory_order_relaxed) + request.keys.size() > kQueuedKeysMax) {
    dropped_count_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  queued_keys_.fetch_add(request.keys.size(), std::memory_order_relaxed);
  queue_[added % kQueueMax] = std::move(request);
  added_count_.store(added + 1, std::memory_order_release);
}

protocol::TraceRecordReply TraceRecorder::Status() const {
  protocol::TraceRecordReply reply{.record_count = record_count_.load(),
                                   .dropped_count = dropped_count_.load(),
                                   .written_bytes = written_bytes_.load(),
                                   .file_bytes_max = options_.file_bytes_max,
                                   .is_recording = is_recording() ? 1u : 0u,
                                   .error = error_.load()};
  path_.copy(reply.path, sizeof(reply.path) - 1);
  return reply;
}

// ---- the recorder's thread ----

void TraceRecorder::Run() {
  while (wish_.load() != kEnd) {
    const uint32_t wish = wish_.load();
    if (wish == kOn && file_ == nullptr) Open();
    if (wish == kOff && file_ != nullptr) Close();
    if (file_ == nullptr) {
      wish_.wait(kOff);
      continue;
    }
    if (!WriteSome()) {
      if (std::fflush(file_) != 0) Fail();
      std::this_thread::sleep_for(kLook);
    }
  }
  if (file_ != nullptr) Close();
}

void TraceRecorder::Open() {
  mkdir(options_.directory.c_str(), kDirectoryMode);  // what it comes to shows below
  // The recording before it stays until the next one, or until this one needs its room.
  std::rename(path_.c_str(), (path_ + ".1").c_str());
  const int fd = open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, kFileMode);
  file_ = fd < 0 ? nullptr : fdopen(fd, "w");
  if (file_ == nullptr) {
    EndByItself(errno);
    if (fd >= 0) close(fd);
    return;
  }
  file_bytes_ = 0;
  Write("{\"terrace_trace\":1,\"domain\":\"" + options_.domain_name + "\"}\n");
  is_open_.store(true, std::memory_order_release);
}

void TraceRecorder::Close() {
  is_open_.store(false, std::memory_order_release);
  while (file_ != nullptr && WriteSome()) {
  }
  if (file_ != nullptr && std::fclose(file_) != 0) error_.store(errno);
  file_ = nullptr;
}

// The file is of no use any more.
void TraceRecorder::Fail() {
  EndByItself(errno);
  std::fclose(file_);
  file_ = nullptr;
}

// Recording ends; Status says why, too.
void TraceRecorder::EndByItself(int error) {
  error_.store(error);
  is_open_.store(false, std::memory_order_release);
  uint32_t wish = kOn;
  wish_.compare_exchange_strong(wish, kOff);
  Log(LogLevel::kWarn, "a recording of requests ends by itself",
      {{"path", path_},
       {"why", std::strerror(error)},
       {"remedy",
        "daemon.trace_dir must be a directory that this user may write to, with room for "
        "trace_bytes_max of each domain; then `terrace trace record start`"}});
}

bool TraceRecorder::WriteSome() {
  const uint64_t taken = taken_count_.load(std::memory_order_relaxed);
  const uint64_t added = added_count_.load(std::memory_order_acquire);
  TERRACE_CHECK(added - taken <= kQueueMax,
                "a place is not used again before its request is taken");
  if (taken == added) return false;
  const TracedRequest request = std::move(queue_[taken % kQueueMax]);
  const uint64_t queued_keys =
      queued_keys_.fetch_sub(request.keys.size(), std::memory_order_relaxed);
  TERRACE_CHECK(queued_keys >= request.keys.size(),
                "keys are counted before their request is seen");
  taken_count_.store(taken + 1, std::memory_order_release);
  Write(LineOf(request));
  if (file_ == nullptr) return true;
  record_count_.fetch_add(1, std::memory_order_relaxed);
  if (file_bytes_ >= options_.file_bytes_max / 2) {
    std::fclose(file_);
    file_ = nullptr;
    Open();
  }
  return true;
}

void TraceRecorder::Write(const std::string& line) {
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size()) return Fail();
  file_bytes_ += line.size();
  written_bytes_.fetch_add(line.size(), std::memory_order_relaxed);
}

}  // namespace terrace

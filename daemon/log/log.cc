#include "daemon/log/log.h"

#include <spdlog/async.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "daemon/log/printable.h"
#include "src/thread_name.h"
#include "terrace/block_key.h"
#include "terrace/check.h"

namespace terrace {
namespace {

// As long as who reads the log may take for its end.
constexpr std::chrono::seconds kStopWithin{2};

// One a format, so that a line which is queued keeps the pattern it was made for.
struct FormattedLog {
  LogFormat format = LogFormat::kText;
  std::shared_ptr<spdlog::async_logger> logger;
};

// A JSON string, which text lines use as well: one way to escape.
void AppendQuoted(std::string_view text, std::string* line) {
  *line += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      *line += {'\\', c};
    } else if (byte < 0x20 || byte == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", byte);
      *line += escaped;
    } else {
      *line += c;
    }
  }
  *line += '"';
}

// The last lines once more, in memory of fixed size, whatever they were written as.
class RecentLines : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // As JSON strings, the latest last. False, and nothing, if one is just being kept.
  bool Append(size_t line_count_max, std::string* document) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    for (size_t i = std::min({line_count_, lines_.size(), line_count_max}); i > 0; --i) {
      AppendQuoted(lines_[(line_count_ - i) % lines_.size()], document);
      if (i > 1) *document += ",\n";
    }
    return true;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_.format(message, line);
    lines_[line_count_++ % lines_.size()] =
        Printable({line.data(), std::min(line.size(), kRecentLineBytes)});
  }
  void flush_() override {}
  void set_pattern_(const std::string&) override {}  // those of the two formats

  spdlog::pattern_formatter formatter_{"%Y-%m-%dT%H:%M:%S.%e%z %l %v",
                                       spdlog::pattern_time_type::local, ""};
  std::array<std::string, kRecentLinesMax> lines_;
  size_t line_count_ = 0;
};

// Set by StartLog before other threads exist, and `active` by SetLog, too.
struct LogState {
  std::shared_ptr<spdlog::details::thread_pool> pool;
  std::shared_ptr<RecentLines> recent;
  std::array<FormattedLog, 2> logs;  // by LogFormat
  std::atomic<const FormattedLog*> active = nullptr;
};
LogState& State() {
  static LogState state;
  return state;
}

spdlog::level::level_enum LevelOf(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kDebug:
      return spdlog::level::debug;
  }
  return spdlog::level::info;
}

std::string Line(LogFormat format, std::string_view event, std::initializer_list<LogField> fields) {
  const bool is_json = format == LogFormat::kJson;
  std::string line = is_json ? "\"event\":" : "event=";
  AppendQuoted(event, &line);
  for (const LogField& field : fields) {
    if (is_json) {
      line += ',';
      AppendQuoted(field.name, &line);
      line += ':';
    } else {
      line += ' ';
      line += field.name;
      line += '=';
    }
    if (field.is_text) {
      AppendQuoted(field.value, &line);
    } else {
      line += field.value;
    }
  }
  return line;
}

}  // namespace

std::string SessionText(uint64_t session) { return ToHex(0, session).substr(16); }

void StartLog(const LogOptions& options) {
  LogState& state = State();
  TERRACE_CHECK(state.pool == nullptr, "the log starts once: other threads read what is set here");
  {
    const BornAs born("terrace-log", Waking::kPatient);
    state.pool = std::make_shared<spdlog::details::thread_pool>(options.queue_lines_max, 1);
  }
  state.recent = std::make_shared<RecentLines>();
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    FormattedLog& log = state.logs[static_cast<size_t>(format)];
    log.format = format;
    log.logger = std::make_shared<spdlog::async_logger>(
        "terraced",
        spdlog::sinks_init_list{std::make_shared<spdlog::sinks::stderr_sink_mt>(), state.recent},
        state.pool, spdlog::async_overflow_policy::overrun_oldest);
    log.logger->flush_on(spdlog::level::info);
    log.logger->set_pattern(format == LogFormat::kJson
                                ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})"
                                : "time=%Y-%m-%dT%H:%M:%S.%e%z level=%l %v");
  }
  SetLog(options.level, options.format);
}

void SetLog(LogLevel level, LogFormat format) {
  LogState& state = State();
  if (state.pool == nullptr) return;
  for (FormattedLog& log : state.logs) log.logger->set_level(LevelOf(level));
  state.active = &state.logs[static_cast<size_t>(format)];
}

bool StopLog() {
  struct End {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_written = false;
  };
  LogState& state = State();
  state.active = nullptr;
  // The pool's end joins its thread, which may wait for whoever reads the log.
  const auto end = std::make_shared<End>();
  std::thread([end, pool = std::exchange(state.pool, nullptr)]() mutable {
    pool.reset();
    const std::lock_guard lock(end->mutex);
    end->is_written = true;
    end->changed.notify_all();
  }).detach();
  std::unique_lock lock(end->mutex);
  if (!end->changed.wait_for(lock, kStopWithin, [&] { return end->is_written; })) return false;
  state.logs = {};
  return true;
}

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  const FormattedLog* const log = State().active.load();
  if (log == nullptr || !log->logger->should_log(LevelOf(level))) return;
  log->logger->log(LevelOf(level), "{}", Line(log->format, event, fields));
}

bool RecentLogLines(size_t line_count_max, std::string* document) {
  const LogState& state = State();
  *document = "{\"lines\": [";
  if (state.recent != nullptr && !state.recent->Append(line_count_max, document)) return false;
  *document += "]}";
  return true;
}

uint64_t DroppedLogLines() {
  const LogState& state = State();
  return state.pool == nullptr ? 0 : state.pool->overrun_counter();
}

bool LogGate::Open(uint64_t now_us, uint64_t* held_back) {
  if (now_us < next_us_) {
    ++held_back_;
    return false;
  }
  next_us_ = now_us + kIntervalUs;
  *held_back = std::exchange(held_back_, 0);
  return true;
}

}  // namespace terrace

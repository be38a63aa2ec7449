#include "daemon/log/log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

// One a format, so that a line which is queued keeps the pattern it was made for.
struct FormattedLog {
  LogFormat format = LogFormat::kText;
  std::shared_ptr<spdlog::async_logger> logger;
};

// Set by StartLog before other threads exist, and `active` by SetLog, too.
struct LogState {
  std::shared_ptr<spdlog::details::thread_pool> pool;
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

void StartLog(const LogOptions& options) {
  LogState& state = State();
  TERRACE_CHECK(state.pool == nullptr, "the log starts once: other threads read what is set here");
  state.pool = std::make_shared<spdlog::details::thread_pool>(options.queue_lines_max, 1);
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    FormattedLog& log = state.logs[static_cast<size_t>(format)];
    log.format = format;
    log.logger = std::make_shared<spdlog::async_logger>(
        "terraced", std::make_shared<spdlog::sinks::stderr_sink_mt>(), state.pool,
        spdlog::async_overflow_policy::overrun_oldest);
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

void StopLog() {
  LogState& state = State();
  state.pool.reset();  // joins after the queue is written
  state.active = nullptr;
  state.logs = {};
}

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  const FormattedLog* const log = State().active.load();
  if (log == nullptr || !log->logger->should_log(LevelOf(level))) return;
  log->logger->log(LevelOf(level), "{}", Line(log->format, event, fields));
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

// The daemon's log: one event a line with named values, as key=value text or JSON, written to
// standard error by its own thread. A line never waits: when the queue is full the oldest line
// goes, and is counted.
//
// THREADING: any thread, after StartLog.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "daemon/config/config.h"

namespace terrace {

// One named value of an event. Texts are quoted and escaped, numbers are not.
struct LogField {
  std::string_view name;
  std::string value;
  bool is_text = true;

  LogField(std::string_view field_name, std::string text)
      : name(field_name), value(std::move(text)) {}
  LogField(std::string_view field_name, const char* text) : name(field_name), value(text) {}
  template <typename Number>
  requires std::is_arithmetic_v<Number> LogField(std::string_view field_name, Number number)
      : name(field_name), value(std::to_string(number)), is_text(false) {}
};

// A session as status and slow requests name it: 16 hex digits.
std::string SessionText(uint64_t session);

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
  uint32_t queue_lines_max = 8192;
};

// Starts the log thread. Once, before the first event that matters; earlier ones are lost.
void StartLog(const LogOptions& options);
// From now on; lines that are queued are written as they were meant.
void SetLog(LogLevel level, LogFormat format);
// Writes what is queued and ends the log thread. False: nobody reads it, and the thread still
// waits: the process ends without its destructors.
[[nodiscard]] bool StopLog();

// `event` is a few words that stay the same for the same thing: "session opened".
void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

// The last lines, at most `line_count_max`, the latest last, as a JSON document: {"lines": [...]}.
// What is kept of a line is printable ASCII, cut at kRecentLineBytes. False if one is just being
// kept: ask again.
inline constexpr size_t kRecentLinesMax = 200;
inline constexpr size_t kRecentLineBytes = 512;
bool RecentLogLines(size_t line_count_max, std::string* document);

// Lines dropped because the queue was full.
uint64_t DroppedLogLines();

// At most one line a second of its kind; the rest is counted and told with the next.
class LogGate {
 public:
  // True if a line may be written now; `*held_back` is how many were not since the last.
  bool Open(uint64_t now_us, uint64_t* held_back);

 private:
  static constexpr uint64_t kIntervalUs = 1'000'000;
  uint64_t next_us_ = 0;
  uint64_t held_back_ = 0;
};

}  // namespace terrace

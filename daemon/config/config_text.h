// Configuration as text: TOML read into the values, and printed from them. A key that is not known
// is refused, never ignored.
//
// THREADING: any thread. ReadConfigText and ReadConfigFile block.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/config.h"
#include "terrace/status.h"

namespace terrace {

// Reads TOML text. kInvalid with one sentence in `*why`, behind "origin:line: "; behind nothing
// where `origin` is empty: of what nobody wrote as a file, a line would say nothing.
Status ParseConfig(std::string_view toml_text, const std::string& origin, DaemonConfig* config,
                   std::string* why);
// A file's text, for ParseConfig. kNotFound, kIo, or kInvalid: it is too long, or a pipe that
// is not written to its end within 4 s, or ends with nothing in it.
Status ReadConfigText(const std::string& path, std::string* text, std::string* why);
// Both in one.
Status ReadConfigFile(const std::string& path, DaemonConfig* config, std::string* why);

// The configuration as TOML that ParseConfig reads back, each key under its one-line meaning.
std::string PrintConfig(const DaemonConfig& config);

// One key as it is set, for who asks about it.
struct ConfigEntry {
  std::string key;    // "nvme.admission", "domain.chat.allow_uids"
  std::string value;  // as TOML; empty: not set
  std::string_view meaning;
  bool is_live = false;  // KeyChange::kLive
};
// Every key there is; of each domain its own, by its name.
std::vector<ConfigEntry> ConfigEntries(const DaemonConfig& config);
// The values of live keys; domains of one name in both. Of `key` alone, if it is not empty: then
// kNotFound if there is no such live key.
Status CopyLive(const DaemonConfig& from, std::string_view key, DaemonConfig* to);
// The line at which each key of ConfigEntries stands in a text that ParseConfig takes.
std::map<std::string, uint32_t> ConfigLines(std::string_view toml_text);

// "daemon.log_level", …, "nvme.paths", …, "redis.endpoints", …, "domain.name", …: every key there
// is.
std::vector<std::string> ConfigKeyNames();

// What of these was most likely meant by `name`; empty: nothing is near enough.
std::string NearestName(std::string_view name, const std::vector<std::string>& candidates);

// "8GiB", "512 MiB", "4096": kInvalid for anything else. Binary units only (KiB, MiB, GiB, TiB).
Result<uint64_t> ParseBytes(std::string_view text);
// What to write where bytes are expected, for a person.
std::string WantedBytes(uint64_t min, uint64_t max);
// The largest unit that divides `value`: 8589934592 → "8GiB".
std::string FormatBytes(uint64_t value_bytes);

// Without the blanks around it.
std::string_view Trimmed(std::string_view text);

// "KEY=VALUE" lines, as a Config request brings them: at least one, though it may be empty, and of
// more than kConfigChangesMax one more than these, which tells.
inline constexpr size_t kConfigChangesMax = 16;
struct ConfigChange {
  std::string text;  // the line
  std::string key;   // all of it where there is no '='
  std::optional<std::string> value;
};
std::vector<ConfigChange> ConfigChangesOf(std::string_view lines);

}  // namespace terrace

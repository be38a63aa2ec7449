// Configuration as text: TOML read into the values, and printed from them. A key that is not known
// is refused, never ignored.
//
// THREADING: any thread. ReadConfigFile blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/config.h"
#include "terrace/status.h"

namespace terrace {

// Reads TOML text; `origin` names it in refusals. kInvalid with one sentence in `*why`.
Status ParseConfig(std::string_view toml_text, const std::string& origin, DaemonConfig* config,
                   std::string* why);
// The same for a file. kNotFound, kIo or kInvalid.
Status ReadConfigFile(const std::string& path, DaemonConfig* config, std::string* why);

// The configuration as TOML that ParseConfig reads back, each key under its one-line meaning.
std::string PrintConfig(const DaemonConfig& config);

// "daemon.log_level", …, "nvme.paths", …, "redis.endpoints", …, "domain.name", …: every key there
// is.
std::vector<std::string> ConfigKeyNames();

// "8GiB", "512 MiB", "4096": kInvalid for anything else. Binary units only (KiB, MiB, GiB, TiB).
Result<uint64_t> ParseBytes(std::string_view text);
// The largest unit that divides `value`: 8589934592 → "8GiB".
std::string FormatBytes(uint64_t value_bytes);

}  // namespace terrace

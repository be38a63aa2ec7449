// What `terrace doctor` prints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "tools/terrace/doctor/finding.h"

namespace terrace::tools {

// Rows of at most 80 columns: level, check, what was found; below it, unless all is well, what it
// means and, behind "->", the remedy. At the end a line of counts.
std::string RenderFindings(std::span<const Finding> findings);
nlohmann::json ToJson(std::span<const Finding> findings);
size_t CountOf(std::span<const Finding> findings, FindingLevel level);

}  // namespace terrace::tools

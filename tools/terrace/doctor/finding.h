// Finding: what one check of `terrace doctor` saw, as one row.
#pragma once

#include <cstdint>
#include <string>

namespace terrace::tools {

enum class FindingLevel : uint8_t {
  kOk,
  kNote,     // nothing to do, or nothing that could be seen
  kWarning,  // the cache works, and worse than it could
  kProblem,  // something does not work, or will not at the next start
};

struct Finding {
  std::string check;  // at most 13 bytes, the report's column
  FindingLevel level = FindingLevel::kOk;
  std::string found;
  std::string meaning;  // for the cache
  std::string remedy;   // a command or a line of the configuration; empty: none
};

}  // namespace terrace::tools

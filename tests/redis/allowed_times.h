// How long things may take in tests of times.
#pragma once

#include <cstdlib>
#include <string_view>

namespace terrace::testing {

// As promised where TERRACE_QUIET=1 says that nothing else runs on the machine; else as long as a
// busy one may take.
inline double AllowedSeconds(double promised_s, double busy_s) {
  const char* const quiet = std::getenv("TERRACE_QUIET");
  return quiet != nullptr && std::string_view(quiet) == "1" ? promised_s : busy_s;
}

}  // namespace terrace::testing

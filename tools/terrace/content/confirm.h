// Before something is destroyed a person says yes: on the terminal, or with --yes.
#pragma once

#include <string>
#include <string_view>

#include "tools/terrace/cli/verb.h"

namespace terrace::tools {

struct Destruction {
  std::string_view verb;    // "evict"
  std::string what;         // "every block of group llama"
  std::string where;        // the daemon's socket, or what lies on drives
  std::string_view remedy;  // beside --yes: "--dry-run to see what it would drop"
};

// kExitOk: go on. Else a person or nobody was asked, and has been told what to do.
ExitCode Confirm(const Destruction& destruction);

}  // namespace terrace::tools

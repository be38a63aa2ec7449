#include "tools/terrace/content/confirm.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>

#include "src/printable_text.h"

namespace terrace::tools {

ExitCode Confirm(const Destruction& destruction) {
  if (isatty(STDIN_FILENO) == 0) {
    Fail(fmt::format("{}: dropping {} needs a yes, and there is no terminal to ask on: add --yes{}",
                     destruction.verb, destruction.what,
                     destruction.remedy.empty() ? "" : fmt::format(", or {}", destruction.remedy)));
    return kExitUsage;
  }
  fmt::print(stderr, "{} [y/N] ",
             PrintableText(fmt::format("Drop {} on {}?", destruction.what, destruction.where)));
  std::fflush(stderr);
  char answer[16] = {};
  if (std::fgets(answer, sizeof(answer), stdin) != nullptr &&
      (answer[0] == 'y' || answer[0] == 'Y')) {
    return kExitOk;
  }
  return Fail("nothing was dropped");
}

}  // namespace terrace::tools
